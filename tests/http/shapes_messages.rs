//! `/v1/messages`: every shape of an answer. Source of the shapes: vLLM 0.33
//! `entrypoints/anthropic/`.

use serde_json::{Value, json};

use super::golden;
use super::sim::Sim;

const PATH: &str = "/v1/messages";

fn body(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny-llama", "max_tokens": 40, "seed": 3,
        "messages": [{"role": "user", "content": "Hello there, world."}],
    });
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

#[tokio::test]
async fn messages_text_response_shapes() {
    let sim = Sim::serve(&["--mode", "echo", "--enable-prompt-tokens-details"]).await;
    golden::posts(
        &sim,
        PATH,
        &[
            ("messages", body(json!({}))),
            ("messages-length", body(json!({"max_tokens": 2}))),
            ("messages-stop", body(json!({"stop_sequences": ["there"]}))),
            ("messages-stream", body(json!({"stream": true, "max_tokens": 3}))),
        ],
    )
    .await;
    let mut counted = body(json!({"system": "Be kind."}));
    counted.as_object_mut().unwrap().remove("max_tokens");
    golden::posts(&sim, "/v1/messages/count_tokens", &[("messages-count", counted)]).await;
}

#[tokio::test]
async fn messages_tool_response_shapes() {
    let flags = [
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--reasoning-parser",
        "deepseek_r1",
    ];
    let sim = Sim::serve(&flags).await;
    let tool = json!({"name": "turn", "input_schema": {
        "type": "object", "properties": {"side": {"type": "string", "enum": ["left"]}},
        "required": ["side"], "additionalProperties": false,
    }});
    let call = |more: Value| {
        let mut body = body(more);
        body["tools"] = json!([tool]);
        body["max_tokens"] = 400.into();
        body
    };
    let named = json!({"type": "tool", "name": "turn"});
    golden::posts(
        &sim,
        PATH,
        &[
            ("messages-tool", call(json!({"tool_choice": named}))),
            ("messages-any", call(json!({"tool_choice": {"type": "any"}}))),
            ("messages-tool-stream", call(json!({"tool_choice": named, "stream": true}))),
        ],
    )
    .await;
}

#[tokio::test]
async fn messages_error_shapes() {
    let sim = Sim::serve(&[]).await;
    golden::posts(
        &sim,
        PATH,
        &[
            ("messages-refused", json!({"model": "tiny-llama"})),
            ("messages-refused-model", body(json!({"model": "other"}))),
            ("messages-refused-length", body(json!({"max_tokens": 0}))),
            ("messages-refused-context", body(json!({"max_tokens": 999_999_999}))),
        ],
    )
    .await;
}
