//! What decides of the text: forced tools, budgets of thoughts, seeds, limits, and stop rules inside
//! thoughts and calls.

use serde_json::{Value, json};

use super::shapes_tools::tools;
use super::sim::Sim;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";
const PARSER: [&str; 3] = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
const REASONER: [&str; 2] = ["--reasoning-parser", "qwen3"];

fn named() -> Value {
    json!({"type": "function", "function": {"name": "look"}})
}

fn ask(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Which way?"}]});
    let members = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

async fn choice(sim: &Sim, path: &str, body: &Value) -> Value {
    let answer = sim.post(path, body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()["choices"][0].clone()
}

fn calls(choice: &Value) -> usize {
    choice["message"]["tool_calls"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_named_tool_is_called_once() {
    let vllm = Sim::serve(&PARSER).await;
    let llmd = Sim::llmd(&["--compat", "llm-d"]).await;
    let mut most = 0;
    for seed in 0..20 {
        let body = ask(&json!({
            "model": "tiny-llama", "tools": tools(), "tool_choice": named(), "seed": seed,
        }));
        assert_eq!(calls(&choice(&vllm, CHAT, &body).await), 1, "{seed}");
        most = most.max(calls(&choice(&llmd, CHAT, &body).await));
    }
    assert_eq!(most, 2, "llm-d's habit in its mode");
}

#[tokio::test]
async fn required_tool_call_overrides_response_format() {
    let sim = Sim::serve(&PARSER).await;
    let format = json!({"type": "json_schema", "json_schema": {
        "name": "f", "schema": {"type": "object", "properties": {}},
    }});
    for tool_choice in [json!("required"), named()] {
        for constraint in [
            json!({"response_format": format}),
            json!({"structured_outputs": {"regex": "[a-z]{3}"}}),
        ] {
            // vLLM refuses a named tool beside `structured_outputs`.
            if tool_choice.is_object() && constraint.get("structured_outputs").is_some() {
                continue;
            }
            let mut body = ask(&constraint);
            body["tools"] = tools();
            body["tool_choice"] = tool_choice.clone();
            let choice = choice(&sim, CHAT, &body).await;
            assert!(calls(&choice) > 0, "{body}: {choice}");
        }
    }
    // Nothing has to be called: the format binds the text, unless a schema binds a tool.
    let mut body = ask(&json!({"tools": tools(), "structured_outputs": {"regex": "[a-z]{3}"}}));
    let free = choice(&sim, CHAT, &body).await;
    assert_eq!(free["message"]["content"].as_str().unwrap().len(), 3);
    body["tools"][0]["function"]["strict"] = true.into();
    let mut called = 0;
    for seed in 0..20 {
        body["seed"] = seed.into();
        called += calls(&choice(&sim, CHAT, &body).await);
    }
    assert!(called > 0);
}

#[tokio::test]
async fn a_forced_tool_of_responses_beats_the_format_of_the_text() {
    let sim = Sim::serve(&PARSER).await;
    let body = json!({
        "input": "Hi",
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_schema", "name": "f", "schema": {"type": "object"}}},
    });
    let answer = sim.post("/v1/responses", &body).await.json();
    let output = answer["output"].as_array().unwrap();
    assert_eq!(output.len(), 1, "{answer}");
    assert_eq!(output[0]["type"], "function_call");
}

#[tokio::test]
async fn thinking_budget_ends_reasoning() {
    let sim = Sim::serve(&REASONER).await;
    for (budget, spent) in [(0, 0), (1, 1), (7, 7)] {
        let body = ask(&json!({
            "max_tokens": 80, "min_tokens": 80, "ignore_eos": true, "thinking_token_budget": budget,
        }));
        let answer = sim.post(CHAT, &body).await.json();
        let message = &answer["choices"][0]["message"];
        let thought = message["reasoning"].as_str().unwrap_or_default();
        let text = json!({"prompt": thought, "add_special_tokens": false});
        let tokens = sim.post("/tokenize", &text).await.json();
        assert_eq!(tokens["count"], spent, "{answer}");
        assert!(!message["content"].as_str().unwrap().is_empty());
        assert_eq!(answer["usage"]["completion_tokens"], 80);
    }
    let unbound = choice(&sim, CHAT, &ask(&json!({"thinking_token_budget": -1}))).await;
    assert!(unbound["message"]["reasoning"].is_string());
    let body = json!({
        "model": "tiny-llama", "max_tokens": 1200, "messages": [{"role": "user", "content": "Hi"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    });
    assert_eq!(sim.post("/v1/messages", &body).await.status, 200);
}

#[tokio::test]
async fn a_stop_string_ends_the_reasoning() {
    let sim = Sim::serve(&REASONER).await;
    let whole = choice(&sim, CHAT, &ask(&json!({"seed": 2}))).await;
    let thought = whole["message"]["reasoning"].as_str().unwrap();
    let word = thought.split_whitespace().nth(3).unwrap();
    let before = thought.split_once(word).unwrap().0;
    for (stop, with, kept) in [
        (word, false, before.to_owned()),
        (word, true, format!("{before}{word}")),
        ("</think>", false, thought.to_owned()),
    ] {
        let mut body = ask(&json!({"seed": 2, "stop": stop, "include_stop_str_in_output": with}));
        let cut = choice(&sim, CHAT, &body).await;
        assert_eq!(cut["message"]["reasoning"], kept, "{cut}");
        assert_eq!(cut["message"]["content"], json!(null));
        assert_eq!(cut["finish_reason"], "stop");
        assert_eq!(cut["stop_reason"], stop);
        body["stream"] = true.into();
        let deltas = sim.post(CHAT, &body).await.deltas();
        let thoughts = deltas.iter().map(|d| &d["choices"][0]["delta"]["reasoning"]);
        let streamed: String = thoughts.filter_map(Value::as_str).collect();
        assert_eq!(streamed, kept);
    }
}

#[tokio::test]
async fn stop_string_ends_tool_call() {
    let sim = Sim::serve(&PARSER).await;
    let body = json!({"tools": tools(), "tool_choice": named(), "stop": "up"});
    let cut = choice(&sim, CHAT, &ask(&body)).await;
    assert_eq!(cut["stop_reason"], "up");
    let arguments = &cut["message"]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(*arguments, "{\"side\": \"");
    let body = json!({"tools": tools(), "tool_choice": named(), "stop": "<tool_call>"});
    let cut = choice(&sim, CHAT, &ask(&body)).await;
    assert_eq!((calls(&cut), &cut["finish_reason"]), (0, &json!("stop")));
    assert_eq!(cut["stop_reason"], "<tool_call>");
}

#[tokio::test]
async fn included_stop_token_has_its_text() {
    let sim = Sim::serve(&["--mode", "echo"]).await;
    let tokens = json!({"prompt": " there", "add_special_tokens": false});
    let ids = sim.post("/tokenize", &tokens).await.json();
    let there = &ids["tokens"][0];
    let mut body =
        json!({"prompt": "Hello there, world.", "max_tokens": 50, "stop_token_ids": [there]});
    assert_eq!(choice(&sim, COMPLETION, &body).await["text"], "Hello");
    body["include_stop_str_in_output"] = true.into();
    let with = choice(&sim, COMPLETION, &body).await;
    let piece = sim.post("/detokenize", &json!({"tokens": [there]})).await.json();
    let piece = piece["prompt"].as_str().unwrap();
    assert_eq!(with["text"], format!("Hello{piece}"));
    assert_eq!(with["stop_reason"], *there);
    // An end-of-sequence token is special: shown when these are.
    let mut body = json!({"prompt": "Hi", "include_stop_str_in_output": true});
    assert_eq!(choice(&sim, COMPLETION, &body).await["text"], "Hi");
    body["skip_special_tokens"] = false.into();
    let shown = choice(&sim, COMPLETION, &body).await;
    let text = shown["text"].as_str().unwrap();
    assert!(text.starts_with("Hi<|") && text.ends_with("|>"), "{shown}");
}

#[tokio::test]
async fn a_cut_prompt_keeps_its_special_tokens_unless_a_side_is_named() {
    let sim = Sim::serve(&[]).await;
    let text = "one two three four five six";
    let all = sim.post("/tokenize", &json!({"prompt": text})).await.json();
    let all = all["tokens"].as_array().unwrap().clone();
    let last = &all[all.len() - 4..];
    for (side, kept) in [
        (json!(null), [&all[..1], &last[1..]].concat()),
        (json!("left"), last.to_vec()),
        (json!("right"), all[..4].to_vec()),
    ] {
        let body = json!({
            "prompt": text, "max_tokens": 1, "truncate_prompt_tokens": 4, "truncation_side": side,
            "return_token_ids": true,
        });
        let choice = choice(&sim, COMPLETION, &body).await;
        assert_eq!(choice["prompt_token_ids"], json!(kept), "{side}");
    }
    // Ids are the client's own: nothing of them is special.
    let body = json!({
        "prompt": all, "max_tokens": 1, "truncate_prompt_tokens": 4, "return_token_ids": true,
    });
    let choice = choice(&sim, COMPLETION, &body).await;
    assert_eq!(choice["prompt_token_ids"], json!(all[all.len() - 4..]));
}

#[tokio::test]
async fn a_greedy_answer_ignores_the_seed() {
    let sim = Sim::serve(&[]).await;
    for greedy in [json!({"temperature": 0}), json!({"top_k": 1, "n": 2})] {
        let mut texts = std::collections::BTreeSet::new();
        for seed in 0..4 {
            let mut body = greedy.clone();
            body["prompt"] = "Hi".into();
            body["max_tokens"] = 40.into();
            body["seed"] = seed.into();
            let answer = sim.post(COMPLETION, &body).await;
            texts.insert(answer.said(0));
            if body["n"] == 2 {
                texts.insert(answer.said(1));
            }
        }
        assert_eq!(texts.len(), 1, "{greedy}: {texts:?}");
    }
}

#[tokio::test]
async fn higher_max_tokens_extends_same_text() {
    let sim = Sim::serve(&[]).await;
    for seed in 0..10 {
        let mut said = String::new();
        for max_tokens in [1, 4, 6, 7, 12, 30, 101, 102, 200] {
            let body = json!({"prompt": "Hi", "max_tokens": max_tokens, "seed": seed});
            let more = sim.post(COMPLETION, &body).await.said(0);
            assert!(more.starts_with(&said), "{max_tokens}: {said:?}, {more:?}");
            said = more;
        }
    }
}

/// A template of a request cannot take the process with it.
#[tokio::test]
async fn templates_of_requests_are_bounded() {
    let sim = Sim::serve(&["--trust-request-chat-template"]).await;
    let deep = format!("{{{{ a{} }}}}", ".a".repeat(100_000));
    let doubling = "{% set ns = namespace(s='ab') %}{% for i in range(60) %}\
                    {% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";
    for (template, reason) in [
        (deep.as_str(), "operators in one expression"),
        (doubling, "the chat template does too much"),
        ("{{ '%999999999d'|format(1) }}", "formats to a width of 999999999"),
    ] {
        let body = ask(&json!({"chat_template": template, "max_tokens": 1}));
        let answer = sim.post(CHAT, &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains(reason), "{}", answer.text());
    }
    let body = ask(&json!({"chat_template": "{{ messages[0].content }}", "max_tokens": 1}));
    assert_eq!(sim.post(CHAT, &body).await.status, 200);
}

/// A chat whose system message is `system`.
fn described(system: &str, more: &Value) -> Value {
    let mut body = ask(more);
    let user = body["messages"][0].take();
    body["messages"] = json!([{"role": "system", "content": system}, user]);
    body
}

#[tokio::test]
async fn a_reply_satisfies_a_schema_that_only_the_prompt_contains() {
    let person = json!({"properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "type": "object", "additionalProperties": false});
    let words =
        format!("Answer in JSON that matches this json_schema:\n\n{person:#}\n\nOnly that.");
    let object = json!({"response_format": {"type": "json_object"}, "max_tokens": 200});
    let free = json!({"max_tokens": 200, "model": "tiny-llama"});
    let keeps = |choice: &Value| {
        let text = choice["message"]["content"].as_str().unwrap();
        let said: Value = serde_json::from_str(text).unwrap_or_default();
        said["name"].is_string() && said["age"].is_i64() && said.as_object().unwrap().len() == 2
    };
    for sim in [Sim::serve(&[]).await, Sim::llmd(&[]).await] {
        for more in [&object, &free] {
            assert!(keeps(&choice(&sim, CHAT, &described(&words, more)).await), "{more}");
        }
        // No value keeps to it: the answer is what it would be without.
        let none = words.replace("\"age\": {", "\"age\": {\"maximum\": 1, \"minimum\": 2,");
        let said = choice(&sim, CHAT, &described(&none, &object)).await;
        let said: Value =
            serde_json::from_str(said["message"]["content"].as_str().unwrap()).unwrap();
        assert!(said["title"].is_string(), "{said}");
        let said = choice(&sim, CHAT, &described(&none, &free)).await;
        assert!(!said["message"]["content"].as_str().unwrap().contains('{'), "{said}");
    }
    let peer = Sim::llmd(&["--compat", "llm-d"]).await;
    let said = choice(&peer, CHAT, &described(&words, &free)).await;
    assert!(!said["message"]["content"].as_str().unwrap().contains('{'), "{said}");
}
