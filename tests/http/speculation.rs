//! Draft tokens: what streams and metrics show of them.

use serde_json::{Value, json};

use super::sim::Sim;

/// What Python makes of two blocks of the ids 10, 11, … that look one token ahead.
const LOOKING_AHEAD: [u64; 2] = [3_112_054_894_801_630_561, 844_476_844_017_661_460];

async fn drafting(config: &Value, more: &[&str]) -> Sim {
    let config = config.to_string();
    let flags = [&["--speculative-config", &config], more].concat();
    Sim::serve(&flags).await
}

fn position(page: &str, position: u32) -> f64 {
    let label = format!("position=\"{position}\"");
    let lines = page.lines().filter(|line| line.contains(&label));
    let lines = lines.filter(|line| line.contains("num_accepted_tokens_per_pos_total"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn mean_acceptance_length_matches_config() {
    let config = json!({"method": "eagle3", "model": "d", "num_speculative_tokens": 4,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.24});
    let sim = drafting(&config, &["--max-model-len", "12000"]).await;
    let body = json!({"model": "tiny-llama", "prompt": "one two", "max_tokens": 10_000, "n": 10,
        "ignore_eos": true});
    let answer = sim.post("/v1/completions", &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 100_000);
    let page = sim.get("/metrics").await.text();
    let drafts = sim.metric("vllm:spec_decode_num_drafts_total").await;
    let accepted = sim.metric("vllm:spec_decode_num_accepted_tokens_total").await;
    let mean = 1.0 + accepted / drafts;
    assert!((mean / 3.24 - 1.0).abs() < 0.01, "{mean}");
    let proposed = sim.metric("vllm:spec_decode_num_draft_tokens_total").await;
    assert_eq!(proposed, 4.0 * drafts);
    assert_eq!(position(&page, 0), drafts);
    assert_eq!(position(&page, 3), 0.0);
    // One gap for each output of the engine, as vLLM counts.
    let gaps = sim.metric("vllm:inter_token_latency_seconds_count").await;
    assert_eq!(gaps, drafts);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn a_chunk_of_a_stream_has_the_tokens_of_a_step() {
    let config = json!({"method": "mtp", "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1, 1, 1]});
    let delays = ["--time-to-first-token", "1ms", "--inter-token-latency", "5ms"];
    let sim = drafting(&config, &delays).await;
    let body = json!({"model": "tiny-llama", "prompt": "one two", "max_tokens": 9, "ignore_eos": true,
        "stream": true, "return_token_ids": true});
    let text = sim.post("/v1/completions", &body).await.text();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let events =
        events.filter_map(|event| serde_json::from_str::<Value>(&format!("{{{event}")).ok());
    let counts =
        events.filter_map(|event| Some(event["choices"][0]["token_ids"].as_array()?.len()));
    let counts: Vec<usize> = counts.filter(|count| *count > 0).collect();
    assert_eq!(counts, [1, 4, 4]);
    sim.server.shut_down_server().await;
}

#[tokio::test]
async fn ngram_drafts_only_where_the_text_repeats() {
    let config = json!({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4});
    for (mode, repeats) in [("echo", true), ("random", false)] {
        let sim = drafting(&config, &["--mode", mode]).await;
        let prompt = "The quick brown fox jumps over the lazy dog, and so on.";
        let body = json!({"model": "tiny-llama", "prompt": prompt, "max_tokens": 20,
            "ignore_eos": true});
        sim.post("/v1/completions", &body).await.json();
        let accepted = sim.metric("vllm:spec_decode_num_accepted_tokens_total").await;
        assert_eq!(accepted > 0.0, repeats, "{mode}: {accepted}");
        sim.server.shut_down_server().await;
    }
}

#[tokio::test]
async fn a_reply_reports_its_own_drafts() {
    let config = json!({"method": "eagle3", "model": "d", "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1, 0]});
    for level in ["summary", "detailed"] {
        let flags = ["--per-request-spec-decode-metrics", level];
        let sim = drafting(&config, &flags).await;
        let mut body = json!({"model": "tiny-llama", "prompt": "one two", "max_tokens": 9,
            "ignore_eos": true});
        let answer = sim.post("/v1/completions", &body).await.json();
        let metrics = &answer["metrics"];
        assert!(metrics["queue_time_ms"].is_null(), "{answer}");
        let told = &metrics["speculative_decoding"];
        assert_eq!(told["mean_acceptance_length"], 2.0);
        assert_eq!(told["draft_acceptance_rate"], 0.5);
        assert_eq!(told["acceptance_histogram"], json!([0, 4, 0]));
        assert_eq!(told["num_spec_tokens"], 2);
        let steps = match level {
            "detailed" => json!([1, 1, 1, 1]),
            _ => Value::Null,
        };
        assert_eq!(told["per_step_accepted"], steps);
        body["n"] = 2.into();
        let two = sim.post("/v1/completions", &body).await.json();
        assert!(two["metrics"].is_null(), "{two}");
        body["n"] = 1.into();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let text = sim.post("/v1/completions", &body).await.text();
        assert!(text.contains("\"num_spec_steps\":4"), "{text}");
        sim.server.shut_down_server().await;
    }
}

#[tokio::test]
async fn longer_acceptance_shortens_token_gaps() {
    let mut gaps = Vec::new();
    for length in [1.0, 3.0] {
        let config = json!({"method": "mtp", "num_speculative_tokens": 3,
            "rejection_sample_method": "synthetic", "synthetic_acceptance_length": length});
        let sim = drafting(&config, &["--inter-token-latency", "2ms"]).await;
        let body = json!({"model": "tiny-llama", "prompt": "one two", "max_tokens": 61,
            "ignore_eos": true});
        sim.post("/v1/completions", &body).await.json();
        let sum = "vllm:request_time_per_output_token_seconds_sum";
        gaps.push(sim.metric(sum).await);
        sim.server.shut_down_server().await;
    }
    assert!((gaps[0] / gaps[1] / 3.0 - 1.0).abs() < 0.15, "{gaps:?}");
}

/// The blocks that a prompt of two and a half blocks stores, as an event shows them.
async fn stored(more: &[&str]) -> Value {
    let heard = zmq::Context::new().socket(zmq::SUB).unwrap();
    heard.set_subscribe(b"").unwrap();
    heard.bind("tcp://127.0.0.1:*").unwrap();
    heard.set_rcvtimeo(20).unwrap();
    let endpoint = heard.get_last_endpoint().unwrap().unwrap();
    let events = json!({"enable_kv_cache_events": true, "endpoint": endpoint}).to_string();
    let sim = Sim::serve(&[&["--kv-events-config", &events], more].concat()).await;
    let prompt: Vec<u64> = (10..50).collect();
    let body = json!({"model": "tiny-llama", "prompt": prompt, "max_tokens": 1});
    // Until the subscription has arrived, messages are lost.
    for _ in 0..1000 {
        assert_eq!(sim.post("/v1/completions", &body).await.status, 200);
        if let Ok(frames) = heard.recv_multipart(0) {
            let batch: (f64, Vec<Value>, u32) = rmp_serde::from_slice(&frames[2]).unwrap();
            let is_first = |event: &Value| {
                event["type"] == "BlockStored" && event["parent_block_hash"].is_null()
            };
            if let Some(event) = batch.1.into_iter().find(is_first) {
                sim.server.shut_down_server().await;
                return event;
            }
        }
        sim.post("/reset_prefix_cache", &json!({})).await;
    }
    panic!("no message in time");
}

#[tokio::test]
async fn block_hashes_include_the_next_token_with_eagle() {
    let dev = ["--dev-mode", "--prefix-caching-hash-algo", "sha256"];
    let eagle = |more: &str| {
        format!(r#"{{"method": "eagle3", "model": "d", "num_speculative_tokens": 2{more}}}"#)
    };
    let config = eagle("");
    let drafts = [&dev[..], &["--speculative-config", &config]].concat();
    let (ahead, plain) = (stored(&drafts).await, stored(&dev).await);
    assert_eq!(ahead["lookahead_token_ids"], json!([[26], [42]]));
    // Python: sha256 over pickle.dumps((root, tuple(range(10, 26)), (None, 26)), protocol=5), and so on.
    assert_eq!(ahead["block_hashes"], json!([LOOKING_AHEAD[0], LOOKING_AHEAD[1]]));
    assert!(plain.get("lookahead_token_ids").is_none(), "{plain}");
    assert_ne!(plain["block_hashes"], ahead["block_hashes"]);
    let config = eagle(r#", "disable_lookahead_block_hashes": true"#);
    let off = stored(&[&dev[..], &["--speculative-config", &config]].concat()).await;
    assert_eq!(off["block_hashes"], plain["block_hashes"]);
}
