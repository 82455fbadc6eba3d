//! `vllm-sim sglang`: responses and streams of the generating routes of an SGLang server.
//!
//! The expected members and messages are those of SGLang 0.5.23 (`srt/entrypoints`), read from its
//! sources.

use serde_json::{Value, json};

use super::sim::Sim;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETION: &str = "/v1/completions";

/// Names of the members of an object, in their order.
pub(crate) fn members(value: &Value) -> String {
    let names = value.as_object().unwrap().keys().map(String::as_str);
    names.collect::<Vec<_>>().join(" ")
}

/// A chat request for at most that many tokens.
pub(crate) fn hello(limit: u32) -> Value {
    json!({"model": "tiny-llama", "max_tokens": limit, "messages": [{"role": "user", "content": "Hello"}]})
}

fn joined<'v>(texts: impl Iterator<Item = &'v Value>) -> String {
    texts.filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn a_chat_response_has_the_members_of_sglang() {
    let sim = Sim::sglang(&[]).await;
    let answer = sim.post(CHAT, &hello(3)).await.json();
    assert_eq!(members(&answer), "id object created model choices usage metadata");
    let choice = &answer["choices"][0];
    assert_eq!(members(choice), "index message logprobs finish_reason matched_stop");
    assert_eq!(members(&choice["message"]), "role content reasoning_content");
    assert_eq!(
        (&choice["finish_reason"], &choice["matched_stop"]),
        (&json!("length"), &Value::Null)
    );
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let usage = json!({
        "prompt_tokens": prompt,
        "total_tokens": prompt + 3,
        "completion_tokens": 3,
        "prompt_tokens_details": null,
        "reasoning_tokens": 0,
        "completion_tokens_details": null,
    });
    assert_eq!(answer["usage"].to_string(), usage.to_string());
    let versions = json!([{"version": "default", "start": 0, "end": 3}]);
    let metadata = json!({"weight_version": "default", "weight_versions": versions});
    assert_eq!(answer["metadata"], metadata);
    assert_eq!(answer["id"].as_str().unwrap().len(), 32);
}

#[tokio::test]
async fn responses_repeat_the_name_of_the_model() {
    let sim = Sim::sglang(&[]).await;
    let mut body = hello(1);
    body["model"] = "another".into();
    assert_eq!(sim.post(CHAT, &body).await.json()["model"], "another");
    body.as_object_mut().unwrap().remove("model");
    assert_eq!(sim.post(CHAT, &body).await.json()["model"], "default");
}

#[tokio::test]
async fn a_chat_stream_has_the_chunks_of_sglang() {
    let sim = Sim::sglang(&[]).await;
    let whole = sim.post(CHAT, &hello(4)).await.json();
    let mut body = hello(4);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let chunks = sim.post(CHAT, &body).await.deltas();
    let [first, .., last, usage] = chunks.as_slice() else { panic!("{chunks:?}") };
    assert_eq!(members(first), "id object created model choices");
    let role = json!({"reasoning_content": null, "role": "assistant", "content": ""});
    assert_eq!(first["choices"][0]["delta"].to_string(), role.to_string());
    assert_eq!(members(&first["choices"][0]), "index delta logprobs finish_reason matched_stop");
    assert_eq!(last["choices"][0]["delta"], json!({"reasoning_content": null}));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &whole["usage"]));
    let said = joined(chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["content"]));
    assert_eq!(whole["choices"][0]["message"]["content"], said.as_str());
}

#[tokio::test]
async fn reasoning_is_apart_from_the_content_unless_refused() {
    let sim = Sim::sglang(&["--reasoning-parser", "qwen3"]).await;
    let message = sim.post(CHAT, &hello(40)).await.json()["choices"][0]["message"].clone();
    let reasoning = message["reasoning_content"].as_str().unwrap().to_owned();
    let mut body = hello(40);
    body["separate_reasoning"] = false.into();
    let whole = sim.post(CHAT, &body).await.json()["choices"][0]["message"].clone();
    let content = message["content"].as_str().unwrap();
    assert_eq!(whole["content"], format!("{reasoning}</think>{content}"));
    assert_eq!(whole["reasoning_content"], Value::Null);
    body["stream"] = true.into();
    let chunks = sim.post(CHAT, &body).await.deltas();
    let said = joined(chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["content"]));
    assert_eq!(whole["content"], said.as_str());
}

fn tool_request(choice: &Value) -> Value {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let mut body = hello(200);
    body["tools"] =
        json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]);
    body["tool_choice"] = choice.clone();
    body
}

#[tokio::test]
async fn tool_calls_have_the_form_of_sglang() {
    let sim = Sim::sglang(&["--tool-call-parser", "qwen25"]).await;
    let mut body = tool_request(&json!("required"));
    let choice = sim.post(CHAT, &body).await.json()["choices"][0].clone();
    assert_eq!(
        (&choice["finish_reason"], &choice["matched_stop"]),
        (&json!("tool_calls"), &Value::Null)
    );
    assert_eq!(choice["message"]["content"], "");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(members(call), "id index type function");
    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    body["stream"] = true.into();
    let chunks = sim.post(CHAT, &body).await.deltas();
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null() && call["index"] == 0)
        .collect();
    assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": ""}));
    assert_eq!((&calls[1]["id"], &calls[1]["function"]["name"]), (&Value::Null, &Value::Null));
    let arguments = joined(calls.iter().map(|call| &call["function"]["arguments"]));
    assert_eq!(call["function"]["arguments"], arguments.as_str());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn offered_tools_are_only_text_without_a_parser() {
    let sim = Sim::sglang(&[]).await;
    let choice = sim.post(CHAT, &tool_request(&json!("auto"))).await.json()["choices"][0].clone();
    assert_eq!(members(&choice["message"]), "role content reasoning_content");
}

#[tokio::test]
async fn a_completion_has_the_members_of_sglang() {
    let sim = Sim::sglang(&[]).await;
    let body = json!({"prompt": ["Hi", "Hello there"], "max_tokens": 2, "logprobs": 2, "echo": true, "return_token_ids": true});
    let answer = sim.post(COMPLETION, &body).await.json();
    assert_eq!(members(&answer), "id object created model choices usage metadata");
    let choice = &answer["choices"][1];
    let names = "index text logprobs finish_reason matched_stop token_ids prompt_token_ids";
    assert_eq!(members(choice), names);
    assert!(choice["text"].as_str().unwrap().starts_with("Hello there"), "{choice}");
    let prompt = choice["prompt_token_ids"].as_array().unwrap().len();
    let logprobs = &choice["logprobs"];
    assert_eq!(members(logprobs), "text_offset token_logprobs tokens top_logprobs");
    for list in logprobs.as_object().unwrap().values() {
        assert_eq!(list.as_array().unwrap().len(), prompt + 2);
    }
    assert_eq!(
        (&logprobs["text_offset"][0], &logprobs["token_logprobs"][0]),
        (&json!(-1), &Value::Null)
    );
}

#[tokio::test]
async fn a_completion_stream_has_the_chunks_of_sglang() {
    let sim = Sim::sglang(&["--enable-cache-report"]).await;
    let mut body = json!({"prompt": "Hi", "max_tokens": 3, "ignore_eos": true});
    let whole = sim.post(COMPLETION, &body).await.json();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let chunks = sim.post(COMPLETION, &body).await.deltas();
    let (usage, texts) = chunks.split_last().unwrap();
    assert_eq!(members(&texts[0]), "id object created model choices usage");
    assert_eq!(members(&texts[0]["choices"][0]), "index text logprobs finish_reason matched_stop");
    assert_eq!(texts.len(), 3);
    assert_eq!(texts[2]["choices"][0]["finish_reason"], "length");
    let said = joined(texts.iter().map(|chunk| &chunk["choices"][0]["text"]));
    assert_eq!(whole["choices"][0]["text"], said.as_str());
    let names =
        "prompt_tokens total_tokens completion_tokens prompt_tokens_details reasoning_tokens";
    assert_eq!(members(&usage["usage"]), names, "without null members");
}

#[tokio::test]
async fn the_native_route_returns_text_ids_and_meta_info() {
    let sim = Sim::sglang(&[]).await;
    let body =
        json!({"text": "Hello there", "rid": "mine", "sampling_params": {"max_new_tokens": 3}});
    let answer = sim.post("/generate", &body).await.json();
    assert_eq!(members(&answer), "text output_ids meta_info");
    assert_eq!(answer["output_ids"].as_array().unwrap().len(), 3);
    let meta = &answer["meta_info"];
    let names = "id finish_reason prompt_tokens weight_version num_retractions reasoning_tokens \
                 completion_tokens cached_tokens weight_versions cached_tokens_details dp_rank \
                 e2e_latency response_sent_to_client_ts";
    assert_eq!(members(meta), names);
    assert_eq!(meta["id"], "mine");
    assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 3}));
    assert_eq!((&meta["completion_tokens"], &meta["dp_rank"]), (&json!(3), &Value::Null));
    assert!(meta["e2e_latency"].is_f64());
}

#[tokio::test]
async fn a_repeated_prompt_is_cached_page_by_page() {
    let sim = Sim::sglang(&[]).await;
    let body =
        json!({"text": "one two three four five six", "sampling_params": {"max_new_tokens": 1}});
    let cached = async || sim.post("/generate", &body).await.json()["meta_info"].clone();
    assert_eq!(cached().await["cached_tokens"], 0);
    let again = cached().await;
    // The last token of a prompt is always computed.
    let prompt = again["prompt_tokens"].as_u64().unwrap();
    assert_eq!(again["cached_tokens"], prompt - 1);
    assert_eq!(again["cached_tokens_details"], json!({"device": prompt - 1, "host": 0}));
}

#[tokio::test]
async fn a_batch_has_one_output_per_prompt_and_sample() {
    let sim = Sim::sglang(&[]).await;
    let params = json!([{"max_new_tokens": 1}, {"max_new_tokens": 2}]);
    let body = json!({"text": ["a", "b"], "rid": "job", "sampling_params": params});
    let answer = sim.post("/generate", &body).await.json();
    let shown = |index: usize| {
        let meta = &answer[index]["meta_info"];
        (meta["id"].as_str().unwrap().to_owned(), meta["completion_tokens"].as_u64().unwrap())
    };
    assert_eq!([shown(0), shown(1)], [("job_0".to_owned(), 1), ("job_1".to_owned(), 2)]);
    let body = json!({"input_ids": [5, 6], "sampling_params": {"n": 3, "max_new_tokens": 1}});
    assert_eq!(sim.post("/generate", &body).await.json().as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_native_stream_repeats_the_text_so_far() {
    let sim = Sim::sglang(&[]).await;
    let mut body = json!({"text": "Hello", "sampling_params": {"max_new_tokens": 3}});
    let whole = sim.post("/generate", &body).await.json();
    body["stream"] = true.into();
    let chunks = sim.post("/generate", &body).await.deltas();
    assert_eq!(chunks.len(), 3);
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["output_ids"].as_array().unwrap().len(), index + 1);
        assert!(whole["text"].as_str().unwrap().starts_with(chunk["text"].as_str().unwrap()));
        assert_eq!(chunk["meta_info"]["finish_reason"].is_null(), index < 2);
        assert_eq!(chunk["meta_info"].get("e2e_latency").is_some(), index == 2);
    }
    assert_eq!(chunks[2]["text"], whole["text"]);
    body["text"] = json!(["a", "b"]);
    let chunks = sim.post("/generate", &body).await.deltas();
    let of_second = chunks.iter().filter(|chunk| chunk["index"] == 1);
    assert_eq!((chunks.len(), of_second.count()), (6, 3));
}

#[tokio::test]
async fn log_probabilities_are_triples() {
    let sim = Sim::sglang(&[]).await;
    let mut body = json!({
        "text": "Hello there",
        "return_logprob": true,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "sampling_params": {"max_new_tokens": 2},
    });
    let answer = sim.post("/generate", &body).await.json();
    let meta = &answer["meta_info"];
    let prompt = meta["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(meta["input_token_logprobs"].as_array().unwrap().len(), prompt);
    assert_eq!(meta["input_token_logprobs"][0][0], Value::Null);
    assert_eq!(meta["output_token_logprobs_length"], 2);
    assert_eq!(meta["output_token_logprobs"][1][1], answer["output_ids"][1]);
    assert_eq!(meta["output_token_logprobs"][1][2], Value::Null, "without texts");
    let row = &meta["output_top_logprobs"][0];
    assert!(row[0][0].as_f64() >= row[1][0].as_f64(), "{row}");
    body["return_text_in_logprobs"] = true.into();
    let answer = sim.post("/generate", &body).await.json();
    assert!(answer["meta_info"]["output_token_logprobs"][0][2].is_string());
}

#[tokio::test]
async fn finish_reasons_name_what_matched() {
    let sim = Sim::sglang(&["--mode", "echo"]).await;
    let reason = async |params: Value| {
        let body = json!({"text": "one two three four", "sampling_params": params});
        sim.post("/generate", &body).await.json()
    };
    let stopped = reason(json!({"stop": "two"})).await;
    assert_eq!(stopped["meta_info"]["finish_reason"], json!({"type": "stop", "matched": "two"}));
    assert!(!stopped["text"].as_str().unwrap().contains("two"));
    let kept = reason(json!({"stop": ["two"], "no_stop_trim": true})).await;
    assert!(kept["text"].as_str().unwrap().ends_with("two"), "{kept}");
    for (params, matched, tokens) in [
        (json!({"stop_regex": "t[a-v]"}), "t[a-v]", "one two th"),
        (json!({"stop_regex": ["x", "wo$"]}), "wo$", "one two"),
        (json!({"stop": ""}), "", ""),
    ] {
        let ended = reason(params.clone()).await;
        let expected = json!({"type": "stop", "matched": matched});
        assert_eq!(ended["meta_info"]["finish_reason"], expected, "{params}");
        assert!(ended["text"].as_str().unwrap().starts_with(tokens), "{params}: {ended}");
        assert_ne!(ended["text"], "one two three four", "{params}");
    }
    let refused = reason(json!({"stop_regex": "a(?=b)"})).await.to_string();
    assert!(refused.contains(r#"stop_regex \"a(?=b)\" is not simulated"#), "{refused}");
    let ended = reason(json!({"max_new_tokens": null})).await;
    let reason = &ended["meta_info"]["finish_reason"];
    assert_eq!(reason["type"], "stop");
    assert_eq!(reason["matched"], *ended["output_ids"].as_array().unwrap().last().unwrap());
}

#[tokio::test]
async fn a_grammar_decides_the_output_of_every_route() {
    let sim = Sim::sglang(&[]).await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let body = json!({"text": "x", "sampling_params": {"json_schema": schema.to_string(), "max_new_tokens": 100}});
    let text = sim.post("/generate", &body).await.json()["text"].as_str().unwrap().to_owned();
    assert!(serde_json::from_str::<Value>(&text).unwrap()["a"].is_i64(), "{text}");
    let mut chat = hello(100);
    chat["response_format"] =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let answer = sim.post(CHAT, &chat).await.json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap()["a"].is_i64(), "{text}");
    let answer = sim.post(COMPLETION, &json!({"prompt": "x", "regex": "(yes|no)"})).await.json();
    assert!(["yes", "no"].contains(&answer["choices"][0]["text"].as_str().unwrap()), "{answer}");
}
