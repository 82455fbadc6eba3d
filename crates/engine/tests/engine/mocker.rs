//! Tests exact instants of Dynamo's mocker.

use std::time::Duration;

use vllm_sim_engine::kv::DynamoMockerHostCacheConfig;
use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::dynamo_mocker::{
    DynamoMockerConfig, DynamoMockerRole, DynamoMockerScheduler,
};
use vllm_sim_engine::{
    Outbox, PromptKvTransfer, Scheduler, SchedulerEvent, SeqId, Sequence, SequenceEndReason,
    SequenceSubmitError, SimTime,
};

use crate::offline;

/// Configures two blocks of 64 tokens; prefill work takes 10 ms a step, decode work 1 ms.
fn config() -> DynamoMockerConfig {
    DynamoMockerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(1),
        },
        num_gpu_blocks: 2,
        max_num_seqs: 1,
        ..DynamoMockerConfig::default()
    }
}

#[test]
fn a_sequence_that_never_fits_is_cancelled_at_admission() {
    let mut engine = DynamoMockerScheduler::new(config()).unwrap();
    let arrivals = [(1, 64, 2), (2, 200, 1)];
    let arrivals = arrivals
        .map(|(id, prompt, output)| (SimTime::ZERO, Sequence::new(SeqId(id), prompt, output)));
    let log = offline::run(&mut engine, arrivals).unwrap();
    let ended = log.iter().filter_map(|(at, event)| match event {
        SchedulerEvent::Ended { id, end } => Some((at.as_nanos() / 1_000_000, id.0, *end)),
        _ => None,
    });
    let ended: Vec<_> = ended.collect();
    assert_eq!(
        ended,
        [(11, 1, SequenceEndReason::Finished), (11, 2, SequenceEndReason::Cancelled)]
    );
}

#[test]
fn a_prompt_that_is_announced_and_never_fits_is_refused() {
    let config = DynamoMockerConfig { role: DynamoMockerRole::Decode, ..config() };
    let mut engine = DynamoMockerScheduler::new(config).unwrap();
    let sequence =
        Sequence { transfer: PromptKvTransfer::RemotePrefill, ..Sequence::new(SeqId(1), 200, 1) };
    let refused = engine.submit(SimTime::ZERO, sequence, &mut Outbox::new());
    let (needed, total) = (4, 2);
    assert_eq!(refused, Err(SequenceSubmitError::TooLarge { needed, total }));
}

#[test]
fn a_host_tier_cannot_be_used_with_remote_prompts() {
    let config = DynamoMockerConfig {
        role: DynamoMockerRole::Prefill,
        tier: Some(DynamoMockerHostCacheConfig {
            blocks: 1,
            latency: Duration::ZERO,
            block_ns: (0.0, 0.0),
        }),
        ..config()
    };
    let error = DynamoMockerScheduler::new(config).unwrap_err().to_string();
    let expected = "a tier of the mocker cannot be used with prompts that another engine computes";
    assert_eq!(error, expected);
}

#[test]
fn sequences_without_room_for_their_drafts_do_not_preempt_each_other_forever() {
    let mut engine = DynamoMockerScheduler::new(DynamoMockerConfig {
        accept: vec![0.5; 2],
        num_gpu_blocks: 8,
        block_size: 4,
        max_num_seqs: 2,
        ..config()
    })
    .unwrap();
    let mut out = Outbox::new();
    for id in [1, 2] {
        // Both grow beyond the 32 tokens of the KV cache.
        let sequence = Sequence::new(SeqId(id), 12, 30);
        engine.submit(SimTime::ZERO, sequence, &mut out).unwrap();
    }
    for _ in 0..10_000 {
        let Some(due) = engine.next_wakeup() else {
            break;
        };
        engine.advance(due, &mut out);
    }
    let ended = out.iter().filter(|(_, event)| matches!(event, SchedulerEvent::Ended { .. }));
    assert_eq!(ended.count(), 2);
}
