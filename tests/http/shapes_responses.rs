//! `/v1/responses`: every shape of an answer. Source of the shapes: vLLM 0.33
//! `entrypoints/openai/responses/`.

use serde_json::{Value, json};

use super::golden;
use super::sim::Sim;

const PATH: &str = "/v1/responses";

#[tokio::test]
async fn responses_text_shapes() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let input = "Hello there, world.";
    golden::posts(
        &sim,
        PATH,
        &[
            ("responses", json!({"input": input})),
            ("responses-length", json!({"input": input, "max_output_tokens": 2})),
            (
                "responses-members",
                json!({
                    "input": [{"role": "user", "content": [{"type": "input_text", "text": input}]}],
                    "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5,
                    "top_p": 0.25, "user": "me", "max_output_tokens": 1,
                }),
            ),
            ("responses-stream", json!({"input": input, "stream": true, "max_output_tokens": 3})),
        ],
    )
    .await;
    let logprobs = json!({
        "input": input, "include": ["message.output_text.logprobs"], "top_logprobs": 1,
        "max_output_tokens": 1,
    });
    golden::posts(&sim, PATH, &[("responses-logprobs", logprobs)]).await;
}

#[tokio::test]
async fn responses_reasoning_shapes() {
    let sim = Sim::serve(&["--reasoning-parser", "deepseek_r1"]).await;
    let body = |more: Value| {
        let mut body =
            json!({"input": "Hi", "seed": 3, "max_output_tokens": 24, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    golden::posts(
        &sim,
        PATH,
        &[
            ("responses-reasoning", body(json!({}))),
            ("responses-reasoning-stream", body(json!({"stream": true}))),
        ],
    )
    .await;
}

#[tokio::test]
async fn responses_tool_shapes() {
    let flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
    let sim = Sim::serve(&flags).await;
    let function = json!({
        "type": "function", "name": "turn", "strict": true, "parameters": {
            "type": "object", "properties": {"side": {"type": "string", "enum": ["left"]}},
            "required": ["side"], "additionalProperties": false,
        },
    });
    let custom = json!({"type": "custom", "name": "run_code", "description": "Runs Python."});
    let mut cases = Vec::new();
    for (name, tool) in [("responses-function", function), ("responses-custom", custom)] {
        let body = json!({"input": "Hi", "tools": [tool], "tool_choice": "required", "seed": 3});
        let mut stream = body.clone();
        stream["stream"] = true.into();
        cases.extend([(name.to_owned(), body), (format!("{name}-stream"), stream)]);
    }
    let cases = cases.iter().map(|(name, body)| (name.as_str(), body.clone()));
    golden::posts(&sim, PATH, &cases.collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn responses_error_shapes() {
    let sim = Sim::serve(&[]).await;
    golden::posts(
        &sim,
        PATH,
        &[
            ("responses-refused", json!({"input": 5})),
            ("responses-refused-model", json!({"input": "Hi", "model": "other"})),
            ("responses-refused-length", json!({"input": "Hi", "max_output_tokens": 0})),
            (
                "responses-refused-previous",
                json!({"input": "Hi", "previous_response_id": "resp_none"}),
            ),
        ],
    )
    .await;
    let answer = sim.get("/v1/responses/resp_none").await;
    golden::check("responses-unknown", "GET /v1/responses/resp_none", &answer);
}

#[tokio::test]
async fn tools_are_shown_with_all_their_members() {
    let sim = Sim::serve(&[]).await;
    let asked = json!([
        {"type": "web_search_preview"},
        {"type": "code_interpreter", "container": "c"},
    ]);
    let body = json!({"input": "hi", "max_output_tokens": 1, "tools": asked});
    let shown = sim.post("/v1/responses", &body).await.json()["tools"].clone();
    let expected = json!([
        {"type": "web_search_preview", "search_content_types": null, "search_context_size": null,
            "user_location": null},
        {"container": "c", "type": "code_interpreter", "allowed_callers": null},
    ]);
    assert_eq!(shown, expected);
}
