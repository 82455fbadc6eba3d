//! Disaggregated prefill: what the prefilling server answers, and thresholds of the cache.

use serde_json::{Value, json};

use super::log::Log;
use super::sim::{Sim, eventually};

/// Requests of these tests make addresses up.
const CONNECTOR: &str = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both",
    "engine_id":"prefiller","kv_connector_extra_config":{"sim_handshake":false}}"#;

/// What llm-d's sidecar sends along.
pub(crate) fn asked() -> Value {
    json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null,
    })
}

/// The same request in the words of each route.
fn requests() -> [(&'static str, Value); 4] {
    let said = json!([{"role": "user", "content": "hello"}]);
    let sampling = json!({"max_tokens": 1});
    [
        ("/v1/chat/completions", json!({"messages": said, "max_tokens": 1})),
        ("/v1/completions", json!({"prompt": "hello", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "hello", "max_output_tokens": 1})),
        ("/inference/v1/generate", json!({"token_ids": [5, 6, 7], "sampling_params": sampling})),
    ]
}

async fn transferred(sim: &Sim, path: &str, mut body: Value) -> Value {
    body["kv_transfer_params"] = asked();
    body["model"] = "tiny-llama".into();
    let answer = sim.post(path, &body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()["kv_transfer_params"].take()
}

#[tokio::test]
async fn kv_params_without_connector_are_warned_about() {
    const WORDS: &str = "Got kv_transfer_params, but no KVConnector found. \
                         Disabling KVTransfer for this request.";
    let mut log = Log::new();
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    for (path, body) in requests() {
        assert_eq!(transferred(&sim, path, body).await, Value::Null, "{path}");
    }
    // The first, the second and the fourth request: a flood of them does not flood the log.
    let lines = log.lines_with(WORDS);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[2].contains("WARN") && lines[2].contains("requests=4"), "{lines:?}");
    let offloading = ["--kv-offloading-size=1", "--kv-bytes-per-token=1024"];
    for flags in [&["--kv-transfer-config", CONNECTOR][..], &offloading] {
        let sim = Sim::serve(flags).await;
        let (path, body) = &requests()[1];
        transferred(&sim, path, body.clone()).await;
        assert_eq!(log.lines_with(WORDS), Vec::<String>::new(), "{flags:?}");
    }
}

#[tokio::test]
async fn a_connector_sends_the_decode_server_what_it_needs() {
    let flags = ["--kv-transfer-config", CONNECTOR, "--enable-scale-out"];
    let sim = Sim::serve(&flags).await;
    for (path, body) in requests() {
        let params = transferred(&sim, path, body).await;
        assert_eq!(params["do_remote_prefill"], true, "{path}");
        assert_eq!(params["do_remote_decode"], false);
        assert_eq!(params["remote_engine_id"], "prefiller");
        assert!(params["remote_request_id"].is_string());
        assert!(params["remote_host"].is_string() && params["remote_port"].is_u64());
        let tokens = params["remote_num_tokens"].as_u64().unwrap() as usize;
        let blocks = params["remote_block_ids"][0].as_array().unwrap();
        assert_eq!(blocks.len(), tokens.div_ceil(16), "{path}");
        // The decoding server takes it as it is.
        let body = json!({"prompt": "hello", "max_tokens": 2, "kv_transfer_params": params});
        assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    }
}

#[tokio::test]
async fn without_a_connector_there_are_no_transfer_params() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    for (path, body) in requests() {
        assert!(transferred(&sim, path, body).await.is_null(), "{path}");
    }
}

#[tokio::test]
async fn llmd_answers_with_placeholders_and_streams_nothing() {
    let sim = Sim::llmd(&["--compat", "llm-d"]).await;
    for (path, body) in requests() {
        let params = transferred(&sim, path, body).await;
        assert_eq!(params["remote_block_ids"], json!(["DUMMY_ID"]), "{path}");
        assert_eq!(params["remote_port"], 1234);
    }
    let mut body = json!({"model": "tiny-llama", "prompt": "hello", "max_tokens": 1});
    body["kv_transfer_params"] = asked();
    let answer = sim.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "remote_decode");
    body["stream"] = true.into();
    let refused = sim.post("/v1/completions", &body).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("Prefill does not support streaming"));
    let engine = sim.get("/query").await.json()["0"]["engine_id"].take();
    assert_eq!(engine.as_str().map(str::len), Some(36));
    assert_eq!(sim.get("/query").await.json()["0"]["engine_id"], engine);
}

#[tokio::test]
async fn a_prompt_below_the_threshold_gives_no_text() {
    let sim = Sim::serve(&["--enable-prefix-caching", "--block-size", "16"]).await;
    let ids: Vec<u32> = (10..58).collect();
    let body = |threshold: f64| {
        json!({"prompt": ids, "max_tokens": 2, "ignore_eos": true,
            "cache_hit_threshold": threshold})
    };
    let path = "/v1/completions";
    let cold = sim.post(path, &body(0.5)).await.json();
    assert_eq!(cold["choices"][0]["finish_reason"], "cache_threshold");
    assert_eq!(cold["choices"][0]["text"], "");
    assert_eq!(cold["usage"]["completion_tokens"], 0);
    // A share that is none is not one.
    let warm = sim.post(path, &body(1.5)).await.json();
    assert_eq!(warm["choices"][0]["finish_reason"], "length");
    let found = sim.post(path, &body(0.5)).await.json();
    assert_eq!(found["choices"][0]["finish_reason"], "length");
    let header = ["X-Cache-Threshold-Finish-Reason: true"];
    let forced = sim.post_with(path, &header, &body(0.0)).await.json();
    assert_eq!(forced["choices"][0]["finish_reason"], "cache_threshold");
}

#[tokio::test]
async fn the_threshold_of_a_request_overrides_the_servers() {
    let flags = ["--enable-kvcache", "--global-cache-hit-threshold", "0.5"];
    let sim = Sim::llmd(&flags).await;
    let body = json!({"prompt": "hello", "max_tokens": 1});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "cache_threshold");
    let body = json!({"prompt": "hello", "max_tokens": 1, "cache_hit_threshold": 0});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

async fn used_blocks(sim: &Sim) -> u64 {
    let cache = sim.get("/debug/kv_cache").await.json();
    cache["0"]["used_blocks"].as_u64().unwrap()
}

/// Waits until a server holds so many blocks.
pub(crate) async fn holds(sim: &Sim, blocks: u64) {
    let held = eventually(async || used_blocks(sim).await == blocks).await;
    assert!(held, "{} blocks are held, not {blocks}", used_blocks(sim).await);
}

#[tokio::test]
async fn blocks_are_kept_until_the_decoding_server_has_read_them() {
    let port = free_port().to_string();
    let channel = ["--kv-side-channel-port", &port, "--dev-mode"];
    let config = ["--kv-transfer-config", CONNECTOR];
    let prefill = Sim::serve(&[&config[..], &channel].concat()).await;
    let decoder = r#"{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}"#;
    let decode = Sim::serve(&["--kv-transfer-config", decoder]).await;
    let ids: Vec<u32> = (10..60).collect();
    let mut body = json!({"prompt": ids, "max_tokens": 1, "kv_transfer_params": asked()});
    let first = prefill.post("/v1/completions", &body).await.json();
    let params = first["kv_transfer_params"].clone();
    let blocks = params["remote_block_ids"][0].as_array().unwrap();
    assert_eq!((blocks.len(), params["remote_num_tokens"].as_u64()), (4, Some(50)));
    assert_eq!(params["remote_port"].to_string(), port);
    assert_eq!(used_blocks(&prefill).await, 4);
    // Another prompt gets other blocks.
    body["prompt"] = json!((60..110).collect::<Vec<u32>>());
    let other = prefill.post("/v1/completions", &body).await.json();
    let others = other["kv_transfer_params"]["remote_block_ids"][0].clone();
    assert!(others.as_array().unwrap().iter().all(|id| !blocks.contains(id)));
    assert_eq!(used_blocks(&prefill).await, 8);
    // The whole prompt is fetched, and then these four blocks are free again.
    let body = json!({"prompt": ids, "max_tokens": 3, "ignore_eos": true,
        "kv_transfer_params": params});
    let answer = decode.post("/v1/completions", &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert!(answer["kv_transfer_params"].is_null());
    let hits = "vllm:external_prefix_cache_hits_total";
    assert_eq!(decode.metric(hits).await, 50.0);
    holds(&prefill, 4).await;
}

#[tokio::test]
async fn a_lease_runs_out_and_an_unfinished_prefill_leaves_none() {
    let config = r#"{"kv_connector":"NixlConnector","kv_role":"kv_producer",
        "kv_connector_extra_config":{"kv_lease_duration":0.05}}"#;
    let port = free_port().to_string();
    let flags = ["--kv-transfer-config", config, "--dev-mode", "--kv-side-channel-port", &port];
    let sim = Sim::serve(&flags).await;
    let ids: Vec<u32> = (10..60).collect();
    let mut body = json!({"prompt": ids, "max_tokens": 1, "kv_transfer_params": asked()});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert!(answer["kv_transfer_params"].is_object());
    holds(&sim, 0).await;
    body["cache_hit_threshold"] = json!(1.0);
    body["prompt"] = json!([1, 2, 3]);
    let refused = sim.post("/v1/completions", &body).await.json();
    assert_eq!(refused["choices"][0]["finish_reason"], "cache_threshold");
    assert!(refused["kv_transfer_params"].is_null());
}

/// `--kv-transfer-config` of a connector inside `MultiConnector`, behind one without effect.
pub(crate) fn child_of_multi_connector(child: &Value) -> String {
    let other = json!({"kv_connector": "ExampleConnector", "kv_role": "kv_both"});
    json!({"kv_connector": "MultiConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [other, child]}})
    .to_string()
}

#[tokio::test]
async fn a_child_of_multi_connector_has_its_own_settings() {
    let nixl = json!({"kv_connector": "NixlConnector", "kv_role": "kv_producer",
        "kv_connector_extra_config": {"kv_lease_duration": 0.05}});
    let port = free_port().to_string();
    let config = child_of_multi_connector(&nixl);
    let flags = ["--kv-transfer-config", &config, "--dev-mode", "--kv-side-channel-port", &port];
    let sim = Sim::serve(&flags).await;
    let ids: Vec<u32> = (10..60).collect();
    let mut body = json!({"prompt": ids, "max_tokens": 1, "kv_transfer_params": asked()});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert!(answer["kv_transfer_params"].is_object(), "{answer}");
    // Without its own setting, the lease would be longer than the patience of this test.
    holds(&sim, 0).await;
    let mori = json!({"kv_connector": "MoRIIOConnector", "kv_role": "kv_producer",
        "kv_connector_extra_config": {"handshake_port": 7001, "notify_port": 7002}});
    let sim = Sim::serve(&["--kv-transfer-config", &child_of_multi_connector(&mori)]).await;
    body["kv_transfer_params"]["transfer_id"] = "tx-1".into();
    let params = sim.post("/v1/completions", &body).await.json()["kv_transfer_params"].take();
    assert_eq!(params["remote_handshake_port"], 7001);
    assert_eq!(params["remote_notify_port"], 7002);
}

#[tokio::test]
async fn each_connector_has_its_own_transfer_params() {
    let path = "/v1/completions";
    let role = |name: &str| json!({"kv_connector": name, "kv_role": "kv_producer"}).to_string();
    let mut body = json!({"prompt": "hello", "max_tokens": 1, "kv_transfer_params": asked()});
    let push = Sim::serve(&["--kv-transfer-config", &role("NixlPushConnector")]).await;
    let params = push.post(path, &body).await.json()["kv_transfer_params"].take();
    assert_eq!(params["transfer_mode"], "push");
    assert_eq!(params["remote_registration_generation"], 0);
    let mp = Sim::serve(&["--kv-transfer-config", &role("LMCacheMPConnector")]).await;
    assert_eq!(mp.post(path, &body).await.json()["kv_transfer_params"], json!({}));
    let stored = Sim::serve(&["--kv-transfer-config", &role("ExampleConnector")]).await;
    assert!(stored.post(path, &body).await.json()["kv_transfer_params"].is_null());

    let mori = Sim::serve(&["--kv-transfer-config", &role("MoRIIOConnector")]).await;
    assert!(mori.post(path, &body).await.json()["kv_transfer_params"].is_null());
    body["kv_transfer_params"]["transfer_id"] = "tx-1".into();
    let params = mori.post(path, &body).await.json()["kv_transfer_params"].take();
    assert_eq!(params["transfer_id"], "tx-1");
    assert_eq!(params["remote_dp_rank_override"], true);
    assert_eq!(params["remote_handshake_port"], 6301);
    assert_eq!(params["remote_notify_port"], 61_005);
    assert_eq!(params["remote_block_ids"][0].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn mooncake_registers_its_engines_on_a_separate_port() {
    let port = free_port();
    let config = r#"{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","engine_id":"e"}"#;
    let number = port.to_string();
    let flags = [
        "--kv-transfer-config",
        config,
        "--mooncake-bootstrap-port",
        &number,
        "--data-parallel-size",
        "2",
        "--tensor-parallel-size",
        "2",
    ];
    let _sim = Sim::serve(&flags).await;
    let ask = async |request: Vec<u8>| {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        let mut wire = super::wire::Wire::new(stream.unwrap());
        wire.send(&request).await;
        wire.answer().await
    };
    let query = b"GET /query HTTP/1.1\r\nhost: sim\r\n\r\n".to_vec();
    let ranks = ask(query).await.json();
    assert_eq!(ranks["1"]["engine_id"], "e_dp1");
    assert!(ranks["0"]["worker_addr"]["1"]["0"].is_string(), "{ranks}");
    let register = async |body: Value| {
        let body = body.to_string();
        ask(super::sim::post("/register", &[], body.as_bytes())).await.status
    };
    let worker = json!({"engine_id": "f", "dp_rank": 2, "tp_rank": 0, "pp_rank": 0, "addr": "a"});
    assert_eq!(register(worker.clone()).await, 200);
    assert_eq!(register(worker.clone()).await, 200);
    let mut wrong = worker.clone();
    wrong["engine_id"] = "g".into();
    assert_eq!(register(wrong).await, 400);
    assert_eq!(register(json!({})).await, 422);
}

#[tokio::test]
async fn kv_params_without_source_cause_no_transfer() {
    let sim = Sim::serve(&["--kv-transfer-config", CONNECTOR]).await;
    let body = json!({"prompt": "hello there", "max_tokens": 1,
        "kv_transfer_params": {"do_remote_prefill": true, "remote_block_ids": [[1]]}});
    assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    assert_eq!(sim.metric("vllm:external_prefix_cache_hits_total").await, 0.0);
}

#[tokio::test]
async fn cache_hit_threshold_works_on_all_routes() {
    let sim = Sim::serve(&["--enable-scale-out"]).await;
    let said = json!([{"role": "user", "content": "hello"}]);
    let messages = json!({"model": "tiny-llama", "messages": said, "max_tokens": 3});
    for (path, mut body) in [requests().to_vec(), vec![("/v1/messages", messages)]].concat() {
        body["cache_hit_threshold"] = json!(1.0);
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let usage = answer.json()["usage"].take();
        let output = usage.get("completion_tokens").or_else(|| usage.get("output_tokens"));
        assert_eq!(output, Some(&json!(0)), "{path}");
    }
}

#[tokio::test]
async fn idle_ranks_are_used_round_robin() {
    let sim = Sim::serve(&["--data-parallel-size", "3"]).await;
    let body = json!({"prompt": "hello", "max_tokens": 1});
    for _ in 0..9 {
        assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    }
    let pinned = ["X-data-parallel-rank: 1"];
    sim.post_with("/v1/completions", &pinned, &body).await;
    let text = sim.get("/metrics").await.text();
    let served = |rank: u32| {
        let name = format!("vllm:prompt_tokens_total{{engine=\"{rank}\"");
        let line = text.lines().find(|line| line.starts_with(&name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let one = served(0) / 3.0;
    assert!(one > 0.0);
    assert_eq!([served(0), served(1), served(2)], [3.0 * one, 4.0 * one, 3.0 * one]);
}

#[tokio::test]
async fn a_prompt_that_nixl_moves_is_counted() {
    let flags = ["--kv-transfer-config", CONNECTOR, "--kv-bytes-per-token", "1000"];
    let delay = ["--kv-cache-transfer-latency", "20ms", "-tp", "2"];
    let sim = Sim::serve(&[&flags[..], &delay].concat()).await;
    let body = json!({"model": "tiny-llama", "prompt": vec![5; 33], "max_tokens": 1,
        "kv_transfer_params": {"do_remote_prefill": true, "remote_block_ids": [[1]],
            "remote_engine_id": "p", "remote_host": "127.0.0.1", "remote_port": 1,
            "remote_request_id": "r"}});
    assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    // Each of two GPUs moves its half of three blocks.
    let metric = async |name: &str| sim.metric(&format!("vllm:nixl_{name}")).await;
    assert_eq!(metric("xfer_time_seconds_count").await, 2.0);
    let time = metric("xfer_time_seconds_sum").await;
    assert!((time - 0.04).abs() < 1e-6, "{time}");
    assert_eq!(metric("bytes_transferred_sum").await, 48_000.0);
    assert!(metric("post_time_seconds_sum").await > 0.0);
    assert!(metric("num_descriptors_sum").await > 0.0);
    sim.server.shut_down_server().await;
}
