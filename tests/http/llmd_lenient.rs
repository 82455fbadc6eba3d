//! What llm-d-inference-sim takes and answers where vLLM refuses (`--compat llm-d`).

use serde_json::{Value, json};
use vllm_sim_config::CliMode;

use super::sim::{Sim, post as raw};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const GENERATE: &str = "/inference/v1/generate";

async fn start(flags: &[&str]) -> Sim {
    let args = ["--model", "m", "--compat", "llm-d", "--seed", "7"];
    Sim::start(CliMode::Llmd, &[&args[..], flags].concat()).await
}

/// A chat with these fields besides.
fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "m",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "This is a test."}],
    });
    merge(&mut body, more);
    body
}

fn merge(body: &mut Value, more: Value) {
    let members = body.as_object_mut().expect("an object");
    members.extend(more.as_object().expect("an object").clone());
}

async fn post(sim: &Sim, path: &str, body: &Value) -> Value {
    let answer = sim.post(path, body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()
}

fn tools(choice: Value) -> Value {
    let properties = json!({"city": {"type": "string"}, "country": {"type": "string"}});
    let schema =
        json!({"type": "object", "properties": properties, "required": ["city", "country"]});
    let function = json!({"name": "weather", "description": "d", "parameters": schema});
    json!({"tools": [{"type": "function", "function": function}], "tool_choice": choice})
}

#[tokio::test]
async fn fields_that_llmd_ignores_are_never_rejected() {
    let sim = start(&[]).await;
    for more in [
        json!({"temperature": 7}),
        json!({"temperature": "hot"}),
        json!({"temperature": 0, "n": 2}),
        json!({"top_p": 0}),
        json!({"top_p": 3.5, "top_k": -9, "min_p": 2}),
        json!({"presence_penalty": 9, "frequency_penalty": -9, "repetition_penalty": 0}),
        json!({"min_tokens": 50}),
        json!({"stop": ""}),
        json!({"stop": ["a", ""]}),
        json!({"seed": 1.5, "user": 3, "logit_bias": {"x": 1}}),
        json!({"response_format": {"type": "yaml"}}),
        json!({"stream_options": {"include_usage": true}}),
        json!({"logprobs": true, "top_logprobs": 30}),
        json!({"top_logprobs": 2}),
        json!({"tools": []}),
        json!({"tool_choice": "auto"}),
        json!({"messages": [{"content": "x"}]}),
        json!({"messages": [{"role": "user", "content": null}]}),
        json!({"messages": [{"role": "user"}]}),
    ] {
        post(&sim, CHAT, &chat(more)).await;
    }
    for more in [
        json!({"logprobs": 30}),
        json!({"suffix": "s"}),
        json!({"temperature": -1}),
        json!({"stream_options": {"include_usage": true}}),
    ] {
        let mut body = json!({"model": "m", "prompt": "a", "max_tokens": 3});
        merge(&mut body, more);
        post(&sim, TEXT, &body).await;
    }
    let body = json!({"model": "m", "token_ids": [1, 2],
        "sampling_params": {"max_tokens": 2, "temperature": 9, "top_p": -1}});
    post(&sim, GENERATE, &body).await;
    let body = json!({"model": "m", "input": "x", "temperature": 9, "top_p": 9});
    post(&sim, "/v1/responses", &body).await;
    let body = chat(json!({"temperature": 9, "top_k": -9}));
    post(&sim, "/v1/messages", &body).await;
    let answer = sim.post(CHAT, &chat(json!({"n": 0}))).await;
    assert_eq!(answer.status, 400, "what llm-d looks at is refused");
}

#[tokio::test]
async fn top_logprobs_are_capped_at_100() {
    let sim = start(&[]).await;
    for (asked, shown) in [(30, 30), (1_000_000, 100)] {
        let body = chat(json!({"logprobs": true, "top_logprobs": asked, "max_tokens": 1}));
        let answer = post(&sim, CHAT, &body).await;
        let first = &answer["choices"][0]["logprobs"]["content"][0];
        let alternatives = first["top_logprobs"].as_array().map(Vec::len);
        assert_eq!(alternatives, Some(shown), "{asked}");
    }
}

#[tokio::test]
async fn unknown_tool_choice_is_treated_as_auto() {
    let sim = start(&[]).await;
    for choice in [json!("sometimes"), json!({"type": "allowed_tools"}), json!(5)] {
        post(&sim, CHAT, &chat(tools(choice))).await;
    }
}

#[tokio::test]
async fn forced_tool_call_finishes_with_tool_calls() {
    let sim = start(&[]).await;
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for choice in [named, json!("required")] {
        let mut body = chat(tools(choice));
        body["max_tokens"] = 1.into();
        let answer = post(&sim, CHAT, &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
        let arguments: Value = serde_json::from_str(arguments.expect("a text")).expect("JSON");
        assert!(arguments["country"].is_string(), "{arguments}");
        body["stream"] = true.into();
        let events = sim.post(CHAT, &body).await.text();
        assert!(events.contains("\"finish_reason\":\"tool_calls\""), "{events}");
    }
}

#[tokio::test]
async fn a_seed_does_not_make_equal_prompts_equal() {
    let replies = async || {
        let sim = start(&[]).await;
        let body = chat(json!({"max_tokens": 40, "ignore_eos": true}));
        let mut texts = Vec::new();
        for _ in 0..3 {
            let answer = post(&sim, CHAT, &body).await;
            texts.push(answer["choices"][0]["message"]["content"].to_string());
        }
        texts
    };
    let first = replies().await;
    assert!(first[0] != first[1] || first[1] != first[2], "{first:?}");
    assert_eq!(first, replies().await, "and the same in every run");
}

#[tokio::test]
async fn an_echo_keeps_the_ids_of_its_prompt() {
    let sim = start(&["--mode", "echo"]).await;
    let ids = json!([501, 70_000, 3]);
    let body = json!({"model": "m", "token_ids": ids, "sampling_params": {"max_tokens": 9}});
    let answer = post(&sim, GENERATE, &body).await;
    assert_eq!(answer["choices"][0]["token_ids"], ids, "{answer}");
    let body = json!({"model": "m", "prompt": ids, "return_token_ids": true});
    let answer = post(&sim, TEXT, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["token_ids"], &choice["text"]), (&ids, &json!("501,70000,3")));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

/// What is generated takes no room in the cache and is not found there.
#[tokio::test]
async fn only_blocks_of_prompts_are_cached() {
    let cache =
        ["--mode", "echo", "--enable-kvcache", "--kv-cache-size", "64", "--block-size", "8"];
    let sim = start(&cache).await;
    let ids: Vec<u32> = (100..109).collect();
    let cached = async |ids: &[u32]| {
        let answer = post(&sim, TEXT, &json!({"model": "m", "prompt": ids})).await;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(cached(&ids).await, 0);
    // The first answer, an echo, continued the prompt with itself.
    let both = [ids.as_slice(), &ids].concat();
    assert_eq!(cached(&both).await, 8);
    assert_eq!(cached(&both).await, 16);
}

#[tokio::test]
async fn an_echo_of_a_message_has_its_images_and_calls() {
    let sim = start(&["--mode", "echo"]).await;
    let parts = json!([{"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    for (message, said) in [
        (json!({"role": "user", "content": parts}), "see\nimage: http://x/y.png"),
        (json!({"role": "assistant", "content": "so ", "tool_calls": [call]}), "so [f({})]"),
    ] {
        let mut body = chat(json!({"messages": [message]}));
        body["max_tokens"] = 100.into();
        let answer = post(&sim, CHAT, &body).await;
        assert_eq!(answer["choices"][0]["message"]["content"], said);
    }
}

#[tokio::test]
async fn the_id_of_a_completion_names_its_prompt() {
    let sim = start(&[]).await;
    let mut body = json!({"model": "m", "prompt": ["a", "b"], "max_tokens": 1});
    let id = ["x-request-id: mine"];
    let answer = sim.post_with(TEXT, &id, &body).await.json();
    assert_eq!(answer["id"], "cmpl-mine-0");
    body["stream"] = true.into();
    let events = sim.post_with(TEXT, &id, &body).await.text();
    assert!(events.contains("{\"id\":\"cmpl-mine-0\""), "{events}");
    assert!(events.contains("{\"id\":\"cmpl-mine-1\""), "{events}");
    let body = chat(json!({}));
    let answer = sim.post_with(CHAT, &id, &body).await.json();
    assert_eq!(answer["id"], "chatcmpl-mine");
}

#[tokio::test]
async fn body_is_json_for_any_content_type() {
    let sim = start(&[]).await;
    let body = chat(json!({})).to_string();
    for kind in ["", "content-type: application/x-www-form-urlencoded\r\n"] {
        let length = body.len();
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: sim\r\n{kind}content-length: {length}\r\n\r\n{body}"
        );
        assert_eq!(sim.ask(request).await.status, 200, "{kind}");
    }
}

#[tokio::test]
async fn request_headers_are_parsed_leniently() {
    let sim = start(&["--data-parallel-size", "1"]).await;
    for header in ["x-data-parallel-rank: 7", "x-data-parallel-rank: -1", "X-Return-Error: "] {
        let answer = sim.post_with(CHAT, &[header], &chat(json!({}))).await;
        assert_eq!(answer.status, 200, "{header}: {}", answer.text());
    }
}

#[tokio::test]
async fn request_paths_are_parsed_leniently() {
    let sim = start(&[]).await;
    assert_eq!(sim.get("//v1//models").await.status, 200);
    assert_eq!(sim.get("//nothing").await.status, 404);
    let request = format!("OPTIONS {CHAT} HTTP/1.1\r\nhost: sim\r\n\r\n");
    let answer = sim.ask(request).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("allow"), Some("POST, OPTIONS"));
    assert_eq!(answer.text(), "");
}

#[tokio::test]
async fn bucket_bounds_are_formatted_like_go() {
    let bounds = async |sim: Sim| {
        let page = sim.get("/metrics").await.text();
        let lines = page.lines().filter(|line| line.starts_with("vllm:e2e_request_latency"));
        let lines: Vec<_> = lines.filter_map(|line| line.split("le=\"").nth(1)).collect();
        let bounds = lines.iter().filter_map(|rest| rest.split('"').next());
        bounds.map(str::to_owned).collect::<Vec<_>>()
    };
    let go = bounds(start(&[]).await).await;
    assert_eq!(go[..6], ["0.3", "0.5", "0.8", "1", "1.5", "2"]);
    let python = bounds(Sim::serve(&[]).await).await;
    assert_eq!(python[..6], ["0.3", "0.5", "0.8", "1.0", "1.5", "2.0"]);
}

/// Delays are those of the moment when a request starts.
#[tokio::test]
async fn changed_delays_apply_to_waiting_requests() {
    let sim = start(&["--max-num-seqs", "1", "--time-to-first-token", "3m"]).await;
    let body = chat(json!({})).to_string();
    let mut running = sim.connect().await;
    running.send(&raw(CHAT, &[], body.as_bytes())).await;
    assert!(sim.runs(1.0).await);
    let mut waiting = sim.connect().await;
    waiting.send(&raw(CHAT, &[], body.as_bytes())).await;
    assert!(sim.shows("vllm:num_requests_waiting", 1.0).await);
    post(&sim, "/admin/config", &json!({"time-to-first-token": 0})).await;
    drop(running);
    assert_eq!(waiting.answer().await.status, 200);
}

#[tokio::test]
async fn max_tokens_metrics_count_like_llmd() {
    let sim = start(&[]).await;
    post(&sim, CHAT, &chat(json!({"n": 3, "ignore_eos": true}))).await;
    let mut unlimited = chat(json!({}));
    unlimited.as_object_mut().unwrap().remove("max_tokens");
    post(&sim, CHAT, &unlimited).await;
    for (name, count) in [
        ("vllm:request_params_max_tokens_count", 3.0),
        ("vllm:request_params_max_tokens_sum", 12.0),
        ("vllm:request_max_num_generation_tokens_count", 4.0),
        ("vllm:request_generation_tokens_count", 4.0),
    ] {
        assert_eq!(sim.metric(name).await, count, "{name}");
    }
}

#[tokio::test]
async fn requests_move_fake_totals_and_a_later_histogram_replaces_them() {
    let fake = json!({"total-prompt-tokens": 500, "request-prompt-tokens": [0, 0, 2],
        "request-generation-tokens": [3], "request-success-total": {"length": 10},
        "ttft-buckets-values": [7]});
    let sim = start(&["--fake-metrics", &fake.to_string()]).await;
    let counts = async || {
        let mut seen = Vec::new();
        for name in [
            "prompt_tokens_total",
            "generation_tokens_total",
            "request_prompt_tokens_count",
            "request_success_total",
            "time_to_first_token_seconds_count",
        ] {
            seen.push(sim.metric(&format!("vllm:{name}")).await);
        }
        seen
    };
    assert_eq!(counts().await, [500.0, 3.0, 2.0, 10.0, 7.0]);
    let body = chat(json!({"ignore_eos": true}));
    let answer = post(&sim, CHAT, &body).await;
    let prompt = answer["usage"]["prompt_tokens"].as_f64().unwrap();
    let moved = [500.0 + prompt, 7.0, 3.0, 11.0, 7.0];
    assert_eq!(counts().await, moved);
    // What an operator changes besides leaves them alone.
    post(&sim, "/admin/config", &json!({"inter-token-latency": "1ms"})).await;
    assert_eq!(counts().await, moved);
    let update = json!({"request-prompt-tokens": [1, 1]});
    assert_eq!(sim.post("/fake_metrics", &update).await.status, 204);
    // One token and two: the sum of the bounds.
    assert_eq!(counts().await, [3.0, 7.0, 2.0, 11.0, 7.0]);
}

/// vLLM's own command line and wire do none of this.
#[tokio::test]
async fn without_the_mode_vllms_rules_hold() {
    let sim = Sim::serve(&[]).await;
    let mut body = chat(json!({"temperature": 7}));
    body["model"] = "tiny-llama".into();
    assert_eq!(sim.post(CHAT, &body).await.status, 400);
    assert_eq!(sim.get("//v1//models").await.status, 404);
    let request = format!("OPTIONS {CHAT} HTTP/1.1\r\nhost: sim\r\n\r\n");
    assert_eq!(sim.ask(request).await.status, 405);
}

#[tokio::test]
async fn tools_that_llmd_refuses_are_refused() {
    let sim = start(&[]).await;
    let unknown = json!({"type": "function", "function": {"name": "zip"}});
    let answer = sim.post(CHAT, &chat(tools(unknown))).await;
    assert_eq!(answer.status, 500);
    let words = "tool with name 'zip' requested in tool_choice but not found in the tools list";
    assert_eq!(answer.json()["error"]["message"], words);
    let mut strange = chat(tools(json!("required")));
    strange["tools"][0]["function"]["parameters"] = json!({"anyOf": [{"type": "object"}]});
    let answer = sim.post(CHAT, &strange).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let sim = start(&["--skip-tool-validation"]).await;
    post(&sim, CHAT, &strange).await;
}
