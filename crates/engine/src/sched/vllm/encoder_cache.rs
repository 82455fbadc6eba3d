use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::config::EncoderSchedulingConfig;
use super::seqs::SequenceSlot;
use crate::PromptMediaItem;

/// Holds the media items of a sequence, and the indices of the items that the sequence references
/// in the encoder cache.
#[derive(Debug)]
pub(in crate::sched) struct MediaReferences {
    inputs: Arc<[PromptMediaItem]>,
    /// Indices of the media items that the sequence references in the encoder cache, ascending.
    held: Vec<usize>,
}

impl MediaReferences {
    pub(super) fn new_boxed_media_references(media_items: Arc<[PromptMediaItem]>) -> Box<Self> {
        Box::new(Self { inputs: media_items, held: Vec::new() })
    }

    pub(super) fn end_token_index(&self) -> u32 {
        self.inputs.last().map_or(0, PromptMediaItem::end_token_index)
    }

    pub(super) fn reset_media_references(&mut self) {
        self.held.clear();
    }

    pub(super) fn holds_any_media_reference(&self) -> bool {
        !self.held.is_empty()
    }

    fn items_in_range(&self, past: u32, end: u32) -> Range<usize> {
        let first = self.inputs.partition_point(|input| input.end_token_index() <= past);
        let last = self.inputs.partition_point(|input| input.start < end);
        first..last.max(first)
    }

    /// Adds a media item to the items that the sequence references in the encoder cache; returns
    /// false if the sequence already references it.
    fn hold(&mut self, at: usize) -> bool {
        let place = self.held.partition_point(|&held| held < at);
        let is_new = self.held.get(place) != Some(&at);
        if is_new {
            self.held.insert(place, at);
        }
        is_new
    }
}

/// Describes a prompt chunk whose media items are to be encoded, or referenced in the encoder
/// cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptChunkWithMedia {
    pub slot: SequenceSlot,
    /// Number of the prompt's tokens before the chunk.
    pub past: u32,
    /// Number of tokens of the prompt chunk.
    pub new: u32,
    /// Maximum number of tokens of a prompt chunk. A media item that is longer may be split.
    pub most: u32,
    /// Number of tokens that the drafter reads after the end of the prompt chunk.
    pub lookahead: u32,
}

/// Caches encoder outputs of media items by content, shared by all sequences. Sizes are in
/// embeddings. Unreferenced items stay until their space is needed; the oldest is evicted first.
///
/// As in vLLM, an attempt to schedule a chunk references its cached items and evicts others, even
/// if the chunk then finds no KV blocks. An item also counts as encoded if its sequence is
/// preempted in the pass that scheduled it.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/encoder_cache_manager.py`;
/// `vllm/v1/core/sched/scheduler.py`, `_try_schedule_encoder_inputs`, `_free_encoder_inputs`.
#[derive(Debug)]
pub(super) struct EncoderCache {
    config: EncoderSchedulingConfig,
    budget: u32,
    entries: HashMap<u64, EncodedItem>,
    /// Keys of unreferenced media items, ordered by when their last reference ended.
    unused: BTreeMap<u64, u64>,
    given_up: u64,
    /// Number of embeddings in the encoder cache. `referenced` counts only the embeddings of items
    /// that sequences reference.
    used: u32,
    referenced: u32,
    planned: PlannedEncoding,
    pub(super) deferred: usize,
}

#[derive(Debug)]
struct EncodedItem {
    len: u32,
    refs: u32,
    /// Key of the cached media item in [`EncoderCache::unused`] while `refs` is 0.
    given_up: u64,
}

/// Lists the media items to encode with the next prompt chunk.
#[derive(Debug, Default)]
struct PlannedEncoding {
    /// Slot of the sequence whose prompt chunk is encoded.
    slot: Option<SequenceSlot>,
    keys: HashSet<u64>,
    items: Vec<usize>,
    /// Indices of the prompt's media items that repeat an item already planned for encoding.
    repeated: Vec<usize>,
    /// Encoder budget left after the prompt chunk, in embeddings.
    budget: u32,
}

impl EncoderCache {
    pub(super) fn new_boxed(config: &EncoderSchedulingConfig) -> Box<Self> {
        Box::new(Self {
            config: config.clone(),
            budget: config.budget,
            entries: HashMap::new(),
            unused: BTreeMap::new(),
            given_up: 0,
            used: 0,
            referenced: 0,
            planned: PlannedEncoding::default(),
            deferred: 0,
        })
    }

    pub(super) fn begin_scheduling_pass(&mut self) {
        self.budget = self.config.budget;
        self.planned.slot = None;
    }

    /// Returns the number of embeddings in the encoder cache, and the number of embeddings of items
    /// that sequences reference.
    pub(super) fn cached_and_referenced_embeddings(&self) -> (u32, u32) {
        (self.used, self.referenced)
    }

    /// Returns the size of a media item in embeddings, limited to the encoder budget and the cache
    /// size. Real servers reject larger items; the limit keeps their sequences from waiting
    /// forever.
    fn embedding_count(&self, input: &PromptMediaItem) -> u32 {
        input.len.min(self.config.budget).min(self.config.cache_size)
    }

    /// Returns how many tokens of a prompt chunk precede the first media item that cannot be
    /// encoded in this pass. References the cached media items before that one, and plans to encode
    /// the others.
    pub(super) fn plan_chunk_encoding(
        &mut self,
        media: &mut MediaReferences,
        chunk: PromptChunkWithMedia,
    ) -> u32 {
        let PromptChunkWithMedia { slot, past, new, most, lookahead } = chunk;
        let end = past.saturating_add(new);
        let mut planned = std::mem::take(&mut self.planned);
        planned.slot = Some(slot);
        planned.keys.clear();
        planned.items.clear();
        planned.repeated.clear();
        planned.budget = self.budget;
        let (mut embeddings, mut tokens) = (0, new);
        for at in media.items_in_range(past, end.saturating_add(lookahead)) {
            let input = media.inputs[at];
            if !self.config.chunked_input && past <= input.start && end < input.end_token_index() {
                let before = (input.start - past).saturating_sub(lookahead);
                if before > 0 || input.end_token_index() - past <= most {
                    tokens = before;
                    break;
                }
            }
            if planned.keys.contains(&input.key) {
                planned.repeated.push(at);
                continue;
            }
            if self.reference_cached(media, at) {
                continue;
            }
            let len = self.embedding_count(&input);
            if len > planned.budget || !self.make_room(embeddings + len) {
                tokens = new.min(input.start.saturating_sub(past));
                break;
            }
            embeddings += len;
            planned.budget -= len;
            planned.keys.insert(input.key);
            planned.items.push(at);
        }
        self.planned = planned;
        tokens
    }

    /// Schedules the encodings that were planned for a sequence's prompt chunk, if any. Passes the
    /// index and description of each media item to `encode`.
    pub(super) fn schedule_planned_encoding(
        &mut self,
        slot: SequenceSlot,
        media: &mut MediaReferences,
        mut encode: impl FnMut(u32, PromptMediaItem),
    ) {
        if self.planned.slot.take_if(|planned| *planned == slot).is_none() {
            return;
        }
        let mut planned = std::mem::take(&mut self.planned);
        if !planned.items.is_empty() {
            self.budget = planned.budget;
        }
        for at in planned.items.drain(..) {
            let input = media.inputs[at];
            media.hold(at);
            let len = self.embedding_count(&input);
            self.entries.insert(input.key, EncodedItem { len, refs: 1, given_up: 0 });
            self.used += len;
            self.referenced += len;
            encode(at as u32, input);
        }
        for at in planned.repeated.drain(..) {
            self.reference_cached(media, at);
        }
        self.planned = planned;
        debug_assert!(self.used <= self.config.cache_size, "no more than fits");
    }

    /// References a media item in the encoder cache; returns false if the item is not cached.
    fn reference_cached(&mut self, media: &mut MediaReferences, at: usize) -> bool {
        let Some(entry) = self.entries.get_mut(&media.inputs[at].key) else {
            return false;
        };
        if media.hold(at) {
            if entry.refs == 0 {
                self.unused.remove(&entry.given_up);
                self.referenced += entry.len;
            }
            entry.refs += 1;
        }
        true
    }

    /// Evicts unreferenced media items, the longest unreferenced first, until `len` embeddings fit.
    /// If that is impossible, evicts none and returns false.
    fn make_room(&mut self, len: u32) -> bool {
        if len > self.config.cache_size - self.referenced {
            return false;
        }
        while self.config.cache_size - self.used < len
            && let Some((_, key)) = self.unused.pop_first()
        {
            if let Some(entry) = self.entries.remove(&key) {
                self.used -= entry.len;
            }
        }
        true
    }

    /// Ends the references to media items that are completely within the first `computed_tokens`
    /// computed tokens of a prompt.
    pub(super) fn release_computed_media_items(
        &mut self,
        media: &mut MediaReferences,
        computed_tokens: u32,
    ) {
        let MediaReferences { inputs, held } = media;
        held.retain(|&at| {
            let input = inputs[at];
            if input.end_token_index() > computed_tokens {
                return true;
            }
            if let Some(entry) = self.entries.get_mut(&input.key) {
                entry.refs -= 1;
                if entry.refs == 0 {
                    self.given_up += 1;
                    entry.given_up = self.given_up;
                    self.unused.insert(self.given_up, input.key);
                    self.referenced -= entry.len;
                }
            }
            false
        });
    }

    pub(super) fn release_all_media_items(&mut self, media: &mut MediaReferences) {
        self.release_computed_media_items(media, u32::MAX);
    }

    /// Adds the size of a media item back to the encoder budget, because the item's sequence leaves
    /// the step.
    pub(super) fn restore_encoder_budget(&mut self, input: &PromptMediaItem) {
        self.budget += self.embedding_count(input);
    }

    /// Empties the encoder cache. The caller must reset all [`MediaReferences`].
    pub(super) fn clear_encoder_cache(&mut self) {
        self.entries.clear();
        self.unused.clear();
        (self.used, self.referenced) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use crate::MediaEncoderKind;

    use super::*;

    fn items(places: &[(u64, u32, u32)]) -> Box<MediaReferences> {
        let inputs = places.iter().map(|&(key, start, len)| PromptMediaItem {
            key,
            kind: MediaEncoderKind::Vision,
            start,
            len,
        });
        MediaReferences::new_boxed_media_references(inputs.collect())
    }

    fn cache(budget: u32, cache_size: u32) -> Box<EncoderCache> {
        let chunked_input = true;
        EncoderCache::new_boxed(&EncoderSchedulingConfig {
            budget,
            cache_size,
            chunked_input,
            latency: None,
        })
    }

    fn chunk(new: u32) -> PromptChunkWithMedia {
        PromptChunkWithMedia { slot: 0, past: 0, new, most: new, lookahead: 0 }
    }

    /// Computes a whole prompt; the items that are made for it.
    fn compute(cache: &mut EncoderCache, media: &mut MediaReferences) -> Vec<u64> {
        let mut made = Vec::new();
        cache.begin_scheduling_pass();
        assert_eq!(cache.plan_chunk_encoding(media, chunk(100)), 100);
        cache.schedule_planned_encoding(0, media, |_, input| made.push(input.key));
        cache.release_computed_media_items(media, 100);
        made
    }

    #[test]
    fn encoder_cache_evicts_first_released_item() {
        let mut cache = cache(100, 30);
        assert_eq!(compute(&mut cache, &mut items(&[(1, 0, 10), (2, 10, 10)])), [1, 2]);
        // Used again, 1 is given up after 2.
        assert_eq!(compute(&mut cache, &mut items(&[(1, 0, 10), (3, 10, 10)])), [3]);
        assert_eq!(compute(&mut cache, &mut items(&[(4, 0, 10)])), [4]);
        assert_eq!(compute(&mut cache, &mut items(&[(1, 0, 10), (2, 10, 10)])), [2]);
        assert_eq!(cache.cached_and_referenced_embeddings(), (30, 0));
    }

    #[test]
    fn repeated_media_item_is_encoded_once() {
        let mut cache = cache(10, 10);
        let mut media = items(&[(1, 0, 10), (1, 20, 10)]);
        assert_eq!(compute(&mut cache, &mut media), [1]);
        assert_eq!(cache.cached_and_referenced_embeddings(), (10, 0));
    }

    #[test]
    fn referenced_media_item_is_not_evicted() {
        let mut cache = cache(100, 20);
        compute(&mut cache, &mut items(&[(1, 0, 10)]));
        compute(&mut cache, &mut items(&[(2, 0, 10)]));
        // 2 is referenced before 3 needs room.
        assert_eq!(compute(&mut cache, &mut items(&[(2, 0, 10), (3, 10, 10)])), [3]);
        assert_eq!(cache.cached_and_referenced_embeddings(), (20, 0));
    }

    #[test]
    fn attempt_without_kv_blocks_changes_the_order_of_eviction() {
        let mut cache = cache(100, 20);
        compute(&mut cache, &mut items(&[(1, 0, 10)]));
        compute(&mut cache, &mut items(&[(2, 0, 10)]));
        let mut waiting = items(&[(1, 0, 10)]);
        assert_eq!(cache.plan_chunk_encoding(&mut waiting, chunk(20)), 20);
        cache.release_all_media_items(&mut waiting);
        compute(&mut cache, &mut items(&[(3, 0, 10)]));
        assert_eq!(compute(&mut cache, &mut items(&[(1, 0, 10)])), Vec::<u64>::new());
    }
}
