//! Generates images, audio and video for random workloads, and checks that none remain in the
//! cache.

use proptest::prelude::*;
use std::sync::Arc;
use vllm_sim_engine::sched::vllm::{EncoderSchedulingConfig, VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{MediaEncoderKind, PromptMediaItem};

/// Text before an item, its tokens and its content.
pub(crate) type Item = (u32, u32, u64);

pub(crate) fn items() -> impl Strategy<Value = Vec<Item>> {
    proptest::collection::vec((0..30u32, 1..40u32, 0..5u64), 0..5)
}

/// Places items into a prompt one after another, as far as they fit.
pub(crate) fn inputs(items: &[Item], prompt: u32) -> Option<Arc<[PromptMediaItem]>> {
    let mut end = 0;
    let items = items.iter().map(|&(gap, len, key)| {
        let start = end + gap;
        end = start + len;
        let kind = MediaEncoderKind::Vision;
        PromptMediaItem { key, kind, start, len }
    });
    PromptMediaItem::sorted_without_overlap(
        items.filter(|item| item.end_token_index() <= prompt).collect(),
    )
}

/// Generates space for one or several items; some items are larger.
pub(crate) fn any_encoder() -> impl Strategy<Value = Option<EncoderSchedulingConfig>> {
    let encoder =
        (1..80u32, 1..80u32, any::<bool>()).prop_map(|(budget, cache_size, chunked_input)| {
            EncoderSchedulingConfig { budget, cache_size, chunked_input, latency: None }
        });
    proptest::option::of(encoder)
}

/// Checks invariant 11 after the end of all sequences.
pub(crate) fn check_encoder(
    engine: &VllmScheduler,
    config: &VllmSchedulerConfig,
) -> Result<(), TestCaseError> {
    if let (Some((used, referenced)), Some(encoder)) =
        (engine.encoder_cached_and_referenced_embeddings(), &config.encoder)
    {
        prop_assert!(used <= encoder.cache_size);
        prop_assert_eq!(referenced, 0);
    }
    Ok(())
}
