//! Tests one rule each, with exact instants: prefill work takes 10 ms a step, decode work 1 ms.

mod batching;
mod blocks;
mod groups;
mod life;
mod media;
mod progress;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::latency::{
    LatencyModel, RooflineModel, RooflineModelSetup, find_gpu, known_model_shape,
};
use crate::{
    BlockKey, LoraId, PlannedKvBlocks, PrefixCacheResetScope, PromptKvTransfer, StepDraftCounts,
};

use super::*;

enum TestInput {
    Submit(Sequence),
    Abort(u64),
    Command(EngineCommand),
}

use TestInput::{Abort, Submit};

/// Configures 100 blocks of 16 tokens and one step at a time.
fn config() -> VllmSchedulerConfig {
    VllmSchedulerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(1),
        },
        num_gpu_blocks: 100,
        async_scheduling: false,
        ..VllmSchedulerConfig::default()
    }
}

fn new_sequence(id: u64, prompt: u32, output: u32) -> Sequence {
    Sequence::new(SeqId(id), prompt, output)
}

/// Creates a sequence with block keys of its `family`; output blocks are its own.
fn sequence_in_family(id: u64, family: u64, prompt: u32, output: u32) -> Sequence {
    let keys = (0..u64::from((prompt + output) / 16)).map(|i| {
        let shared = i < u64::from(prompt / 16);
        BlockKey(if shared { family * 1000 + i } else { (id + 50) * 1000 + i })
    });
    let plan =
        PlannedKvBlocks { keys: keys.collect(), block_size: 16, ..PlannedKvBlocks::default() };
    Sequence { plan: Some(Arc::new(plan)), ..new_sequence(id, prompt, output) }
}

/// Runs inputs (in ms) and formats the events: `10: t1 e1` is a token of 1 and its end at 10 ms.
fn event_log(config: VllmSchedulerConfig, inputs: Vec<(u64, TestInput)>) -> String {
    let mut engine = VllmScheduler::new(config).unwrap();
    let mut out = Outbox::new();
    let mut inputs = inputs.into_iter().peekable();
    loop {
        let due = inputs.peek().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            break;
        };
        engine.advance(now, &mut out);
        while let Some((_, input)) = inputs.next_if(|(at, _)| SimTime::from_millis(*at) == now) {
            match input {
                Submit(seq) => {
                    let id = seq.id;
                    if let Err(error) = engine.submit(now, seq, &mut out) {
                        panic!("{id:?}: {error}");
                    }
                }
                Abort(id) => engine.abort(now, SeqId(id), &mut out),
                TestInput::Command(command) => {
                    engine.apply_command(now, command, &mut out);
                }
            }
        }
    }
    assert_eq!(engine.stats().running + engine.stats().waiting, 0, "{}", log_text(&out));
    assert_eq!(engine.stats().used_blocks, 0);
    log_text(&out)
}

fn log_text(log: &Outbox) -> String {
    let mut text = String::new();
    let mut last = None;
    for (at, event) in log {
        let event = match event {
            SchedulerEvent::Leased { blocks, .. } => format!("lease {blocks:?}"),
            SchedulerEvent::Scheduled { id, cached: 0, external: 0 } => format!("s{}", id.0),
            SchedulerEvent::Scheduled { id, cached, external: 0 } => format!("s{}+{cached}", id.0),
            SchedulerEvent::Scheduled { id, cached, external } => {
                format!("s{}+{cached}+{external}", id.0)
            }
            SchedulerEvent::Tokens { id, n: 1 } => format!("t{}", id.0),
            SchedulerEvent::Tokens { id, n } => format!("t{}x{n}", id.0),
            SchedulerEvent::Decoded { id, n } => format!("d{}x{n}", id.0),
            SchedulerEvent::Preempted { id } => format!("p{}", id.0),
            SchedulerEvent::Resumed { id } => format!("r{}", id.0),
            SchedulerEvent::Ended { id, end: SequenceEndReason::Finished } => format!("e{}", id.0),
            SchedulerEvent::Ended { id, end } => format!("{end:?}{}", id.0),
            SchedulerEvent::Stored { from, to, .. } => format!("+{from}..{to}"),
            SchedulerEvent::Removed { keys } => format!("-{}", keys.len()),
            SchedulerEvent::Host(event) => format!("{event:?}"),
            SchedulerEvent::Reused { blocks, groups, .. } => format!("={blocks} of {groups}"),
            SchedulerEvent::Group(event) => format!("{event:?}"),
            SchedulerEvent::Cleared => "cleared".to_owned(),
            SchedulerEvent::Drafts { id, proposed, accepted } => {
                format!("v{}:{accepted}/{proposed}", id.0)
            }
            SchedulerEvent::Step { .. }
            | SchedulerEvent::Fetched { .. }
            | SchedulerEvent::LoadFailed { .. }
            | SchedulerEvent::LoraLoading { .. } => continue,
        };
        if last != Some(*at) {
            let gap = if last.is_some() { " | " } else { "" };
            let _ = write!(text, "{gap}{}:", at.as_nanos() as f64 / 1e6);
            last = Some(*at);
        }
        let _ = write!(text, " {event}");
    }
    text
}

fn submit_inputs(seqs: Vec<(u64, Sequence)>) -> Vec<(u64, TestInput)> {
    seqs.into_iter().map(|(at, seq)| (at, Submit(seq))).collect()
}
