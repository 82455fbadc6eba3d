//! `vllm-sim sglang`: requests by id, pauses, flushes of the cache and health checks, from outside.
//!
//! The expected texts are those of SGLang 0.5.23 (`managers/tokenizer_manager.py`,
//! `managers/scheduler.py`, `entrypoints/http_server.py`), read from its sources.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::sglang::{busy, runs};
use super::sglang_shapes::{CHAT, hello, members};
use super::sim::{Sim, eventually, post};
use super::wire::Wire;

/// Sends a request without waiting for its response.
async fn send(sim: &Sim, path: &str, body: &Value) -> Wire<TcpStream> {
    let mut wire = sim.connect().await;
    wire.send(&post(path, &[], body.to_string().as_bytes())).await;
    wire
}

/// A request that generates for a long time, unless it is aborted.
fn endless(rid: &str) -> Value {
    json!({"text": "x", "rid": rid, "sampling_params": {"max_new_tokens": 2000, "ignore_eos": true}})
}

#[tokio::test]
async fn the_id_of_a_running_request_is_a_duplicate() {
    let (sim, _long) = busy(&[]).await;
    let message = "Duplicate request ID detected: long";
    let again = json!({"text": "x", "rid": "long"});
    let native = sim.post("/generate", &again).await;
    assert_eq!((native.status, native.json()), (400, json!({"error": {"message": message}})));
    let batch = json!({"text": ["x", "y"], "rid": ["other", "long"]});
    assert_eq!(sim.post("/generate", &batch).await.json()["error"]["message"], message);
    let mut chat = hello(1);
    chat["rid"] = "long".into();
    let refused = sim.post(CHAT, &chat).await;
    assert_eq!((refused.status, &refused.json()["message"]), (400, &json!(message)));
    assert_eq!(sim.post("/abort_request", &json!({"rid": "long"})).await.status, 200);
    assert!(runs(&sim, 0).await);
    let _again = send(&sim, "/generate", &again).await;
    assert!(runs(&sim, 1).await);
}

#[tokio::test]
async fn an_abort_ends_all_requests_whose_id_begins_alike() {
    let sim = Sim::sglang(&["--inter-token-latency", "5ms"]).await;
    let mut wires = Vec::new();
    for rid in ["a", "ab", "ba"] {
        wires.push(send(&sim, "/generate", &endless(rid)).await);
    }
    assert!(runs(&sim, 3).await);
    // No request has this id.
    assert_eq!(sim.post("/abort_request", &json!({"rid": "b"})).await.status, 200);
    assert!(runs(&sim, 3).await);
    assert_eq!(sim.post("/abort_request", &json!({"rid": "a"})).await.status, 200);
    assert!(runs(&sim, 1).await);
    for wire in &mut wires[..2] {
        let reason = wire.answer().await.json()["meta_info"]["finish_reason"]["type"].clone();
        assert_eq!(reason, "abort");
    }
}

#[tokio::test]
async fn a_flush_with_a_timeout_waits_until_requests_have_ended() {
    let (sim, _long) = busy(&[]).await;
    let late = sim.get("/flush_cache?timeout=0.01").await;
    let text = "Timed out waiting for idle state.";
    assert_eq!((late.status, late.text()), (400, text.to_owned()));
    let mut flush = sim.connect().await;
    flush.send(b"GET /flush_cache?timeout=600 HTTP/1.1\r\nhost: sim\r\n\r\n").await;
    assert_eq!(sim.post("/abort_request", &json!({"abort_all": true})).await.status, 200);
    let flushed = flush.answer().await;
    assert!(flushed.status == 200 && flushed.text().starts_with("Cache flushed."), "{flushed:?}");
}

#[tokio::test]
async fn a_pause_that_retracts_frees_the_cache() {
    let sim = Sim::sglang(&["--inter-token-latency", "5ms"]).await;
    let body = json!({"text": "x", "sampling_params": {"max_new_tokens": 40, "ignore_eos": true}});
    let mut request = send(&sim, "/generate", &body).await;
    assert!(runs(&sim, 1).await);
    let paused = sim.post("/pause_generation", &json!({"mode": "retract"})).await;
    assert_eq!(paused.status, 200);
    // The running pass ends first.
    assert_eq!(sim.get("/flush_cache?timeout=600").await.status, 200);
    let load = sim.get("/v1/loads").await.json()["loads"][0].clone();
    let counts = ["num_running_reqs", "num_waiting_reqs", "num_used_tokens"];
    assert_eq!(counts.map(|name| load[name].as_u64()), [Some(0), Some(1), Some(0)], "{load}");
    assert_eq!(sim.post("/continue_generation", &json!({})).await.status, 200);
    let meta = request.answer().await.json()["meta_info"].clone();
    assert_eq!(
        (&meta["completion_tokens"], &meta["finish_reason"]["type"]),
        (&json!(40), &json!("length"))
    );
}

#[tokio::test]
async fn requests_that_a_pause_holds_back_do_not_prevent_a_flush() {
    let sim = Sim::sglang(&[]).await;
    sim.post("/pause_generation", &json!({})).await;
    let mut request = send(&sim, "/generate", &json!({"text": "x"})).await;
    let waits = async || sim.get("/v1/loads").await.json()["loads"][0]["num_waiting_reqs"] == 1;
    assert!(eventually(waits).await);
    assert_eq!(sim.get("/flush_cache").await.status, 200);
    sim.post("/continue_generation", &json!({})).await;
    assert_eq!(request.answer().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_health_check_fails_while_generation_is_paused() {
    let sim = Sim::sglang(&[]).await;
    // A paused clock ends the waits of `Wire` as soon as the server waits.
    let status = async |path: &str| {
        let mut stream = TcpStream::connect(sim.address()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).unwrap()
    };
    sim.post("/pause_generation", &json!({})).await;
    assert_eq!((status("/ping").await, status("/ready").await), (200, 503));
    // After 20 s, which this clock skips.
    assert_eq!((status("/health").await, status("/ping").await), (503, 503));
    sim.post("/continue_generation", &json!({})).await;
    assert_eq!((status("/ping").await, status("/ready").await), (503, 503));
    assert_eq!((status("/health_generate").await, status("/ping").await), (200, 200));
    assert_eq!(status("/ready").await, 200);
}

#[tokio::test]
async fn aborts_are_counted_by_command_and_have_no_time_per_output_token() {
    let sim = Sim::sglang(&["--enable-metrics", "--inter-token-latency", "5ms"]).await;
    let mut wires = Vec::new();
    for rid in ["a", "ab", "c"] {
        wires.push(send(&sim, "/generate", &endless(rid)).await);
    }
    assert!(runs(&sim, 3).await);
    let shown = async |name: &str| sim.metric(&format!("sglang:{name}")).await;
    assert!(eventually(async || shown("inter_token_latency_seconds_count").await >= 9.0).await);
    sim.post("/abort_request", &json!({"rid": "unknown"})).await;
    assert_eq!(shown("num_aborted_requests_total").await, 0.0);
    sim.post("/abort_request", &json!({"rid": "a"})).await;
    assert_eq!(shown("num_aborted_requests_total").await, 1.0);
    sim.post("/abort_request", &json!({"abort_all": true})).await;
    assert_eq!(shown("num_aborted_requests_total").await, 2.0);
    for wire in &mut wires {
        assert_eq!(wire.answer().await.status, 200);
    }
    assert!(sim.shows("sglang:num_requests_total", 3.0).await);
    assert_eq!(shown("request_time_per_output_token_seconds_count").await, 0.0);
    // The end of a connection aborts its request.
    let wire = send(&sim, "/generate", &endless("d")).await;
    assert!(runs(&sim, 1).await);
    drop(wire);
    assert!(sim.shows("sglang:num_aborted_requests_total", 3.0).await);
}

#[tokio::test]
async fn several_ranks_load_no_adapters() {
    let sim = Sim::sglang(&["--dp-size", "2", "--enable-lora"]).await;
    for path in ["/load_lora_adapter", "/unload_lora_adapter"] {
        let answer = sim.post(path, &json!({"lora_name": "a", "lora_path": "/x"})).await;
        assert_eq!((answer.status, answer.text()), (500, "Internal Server Error".to_owned()));
    }
}

#[tokio::test]
async fn loads_of_a_pair_show_its_mode() {
    let flags = ["--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake"];
    let sim = Sim::sglang(&flags).await;
    let load = sim.get("/v1/loads").await.json()["loads"][0].clone();
    assert_eq!(load["disaggregation"]["mode"], "decode");
}

#[tokio::test]
async fn a_server_without_hierarchical_cache_refuses_its_storage() {
    let sim = Sim::sglang(&[]).await;
    let error = "This endpoint requires admin API key, but this server was started without one \
                 (admin-api-key). Restart with --admin-api-key to enable.";
    for path in ["GET", "DELETE"] {
        let request = format!("{path} /hicache/storage-backend HTTP/1.1\r\nhost: sim\r\n\r\n");
        let answer = sim.ask(request).await;
        assert_eq!((answer.status, answer.json()), (400, json!({"error": error})), "{path}");
    }
    let answer = sim.poke("/hicache/storage-backend/clear").await;
    let text = "Hierarchical cache storage backend cleared.\n";
    assert_eq!((answer.status, answer.text()), (400, text.to_owned()));
    let layout = sim.get("/get_hicache_l3_cache_layout").await.json();
    assert_eq!((&layout["enabled"], &layout["page_size"]), (&json!(false), &json!(1)));

    let sim = Sim::sglang(&["--admin-api-key", "root"]).await;
    let ask = async |method: &str, body: &str| {
        let length = body.len();
        sim.ask(format!(
            "{method} /hicache/storage-backend HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer root\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await
    };
    assert_eq!(ask("GET", "").await.json()["hicache_storage_backend"], Value::Null);
    for (method, verb) in [("PUT", "attach"), ("DELETE", "detach")] {
        let answer = ask(method, r#"{"hicache_storage_backend": "file"}"#).await;
        let text = format!(
            "Failed to {verb} HiCache storage backend.\nHierarchical cache is not enabled.\n"
        );
        assert_eq!((answer.status, answer.text()), (400, text));
    }
}

#[tokio::test]
async fn routes_that_change_the_server_need_the_admin_key() {
    let sim = Sim::sglang(&["--api-key", "client", "--admin-api-key", "root"]).await;
    let flush = async |key: &str| {
        let header = format!("authorization: Bearer {key}");
        sim.post_with("/flush_cache", &[&header], &json!({})).await
    };
    assert_eq!(flush("client").await.text(), r#"{"error":"Unauthorized"}"#);
    assert_eq!((flush("client").await.status, flush("root").await.status), (401, 200));
    let header = "authorization: Bearer client";
    assert_eq!(sim.post_with("/generate", &[header], &json!({"text": "x"})).await.status, 200);
    // Without API key, other routes are open.
    let sim = Sim::sglang(&["--admin-api-key", "root"]).await;
    assert_eq!(sim.post("/generate", &json!({"text": "x"})).await.status, 200);
    assert_eq!(sim.poke("/pause_generation").await.status, 401);
}

#[tokio::test]
async fn logging_and_weights_are_checked_without_effect() {
    let sim = Sim::sglang(&[]).await;
    for (body, status) in [
        (json!({}), 200),
        (json!({"log_level": "debug", "log_requests_level": 3}), 200),
        (json!({"log_level": "loud"}), 500),
        (json!({"log_requests_level": 4}), 500),
        (json!({"log_requests": "maybe"}), 400),
    ] {
        assert_eq!(sim.post("/configure_logging", &body).await.status, status, "{body}");
    }
    for (action, status, message) in [
        ("snapshot", 200, "Success."),
        ("compare", 200, "Success."),
        ("checksum", 400, "action checksum is not simulated"),
        ("other", 400, "Unsupported action='other'"),
    ] {
        let answer = sim.post("/weights_checker", &json!({"action": action})).await;
        let body = json!({"success": status == 200, "message": message});
        assert_eq!((answer.status, answer.json()), (status, body));
    }
    assert_eq!(sim.get("/weights_checker").await.status, 400);
}

#[tokio::test]
async fn a_text_model_transcribes_no_speech() {
    let sim = Sim::sglang(&[]).await;
    let ask = async |fields: &[(&str, &str)]| {
        let mut body = String::new();
        for (name, value) in fields {
            let file = if *name == "file" { "; filename=\"a.wav\"" } else { "" };
            body += &format!(
                "--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n"
            );
        }
        body += "--b--\r\n";
        let length = body.len();
        let head = format!(
            "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: sim\r\ncontent-length: {length}\r\n\
             content-type: multipart/form-data; boundary=b\r\n\r\n"
        );
        sim.ask(head + &body).await
    };
    let answer = ask(&[("file", "RIFF"), ("language", "en")]).await;
    let message = "Internal server error: Unexpected keyword argument 'language'";
    assert_eq!((answer.status, &answer.json()["message"]), (500, &json!(message)));
    let answer = ask(&[("file", "RIFF"), ("response_format", "srt")]).await;
    let message = "Only 'json', 'text', and 'verbose_json' formats supported";
    assert_eq!((answer.status, answer.json()), (400, json!({"error": {"message": message}})));
    let message = ask(&[("model", "x")]).await.json()["message"].to_string();
    let missing =
        "{'type': 'missing', 'loc': ('body', 'file'), 'msg': 'Field required', 'input': None}";
    assert!(message.contains(missing), "{message}");
}

#[tokio::test]
async fn questions_about_a_state_are_answered_by_the_probabilities_of_labels() {
    let sim = Sim::sglang(&[]).await;
    let mut body = json!({"model": "other", "state": "The sky is blue.", "questions": {
        "c": {"type": "choice", "criteria": {"red": null, "blue": "cold"}},
        "s": {"type": "score", "instructions": "How blue?", "criteria": ["low", ["high"]]},
    }});
    let answer = sim.post("/v1/systemone", &body).await.json();
    assert_eq!(members(&answer), "model answers usage");
    assert_eq!(
        (&answer["model"], &answer["usage"]["output_tokens"]),
        (&json!("tiny-llama"), &json!(0))
    );
    let answers = &answer["answers"];
    assert_eq!(members(answers), "c s");
    assert_eq!(members(&answers["c"]), "type choice confidence probabilities x_label_mass");
    assert_eq!(members(&answers["c"]["probabilities"]), "red blue");
    assert_eq!(answers["s"]["legend"], json!({"0": "low", "1": ["high"]}));
    body["questions"] = json!({"n": {"type": "noul", "instructions": "Is it blue?"}});
    let unanswerable = sim.post("/v1/systemone", &body).await;
    let text = unanswerable.text();
    assert!(
        text.contains("question 'n': the answer label 'yes' is not one distinct token"),
        "{text}"
    );
    body["questions"]["n"] = json!({"type": "noul"});
    let refused = sim.post("/v1/systemone", &body).await;
    let message = "Value error, a noul question needs instructions or a true or false description \
                   to decide on";
    let location = ["body", "questions", "n", "noul"];
    let error =
        json!({"type": "value_error", "loc": location, "msg": message, "ctx": {"error": {}}});
    assert_eq!((refused.status, refused.json()), (422, json!({"detail": [error]})));
}

#[tokio::test]
async fn lists_of_token_ids_are_text_beside_a_text() {
    let sim = Sim::sglang(&[]).await;
    let scored = async |items: Value| {
        let body = json!({"query": "q", "items": items, "label_token_ids": [5, 6]});
        sim.post("/v1/score", &body).await.json()["scores"].clone()
    };
    assert_eq!(scored(json!([[5, 6]])).await, scored(json!(["[5, 6]"])).await);
}

#[tokio::test]
async fn a_message_without_content_lacks_it_in_responses() {
    let sim = Sim::sglang(&[]).await;
    let body = json!({"model": "tiny-llama", "input": [{"role": "user", "content": null}]});
    let text = sim.post("/v1/responses", &body).await.text();
    assert!(text.contains("ChatCompletionMessageUserParam].content\\n  Field required"), "{text}");
}

#[tokio::test]
async fn members_that_a_tool_lacks_follow_in_the_prompt() {
    let sim = Sim::sglang(&[]).await;
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    let tools = json!([{"type": "function", "function": function}]);
    let messages = json!([{"role": "user", "content": "x"}]);
    let body = json!({"messages": messages, "tools": tools});
    let tokens = sim.post("/tokenize", &body).await.json()["tokens"].clone();
    let text = sim.post("/detokenize", &json!({"tokens": tokens})).await.json()["text"].to_string();
    let written =
        r#"{\"name\": \"f\", \"parameters\": {\"type\": \"object\"}, \"description\": null}"#;
    assert!(text.contains(written), "{text}");
}
