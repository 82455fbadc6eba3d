//! Measures the cost of the schedulers per token and per request, in virtual time.
//!
//! `cargo bench --bench engine` prints nanoseconds; `cargo test --benches` runs a small version. A
//! word after `--` selects the lines that contain it: `cargo bench --bench engine -- vllm`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vllm_sim_engine::SimTime;
use vllm_sim_engine::kv::{HostCacheConfig, HostCacheEvictionPolicy, OffloadConnector};
use vllm_sim_engine::latency::{LatencyModel, PolynomialStepTime};
use vllm_sim_engine::sched::pool::{SlotScheduler, SlotSchedulerConfig};
use vllm_sim_engine::sched::vllm::{SchedulerReportingConfig, VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{
    BlockKey, Outbox, PlannedKvBlocks, Scheduler, SchedulerEvent, SeqId, Sequence, TokenDelays,
};

use offline::StepSeries;

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../tests/engine/offline.rs"]
mod offline;

/// Runs `requests` of `output` tokens through `slots` slots.
#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn play(name: &str, slots: usize, requests: u64, output: u32, delays: &TokenDelays) {
    let mut pool = SlotScheduler::new(SlotSchedulerConfig {
        slots,
        queue: None,
        delays: delays.clone(),
        seed: 7,
        ..SlotSchedulerConfig::default()
    });
    let arrivals: Vec<_> = (0..requests)
        .map(|id| (SimTime::from_millis(id / 8), Sequence::new(SeqId(id), 100, output)))
        .collect();
    let start = Instant::now();
    let log = offline::run(&mut pool, arrivals).expect("the queue has no bound");
    let taken = start.elapsed().as_nanos();
    let ended = log.iter().filter(|(_, event)| matches!(event, SchedulerEvent::Ended { .. }));
    assert_eq!(ended.count() as u64, requests, "{name}: some requests never end");
    let (each, token) =
        (taken / u128::from(requests), taken / u128::from(requests * u64::from(output)));
    println!("{name:<28} {token:>9} ns per token {each:>9} ns per request");
}

/// Runs a closed loop on one engine of the vLLM scheduler.
struct Loop {
    batch: u32,
    prompt: u32,
    output: u32,
    block: u32,
    /// Number of requests that share the first half of the prompt; 0: none.
    groups: u64,
    config: VllmSchedulerConfig,
}

impl Loop {
    fn sequence(&self, id: u64) -> Sequence {
        let blocks = u64::from((self.prompt + self.output) / self.block);
        let shared = match self.groups {
            0 => 0,
            _ => u64::from(self.prompt / 2 / self.block),
        };
        let keys = (0..blocks).map(|i| {
            let name = match i < shared {
                true => (id % self.groups) << 32 | i,
                false => 1 << 63 | id << 24 | i,
            };
            BlockKey(name.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        });
        let plan = PlannedKvBlocks {
            keys: keys.collect(),
            block_size: self.block,
            ..PlannedKvBlocks::default()
        };
        Sequence {
            plan: Some(Arc::new(plan)),
            ..Sequence::new(SeqId(id), self.prompt, self.output)
        }
    }

    /// Runs `requests` requests and returns the number of released tokens.
    fn play(&self, requests: u64) -> u64 {
        let mut engine = VllmScheduler::new(self.config.clone()).expect("the settings are sound");
        let (mut out, mut steps) = (Outbox::new(), StepSeries::default());
        let (mut sent, mut tokens) = (0, 0);
        let mut send = |engine: &mut VllmScheduler, now, out: &mut Outbox| {
            if sent < requests {
                let seq = self.sequence(sent);
                engine.submit(now, seq, out).expect("every one fits");
                sent += 1;
            }
        };
        for _ in 0..self.batch {
            send(&mut engine, SimTime::ZERO, &mut out);
        }
        while let Some(now) = engine.next_wakeup() {
            engine.advance(now, &mut out);
            let mut over = 0;
            for (at, event) in out.drain(..) {
                match event {
                    SchedulerEvent::Tokens { n, .. } => tokens += u64::from(n),
                    SchedulerEvent::Decoded { n, .. } => tokens += steps.run(n).len() as u64,
                    SchedulerEvent::Step { .. } => steps.ended(at),
                    SchedulerEvent::Ended { .. } => over += 1,
                    _ => {}
                }
            }
            for _ in 0..over {
                send(&mut engine, now, &mut out);
            }
        }
        tokens
    }

    #[expect(clippy::disallowed_methods, reason = "a stopwatch")]
    fn time(&self, name: &str, requests: u64) {
        let start = Instant::now();
        let tokens = self.play(requests);
        let taken = start.elapsed();
        assert_eq!(tokens, requests * u64::from(self.output), "{name}");
        println!(
            "{name:<40} {:>7.1} M tokens/s {:>9} ns per request {:>7.3} s",
            tokens as f64 / taken.as_secs_f64() / 1e6,
            taken.as_nanos() / u128::from(requests),
            taken.as_secs_f64(),
        );
    }
}

/// Returns a host tier with room for a million blocks.
const TIER: HostCacheConfig = HostCacheConfig {
    rules: OffloadConnector::Native,
    eviction: HostCacheEvictionPolicy::Lru,
    chunks: 1_000_000,
    blocks_per_chunk: 1,
    chunk_bytes: 2 << 20,
    threshold: None,
    outputs: false,
    latency: Duration::from_micros(20),
    chunk_time: (Duration::from_micros(40), Duration::from_micros(40)),
};

fn vllm(full: bool, wanted: impl Fn(&str) -> bool) {
    let scale = if full { 1 } else { 1000 };
    for (name, batch, prompt, output, block, groups, requests) in [
        ("vllm 64 x 1024/128, block 64", 64, 1024, 128, 64, 0, 100_000),
        ("vllm 64 x 1024/128, 8 prefix groups", 64, 1024, 128, 64, 8, 50_000),
        ("vllm 64 x 4096/512, block 16", 64, 4096, 512, 16, 0, 20_000),
        ("vllm 64 x 128/1024, block 16", 64, 128, 1024, 16, 0, 20_000),
        ("vllm 256 x 256/256, block 16", 256, 256, 256, 16, 0, 50_000),
    ] {
        for (kind, run_lengths, caching, host) in [
            ("runs", true, true, false),
            ("runs, no cache", true, false, false),
            ("runs, host tier", true, true, true),
            ("tokens", false, true, false),
            ("tokens, no cache", false, false, false),
        ] {
            let num_gpu_blocks = 16_384 * 64 / block;
            let test = Loop {
                batch,
                prompt,
                output,
                block,
                groups,
                config: VllmSchedulerConfig {
                    latency: LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(
                        16_384 * 64,
                    )),
                    num_gpu_blocks,
                    enable_prefix_caching: caching,
                    block_size: block,
                    reporting: SchedulerReportingConfig {
                        run_lengths,
                        ..SchedulerReportingConfig::default()
                    },
                    host_tier: host.then_some(TIER),
                    async_scheduling: false,
                    ..VllmSchedulerConfig::default()
                },
            };
            let name = format!("{name}: {kind}");
            if wanted(&name) {
                test.time(&name, requests / scale);
            }
        }
    }
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let word = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let wanted = |name: &str| word.as_ref().is_none_or(|word| name.contains(word));
    vllm(full, wanted);
    if !wanted("pool") {
        return;
    }
    let requests = if full { 20_000 } else { 50 };
    let exact = TokenDelays {
        ttft: (Duration::from_millis(50), Duration::ZERO),
        itl: (Duration::from_millis(10), Duration::ZERO),
        ..TokenDelays::default()
    };
    let drawn = TokenDelays {
        ttft: (Duration::from_millis(50), Duration::from_millis(5)),
        itl: (Duration::from_millis(10), Duration::from_millis(2)),
        ..TokenDelays::default()
    };
    for slots in [8, 1000] {
        play(&format!("no delays, {slots} slots"), slots, requests, 100, &TokenDelays::default());
        play(&format!("exact delays, {slots} slots"), slots, requests, 100, &exact);
        play(&format!("drawn delays, {slots} slots"), slots, requests, 100, &drawn);
    }
}
