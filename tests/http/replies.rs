//! Scripted replies, and the history of requests: what a test asks of a fake.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_sim_config::CliMode;

use super::sim::{Sim, post};

const CHAT: &str = "/v1/chat/completions";

/// A server that remembers requests, and says what `replies` (YAML) has.
async fn sim(replies: &str, flags: &[&str]) -> Sim {
    let flags = [&["--model", "demo", "--request-history", "100"], flags].concat();
    let sim = Sim::start(CliMode::Llmd, &flags).await;
    let answer = sim.ask(post("/admin/replies", &[], replies.as_bytes())).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    sim
}

fn said(text: &str) -> Value {
    json!({"model": "demo", "messages": [{"role": "user", "content": text}]})
}

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]"#;

#[tokio::test]
async fn scripted_reply_calls_tool_then_answers() {
    let replies = "
- when: {contains: weather}
  call: {name: get_weather, arguments: {city: Paris}}
- when: {matches: '^\\d+ degrees'}
  say: It is warm in Paris.
";
    let sim = sim(replies, &[]).await;
    let mut body = said("How is the weather?");
    body["tools"] = serde_json::from_str(TOOLS).unwrap();
    let first = sim.post(CHAT, &body).await.json();
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "get_weather");
    assert_eq!(call["function"]["arguments"], r#"{"city": "Paris"}"#);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}));
    for stream in [false, true] {
        body["stream"] = stream.into();
        let answer = sim.post(CHAT, &body).await.text();
        let text = match stream {
            false => "It is warm in Paris.",
            true => "\"finish_reason\":\"stop\"",
        };
        assert!(answer.contains(text), "{answer}");
    }
    let shown = sim.get("/admin/replies").await.json();
    assert_eq!(shown["replies"][0]["answered"], 1);
    assert_eq!(shown["replies"][1]["answered"], 2);
}

#[tokio::test]
async fn scripted_reply_is_served_by_every_api() {
    let sim = sim("- {say: As it is written.}", &[]).await;
    let text = async |path: &str, body: Value| sim.post(path, &body).await.text();
    let chat = text(CHAT, said("x")).await;
    let messages = text(
        "/v1/messages",
        json!({"model": "demo", "max_tokens": 20, "messages": [{"role": "user", "content": "x"}]}),
    )
    .await;
    let completion = text("/v1/completions", json!({"model": "demo", "prompt": "x"})).await;
    let response = text("/v1/responses", json!({"model": "demo", "input": "x"})).await;
    for answer in [chat, messages, completion, response] {
        assert!(answer.contains("As it is written."), "{answer}");
    }
    // The client's limit holds.
    let mut short = said("x");
    short["max_tokens"] = 2.into();
    let answer = sim.post(CHAT, &short).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn a_scripted_failure_has_retry_after_on_every_route() {
    let replies = "- {say: fine, fail: {times: 2, error: rate_limit, retry_after: 3}}";
    let sim = sim(replies, &["--retry-after", "9"]).await;
    for (route, field) in [("/v1/completions", "prompt"), ("/v1/responses", "input")] {
        let answer = sim.post(route, &json!({field: "x"})).await;
        assert_eq!(answer.status, 429, "{route}");
        assert_eq!(answer.header("retry-after"), Some("3"), "{route}");
    }
}

#[tokio::test]
async fn script_fails_n_times_with_retry_after() {
    let replies = "- {say: fine, fail: {times: 2, error: rate_limit, retry_after: 3}}";
    let sim = sim(replies, &["--retry-after", "9", "--health-status", "503"]).await;
    let key = ["idempotency-key: a", "authorization: Bearer secret"];
    for attempt in 1..=3 {
        let answer = sim.post_with(CHAT, &key, &said("x")).await;
        let refused = attempt < 3;
        assert_eq!(answer.status, if refused { 429 } else { 200 });
        let seconds = refused.then_some("3");
        assert_eq!(answer.header("retry-after"), seconds);
    }
    assert_eq!(sim.get("/health").await.header("retry-after"), Some("9"));
    let shown = sim.get("/admin/requests?key=a&wait=3").await.json();
    let requests = shown["requests"].as_array().unwrap();
    let column = |name: &str| -> Vec<Value> { requests.iter().map(|r| r[name].clone()).collect() };
    assert_eq!(column("attempt"), [1, 2, 3]);
    assert_eq!(column("status"), [429, 429, 200]);
    assert_eq!(column("outcome"), ["refused", "refused", "finished"]);
    assert!(requests[0]["gap_seconds"].is_null());
    assert!(requests[1]["gap_seconds"].as_f64().unwrap() >= 0.0);
    assert_eq!(requests[0]["headers"]["authorization"], "***");
    assert_eq!(column("body_sha256")[0], column("body_sha256")[2]);
    assert_eq!(requests[2]["model"], "demo");
    assert!(requests[2]["prompt_tokens"].as_u64() > Some(0));
    assert!(requests[2]["completion_tokens"].as_u64() > Some(0));
    assert!(requests[2].get("body").is_none());
    let metrics = sim.get("/metrics").await.text();
    let faults = "vllm_sim_faults_total{kind=\"rate_limit\"} 2";
    assert!(metrics.contains(faults), "{metrics}");
}

/// Clients of OpenAI and Anthropic count their retries; a count of 0 is a new request, not an attempt.
#[tokio::test]
async fn attempts_follow_client_retry_count() {
    let sim = sim("- {fail: {error: rate_limit}}", &[]).await;
    for count in [0, 0, 1, 2, 1, 0, 5] {
        let header = format!("x-stainless-retry-count: {count}");
        sim.post_with(CHAT, &[&header], &said("same")).await;
    }
    sim.post_with(CHAT, &["x-stainless-retry-count: 1"], &said("another")).await;
    let shown = sim.get("/admin/requests?wait=8").await.json();
    let requests = shown["requests"].as_array().unwrap();
    let attempts: Vec<&Value> = requests.iter().map(|r| &r["attempt"]).collect();
    assert_eq!(attempts, [1, 1, 2, 3, 2, 1, 6, 2]);
    // Who follows nobody that is known has no gap.
    let gaps: Vec<bool> = requests.iter().map(|r| r["gap_seconds"].is_f64()).collect();
    let followed = [false, false, true, true, true, false, false, false];
    assert_eq!(gaps, followed, "{requests:#?}");
}

#[tokio::test]
async fn concurrent_attempt_has_no_gap() {
    let sim = sim("- {when: {contains: long}, say: a b c, pace: {first_token: 1h}}", &[]).await;
    let key = ["idempotency-key: a"];
    let mut wire = sim.connect().await;
    wire.send(&post(CHAT, &key, said("long").to_string().as_bytes())).await;
    let read = async || {
        let shown = sim.get("/admin/requests?key=a").await.json();
        shown["count"] == 1
    };
    assert!(super::sim::eventually(read).await);
    sim.post_with(CHAT, &key, &said("short")).await;
    let shown = sim.get("/admin/requests?wait=1").await.json();
    let (first, second) = (&shown["requests"][0], &shown["requests"][1]);
    assert_eq!((&first["outcome"], &second["attempt"]), (&json!("running"), &json!(2)));
    assert!(second["gap_seconds"].is_null(), "{second}");
}

/// Bodies that are no JSON, and 128 MiB of bodies and headers in all.
#[tokio::test]
async fn recorded_bodies_are_verbatim_and_bounded() {
    let sim = sim("[]", &["--request-history-bodies", "--max-request-body-size-mb", "64"]).await;
    let own = br#"{"model":  "demo", "messages": [{"role": "user", "content": "x"}]}"#;
    sim.ask(post(CHAT, &[], own)).await;
    sim.ask(post(CHAT, &[], b"{\"a\": \xff\"")).await;
    let shown = sim.get("/admin/requests?wait=2").await.text();
    assert!(shown.contains(std::str::from_utf8(own).unwrap()), "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["requests"][1]["body"], "{\"a\": \u{fffd}\"");
    let large = json!({"model": "demo", "prompt": "x", "user": "y".repeat(30 << 20)}).to_string();
    for _ in 0..5 {
        let answer = sim.ask(post("/v1/completions", &[], large.as_bytes())).await;
        assert_eq!(answer.status, 200);
    }
    let shown = sim.get("/admin/requests?limit=0&wait=4").await.json();
    assert_eq!((&shown["count"], &shown["dropped"]), (&json!(4), &json!(3)));
}

#[tokio::test]
async fn key_like_line_in_body_is_kept() {
    let flags = ["--model", "demo", "--request-history", "9", "--request-history-bodies"];
    let flags = [&flags[..], &["--api-key", "sk"]].concat();
    let sim = Sim::start(CliMode::Llmd, &flags).await;
    let body = "line\r\nAuthorization: Bearer x \r\nend";
    sim.ask(post(CHAT, &["authorization: Bearer sk"], body.as_bytes())).await;
    let path = "/admin/requests?wait=1";
    let get = format!("GET {path} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer sk\r\n\r\n");
    let shown = sim.ask(get).await.json();
    assert_eq!(shown["requests"][0]["body"], body);
}

#[tokio::test]
async fn a_prompt_of_token_ids_is_matched_as_a_list_of_numbers() {
    let sim = sim("- {when: {contains: '7,8'}, say: matched}", &[]).await;
    let ids = json!({"model": "demo", "prompt": [6, 7, 8]});
    let answer = sim.post("/v1/completions", &ids).await.json();
    assert_eq!(answer["choices"][0]["text"], "matched");
}

#[tokio::test]
async fn request_history_is_bounded_and_filtered() {
    let sim = sim("[]", &["--request-history", "3", "--request-history-bodies"]).await;
    for text in ["a", "b", "c", "d"] {
        sim.post(CHAT, &said(text)).await;
    }
    sim.post("/no/such/path", &json!({})).await;
    let all = sim.get("/admin/requests?wait=3").await.json();
    assert_eq!((&all["count"], &all["dropped"]), (&json!(3), &json!(2)));
    assert_eq!(all["requests"][0]["body"], said("c"));
    // More ends can never be counted.
    let never = sim.get("/admin/requests?wait=4").await;
    assert_eq!(never.status, 400, "{}", never.text());
    let missing = sim.get("/admin/requests?status=404").await.json();
    assert_eq!(missing["requests"][0]["path"], "/no/such/path");
    let last = sim.get("/admin/requests?path=/v1/chat/completions&limit=1").await;
    let last = last.json();
    assert_eq!((&last["count"], &last["requests"][0]["id"]), (&json!(2), &json!(4)));
    let after = sim.get("/admin/requests?after=4&model=demo").await.json();
    assert_eq!(after["count"], 0);
    let removed = sim.ask("DELETE /admin/requests HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(removed.json()["removed"], 3);
    let late = sim.get("/admin/requests?wait=1&timeout=1ms").await;
    assert_eq!(late.status, 408);
    assert!(late.text().contains("0 of 1 requests have ended within 1ms"), "{}", late.text());
    let wrong = sim.get("/admin/requests?colour=red").await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("known are path, model"), "{}", wrong.text());
}

#[tokio::test]
async fn history_wait_returns_at_request_end() {
    let sim = sim("- {say: a b c d e f, pace: {first_token: 1ms, between_tokens: 1h}}", &[]).await;
    let mut wire = sim.connect().await;
    let mut body = said("x");
    body["stream"] = true.into();
    let request = post(CHAT, &[], body.to_string().as_bytes());
    wire.send(&request).await;
    let running = async || {
        let shown = sim.get("/admin/requests").await.json();
        shown["requests"][0]["status"] == 200
    };
    assert!(super::sim::eventually(running).await);
    let (waited, ()) = tokio::join!(sim.get("/admin/requests?wait=1&timeout=20s"), async {
        drop(wire);
    });
    let cut = &waited.json()["requests"][0];
    assert_eq!((&cut["outcome"], &cut["stream"]), (&json!("cut"), &json!(true)));
    assert!(cut["completion_tokens"].as_u64() < Some(6));
    assert!(Duration::from_secs_f64(cut["seconds"].as_f64().unwrap()) < Duration::from_secs(20));
}

#[tokio::test]
async fn invalid_script_changes_nothing() {
    let sim = Sim::start(CliMode::Llmd, &["--model", "demo"]).await;
    let answer = sim.get("/admin/requests").await;
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("--request-history"), "{}", answer.text());
    let ask = async |text: &str| sim.ask(post("/admin/replies", &[], text.as_bytes())).await;
    assert_eq!(ask("- say: kept").await.status, 200);
    let refused = ask("- tell: nothing").await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("replies[0]: unknown key"), "{}", refused.text());
    let content = async || {
        let answer = sim.post(CHAT, &said("x")).await.json();
        answer["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(content().await, "kept");
    let ended = sim.ask("DELETE /admin/replies HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(ended.json()["replies"], json!([]));
    assert_ne!(content().await, "kept");
}

/// A rule's replies are for requests that are answered.
#[tokio::test]
async fn rejected_requests_consume_no_scripted_reply() {
    let sim = Sim::serve(&["--dev-mode", "--max-num-queued-reqs", "2"]).await;
    let rules = r#"[{"say": "As it is written.", "times": 1, "when": {"contains": "sun"}}]"#;
    let set = sim.ask(post("/admin/replies", &[], rules.as_bytes())).await;
    assert_eq!(set.status, 200, "{}", set.text());
    let asked = |more: Value| {
        let mut body = json!({"prompt": "sun", "max_tokens": 50});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        body
    };
    let completion = async |more: Value| sim.post("/v1/completions", &asked(more)).await;
    sim.poke("/pause").await;
    assert_eq!(completion(json!({})).await.status, 503);
    sim.poke("/resume").await;
    assert_eq!(completion(json!({"stop_token_ids": [-1]})).await.status, 400);
    assert_eq!(completion(json!({"n": 3})).await.status, 503);
    let shown = sim.get("/admin/replies").await.json();
    assert_eq!(shown["replies"][0]["answered"], 0);
    let answer = completion(json!({})).await.text();
    assert!(answer.contains("As it is written."), "{answer}");
    let answer = completion(json!({})).await.text();
    assert!(!answer.contains("As it is written."), "{answer}");
}

/// Of several prompts each is matched for itself.
#[tokio::test]
async fn batch_prompts_get_separate_replies() {
    let sim = sim("- {say: As it is written., when: {contains: sun}}", &[]).await;
    for prompts in [["moon", "sun"], ["sun", "moon"]] {
        let body = json!({"model": "demo", "prompt": prompts, "max_tokens": 50});
        let answer = sim.post("/v1/completions", &body).await.json();
        for (at, prompt) in prompts.iter().enumerate() {
            let text = answer["choices"][at]["text"].as_str().unwrap();
            let scripted = text.contains("As it is written.");
            assert_eq!(scripted, *prompt == "sun", "{prompt}: {text}");
        }
    }
    let shown = sim.get("/admin/replies").await.json();
    assert_eq!(shown["replies"][0]["answered"], 2);
}

/// A rule without `when` at the end answers what no other rule matches, and counts it.
#[tokio::test]
async fn a_last_rule_fails_what_no_rule_matches() {
    let replies = "
- {when: {contains: sun}, say: It shines.}
- fail: {error: 404}
";
    let sim = sim(replies, &[]).await;
    let answer = sim.post(CHAT, &said("sun")).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "It shines.");
    for text in ["moon", "stars"] {
        assert_eq!(sim.post(CHAT, &said(text)).await.status, 404);
    }
    let shown = sim.get("/admin/replies").await.json();
    assert_eq!(shown["replies"][1]["failed"], 2);
}
