//! `vllm-sim sglang`: wrong and unusual requests, and the routes for weights and given texts.
//!
//! The expected texts are those of SGLang 0.5.23's own application over a scripted scheduler
//! (`tests/python/sglang_compare.py`).

use serde_json::{Value, json};

use super::sglang_shapes::{CHAT, COMPLETION, hello};
use super::sim::{Sim, post};

const GENERATE: &str = "/generate";
const MESSAGES: &str = "/v1/messages";

fn native(more: Value) -> Value {
    let mut body = json!({"text": "Hello", "sampling_params": {"max_new_tokens": 1}});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Status and text of the error of a native request.
async fn refusal(sim: &Sim, more: Value) -> (u16, String) {
    let answer = sim.post(GENERATE, &native(more)).await;
    let text = answer.text();
    let body: Value = serde_json::from_str(&text).unwrap_or_else(|_| text.clone().into());
    let error = &body["error"];
    let message = error.as_str().or(error["message"].as_str()).or(body["message"].as_str());
    (answer.status, message.unwrap_or(&text).to_owned())
}

#[tokio::test]
async fn types_of_a_native_request_are_checked_exactly() {
    let sim = Sim::sglang(&[]).await;
    for (more, message) in [
        (json!({"stream": "true"}), "invalid type: string \"true\", expected a boolean"),
        (json!({"priority": 1.0}), "invalid type: floating point `1.0`, expected i64"),
        (
            json!({"sampling_params": {"n": 1e30}}),
            "invalid type: floating point `1e+30`, expected i64",
        ),
        (
            json!({"sampling_params": {"stop_token_ids": [null]}}),
            "invalid type: null, expected i64",
        ),
        (
            json!({"sampling_params": {"stop": vec!["a"; 33]}}),
            "at most 32 stop strings are allowed, got 33",
        ),
        (
            json!({"text": ["a", "b"], "sampling_params": [{"n": 2}, {}]}),
            "The parallel_sample_num should be the same for all samples in sample params.",
        ),
        (
            json!({"sampling_params": {"logit_bias": {"x": 1}}}),
            "invalid literal for int() with base 10: 'x'",
        ),
        (json!({"cache_salt": ["a"]}), "cache_salt should be a string for a single request."),
        (json!({"session_params": {"id": 5}}), "Invalid request: session id 5 does not exist"),
        (
            json!({"lora_path": [null]}),
            "LoRA adapter 'None' was requested, but LoRA is not enabled. Please launch the server \
             with --enable-lora flag and preload adapters using --lora-paths or \
             /load_lora_adapter endpoint.",
        ),
    ] {
        assert_eq!(refusal(&sim, more.clone()).await, (400, message.to_owned()), "{more}");
    }
    for (ids, text) in [
        (json!(["x"]), "elements must be int or list; got str"),
        (json!([[5], 6]), "row 1: must be list; got int"),
        (json!(5), "must be list or null; got int"),
        (
            json!([5, [6]]),
            "contains non-int64 element: 'list' object cannot be interpreted as an integer",
        ),
    ] {
        let (status, message) = refusal(&sim, json!({"text": null, "input_ids": ids})).await;
        assert!(status == 400 && message.contains(&format!("Value error, {text}")), "{message}");
    }
}

#[tokio::test]
async fn lists_that_do_not_fit_the_prompts_are_unhandled() {
    let sim = Sim::sglang(&[]).await;
    let unhandled = (500, "Internal Server Error".to_owned());
    for more in [
        json!({"sampling_params": [{}]}),
        json!({"text": ["a", "b"], "sampling_params": [{}]}),
        json!({"sampling_params": {"n": null}}),
        json!({"sampling_params": {"choice": ["a"]}}),
        json!({"rid": ["a"]}),
    ] {
        assert_eq!(refusal(&sim, more.clone()).await, unhandled, "{more}");
    }
    let answer = sim.post(CHAT, &json!([])).await;
    assert_eq!((answer.status, answer.text()), unhandled);
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
}

#[tokio::test]
async fn a_stream_without_prompts_ends_at_once() {
    let sim = Sim::sglang(&[]).await;
    let answer = sim.post(GENERATE, &native(json!({"text": [], "stream": true}))).await;
    assert_eq!((answer.status, answer.text()), (200, "data: [DONE]\n\n".to_owned()));
}

#[tokio::test]
async fn errors_of_a_body_name_the_method_and_the_reason_of_orjson() {
    let sim = Sim::sglang(&[]).await;
    let answer = sim.get("/slow_down").await;
    assert!(answer.text().contains("    GET /slow_down [{'type': 'missing'"), "{}", answer.text());
    let answer = sim.post("/abort_request", &Value::Null).await;
    assert!(answer.text().contains("'type': 'dict_type'"), "{}", answer.text());
    for (body, position, reason) in [
        ("{\"text\":\"a\",}", 11, "trailing comma is not allowed"),
        ("{\"text\": NaN}", 9, "unexpected character, expected a JSON value"),
        ("{\"text\":\"a\"} x", 13, "unexpected content after document"),
    ] {
        let answer = sim.ask(post(GENERATE, &[], body.as_bytes())).await;
        let text = format!(
            "{{'type': 'json_invalid', 'loc': ('body', {position}), 'msg': 'JSON decode error', \
             'input': {{}}, 'ctx': {{'error': '{reason}'}}}}"
        );
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && message.contains(&text), "{message}");
    }
}

#[tokio::test]
async fn an_update_of_the_weights_succeeds_and_empties_the_cache() {
    let sim = Sim::sglang(&["--enable-cache-report"]).await;
    let cached = async || {
        let answer = sim.post(GENERATE, &native(json!({"text": "A long prompt"}))).await.json();
        answer["meta_info"]["cached_tokens"].as_u64().unwrap()
    };
    let before = (cached().await, cached().await);
    assert!(before.0 == 0 && before.1 > 0, "{before:?}");
    let body = json!({"model_path": "/weights", "weight_version": "2"});
    let answer = sim.post("/update_weights_from_disk", &body).await;
    let updated = json!({
        "success": true,
        "message": "Succeeded to update model weights. Weight version updated to 2.",
        "num_paused_requests": 0,
    });
    assert_eq!((answer.status, answer.text()), (200, updated.to_string()));
    assert_eq!(cached().await, 0);
    let answer = sim.post(CHAT, &hello(1)).await.json();
    assert_eq!(answer["metadata"]["weight_version"], "2");
    let group = json!({"master_address": "h", "master_port": 1, "rank_offset": 0, "world_size": 1});
    for (path, body, message) in [
        ("init_weights_update_group", group, "Succeeded to initialize custom process group."),
        (
            "update_weights_from_distributed",
            json!({"names": ["w"], "dtypes": ["bf16"], "shapes": [[1]]}),
            "Succeeded to update parameter online.",
        ),
        ("destroy_weights_update_group", json!({}), "Succeeded to destroy custom process group."),
    ] {
        let answer = sim.post(&format!("/{path}"), &body).await;
        let updated = json!({"success": true, "message": message});
        assert_eq!((answer.status, answer.text()), (200, updated.to_string()));
    }
    let answer = sim.post("/get_weights_by_name", &json!({"name": "w"})).await;
    let missing = json!({"error": {"message": "Get parameter by name failed"}});
    assert_eq!((answer.status, answer.json()), (400, missing));
}

#[tokio::test]
async fn given_texts_are_parsed() {
    let sim = Sim::sglang(&[]).await;
    let body = json!({"text": "<think>Well.</think>So.", "reasoning_parser": "qwen3", "return_blocks": true});
    let parts = json!({
        "reasoning_text": "Well.",
        "text": "So.",
        "reasoning_blocks": ["Well."],
        "text_blocks": ["So."],
        "blocks": [{"type": "reasoning", "text": "Well."}, {"type": "text", "text": "So."}],
    });
    let answer = sim.post("/separate_reasoning", &body).await;
    assert_eq!((answer.status, answer.text()), (200, parts.to_string()));
    let body = json!({
        "text": "Sure. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_call_parser": "qwen25",
    });
    let parsed = json!({"normal_text": "Sure.", "calls": [
        {"tool_index": 0, "name": "f", "parameters": "{\"a\": 1}"},
    ]});
    let answer = sim.post("/parse_function_call", &body).await;
    assert_eq!((answer.status, answer.text()), (200, parsed.to_string()));
    let body = json!({"text": "x", "tools": [], "tool_call_parser": "mistral"});
    let answer = sim.post("/parse_function_call", &body).await;
    assert_eq!(
        answer.json()["message"],
        "tool_call_parser mistral is not simulated, only hermes, qwen and qwen25"
    );
}

#[tokio::test]
async fn vertex_requests_are_batches_of_the_native_route() {
    let sim = Sim::sglang(&["--mode", "echo"]).await;
    let body = json!({
        "instances": [{"text": "one"}, {"text": "two"}],
        "parameters": {"sampling_params": {"max_new_tokens": 9}},
    });
    let answer = sim.post("/vertex_generate", &body).await.json();
    let texts: Vec<&Value> =
        answer["predictions"].as_array().unwrap().iter().map(|one| &one["text"]).collect();
    assert_eq!(texts, [&json!("one"), &json!("two")]);
    let answer = sim.post("/vertex_generate", &json!({"instances": []})).await;
    assert_eq!((answer.status, answer.text()), (200, "[]".to_owned()));
}

#[tokio::test]
async fn a_grammar_that_does_not_compile_is_named() {
    let sim = Sim::sglang(&[]).await;
    for (kind, params) in [
        ("json", json!({"json_schema": "{"})),
        ("regex", json!({"regex": "("})),
        ("ebnf", json!({"ebnf": "x"})),
    ] {
        let (status, message) = refusal(&sim, json!({"sampling_params": params})).await;
        assert!(message.starts_with(&format!("Failed to compile {kind} grammar: ")), "{message}");
        assert_eq!(status, 400);
    }
}

#[tokio::test]
async fn messages_reach_the_template_as_sglang_changes_them() {
    let sim = Sim::sglang(&[]).await;
    let tokens = async |body: Value| {
        let answer = sim.post("/tokenize", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["tokens"].clone()
    };
    // The user is the author of a last message that the model does not continue.
    let own = json!({"messages": [{"role": "assistant", "content": "Hi"}]});
    let of_user = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(tokens(own).await, tokens(of_user.clone()).await);
    let continued = json!({"messages": of_user["messages"], "continue_final_message": true});
    assert_eq!(tokens(continued).await, tokens(of_user).await);
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{bad"}});
    let body = json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]});
    let answer = sim.post(CHAT, &body).await;
    let text = "Assistant tool call function.arguments must be valid JSON.";
    assert_eq!((answer.status, &answer.json()["message"]), (400, &json!(text)));
    let image = json!([{"type": "image_url", "image_url": {"url": "http://h/i.png"}}]);
    let body = json!({"messages": [{"role": "user", "content": image}]});
    let text = "Model only supports text input; received unsupported content type 'image_url'.";
    assert_eq!(sim.post(CHAT, &body).await.json()["message"], text);
}

#[tokio::test]
async fn a_chat_request_for_no_tokens_gets_none() {
    let sim = Sim::sglang(&[]).await;
    let answer = sim.post(CHAT, &hello(0)).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(""), &json!("length"))
    );
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn lists_of_request_ids_are_checked() {
    let sim = Sim::sglang(&[]).await;
    let mut body = hello(1);
    body["rid"] = json!(["a"]);
    let answer = sim.post(CHAT, &body).await;
    let text = "Internal server error: unhashable type: 'list'";
    assert_eq!((answer.status, &answer.json()["message"]), (500, &json!(text)));
    let body = json!({"prompt": ["x", "y"], "rid": ["a", "a"]});
    let answer = sim.post(COMPLETION, &body).await;
    let text = "Duplicate request IDs detected within the request: ['a']";
    assert_eq!((answer.status, &answer.json()["message"]), (400, &json!(text)));
}

#[tokio::test]
async fn messages_of_anthropic_have_the_schema_of_sglang() {
    let sim = Sim::sglang(&[]).await;
    let base = json!({"model": "tiny-llama", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]});
    let with = |more: Value| {
        let mut body = base.clone();
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let tool = json!([{"name": "f", "input_schema": {}}]);
    for (more, message) in [
        (
            json!({"tools": [{}]}),
            "tools.0.custom.name: Field required; tools.0.custom.input_schema: Field required",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}),
            "Anthropic thinking is not supported for models without a reasoning parser",
        ),
        (
            json!({"tools": tool, "tool_choice": {"type": "tool", "name": "g"}}),
            "tool_choice references tool 'g' but it is not in the forwarded tools list \
             (server-side Anthropic tools cannot be selected)",
        ),
    ] {
        let answer = sim.post(MESSAGES, &with(more)).await;
        let error = json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
        assert_eq!((answer.status, answer.json()), (400, error));
    }
    // Tools of Anthropic's servers are left out.
    let server = with(json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}));
    let (with_tool, without) = (sim.post(MESSAGES, &server).await, sim.post(MESSAGES, &base).await);
    assert_eq!(with_tool.json()["usage"], without.json()["usage"]);
}
