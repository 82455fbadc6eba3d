//! Responses and Messages as llm-d-inference-sim has them (`--compat llm-d`).

use serde_json::{Value, json};
use vllm_sim_config::CliMode;

use super::sim::Sim;

async fn start(flags: &[&str]) -> Sim {
    let args = ["--model", "m", "--compat", "llm-d"];
    Sim::start(CliMode::Llmd, &[&args[..], flags].concat()).await
}

async fn post(sim: &Sim, path: &str, mut body: Value) -> (u16, String) {
    // llm-d asks for a model.
    if body["model"].is_null() {
        body["model"] = "m".into();
    }
    let answer = sim.post_with(path, &["x-request-id: mine"], &body).await;
    (answer.status, answer.text())
}

async fn post_json(sim: &Sim, path: &str, body: Value) -> Value {
    let (status, text) = post(sim, path, body).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Events of a stream: names and data.
fn events(text: &str) -> Vec<(&str, Value)> {
    let events = text.split("\n\n").filter_map(|event| {
        let (name, data) = event.split_once('\n')?;
        let data = serde_json::from_str(data.strip_prefix("data: ")?).expect("JSON");
        Some((name.strip_prefix("event: ")?, data))
    });
    events.collect()
}

fn digits(text: &Value, prefix: &str) -> String {
    let text = text.as_str().expect("an id");
    let number = text.strip_prefix(prefix).expect(prefix);
    assert!(number.len() == 10 && number.bytes().all(|b| b.is_ascii_digit()), "{text}");
    number.to_owned()
}

fn tool(nested: bool) -> Value {
    let function = json!({
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    });
    if nested {
        return json!({"type": "function", "function": function});
    }
    let mut flat = function;
    flat["type"] = "function".into();
    flat
}

#[tokio::test]
async fn a_response_calls_one_tool_and_then_has_text() {
    let sim = start(&[]).await;
    for nested in [false, true] {
        let body = json!({"model": "m", "input": "hi", "tools": [tool(nested), tool(nested)]});
        let called = post_json(&sim, "/v1/responses", body).await;
        assert_eq!(called["id"], "resp_mine");
        let output = called["output"].as_array().expect("a list");
        assert_eq!(output.len(), 1, "{called}");
        assert_eq!(output[0]["type"], "function_call");
        let id = digits(&output[0]["id"], "fc_");
        assert_eq!(digits(&output[0]["call_id"], "call_"), id);
        let result = json!({"model": "m", "tools": [tool(nested)], "input": [
            {"type": "message", "role": "user", "content": "hi"},
            output[0],
            {"type": "function_call_output", "call_id": output[0]["call_id"], "output": "sunny"},
        ]});
        let spoken = post_json(&sim, "/v1/responses", result).await;
        assert_eq!(spoken["output"][0]["type"], "message", "{spoken}");
        assert_eq!(spoken["output"][0]["id"], "msg_mine");
    }
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn llmd_responses_instructions_not_in_usage() {
    let sim = start(&["--mode", "echo"]).await;
    let body = json!({"model": "m", "input": "hello there"});
    let bare = post_json(&sim, "/v1/responses", body.clone()).await;
    let mut told = body;
    told["instructions"] = "Speak of ten thousand things.".into();
    let told = post_json(&sim, "/v1/responses", told).await;
    assert_eq!(told["instructions"], "Speak of ten thousand things.");
    assert_eq!(told["usage"]["input_tokens"], bare["usage"]["input_tokens"]);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn llmd_responses_api_error_messages() {
    let sim = start(&[]).await;
    for (body, words) in [
        (json!({"model": "m"}), "input is required"),
        (
            json!({"model": "m", "input": [{"type": "thing"}]}),
            r#"unsupported input item type \"thing\""#,
        ),
    ] {
        let (status, text) = post(&sim, "/v1/responses", body).await;
        assert_eq!(status, 400);
        assert!(text.contains(words), "{text}");
    }
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_message_has_llmds_ids_and_usage() {
    let sim = start(&["--mode", "echo"]).await;
    let body = json!({
        "model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hello there"}],
    });
    let message = post_json(&sim, "/v1/messages", body.clone()).await;
    assert_eq!(message["id"], "msg_mine");
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(message["stop_sequence"], Value::Null);
    assert_eq!(message["usage"]["cache_read_input_tokens"], 0);
    let mut stream = body;
    stream["stream"] = true.into();
    let (status, text) = post(&sim, "/v1/messages", stream).await;
    assert_eq!(status, 200);
    let events = events(&text);
    let names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
    let head = ["message_start", "content_block_start", "ping", "content_block_delta"];
    assert_eq!(names[..4], head);
    let (_, delta) = &events[events.len() - 2];
    let tokens = &message["usage"]["output_tokens"];
    assert_eq!(delta["usage"], json!({"output_tokens": tokens}));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn llmd_messages_stream_pings_before_tool_call() {
    let sim = start(&[]).await;
    let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object",
        "properties": {"n": {"type": "integer"}}, "required": ["n"]}});
    let body = json!({
        "model": "m", "max_tokens": 50, "stream": true, "tools": [tool],
        "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "hi"}],
    });
    let (_, text) = post(&sim, "/v1/messages", body).await;
    let events = events(&text);
    let names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    digits(&events[2].1["content_block"]["id"], "toolu_");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn llmd_messages_api_error_messages() {
    let sim = start(&[]).await;
    let said = json!([{"role": "user", "content": "hi"}]);
    for (body, status, words) in [
        (json!({"model": "m", "messages": said}), 400, "max_tokens is required"),
        (json!({"model": "m", "messages": [], "max_tokens": 1}), 400, "messages must not be empty"),
        (
            json!({"model": "m", "max_tokens": 1,
                "messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            400,
            "image content block is missing required 'source' field",
        ),
        (
            json!({"model": "m", "max_tokens": 1, "messages": said, "tool_choice": {"type": "tool"}}),
            400,
            "tool_choice of type 'tool' requires a non-empty 'name'",
        ),
        (json!({"model": "x", "max_tokens": 1, "messages": said}), 404, "does not exist"),
    ] {
        let (given, text) = post(&sim, "/v1/messages", body).await;
        assert_eq!(given, status, "{text}");
        let error: Value = serde_json::from_str(&text).expect("JSON");
        let error = &error["error"];
        assert_eq!(error["code"], status);
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains(words), "{message}");
    }
    sim.server.shut_down_server().await;
}
