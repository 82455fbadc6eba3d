//! Transfer of prompts between SGLang engines: the test activates reserved prompts and releases held ones.

use std::collections::BTreeMap;

use proptest::prelude::*;

use vllm_sim_engine::sched::sglang::{SglangConfig, SglangScheduler};
use vllm_sim_engine::{
    EngineCommand, Outbox, PromptKvTransfer, Scheduler, SchedulerEvent, SeqId, Sequence, SimTime,
};

use crate::configs::sglang;
use crate::invariants::{EngineInput, any_inputs, sequence};

/// Number of end events by sequence.
type EndCounts = BTreeMap<u64, u32>;

/// Simulates requests on the prefill or the decode engine, and returns their ends.
fn end_counts(
    engine: &mut SglangScheduler,
    transfer: PromptKvTransfer,
    inputs: &[(u64, EngineInput)],
) -> Result<EndCounts, TestCaseError> {
    let page = engine.config().page_size;
    let (mut out, mut ends, mut next_id) = (Outbox::new(), EndCounts::new(), 0);
    let mut held = Vec::new();
    let mut inputs = inputs.iter().peekable();
    for turn in 0.. {
        prop_assert!(turn < 20_000, "it never comes to rest");
        let due = inputs.peek().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            break;
        };
        engine.advance(now, &mut out);
        while let Some((_, input)) = inputs.next_if(|(at, _)| SimTime::from_millis(*at) == now) {
            match input {
                EngineInput::Submit(request) => {
                    let seq = sequence(next_id, request, page);
                    let seq = Sequence { transfer, ..seq };
                    if engine.submit(now, seq, &mut out).is_ok() {
                        ends.insert(next_id, 0);
                        if transfer == PromptKvTransfer::RemoteDecode {
                            held.push(SeqId(next_id));
                        }
                    }
                    next_id += 1;
                }
                EngineInput::Abort(id) => engine.abort(now, SeqId(*id), &mut out),
                EngineInput::CancelAll => {
                    engine.apply_command(now, EngineCommand::CancelAll, &mut out);
                }
                _ => {}
            }
        }
        for (id, _) in engine.take_reserved_prompts() {
            engine.resume_transferred(now, id, &mut out);
        }
        held.retain(|id| !engine.apply_command(now, EngineCommand::Release(*id), &mut out));
        while let Some((_, event)) = out.pop_front() {
            if let SchedulerEvent::Ended { id, .. } = event {
                *ends.entry(id.0).or_default() += 1;
            }
        }
    }
    let stats = engine.stats();
    let left = (stats.running, stats.waiting, stats.used_blocks);
    prop_assert_eq!(left, (0, 0, 0));
    Ok(ends)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn every_handed_off_sequence_ends_once(
        config in sglang(),
        transfer in prop_oneof![Just(PromptKvTransfer::RemotePrefill), Just(PromptKvTransfer::RemoteDecode)],
        inputs in any_inputs(),
    ) {
        let config = SglangConfig { handoff: true, ..config };
        let ends = end_counts(&mut SglangScheduler::new(config).unwrap(), transfer, &inputs)?;
        let wrong: Vec<_> = ends.iter().filter(|(_, ends)| **ends != 1).collect();
        prop_assert!(wrong.is_empty(), "{:?}", wrong);
    }
}
