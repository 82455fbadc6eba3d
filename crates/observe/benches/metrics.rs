//! Measures the cost of a scrape and of the events of one token.
//!
//! `cargo bench --bench metrics` prints nanoseconds; `cargo test --benches` runs few iterations.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vllm_sim_engine::driver::{EngineObserver, EngineObservers, SequenceRecord};
use vllm_sim_engine::{EngineStats, SchedulerEvent, SeqId, Sequence, SimTime};
use vllm_sim_observe::metrics::{EngineFeatures, Metrics, MetricsSettings};

#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn time_per_round(name: &str, rounds: u32, mut f: impl FnMut(u32)) {
    let start = Instant::now();
    for i in 0..rounds {
        f(i);
    }
    let each = start.elapsed().as_nanos() / u128::from(rounds);
    println!("{name:<28} {each:>9} ns");
}

/// Returns the record of a sequence that has released more than one token.
fn decoding_sequence(lora: Option<&str>) -> SequenceRecord {
    let sequence = Sequence::new(SeqId(1), 100, 1000);
    let mut record = SequenceRecord::new("request".into(), SimTime::ZERO, &sequence);
    record.lora = lora.map(Into::into);
    record.output = 2_000_000;
    record
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let (scrapes, calls) = if full { (5_000, 50_000_000) } else { (10, 1_000) };
    let settings = |ranks: usize| MetricsSettings {
        model_name: "meta-llama/Llama-3.1-8B-Instruct".to_owned(),
        engines: (0..ranks).map(|r| r.to_string()).collect(),
        max_model_len: 131_072,
        engine_stats: true,
        lora: Some(4),
        legacy: true,
        tool_parser: true,
        routes: (0..60).map(|i| format!("/v1/route/{i}")).collect(),
        ..MetricsSettings::default()
    };
    let features = EngineFeatures { steps: true, ..EngineFeatures::default() };
    let tokens = |n: u32| SchedulerEvent::Tokens { id: SeqId(1), n };
    let record = decoding_sequence(None);
    for ranks in [1, 8] {
        let metrics = Metrics::new(settings(ranks));
        for i in 0..30 {
            let route = metrics.http_metrics().handler_id(&format!("/v1/route/{i}"));
            let route = route.expect("the route is not excluded");
            metrics.http_metrics().observe_request(route, "POST", 200, 1000, 0, 0.123);
            metrics.http_metrics().observe_request(route, "POST", 400, 1000, 100, 0.001);
        }
        for rank in 0..ranks {
            let mut engine = EngineObservers(metrics.observers(rank, features));
            for i in 0..1000 {
                let at = SimTime::ZERO + Duration::from_micros(100 * i);
                engine.on_sequence_event(at, &tokens(1_000_003), &record, SimTime::ZERO);
            }
        }
        let mut out = String::new();
        time_per_round(&format!("scrape, {ranks} engine(s)"), scrapes, |i| {
            out.clear();
            metrics.encode_page(black_box(&mut out), 1.79e9 + f64::from(i) * 0.05);
        });
        println!("{:<28} {:>9} bytes", "", out.len());
    }
    let metrics = Metrics::new(settings(1));
    let mut engine = EngineObservers(metrics.observers(0, features));
    time_per_round("tokens", calls, |i| {
        let at = SimTime::ZERO + Duration::from_millis(u64::from(i & 63));
        engine.on_sequence_event(at, &tokens(1 + (i & 3)), black_box(&record), SimTime::ZERO);
    });
    time_per_round("step", calls, |i| {
        let step = SchedulerEvent::Step {
            begun: SimTime::ZERO,
            prompt_tokens: black_box(i & 511),
            output_tokens: 4,
            count: 1,
        };
        engine.on_engine_event(SimTime::ZERO, &step);
    });
    time_per_round("stats", calls, |i| {
        let running = black_box(i as usize);
        engine.on_engine_stats(&EngineStats { running, waiting: 1, ..EngineStats::default() });
    });
    let record = decoding_sequence(Some("a"));
    let resumed = SchedulerEvent::Resumed { id: SeqId(1) };
    let preempted = SchedulerEvent::Preempted { id: SeqId(1) };
    time_per_round("preemption with adapter", calls / 10, |_| {
        engine.on_sequence_event(SimTime::ZERO, &resumed, black_box(&record), SimTime::ZERO);
        engine.on_sequence_event(SimTime::ZERO, &preempted, &record, SimTime::ZERO);
    });
}
