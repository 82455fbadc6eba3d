//! `/v1/completions`: every shape of an answer. Source of the shapes: vLLM 0.33
//! `entrypoints/openai/completion/`.

use serde_json::{Value, json};

use super::golden;
use super::sim::Sim;

const PATH: &str = "/v1/completions";

async fn golden(cases: &[(&str, Value)]) {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    golden::posts(&sim, PATH, cases).await;
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn completion_unary_response_shapes() {
    let prompt = "Hello there, world.";
    golden(&[
        ("completion", json!({"prompt": prompt})),
        ("completion-length", json!({"prompt": prompt, "max_tokens": 2})),
        ("completion-ids", json!({"prompt": [39, 68, 75, 75, 78], "max_tokens": 3})),
        ("completion-texts", json!({"prompt": ["One.", "Two."], "max_tokens": 2})),
        ("completion-id-lists", json!({"prompt": [[39, 68], [75, 78]], "max_tokens": 2})),
        ("completion-n", json!({"prompt": ["One.", "Two."], "n": 2, "max_tokens": 1})),
        ("completion-logprobs", json!({"prompt": prompt, "logprobs": 0, "max_tokens": 2})),
        ("completion-logprobs-top", json!({"prompt": prompt, "logprobs": 2, "max_tokens": 2})),
        ("completion-echo", json!({"prompt": prompt, "echo": true, "max_tokens": 2})),
        ("completion-echo-only", json!({"prompt": prompt, "echo": true, "max_tokens": 0})),
        (
            "completion-echo-logprobs",
            json!({"prompt": "Hi", "echo": true, "logprobs": 0, "max_tokens": 1}),
        ),
        (
            "completion-echo-token-ids",
            json!({"prompt": prompt, "echo": true, "return_token_ids": true, "max_tokens": 1}),
        ),
        (
            "completion-prompt-logprobs",
            json!({"prompt": "Hi", "prompt_logprobs": 1, "max_tokens": 1}),
        ),
        ("completion-stop", json!({"prompt": prompt, "stop": "there"})),
        (
            "completion-ignored",
            json!({"prompt": prompt, "best_of": 3, "guided_regex": "a+", "max_tokens": 1}),
        ),
    ])
    .await;
}

#[tokio::test]
async fn completion_stream_response_shapes() {
    let prompt = "Hello there, world.";
    golden(&[
        ("completion-stream", json!({"prompt": prompt, "stream": true})),
        ("completion-stream-length", json!({"prompt": prompt, "stream": true, "max_tokens": 2})),
        (
            "completion-stream-usage",
            json!({"prompt": prompt, "stream": true, "max_tokens": 2, "stream_options": {"include_usage": true}}),
        ),
        (
            "completion-stream-continuous",
            json!({
                "prompt": prompt, "stream": true, "max_tokens": 2,
                "stream_options": {"include_usage": true, "continuous_usage_stats": true},
            }),
        ),
        (
            "completion-stream-logprobs",
            json!({"prompt": prompt, "stream": true, "logprobs": 1, "max_tokens": 2}),
        ),
        (
            "completion-stream-echo",
            json!({"prompt": prompt, "stream": true, "echo": true, "max_tokens": 2}),
        ),
        (
            "completion-stream-token-ids",
            json!({"prompt": prompt, "stream": true, "return_token_ids": true, "max_tokens": 2}),
        ),
        ("completion-stream-stop", json!({"prompt": prompt, "stream": true, "stop": "there"})),
    ])
    .await;
}
