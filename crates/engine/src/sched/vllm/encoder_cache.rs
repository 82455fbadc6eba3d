use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::config::EncoderConfig;
use crate::PromptMediaItem;

/// Holds the media items of a sequence and the range of them that it references in the encoder
/// cache.
#[derive(Debug)]
pub(in crate::sched) struct MediaReferences {
    inputs: Arc<[PromptMediaItem]>,
    held: Range<usize>,
}

impl MediaReferences {
    pub(super) fn new_boxed(inputs: Arc<[PromptMediaItem]>) -> Box<Self> {
        Box::new(Self { inputs, held: 0..0 })
    }

    pub(super) fn end_token(&self) -> u32 {
        self.inputs.last().map_or(0, PromptMediaItem::end_token)
    }

    pub(super) fn reset_references(&mut self) {
        self.held = 0..0;
    }

    fn items_in_range(&self, past: u32, end: u32) -> Range<usize> {
        let first = self.inputs.partition_point(|input| input.end_token() <= past);
        let last = self.inputs.partition_point(|input| input.start < end);
        first..last.max(first)
    }
}

/// Caches encoder outputs of media items by content, shared by all sequences. Sizes are in
/// embeddings. Unreferenced items stay until their space is needed; the oldest is evicted first.
///
/// Unlike vLLM's cache, it changes only for scheduled chunks. A waiting sequence holds no
/// references and so blocks no other sequence.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/encoder_cache_manager.py`;
/// `vllm/v1/core/sched/scheduler.py`, `_try_schedule_encoder_inputs`, `_free_encoder_inputs`.
#[derive(Debug)]
pub(super) struct EncoderCache {
    config: EncoderConfig,
    budget: u32,
    entries: HashMap<u64, EncodedItem>,
    /// Keys of unreferenced media items, in order of their release.
    unused: BTreeMap<u64, u64>,
    given_up: u64,
    /// Number of embeddings in the cache; `referenced` counts those of items with references.
    used: u32,
    referenced: u32,
    /// Scratch set: keys of the current chunk's media items that need space.
    seen: HashSet<u64>,
    /// Scratch list: indices of the current chunk's media items to encode.
    missing: Vec<usize>,
    pub(super) deferred: usize,
}

#[derive(Debug)]
struct EncodedItem {
    len: u32,
    refs: u32,
    /// Key of the item in [`EncoderCache::unused`] while `refs` is 0.
    given_up: u64,
}

impl EncoderCache {
    pub(super) fn new_boxed(config: &EncoderConfig) -> Box<Self> {
        Box::new(Self {
            config: config.clone(),
            budget: config.budget,
            entries: HashMap::new(),
            unused: BTreeMap::new(),
            given_up: 0,
            used: 0,
            referenced: 0,
            seen: HashSet::new(),
            missing: Vec::new(),
            deferred: 0,
        })
    }

    pub(super) fn begin_pass(&mut self) {
        self.budget = self.config.budget;
    }

    /// Returns the number of embeddings in the cache, and the number of those with references.
    pub(super) fn embedding_counts(&self) -> (u32, u32) {
        (self.used, self.referenced)
    }

    /// Returns the size of a media item in embeddings, capped by budget and cache size. Real
    /// servers reject larger items; the cap keeps such a sequence from waiting forever.
    fn embedding_count(&self, input: &PromptMediaItem) -> u32 {
        input.len.min(self.config.budget).min(self.config.cache_size)
    }

    /// Returns how many tokens of a prompt chunk precede the first media item that cannot be
    /// encoded in this pass. The chunk has `new` tokens after `past` earlier ones; `most` is its
    /// maximum length.
    pub(super) fn encodable_chunk_tokens(
        &mut self,
        media: &MediaReferences,
        (past, new): (u32, u32),
        most: u32,
    ) -> u32 {
        let end = past.saturating_add(new);
        // Embeddings to make, and cached embeddings about to be referenced.
        let (mut made, mut kept) = (0, 0);
        let room = self.config.cache_size.saturating_sub(self.referenced);
        self.seen.clear();
        for at in media.items_in_range(past, end) {
            let input = &media.inputs[at];
            let before = input.start.saturating_sub(past);
            let is_split = past <= input.start && end < input.end_token();
            if is_split
                && !self.config.chunked_input
                && (before > 0 || input.end_token() - past <= most)
            {
                return before;
            }
            if media.held.contains(&at) || self.seen.contains(&input.key) {
                continue;
            }
            let entry = self.entries.get(&input.key);
            if entry.is_some_and(|entry| entry.refs > 0) {
                continue;
            }
            let is_there = entry.is_some();
            let len = entry.map_or_else(|| self.embedding_count(input), |entry| entry.len);
            let no_budget = !is_there && len > self.budget - made;
            if no_budget || len > room - made - kept {
                return before;
            }
            let sum = if is_there { &mut kept } else { &mut made };
            *sum += len;
            self.seen.insert(input.key);
        }
        new
    }

    /// References the media items of a scheduled chunk and passes those to encode to `encode`.
    pub(super) fn reference_items(
        &mut self,
        media: &mut MediaReferences,
        past: u32,
        new: u32,
        mut encode: impl FnMut(PromptMediaItem),
    ) {
        let touched = media.items_in_range(past, past.saturating_add(new));
        if touched.is_empty() {
            return;
        }
        let fresh = touched.start.max(media.held.end)..touched.end;
        // Reference cached items first, so that new ones do not evict them.
        let mut missing = std::mem::take(&mut self.missing);
        missing.clear();
        missing.extend(fresh.filter(|&at| !self.add_reference(media.inputs[at].key)));
        for &at in &missing {
            let input = media.inputs[at];
            // A prompt may contain the same item twice.
            if self.add_reference(input.key) {
                continue;
            }
            let len = self.embedding_count(&input);
            self.evict_until_fits(len);
            // The evicted entry of this content may have had another length.
            let len = len.min(self.config.cache_size - self.used);
            let entry = EncodedItem { len, refs: 1, given_up: 0 };
            self.entries.insert(input.key, entry);
            self.used += len;
            self.referenced += len;
            self.budget = self.budget.saturating_sub(len);
            encode(input);
        }
        self.missing = missing;
        debug_assert!(self.used <= self.config.cache_size, "no more than fits");
        media.held = match media.held.is_empty() {
            true => touched,
            false => media.held.start..touched.end,
        };
    }

    fn add_reference(&mut self, key: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        if entry.refs == 0 {
            self.unused.remove(&entry.given_up);
            self.referenced += entry.len;
        }
        entry.refs += 1;
        true
    }

    /// Evicts unreferenced media items, the first released first, until `len` embeddings fit.
    fn evict_until_fits(&mut self, len: u32) {
        while self.config.cache_size - self.used < len
            && let Some((_, key)) = self.unused.pop_first()
        {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.used -= entry.len;
        }
    }

    /// Releases the media items whose tokens are all among the first `upto` computed ones.
    pub(super) fn release_computed_items(&mut self, media: &mut MediaReferences, upto: u32) {
        while let Some(input) = media.inputs.get(media.held.start)
            && !media.held.is_empty()
            && input.end_token() <= upto
        {
            media.held.start += 1;
            let Some(entry) = self.entries.get_mut(&input.key) else {
                continue;
            };
            entry.refs -= 1;
            if entry.refs == 0 {
                self.given_up += 1;
                entry.given_up = self.given_up;
                self.unused.insert(self.given_up, input.key);
                self.referenced -= entry.len;
            }
        }
    }

    pub(super) fn release_all_items(&mut self, media: &mut MediaReferences) {
        self.release_computed_items(media, u32::MAX);
        media.reset_references();
    }

    /// Removes a media item that is not encoded in this pass after all; returns false if another
    /// sequence references it.
    pub(super) fn undo_encoding(&mut self, input: &PromptMediaItem) -> bool {
        let Some(entry) = self.entries.get(&input.key).filter(|entry| entry.refs == 0) else {
            return false;
        };
        self.unused.remove(&entry.given_up);
        self.budget += entry.len;
        self.remove(input.key);
        true
    }

    /// Empties the encoder cache. The caller must reset all [`MediaReferences`].
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.unused.clear();
        (self.used, self.referenced) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use crate::EncoderKind;

    use super::*;

    fn items(places: &[(u64, u32, u32)]) -> Box<MediaReferences> {
        let inputs = places.iter().map(|&(key, start, len)| PromptMediaItem {
            key,
            kind: EncoderKind::Vision,
            start,
            len,
        });
        MediaReferences::new_boxed(inputs.collect())
    }

    /// Computes a whole prompt; the items that are made for it.
    fn compute(cache: &mut EncoderCache, media: &mut MediaReferences) -> Vec<u64> {
        let mut made = Vec::new();
        cache.begin_pass();
        assert_eq!(cache.encodable_chunk_tokens(media, (0, 100), 100), 100);
        cache.reference_items(media, 0, 100, |input| made.push(input.key));
        cache.release_computed_items(media, 100);
        made
    }

    #[test]
    fn encoder_cache_evicts_first_released_item() {
        let mut cache = EncoderCache::new_boxed(&EncoderConfig {
            budget: 100,
            cache_size: 30,
            chunked_input: true,
            latency: None,
        });
        assert_eq!(compute(&mut cache, &mut items(&[(1, 0, 10), (2, 10, 10)])), [1, 2]);
        // Used again, 1 is given up after 2.
        assert_eq!(compute(&mut cache, &mut items(&[(1, 0, 10), (3, 10, 10)])), [3]);
        assert_eq!(compute(&mut cache, &mut items(&[(4, 0, 10)])), [4]);
        assert_eq!(compute(&mut cache, &mut items(&[(1, 0, 10), (2, 10, 10)])), [2]);
        assert_eq!(cache.embedding_counts(), (30, 0));
    }

    #[test]
    fn repeated_media_item_is_encoded_once() {
        let mut cache = EncoderCache::new_boxed(&EncoderConfig {
            budget: 10,
            cache_size: 10,
            chunked_input: true,
            latency: None,
        });
        let mut media = items(&[(1, 0, 10), (1, 20, 10)]);
        assert_eq!(compute(&mut cache, &mut media), [1]);
        assert_eq!(cache.embedding_counts(), (10, 0));
    }

    #[test]
    fn equal_content_with_two_lengths_fits_encoder_cache() {
        let mut cache = EncoderCache::new_boxed(&EncoderConfig {
            budget: 13,
            cache_size: 11,
            chunked_input: true,
            latency: None,
        });
        let (mut short, mut kept) = (items(&[(1, 0, 3)]), items(&[(2, 0, 8)]));
        let mut long = items(&[(1, 0, 9)]);
        cache.begin_pass();
        cache.reference_items(&mut short, 0, 10, |_| {});
        cache.reference_items(&mut kept, 0, 10, |_| {});
        // It is there, until the one that it was made for leaves the step.
        assert_eq!(cache.encodable_chunk_tokens(&long, (0, 9), 9), 9);
        cache.release_all_items(&mut short);
        assert!(cache.undo_encoding(&short.inputs[0]));
        cache.reference_items(&mut long, 0, 9, |_| {});
        assert_eq!(cache.embedding_counts(), (11, 11));
    }

    #[test]
    fn referenced_media_item_is_not_evicted() {
        let mut cache = EncoderCache::new_boxed(&EncoderConfig {
            budget: 100,
            cache_size: 20,
            chunked_input: true,
            latency: None,
        });
        compute(&mut cache, &mut items(&[(1, 0, 10)]));
        compute(&mut cache, &mut items(&[(2, 0, 10)]));
        // 1 is the oldest, and the next prompt has it.
        assert_eq!(compute(&mut cache, &mut items(&[(3, 0, 10), (1, 10, 10)])), [3]);
    }
}
