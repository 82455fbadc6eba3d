//! vLLM's cache of processed media, without the media.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use indexmap::IndexMap;
use parking_lot::Mutex;
use vllm_sim_tokenizer::MediaItem;

/// Most items, however small they are (vLLM bounds its cache by bytes alone).
const CAPACITY: usize = 4096;

/// Bytes that an item of one token takes: 4 patches of 14 x 14 pixels, 3 colours and 2 frames in
/// bf16, as Qwen2-VL's processor makes them. Those of other models differ.
const TOKEN_BYTES: u64 = 9408;

/// The media items that were seen last, with their bytes.
pub struct MediaCache {
    /// Most bytes of all items.
    bytes: u64,
    cached: Mutex<CachedItems>,
    /// Counts items that were looked up, and those that were known.
    count: Box<dyn Fn(u32, u32) + Send + Sync>,
}

impl Debug for MediaCache {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediaCache")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Default for MediaCache {
    /// Returns no cache.
    fn default() -> Self {
        Self::new(0, |_, _| {})
    }
}

#[derive(Debug, Default)]
struct CachedItems {
    /// The one that was seen last is the last.
    items: IndexMap<Arc<str>, u64>,
    bytes: u64,
}

impl CachedItems {
    /// Forgets an item; whether it was there.
    fn remove(&mut self, identifier: &str) -> bool {
        let removed = self.items.shift_remove(identifier);
        self.bytes -= removed.unwrap_or(0);
        removed.is_some()
    }
}

impl MediaCache {
    /// Returns a cache of at most `bytes`; 0: none. Each look-up calls `count` with the number of
    /// items and of those that were known.
    pub fn new(bytes: u64, count: impl Fn(u32, u32) + Send + Sync + 'static) -> Self {
        Self {
            bytes,
            cached: Mutex::default(),
            count: Box::new(count),
        }
    }

    /// Remembers items and returns how many were known; `None`: there is no cache.
    pub(super) fn look_up(&self, items: &[MediaItem]) -> Option<u32> {
        if self.bytes == 0 {
            return None;
        }
        let mut cached = self.cached.lock();
        let mut hits = 0;
        for item in items {
            hits += u32::from(cached.remove(&item.identifier));
            let bytes = u64::from(item.tokens).saturating_mul(TOKEN_BYTES);
            // One that is larger than all of it is served uncached.
            if bytes > self.bytes {
                continue;
            }
            cached.items.insert(item.identifier.clone(), bytes);
            cached.bytes += bytes;
            while (cached.bytes > self.bytes || cached.items.len() > CAPACITY)
                && let Some((_, oldest)) = cached.items.shift_remove_index(0)
            {
                cached.bytes -= oldest;
            }
        }
        drop(cached);
        (self.count)(items.len() as u32, hits);
        Some(hits)
    }

    /// Forgets all items.
    pub fn clear(&self) {
        *self.cached.lock() = CachedItems::default();
    }
}

#[cfg(test)]
mod tests {
    use vllm_sim_tokenizer::Modality;

    use super::*;

    fn item(name: &str, tokens: u32) -> MediaItem {
        MediaItem {
            modality: Modality::Image,
            identifier: name.into(),
            tokens,
        }
    }

    #[test]
    fn the_item_seen_least_lately_makes_room() {
        let cache = MediaCache::new(30 * TOKEN_BYTES, |_, _| {});
        let look = |names: &[(&str, u32)]| {
            let items: Vec<_> = names.iter().map(|(name, n)| item(name, *n)).collect();
            cache.look_up(&items)
        };
        assert_eq!(look(&[("a", 10), ("b", 10), ("a", 10)]), Some(1));
        // b goes, then a; what is larger than the cache leaves it alone.
        assert_eq!(
            look(&[("c", 20), ("a", 10), ("b", 10), ("huge", 31), ("c", 20)]),
            Some(1)
        );
        assert_eq!(look(&[("huge", 31), ("b", 10), ("c", 20)]), Some(2));
        cache.clear();
        assert_eq!(look(&[("c", 20)]), Some(0));
        assert_eq!(MediaCache::default().look_up(&[item("a", 1)]), None);
    }
}
