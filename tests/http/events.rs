//! The order of KV-cache events on the wire, case by case, as a real vLLM 0.32.0 sent them.
//!
//! Blocks have names: `A1` is the second block of a sequence whose first token is that of `A`.
//! Each line is one message; `+` is one BlockStored, `-` one BlockRemoved.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::sim::{Sim, post};

const BLOCK: usize = 32;
/// Longest wait for a message. Only a hang takes that long.
const PATIENCE_MS: i32 = 20_000;
/// How often a subscriber is offered a message until its subscription has arrived.
const OFFER_MS: i32 = 20;

/// The prompt called `name`, that long.
pub(super) fn prompt(name: char, tokens: u32) -> Vec<u32> {
    let first = 100 + name as u32;
    std::iter::once(first).chain((1..tokens).map(|token| 1000 + token)).collect()
}

/// A server with 49 blocks of 32 tokens, and one who listens.
struct Wired {
    sim: Sim,
    heard: zmq::Socket,
    next: u64,
    /// Names of the blocks by their hashes.
    names: HashMap<u64, String>,
}

impl Wired {
    async fn start(flags: &[&str]) -> Self {
        let heard = zmq::Context::new().socket(zmq::SUB).unwrap();
        heard.set_subscribe(b"").unwrap();
        heard.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = heard.get_last_endpoint().unwrap().unwrap();
        let events = json!({"enable_kv_cache_events": true, "endpoint": endpoint}).to_string();
        let common = [
            "--kv-events-config",
            &events,
            "--block-size",
            "32",
            "--num-gpu-blocks-override",
            "50",
            "--max-model-len",
            "1024",
            "--dev-mode",
        ];
        let sim = Sim::serve(&[&common[..], flags].concat()).await;
        let mut wired = Self { sim, heard, next: 0, names: HashMap::new() };
        wired.attach().await;
        wired
    }

    /// Empties the cache and makes a step, so that the message of it is sent.
    async fn fence(&self) {
        let reset = self.sim.post("/reset_prefix_cache", &json!({})).await;
        assert_eq!(reset.status, 200);
        self.complete(&prompt('z', 3), 1).await;
    }

    /// Makes messages until one has come, so that none that follow are lost.
    async fn attach(&mut self) {
        self.heard.set_rcvtimeo(OFFER_MS).unwrap();
        for offered in 1..=PATIENCE_MS / OFFER_MS {
            self.fence().await;
            if let Ok(frames) = self.heard.recv_multipart(0) {
                self.heard.set_rcvtimeo(PATIENCE_MS).unwrap();
                let (mut last, _) = read(&frames);
                while last + 1 < offered as u64 {
                    last = read(&self.heard.recv_multipart(0).unwrap()).0;
                }
                self.next = last + 1;
                return;
            }
        }
        panic!("the subscription never arrived");
    }

    async fn send(&self, prompt: &[u32], more: Value) -> Value {
        let mut body = json!({"prompt": prompt, "ignore_eos": true, "seed": 1, "temperature": 0});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let answer = self.sim.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    async fn complete(&self, prompt: &[u32], tokens: u32) {
        self.send(prompt, json!({"max_tokens": tokens})).await;
    }

    /// The events of all messages that were sent up to here.
    async fn messages(&mut self) -> Vec<Vec<Value>> {
        self.fence().await;
        let mut messages = Vec::new();
        loop {
            let frames = self.heard.recv_multipart(0).expect("a message in time");
            let (sequence, events) = read(&frames);
            assert_eq!(sequence, self.next, "no number is left out");
            self.next += 1;
            if events == [json!({"type": "AllBlocksCleared"})] {
                return messages;
            }
            messages.push(events);
        }
    }

    /// All that was sent up to here, a line for each message.
    async fn received_events(&mut self) -> Vec<String> {
        let messages = self.messages().await;
        let mut line = |events: &Vec<Value>| {
            let shown: Vec<_> = events.iter().map(|event| self.show(event)).collect();
            shown.join(" | ")
        };
        messages.iter().map(&mut line).collect()
    }

    fn show(&mut self, event: &Value) -> String {
        let hashes = event["block_hashes"].as_array().cloned().unwrap_or_default();
        let hashes: Vec<u64> = hashes.iter().map(|hash| hash.as_u64().unwrap()).collect();
        match event["type"].as_str().unwrap() {
            "AllBlocksCleared" => "cleared".to_owned(),
            "BlockStored" if event["medium"] == "CPU" => {
                assert_eq!((&event["token_ids"], &event["block_size"]), (&json!([]), &json!(0)));
                assert!(event.get("extra_keys").is_none());
                format!("host+{}", self.names[&hashes[0]])
            }
            "BlockRemoved" => {
                assert_eq!(hashes.len(), 1, "a removal names one block");
                assert!(event.get("session_id").is_none());
                format!("-{}", self.names[&hashes[0]])
            }
            "BlockStored" => {
                let tokens = event["token_ids"].as_array().unwrap();
                assert_eq!(tokens.len(), BLOCK * hashes.len());
                let mut shown = "+".to_owned();
                let mut before =
                    event["parent_block_hash"].as_u64().map(|parent| self.names[&parent].clone());
                for (index, hash) in hashes.into_iter().enumerate() {
                    let name = match &before {
                        Some(parent) => {
                            let (root, place) = parent.split_at(1);
                            format!("{root}{}", place.parse::<u32>().unwrap() + 1)
                        }
                        None => {
                            let first = tokens[index * BLOCK].as_u64().unwrap() - 100;
                            format!("{}0", char::from(first as u8))
                        }
                    };
                    let known = self.names.insert(hash, name.clone());
                    assert!(known.is_none_or(|known| known == name), "{name}");
                    if index > 0 {
                        shown.push(' ');
                    }
                    shown.push_str(&name);
                    before = Some(name);
                }
                if let Some(session) = event.get("session_id") {
                    shown.push_str(&format!(" of {}", session.as_str().unwrap()));
                }
                shown
            }
            other => panic!("{other}"),
        }
    }
}

/// Sequence number and events of a message.
pub(super) fn read(frames: &[Vec<u8>]) -> (u64, Vec<Value>) {
    let [topic, sequence, payload] = frames else {
        panic!("{} frames", frames.len());
    };
    assert_eq!(topic, b"");
    let (_, events, rank): (f64, Vec<Value>, u32) = rmp_serde::from_slice(payload).unwrap();
    assert_eq!(rank, 0);
    let sequence = sequence.as_slice().try_into().unwrap();
    (u64::from_be_bytes(sequence), events)
}

#[tokio::test]
async fn prompt_blocks_are_stored_when_computed_and_hits_emit_no_event() {
    let mut wired = Wired::start(&[]).await;
    wired.complete(&prompt('A', 100), 1).await;
    assert_eq!(wired.received_events().await, ["+A0 A1 A2"]);

    // A hit leaves the last token to compute, so that a whole block is stored again.
    wired.complete(&prompt('A', 64), 1).await;
    wired.complete(&prompt('A', 64), 1).await;
    assert_eq!(wired.received_events().await, ["+A0 A1", "+A1"]);

    // What is longer goes on where the cache ends.
    wired.complete(&prompt('A', 64), 1).await;
    wired.complete(&prompt('A', 140), 1).await;
    assert_eq!(wired.received_events().await, ["+A0 A1", "+A2 A3"]);

    wired.complete(&prompt('A', 31), 1).await;
    assert!(wired.received_events().await.is_empty(), "shorter than a block");
}

/// vLLM 0.33: `_get_session_id` of `entrypoints/generate/base/serving.py`.
#[tokio::test]
async fn stored_blocks_name_the_session_of_body_header_or_arguments() {
    let mut wired = Wired::start(&[]).await;
    let header = "X-Session-ID: header";
    let xargs = json!({"session_id": "argument"});
    for (name, body, headers, session) in [
        ('A', json!({"session_id": "body", "vllm_xargs": xargs}), &[header][..], " of body"),
        ('B', json!({"session_id": "", "vllm_xargs": xargs}), &[header], " of header"),
        ('C', json!({"vllm_xargs": xargs}), &["X-Session-ID:"], " of argument"),
        ('D', json!({"vllm_xargs": {"session_id": 7}}), &[], ""),
        ('E', json!({"vllm_xargs": {"session_id": ""}}), &[], ""),
    ] {
        let mut body = body;
        body["prompt"] = json!(prompt(name, 30));
        body["max_tokens"] = json!(3);
        body["ignore_eos"] = json!(true);
        let answer = wired.sim.post_with("/v1/completions", headers, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // The block has prompt and output tokens.
        assert_eq!(wired.received_events().await, [format!("+{name}0{session}")]);
    }
    // An evicted block has no session, and blocks in CPU memory have none either.
    for name in 'A'..='J' {
        wired.send(&prompt(name, 192), json!({"max_tokens": 1, "session_id": "s"})).await;
    }
    let heard = wired.received_events().await;
    assert!(heard[9].starts_with("-A0 | -B5") && heard[9].ends_with("J5 of s"), "{heard:?}");
}

#[tokio::test]
async fn every_api_that_vllm_gives_a_session_names_it() {
    let mut wired = Wired::start(&["--enable-scale-out"]).await;
    let text = "one two three four ".repeat(12);
    let chat = json!([{"role": "user", "content": text}]);
    for (path, mut body, in_body) in [
        ("/v1/chat/completions", json!({"messages": chat}), true),
        ("/v1/responses", json!({"input": text}), true),
        ("/v1/chat/completions/batch", json!({"messages": [chat]}), false),
        ("/v1/messages", json!({"messages": chat, "max_tokens": 4}), false),
        (
            "/inference/v1/generate",
            json!({"token_ids": prompt('A', 40), "sampling_params": {"max_tokens": 1}}),
            false,
        ),
    ] {
        body["model"] = json!("tiny-llama");
        let answer = wired.sim.post_with(path, &["X-Session-ID: agent"], &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let sessions = |messages: Vec<Vec<Value>>| -> Vec<Value> {
            messages.concat().iter().map(|event| event["session_id"].clone()).collect()
        };
        let found = sessions(wired.messages().await);
        assert!(!found.is_empty() && found.iter().all(|id| id == "agent"), "{path}: {found:?}");
        if in_body {
            body["session_id"] = json!("mine");
            wired.sim.post_with(path, &["X-Session-ID: agent"], &body).await;
            let found = sessions(wired.messages().await);
            assert!(!found.is_empty() && found.iter().all(|id| id == "mine"), "{path}: {found:?}");
        }
    }
}

/// vLLM 0.33: `get_computed_blocks` of `v1/core/kv_cache_manager.py`.
#[tokio::test]
async fn reused_blocks_are_reported_if_a_request_asks_for_it() {
    let mut wired = Wired::start(&[]).await;
    let report =
        |mode: &str| json!({"max_tokens": 1, "vllm_xargs": {"kv_cache_report_mode": mode}});
    wired.send(&prompt('A', 100), report("full")).await;
    for mode in ["full", "incremental", "FULL"] {
        wired.send(&prompt('A', 100), report(mode)).await;
    }
    // Only the second request reports: the first finds nothing.
    let hits = wired.received_events().await;
    assert_eq!(hits, ["+A0 A1 A2", "+A0 A1 A2"]);
    wired.send(&prompt('A', 100), report("incremental")).await;
    let mut longer = report("full");
    longer["vllm_xargs"]["session_id"] = json!("s");
    wired.send(&prompt('A', 140), longer).await;
    assert_eq!(wired.received_events().await, ["+A0 A1 A2", "+A0 A1 A2 of s | +A3 of s"]);
    // A reported block is not one more copy: all three are evicted once.
    let cached = wired.sim.get("/debug/kv_cache").await.text();
    assert!(!cached.contains("\"count\":2"), "{cached}");
}

#[tokio::test]
async fn decoded_blocks_are_stored_when_full() {
    let mut wired = Wired::start(&[]).await;
    // The last of 100 tokens is never computed.
    wired.complete(&prompt('A', 30), 70).await;
    assert_eq!(wired.received_events().await, ["+A0", "+A1", "+A2"]);
    // 96 tokens, of which 95 are computed.
    wired.complete(&prompt('B', 30), 66).await;
    assert_eq!(wired.received_events().await, ["+B0", "+B1"]);
    // Less than a block of the prompt is no hit: the same block is stored again.
    wired.complete(&prompt('A', 30), 10).await;
    wired.complete(&prompt('A', 30), 10).await;
    assert_eq!(wired.received_events().await, ["+A0", "+A0"]);
}

#[tokio::test]
async fn same_prompt_in_one_step_is_stored_once() {
    let mut wired = Wired::start(&[]).await;
    let before = wired.sim.metric("vllm:prefix_cache_hits_total").await;
    let asked = json!({"max_tokens": 1, "n": 2, "temperature": 1});
    wired.send(&prompt('A', 70), asked).await;
    let hits = wired.sim.metric("vllm:prefix_cache_hits_total").await;
    assert_eq!(hits - before, 64.0);
    assert_eq!(wired.received_events().await, ["+A0 A1"]);
}

#[tokio::test]
async fn the_end_of_the_oldest_prompt_is_evicted_first() {
    let mut wired = Wired::start(&[]).await;
    wired.complete(&prompt('A', 100), 1).await;
    for name in 'B'..='H' {
        wired.complete(&prompt(name, 192), 1).await;
    }
    // 45 of 49 are cached: these six take four that are free.
    wired.complete(&prompt('I', 192), 1).await;
    let heard = wired.received_events().await;
    assert_eq!(heard[0], "+A0 A1 A2");
    assert_eq!(heard[7], "+H0 H1 H2 H3 H4 H5");
    assert_eq!(heard[8..], ["-A2 | -A1 | +I0 I1 I2 I3 I4 I5"]);
}

#[tokio::test]
async fn cache_reset_takes_effect_at_next_step() {
    let mut wired = Wired::start(&[]).await;
    wired.complete(&prompt('A', 64), 1).await;
    for _ in 0..2 {
        let reset = wired.sim.post("/reset_prefix_cache", &json!({})).await;
        assert_eq!(reset.json(), json!({"success": true}));
    }
    wired.complete(&prompt('B', 64), 1).await;
    let heard = wired.received_events().await;
    assert_eq!(heard, ["+A0 A1", "cleared | cleared | +B0 B1"]);
}

#[tokio::test]
async fn a_client_disconnect_emits_no_event() {
    let mut wired = Wired::start(&["--inter-token-latency", "100ms"]).await;
    let body = json!({"prompt": prompt('A', 33), "max_tokens": 500, "stream": true,
        "ignore_eos": true});
    let mut wire = wired.sim.connect().await;
    let bytes = body.to_string().into_bytes();
    wire.send(&post("/v1/completions", &[], &bytes)).await;
    assert_eq!(wire.head().await.status, 200);
    assert!(wire.chunk().await.is_some());
    drop(wire);
    assert!(wired.sim.is_idle().await);
    assert_eq!(wired.received_events().await, ["+A0"]);
}

#[tokio::test]
async fn a_preempted_sequence_stores_again_what_was_taken() {
    let mut wired = Wired::start(&["--inter-token-latency", "1ms"]).await;
    let body = json!({"prompt": [prompt('A', 640), prompt('B', 640)], "max_tokens": 300,
        "ignore_eos": true});
    let answer = wired.sim.post("/v1/completions", &body).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 600);
    let preempted = wired.sim.metric("vllm:num_preemptions_total").await;
    assert_eq!(preempted, 1.0);
    // Whether both prompts came in time for one step is open; the order is not.
    let heard = wired.received_events().await.join(" | ");
    let whole = |name: char, blocks: std::ops::Range<u32>| {
        let names: Vec<_> = blocks.map(|block| format!("{name}{block}")).collect();
        format!("+{}", names.join(" "))
    };
    let mut due = vec![whole('A', 0..20), whole('B', 0..20)];
    // Both decode until they hold all blocks, and the later one loses its own.
    due.extend((20..23).flat_map(|block| [format!("+A{block}"), format!("+B{block}")]));
    // Its last block goes first, one for each that the other needs.
    due.extend(["+A23".to_owned(), "+A24".to_owned()]);
    due.extend((0..4).flat_map(|i| [format!("-B{}", 22 - i), format!("+A{}", 25 + i)]));
    // It comes back to what is left of its own, and the end of the other makes room.
    due.extend((24..29).rev().map(|block| format!("-A{block}")));
    due.push(whole('B', 19..24));
    due.extend((0..5).flat_map(|i| [format!("-A{}", 23 - i), format!("+B{}", 24 + i)]));
    assert_eq!(heard, due.join(" | "));
}

#[tokio::test]
async fn host_blocks_are_announced_after_copy() {
    let flags = ["--kv-offloading-size", "1", "--kv-bytes-per-token", "1000"];
    let mut wired = Wired::start(&flags).await;
    wired.complete(&prompt('A', 100), 1).await;
    let stored = "vllm:kv_offload_store_bytes_total";
    assert!(wired.sim.shows(stored, 96_000.0).await);
    assert_eq!(wired.received_events().await, ["+A0 A1 A2", "host+A0 | host+A1 | host+A2"]);
    // The cache of the GPU was emptied: its blocks come from the host.
    wired.complete(&prompt('A', 100), 1).await;
    assert_eq!(wired.received_events().await, ["+A0 A1 A2"]);
    assert!(wired.sim.shows("vllm:kv_offload_load_bytes_total", 96_000.0).await);
}

/// A setting of a running server, or of a scenario's phase.
#[tokio::test]
async fn events_are_dropped_while_the_fault_is_active() {
    let wired = Wired::start(&[]).await;
    let lose = async |lose: bool| {
        let settings = json!({"lose-kv-events": lose});
        let answer = wired.sim.post("/admin/config", &settings).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    lose(true).await;
    for _ in 0..3 {
        wired.fence().await;
    }
    lose(false).await;
    wired.fence().await;
    // What was sent before comes first, then there is a gap.
    let heard = || {
        let frames = wired.heard.recv_multipart(0);
        read(&frames.expect("a message behind the gap")).0
    };
    let mut next = wired.next;
    while heard() <= next {
        next += 1;
    }
}
