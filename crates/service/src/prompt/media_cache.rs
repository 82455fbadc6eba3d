//! Simulates vLLM's cache of processed media items; stores only the items' sizes.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use indexmap::IndexMap;
use parking_lot::Mutex;
use vllm_sim_tokenizer::MediaItem;

/// Maximum number of media items in the cache. vLLM limits only the bytes.
const MAX_CACHED_ITEMS: usize = 4096;

/// Bytes per token of a processed media item, as for Qwen2-VL.
///
/// Qwen2-VL's processor creates 4 patches of 14 x 14 pixels with 3 colours and 2 frames in bf16.
const BYTES_PER_MEDIA_TOKEN: u64 = 9408;

/// The most recently used media items and their sizes.
pub struct MediaCache {
    /// Capacity of the cache, in bytes; 0 disables the cache.
    bytes: u64,
    cached: Mutex<CachedItems>,
    /// Callback for each look-up in the media cache, with the number of media items and the number
    /// of hits.
    count: Box<dyn Fn(u32, u32) + Send + Sync>,
}

impl Debug for MediaCache {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediaCache").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Default for MediaCache {
    /// Creates a disabled media cache.
    fn default() -> Self {
        Self::new(0, |_, _| {})
    }
}

#[derive(Debug, Default)]
struct CachedItems {
    /// Sizes of the media items in bytes, sorted by last use; the most recent item is last.
    items: IndexMap<Arc<str>, u64>,
    bytes: u64,
}

impl CachedItems {
    fn remove(&mut self, identifier: &str) -> bool {
        let removed = self.items.shift_remove(identifier);
        self.bytes -= removed.unwrap_or(0);
        removed.is_some()
    }
}

impl MediaCache {
    /// Creates a media cache of at most `max_bytes`; 0 disables it.
    ///
    /// Each look-up calls `on_lookup` with the number of media items and the number of hits.
    pub fn new(max_bytes: u64, on_lookup: impl Fn(u32, u32) + Send + Sync + 'static) -> Self {
        Self { bytes: max_bytes, cached: Mutex::default(), count: Box::new(on_lookup) }
    }

    /// Adds media items to the cache and returns the number of hits; `None` if the cache is
    /// disabled.
    pub(super) fn cache_media_and_count_hits(&self, items: &[MediaItem]) -> Option<u32> {
        if self.bytes == 0 {
            return None;
        }
        let mut cached = self.cached.lock();
        let mut hits = 0;
        for item in items {
            hits += u32::from(cached.remove(&item.identifier));
            let bytes = u64::from(item.tokens).saturating_mul(BYTES_PER_MEDIA_TOKEN);
            // An item larger than the whole cache is not stored.
            if bytes > self.bytes {
                continue;
            }
            cached.items.insert(item.identifier.clone(), bytes);
            cached.bytes += bytes;
            while (cached.bytes > self.bytes || cached.items.len() > MAX_CACHED_ITEMS)
                && let Some((_, oldest)) = cached.items.shift_remove_index(0)
            {
                cached.bytes -= oldest;
            }
        }
        drop(cached);
        (self.count)(items.len() as u32, hits);
        Some(hits)
    }

    /// Removes all media items from the cache.
    pub fn clear_media_cache(&self) {
        *self.cached.lock() = CachedItems::default();
    }
}

#[cfg(test)]
mod tests {
    use vllm_sim_tokenizer::MediaModality;

    use super::*;

    fn item(name: &str, tokens: u32) -> MediaItem {
        MediaItem { modality: MediaModality::Image, identifier: name.into(), tokens }
    }

    #[test]
    fn the_least_recently_used_item_is_evicted() {
        let cache = MediaCache::new(30 * BYTES_PER_MEDIA_TOKEN, |_, _| {});
        let look = |names: &[(&str, u32)]| {
            let items: Vec<_> = names.iter().map(|(name, n)| item(name, *n)).collect();
            cache.cache_media_and_count_hits(&items)
        };
        assert_eq!(look(&[("a", 10), ("b", 10), ("a", 10)]), Some(1));
        // Evicts b, then a; an item larger than the cache evicts nothing.
        assert_eq!(look(&[("c", 20), ("a", 10), ("b", 10), ("huge", 31), ("c", 20)]), Some(1));
        assert_eq!(look(&[("huge", 31), ("b", 10), ("c", 20)]), Some(2));
        cache.clear_media_cache();
        assert_eq!(look(&[("c", 20)]), Some(0));
        assert_eq!(MediaCache::default().cache_media_and_count_hits(&[item("a", 1)]), None);
    }
}
