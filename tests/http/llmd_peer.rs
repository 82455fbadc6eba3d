//! What requests get that were sent to llm-d-inference-sim's own program beside this one
//! (`tests/python/llmd_differential.py`), with `--compat llm-d`.

use serde_json::{Value, json};
use vllm_sim_config::CliMode;

use super::sim::Sim;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const GENERATE: &str = "/inference/v1/generate";
const PICTURE: &str = "data:image/png;base64,iVBORw0KGgo=";

async fn start(flags: &[&str]) -> Sim {
    let args = ["--model", "m", "--compat", "llm-d", "--seed", "7"];
    Sim::start(CliMode::Llmd, &[&args[..], flags].concat()).await
}

async fn echo(flags: &[&str]) -> Sim {
    start(&[&["--mode", "echo"], flags].concat()).await
}

async fn taken(sim: &Sim, path: &str, body: &Value) -> Value {
    let answer = sim.post(path, body).await;
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
    answer.json()
}

async fn refused(sim: &Sim, path: &str, body: &Value) -> (u16, String) {
    let answer = sim.post(path, body).await;
    let error = answer.json()["error"].clone();
    assert_eq!(error["param"], Value::Null, "{error}");
    let message = error["message"].as_str().expect("a text");
    (answer.status, message.to_owned())
}

fn said(content: &Value) -> Value {
    json!({"model": "m", "max_tokens": 30, "messages": [{"role": "user", "content": content}]})
}

#[tokio::test]
async fn a_completion_without_a_limit_needs_no_room_for_16_tokens() {
    let sim = echo(&["--max-model-len", "12"]).await;
    let words = "a b c d e f g h";
    let answer = taken(&sim, TEXT, &json!({"model": "m", "prompt": words})).await;
    assert_eq!(answer["choices"][0]["text"], words);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn top_logprobs_are_keyed_by_token_text() {
    let sim = echo(&[]).await;
    let mut body = said(&"one two".into());
    body["logprobs"] = true.into();
    body["top_logprobs"] = 2.into();
    let answer = taken(&sim, CHAT, &body).await;
    let second = &answer["choices"][0]["logprobs"]["content"][1];
    assert_eq!((&second["token"], &second["logprob"]), (&json!("two"), &json!(-1.1)));
    let other = &second["top_logprobs"][1];
    assert_eq!((&other["token"], &other["logprob"]), (&json!("two_1"), &json!(-1.6)));
    let body = json!({"model": "m", "prompt": "one two", "logprobs": 2});
    let answer = taken(&sim, TEXT, &body).await;
    let tops = &answer["choices"][0]["logprobs"]["top_logprobs"];
    assert_eq!(tops[1], json!({"two": -1.1, "two_1": -1.6}));
}

/// The time of an image passes before it comes and the answer ends, so the answer is counted.
#[tokio::test]
async fn an_image_ends_a_stream_after_its_time() {
    let flags = ["--omni", "--image-emission-rate", "100", "--time-to-generate-image", "20ms"];
    let sim = echo(&flags).await;
    let mut body = said(&"one two".into());
    body["stream"] = true.into();
    let events = sim.post(CHAT, &body).await.text();
    let frames: Vec<Value> = events
        .split("\n\n")
        .filter_map(|frame| serde_json::from_str(frame.strip_prefix("data: ")?).ok())
        .collect();
    let kinds: Vec<_> = frames
        .iter()
        .filter_map(|frame| frame["choices"][0]["delta"]["content"][0]["type"].as_str())
        .collect();
    assert_eq!(kinds, ["text", "text", "image_url"], "{events}");
    let last = &frames.last().expect("an end")["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));
    assert!(sim.shows("vllm:request_success_total", 1.0).await);
}

#[tokio::test]
async fn an_echo_ends_with_the_prompt_even_with_ignore_eos() {
    let sim = echo(&[]).await;
    let mut body = said(&"one two".into());
    body["ignore_eos"] = true.into();
    let answer = taken(&sim, CHAT, &body).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "one two");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn requests_in_tokens_are_read_and_refused_as_llmd_does() {
    let sim = echo(&[]).await;
    let body = |params: Value, more: Value| {
        let mut body = json!({"model": "m", "token_ids": [1, 2], "sampling_params": params});
        let members = body.as_object_mut().expect("an object");
        members.extend(more.as_object().expect("an object").clone());
        body
    };
    let hashes = json!({"features": {"mm_hashes": {"image": ["h1"]}}});
    let answer = taken(&sim, GENERATE, &body(json!({"max_tokens": 3}), hashes)).await;
    let id = answer["request_id"].as_str().expect("a text");
    assert!(!id.contains('-'), "{id}");
    for (bad, status, words) in [
        (
            body(json!({"max_tokens": 0}), json!({})),
            400,
            "Max completion tokens and max tokens should be positive",
        ),
        (
            body(json!({}), json!({"ignore_eos": true})),
            400,
            "Ignore_eos is true but max_completion_tokens (or max_tokens) is not set",
        ),
        (json!({"token_ids": []}), 404, "The model `` does not exist."),
    ] {
        let found = refused(&sim, GENERATE, &bad).await;
        assert_eq!(found, (status, words.to_owned()), "{bad}");
    }
}

#[tokio::test]
async fn unknown_model_is_404_before_other_checks() {
    let sim = start(&[]).await;
    for path in [CHAT, TEXT, MESSAGES] {
        let found = refused(&sim, path, &json!({})).await;
        assert_eq!(found, (404, "The model `` does not exist.".to_owned()), "{path}");
        let (status, words) = refused(&sim, path, &json!([])).await;
        assert_eq!(status, 400);
        assert!(words.starts_with("Failed to read and parse request body, "), "{words}");
    }
    for (path, words) in [
        ("/v1/completions/render", "prompt array must contain at least one prompt"),
        ("/tokenize", "Failed to read and parse request body, "),
    ] {
        let (status, found) = refused(&sim, path, &json!({"model": "m", "prompt": []})).await;
        assert_eq!(status, 400);
        assert!(found.starts_with(words), "{found}");
    }
}

#[tokio::test]
async fn responses_api_accepts_any_content_part() {
    let sim = echo(&[]).await;
    let part = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    for (more, says) in [
        (part(json!({"type": "output_text", "text": "a b"})), "a b"),
        (part(json!({"text": "a b"})), "a b"),
        (part(json!({"type": "input_audio", "data": "UklGRg==", "format": "wav"})), "audio: wav"),
        (json!({"input": "x", "truncation": "some", "service_tier": "gold"}), "x"),
        (json!({"input": "x", "include": ["all"], "background": true}), "x"),
        (json!({"input": "x", "previous_response_id": "resp_1"}), "x"),
    ] {
        let mut body = more;
        body["model"] = "m".into();
        let answer = taken(&sim, RESPONSES, &body).await;
        assert_eq!(answer["output"][0]["content"][0]["text"], says, "{body}");
    }
    let image = part(json!({"type": "input_image", "image_url": PICTURE}));
    let mut body = image;
    body["model"] = "m".into();
    let answer = taken(&sim, RESPONSES, &body).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], format!("image: {PICTURE}"));
    assert_eq!(answer["usage"]["input_tokens"], 17);
}

#[tokio::test]
async fn messages_of_unknown_role_are_accepted() {
    let sim = echo(&[]).await;
    for more in [
        json!({"messages": [{"role": "alien", "content": "a"}]}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 5}}),
        json!({"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}], "tool_choice": {"type": "odd"}}),
        json!({"messages": [{"role": "user", "content": [{"type": "odd"}, {"type": "text", "text": "a"}]}]}),
    ] {
        let mut body = said(&"a".into());
        let members = body.as_object_mut().expect("an object");
        members.extend(more.as_object().expect("an object").clone());
        taken(&sim, MESSAGES, &body).await;
    }
    for content in [json!(""), json!([{"type": "odd"}])] {
        let found = refused(&sim, MESSAGES, &said(&content)).await;
        assert_eq!(found, (400, "messages must not be empty".to_owned()));
    }
}

/// llm-d stores a prompt before it finds that too little of it was there.
#[tokio::test]
async fn a_prompt_that_was_refused_for_the_cache_is_cached() {
    let flags = ["--enable-kvcache", "--block-size", "8", "--global-cache-hit-threshold", "0.5"];
    let sim = echo(&flags).await;
    let body = said(&"a b c d e f g h".into());
    let mut reasons = Vec::new();
    for _ in 0..2 {
        let answer = taken(&sim, CHAT, &body).await;
        reasons.push(answer["choices"][0]["finish_reason"].clone());
    }
    assert_eq!(reasons, ["cache_threshold", "stop"]);
}

#[tokio::test]
async fn multimodal_hashes_and_placeholders_match_llmd() {
    let sim = start(&["--mm-encoder-only"]).await;
    let audio =
        json!([{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}]);
    let answer = taken(&sim, CHAT, &said(&audio)).await;
    let place = &answer["ec_transfer_params"]["sim_audio_0_1e41455"];
    assert_eq!(place["peer_port"], 1234, "{answer}");
    let hashes = json!({"mm_hashes": {"image": ["h1"]}});
    let body = json!({"model": "m", "token_ids": [1, 2], "sampling_params": {"max_tokens": 1}, "features": hashes});
    let answer = taken(&sim, GENERATE, &body).await;
    assert_eq!(answer["ec_transfer_params"]["h1"]["peer_port"], 1234, "{answer}");
}

#[tokio::test]
async fn adapters_are_listed_with_the_context_of_their_model() {
    let sim = start(&["--lora-modules", "{\"name\":\"a\"}", "--max-model-len", "77"]).await;
    let listed = sim.get("/v1/models").await.json();
    let cards = listed["data"].as_array().expect("a list").iter();
    let lengths: Vec<_> = cards.map(|card| card["max_model_len"].clone()).collect();
    assert_eq!(lengths, [77, 77]);
}

#[tokio::test]
async fn a_tool_may_be_named_as_in_the_responses_api() {
    let sim = start(&[]).await;
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    let mut body = said(&"a".into());
    body["tools"] = json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}]);
    body["tool_choice"] = json!({"type": "function", "name": "f"});
    let answer = taken(&sim, CHAT, &body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
}
