//! KV-cache events in llm-d's form, as its router reads them.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::sim::{Sim, eventually};

const BLOCK: usize = 8;
/// Longest wait for an answer of the replay endpoint. Only a hang takes that long.
const PATIENCE_MS: i32 = 20_000;
const IMAGE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAARgAAAA4CAIAAAAAAAAA";

/// A server that keeps its events for replay.
struct Replayed {
    sim: Sim,
    endpoint: String,
    _folder: TempDir,
}

impl Replayed {
    async fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = format!("ipc://{}/replay", folder.path().display());
        let common = [
            "--compat",
            "llm-d",
            "--enable-kvcache",
            "--block-size",
            "8",
            "--event-batch-size",
            "1",
            "--kv-events-replay-endpoint",
            &endpoint,
        ];
        let sim = Sim::llmd(&[&common[..], flags].concat()).await;
        Self { sim, endpoint, _folder: folder }
    }

    /// Number and events of every batch from 0 on.
    fn batches(&self) -> Vec<(u64, Vec<Value>)> {
        let socket = zmq::Context::new().socket(zmq::DEALER).unwrap();
        socket.set_rcvtimeo(PATIENCE_MS).unwrap();
        socket.set_linger(0).unwrap();
        socket.connect(&self.endpoint).unwrap();
        socket.send_multipart([&b""[..], &0u64.to_be_bytes()], 0).unwrap();
        let mut batches = Vec::new();
        loop {
            let frames = socket.recv_multipart(0).unwrap();
            let [_, _, number, payload] = frames.as_slice() else {
                panic!("{} frames", frames.len());
            };
            if payload.is_empty() {
                return batches;
            }
            let (_, events, _): (f64, Vec<Value>, u32) = rmp_serde::from_slice(payload).unwrap();
            let number = u64::from_be_bytes(number.as_slice().try_into().unwrap());
            batches.push((number, events));
        }
    }

    /// The first event of each batch, once there are so many.
    async fn events(&self, many: usize) -> Vec<Value> {
        let mut batches = Vec::new();
        let came = eventually(async || {
            batches = self.batches();
            batches.len() >= many
        });
        assert!(came.await, "{batches:?}");
        let numbers: Vec<u64> = batches.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..many as u64).collect::<Vec<_>>());
        batches.into_iter().map(|(_, events)| events[0].clone()).collect()
    }

    async fn complete(&self, ids: &[u32], more: Value) {
        let mut body = json!({"model": "tiny-llama", "prompt": ids, "max_tokens": 20,
            "ignore_eos": true});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let answer = self.sim.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

fn ids(first: u32, many: usize) -> Vec<u32> {
    (first..).take(many).collect()
}

/// The picker drops every batch, live ones too, until it has had number 0.
#[tokio::test]
async fn with_a_replay_endpoint_the_first_batch_is_number_0() {
    let sim = Replayed::start(&[]).await;
    sim.complete(&ids(100, 17), json!({})).await;
    sim.complete(&ids(500, 17), json!({})).await;
    let events = sim.events(2).await;
    for (event, first) in events.iter().zip([100, 500]) {
        assert_eq!(event[0], "BlockStored");
        assert_eq!(event[3], json!(ids(first, 2 * BLOCK)), "only full blocks of prompts");
        assert_eq!(event[8], Value::Null);
    }
}

#[tokio::test]
async fn cache_salt_and_adapter_separate_block_hashes() {
    let adapter = ["--lora-modules", r#"{"name":"sql","path":"p"}"#];
    let sim = Replayed::start(&adapter).await;
    let prompt = ids(100, 17);
    sim.complete(&prompt, json!({})).await;
    sim.complete(&prompt, json!({"cache_salt": "pepper"})).await;
    sim.complete(&prompt, json!({"model": "sql"})).await;
    let both = json!({"model": "sql", "cache_salt": "pepper"});
    sim.complete(&prompt, both.clone()).await;
    // Known by now.
    sim.complete(&prompt, both).await;
    let events = sim.events(4).await;
    let keys: Vec<_> = events.iter().map(|event| event[8].clone()).collect();
    let salt = json!([["pepper"], null]);
    assert_eq!(keys, [Value::Null, salt.clone(), Value::Null, salt]);
    let names: Vec<_> = events.iter().map(|event| event[7].clone()).collect();
    assert_eq!(names, [json!(null), json!(null), json!("sql"), json!("sql")]);
    let mut hashes: Vec<_> = events.iter().map(|event| event[1].to_string()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 4, "no two are one");
}

/// The router computes the keys of a prompt from what `/render` says of it, and finds them by the
/// identifiers in `extra_keys`.
#[tokio::test]
async fn blocks_of_an_image_name_it_as_render_does() {
    let form = ["--use-vllm-map-event-format", "--mm-tokens-per-item", "{\"image\": 20}"];
    let sim = Replayed::start(&form).await;
    let parts = json!([{"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": IMAGE}}]);
    let body = json!({"model": "tiny-llama", "max_tokens": 4,
        "messages": [{"role": "user", "content": parts}]});
    let rendered = sim.sim.post("/v1/chat/completions/render", &body).await.json();
    let features = &rendered["features"];
    let hash = features["mm_hashes"]["image"][0].clone();
    let place = &features["mm_placeholders"]["image"][0];
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let (start, length) = (number(&place["offset"]), number(&place["length"]));
    let answer = sim.sim.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = sim.events(1).await.remove(0);
    let tokens = event["token_ids"].as_array().unwrap();
    let prompt = rendered["token_ids"].as_array().unwrap();
    assert_eq!(tokens[..], prompt[..tokens.len()]);
    let overlaps = |block: usize| {
        let begin = block * BLOCK;
        (begin < start + length && start < begin + BLOCK).then(|| json!([hash]))
    };
    let due: Vec<_> = (0..tokens.len() / BLOCK).map(overlaps).collect();
    assert!(due.iter().flatten().count() > 1, "{due:?}");
    assert_eq!(event["extra_keys"], json!(due));
}
