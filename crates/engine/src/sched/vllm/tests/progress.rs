//! Sequences that could start forever without a new token, or never.

use super::*;
use crate::kv::{KvCacheLayerGroups, SparseLayerKind};

fn speculation(
    drafts: usize,
    lookahead_slots: u32,
    input_slots: u32,
) -> Option<SpeculativeDecodingConfig> {
    let accept = vec![0.0; drafts];
    Some(SpeculativeDecodingConfig {
        accept,
        drops_last_block: false,
        lookahead_slots,
        input_slots,
    })
}

#[test]
fn a_sequence_without_room_for_its_drafts_is_refused() {
    // 48 tokens. The last step has the drafts and lookahead slots after the last but one token.
    let config =
        VllmSchedulerConfig { num_gpu_blocks: 3, speculation: speculation(2, 2, 0), ..config() };
    let mut engine = VllmScheduler::new(config.clone()).unwrap();
    let refused = engine.submit(SimTime::ZERO, new_sequence(1, 40, 6), &mut Outbox::new());
    assert_eq!(refused, Err(SequenceSubmitError::TooLarge { needed: 4, total: 3 }));
    let log = event_log(config, submit_inputs(vec![(0, new_sequence(1, 40, 5))]));
    assert!(log.ends_with("e1") && !log.contains('p'), "{log}");
}

#[test]
fn a_sequence_starts_once_in_vain_at_one_instant() {
    let config = VllmSchedulerConfig {
        latency: LatencyModel::Constant { prefill: Duration::ZERO, decode: Duration::ZERO },
        num_gpu_blocks: 5,
        max_num_batched_tokens: 16,
        prefill: ChunkedPrefillConfig {
            reserve_full_prompt: false,
            ..ChunkedPrefillConfig::default()
        },
        transfer: PrefillTransferConfig {
            fetch: (Duration::from_millis(3), Duration::ZERO),
            ..PrefillTransferConfig::default()
        },
        ..config()
    };
    let remote = Sequence { transfer: PromptKvTransfer::RemotePrefill, ..new_sequence(2, 20, 1) };
    // Until 3 ms the prompt of 2 holds two blocks, so that 1 lacks one.
    let inputs = submit_inputs(vec![(0, remote), (0, new_sequence(1, 64, 1))]);
    assert_eq!(event_log(config, inputs), "0: s1 p1 r1 p1 | 3: s2+0+20 r1 t2 e2 t1 e1");
}

#[test]
fn a_block_larger_than_a_chunk_without_drafting_slots_is_filled_by_several_chunks() {
    let kind = SparseLayerKind::State(1000);
    let config = VllmSchedulerConfig {
        max_num_batched_tokens: 16,
        layer_groups: Some(KvCacheLayerGroups { full: 1, sparse: 1, kind, interval: None }),
        speculation: speculation(1, 0, 1),
        ..config()
    };
    let log = event_log(config, submit_inputs(vec![(0, new_sequence(1, 32, 1))]));
    assert_eq!(log, "0: s1 | 40: t1 e1");
}
