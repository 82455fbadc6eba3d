//! From tokens to replies in OpenAI's shape, whole and chunk by chunk.

use serde_json::{Value, json};

use super::sim::Sim;

pub(crate) const CHAT: &str = "/v1/chat/completions/derender";
pub(crate) const COMPLETION: &str = "/v1/completions/derender";
/// What a model with a parser for each might write.
pub(crate) const TEXT: &str = "<think>Zürich, then.</think>Let me see. <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>";

pub(crate) async fn ids_of(sim: &Sim, text: &str) -> Vec<u64> {
    let body = json!({"prompt": text, "add_special_tokens": false});
    let tokens = sim.post("/tokenize", &body).await.json()["tokens"].clone();
    serde_json::from_value(tokens).unwrap()
}

/// A completion with its tokens and log probabilities, as `/v1/completions` gives it.
async fn completion(sim: &Sim) -> Value {
    let body = json!({
        "prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": true,
        "return_token_ids": true, "logprobs": 2, "seed": 5,
    });
    sim.post("/v1/completions", &body).await.json()["choices"][0].clone()
}

/// What `/inference/v1/generate` would have said of it.
fn generated(choice: &Value, ids: &[Value], finish: Value) -> Value {
    let values = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    let content = ids.iter().zip(values).map(|(id, logprob)| {
        json!({"token_id": id, "logprob": logprob, "rank": 1,
            "top_logprobs": [{"token_id": id, "logprob": logprob, "rank": 1}]})
    });
    let content: Vec<Value> = content.collect();
    json!({
        "request_id": "r1",
        "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish,
            "logprobs": {"content": content}}],
    })
}

async fn message(sim: &Sim, path: &str, body: &Value) -> (u16, String) {
    let answer = sim.post(path, body).await;
    let message = answer.json()["error"]["message"].clone();
    let message = message.as_str().unwrap_or_default().to_owned();
    (answer.status, message)
}

#[tokio::test]
async fn derender_restores_generated_completion() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let choice = completion(&sim).await;
    let ids = choice["token_ids"].as_array().unwrap();
    let prompt = &choice["prompt_token_ids"];
    let whole = json!({
        "generate_responses": [generated(&choice, ids, "length".into())],
        "prompt_tokens": [4], "prompt_token_ids": [prompt],
        "completion_request": {"prompt": "x", "logprobs": 2, "return_token_ids": true},
    });
    let answer = sim.post(COMPLETION, &whole).await.json();
    let shown = &answer["choices"][0];
    assert_eq!(shown["text"], choice["text"], "{answer}");
    assert_eq!(shown["token_ids"], choice["token_ids"]);
    // A character of several tokens is that of the last one, so that they join to the text.
    let tokens: Vec<String> = serde_json::from_value(shown["logprobs"]["tokens"].clone()).unwrap();
    assert_eq!(choice["text"], tokens.concat());
    let lists = ["tokens", "token_logprobs", "text_offset"];
    assert_eq!(
        lists.map(|list| &shown["logprobs"][list]),
        lists.map(|list| &choice["logprobs"][list])
    );
    assert_eq!(answer["usage"]["total_tokens"], 44);
    assert_eq!((&answer["id"], &answer["model"]), (&json!("r1"), &json!("tiny-llama")));
    // The same, a token at a time.
    let (mut state, mut text, mut offsets) = (Value::Null, String::new(), Vec::new());
    for (at, id) in ids.iter().enumerate() {
        let last = at + 1 == ids.len();
        let finish = if last { "length".into() } else { Value::Null };
        let body = json!({
            "stream": true, "stream_state": state, "prompt_token_ids": prompt,
            "generate_chunk": generated(&choice, std::slice::from_ref(id), finish.clone()),
        });
        let answer = sim.post(COMPLETION, &body).await.json();
        let piece = &answer["chunk"]["choices"][0];
        text.push_str(piece["text"].as_str().expect("a text"));
        offsets.push(piece["logprobs"]["text_offset"][0].clone());
        assert_eq!(piece["finish_reason"], finish);
        state = answer["stream_state"].clone();
    }
    assert_eq!(choice["text"], text);
    assert_eq!(shown["logprobs"]["text_offset"], json!(offsets));
}

#[tokio::test]
async fn parsers_find_reasoning_and_calls_in_tokens() {
    let flags = [
        "--enable-scale-out",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--reasoning-parser",
        "qwen3",
    ];
    let sim = Sim::serve(&flags).await;
    let ids = ids_of(&sim, TEXT).await;
    let tool = json!({"type": "function", "function": {"name": "weather"}});
    let request = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    let reply = json!({"request_id": "r1", "choices": [
        {"index": 0, "token_ids": ids, "finish_reason": "stop"}]});
    let body = json!({"generate_response": reply, "chat_request": request, "prompt_tokens": 7});
    let answer = sim.post(CHAT, &body).await.json();
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    assert_eq!(message["reasoning"], "Zürich, then.", "{answer}");
    assert_eq!(message["content"], "Let me see. ");
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    assert_eq!(call["function"]["arguments"], "{\"city\": \"Zürich\"}");
    assert_eq!(choice["finish_reason"], "tool_calls");
    // The same, a token at a time.
    let (mut state, mut said) = (Value::Null, [String::new(), String::new()]);
    let (mut calls, mut roles, mut finish) = (Vec::new(), 0, Value::Null);
    for (at, id) in ids.iter().enumerate() {
        let end = (at + 1 == ids.len()).then_some("stop");
        let body = json!({
            "stream": true, "stream_state": state, "chat_request": request, "prompt_token_ids": [1],
            "generate_chunk": {"request_id": "r1", "choices": [
                {"index": 0, "token_ids": [id], "finish_reason": end}]},
        });
        let answer = sim.post(CHAT, &body).await.json();
        let choice = &answer["chunk"]["choices"][0];
        let delta = &choice["delta"];
        for (text, key) in said.iter_mut().zip(["reasoning", "content"]) {
            text.push_str(delta[key].as_str().unwrap_or_default());
        }
        calls.extend(delta["tool_calls"].as_array().into_iter().flatten().cloned());
        roles += usize::from(delta["role"] == "assistant");
        finish = choice["finish_reason"].clone();
        state = answer["stream_state"].clone();
    }
    assert_eq!(said, ["Zürich, then.", "Let me see. "]);
    assert_eq!((calls.len(), roles, finish), (1, 1, json!("tool_calls")));
    assert_eq!(calls[0]["function"], call["function"]);
    assert_eq!(state["last_tool_call_ids"], json!([calls[0]["id"]]));
}

#[tokio::test]
async fn invalid_input_of_derender_is_rejected() {
    let sim = Sim::serve(&["--enable-scale-out", "--reasoning-parser", "qwen3"]).await;
    let reply =
        |ids: Value| json!({"request_id": "r", "choices": [{"index": 0, "token_ids": ids}]});
    let request = json!({"messages": [{"role": "user", "content": "hi"}]});
    let chat = |reply: Value| json!({"generate_response": reply, "chat_request": request});
    let two = json!({"choices": [{"index": 0}, {"index": 1}]});
    let stream = |chunk: Value| json!({"stream": true, "generate_chunk": chunk, "chat_request": request, "prompt_token_ids": [1]});
    let stops = json!({"stream": true, "generate_chunk": reply(json!([5])),
        "completion_request": {"prompt": "x", "stop": "y"}});
    let no_prompt =
        json!({"stream": true, "generate_chunk": reply(json!([5])), "chat_request": request});
    let odd = json!({"stream": true, "generate_chunk": reply(json!([5])), "chat_request": request,
        "prompt_token_ids": [1], "stream_state": {"output_token_ids": [1, 2], "output_chunk_lens": [1]}});
    let cases = [
        (
            CHAT,
            json!({"generate_response": reply(json!([5]))}),
            "chat_request is required when a tool or reasoning parser",
        ),
        (CHAT, chat(reply(json!([]))), "choice 0 has empty or null token_ids"),
        (
            CHAT,
            chat(reply(json!(vec![5; 40_000]))),
            "token_ids length (40000) in choice 0 exceeds max_model_len",
        ),
        (
            CHAT,
            stream(two.clone()),
            "derender_chat_stream expects at most one choice per chunk (got 2).",
        ),
        (
            CHAT,
            no_prompt,
            "prompt_token_ids is required when a tool or reasoning parser is configured.",
        ),
        (CHAT, odd, "1 validation error:"),
        (COMPLETION, json!({"generate_responses": []}), "generate_responses must not be empty"),
        (COMPLETION, stops, "stop strings are not supported by streaming derender"),
        (
            COMPLETION,
            stream(two),
            "derender_completion_stream expects at most one choice per chunk (got 2).",
        ),
    ];
    for (path, body, words) in cases {
        let (status, told) = message(&sim, path, &body).await;
        assert_eq!(status, 400, "{words}");
        assert!(told.starts_with(words), "{told}");
    }
}

#[tokio::test]
async fn derender_stops_at_stop_tokens_and_strings() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let ids = ids_of(&sim, "one two three four").await;
    let ended = |stop_reason: Value, request: Value| {
        let choice = json!({"index": 0, "token_ids": ids, "finish_reason": "stop", "stop_reason": stop_reason});
        json!({"generate_response": {"request_id": "r", "choices": [choice]}, "chat_request": request})
    };
    let asked = |more: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "hi"}]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let text = async |body: Value| {
        let choice = sim.post(CHAT, &body).await.json()["choices"][0].clone();
        (choice["message"]["content"].clone(), choice["stop_reason"].clone())
    };
    let last = *ids.last().unwrap();
    let whole = text(ended(Value::Null, asked(json!({})))).await.0;
    assert_eq!(whole.as_str().unwrap().trim(), "one two three four");
    let (cut, reason) = text(ended("three".into(), asked(json!({})))).await;
    assert_eq!((cut.as_str().unwrap().trim(), reason), ("one two", json!("three")));
    let keep = asked(json!({"stop": ["two"], "include_stop_str_in_output": true}));
    let (kept, reason) = text(ended(Value::Null, keep)).await;
    assert_eq!((kept.as_str().unwrap().trim(), reason), ("one two", json!("two")));
    let named = asked(json!({"stop_token_ids": [last]}));
    let (shorter, reason) = text(ended(Value::Null, named)).await;
    assert_eq!(reason, last);
    let (shorter, whole) = (shorter.as_str().unwrap(), whole.as_str().unwrap());
    assert!(whole.starts_with(shorter) && shorter.len() < whole.len(), "{shorter}");
}

/// 0.33 says which weights sampled a choice.
#[tokio::test]
async fn vllm_0_32_omits_weight_versions() {
    for (version, shown) in [("0.32.0", false), ("0.33.0", true)] {
        let sim = Sim::serve(&["--enable-scale-out", "--vllm-version", version]).await;
        let reply = json!({"request_id": "r1", "choices": [{"index": 0, "token_ids": [39, 72]}]});
        let chunk = json!({"stream": true, "generate_chunk": reply});
        for (path, body) in [
            (CHAT, json!({"generate_response": reply})),
            (COMPLETION, json!({"generate_responses": [reply]})),
            (CHAT, chunk.clone()),
            (COMPLETION, chunk),
        ] {
            let answer = sim.post(path, &body).await.json();
            let choices = answer.get("choices").or_else(|| answer["chunk"].get("choices"));
            let choice = &choices.unwrap_or_else(|| panic!("{answer}"))[0];
            assert_eq!(choice.get("weight_versions").is_some(), shown, "{path} {answer}");
        }
    }
}

/// Counts that a client gives are added up without a wrap.
#[tokio::test]
async fn prompt_token_counts_saturate() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let choice = completion(&sim).await;
    let ids = choice["token_ids"].as_array().unwrap();
    let reply = generated(&choice, ids, "length".into());
    let body = json!({"generate_responses": [reply, reply], "prompt_tokens": [u64::MAX, u64::MAX]});
    let answer = sim.post(COMPLETION, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["usage"]["total_tokens"], u64::MAX);
}
