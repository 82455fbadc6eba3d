//! `vllm-sim sglang` as gateways read it: KV events over ZeroMQ, and the metrics of llm-d's endpoint
//! picker.

use serde_json::{Value, json};

use super::sim::Sim;

/// Longest wait for a message. Only a hang takes that long.
const PATIENCE_MS: i32 = 20_000;
/// Wait of a subscriber before it offers another message.
const OFFER_MS: i32 = 50;

/// A subscriber at which the server publishes.
fn subscriber() -> (zmq::Socket, String) {
    let heard = zmq::Context::new().socket(zmq::SUB).unwrap();
    heard.set_subscribe(b"").unwrap();
    heard.bind("tcp://127.0.0.1:*").unwrap();
    let endpoint = heard.get_last_endpoint().unwrap().unwrap();
    (heard, endpoint)
}

/// Topic, number, events and rank of the next message.
fn next_message(heard: &zmq::Socket) -> Option<(Vec<u8>, u64, Value, Value)> {
    let frames = heard.recv_multipart(0).ok()?;
    let number = u64::from_be_bytes(frames[1][..].try_into().unwrap());
    let payload: Value = rmp_serde::from_slice(&frames[2]).unwrap();
    Some((frames[0].clone(), number, payload[1].clone(), payload[2].clone()))
}

async fn generate(sim: &Sim, ids: &[u32], more: Value) {
    let mut body = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 1}});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    assert_eq!(sim.post("/generate", &body).await.status, 200);
}

#[tokio::test]
async fn kv_events_have_the_form_of_sglang() {
    let (heard, endpoint) = subscriber();
    let config = json!({"publisher": "zmq", "endpoint": endpoint, "topic": "kv"}).to_string();
    let sim = Sim::sglang(&["--kv-events-config", &config, "--page-size", "4"]).await;
    let (_, port) = endpoint.rsplit_once(':').unwrap();
    let described = sim.get("/server_info").await.json()["kv_events"].take();
    assert_eq!(
        described,
        json!({"publisher": "zmq", "endpoint_host": "127.0.0.1",
            "endpoint_port_base": port.parse::<u16>().unwrap(), "topic": "kv", "block_size": 4,
            "dp_size": 1})
    );
    heard.set_rcvtimeo(OFFER_MS).unwrap();
    let mut offered = 0;
    let first = loop {
        offered += 1;
        assert!(offered < PATIENCE_MS / OFFER_MS, "the subscription never arrived");
        assert_eq!(sim.poke("/flush_cache").await.status, 200);
        generate(&sim, &[1; 3], json!({})).await;
        if let Some(message) = next_message(&heard) {
            break message;
        }
    };
    assert_eq!(first.0, b"kv");
    // Further offers may be on their way.
    while next_message(&heard).is_some() {}
    heard.set_rcvtimeo(PATIENCE_MS).unwrap();
    generate(&sim, &[1, 200, 300, 1500, 5, 6, 7, 8, 9], json!({})).await;
    let (_, number, events, rank) = next_message(&heard).unwrap();
    let stored = &events[0];
    let hashes = stored["block_hashes"].as_array().unwrap();
    let expected = json!({"type": "BlockStored", "block_hashes": hashes,
        "parent_block_hash": null, "token_ids": [1, 200, 300, 1500, 5, 6, 7, 8],
        "block_size": 4, "lora_id": null, "medium": "GPU"});
    // Members in SGLang's order, and none that is not set.
    assert_eq!(stored.to_string(), expected.to_string());
    assert_eq!((events.as_array().unwrap().len(), &rank), (1, &json!(0)));
    // `hash_str_to_int64` of SHA-256 over four little-endian tokens, and of the chain.
    assert_eq!(hashes, &[json!(KNOWN_HASHES[0]), json!(KNOWN_HASHES[1])]);
    generate(&sim, &[1, 200, 300, 1500], json!({"cache_salt": "pepper"})).await;
    let (_, next, events, _) = next_message(&heard).unwrap();
    assert_eq!((next, &events[0]["cache_salt"]), (number + 1, &json!("pepper")));
    assert_ne!(events[0]["block_hashes"][0], hashes[0]);
    assert_eq!(sim.poke("/flush_cache").await.status, 200);
    generate(&sim, &[1; 3], json!({})).await;
    let (_, _, events, _) = next_message(&heard).unwrap();
    assert_eq!(events, json!([{"type": "AllBlocksCleared"}]));
}

/// Hashes of two pages, computed with Python's hashlib as SGLang 0.5.23 does.
const KNOWN_HASHES: [i64; 2] = [-2_358_555_310_811_808_557, -7_049_814_432_158_702_258];

/// The names come from llm-d-router `pkg/epp/framework/plugins/datalayer/extractor/metrics/factories.go`
/// (engine `sglang`). Its `sglang:cache_config_info` is no metric of SGLang 0.5.23, which has the two
/// gauges in its place.
#[tokio::test]
async fn the_metrics_of_llm_ds_picker_are_on_the_page() {
    let sim = Sim::sglang(&["--enable-metrics", "--page-size", "16"]).await;
    let text = sim.get("/metrics").await.text();
    for name in [
        "sglang:num_queue_reqs",
        "sglang:num_running_reqs",
        "sglang:token_usage",
        "sglang:page_size",
        "sglang:num_pages",
    ] {
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        assert!(value.is_some(), "{name} is missing:\n{text}");
        // The picker takes the newest series of a family: there is one.
        assert_eq!(text.matches(&format!("\n{name}{{")).count(), 1, "{name}");
    }
    assert!(!text.contains("sglang:cache_config_info"));
}

#[tokio::test]
async fn every_histogram_ends_with_the_bucket_of_all_values() {
    let sim = Sim::sglang(&["--enable-metrics"]).await;
    generate(&sim, &[5, 6, 7], json!({})).await;
    let page = sim.get("/metrics").await.text();
    let histograms = page.lines().filter_map(|line| {
        line.strip_prefix("# TYPE ")?
            .strip_suffix(" histogram")
            .filter(|name| name.starts_with("sglang:"))
    });
    let mut checked = 0;
    for name in histograms {
        let last = |suffix: &str| {
            let start = format!("{name}{suffix}{{");
            page.lines().rfind(|line| line.starts_with(&start)).map(str::to_owned)
        };
        let Some(bucket) = last("_bucket") else { continue };
        assert!(bucket.contains("le=\"+Inf\""), "{bucket}");
        let value = |line: &str| line.rsplit(' ').next().map(str::to_owned);
        assert_eq!(value(&bucket), value(&last("_count").unwrap()), "{name}");
        checked += 1;
    }
    assert!(checked > 5, "{checked}");
}
