//! Disaggregated prefill: what the prefilling server answers, and thresholds of the cache.

use serde_json::{Value, json};

use super::sim::Sim;

const CONNECTOR: &str =
    r#"{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"prefiller"}"#;

/// What llm-d's sidecar sends along.
fn asked() -> Value {
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
        (
            "/v1/chat/completions",
            json!({"messages": said, "max_tokens": 1}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "hello", "max_tokens": 1}),
        ),
        (
            "/v1/responses",
            json!({"input": "hello", "max_output_tokens": 1}),
        ),
        (
            "/inference/v1/generate",
            json!({"token_ids": [5, 6, 7], "sampling_params": sampling}),
        ),
    ]
}

async fn transferred(sim: &Sim, path: &str, mut body: Value) -> Value {
    body["kv_transfer_params"] = asked();
    let answer = sim.post(path, &body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()["kv_transfer_params"].take()
}

#[tokio::test]
async fn a_connector_tells_the_decoding_server_what_it_needs() {
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
async fn without_a_connector_there_is_nothing_to_tell() {
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
    let mut body = json!({"prompt": "hello", "max_tokens": 1, "kv_transfer_params": asked()});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "remote_decode");
    body["stream"] = true.into();
    let refused = sim.post("/v1/completions", &body).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused
            .text()
            .contains("Prefill does not support streaming")
    );
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
async fn the_servers_threshold_gives_way_to_the_requests() {
    let flags = ["--enable-kvcache", "--global-cache-hit-threshold", "0.5"];
    let sim = Sim::llmd(&flags).await;
    let body = json!({"prompt": "hello", "max_tokens": 1});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "cache_threshold");
    let body = json!({"prompt": "hello", "max_tokens": 1, "cache_hit_threshold": 0});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}
