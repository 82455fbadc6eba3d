//! Runs two sequences on a vLLM engine in virtual time and prints all events: `cargo run --example
//! two_sequences`.

use std::sync::Arc;
use std::time::Duration;

use vllm_sim_engine::kv::{BlockHashConfig, BlockHashExtraKeys, BlockHasher};
use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::vllm::{SchedulerReportingConfig, VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{Outbox, Scheduler, SeqId, Sequence, SimTime};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut engine = VllmScheduler::new(VllmSchedulerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(40),
            decode: Duration::from_millis(10),
        },
        num_gpu_blocks: 100,
        reporting: SchedulerReportingConfig {
            kv_events: true,
            ..SchedulerReportingConfig::default()
        },
        ..VllmSchedulerConfig::default()
    })?;
    let hasher = BlockHasher::new(BlockHashConfig {
        block_size: engine.config().block_size,
        ..BlockHashConfig::default()
    });

    // Two prompts with the same first 32 tokens, and three output tokens each.
    let (mut out, mut arrivals) = (Outbox::new(), Vec::new());
    for (id, at_ms) in [(1, 0), (2, 45)] {
        let tokens: Vec<u32> = (0..32).chain([id as u32; 16]).collect();
        let sequence = Sequence {
            plan: Some(Arc::new(hasher.plan_kv_blocks(&tokens, &BlockHashExtraKeys::default()))),
            ..Sequence::new(SeqId(id), tokens.len() as u32, 3)
        };
        arrivals.push((SimTime::from_millis(at_ms), sequence));
    }

    // This is a complete driver: run what is due, then submit arrivals, until nothing is left.
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let arrival = arrivals.peek().map(|(at, _)| *at);
        let Some(now) = arrival.into_iter().chain(engine.next_wakeup()).min() else {
            break;
        };
        engine.advance(now, &mut out);
        while let Some((_, sequence)) = arrivals.next_if(|(at, _)| *at == now) {
            engine.submit(now, sequence, &mut out)?;
        }
        for (at, event) in out.drain(..) {
            println!("{:>7.1} ms  {event:?}", at.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}
