//! A second prefix cache in the memory of the host: what counters and usage say of it.

use serde_json::{Value, json};

use super::sim::Sim;

/// Tokens per block.
const BLOCK: u64 = 16;
/// Bytes that a token takes.
const BYTES: u64 = 1024;

/// A GPU with room for 62 blocks, and the memory of a host beside it.
async fn small_gpu(more: &[&str]) -> Sim {
    let flags = [
        "--num-gpu-blocks-override",
        "63",
        "--max-model-len",
        "992",
        "--max-num-batched-tokens",
        "2048",
        "--kv-bytes-per-token",
        "1024",
        "--enable-prompt-tokens-details",
        "--dev-mode",
    ];
    Sim::serve(&[&flags[..], more].concat()).await
}

/// Reply tokens and cached tokens of a prompt.
async fn complete(sim: &Sim, prompt: &[u64], tokens: u32) -> (Vec<u64>, u64) {
    let body = json!({"model": "tiny-llama", "prompt": prompt, "max_tokens": tokens,
        "ignore_eos": true, "return_token_ids": true});
    let answer = sim.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let ids = answer["choices"][0]["token_ids"].as_array().unwrap();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    let ids = ids.iter().filter_map(Value::as_u64).collect();
    (ids, cached.as_u64().unwrap_or(0))
}

/// Another's prompt, which takes all blocks of the GPU.
fn flood(turn: u64) -> Vec<u64> {
    (0..990).map(|at| 1000 + (turn * 7 + at) % 900).collect()
}

/// The series of a family whose labels say `label`.
async fn labelled(sim: &Sim, name: &str, label: &str) -> f64 {
    let page = sim.get("/metrics").await.text();
    let lines = page.lines();
    let lines = lines.filter(|line| line.starts_with(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn conversation_is_reloaded_from_host_cache() {
    let sim = small_gpu(&["--kv-offloading-size", "1"]).await;
    let mut prompt: Vec<u64> = Vec::new();
    let (mut prompts, mut reused, mut before) = (0, 0, 0);
    for turn in 0..20 {
        prompt.extend((0..24).map(|at| 10 + turn * 24 + at));
        let (reply, cached) = complete(&sim, &prompt, 8).await;
        // Where the prompt of the turn before had its last full block; replies are not kept.
        assert_eq!(cached, before / BLOCK * BLOCK, "turn {turn}");
        before = prompt.len() as u64;
        prompts += before;
        reused += cached;
        prompt.extend(reply);
        let flood = flood(turn);
        let (_, cached) = complete(&sim, &flood, 1).await;
        prompts += flood.len() as u64;
        reused += cached;
    }
    let metric = async |name: &str| sim.metric(&format!("vllm:{name}_total")).await as u64;
    let on_gpu = metric("prefix_cache_hits").await;
    let on_host = metric("external_prefix_cache_hits").await;
    assert!(on_host > 0);
    assert_eq!(on_gpu + on_host, reused);
    assert_eq!(metric("prefix_cache_queries").await, prompts);
    assert_eq!(metric("external_prefix_cache_queries").await, prompts - on_gpu);
    assert_eq!(metric("prompt_tokens").await, prompts);
    assert_eq!(metric("prompt_tokens_cached").await, reused);
    assert_eq!(metric("prompt_tokens_by_source").await, prompts);
    let tier = "vllm:prompt_tokens_cached_by_source_total";
    let host = labelled(&sim, tier, "source=\"host\"").await;
    assert_eq!(host as u64, on_host);
    assert_eq!(metric("prompt_tokens_cached_by_source").await, reused);
    assert_eq!(metric("kv_offload_load_bytes").await, on_host * BYTES);
    let loads = labelled(&sim, "vllm:kv_offload_total_bytes_total", "CPU_to_GPU").await;
    assert_eq!(loads as u64, on_host * BYTES);
    let info = sim.get("/metrics").await.text();
    assert!(info.contains("cpu_num_chunks=\"65536\""), "{info}");
    assert!(info.contains("kv_offloading_size=\"1.0\""), "{info}");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_reset_clears_the_host_cache_only_on_request() {
    let sim = small_gpu(&["--kv-offloading-size", "1"]).await;
    let prompt: Vec<u64> = (10..110).collect();
    for (path, cached) in
        [("/reset_prefix_cache", 96), ("/reset_prefix_cache?reset_external=true", 0)]
    {
        complete(&sim, &prompt, 1).await;
        assert!(sim.is_idle().await);
        let reset = sim.post(path, &json!({})).await;
        assert_eq!(reset.json()["success"], true);
        let (_, found) = complete(&sim, &prompt, 1).await;
        assert_eq!(found, cached, "{path}");
    }
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn simple_offload_stores_decoded_blocks() {
    let extra = json!({"num_cpu_blocks": 100});
    let config = json!({"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": extra})
    .to_string();
    let sim = small_gpu(&["--kv-transfer-config", &config]).await;
    let mut prompt: Vec<u64> = (10..34).collect();
    let (reply, _) = complete(&sim, &prompt, 26).await;
    prompt.extend(reply);
    complete(&sim, &flood(0), 1).await;
    prompt.push(9);
    // 50 tokens, of which the last was never computed.
    let (_, cached) = complete(&sim, &prompt, 1).await;
    assert_eq!(cached, 48);
    let blocks = sim.metric("vllm:simple_kv_offload_load_blocks_total").await;
    let hits = sim.metric("vllm:external_prefix_cache_hits_total").await;
    assert_eq!(blocks as u64 * BLOCK, hits as u64);
    assert!(sim.get("/metrics").await.text().contains("capacity_blocks=\"100\""));
    sim.server.shut_down_server().await;
}
