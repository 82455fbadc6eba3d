//! Prompts that cannot be loaded, from the memory of the host or from another server: what clients see,
//! and what is counted.

use serde_json::{Value, json};

use super::faults::spoiled;
use super::sim::{Sim, eventually};
use super::transfer::{asked, free_port, holds};

/// A server that keeps prompts in the memory of the host, under this `kv_load_failure_policy`.
async fn keeper(policy: &str) -> Sim {
    let config = json!({"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20}})
    .to_string();
    let flags = [
        "--kv-transfer-config",
        &config,
        "--kv-bytes-per-token",
        "1024",
        "--enable-prompt-tokens-details",
        "--enable-scale-out",
        "--dev-mode",
    ];
    Sim::serve(&flags).await
}

/// Answers a request, then forgets what the GPU has of its prompt.
async fn keep(sim: &Sim, path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = false.into();
    let answer = sim.post(path, &body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    assert!(sim.is_idle().await);
    let reset = sim.post("/reset_prefix_cache", &json!({})).await;
    assert_eq!(reset.json()["success"], true);
    answer.json()
}

/// The same prompt for each route, streamed, and the end of a stream that fails.
fn streams() -> [(&'static str, Value, &'static str); 5] {
    let text = "a b c d e f g h i j ".repeat(8);
    let said = json!([{"role": "user", "content": text}]);
    let spaced = "data: {\"error\": {\"message\": \"Internal server error\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n";
    [
        (
            "/v1/chat/completions",
            json!({"messages": said, "max_tokens": 2, "stream": true}),
            "data: {\"error\":{\"message\":\"Internal server error\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\ndata: [DONE]\n\n",
        ),
        ("/v1/completions", json!({"prompt": text, "max_tokens": 2, "stream": true}), spaced),
        (
            "/inference/v1/generate",
            json!({"token_ids": (10..110).collect::<Vec<u32>>(), "stream": true,
                "sampling_params": {"max_tokens": 2}}),
            spaced,
        ),
        (
            "/v1/messages",
            json!({"model": "tiny-llama", "max_tokens": 2, "messages": said, "stream": true}),
            "\"message\":\"Internal server error\"}}\n\n",
        ),
        (
            "/v1/responses",
            json!({"input": text, "max_output_tokens": 2, "stream": true}),
            "event: response.in_progress\n",
        ),
    ]
}

#[tokio::test]
async fn a_request_that_cannot_load_its_prompt_fails() {
    let sim = keeper("fail").await;
    for (path, mut body, last) in streams() {
        keep(&sim, path, &body).await;
        let stream = spoiled(&sim, path, "kv_load_failure", &body).await;
        assert!(stream.text.starts_with("HTTP/1.1 200 "), "{path}");
        assert!(stream.text.contains(last), "{path}: {}", stream.text);
        // No event of a response can tell: its stream breaks off.
        let is_whole = path != "/v1/responses";
        assert_eq!(stream.is_whole(), is_whole, "{path}: {}", stream.text);
        body["stream"] = false.into();
        let header = ["x-sim-fault: kv_load_failure=50"];
        let answer = sim.post_with(path, &header, &body).await;
        assert_eq!(answer.status, 500, "{path}");
        let error = answer.json()["error"].take();
        assert_eq!(error["message"], "Internal server error", "{path}");
        // The host has it still.
        assert_eq!(sim.post(path, &body).await.status, 200, "{path}");
    }
    let ended =
        |page: &str| page.contains("finished_reason=\"error\",model_name=\"tiny-llama\"} 10.0");
    assert!(eventually(async || ended(&sim.get("/metrics").await.text())).await);
    assert!(sim.shows("vllm_sim_faults_total", 10.0).await);
    assert!(sim.shows("vllm:kv_cache_usage_perc", 0.0).await);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn kv_load_failure_recomputes_blocks() {
    let sim = keeper("recompute").await;
    let prompt: Vec<u32> = (10..110).collect();
    let body = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true});
    let path = "/v1/completions";
    let whole = keep(&sim, path, &body).await;
    // Of six blocks so many come before the first that does not.
    for (fault, cached) in [("kv_load_failure=50", 48), ("kv_load_failure", 0), ("stall=1ms", 96)] {
        let header = format!("x-sim-fault: {fault}");
        let answer = sim.post_with(path, &[&header], &body).await.json();
        assert_eq!(answer["choices"][0]["text"], whole["choices"][0]["text"]);
        let details = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(details.as_u64().unwrap_or(0), cached, "{fault}");
        keep(&sim, path, &json!({"prompt": "x", "max_tokens": 1})).await;
    }
    let hits = sim.metric("vllm:external_prefix_cache_hits_total").await;
    assert!((hits - 144.0).abs() < 1e-9, "{hits}");
    assert!(sim.shows("vllm_sim_faults_total", 3.0).await);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn kv_load_failures_follow_probability() {
    let config = json!({"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20}})
    .to_string();
    let flags = [
        "--kv-transfer-config",
        &config,
        "--kv-bytes-per-token",
        "1024",
        "--dev-mode",
        "--stream-fault-rate",
        "50",
        "--stream-faults",
        "kv_load_failure",
    ];
    let sim = Sim::serve(&flags).await;
    let prompt: Vec<u32> = (10..110).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1});
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(sim.post("/v1/completions", &body).await.status);
        assert!(sim.is_idle().await);
        sim.post("/reset_prefix_cache", &json!({})).await;
    }
    // The first prompt has nothing to load.
    assert_eq!(statuses[0], 200);
    let failed = statuses.iter().filter(|status| **status == 500).count();
    assert!((4..17).contains(&failed), "{statuses:?}");
    assert_eq!(sim.metric("vllm_sim_faults_total").await as usize, failed);
    sim.server.shut_down_server().await;
}

/// What the prefilling server says of a prompt to the decoding one.
async fn prefilled(prefill: &Sim, body: &Value) -> Value {
    let mut first = body.clone();
    first["max_tokens"] = 1.into();
    first["kv_transfer_params"] = asked();
    let answer = prefill.post("/v1/completions", &first).await.json();
    answer["kv_transfer_params"].clone()
}

#[tokio::test]
async fn failed_kv_fetch_fails_or_recomputes() {
    let port = free_port().to_string();
    let producer = r#"{"kv_connector":"NixlConnector","kv_role":"kv_producer"}"#;
    let flags = ["--kv-transfer-config", producer, "--kv-side-channel-port", &port, "--dev-mode"];
    let prefill = Sim::serve(&flags).await;
    let prompt: Vec<u32> = (10..60).collect();
    let mut body = json!({"prompt": prompt, "max_tokens": 3, "ignore_eos": true});
    for (policy, status, held) in [("fail", 500, 4), ("recompute", 200, 5)] {
        let consumer = json!({"kv_connector": "NixlConnector", "kv_role": "kv_consumer",
            "kv_load_failure_policy": policy})
        .to_string();
        let decode = Sim::serve(&["--kv-transfer-config", &consumer]).await;
        body["kv_transfer_params"] = prefilled(&prefill, &body).await;
        let header = ["x-sim-fault: kv_load_failure"];
        let answer = decode.post_with("/v1/completions", &header, &body).await;
        assert_eq!(answer.status, status, "{policy}: {}", answer.text());
        assert!(decode.shows("vllm:nixl_num_failed_transfers_total", 1.0).await);
        assert!(decode.shows("vllm:nixl_xfer_time_seconds_count", 0.0).await);
        assert!(decode.shows("vllm_sim_faults_total", 1.0).await);
        // Nobody says that it has read: the lease has to run out.
        holds(&prefill, held).await;
        decode.server.shut_down_server().await;
    }
    prefill.server.shut_down_server().await;
}
