//! Scripted replies: what rules match, the usage and the end that they set, and requests that no
//! rule matches.

use serde_json::{Value, json};
use vllm_sim_config::CliMode;

use super::sim::{Sim, post};

const CHAT: &str = "/v1/chat/completions";

async fn sim(replies: &str, flags: &[&str]) -> Sim {
    let sim = Sim::start(CliMode::Llmd, &[&["--model", "demo"], flags].concat()).await;
    let answer = sim.ask(post("/admin/replies", &[], replies.as_bytes())).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    sim
}

fn chat(messages: Value) -> Value {
    json!({"model": "demo", "messages": messages})
}

/// Returns the text of the reply to a chat.
async fn reply(sim: &Sim, body: &Value, headers: &[&str]) -> String {
    let answer = sim.post_with(CHAT, headers, body).await.json();
    let text = &answer["choices"][0]["message"]["content"];
    text.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn rules_match_role_turn_system_text_tool_results_tools_and_headers() {
    let replies = "
- {when: {tool_result: 21 degrees, role: tool}, say: tool}
- {when: {tool: [get_weather, get_time]}, say: tools}
- {when: {system: pirate}, say: system}
- {when: {header: {X-Tenant: acme}}, say: header}
- {when: {turn: 2}, say: turn}
- {when: {role: assistant}, say: prefix}
- {say: other}
";
    let sim = sim(replies, &[]).await;
    let user = json!({"role": "user", "content": "Hello"});
    let assistant = json!({"role": "assistant", "content": "Hi"});
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let call = json!([{"id": "a", "type": "function",
        "function": {"name": "get_weather", "arguments": "{}"}}]);
    let called = json!({"role": "assistant", "content": "", "tool_calls": call});
    let result = json!({"role": "tool", "tool_call_id": "a", "content": "21 degrees"});
    let mut with_tools = chat(json!([user]));
    with_tools["tools"] = json!([function("get_time"), function("get_weather")]);
    let mut one_tool = chat(json!([user]));
    one_tool["tools"] = json!([function("get_time")]);
    let parts =
        json!({"role": "system", "content": [{"type": "text", "text": "You are a pirate"}]});
    for (body, expected) in [
        (chat(json!([user, called, result])), "tool"),
        // The model has answered the result.
        (chat(json!([user, called, result, assistant, user])), "turn"),
        (with_tools, "tools"),
        (one_tool, "other"),
        (chat(json!([parts, user])), "system"),
        (chat(json!([user, assistant, user])), "turn"),
        (chat(json!([user, assistant])), "prefix"),
        (chat(json!([user])), "other"),
    ] {
        assert_eq!(reply(&sim, &body, &[]).await, expected, "{body}");
    }
    let hello = chat(json!([user]));
    assert_eq!(reply(&sim, &hello, &["x-tenant: acme"]).await, "header");
    assert_eq!(reply(&sim, &hello, &["x-tenant: other"]).await, "other");
    // The other chat APIs have the same parts.
    let anthropic = json!({"model": "demo", "max_tokens": 9, "system": "Talk like a pirate",
        "messages": [{"role": "user", "content": "Hello"}]});
    let answer = sim.post("/v1/messages", &anthropic).await.json();
    assert_eq!(answer["content"][0]["text"], "system");
    let response = json!({"model": "demo", "input": "Hello", "instructions": "Be a pirate"});
    let answer = sim.post("/v1/responses", &response).await.text();
    assert!(answer.contains("\"text\":\"system\""), "{answer}");
    // A completion has no messages, but headers.
    let completion = json!({"model": "demo", "prompt": "Hello"});
    let answer = sim.post_with("/v1/completions", &["X-Tenant: acme"], &completion).await.json();
    assert_eq!(answer["choices"][0]["text"], "header");
}

#[tokio::test]
async fn a_rule_sets_usage_and_the_reason_of_the_end() {
    let replies = "
- when: {contains: long}
  say: Cut here
  finish: length
  usage: {prompt_tokens: 12000, completion_tokens: 500}
- when: {contains: short}
  say: Done
  finish: stop
  usage: {completion_tokens: 40}
";
    let sim = sim(replies, &[]).await;
    let mut body = chat(json!([{"role": "user", "content": "a long one"}]));
    let answer = sim.post(CHAT, &body).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "Cut here");
    assert_eq!(choice["finish_reason"], "length");
    let usage = &answer["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]),
        (&12000.into(), &500.into(), &12500.into())
    );
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let stream = sim.post(CHAT, &body).await.text();
    assert!(stream.contains("\"finish_reason\":\"length\""), "{stream}");
    assert!(stream.contains("\"prompt_tokens\":12000"), "{stream}");
    assert!(stream.contains("\"completion_tokens\":500"), "{stream}");
    let mut body = chat(json!([{"role": "user", "content": "a short one"}]));
    let answer = sim.post(CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 40);
    // The client's limit still cuts the reply.
    body["max_tokens"] = 7.into();
    let answer = sim.post(CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 7);
    // A number that the text does not fit into is refused.
    let small = "- {say: One two three four five, usage: {completion_tokens: 2}}";
    let answer = sim.ask(post("/admin/replies", &[], small.as_bytes())).await;
    assert_eq!(answer.status, 400);
    let error = answer.text();
    assert!(error.contains("'completion_tokens' is 2, but the reply has"), "{error}");
}

/// Parts of a message are joined with a line feed, as in its prompt.
#[tokio::test]
async fn conditions_read_the_parts_of_a_message_as_the_prompt_has_them() {
    let sim = sim(r#"[{"when": {"system": "a\npirate"}, "say": "Arr"}]"#, &[]).await;
    let parts = json!({"role": "system", "content": [
        {"type": "text", "text": "You are a"}, {"type": "text", "text": "pirate"}]});
    let body = chat(json!([parts, {"role": "user", "content": "Hello"}]));
    assert_eq!(reply(&sim, &body, &[]).await, "Arr");
}

/// Sets the rules of a server, and returns the status and the text of its response.
async fn set_rules(sim: &Sim, rules: &Value) -> (u16, String) {
    let answer = sim.ask(post("/admin/replies", &[], rules.to_string().as_bytes())).await;
    (answer.status, answer.text())
}

#[tokio::test]
async fn completion_tokens_need_no_room_for_tokens_that_no_reply_has() {
    let cut = |tokens: Option<u64>| {
        json!([{"say": "One two three four five", "finish": "length", "reasoning": "Let me see",
            "usage": {"completion_tokens": tokens}}])
    };
    let plain = sim("[]", &[]).await;
    assert_eq!(set_rules(&plain, &cut(None)).await.0, 200);
    let body = chat(json!([{"role": "user", "content": "count"}]));
    let tokens = plain.post(CHAT, &body).await.json()["usage"]["completion_tokens"].clone();
    let tokens = tokens.as_u64().unwrap();
    // The limit ends the text, so no end-of-sequence token follows, and nothing parses reasoning.
    let (status, text) = set_rules(&plain, &cut(Some(tokens))).await;
    assert_eq!(status, 200, "{text}");
    let answer = plain.post(CHAT, &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], tokens);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(set_rules(&plain, &cut(Some(tokens - 1))).await.0, 400);
    // With a reasoning parser the reply has reasoning, which takes tokens.
    let thinking = sim("[]", &["--reasoning-parser", "deepseek_r1"]).await;
    let (status, text) = set_rules(&thinking, &cut(Some(tokens))).await;
    assert_eq!(status, 400, "{text}");
    assert_eq!(set_rules(&thinking, &cut(None)).await.0, 200);
    let all = thinking.post(CHAT, &body).await.json()["usage"]["completion_tokens"].clone();
    assert_eq!(set_rules(&thinking, &cut(all.as_u64())).await.0, 200);
}

#[tokio::test]
async fn the_prompt_tokens_of_many_rules_do_not_overflow() {
    let rule = "- {say: Hi, usage: {prompt_tokens: 10000000}}";
    let sim = sim(rule, &["--request-history", "9"]).await;
    let prompts = vec!["Hello"; 500];
    let body = json!({"model": "demo", "prompt": prompts, "stream": true});
    let stream = sim.post("/v1/completions", &body).await.text();
    assert!(stream.contains("[DONE]"), "{stream}");
    let shown = sim.get("/admin/requests?wait=1&path=/v1/completions").await.json();
    assert_eq!(shown["requests"][0]["prompt_tokens"], u32::MAX, "{shown}");
    let whole = json!({"model": "demo", "prompt": body["prompt"]});
    let whole = sim.post("/v1/completions", &whole).await.json();
    assert_eq!(whole["usage"]["total_tokens"], u32::MAX, "{}", whole["usage"]);
}

#[tokio::test]
async fn strict_replies_refuse_what_no_rule_matches() {
    let rule = "- {when: {contains: known, turn: 1}, say: I know., times: 1}";
    let sim = sim(rule, &["--strict-replies"]).await;
    let body = |text: &str| chat(json!([{"role": "user", "content": text}]));
    let answer = sim.post(CHAT, &body("a known one")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The rule is used up, and the other text never matched.
    for text in ["a known one", "something else"] {
        let answer = sim.post(CHAT, &body(text)).await;
        assert_eq!(answer.status, 400);
        let error = answer.text();
        for part in ["--strict-replies", text, "role user, turn 1"] {
            assert!(error.contains(part), "{error}");
        }
    }
    // Without rules nothing matches.
    let removed = sim.ask("DELETE /admin/replies HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(removed.status, 200);
    assert_eq!(sim.post(CHAT, &body("a known one")).await.status, 400);
    assert_eq!(sim.get("/v1/models").await.status, 200);
}
