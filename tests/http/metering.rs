//! `GET /admin/usage`: the tokens of requests, also of those that are cut.

use serde_json::{Value, json};

use super::sim::{Sim, eventually, post};

const CHAT: &str = "/v1/chat/completions";

async fn sim(flags: &[&str]) -> Sim {
    let common = ["--dev-mode", "--request-history", "50", "--block-size", "16"];
    Sim::serve(&[&common[..], flags].concat()).await
}

fn chat(more: Value) -> Value {
    let text = "one two three four ".repeat(10);
    let mut body = json!({"model": "tiny-llama", "max_tokens": 8, "ignore_eos": true,
        "messages": [{"role": "user", "content": text}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Prompt, cached, generated and delivered tokens of a request or of all.
fn counts(shown: &Value) -> [u64; 4] {
    ["prompt_tokens", "cached_tokens", "generated_tokens", "delivered_tokens"]
        .map(|key| shown[key].as_u64().unwrap())
}

#[tokio::test]
async fn usage_of_whole_responses_is_that_of_the_response() {
    let sim = sim(&["--enable-prompt-tokens-details"]).await;
    let shown = sim.post(CHAT, &chat(json!({}))).await.json();
    let prompt = shown["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(shown["usage"]["completion_tokens"], 8);
    // The second has a cached prompt and two choices, of which each counts.
    let shown = sim.post(CHAT, &chat(json!({"n": 2}))).await.json();
    let cached = shown["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 16, "{shown}");
    let stream = sim.post(CHAT, &chat(json!({"stream": true}))).await.text();
    assert!(stream.ends_with("[DONE]\n\n"), "{stream}");
    sim.post(CHAT, &chat(json!({"max_tokens": 100_000}))).await;
    let usage = sim.get("/admin/usage?wait=4").await.json();
    let of = |index: usize| counts(&usage["requests"][index]);
    assert_eq!(of(0), [prompt, 0, 8, 8]);
    assert_eq!(of(1), [prompt, cached, 16, 16]);
    assert_eq!(of(2), [prompt, cached, 8, 8]);
    assert_eq!(of(3), [0; 4], "a refused request");
    assert_eq!(usage["requests"][3]["outcome"], "refused");
    assert_eq!(counts(&usage["total"]), [3 * prompt, 2 * cached, 32, 32]);
    let last = sim.get("/admin/usage?limit=1&status=200").await.json();
    assert_eq!((&last["count"], counts(&last["total"])), (&json!(3), of(2)));
}

#[tokio::test]
async fn cut_responses_were_generated_but_not_delivered() {
    let sim = sim(&["--inter-token-latency", "1ms"]).await;
    let cut = "X-Sim-Fault: cut_after=3";
    for stream in [true, false] {
        let body = chat(json!({"stream": stream, "max_tokens": 200})).to_string();
        let mut wire = sim.connect().await;
        wire.send(&post(CHAT, &[cut], body.as_bytes())).await;
        assert_eq!(wire.head().await.status, 200);
        while wire.try_chunk().await.is_some() {}
    }
    let usage = sim.get("/admin/usage?wait=2&timeout=20s").await.json();
    let [streamed, whole] = [0, 1].map(|index| usage["requests"][index].clone());
    assert_eq!((&streamed["outcome"], &whole["outcome"]), (&json!("cut"), &json!("cut")));
    let [_, _, generated, delivered] = counts(&streamed);
    assert!(delivered == 3 && (3..200).contains(&generated), "{streamed}");
    // The engine made the whole reply, but half a JSON body is worth nothing.
    assert_eq!(counts(&whole)[2..], [200, 0], "{whole}");
}

#[tokio::test]
async fn a_client_that_leaves_gets_what_was_written_until_then() {
    let sim = sim(&["--inter-token-latency", "10ms"]).await;
    let body = chat(json!({"stream": true, "max_tokens": 2000})).to_string();
    let mut wire = sim.connect().await;
    wire.send(&post(CHAT, &[], body.as_bytes())).await;
    assert_eq!(wire.head().await.status, 200);
    for _ in 0..4 {
        assert!(wire.chunk().await.is_some());
    }
    drop(wire);
    assert!(eventually(async || sim.get("/admin/usage").await.json()["requests"][0]["outcome"] == "cut").await);
    let usage = sim.get("/admin/usage").await.json();
    let [prompt, _, generated, delivered] = counts(&usage["requests"][0]);
    // The first event has no token.
    assert!(prompt > 0 && delivered >= 3 && generated >= delivered, "{usage}");
    assert!(generated < 2000, "{usage}");
}

#[tokio::test]
async fn usage_needs_the_history_and_the_key_of_the_operator() {
    let without = Sim::serve(&["--dev-mode"]).await;
    let answer = without.get("/admin/usage").await;
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("--request-history"), "{}", answer.text());
    let locked = sim(&["--admin-api-key", "secret"]).await;
    assert_eq!(locked.get("/admin/usage").await.status, 401);
}
