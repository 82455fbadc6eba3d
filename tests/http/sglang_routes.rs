//! `vllm-sim sglang`: embeddings, scores, responses, messages, sessions and memory, from outside.
//!
//! The expected members and texts are those of SGLang 0.5.23's own application over a scripted
//! scheduler (`tests/python/sglang_compare.py`).

use serde_json::{Value, json};

use super::golden;
use super::sglang_shapes::{CHAT, COMPLETION, hello, members};
use super::sim::Sim;

const EMBEDDINGS: &str = "/v1/embeddings";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// A reply without random parts.
const ECHO: [&str; 2] = ["--mode", "echo"];

fn openai_error(message: &str) -> Value {
    json!({"object": "error", "message": message, "type": "BadRequestError", "param": null, "code": 400})
}

fn usage(tokens: u64) -> Value {
    json!({
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": null,
        "reasoning_tokens": 0,
        "completion_tokens_details": null,
    })
}

#[tokio::test]
async fn an_embedding_server_returns_vectors() {
    let sim = Sim::sglang(&["--is-embedding"]).await;
    let answer = sim.post(EMBEDDINGS, &json!({"input": ["one text", "another"]})).await.json();
    assert_eq!(members(&answer), "data model object usage");
    let first = &answer["data"][0];
    assert_eq!(members(first), "embedding index object");
    assert_eq!(first["embedding"].as_array().unwrap().len(), 128);
    assert_eq!((&answer["data"][1]["index"], answer["object"].as_str()), (&json!(1), Some("list")));
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"], usage(tokens));
    let ids = sim.post(EMBEDDINGS, &json!({"input": [5, 6, 7]})).await.json();
    assert_eq!(ids["usage"], usage(3));
    let text = json!({"input": "one text", "encoding_format": "base64"});
    let encoded = sim.post(EMBEDDINGS, &text).await.json();
    let bytes = encoded["data"][0]["embedding"].as_str().unwrap().len();
    assert_eq!(bytes, (128 * 4_usize).div_ceil(3) * 4);
    assert_eq!(sim.get("/model_info").await.json()["is_generation"], false);
}

#[tokio::test]
async fn errors_of_embeddings_have_the_words_of_sglang() {
    let sim = Sim::sglang(&["--is-embedding"]).await;
    let model = super::sim::MODEL;
    let no_matryoshka = format!(
        "Model '{model}' does not support matryoshka representation, changing output dimensions \
         will lead to poor results."
    );
    for (body, text) in [
        (json!({"input": ""}), "Input cannot be empty"),
        (json!({"input": []}), "Input cannot be empty"),
        (json!({"input": "  "}), "Input cannot be empty or whitespace only"),
        (json!({"input": ["a", " "]}), "Input at index 1 cannot be empty or whitespace only"),
        (json!({"input": [5, -1]}), "Token ID at index 1 must be non-negative"),
        (
            json!({"input": "a", "encoding_format": "x"}),
            "encoding_format must be either 'float' or 'base64', got 'x'",
        ),
        (json!({"input": "a", "dimensions": 8}), &no_matryoshka),
        (
            json!({"input": vec![5; 2048]}),
            "The input (2048 tokens) is longer than the model's context length (2048 tokens).",
        ),
    ] {
        let answer = sim.post(EMBEDDINGS, &body).await;
        assert_eq!((answer.status, answer.json()), (400, openai_error(text)), "{body}");
    }
    let refused = sim.post(CHAT, &hello(1)).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("--is-embedding"), "{}", refused.text());
    let generating = Sim::sglang(&[]).await;
    for (path, body) in [
        (EMBEDDINGS, json!({"input": "a"})),
        ("/v1/rerank", json!({"query": "q", "documents": ["a"]})),
        ("/v1/classify", json!({"input": "a"})),
    ] {
        let text = "This model does not appear to be an embedding model by default. Please add \
                    `--is-embedding` when launching the server or try another model.";
        assert_eq!(generating.post(path, &body).await.json(), openai_error(text), "{path}");
    }
}

#[tokio::test]
async fn native_vectors_have_meta_info() {
    let sim = Sim::sglang(&["--is-embedding"]).await;
    let answer = sim.post("/encode", &json!({"text": "one text", "rid": "mine"})).await.json();
    assert_eq!(members(&answer), "embedding meta_info");
    assert_eq!(
        members(&answer["meta_info"]),
        "id finish_reason prompt_tokens weight_version num_retractions e2e_latency \
         response_sent_to_client_ts"
    );
    assert_eq!(answer["meta_info"]["id"], "mine");
    let several = sim.post("/classify", &json!({"text": ["a", "b"]})).await.json();
    assert_eq!(several.as_array().unwrap().len(), 2);
    let missing = sim.post("/encode", &json!({})).await;
    let text = "At least one of text, input_ids, image, video, or audio should be provided";
    assert_eq!((missing.status, missing.json()), (400, json!({"error": {"message": text}})));
}

#[tokio::test]
async fn documents_are_ranked_and_texts_scored() {
    let sim = Sim::sglang(&["--is-embedding"]).await;
    let body = json!({"query": "blue sky", "documents": ["red earth", "the blue sky"]});
    let ranked = sim.post("/v1/rerank", &body).await.json();
    assert_eq!(members(&ranked[0]), "score document index meta_info");
    assert_eq!((&ranked[0]["index"], &ranked[0]["document"]), (&json!(1), &body["documents"][1]));
    let mut most = body.clone();
    most["top_n"] = 1.into();
    most["return_documents"] = false.into();
    let ranked = sim.post("/v1/rerank", &most).await.json();
    assert_eq!(
        (members(&ranked[0]), ranked.as_array().unwrap().len()),
        ("score index meta_info".to_owned(), 1)
    );
    let sim = Sim::sglang(&[]).await;
    let mut body = json!({"query": "q", "items": ["a", "b"], "label_token_ids": [5, 6, 7]});
    let scored = sim.post("/v1/score", &body).await.json();
    assert_eq!(members(&scored), "scores pooled_hidden_states token_logprobs model usage object");
    let sums = |answer: &Value| -> Vec<f64> {
        let rows = answer["scores"].as_array().unwrap().iter();
        rows.map(|row| row.as_array().unwrap().iter().filter_map(Value::as_f64).sum()).collect()
    };
    assert!(sums(&scored).iter().all(|sum| (sum - 0.5).abs() < 1e-9), "{scored}");
    body["apply_softmax"] = true.into();
    let scored = sim.post("/v1/score", &body).await.json();
    assert!(sums(&scored).iter().all(|sum| (sum - 1.0).abs() < 1e-9), "{scored}");
    for (member, value, text) in [
        (
            "label_token_ids",
            Value::Null,
            "label_token_ids is required for generation (CausalLM) models.",
        ),
        ("items", Value::Null, "items must be provided"),
        ("label_token_ids", json!([5, 5]), "label_token_ids must not contain duplicate tokens"),
    ] {
        let mut changed = body.clone();
        changed[member] = value;
        let answer = sim.post("/v1/score", &changed).await;
        assert_eq!((answer.status, answer.json()), (400, openai_error(text)), "{changed}");
    }
}

#[tokio::test]
async fn responses_and_messages_have_the_shapes_of_sglang() {
    let sim = Sim::sglang(&ECHO).await;
    let response = json!({"model": "tiny-llama", "input": "Hello there", "max_output_tokens": 4});
    let message = json!({"model": "tiny-llama", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello there"}]});
    let streamed = |body: &Value| {
        let mut body = body.clone();
        body["stream"] = true.into();
        body
    };
    golden::posts(
        &sim,
        RESPONSES,
        &[
            ("sglang-response", response.clone()),
            ("sglang-response-stream", streamed(&response)),
            (
                "sglang-response-stored",
                json!({"model": "tiny-llama", "input": "a", "previous_response_id": "resp_1"}),
            ),
        ],
    )
    .await;
    golden::posts(
        &sim,
        MESSAGES,
        &[
            ("sglang-message", message.clone()),
            ("sglang-message-stream", streamed(&message)),
            ("sglang-message-missing", json!({"model": "tiny-llama", "messages": []})),
        ],
    )
    .await;
}

#[tokio::test]
async fn forced_calls_are_items_and_blocks() {
    let sim = Sim::sglang(&["--tool-call-parser", "qwen25"]).await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let tool = json!({"type": "function", "name": "f", "description": "d", "parameters": schema});
    let mut body =
        json!({"model": "tiny-llama", "input": "x", "tools": [tool], "tool_choice": "required"});
    let answer = sim.post(RESPONSES, &body).await.json();
    let item = &answer["output"][0];
    assert_eq!(members(item), "arguments call_id name type id status");
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("f")));
    assert_eq!(
        members(&answer["tools"][0]),
        "type name description parameters strict tools defer_loading format"
    );
    body["stream"] = true.into();
    let events = sim.post(RESPONSES, &body).await.text();
    for name in [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ] {
        assert!(events.contains(&format!("event: response.{name}\n")), "{name}: {events}");
    }
    let tool = json!({"name": "f", "description": "d", "input_schema": schema});
    let body = json!({
        "model": "tiny-llama",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [tool],
        "tool_choice": {"type": "any"},
    });
    let message = sim.post(MESSAGES, &body).await.json();
    assert_eq!(message["stop_reason"], "tool_use");
    let block = &message["content"][0];
    assert_eq!(members(block), "type id name input");
    assert!(block["input"]["a"].is_i64(), "{block}");
    let counted = sim.post("/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted, json!({"input_tokens": message["usage"]["input_tokens"]}));
}

#[tokio::test]
async fn a_session_continues_its_requests() {
    let sim = Sim::sglang(&[]).await;
    let opened =
        sim.post("/open_session", &json!({"capacity_of_str_len": 100, "session_id": "s"})).await;
    assert_eq!((opened.status, opened.text()), (200, "\"s\"".to_owned()));
    let again =
        sim.post("/open_session", &json!({"capacity_of_str_len": 100, "session_id": "s"})).await;
    let text = "Failed to open the session. Check if a session with the same id is still open.";
    assert_eq!((again.status, again.json()), (400, json!({"error": {"message": text}})));
    let turn = async |place: Value, rid: &str| {
        let params = json!({"max_new_tokens": 2, "ignore_eos": true});
        let body = json!({"input_ids": [5, 6], "rid": rid, "session_params": place, "sampling_params": params});
        sim.post("/generate", &body).await.json()
    };
    let prompt = |answer: &Value| answer["meta_info"]["prompt_tokens"].clone();
    let first = turn(json!({"id": "s"}), "one").await;
    assert_eq!(prompt(&first), 2);
    assert_eq!(prompt(&turn(json!({"id": "s", "rid": "one"}), "two").await), 6);
    let dropped = json!({"id": "s", "rid": "one", "drop_previous_output": true});
    assert_eq!(prompt(&turn(dropped, "three").await), 4);
    assert_eq!(prompt(&turn(json!({"id": "s", "rid": "two", "offset": 3}), "four").await), 5);
    let native = |text: &str| json!({"error": {"message": text}});
    assert_eq!(
        turn(json!({"id": "s", "rid": "none"}), "five").await,
        native("Invalid request session id")
    );
    sim.post("/close_session", &json!({"session_id": "s"})).await;
    let closed = turn(json!({"id": "s"}), "six").await;
    assert_eq!(closed, native("Invalid request: session id s does not exist"));
}

#[tokio::test]
async fn a_pause_before_each_step_slows_replies_down() {
    let sim = Sim::sglang(&[]).await;
    let body =
        json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3, "ignore_eos": true}});
    let latency = async || {
        let answer = sim.post("/generate", &body).await.json();
        answer["meta_info"]["e2e_latency"].as_f64().unwrap()
    };
    let slow = sim.post("/slow_down", &json!({"forward_sleep_time": 0.05})).await;
    assert_eq!((slow.status, slow.text()), (200, "null".to_owned()));
    // A prefill and two decode steps.
    assert!(latency().await >= 0.15);
    sim.post("/slow_down", &json!({"forward_sleep_time": null})).await;
    assert!(latency().await < 0.15);
    let other = Sim::sglang(&["--scheduler", "vllm"]).await;
    let refused = other.post("/slow_down", &json!({"forward_sleep_time": 0.05})).await;
    assert_eq!(refused.status, 400);
}

#[tokio::test]
async fn released_memory_loses_the_prefix_cache_and_weights_have_a_version() {
    let sim = Sim::sglang(&[]).await;
    let body = json!({"input_ids": vec![7; 40], "sampling_params": {"max_new_tokens": 1}});
    let meta = async || sim.post("/generate", &body).await.json()["meta_info"].clone();
    meta().await;
    assert_eq!(meta().await["cached_tokens"], 39);
    let released = sim.post("/release_memory_occupation", &json!({})).await;
    assert_eq!((released.status, released.text()), (200, "null".to_owned()));
    let resumed = sim.post("/resume_memory_occupation", &json!({"tags": ["kv_cache"]})).await;
    assert_eq!(resumed.status, 200);
    assert_eq!(meta().await["cached_tokens"], 0);
    let answer = sim.post("/update_weight_version", &json!({"new_version": "v2"})).await.json();
    let message = "Weight version updated to v2";
    assert_eq!(answer, json!({"success": true, "message": message, "new_version": "v2"}));
    assert_eq!(meta().await["weight_version"], "v2");
}

#[tokio::test]
async fn errors_of_a_body_name_the_function_of_the_route() {
    let sim = Sim::sglang(&[]).await;
    let one = "{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required', 'input': {'n': 1}}";
    let file = "/sgl-workspace/sglang/python/sglang/srt/entrypoints/http_server.py";
    let text = format!(
        "1 validation error:\n  {one}\n\n  File \"{file}\", line 1860, in openai_v1_completions\n    \
         POST /v1/completions [{one}]"
    );
    let answer = sim.post(COMPLETION, &json!({"n": 1})).await.json();
    let error = json!({"object": "error", "message": text, "type": "Bad Request", "param": null, "code": 400});
    assert_eq!(answer, error);
    let text = async |path: &str, body: Value| {
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}");
        answer.json()["message"].as_str().unwrap().to_owned()
    };
    let role = text(CHAT, json!({"messages": [{"role": "nobody", "content": "x"}]})).await;
    assert!(role.contains("'role' must be one of 'system', 'assistant', 'tool'"), "{role}");
    let tool = text("/slow_down", json!({})).await;
    assert!(tool.starts_with("2 validation errors:\n  {'type': 'is_instance_of'"), "{tool}");
    let unknown =
        sim.post("/generate", &json!({"text": "x", "sampling_params": {"stop": 3}})).await;
    let message =
        "invalid type: integer `3`, expected a value or an array of values for StringOrList";
    assert_eq!(unknown.json(), json!({"error": message}));
}

#[tokio::test]
async fn a_native_stream_reports_a_wrong_value_as_an_event() {
    let sim = Sim::sglang(&[]).await;
    let body = json!({"text": "x", "stream": true, "sampling_params": {"top_p": 0}});
    let answer = sim.post("/generate", &body).await;
    let error = json!({"error": {
        "message": "top_p must be in (0, 1], got 0.",
        "type": "invalid_request_error",
        "code": 400,
        "retryable": false,
    }});
    assert_eq!((answer.status, answer.text()), (200, format!("data: {error}\n\ndata: [DONE]\n\n")));
}

#[tokio::test]
async fn an_incremental_stream_sends_only_new_tokens() {
    let sim = Sim::sglang(&["--incremental-streaming-output"]).await;
    let params = json!({"max_new_tokens": 3, "ignore_eos": true});
    let mut body = json!({"text": "Hello", "return_logprob": true, "sampling_params": params});
    let whole = sim.post("/generate", &body).await.json();
    body["stream"] = true.into();
    let chunks = sim.post("/generate", &body).await.deltas();
    let texts: Vec<&str> = chunks.iter().filter_map(|chunk| chunk["text"].as_str()).collect();
    assert_eq!(texts.concat(), whole["text"].as_str().unwrap());
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["output_ids"], json!([whole["output_ids"][index]]));
        let meta = &chunk["meta_info"];
        assert_eq!(meta["output_token_logprobs"].as_array().unwrap().len(), 1);
        assert_eq!(meta["completion_tokens"], index + 1);
    }
}

#[tokio::test]
async fn the_routes_of_ollama_answer() {
    let sim = Sim::sglang(&[]).await;
    assert_eq!(sim.get("/").await.text(), "\"SGLang is running\"");
    let tags = sim.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["name"], "tiny-llama");
    let mut body =
        json!({"model": "m", "prompt": "Hello", "options": {"num_predict": 3}, "stream": false});
    let answer = sim.post("/api/generate", &body).await.json();
    assert_eq!(
        members(&answer),
        "model created_at response done done_reason context total_duration load_duration \
         prompt_eval_count prompt_eval_duration eval_count eval_duration"
    );
    body["stream"] = true.into();
    let lines = sim.post("/api/generate", &body).await;
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    let last = lines.text().lines().last().map(serde_json::from_str::<Value>).unwrap().unwrap();
    assert_eq!((&last["done"], &last["response"]), (&json!(true), &json!("")));
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 3}, "stream": false});
    let answer = sim.post("/api/chat", &chat).await.json();
    assert_eq!(members(&answer["message"]), "role content images");
}

#[tokio::test]
async fn decisions_are_the_probabilities_of_labels() {
    let sim = Sim::sglang(&[]).await;
    let body = json!({"input": {"sky": "blue"}, "return_prompt_token_ids": true, "questions": [
        {"id": "c", "type": "choice", "question": "Which?", "options": [
            {"name": "red", "description": "like fire"}, {"name": "blue"}]},
        {"id": "s", "type": "score", "question": "How?", "levels": ["low", "high", "most"]},
    ]});
    let answer = sim.post("/v1/decisions", &body).await.json();
    assert_eq!(answer["object"], "decisions", "{answer}");
    let probability =
        |id: &str, name: &str| answer["answers"][id]["probabilities"][name].as_f64().unwrap();
    let likely = if probability("c", "red") >= probability("c", "blue") { "red" } else { "blue" };
    assert_eq!(answer["answers"]["c"]["choice"], likely);
    let level = probability("s", "1") + 2.0 * probability("s", "2");
    assert!((answer["answers"]["s"]["score"].as_f64().unwrap() - level).abs() < 1e-9);
    assert!((probability("c", "red") + probability("c", "blue") - 1.0).abs() < 1e-9);
    let ids = &answer["answers"]["c"]["prompt_token_ids"];
    let text = sim.post("/detokenize", &json!({"tokens": ids})).await.json();
    let asked = "{\"sky\":\"blue\"}\n\nQuestion: Which?\nA: red - like fire\nB: blue\n\
         Answer with the letter of one option only.";
    assert!(text["text"].as_str().unwrap().contains(asked), "{text}");
    let mut unanswerable = body.clone();
    unanswerable["questions"][1] = json!({"id": "y", "type": "yes_no", "question": "Blue?"});
    let refused = sim.post("/v1/decisions", &unanswerable).await.text();
    assert!(refused.contains("the answer label 'yes' is not one distinct token"), "{refused}");
    let mut repeated = body.clone();
    repeated["questions"][1]["id"] = "c".into();
    let refused = sim.post("/v1/decisions", &repeated).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("question id 'c' repeats another question"));
}
