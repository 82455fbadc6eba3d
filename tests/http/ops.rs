//! Operators' routes over a real server: what they answer, what gates them, what they do.

use serde_json::{Value, json};
use vllm_sim_config::{CliMode, LoadedConfig};

use super::sim::Sim;
use super::wire::Answer;

/// vLLM's command line.
async fn vllm(flags: &[&str]) -> Sim {
    Sim::start(CliMode::Vllm, &[&["--model", "m"], flags].concat()).await
}

/// The simulator's own command line.
async fn plain(flags: &[&str]) -> Sim {
    Sim::start(CliMode::Llmd, &[&["--model", "m"], flags].concat()).await
}

async fn post_json(sim: &Sim, path: &str, body: Value) -> Value {
    let answer = sim.post(path, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn post(sim: &Sim, path: &str, body: Value) -> (u16, String) {
    status_and_text(&sim.post(path, &body).await)
}

async fn poke(sim: &Sim, path: &str) -> (u16, String) {
    status_and_text(&sim.poke(path).await)
}

async fn get(sim: &Sim, path: &str) -> (u16, String) {
    status_and_text(&sim.get(path).await)
}

fn status_and_text(answer: &Answer) -> (u16, String) {
    (answer.status, answer.text())
}

fn completion(max: u32) -> Value {
    json!({"prompt": "one two", "max_tokens": max, "ignore_eos": true})
}

const OK: u16 = 200;

#[tokio::test]
async fn optional_routes_are_disabled_by_default() {
    let sim = vllm(&[]).await;
    for path in [
        "/sleep",
        "/pause",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/embeddings",
        "/admin/config",
        "/abort_requests",
    ] {
        let (status, body) = post(&sim, path, json!({})).await;
        assert_eq!((status, body.as_str()), (404, r#"{"detail":"Not Found"}"#), "{path}");
    }
    let (status, _) = post(&sim, "/inference/v1/generate", json!({})).await;
    assert_eq!(status, 403);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn paused_server_rejects_then_resumes() {
    let sim = vllm(&["--dev-mode"]).await;
    assert_eq!(poke(&sim, "/pause").await, (OK, r#"{"status":"paused"}"#.into()));
    let (status, body) = post(&sim, "/v1/completions", completion(2)).await;
    assert_eq!(status, 503);
    assert!(body.contains("Generation is paused. Please retry after it resumes."), "{body}");
    assert_eq!(get(&sim, "/health").await.0, OK);
    poke(&sim, "/resume").await;
    assert_eq!(get(&sim, "/is_paused").await.1, r#"{"is_paused":false}"#);
    assert_eq!(post(&sim, "/v1/completions", completion(2)).await.0, OK);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn sleeping_server_queues_until_wake_up() {
    let sim = vllm(&["--dev-mode"]).await;
    assert_eq!(
        poke(&sim, "/sleep?level=1").await,
        (OK, r#"{"status":"sleeping","level":1}"#.into())
    );
    assert_eq!(get(&sim, "/is_sleeping").await.1, r#"{"is_sleeping":true}"#);
    let asked = post(&sim, "/v1/completions", completion(2));
    let woken = async {
        // The request is in the queue before anything wakes.
        while sim.server.app_state().service().in_flight_sequences() == 0 {
            tokio::task::yield_now().await;
        }
        let partly = poke(&sim, "/wake_up?tags=weights").await.1;
        assert_eq!(partly, r#"{"status":"sleeping","tags":["weights"]}"#);
        poke(&sim, "/wake_up").await.1
    };
    let ((status, _), woken) = tokio::join!(asked, woken);
    assert_eq!((status, woken.as_str()), (OK, r#"{"status":"awake","tags":null}"#));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn bad_query_values_name_the_parameter() {
    let sim = vllm(&["--dev-mode"]).await;
    let (status, body) = poke(&sim, "/sleep?level=deep").await;
    assert_eq!(status, 400);
    assert!(body.contains(r#""param":"query.level""#), "{body}");
    sim.server.shut_down_server().await;
}

/// As a 0.32 server was recorded (`tests/fixtures/errors/recorded.jsonl`).
#[tokio::test]
async fn operator_requests_without_required_fields_are_rejected() {
    let sim = vllm(&["--dev-mode"]).await;
    for (path, message) in [
        ("/collective_rpc", "Missing 'method' in request body"),
        ("/scale_elastic_ep", "new_data_parallel_size is required"),
    ] {
        let (status, body) = post(&sim, path, json!({})).await;
        let error = json!({"message": message, "type": "Bad Request", "param": null, "code": 400});
        assert_eq!(status, 400);
        assert_eq!(body, json!({"error": error}).to_string());
    }
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn aborted_requests_end_with_what_they_have() {
    let sim = vllm(&["--dev-mode", "--inter-token-latency", "10s"]).await;
    let asked = post(&sim, "/v1/completions", completion(50));
    let aborted = async {
        while sim.server.app_state().service().in_flight_sequences() == 0 {
            tokio::task::yield_now().await;
        }
        poke(&sim, "/abort_requests").await.1
    };
    let ((status, body), aborted) = tokio::join!(asked, aborted);
    assert_eq!(aborted, r#"{"status":"aborted","aborted":1}"#);
    assert_eq!(status, OK);
    assert!(body.contains(r#""finish_reason":"abort""#), "{body}");
    sim.server.shut_down_server().await;
}

/// vLLM says how many ids were named, or how many sequences and parallel requests it tracked.
#[tokio::test]
async fn aborted_requests_are_counted_as_vllm_tracks_them() {
    let sim = vllm(&["--dev-mode", "--inter-token-latency", "10s"]).await;
    let named = post(&sim, "/abort_requests", json!({"request_ids": ["a", "b", "a"]})).await;
    assert_eq!(named.1, r#"{"status":"aborted","aborted":3}"#);
    let nothing = poke(&sim, "/abort_requests").await.1;
    assert_eq!(nothing, r#"{"status":"aborted","aborted":0}"#);
    let mut body = completion(50);
    body["n"] = 3.into();
    let asked = post(&sim, "/v1/completions", body);
    let aborted = async {
        while sim.server.app_state().service().in_flight_sequences() == 0 {
            tokio::task::yield_now().await;
        }
        poke(&sim, "/abort_requests").await.1
    };
    let (_, aborted) = tokio::join!(asked, aborted);
    assert_eq!(aborted, r#"{"status":"aborted","aborted":4}"#);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn simulator_mode_loads_adapter_from_any_path() {
    let sim = plain(&[]).await;
    let load = json!({"lora_name": "a", "lora_path": "nowhere"});
    assert_eq!(
        post(&sim, "/v1/load_lora_adapter", load.clone()).await,
        (OK, "Success: LoRA adapter 'a' added successfully.".into())
    );
    let again = post(&sim, "/v1/load_lora_adapter", load).await;
    assert_eq!(again.0, 400);
    let body = json!({"model": "a", "prompt": "x", "max_tokens": 1});
    assert_eq!(post_json(&sim, "/v1/completions", body).await["model"], "a");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn llmd_lora_routes_return_empty_body() {
    let sim = plain(&["--compat", "llm-d"]).await;
    let name = json!({"lora_name": "a", "lora_path": "p"});
    for path in ["load", "load", "unload", "unload"] {
        let path = format!("/v1/{path}_lora_adapter");
        assert_eq!(post(&sim, &path, name.clone()).await, (OK, String::new()));
    }
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn generate_route_takes_and_returns_token_ids() {
    let sim = vllm(&["--enable-scale-out"]).await;
    let rendered =
        post_json(&sim, "/v1/completions/render", json!({"prompt": "hi there", "max_tokens": 3}))
            .await;
    let mut request = rendered[0].clone();
    request["sampling_params"]["ignore_eos"] = true.into();
    let reply = post_json(&sim, "/inference/v1/generate", request).await;
    let ids = reply["choices"][0]["token_ids"].as_array().unwrap();
    assert_eq!((ids.len(), &reply["output_mode"]), (3, &json!("tokens")));
    let body = json!({"generate_responses": [reply]});
    let text = post_json(&sim, "/v1/completions/derender", body).await;
    assert_eq!(text["object"], "text_completion");
    assert_eq!(text["usage"]["completion_tokens"], 3);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn openapi_schema_lists_served_routes() {
    let sim = vllm(&[]).await;
    let schema: Value = serde_json::from_str(&get(&sim, "/openapi.json").await.1).unwrap();
    let paths = schema["paths"].as_object().unwrap();
    assert!(paths.contains_key("/v1/chat/completions"));
    assert!(!paths.contains_key("/sleep") && !paths.contains_key("/v1/embeddings"));
    assert_eq!(get(&sim, "/docs").await.0, OK);
    sim.server.shut_down_server().await;
    let bare = vllm(&["--disable-fastapi-docs"]).await;
    assert_eq!(get(&bare, "/docs").await.0, 404);
    bare.server.shut_down_server().await;
}

#[tokio::test]
async fn model_task_selects_routes() {
    let sim = vllm(&["--task", "embed"]).await;
    let body = json!({"input": [[531, 1], [2]], "encoding_format": "float"});
    let reply = post_json(&sim, "/v1/embeddings", body).await;
    assert_eq!(reply["data"][1]["object"], "embedding");
    assert_eq!(reply["usage"]["prompt_tokens"], 3);
    let (status, _) = post(&sim, "/v1/completions", completion(1)).await;
    assert_eq!(status, 404);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn llmd_mode_serves_embeddings_and_generation() {
    let sim = plain(&[]).await;
    let body = json!({"input": [531], "dimensions": 2});
    let reply = post_json(&sim, "/v1/embeddings", body).await;
    let expected = json!([2.0 * 531.0 / 1024.0 - 1.0, 2.0 * 19.0 / 256.0 - 1.0]);
    assert_eq!(reply["data"][0]["embedding"], expected);
    let body = json!({"query": "red", "documents": ["blue", "red"], "top_n": 1});
    let ranked = post_json(&sim, "/v1/rerank", body).await;
    assert_eq!(ranked["results"][0]["index"], 1);
    let body = json!({"text_1": "a", "text_2": ["a", "b"]});
    let scored = post_json(&sim, "/score", body).await;
    assert_eq!(scored["data"].as_array().unwrap().len(), 2);
    let classes = post_json(&sim, "/classify", json!({"input": "x"})).await;
    assert_eq!(classes["data"][0]["num_classes"], 2);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn header_injects_error_response() {
    let sim = plain(&[]).await;
    let path = "/v1/completions";
    let header = ["x-return-error: 418"];
    let answer = sim.post_with(path, &header, &completion(1)).await;
    let (status, body) = status_and_text(&answer);
    let expected = r#"{"error":{"message":"Simulated error triggered by X-Return-Error header (code 418)","type":"APIConnectionError","param":null,"code":418}}"#;
    assert_eq!((status, body.as_str()), (418, expected));
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn failure_injection_is_enabled_at_run_time() {
    let sim = plain(&[]).await;
    assert_eq!(post(&sim, "/v1/completions", completion(1)).await.0, OK);
    let update = json!({"failure-injection-rate": 100, "failure-types": ["rate_limit"]});
    let shown = post_json(&sim, "/admin/config", update).await;
    assert_eq!(shown["failure-injection-rate"], 100);
    let (status, body) = post(&sim, "/v1/completions", completion(1)).await;
    assert_eq!(status, 429);
    assert!(body.contains("Rate limit reached for m in organization org-xxx"), "{body}");
    let (status, body) = post(&sim, "/admin/config", json!({"port": 1})).await;
    assert_eq!(status, 400);
    assert!(body.contains("field 'port' is not admin-configurable"), "{body}");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn fake_metrics_update_needs_fake_mode() {
    let sim = plain(&[]).await;
    let (status, body) = post(&sim, "/fake_metrics", json!({"running-requests": 3})).await;
    assert_eq!(status, 500);
    assert!(body.contains("the simulator is reporting real metrics"), "{body}");
    sim.server.shut_down_server().await;
    let fake = plain(&["--fake-metrics", r#"{"running-requests": 1}"#]).await;
    let (status, _) = post(&fake, "/fake_metrics", json!({"running-requests": 7})).await;
    assert_eq!(status, 204);
    let text = get(&fake, "/metrics").await.1;
    assert!(
        text.lines().any(|l| l.starts_with("vllm:num_requests_running{") && l.ends_with(" 7.0"))
    );
    fake.server.shut_down_server().await;
}

#[tokio::test]
async fn a_profiler_can_be_started_once_and_stopped() {
    let config = r#"{"profiler":"torch","torch_profiler_dir":"/tmp/traces"}"#;
    let sim = vllm(&["--profiler-config", config]).await;
    assert_eq!(poke(&sim, "/start_profile").await, (OK, String::new()));
    let (status, body) = poke(&sim, "/start_profile").await;
    assert_eq!(status, 409);
    assert!(body.contains(r#""type":"Conflict""#), "{body}");
    assert_eq!(poke(&sim, "/stop_profile").await, (OK, String::new()));
    for (bad, word) in [
        (json!({"profile_prefix": "../x"}), "profile_prefix must be"),
        (json!({"delay_iterations": -1}), "delay_iterations must be"),
        (json!({"max_iterations": "many"}), "int_parsing"),
    ] {
        let (status, body) = post(&sim, "/start_profile", bad).await;
        assert_eq!(status, 400, "{body}");
        assert!(body.contains(word), "{body}");
    }
    let good = json!({"profile_prefix": "run-1", "max_iterations": 5});
    assert_eq!(post(&sim, "/start_profile", good).await.0, OK);
    sim.server.shut_down_server().await;
}

#[test]
fn profiler_requires_output_folder() {
    for (config, word) in [
        (r#"{"profiler":"torch"}"#, "torch_profiler_dir must be set"),
        (
            r#"{"profiler":"perf"}"#,
            "--profiler-config.profiler: \"perf\" is not one of torch, cuda, proton",
        ),
        (r#"{"profiler":"cuda","proton_profiler_dir":"/x"}"#, "only applicable"),
    ] {
        let flags = ["--model", "m", "--profiler-config", config];
        let error = LoadedConfig::from_flags(CliMode::Vllm, &flags).expect_err(config);
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn fault_tolerance_apply_is_accepted() {
    let sim = vllm(&["--enable-fault-tolerance", "--data-parallel-size", "2"]).await;
    let (status, body) =
        post(&sim, "/fault_tolerance/apply", json!({"instruction": "retry"})).await;
    assert_eq!(status, 202);
    assert!(body.contains("request_id"), "{body}");
    for (bad, words) in [
        (json!([]), "Request body must be a JSON object."),
        (json!({}), "'instruction' is required."),
        (json!({"instruction": "scale"}), "Invalid instruction: 'scale'."),
        (json!({"instruction": "retry", "params": 1}), "'params' must be an object."),
    ] {
        let (status, body) = post(&sim, "/fault_tolerance/apply", bad).await;
        assert_eq!(status, 400);
        assert!(body.contains(words), "{body}");
    }
    let shown: Value = serde_json::from_str(&get(&sim, "/fault_tolerance/status").await.1).unwrap();
    let engines = json!([{"id": 0, "status": "healthy"}, {"id": 1, "status": "healthy"}]);
    assert_eq!(shown["engines"], engines);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn sagemaker_registers_adapters_under_its_own_names() {
    let sim = plain(&[]).await;
    let body = json!({"name": "a", "src": "p"});
    let registered = post(&sim, "/adapters", body).await;
    assert_eq!(registered, (OK, "Adapter a registered".into()));
    let (status, body) = post(&sim, "/adapters", json!({"name": "b"})).await;
    assert_eq!(status, 400, "{body}");
    let body = json!({"model": "a", "prompt": "x", "max_tokens": 1});
    assert_eq!(post_json(&sim, "/v1/completions", body).await["model"], "a");
    let delete = "DELETE /adapters/a HTTP/1.1\r\nhost: sim\r\n\r\n";
    let unregistered = status_and_text(&sim.ask(delete).await);
    assert_eq!(unregistered, (OK, "Adapter a unregistered".into()));
    assert_eq!(sim.ask(delete).await.status, 404);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn environment_limits_apply_to_requests() {
    let bounds = [
        "--max-n-sequences",
        "3",
        "--max-completion-prompts",
        "2",
        "--max-stop-strings",
        "6",
        "--max-num-bad-words",
        "1",
    ];
    let sim = vllm(&[&bounds[..], &["--enable-scale-out"]].concat()).await;
    let stops = |count: usize| vec!["zzz"; count];
    let chat = |more: Value| {
        let mut body =
            json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "model": "m"});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let completion = |more: Value| {
        let mut body = json!({"prompt": "x", "max_tokens": 1, "model": "m"});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    for (path, body, words) in [
        ("/v1/chat/completions", chat(json!({"n": 4})), "n must be at most 3, got 4."),
        (
            "/v1/completions",
            completion(json!({"n": 4, "use_beam_search": true})),
            "beam_width must be at most 3, got 4.",
        ),
        (
            "/inference/v1/generate",
            json!({"token_ids": [1], "sampling_params": {"n": 4}}),
            "n must be at most 3, got 4.",
        ),
        (
            "/v1/completions",
            completion(json!({"prompt": ["a", "b", "c"]})),
            "prompt list length 3 exceeds the maximum allowed count of 2.",
        ),
        (
            "/v1/chat/completions",
            chat(json!({"stop": stops(7)})),
            "List should have at most 6 items after validation, not 7",
        ),
        (
            "/v1/messages",
            chat(json!({"stop_sequences": stops(7)})),
            "List should have at most 6 items after validation, not 7",
        ),
        (
            "/v1/chat/completions",
            chat(json!({"bad_words": ["one", "two"]})),
            "Too many bad words after tokenization: 2. The max number is 1.",
        ),
    ] {
        let (status, text) = post(&sim, path, body).await;
        assert_eq!(status, 400, "{path} {words}");
        assert!(text.contains(words), "{text}");
    }
    // A chat may have six, and a server beside this one has its own bounds.
    assert_eq!(
        post(&sim, "/v1/chat/completions", chat(json!({"stop": stops(6), "n": 3}))).await.0,
        OK
    );
    let other = vllm(&[]).await;
    let body = chat(json!({"stop": stops(6)}));
    let (status, text) = post(&other, "/v1/chat/completions", body).await;
    assert_eq!(status, 400);
    assert!(text.contains("at most 4 items"), "{text}");
    other.server.shut_down_server().await;
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn responses_name_weight_version() {
    let sim = vllm(&["--dev-mode"]).await;
    let version = json!({"new_version": "step-7"});
    assert_eq!(post(&sim, "/update_weight_version", version).await.0, OK);
    let span = json!([{"version": "step-7", "start": 0, "end": 3}]);
    let mut chat = json!({
        "model": "m", "max_tokens": 3, "ignore_eos": true, "return_weight_versions": true,
        "messages": [{"role": "user", "content": "x"}],
    });
    let mut completion = chat.clone();
    completion["prompt"] = "x".into();
    for (path, body) in [("/v1/chat/completions", &mut chat), ("/v1/completions", &mut completion)]
    {
        let reply = post_json(&sim, path, body.clone()).await;
        assert_eq!(reply["choices"][0]["weight_versions"], span, "{path}");
        body["stream"] = true.into();
        let (_, text) = post(&sim, path, body.clone()).await;
        let chunks = text
            .split("\n\n")
            .filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok());
        let versions: Vec<Value> =
            chunks.map(|chunk| chunk["choices"][0]["weight_versions"].clone()).collect();
        let (last, rest) = versions.split_last().unwrap();
        assert_eq!(*last, span, "{path}: {text}");
        assert!(rest.iter().all(Value::is_null), "{path}: {text}");
        body["stream"] = false.into();
        body["return_weight_versions"] = false.into();
        let reply = post_json(&sim, path, body.clone()).await;
        assert_eq!(reply["choices"][0]["weight_versions"], Value::Null);
    }
    sim.server.shut_down_server().await;
}

/// What docs/metrics.md says of the names that llm-d's autoscaler asks for.
#[tokio::test]
async fn nonexistent_vllm_metrics_are_not_shown() {
    let none = [
        "vllm:time_per_output_token_seconds_sum",
        "vllm:time_per_output_token_seconds_count",
        "vllm:prefix_cache_hits",
        "vllm:prefix_cache_queries",
    ];
    let has = |page: &str, name: &str| {
        let mut lines = page.lines();
        lines.any(|line| line.starts_with(&format!("{name}{{")))
    };
    let sim = Sim::serve(&[]).await;
    let page = sim.get("/metrics").await.text();
    for name in none {
        assert!(!has(&page, name), "{name}");
    }
    for name in [
        "vllm:request_time_per_output_token_seconds_sum",
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
        "vllm:cache_config_info",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    ] {
        assert!(has(&page, name), "{name}");
    }
    let sim = Sim::serve(&["--legacy-metrics"]).await;
    let page = sim.get("/metrics").await.text();
    assert_eq!(none.map(|name| has(&page, name)), [true; 4]);
}
