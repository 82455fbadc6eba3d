//! Models whose layers do not all see everything: where hits end, and what the cache has room for.

use serde_json::{Value, json};
use tempfile::TempDir;
use vllm_sim_config::CliMode;

use super::sim::{MODEL, Sim};

/// Tokens per block.
const BLOCK: u64 = 16;

/// The tiny model with ten layers that see 64 tokens and two that see everything, as Gemma 3 has them.
fn gemma_like() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(format!("{MODEL}/{name}"), folder.path().join(name)).unwrap();
    }
    let text = std::fs::read_to_string(format!("{MODEL}/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let kinds = (1..=12).map(|layer| match layer % 6 {
        0 => "full_attention",
        _ => "sliding_attention",
    });
    config["num_hidden_layers"] = json!(12);
    config["sliding_window"] = json!(64);
    config["layer_types"] = kinds.collect();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

async fn start(folder: &TempDir, more: &[&str]) -> Sim {
    start_with(folder, "4000", more).await
}

/// The same with so many blocks on the GPU.
async fn start_with(folder: &TempDir, blocks: &str, more: &[&str]) -> Sim {
    let flags = [
        "--model",
        folder.path().to_str().unwrap(),
        "--served-model-name",
        "tiny",
        "--num-gpu-blocks-override",
        blocks,
        "--max-num-batched-tokens",
        "2048",
        "--enable-prompt-tokens-details",
    ];
    Sim::start(CliMode::Vllm, &[&flags[..], more].concat()).await
}

/// Cached tokens of each prompt of a conversation of 20 turns, and the lengths of the prompts.
async fn converse(sim: &Sim) -> (Vec<u64>, Vec<u64>) {
    let mut prompt: Vec<u64> = Vec::new();
    let (mut hits, mut lengths) = (Vec::new(), Vec::new());
    for turn in 0..20 {
        prompt.extend((0..24).map(|at| 10 + turn * 24 + at));
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 40,
            "ignore_eos": true, "return_token_ids": true});
        let answer = sim.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        hits.push(cached.as_u64().unwrap_or(0));
        lengths.push(prompt.len() as u64);
        let reply = answer["choices"][0]["token_ids"].as_array().unwrap();
        prompt.extend(reply.iter().filter_map(Value::as_u64));
    }
    (hits, lengths)
}

#[tokio::test]
async fn sliding_window_turn_hits_prompt_not_answer() {
    let folder = gemma_like();
    let sim = start(&folder, &[]).await;
    let (hits, lengths) = converse(&sim).await;
    let before = lengths.iter().map(|length| (length - 1) / BLOCK * BLOCK);
    let expected: Vec<u64> = std::iter::once(0).chain(before).take(20).collect();
    assert_eq!(hits, expected);
    let page = sim.get("/metrics").await.text();
    assert!(page.contains("num_gpu_blocks=\"4000\""), "{page}");
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn dense_and_flat_caches_hit_previous_answer() {
    let folder = gemma_like();
    for flags in
        [&["--prefix-cache-retention-interval", "16"][..], &["--disable-hybrid-kv-cache-manager"]]
    {
        let sim = start(&folder, flags).await;
        let (hits, lengths) = converse(&sim).await;
        // The last token of an answer of 40 is never computed.
        let before = lengths.iter().map(|length| (length + 39) / BLOCK * BLOCK);
        let expected: Vec<u64> = std::iter::once(0).chain(before).take(20).collect();
        assert_eq!(hits, expected, "{flags:?}");
        sim.server.shut_down_server().await;
    }
}

#[tokio::test]
async fn events_name_the_group_of_each_block_and_what_it_keeps() {
    let heard = zmq::Context::new().socket(zmq::SUB).unwrap();
    heard.set_subscribe(b"").unwrap();
    heard.bind("tcp://127.0.0.1:*").unwrap();
    heard.set_rcvtimeo(20).unwrap();
    let endpoint = heard.get_last_endpoint().unwrap().unwrap();
    let config = json!({"enable_kv_cache_events": true, "endpoint": endpoint}).to_string();
    let folder = gemma_like();
    let sim = start(&folder, &["--kv-events-config", &config]).await;
    let mut message = None;
    // Until the subscription has arrived, messages are lost.
    for turn in 0..1000_u64 {
        let prompt: Vec<u64> = (0..200).map(|at| 10 + (turn * 7 + at) % 4000).collect();
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1});
        assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
        message = heard.recv_multipart(0).ok();
        if message.is_some() {
            break;
        }
    }
    let frames = message.expect("a message in time");
    let (_, events, _): (f64, Vec<Value>, u32) = rmp_serde::from_slice(&frames[2]).unwrap();
    let shown: Vec<Value> = events
        .iter()
        .filter(|event| event["type"] == "BlockStored")
        .map(|event| {
            json!([
                event["group_idx"],
                event["kv_cache_spec_kind"],
                event.get("kv_cache_spec_sliding_window"),
                event["block_hashes"].as_array().map(Vec::len),
                event["token_ids"].as_array().map(Vec::len),
            ])
        })
        .collect();
    // A window of 64 tokens before token 192 is kept; tokens are those of all blocks.
    let window = |group: u32| json!([group, "sliding_window", 64, 4, 192]);
    let full = json!([5, "full_attention", null, 12, 192]);
    let expected: Vec<Value> = (0..5).map(window).chain([full]).collect();
    assert_eq!(shown, expected);
    sim.server.shut_down_server().await;
}

/// Blocks of a GPU that a prompt of 1500 tokens fills: 94 in each of six groups, and the null block.
const SMALL: &str = "565";

/// A conversation of 20 turns, between which others take the GPU's blocks: cached tokens of each prompt,
/// lengths, and the sum of the times to the first token.
async fn converse_among_others(sim: &Sim) -> (Vec<u64>, Vec<u64>, f64) {
    let mut prompt: Vec<u64> = Vec::new();
    let (mut hits, mut lengths, mut waited) = (Vec::new(), Vec::new(), 0.0);
    let first = "vllm:time_to_first_token_seconds_sum";
    for turn in 0..20 {
        prompt.extend((0..24).map(|at| 10 + turn * 24 + at));
        let mut body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 40,
            "ignore_eos": true, "return_token_ids": true});
        let before = sim.metric(first).await;
        let answer = sim.post("/v1/completions", &body).await.json();
        waited += sim.metric(first).await - before;
        let usage = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        hits.push(usage.as_u64().unwrap_or(0));
        lengths.push(prompt.len() as u64);
        let reply = answer["choices"][0]["token_ids"].as_array().unwrap();
        prompt.extend(reply.iter().filter_map(Value::as_u64));
        let others: Vec<u64> = (0..1500).map(|at| 1000 + (at * 7 + turn) % 3000).collect();
        (body["prompt"], body["max_tokens"]) = (json!(others), json!(1));
        assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
    }
    (hits, lengths, waited)
}

#[tokio::test]
async fn windowed_model_turns_reload_from_host() {
    let folder = gemma_like();
    let pace = ["--prefill-time-per-token", "60us"];
    let host = ["--kv-offloading-size", "10", "--kv-offloading-bandwidth", "0.03"];
    let all = [("4000", &[][..]), (SMALL, &host[..]), (SMALL, &[][..])];
    let mut waits = Vec::new();
    for (blocks, more) in all {
        let sim = start_with(&folder, blocks, &[&pace[..], more].concat()).await;
        let (hits, lengths, waited) = converse_among_others(&sim).await;
        let before = lengths.iter().map(|length| (length - 1) / BLOCK * BLOCK);
        let expected: Vec<u64> = match blocks == SMALL && more.is_empty() {
            true => vec![0; 20],
            false => std::iter::once(0).chain(before).take(20).collect(),
        };
        assert_eq!(hits, expected, "{blocks} {more:?}");
        let metric = async |name: &str| sim.metric(&format!("vllm:{name}_total")).await as u64;
        let (on_gpu, on_host) =
            (metric("prefix_cache_hits").await, metric("external_prefix_cache_hits").await);
        assert_eq!(on_gpu + on_host, hits.iter().sum::<u64>());
        assert_eq!(on_host > 0, !more.is_empty());
        assert_eq!(metric("prompt_tokens").await, lengths.iter().sum::<u64>() + 30_000);
        if !more.is_empty() {
            // Two layers of a group keep 8 KiB of a block, and windows load four blocks each.
            let loaded = metric("kv_offload_load_bytes").await;
            assert_eq!(loaded % 8192, 0);
            assert!(loaded >= on_host * 512 && loaded < on_host * 3072, "{loaded} of {on_host}");
        }
        waits.push(waited);
        sim.server.shut_down_server().await;
    }
    assert!(waits.is_sorted(), "{waits:?}");
}
