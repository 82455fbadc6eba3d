//! Tools, and what their parser makes of a text.

use serde_json::{Value, json};

use super::sim::Sim;

const CHAT: &str = "/v1/chat/completions";
const PARSER: [&str; 3] = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];

fn chat(regex: &str) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "structured_outputs": {"regex": regex},
    })
}

#[tokio::test]
async fn tool_calls_are_parsed_from_constrained_text() {
    let sim = Sim::serve(&PARSER).await;
    let mut body = chat(
        "See: <tool_call>\\{\"name\": \"f\", \"arguments\": \\{\"x\": 1\\}\\}</tool_call>\
         <tool_call>\\{\"name\": \"g\", \"arguments\": \\{\\}\\}</tool_call>",
    );
    let choice = sim.post(CHAT, &body).await.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["content"], "See: ");
    let calls = message["tool_calls"].as_array().unwrap();
    let functions: Vec<_> = calls.iter().map(|call| &call["function"]).collect();
    assert_eq!(
        functions,
        [
            &json!({"name": "f", "arguments": "{\"x\": 1}"}),
            &json!({"name": "g", "arguments": "{}"})
        ]
    );
    body["stream"] = true.into();
    let events = sim.post(CHAT, &body).await.text();
    assert!(events.contains("\"name\":\"g\""), "{events}");
    assert!(!events.contains("<tool_call>"), "{events}");
    let metrics = sim.get("/metrics").await.text();
    let line = "mode=\"non_streaming\",model_name=\"tiny-llama\",outcome=\"tool_call\",\
                request_type=\"chat_completions\"} 1.0";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn unparsable_tool_call_text_is_content() {
    let sim = Sim::serve(&PARSER).await;
    let call = "<tool_call>\\{\"name\": \"f\", \"arguments\": \\{\\}\\}";
    for (regex, choice) in [("<tool_call>\\{\"name\": f", "auto"), (call, "none")] {
        let mut body = chat(regex);
        body["tool_choice"] = choice.into();
        let message = sim.post(CHAT, &body).await.json()["choices"][0]["message"].clone();
        assert_eq!(message["content"], regex.replace('\\', ""), "{message}");
        assert_eq!(message.get("tool_calls"), None, "{message}");
    }
}

#[tokio::test]
async fn responses_api_accepts_its_own_content_parts() {
    let sim = Sim::serve(&[]).await;
    let part = json!({"type": "input_text", "text": "Hi"});
    let body = json!({"input": [{"role": "user", "content": [part]}], "max_output_tokens": 8});
    let answer = sim.post("/v1/responses", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn prompts_times_n_are_bounded_for_tools() {
    let sim = Sim::serve(&[]).await;
    let body = json!({"prompt": vec!["Hi"; 1024], "n": 16_384, "max_tokens": 1});
    let answer = sim.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("16777216 sequences"), "{}", answer.text());
}

#[tokio::test]
async fn next_tool_call_delta_follows_without_gap() {
    let mut flags = PARSER.to_vec();
    flags.extend(["--scheduler=pool", "--inter-token-latency=5ms"]);
    let sim = Sim::serve(&flags).await;
    let call = "<tool_call>\\{\"name\": \"f\", \"arguments\": \\{\\}\\}</tool_call>";
    let mut gaps = 0.0;
    let mut told = 0.0;
    for calls in [1, 2, 3] {
        let answer = sim.post(CHAT, &chat(&call.repeat(calls))).await.json();
        let found = answer["choices"][0]["message"]["tool_calls"].as_array();
        assert_eq!(found.unwrap().len(), calls, "{answer}");
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
        gaps += (tokens as usize - calls) as f64;
        let metrics = sim.get("/metrics").await.text();
        let sum = "vllm:request_decode_time_seconds_sum";
        let line = metrics.lines().find(|line| line.starts_with(sum)).unwrap();
        told = line.rsplit(' ').next().unwrap().parse().unwrap();
    }
    assert!((told - 0.005 * gaps).abs() < 1e-6, "{told} s, {gaps} gaps");
}

/// A chat template sees every member of a tool that was set.
#[tokio::test]
async fn a_template_gets_the_members_of_a_tool_that_were_set() {
    let sim = Sim::serve(&["--trust-request-chat-template"]).await;
    let tokens = async |tool: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool],
            "chat_template": "{{ tools | tojson }}"});
        let told = sim.post("/tokenize", &body).await.json();
        let text = sim.post("/detokenize", &json!({"tokens": told["tokens"]})).await;
        text.json()["prompt"].as_str().unwrap_or_default().to_owned()
    };
    let plain = json!({"type": "function", "function": {"name": "f", "strict": true}});
    let text = tokens(plain.clone()).await;
    assert!(text.contains("strict") && !text.contains("defer_loading"), "{text}");
    let mut deferred = plain;
    deferred["defer_loading"] = true.into();
    let text = tokens(deferred).await;
    assert!(text.contains("defer_loading"), "{text}");
}
