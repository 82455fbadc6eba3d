//! Measures the simulated tokens per second of CPU time: `engine_speed [BATCH]`.

use std::sync::Arc;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::latency::{
    LatencyModel, RooflineModel, RooflineModelSetup, find_gpu, known_model_shape,
};
use vllm_sim_engine::sched::sglang::{SglangConfig, SglangScheduler};
use vllm_sim_engine::sched::vllm::{VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{
    BlockKey, Outbox, PlannedKvBlocks, Scheduler, SchedulerEvent, SeqId, Sequence,
};
use vllm_sim_random::mix_u64_pair;

#[expect(clippy::disallowed_methods, reason = "it measures the speed of the host")]
fn measure(name: &str, engine: &mut dyn Scheduler, block: u32, batch: u64) {
    let (prompt, output, requests) = (512, 256, 20_000);
    let mut out = Outbox::new();
    let (mut next, mut tokens, mut now) = (0, 0u64, SimTime::ZERO);
    let submit = |engine: &mut dyn Scheduler, now, id: u64, out: &mut Outbox| {
        let keys = (0..u64::from((prompt + output) / block)).map(|i| BlockKey(mix_u64_pair(id, i)));
        let plan = PlannedKvBlocks {
            keys: keys.collect(),
            block_size: block,
            ..PlannedKvBlocks::default()
        };
        let plan = Some(Arc::new(plan));
        let seq = Sequence { plan, ..Sequence::new(SeqId(id), prompt, output) };
        assert!(engine.submit(now, seq, out).is_ok());
    };
    let start = std::time::Instant::now();
    while next < batch {
        submit(engine, now, next, &mut out);
        next += 1;
    }
    while let Some(due) = engine.next_wakeup() {
        now = due;
        engine.advance(now, &mut out);
        let mut ended = 0;
        for (_, event) in out.drain(..) {
            match event {
                SchedulerEvent::Tokens { n, .. } => tokens += u64::from(n),
                SchedulerEvent::Ended { .. } => ended += 1,
                _ => {}
            }
        }
        for _ in 0..ended.min(requests - next) {
            submit(engine, now, next, &mut out);
            next += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{name:<8} batch {batch}: {tokens} tokens in {seconds:.2} s, {:.1} M/s ({:.0} s simulated)",
        tokens as f64 / seconds / 1e6,
        now.as_secs_f64(),
    );
}

fn main() {
    let batch = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(64);
    let (Some(shape), Some(gpu)) = (known_model_shape("meta-llama/Llama-3.1-8B"), find_gpu("H100"))
    else {
        return;
    };
    let Ok(roofline) = RooflineModel::new(&RooflineModelSetup::new(shape, gpu.clone())) else {
        return;
    };
    let latency = LatencyModel::Roofline(Box::new(roofline));
    for async_scheduling in [false, true] {
        let config = VllmSchedulerConfig {
            latency: latency.clone(),
            async_scheduling,
            num_gpu_blocks: 30_000,
            ..VllmSchedulerConfig::default()
        };
        if let Ok(mut engine) = VllmScheduler::new(config) {
            let name = if async_scheduling { "async" } else { "sync" };
            measure(name, &mut engine, 16, batch);
        }
    }
    let config = SglangConfig { latency, num_pages: 30_000, page_size: 16, ..Default::default() };
    if let Ok(mut engine) = SglangScheduler::new(config) {
        measure("sglang", &mut engine, 16, batch);
    }
}
