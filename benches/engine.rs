//! What the pool costs per token and per request, in virtual time.
//!
//! `cargo bench --bench engine` prints nanoseconds; `cargo test --benches` runs it small.

use std::time::{Duration, Instant};

use vllm_sim::driver::offline;
use vllm_sim::engine::sched::pool::{Pool, PoolConfig};
use vllm_sim::engine::{Delays, Event, SeqId, Sequence};
use vllm_sim::sim::SimTime;

/// Runs `requests` of `output` tokens through `slots` slots.
#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn play(name: &str, slots: usize, requests: u64, output: u32, delays: &Delays) {
    let mut pool = Pool::new(PoolConfig {
        slots,
        queue: None,
        delays: delays.clone(),
        seed: 7,
        ..PoolConfig::default()
    });
    let arrivals: Vec<_> = (0..requests)
        .map(|id| {
            (
                SimTime::from_millis(id / 8),
                Sequence::new(SeqId(id), 100, output),
            )
        })
        .collect();
    let start = Instant::now();
    let log = offline::run(&mut pool, arrivals).expect("the queue has no bound");
    let taken = start.elapsed().as_nanos();
    let ended = log
        .iter()
        .filter(|(_, event)| matches!(event, Event::Ended { .. }));
    assert_eq!(
        ended.count() as u64,
        requests,
        "{name}: some requests never end"
    );
    let (each, token) = (
        taken / u128::from(requests),
        taken / u128::from(requests * u64::from(output)),
    );
    println!("{name:<28} {token:>9} ns per token {each:>9} ns per request");
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let requests = if full { 20_000 } else { 50 };
    let exact = Delays {
        ttft: (Duration::from_millis(50), Duration::ZERO),
        itl: (Duration::from_millis(10), Duration::ZERO),
        ..Delays::default()
    };
    let drawn = Delays {
        ttft: (Duration::from_millis(50), Duration::from_millis(5)),
        itl: (Duration::from_millis(10), Duration::from_millis(2)),
        ..Delays::default()
    };
    for slots in [8, 1000] {
        play(
            &format!("no delays, {slots} slots"),
            slots,
            requests,
            100,
            &Delays::default(),
        );
        play(
            &format!("exact delays, {slots} slots"),
            slots,
            requests,
            100,
            &exact,
        );
        play(
            &format!("drawn delays, {slots} slots"),
            slots,
            requests,
            100,
            &drawn,
        );
    }
}
