//! `vllm-sim sglang`: errors, information, control and metrics of an SGLang server, from outside.
//!
//! The expected members and messages are those of SGLang 0.5.23 (`srt/entrypoints`), read from its
//! sources.

use serde_json::{Value, json};

use super::sglang_shapes::{CHAT, COMPLETION, hello, members};
use super::sim::{Sim, eventually, post};

#[tokio::test]
async fn errors_have_the_words_and_forms_of_sglang() {
    let sim = Sim::sglang(&["--context-length", "64"]).await;
    let openai = |message: &str| json!({"object": "error", "message": message, "type": "BadRequestError", "param": null, "code": 400});
    let native = |message: &str| json!({"error": {"message": message}});
    let mut tools = hello(1);
    tools["tool_choice"] = "required".into();
    let too_long = "Requested token count exceeds the model's maximum context length of 64 tokens. \
                    You requested a total of 68 tokens: 8 tokens from the input messages and 60 \
                    tokens for the completion. Please reduce the number of tokens in the input \
                    messages or the completion to fit within the limit.";
    for (path, body, error) in [
        (CHAT, json!({"messages": []}), openai("Messages cannot be empty.")),
        (CHAT, tools, openai("Tools cannot be empty if tool choice is set to required.")),
        (
            CHAT,
            hello(65),
            openai(
                "max_completion_tokens is too large: 65.This model supports at most 64 completion tokens.",
            ),
        ),
        (COMPLETION, json!({"prompt": ""}), openai("Prompt cannot be empty")),
        (
            COMPLETION,
            json!({"prompt": "x", "top_p": 2}),
            openai("top_p must be in (0, 1], got 2.0."),
        ),
        (
            COMPLETION,
            json!({"prompt": "x", "model": "tiny-llama:a"}),
            openai(
                "LoRA adapter 'a' was requested, but LoRA is not enabled. Please launch the server \
             with --enable-lora flag and preload adapters using --lora-paths or \
             /load_lora_adapter endpoint.",
            ),
        ),
        (
            "/generate",
            json!({}),
            native("Either text, input_ids or input_embeds should be provided."),
        ),
        ("/generate", json!({"input_ids": []}), native("input_ids cannot be empty.")),
        (
            "/generate",
            json!({"input_ids": vec![5; 64]}),
            native("The input (64 tokens) is longer than the model's context length (64 tokens)."),
        ),
        (
            "/generate",
            json!({"input_ids": vec![5; 8], "sampling_params": {"max_new_tokens": 60}}),
            native(too_long),
        ),
        (
            "/generate",
            json!({"text": "x", "sampling_params": {"top_k": -2}}),
            native("top_k must be -1 (disable) or at least 1, got -2."),
        ),
        (
            "/generate",
            json!({"text": ["x", "y"], "rid": ["a", "a"]}),
            native("Duplicate request IDs detected within the request: ['a']"),
        ),
        (
            "/generate",
            json!({"text": "x", "image_data": "y"}),
            native("image_data is not simulated"),
        ),
        (
            "/generate",
            json!({"text": "x", "routed_dp_rank": 2}),
            native("routed_dp_rank=2 out of range [0, 1)"),
        ),
    ] {
        let answer = sim.post(path, &body).await;
        assert_eq!((answer.status, answer.json()), (400, error), "{path} {body}");
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        // A native stream reports a wrong value in its first event.
        let status = if path == "/generate" { 200 } else { 400 };
        assert_eq!(sim.post(path, &streamed).await.status, status, "{path} {body}");
    }
}

#[tokio::test]
async fn bodies_that_do_not_match_are_a_bad_request() {
    let sim = Sim::sglang(&[]).await;
    for (path, body, field) in [
        (CHAT, json!({}), "messages"),
        (COMPLETION, json!({"prompt": "x", "max_tokens": "many"}), "max_tokens"),
        (COMPLETION, json!({"prompt": "x", "max_tokens": 0}), "max_tokens must be positive"),
        ("/generate", json!({"text": 3}), "text"),
        ("/abort_request", json!({"rid": 3}), "rid"),
        ("/tokenize", json!({}), "Exactly one of 'prompt' or 'messages' must be provided."),
    ] {
        let answer = sim.post(path, &body).await;
        let error = answer.json();
        assert_eq!(members(&error), "object message type param code", "{error}");
        assert_eq!((answer.status, &error["type"]), (400, &json!("Bad Request")), "{error}");
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
}

#[tokio::test]
async fn routes_with_information_answer_as_sglang() {
    let sim = Sim::sglang(&["--context-length", "128"]).await;
    let models = sim.get("/v1/models").await.json();
    let names = "id object created owned_by root parent max_model_len";
    assert_eq!(members(&models["data"][0]), names);
    assert_eq!(
        (&models["data"][0]["owned_by"], &models["data"][0]["max_model_len"]),
        (&json!("sglang"), &json!(128))
    );
    assert_eq!(sim.get("/v1/models/tiny-llama").await.json()["id"], "tiny-llama");
    let missing = sim.get("/v1/models/other/name").await;
    let message = "The model 'other/name' does not exist";
    let error = json!({"error": {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}});
    assert_eq!((missing.status, missing.json()), (404, error));
    for path in ["/model_info", "/get_model_info"] {
        let info = sim.get(path).await.json();
        assert_eq!(
            (&info["served_model_name"], &info["is_generation"]),
            (&json!("tiny-llama"), &json!(true))
        );
    }
    let info = sim.get("/server_info").await.json();
    assert_eq!(
        (&info["version"], &info["context_length"], &info["page_size"]),
        (&json!("0.5.23"), &json!(128), &json!(1))
    );
    assert_eq!(info["max_total_num_tokens"], 262_144);
    assert_eq!(sim.get("/get_server_info").await.json()["kv_events"], Value::Null);
    for path in ["/health", "/health_generate", "/ready", "/ping"] {
        let answer = sim.get(path).await;
        assert_eq!((answer.status, answer.text()), (200, String::new()), "{path}");
    }
}

#[tokio::test]
async fn routes_that_are_not_served_are_unknown() {
    let sim = Sim::sglang(&[]).await;
    for path in
        ["/version", "/v1/realtime", "/set_internal_state", "/inference/v1/generate", "/metrics"]
    {
        let answer = sim.get(path).await;
        assert_eq!(
            (answer.status, answer.text()),
            (404, r#"{"detail":"Not Found"}"#.to_owned()),
            "{path}"
        );
    }
    let answer = sim.get("/generate").await;
    assert_eq!(
        (answer.status, answer.text()),
        (405, r#"{"detail":"Method Not Allowed"}"#.to_owned())
    );
}

#[tokio::test]
async fn an_api_key_guards_all_but_probes_and_metrics() {
    let sim = Sim::sglang(&["--api-key", "secret", "--enable-metrics"]).await;
    for path in ["/model_info", "/v1/models", "/generate", "/unknown"] {
        let answer = sim.get(path).await;
        assert_eq!(
            (answer.status, answer.text()),
            (401, r#"{"error":"Unauthorized"}"#.to_owned()),
            "{path}"
        );
    }
    for path in ["/health", "/health_generate", "/ready", "/metrics"] {
        assert_eq!(sim.get(path).await.status, 200, "{path}");
    }
    let body = json!({"text": "x"});
    let answer = sim.post_with("/generate", &["authorization: Bearer secret"], &body).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn texts_and_conversations_become_token_ids_and_back() {
    let sim = Sim::sglang(&[]).await;
    let one = sim.post("/tokenize", &json!({"prompt": "Hello there"})).await.json();
    assert_eq!(members(&one), "tokens count max_model_len");
    assert_eq!(one["count"], one["tokens"].as_array().unwrap().len());
    let two = sim.post("/v1/tokenize", &json!({"prompt": ["Hello there", "x"]})).await.json();
    assert_eq!((&two["tokens"][0], &two["count"][0]), (&one["tokens"], &one["count"]));
    let text = sim.post("/detokenize", &json!({"tokens": one["tokens"]})).await.json();
    assert_eq!(text, json!({"text": "Hello there"}));
    let texts = sim.post("/v1/detokenize", &json!({"tokens": [one["tokens"]]})).await.json();
    assert_eq!(texts, json!({"text": ["Hello there"]}));
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let count = sim.post("/tokenize", &chat).await.json()["count"].clone();
    assert_eq!(sim.post(CHAT, &hello(1)).await.json()["usage"]["prompt_tokens"], count);
}

/// A server with a request that runs until it is aborted.
pub(crate) async fn busy(flags: &[&str]) -> (Sim, super::wire::Wire<tokio::net::TcpStream>) {
    let slow = ["--time-to-first-token", "10m", "--max-running-requests", "1"];
    let sim = Sim::sglang(&[&slow, flags].concat()).await;
    let body = json!({"text": "x", "rid": "long"}).to_string();
    let mut wire = sim.connect().await;
    wire.send(&post("/generate", &[], body.as_bytes())).await;
    assert!(runs(&sim, 1).await);
    (sim, wire)
}

pub(crate) async fn runs(sim: &Sim, requests: u64) -> bool {
    let load = async || sim.get("/v1/loads").await.json()["loads"][0].clone();
    eventually(async || load().await["num_running_reqs"] == requests).await
}

async fn one_waits(sim: &Sim) -> bool {
    let load = async || sim.get("/v1/loads").await.json()["loads"][0].clone();
    eventually(async || load().await["num_waiting_reqs"] == 1).await
}

#[tokio::test]
async fn an_aborted_request_ends_with_the_reason_abort() {
    let (sim, mut long) = busy(&[]).await;
    let answer = sim.post("/flush_cache", &json!({})).await;
    assert_eq!((answer.status, answer.text()), (400, "Flush cache failed.\n".to_owned()));
    assert_eq!(sim.post("/abort_request", &json!({"rid": "other"})).await.status, 200);
    assert!(runs(&sim, 1).await);
    let answer = sim.post("/abort_request", &json!({"rid": "long"})).await;
    assert_eq!((answer.status, answer.text()), (200, String::new()));
    let reason = long.answer().await.json()["meta_info"]["finish_reason"].clone();
    assert_eq!(reason["type"], "abort");
    assert!(runs(&sim, 0).await);
    let answer = sim.get("/flush_cache").await;
    assert!(answer.status == 200 && answer.text().starts_with("Cache flushed.\n"), "{answer:?}");
}

#[tokio::test]
async fn requests_wait_while_generation_is_paused() {
    let sim = Sim::sglang(&[]).await;
    let paused = sim.post("/pause_generation", &json!({})).await;
    let done = json!({"message": "Generation paused successfully.", "status": "ok"});
    assert_eq!((paused.status, paused.json()), (200, done));
    assert_eq!(sim.get("/ready").await.status, 503);
    let mut wire = sim.connect().await;
    wire.send(&post("/generate", &[], json!({"text": "x"}).to_string().as_bytes())).await;
    assert!(one_waits(&sim).await);
    assert_eq!(sim.post("/continue_generation", &json!({})).await.status, 200);
    assert_eq!(wire.answer().await.status, 200);
}

#[tokio::test]
async fn a_full_queue_is_refused_in_the_words_of_sglang() {
    let (sim, _long) = busy(&["--max-queued-requests", "1"]).await;
    let mut waiting = sim.connect().await;
    waiting.send(&post("/generate", &[], json!({"text": "x"}).to_string().as_bytes())).await;
    assert!(one_waits(&sim).await);
    for path in ["/generate", COMPLETION] {
        let answer = sim.post(path, &json!({"text": "y", "prompt": "y"})).await;
        let message = "The request queue is full.";
        let error = json!({"object": "error", "message": message, "type": "503", "param": null, "code": 503});
        assert_eq!((answer.status, answer.json()), (503, error), "{path}");
    }
}

#[tokio::test]
async fn loads_show_ranks_and_sections() {
    let sim = Sim::sglang(&["--dp-size", "2", "--max-total-tokens", "1000"]).await;
    let loads = sim.get("/v1/loads").await.json();
    assert_eq!(members(&loads), "timestamp version accelerator num_accelerators loads");
    assert_eq!(loads["loads"].as_array().unwrap().len(), 2);
    assert_eq!(loads["loads"][1]["max_total_num_tokens"], 1000);
    let core = sim.get("/v1/loads?include=core&dp_rank=1").await.json();
    assert_eq!(core["loads"].as_array().unwrap().len(), 1);
    assert_eq!((&core["loads"][0]["dp_rank"], core["loads"][0].get("queues")), (&json!(1), None));
    assert_eq!(sim.get("/v1/loads?dp_rank=7").await.json()["loads"], json!([]));
    assert_eq!(sim.get("/v1/loads?include=other").await.status, 400);
    let text = sim.get("/v1/loads?format=prometheus").await.text();
    assert!(
        text.contains(
            "# TYPE sglang_num_running_reqs gauge\nsglang_num_running_reqs{dp_rank=\"0\"} 0\n"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn adapters_are_loaded_named_and_unloaded() {
    let folder = std::env::temp_dir().join(format!("vllm-sim-sglang-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("adapter_config.json"), "{\"r\": 8}").unwrap();
    let sim = Sim::sglang(&["--enable-lora"]).await;
    let load = json!({"lora_name": "a", "lora_path": folder});
    let answer = sim.post("/load_lora_adapter", &load).await;
    assert_eq!((answer.status, &answer.json()["loaded_adapters"]), (200, &json!({"a": folder})));
    let again = sim.post("/load_lora_adapter", &load).await;
    let message = "Failed to load LoRA adapter a because it is already loaded";
    assert_eq!((again.status, &again.json()["error_message"]), (400, &json!(message)));
    assert_eq!(sim.get("/v1/models").await.json()["data"][1]["parent"], "tiny-llama");
    let body = json!({"text": "x", "lora_path": "a"});
    assert_eq!(sim.post("/generate", &body).await.status, 200);
    let body = json!({"prompt": "x", "model": "tiny-llama:b"});
    let missing = sim.post(COMPLETION, &body).await.json();
    let message =
        "Got LoRA adapter that has never been loaded: b\nAll loaded adapters: dict_keys(['a']).";
    assert_eq!(missing["message"], message);
    assert_eq!(sim.post("/unload_lora_adapter", &json!({"lora_name": "a"})).await.status, 200);
    assert_eq!(sim.post("/unload_lora_adapter", &json!({"lora_name": "a"})).await.status, 400);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn metrics_are_those_of_sglang() {
    let sim = Sim::sglang(&["--enable-metrics"]).await;
    let body = json!({"text": "one two three four", "sampling_params": {"max_new_tokens": 5, "ignore_eos": true}});
    sim.post("/generate", &body).await;
    let body = json!({"prompt": "one two three four", "max_tokens": 2, "ignore_eos": true, "stream": true});
    sim.post(COMPLETION, &body).await;
    let prompt = sim.post("/tokenize", &json!({"prompt": "one two three four"})).await.json();
    let prompt = prompt["count"].as_f64().unwrap();
    let shown = async |name: &str| sim.metric(&format!("sglang:{name}")).await;
    assert!(sim.shows("sglang:num_requests_total", 2.0).await);
    for (name, value) in [
        ("prompt_tokens_total", 2.0 * prompt),
        ("generation_tokens_total", 7.0),
        ("cached_tokens_total", prompt - 1.0),
        ("time_to_first_token_seconds_count", 2.0),
        ("inter_token_latency_seconds_count", 5.0),
        ("e2e_request_latency_seconds_count", 2.0),
        ("num_running_reqs", 0.0),
        ("num_queue_reqs", 0.0),
        ("max_total_num_tokens", 262_144.0),
    ] {
        assert_eq!(shown(name).await, value, "{name}");
    }
    assert!((shown("cache_hit_rate").await - (prompt - 1.0) / prompt).abs() < 1e-9);
    let page = sim.get("/metrics").await.text();
    let scheduler = r#"{engine_type="unified",model_name="tiny-llama",moe_ep_rank="0",pp_rank="0",tp_rank="0"}"#;
    assert!(page.contains(&format!("sglang:num_running_reqs{scheduler} 0.0\n")), "{page}");
    let tokenizer = r#"{engine_type="unified",is_streaming="true",model_name="tiny-llama"}"#;
    assert!(page.contains(&format!("sglang:num_requests_total{tokenizer} 1.0\n")), "{page}");
    assert!(!page.contains("vllm:"), "{page}");
    let all = r#"e2e_request_latency_seconds_bucket{engine_type="unified",is_streaming="true",le="+Inf",model_name="tiny-llama"} 1.0"#;
    assert!(page.contains(all), "{page}");
}

/// A picker reads the size of the cache of a pod without requests.
#[tokio::test]
async fn the_size_of_the_cache_is_shown_from_the_start() {
    let sim = Sim::sglang(&["--enable-metrics", "--dp-size", "2", "--page-size", "4"]).await;
    assert_eq!(sim.metric("sglang:max_total_num_tokens").await, 2.0 * 262_144.0);
    assert_eq!(sim.metric("sglang:num_pages").await, 2.0 * 65_536.0);
}

/// SGLang waits for its requests after SIGTERM, and takes new ones meanwhile.
#[tokio::test]
async fn shutdown_waits_for_all_requests() {
    let sim = Sim::sglang(&["--inter-token-latency", "100ms"]).await;
    let body = |tokens: u32| {
        let sampling = json!({"max_new_tokens": tokens, "ignore_eos": true});
        let body = json!({"text": "x", "sampling_params": sampling});
        post("/generate", &[], body.to_string().as_bytes())
    };
    let mut running = sim.connect().await;
    running.send(&body(20)).await;
    assert!(runs(&sim, 1).await);
    let mut probe = sim.connect().await;
    let stop = tokio::spawn(sim.server.shut_down_server());
    let fails = eventually(async || {
        probe.send(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await;
        probe.answer().await.status == 503
    });
    assert!(fails.await, "it is still healthy");
    probe.send(&body(1)).await;
    assert_eq!(probe.answer().await.status, 200);
    let reason = running.answer().await.json()["meta_info"]["finish_reason"].clone();
    assert_eq!(reason["type"], "length");
    stop.await.unwrap();
}

#[tokio::test]
async fn aborted_requests_are_counted() {
    let (sim, mut long) = busy(&["--enable-metrics"]).await;
    assert_eq!(sim.metric("sglang:num_running_reqs").await, 1.0);
    assert!(sim.metric("sglang:num_used_tokens").await > 0.0);
    sim.post("/abort_request", &json!({"abort_all": true})).await;
    assert_eq!(long.answer().await.status, 200);
    assert!(sim.shows("sglang:num_aborted_requests_total", 1.0).await);
}

#[tokio::test]
async fn faults_and_delays_of_vllm_sim_act_on_the_routes_of_sglang() {
    let failing = ["--failure-injection-rate", "100", "--failure-types", "server_error"];
    let sim = Sim::sglang(&failing).await;
    for (path, body) in [("/generate", json!({"text": "x"})), (CHAT, hello(1))] {
        let answer = sim.post(path, &body).await;
        assert_eq!((answer.status, &answer.json()["object"]), (503, &json!("error")), "{path}");
    }
    let sim = Sim::sglang(&["--time-to-first-token", "30ms"]).await;
    let latency = sim.post("/generate", &json!({"text": "x"})).await.json();
    assert!(latency["meta_info"]["e2e_latency"].as_f64().unwrap() >= 0.03, "{latency}");
}
