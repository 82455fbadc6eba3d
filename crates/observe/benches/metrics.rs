//! Measures the cost of a scrape and of the calls for one token.
//!
//! `cargo bench --bench metrics` prints nanoseconds; `cargo test --benches` runs few iterations.

use std::hint::black_box;
use std::time::Instant;

use vllm_sim_observe::metrics::{LoraLoad, Metrics, Settings};

#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn time_per_round(name: &str, rounds: u32, mut f: impl FnMut(u32)) {
    let start = Instant::now();
    for i in 0..rounds {
        f(i);
    }
    let each = start.elapsed().as_nanos() / u128::from(rounds);
    println!("{name:<28} {each:>9} ns");
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let (scrapes, calls) = if full { (5_000, 50_000_000) } else { (10, 1_000) };
    let settings = |ranks: usize| Settings {
        model_name: "meta-llama/Llama-3.1-8B-Instruct".to_owned(),
        engines: (0..ranks).map(|r| r.to_string()).collect(),
        max_model_len: 131_072,
        lora: Some(4),
        legacy: true,
        tool_parser: true,
        routes: (0..60).map(|i| format!("/v1/route/{i}")).collect(),
        ..Settings::default()
    };
    for ranks in [1, 8] {
        let metrics = Metrics::new(settings(ranks));
        for i in 0..30 {
            let route = metrics.http().handler(&format!("/v1/route/{i}"));
            let route = route.expect("the route is not excluded");
            metrics.http().observe(route, "POST", 200, 1000, 0, 0.123);
            metrics.http().observe(route, "POST", 400, 1000, 100, 0.001);
        }
        for rank in 0..ranks {
            let engine = metrics.engine(rank);
            for i in 0..1000 {
                engine.on_gap(f64::from(i) * 1e-4);
                engine.on_tokens(1_000_003);
            }
        }
        let mut out = String::new();
        time_per_round(&format!("scrape, {ranks} engine(s)"), scrapes, |i| {
            out.clear();
            metrics.encode(black_box(&mut out), 1.79e9 + f64::from(i) * 0.05);
        });
        println!("{:<28} {:>9} bytes", "", out.len());
    }
    let metrics = Metrics::new(settings(1));
    let engine = metrics.engine(0);
    time_per_round("on_tokens", calls, |i| engine.on_tokens(black_box(i & 3)));
    time_per_round("on_gap", calls, |i| engine.on_gap(black_box(f64::from(i & 63) * 1e-3)));
    time_per_round("on_step", calls, |i| engine.on_step(black_box(i & 511), 4));
    time_per_round("set_gauges", calls, |i| engine.set_gauges(black_box(i as usize), 1, 0, 0.5));
    let loads = ["a", "b"].map(|name| LoraLoad { name, running: 1, waiting: 1 });
    time_per_round("set_lora", calls / 10, |_| engine.set_lora(black_box(&loads)));
}
