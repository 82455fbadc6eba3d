//! Drills for an indexer of KV events: it joins late, and messages are lost on a schedule.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::events::{prompt, read};
use super::sim::Sim;

/// Longest wait for a message. Only a hang takes that long.
const PATIENCE_MS: i32 = 20_000;
/// Interval at which messages are made until a subscription is active.
const OFFER_MS: i32 = 20;
const END_OF_REPLAY: u64 = u64::MAX;

/// A server with 19 blocks of 32 tokens, whose events go to sockets in a folder.
struct Source {
    sim: Sim,
    folder: tempfile::TempDir,
    context: zmq::Context,
}

impl Source {
    async fn start(kept: u32, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = |name: &str| format!("ipc://{}/{name}", folder.path().display());
        let events = json!({"enable_kv_cache_events": true, "endpoint": endpoint("events"),
            "replay_endpoint": endpoint("replay"), "buffer_steps": kept})
        .to_string();
        let cache = ["--block-size", "32", "--num-gpu-blocks-override", "20", "--dev-mode"];
        let common = ["--kv-events-config", &events, "--max-model-len", "512"];
        let sim = Sim::serve(&[&cache[..], &common, flags].concat()).await;
        Self { sim, folder, context: zmq::Context::new() }
    }

    /// Completes a prompt; its full blocks are announced in one message.
    async fn complete(&self, name: char) {
        let body = json!({"prompt": prompt(name, 100), "max_tokens": 1});
        assert_eq!(self.sim.post("/v1/completions", &body).await.status, 200);
    }

    fn socket(&self, kind: zmq::SocketType, name: &str) -> zmq::Socket {
        let socket = self.context.socket(kind).unwrap();
        socket.set_rcvtimeo(PATIENCE_MS).unwrap();
        socket.connect(&format!("ipc://{}/{name}", self.folder.path().display())).unwrap();
        socket
    }

    /// The hashes in the cache, as the server knows them.
    async fn cached(&self) -> BTreeSet<u64> {
        let cache = self.sim.get("/debug/kv_cache").await.json();
        let blocks = cache["0"]["cached"].as_array().unwrap();
        blocks.iter().map(|block| block["hash"].as_u64().unwrap()).collect()
    }
}

/// An indexer: the copies of each hash, and the number of the next message.
struct Indexer {
    live: zmq::Socket,
    next: u64,
    copies: BTreeMap<u64, u32>,
}

impl Indexer {
    /// Subscribes, and makes messages until one has come; returns the number of that one, too.
    async fn join(source: &Source) -> (Self, u64) {
        let live = source.socket(zmq::SUB, "events");
        live.set_subscribe(b"").unwrap();
        live.set_rcvtimeo(OFFER_MS).unwrap();
        for name in ('a'..='z').cycle().take((PATIENCE_MS / OFFER_MS) as usize) {
            source.complete(name).await;
            if let Ok(frames) = live.recv_multipart(0) {
                live.set_rcvtimeo(PATIENCE_MS).unwrap();
                return (Self { live, next: 0, copies: BTreeMap::new() }, read(&frames).0);
            }
        }
        panic!("the subscription never arrived");
    }

    fn apply(&mut self, (sequence, events): (u64, Vec<Value>)) {
        // What was replayed comes again when it was also heard.
        if sequence < self.next {
            return;
        }
        self.next = sequence + 1;
        for event in events {
            let hashes = event["block_hashes"].as_array().cloned().unwrap_or_default();
            for hash in hashes.iter().map(|hash| hash.as_u64().unwrap()) {
                let copies = self.copies.entry(hash).or_default();
                match event["type"].as_str() {
                    Some("BlockStored") => *copies += 1,
                    _ => *copies = copies.saturating_sub(1),
                }
            }
        }
        self.copies.retain(|_, copies| *copies > 0);
    }

    /// Asks for all kept messages from a number on, and applies them; returns their numbers.
    fn replay(&mut self, source: &Source, from: u64) -> Vec<u64> {
        let dealer = source.socket(zmq::DEALER, "replay");
        dealer.send_multipart([&b""[..], &from.to_be_bytes()], 0).unwrap();
        let mut numbers = Vec::new();
        loop {
            let frames = dealer.recv_multipart(0).expect("an end of the replay");
            let sequence = u64::from_be_bytes(frames[2].as_slice().try_into().unwrap());
            if sequence == END_OF_REPLAY {
                return numbers;
            }
            numbers.push(sequence);
            self.apply(read(&frames[1..]));
        }
    }

    /// Applies live messages up to this number; returns the numbers that were left out.
    fn listen(&mut self, source: &Source, last: u64) -> Vec<u64> {
        let mut missing = Vec::new();
        while self.next <= last {
            let message = read(&self.live.recv_multipart(0).expect("a message in time"));
            let expected = self.next;
            if message.0 > expected {
                missing.extend(expected..message.0);
                self.replay(source, expected);
            }
            self.apply(message);
        }
        missing
    }

    fn known(&self) -> BTreeSet<u64> {
        self.copies.keys().copied().collect()
    }
}

#[tokio::test]
async fn a_late_indexer_knows_the_whole_cache_after_a_replay() {
    let source = Source::start(1000, &[]).await;
    // More than fits: the oldest blocks are evicted before the indexer comes.
    for name in 'A'..='M' {
        source.complete(name).await;
    }
    let (mut indexer, heard) = Indexer::join(&source).await;
    let numbers = indexer.replay(&source, 0);
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
    assert!(numbers.last() >= Some(&heard) && heard >= 13, "{numbers:?} {heard}");
    let known = indexer.known();
    assert_eq!(known, source.cached().await);
    assert!(known.len() > 12, "{known:?}");
    for name in 'N'..='Q' {
        source.complete(name).await;
    }
    indexer.listen(&source, numbers.len() as u64 + 3);
    assert_eq!(indexer.known(), source.cached().await);
}

#[tokio::test]
async fn a_late_indexer_sees_that_the_buffer_has_forgotten_the_start() {
    let source = Source::start(3, &[]).await;
    for name in 'A'..='F' {
        source.complete(name).await;
    }
    let (mut indexer, _) = Indexer::join(&source).await;
    let numbers = indexer.replay(&source, 0);
    assert!(numbers.len() == 3 && numbers[0] > 0, "{numbers:?}");
    let (known, cached) = (indexer.known(), source.cached().await);
    assert!(known.is_subset(&cached) && known.len() < cached.len());
}

#[tokio::test]
async fn messages_are_lost_on_a_schedule_and_can_be_replayed() {
    let source = Source::start(1000, &[]).await;
    let (mut indexer, _) = Indexer::join(&source).await;
    let next = indexer.replay(&source, 0).len() as u64;
    let scenario = json!({"name": "gaps", "phases": [
        {"name": "two of each hour", "requests": 5, "set": {"kv-event-gaps": "2/1h"}},
        {"name": "none"},
    ]});
    assert_eq!(source.sim.post("/admin/scenario", &scenario).await.status, 200);
    for name in 'R'..='V' {
        source.complete(name).await;
    }
    assert_eq!(indexer.listen(&source, next + 4), [next, next + 1]);
    assert_eq!(indexer.known(), source.cached().await);
    // The phase is over.
    for name in 'W'..='Y' {
        source.complete(name).await;
    }
    assert_eq!(indexer.listen(&source, next + 7), [0; 0]);
}
