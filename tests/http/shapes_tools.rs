//! `/v1/chat/completions` with tools: every shape of a call. Source of the shapes: vLLM 0.33
//! `entrypoints/openai/chat_completion/`.

use serde_json::{Value, json};

use super::golden;
use super::sim::Sim;

const PATH: &str = "/v1/chat/completions";
const PARSER: [&str; 3] = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];

/// Two tools whose calls have one form each.
pub(crate) fn tools() -> Value {
    let tool = |name: &str, value: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"side": {"type": "string", "enum": [value]}},
            "required": ["side"], "additionalProperties": false,
        }}})
    };
    json!([tool("turn", "left"), tool("look", "up")])
}

fn chat(more: &Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Which way?"}], "tools": tools(), "seed": 3,
    });
    let members = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

#[tokio::test]
async fn tool_call_response_shapes() {
    let sim = Sim::serve(&PARSER).await;
    // A text that the parser finds two calls in: `auto` as a model might have it.
    let written = "Well. <tool_call>\\{\"name\": \"turn\", \"arguments\": \\{\"side\": \"left\"\\}\\}</tool_call>\
                   <tool_call>\\{\"name\": \"look\", \"arguments\": \\{\"side\": \"up\"\\}\\}</tool_call>";
    let named = json!({"type": "function", "function": {"name": "look"}});
    let mut cases = Vec::new();
    for (name, more) in [
        ("tools-auto", json!({"structured_outputs": {"regex": written}})),
        ("tools-required", json!({"tool_choice": "required"})),
        ("tools-named", json!({"tool_choice": named})),
        ("tools-none", json!({"tool_choice": "none", "max_tokens": 2})),
        ("tools-cut", json!({"tool_choice": named, "max_tokens": 3})),
    ] {
        let mut body = chat(&more);
        cases.push((name.to_owned(), body.clone()));
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        cases.push((format!("{name}-stream"), body));
    }
    let cases = cases.iter().map(|(name, body)| (name.as_str(), body.clone()));
    golden::posts(&sim, PATH, &cases.collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn tool_request_error_shapes() {
    let sim = Sim::serve(&[]).await;
    let unknown = json!({"type": "function", "function": {"name": "fly"}});
    golden::posts(
        &sim,
        PATH,
        &[
            ("tools-refused-auto", chat(&json!({}))),
            ("tools-refused-unknown", chat(&json!({"tool_choice": unknown}))),
        ],
    )
    .await;
}
