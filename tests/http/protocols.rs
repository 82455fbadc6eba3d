//! The other protocols of generation over HTTP: responses, messages, batches, invocations.

use serde_json::{Value, json};

use super::sim::Sim;

async fn start(flags: &[&str]) -> Sim {
    let common = [
        "--served-model-name",
        "tiny",
        "--max-model-len",
        "1024",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--responses-store",
    ];
    Sim::serve(&[&common[..], flags].concat()).await
}

async fn post(sim: &Sim, path: &str, body: &Value) -> (u16, Value) {
    let answer = sim.post(path, body).await;
    (answer.status, answer.json())
}

/// Names and data of the events of a stream.
async fn streamed(sim: &Sim, path: &str, body: &Value) -> Vec<(String, Value)> {
    let answer = sim.post(path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    events(&answer.text())
}

fn events(text: &str) -> Vec<(String, Value)> {
    let events = text.split_terminator("\n\n");
    events
        .map(|event| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let name = name.strip_prefix("event: ").expect("a name");
            let data = data.strip_prefix("data: ").expect("data");
            (name.to_owned(), serde_json::from_str(data).expect("JSON"))
        })
        .collect()
}

/// Names of events, runs of one name once.
fn names(events: &[(String, Value)]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    names
}

fn keys(value: &Value) -> Vec<&str> {
    let map = value.as_object().expect("an object");
    map.keys().map(String::as_str).collect()
}

fn tool() -> Value {
    json!({
        "type": "object", "properties": {"side": {"type": "string", "enum": ["left", "right"]}},
        "required": ["side"], "additionalProperties": false,
    })
}

#[tokio::test]
async fn responses_api_object_has_all_fields() {
    let sim = start(&[]).await;
    let body = json!({"input": "hi", "max_output_tokens": 3, "ignore_eos": true});
    let (status, response) = post(&sim, "/v1/responses", &body).await;
    assert_eq!(status, 200, "{response}");
    let expected = [
        "id",
        "created_at",
        "incomplete_details",
        "instructions",
        "metadata",
        "model",
        "object",
        "output",
        "parallel_tool_calls",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
        "background",
        "max_output_tokens",
        "max_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_options",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "status",
        "text",
        "top_logprobs",
        "truncation",
        "usage",
        "user",
        "presence_penalty",
        "frequency_penalty",
        "kv_transfer_params",
        "ec_transfer_params",
        "input_messages",
        "output_messages",
    ];
    assert_eq!(keys(&response), expected);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["usage"]["output_tokens"], 3);
    let chat = json!({
        "messages": [{"role": "user", "content": "hi"}], "add_special_tokens": true,
    });
    let (_, tokens) = post(&sim, "/tokenize", &chat).await;
    assert_eq!(response["usage"]["input_tokens"], tokens["count"]);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_streamed_response_counts_its_events() {
    let sim = start(&["--reasoning-parser", "deepseek_r1"]).await;
    let body = json!({
        "input": "hi", "max_output_tokens": 40, "ignore_eos": true, "stream": true,
    });
    let events = streamed(&sim, "/v1/responses", &body).await;
    let block = |kind: &str| {
        [
            "response.output_item.added".to_owned(),
            "response.content_part.added".to_owned(),
            format!("response.{kind}.delta"),
            format!("response.{kind}.done"),
            "response.content_part.done".to_owned(),
            "response.output_item.done".to_owned(),
        ]
    };
    let mut expected = vec!["response.created".to_owned(), "response.in_progress".to_owned()];
    expected.extend(block("reasoning_text"));
    expected.extend(block("output_text"));
    expected.push("response.incomplete".to_owned());
    assert_eq!(names(&events), expected);
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!(data["sequence_number"], number);
        assert_eq!(data["type"], name.as_str());
    }
    let (_, last) = events.last().expect("events");
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(last["response"]["output"][1]["content"][0]["text"], text);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_response_calls_tools_and_takes_their_results() {
    let sim = start(&[]).await;
    let tool = json!({"type": "function", "name": "pick", "parameters": tool(), "strict": true});
    let body = json!({"input": "hi", "tools": [tool], "tool_choice": "required"});
    let (_, response) = post(&sim, "/v1/responses", &body).await;
    let call = response["output"][0].clone();
    assert_eq!(call["type"], "function_call");
    let arguments: Value =
        serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
    assert!(["left", "right"].contains(&arguments["side"].as_str().expect("a side")));
    let result =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "ok"});
    let input = json!([{"role": "user", "content": "hi"}, call, result]);
    let body = json!({"input": input, "max_output_tokens": 5});
    let (status, next) = post(&sim, "/v1/responses", &body).await;
    assert_eq!(status, 200, "{next}");
    assert_eq!(next["output"][0]["type"], "message");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn stored_responses_are_found_followed_and_replayed() {
    let sim = start(&[]).await;
    let body = json!({"input": "hi", "max_output_tokens": 3, "ignore_eos": true});
    let (_, first) = post(&sim, "/v1/responses", &body).await;
    let id = first["id"].as_str().expect("an id");
    let again = sim.get(&format!("/v1/responses/{id}")).await;
    assert_eq!((again.status, again.json()), (200, first.clone()));
    let body = json!({"input": "more", "previous_response_id": id, "max_output_tokens": 3});
    let (_, second) = post(&sim, "/v1/responses", &body).await;
    let tokens = |r: &Value| r["usage"]["input_tokens"].as_u64().expect("a count");
    assert!(tokens(&second) > tokens(&first));
    let (status, refusal) = post(&sim, &format!("/v1/responses/{id}/cancel"), &Value::Null).await;
    assert_eq!(status, 400);
    assert_eq!(refusal["error"]["message"], "Cannot cancel a synchronous response.");
    let body = json!({
        "input": "hi", "background": true, "stream": true, "max_output_tokens": 3,
        "ignore_eos": true,
    });
    let live = streamed(&sim, "/v1/responses", &body).await;
    let id = live[0].1["response"]["id"].as_str().expect("an id");
    let path = format!("/v1/responses/{id}?stream=true&starting_after=1");
    let replayed = sim.get(&path).await.text();
    assert_eq!(events(&replayed), live[2..]);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn background_response_can_be_cancelled() {
    let sim = start(&["--time-to-first-token", "600s"]).await;
    let body = json!({"input": "hi", "background": true});
    let (_, queued) = post(&sim, "/v1/responses", &body).await;
    assert_eq!(queued["status"], "queued");
    assert_eq!(queued["output"], json!([]));
    let id = queued["id"].as_str().expect("an id");
    let path = format!("/v1/responses/{id}/cancel");
    let (status, cancelled) = post(&sim, &path, &Value::Null).await;
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_failing_response_stream_breaks_off() {
    let sim = start(&[]).await;
    let body = json!({
        "input": "hi", "stream": true, "include": ["message.output_text.logprobs"],
        "top_logprobs": 99,
    });
    let mut wire = sim.connect().await;
    let body = body.to_string();
    wire.send(&super::sim::post("/v1/responses", &[], body.as_bytes())).await;
    assert_eq!(wire.head().await.status, 200);
    let mut said = String::new();
    while let Some(piece) = wire.try_chunk().await {
        said.push_str(std::str::from_utf8(&piece).expect("text"));
    }
    let broken = !said.ends_with("0\r\n\r\n");
    assert!(broken, "the body ended as if nothing had happened: {said}");
    let named = said.lines().filter_map(|line| line.strip_prefix("event: "));
    let named: Vec<_> = named.collect();
    assert_eq!(named, ["response.created", "response.in_progress"]);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn messages_api_object_has_anthropic_shape() {
    let sim = start(&["--enable-prompt-tokens-details"]).await;
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]);
    let body =
        json!({"model": "tiny", "max_tokens": 4, "messages": messages, "system": "Be kind."});
    let (status, message) = post(&sim, "/v1/messages", &body).await;
    assert_eq!(status, 200, "{message}");
    let expected = ["id", "type", "role", "content", "model", "stop_reason", "usage"];
    assert_eq!(keys(&message), expected);
    assert!(message["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    let counted = json!({"model": "tiny", "messages": messages, "system": "Be kind."});
    let (_, count) = post(&sim, "/v1/messages/count_tokens", &counted).await;
    let usage = &message["usage"];
    let members = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let sum: u64 = members.iter().filter_map(|key| usage[*key].as_u64()).sum();
    assert_eq!(count["input_tokens"], sum);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn messages_stream_uses_tools() {
    let sim = start(&["--reasoning-parser", "deepseek_r1"]).await;
    let body = json!({
        "model": "tiny", "max_tokens": 400, "stream": true,
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"name": "pick", "input_schema": tool()}],
        "tool_choice": {"type": "tool", "name": "pick"},
    });
    let events = streamed(&sim, "/v1/messages", &body).await;
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let mut expected = vec!["message_start"];
    expected.extend(block);
    expected.extend(block);
    expected.extend(["message_delta", "message_stop"]);
    assert_eq!(names(&events), expected);
    let of = |kind: &str, member: &str| -> String {
        let deltas = events.iter().filter(|(_, data)| data["delta"]["type"] == kind);
        deltas.filter_map(|(_, data)| data["delta"][member].as_str()).collect()
    };
    assert!(!of("thinking_delta", "thinking").is_empty());
    assert_eq!(of("signature_delta", "signature").len(), 32);
    let input: Value = serde_json::from_str(&of("input_json_delta", "partial_json")).expect("JSON");
    assert!(input["side"].is_string());
    let (_, delta) = &events[events.len() - 2];
    assert_eq!(delta["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn messages_errors_have_two_envelopes() {
    let sim = start(&[]).await;
    let messages = json!([{"role": "user", "content": "x"}]);
    let body = json!({"model": "nope", "max_tokens": 3, "messages": messages});
    let (status, error) = post(&sim, "/v1/messages", &body).await;
    assert_eq!((status, &error["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(error["type"], "error");
    let (status, error) = post(&sim, "/v1/messages", &json!({"model": "tiny"})).await;
    assert_eq!((status, &error["error"]["type"]), (400, &json!("Bad Request")));
    assert_eq!(error["error"]["param"], "body.messages");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_batch_answers_each_conversation() {
    let sim = start(&[]).await;
    let say = |text: &str| json!([{"role": "user", "content": text}]);
    let body = json!({"messages": [say("a"), say("b"), say("c")], "max_tokens": 3});
    let (status, batch) = post(&sim, "/v1/chat/completions/batch", &body).await;
    assert_eq!(status, 200, "{batch}");
    let choices = batch["choices"].as_array().expect("choices");
    let indices: Vec<_> = choices.iter().map(|c| c["index"].as_u64()).collect();
    assert_eq!(indices, [Some(0), Some(1), Some(2)]);
    let body = json!({"messages": [say("a")], "stream": true});
    let (status, error) = post(&sim, "/v1/chat/completions/batch", &body).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("stream")));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn sagemaker_invocations_dispatch_by_body() {
    let sim = start(&[]).await;
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
    let (_, answer) = post(&sim, "/invocations", &chat).await;
    assert_eq!(answer["object"], "chat.completion");
    let completion = json!({"prompt": "x", "max_tokens": 2});
    let (_, answer) = post(&sim, "/invocations", &completion).await;
    assert_eq!(answer["object"], "text_completion");
    let (status, error) = post(&sim, "/invocations", &json!({"x": 1})).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("prompt")));
    sim.server.shut_down_server().await;
}
