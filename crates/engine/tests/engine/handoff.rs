//! Transfer of prompts between SGLang engines: the test activates reserved prompts and releases held ones.

use std::collections::BTreeMap;

use proptest::prelude::*;

use vllm_sim_engine::sched::sglang::{Sglang, SglangConfig};
use vllm_sim_engine::{Command, Event, Outbox, Scheduler, SeqId, Sequence, SimTime, Transfer};

use crate::configs::sglang;
use crate::invariants::{Input, inputs, sequence};

/// Number of end events by sequence.
type Ends = BTreeMap<u64, u32>;

/// Simulates requests on the prefill or the decode engine, and returns their ends.
fn played(
    engine: &mut Sglang,
    transfer: Transfer,
    inputs: &[(u64, Input)],
) -> Result<Ends, TestCaseError> {
    let page = engine.config().page_size;
    let (mut out, mut ends, mut next_id) = (Outbox::new(), Ends::new(), 0);
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
                Input::Submit(request) => {
                    let seq = sequence(next_id, request, page);
                    let seq = Sequence { transfer, ..seq };
                    if engine.submit(now, seq, &mut out).is_ok() {
                        ends.insert(next_id, 0);
                        if transfer == Transfer::RemoteDecode {
                            held.push(SeqId(next_id));
                        }
                    }
                    next_id += 1;
                }
                Input::Abort(id) => engine.abort(now, SeqId(*id), &mut out),
                Input::CancelAll => {
                    engine.command(now, Command::CancelAll, &mut out);
                }
                _ => {}
            }
        }
        for (id, _) in engine.take_reserved() {
            engine.activate(now, id, &mut out);
        }
        held.retain(|id| !engine.command(now, Command::Release(*id), &mut out));
        while let Some((_, event)) = out.pop_front() {
            if let Event::Ended { id, .. } = event {
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
    fn everybody_ends_once(
        config in sglang(),
        transfer in prop_oneof![Just(Transfer::RemotePrefill), Just(Transfer::RemoteDecode)],
        inputs in inputs(),
    ) {
        let config = SglangConfig { handoff: true, ..config };
        let ends = played(&mut Sglang::new(config).unwrap(), transfer, &inputs)?;
        let wrong: Vec<_> = ends.iter().filter(|(_, ends)| **ends != 1).collect();
        prop_assert!(wrong.is_empty(), "{:?}", wrong);
    }
}
