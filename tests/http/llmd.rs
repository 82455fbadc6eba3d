//! What llm-d-inference-sim says of requests, status by status and word by word
//! (`--compat llm-d`). Taken down from its program of August 2026.

use serde_json::{Value, json};

use super::sim::Sim;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const MODEL: &str = "tiny-llama";

async fn llmd(flags: &[&str]) -> Sim {
    let compat = ["--compat", "llm-d", "--force-dummy-tokenizer", "--max-model-len", "64"];
    Sim::llmd(&[&compat[..], flags].concat()).await
}

/// A chat with these fields besides.
fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "This is a test."}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(more: Value) -> Value {
    let mut body = json!({"model": MODEL});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn error_responses_match_llmd() {
    let sim = llmd(&[]).await;
    let positive = "Max completion tokens and max tokens should be positive";
    let eos = "Ignore_eos is true but max_completion_tokens (or max_tokens) is not set";
    let none = "prompt array must contain at least one prompt";
    let empty = "prompt must not contain an empty string";
    let long = "This model's maximum context length is 64 tokens. However, you requested 110 tokens (10 in the messages, 100 in the completion). Please reduce the length of the messages or completion";
    let required = "input is required and must be a non-empty string or array";
    let responses = json!({"model": MODEL, "input": "x", "max_output_tokens": 0});
    let message = chat(json!({"max_tokens": 0}));
    let both = json!({"prompt": "a", "messages": []});
    let embed = |input: Value| json!({"model": MODEL, "input": input});
    for (path, body, status, words) in [
        (CHAT, json!({"messages": []}), 404, "The model `` does not exist."),
        (CHAT, json!({"model": "x"}), 404, "The model `x` does not exist."),
        (CHAT, chat(json!({"n": 0})), 400, "n must be at least 1"),
        (CHAT, chat(json!({"max_tokens": 0})), 400, positive),
        (CHAT, chat(json!({"max_tokens": -1})), 400, positive),
        (CHAT, chat(json!({"max_completion_tokens": 0, "max_tokens": 5})), 400, positive),
        (CHAT, chat(json!({"ignore_eos": true})), 400, eos),
        (CHAT, chat(json!({"max_tokens": 100})), 400, long),
        (TEXT, text(json!({})), 400, none),
        (TEXT, text(json!({"prompt": []})), 400, none),
        (TEXT, text(json!({"prompt": ""})), 400, empty),
        (TEXT, text(json!({"prompt": ["a", ""]})), 400, empty),
        (
            TEXT,
            text(json!({"prompt": [[]]})),
            400,
            "prompt must not contain an empty token-id array",
        ),
        (TEXT, text(json!({"prompt": "a", "max_tokens": 0})), 400, positive),
        ("/v1/responses", responses, 400, positive),
        ("/v1/messages", message, 400, positive),
        ("/tokenize", both, 400, "both prompt and messages fields in tokenize request"),
        ("/v1/embeddings", embed(json!("")), 400, "input cannot be an empty string"),
        ("/v1/embeddings", embed(json!(["a", 1])), 400, required),
        ("/v1/embeddings", json!({"model": MODEL}), 400, required),
    ] {
        let answer = sim.post(path, &body).await;
        let kind = if status == 404 { "NotFoundError" } else { "BadRequestError" };
        let error =
            json!({"error": {"message": words, "type": kind, "param": null, "code": status}});
        assert_eq!((answer.status, answer.json()), (status, error), "{path} {body}");
    }
}

#[tokio::test]
async fn malformed_body_error_matches_llmd() {
    let sim = llmd(&[]).await;
    for body in [
        chat(json!({"max_tokens": "many"})),
        chat(json!({"messages": [{"role": "user", "content": 5}]})),
        json!([]),
    ] {
        let error = sim.post(CHAT, &body).await.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        let begins = message.starts_with("Failed to read and parse request body, ");
        let missing = message.starts_with("The model ``");
        assert!(begins || missing, "{body}: {message}");
        assert_eq!(error["param"], Value::Null);
    }
    let broken = super::sim::post(CHAT, &[], b"{");
    let answer = sim.ask(broken).await;
    assert_eq!(answer.status, 400);
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("Failed to read and parse request body, "), "{message}");
}

/// An injected error comes before the model and the numbers are looked at.
#[tokio::test]
async fn a_simulated_error_precedes_validation() {
    let sim = llmd(&[]).await;
    let body = json!({"model": "nobody's", "messages": [], "n": 0});
    let answer = sim.post_with(CHAT, &["X-Return-Error: 503"], &body).await;
    assert_eq!(answer.status, 503);
}

#[tokio::test]
async fn requests_that_llmd_accepts_are_accepted() {
    let sim = llmd(&["--mode", "echo"]).await;
    // One alternative where nobody says how many.
    let answer = sim.post(CHAT, &chat(json!({"logprobs": true, "max_tokens": 2}))).await;
    let token = &answer.json()["choices"][0]["logprobs"]["content"][0];
    assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(1), "{token}");
    // A completion has no limit of sixteen.
    let prompt = "a b c d e f g h i j k l m n o p q r s t";
    let answer = sim.post(TEXT, &text(json!({"prompt": prompt}))).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 20, "{answer}");
    // No model, for those that llm-d does not ask.
    assert_eq!(sim.post("/tokenize", &json!({"prompt": "a"})).await.status, 200);
    // Without a cache a threshold says nothing; the header always does.
    let body = chat(json!({"cache_hit_threshold": 0.9, "max_tokens": 3}));
    let finish = |answer: Value| answer["choices"][0]["finish_reason"].clone();
    assert_eq!(finish(sim.post(CHAT, &body).await.json()), "length");
    let header = ["X-Cache-Threshold-Finish-Reason: 1"];
    let forced = sim.post_with(CHAT, &header, &chat(json!({"max_tokens": 3}))).await;
    assert_eq!(finish(forced.json()), "cache_threshold");
    let metrics = sim.get("/metrics").await.text();
    let named = "finish_reason=\"cache_threshold\"";
    assert!(metrics.contains(named), "{metrics}");
    let config = sim.get("/admin/config").await.json();
    assert_eq!(config["DisplayModelName"], MODEL);
}

/// A cache of four blocks holds a prompt of four, all of which counts as cached the second time.
#[tokio::test]
async fn the_cache_counts_as_llmd_counts() {
    let cache = ["--enable-kvcache", "--kv-cache-size", "4", "--block-size", "8"];
    let sim = llmd(&cache).await;
    let ids: Vec<u32> = (100..132).collect();
    let ask =
        async |ids: &[u32]| sim.post(TEXT, &text(json!({"prompt": ids, "max_tokens": 2}))).await;
    let cached = |answer: Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(ask(&ids).await.json()), 0);
    assert_eq!(cached(ask(&ids).await.json()), 32);
    assert_eq!(cached(ask(&ids[..20]).await.json()), 16);
    assert_eq!(ask(&[ids.as_slice(), &[7; 9]].concat()).await.status, 400);
}
