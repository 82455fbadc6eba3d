//! `/v1/chat/completions`: every shape of an answer. Source of the shapes: vLLM 0.33
//! `entrypoints/openai/chat_completion/`.

use serde_json::{Value, json};

use super::golden;
use super::sim::Sim;

const PATH: &str = "/v1/chat/completions";

/// A request that is echoed: `Hello there, world.`, with `more` laid over it.
fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello there, world."}]});
    let (Value::Object(body), Value::Object(more)) = (&mut body, more) else {
        panic!("two objects");
    };
    body.extend(more);
    Value::Object(body.clone())
}

async fn golden(flags: &[&str], cases: &[(&str, Value)]) {
    let mut words = vec!["--mode", "echo"];
    words.extend(flags);
    let sim = Sim::serve(&words).await;
    for (name, more) in cases {
        let body = chat(more.clone());
        let answer = sim.post(PATH, &body).await;
        golden::check(name, &format!("POST {PATH}\n{body}"), &answer);
    }
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn chat_unary_response_shapes() {
    golden(
        &[],
        &[
            ("chat", json!({})),
            ("chat-length", json!({"max_tokens": 3})),
            ("chat-n", json!({"n": 2, "max_tokens": 2})),
            ("chat-stop", json!({"stop": ["there"]})),
            ("chat-stop-included", json!({"stop": "there", "include_stop_str_in_output": true})),
            ("chat-stop-id", json!({"stop_token_ids": [4084]})),
            ("chat-logprobs", json!({"logprobs": true, "max_tokens": 2})),
            ("chat-logprobs-top", json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 2})),
            (
                "chat-logprobs-ids",
                json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 1, "return_tokens_as_token_ids": true}),
            ),
            ("chat-prompt-logprobs", json!({"prompt_logprobs": 0, "max_tokens": 1})),
            ("chat-token-ids", json!({"return_token_ids": true, "max_tokens": 2})),
            ("chat-prompt-text", json!({"return_prompt_text": true, "max_tokens": 1})),
            (
                "chat-echo",
                json!({
                    "messages": [
                        {"role": "user", "content": "Say it."},
                        {"role": "assistant", "content": "Said: "},
                    ],
                    "echo": true, "add_generation_prompt": false, "continue_final_message": true,
                    "max_tokens": 2,
                }),
            ),
            ("chat-request-id", json!({"request_id": "mine", "max_tokens": 1})),
        ],
    )
    .await;
}

#[tokio::test]
async fn chat_stream_response_shapes() {
    let usage = json!({"include_usage": true});
    let continuous = json!({"include_usage": true, "continuous_usage_stats": true});
    golden(
        &[],
        &[
            ("chat-stream", json!({"stream": true})),
            ("chat-stream-length", json!({"stream": true, "max_tokens": 2})),
            ("chat-stream-one", json!({"stream": true, "max_tokens": 1})),
            ("chat-stream-usage", json!({"stream": true, "stream_options": usage, "max_tokens": 2})),
            (
                "chat-stream-continuous",
                json!({"stream": true, "stream_options": continuous, "max_tokens": 2}),
            ),
            (
                "chat-stream-continuous-alone",
                json!({"stream": true, "stream_options": {"continuous_usage_stats": true}, "max_tokens": 1}),
            ),
            ("chat-stream-stop", json!({"stream": true, "stop": ["there"]})),
            (
                "chat-stream-logprobs",
                json!({"stream": true, "logprobs": true, "top_logprobs": 1, "max_tokens": 2}),
            ),
            (
                "chat-stream-token-ids",
                json!({"stream": true, "return_token_ids": true, "max_tokens": 2}),
            ),
            (
                "chat-stream-echo",
                json!({
                    "messages": [
                        {"role": "user", "content": "Say it."},
                        {"role": "assistant", "content": "Said: "},
                    ],
                    "stream": true, "echo": true, "add_generation_prompt": false,
                    "continue_final_message": true, "max_tokens": 2,
                }),
            ),
            ("chat-stream-interval", json!({"stream": true, "stream_interval": 2, "max_tokens": 6})),
        ],
    )
    .await;
}

/// Chunks of choices interleave as the clock has it; per choice they have an order.
#[tokio::test]
async fn stream_of_two_choices_has_indices() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let body = chat(json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}}));
    let deltas = sim.post(PATH, &body).await.deltas();
    let (usage, chunks) = deltas.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    let prompt = usage["usage"]["prompt_tokens"].as_u64().unwrap();
    let completion = usage["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["usage"]["total_tokens"], prompt + completion);
    for index in 0..2 {
        let own: Vec<_> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(own[0]["delta"], json!({"role": "assistant", "content": ""}));
        let text: String = own.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
        assert_eq!(text, "Hello there, world.");
        let finishes: Vec<_> = own.iter().map(|c| &c["finish_reason"]).collect();
        let (last, others) = finishes.split_last().unwrap();
        assert_eq!(**last, "stop");
        assert!(others.iter().all(|finish| finish.is_null()), "{finishes:?}");
        // The role chunk holds no token; each other chunk one.
        assert_eq!(own.len() as u64 - 1, completion / 2);
    }
}

#[tokio::test]
async fn flags_change_chat_response_shape() {
    golden(
        &["--enable-prompt-tokens-details", "--fingerprint-mode", "none", "--response-role", "bot"],
        &[
            ("chat-flags", json!({"max_tokens": 1})),
            (
                "chat-flags-stream",
                json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 1}),
            ),
        ],
    )
    .await;
    golden(
        &[
            "--enable-force-include-usage",
            "--fingerprint-mode",
            "custom",
            "--fingerprint-value",
            "fp",
        ],
        &[("chat-stream-forced-usage", json!({"stream": true, "max_tokens": 1}))],
    )
    .await;
}

/// Source: vLLM 0.33 `renderers/chat_utils/chat_message.py`.
#[tokio::test]
async fn billing_header_line_is_removed_from_system() {
    let sim = Sim::serve(&["--trust-request-chat-template"]).await;
    let (first, second) = ("x-anthropic-billing-header: a", "x-anthropic-billing-header: b");
    let two = format!("{first}\n{second}\nkeep");
    let rest = format!("{second}\nkeep");
    for (role, content, expected) in [
        ("system", json!(two), rest.as_str()),
        ("system", json!([{"type": "text", "text": two}]), &rest),
        ("system", json!([{"type": "text", "text": first}, {"type": "text", "text": two}]), &rest),
        ("system", json!([{"type": "refusal", "refusal": two}]), &two),
        ("system", json!(first), ""),
        ("user", json!(two), &two),
    ] {
        let body = chat(json!({
            "messages": [{"role": role, "content": content}, {"role": "user", "content": "u"}],
            "chat_template": "{{ messages[0].content }}.", "return_prompt_text": true, "max_tokens": 1,
        }));
        let answer = sim.post(PATH, &body).await.json();
        assert_eq!(answer["prompt_text"], format!("{expected}."), "{body}");
    }
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn chat_template_numbers_match_python() {
    let vllm = Sim::serve(&["--trust-request-chat-template"]).await;
    let llmd = Sim::llmd(&["--compat", "llm-d", "--trust-request-chat-template"]).await;
    for (arguments, expected) in [
        (r#"{"a": NaN, "b": [-Infinity, 1e400]}"#, "{'a': nan, 'b': [-inf, inf]}"),
        (r#"{"a": 12345678901234567890123}"#, "{'a': 12345678901234567890123}"),
        (r#"{"a": 18446744073709551615, "b": 1.50}"#, "{'a': 18446744073709551615, 'b': 1.5}"),
        ("NaN", "{}"),
    ] {
        let call = json!({
            "id": "c", "type": "function", "function": {"name": "f", "arguments": arguments},
        });
        let body = chat(json!({
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}],
            "chat_template": "{{ messages[1].tool_calls[0].function.arguments }}",
            "model": "tiny-llama", "return_prompt_text": true, "max_tokens": 1,
        }));
        for sim in [&vllm, &llmd] {
            assert_eq!(sim.post(PATH, &body).await.json()["prompt_text"], expected, "{body}");
        }
    }
    vllm.server.shut_down_server().await;
    llmd.server.shut_down_server().await;
}
