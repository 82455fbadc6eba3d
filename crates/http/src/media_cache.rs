//! Which media items were seen before: vLLM's cache of processed media, without the media.

use std::sync::Arc;

use indexmap::IndexSet;
use parking_lot::Mutex;
use vllm_sim_tokenizer::MediaItem;

/// Items whose processed form a server remembers (vLLM bounds its cache by bytes).
const CAPACITY: usize = 4096;

/// Identifiers of the items seen last.
#[derive(Debug, Default)]
pub(crate) struct MediaCache(Mutex<IndexSet<Arc<str>>>);

impl MediaCache {
    /// Remembers items and returns how many were known.
    pub(crate) fn look_up(&self, items: &[MediaItem]) -> u32 {
        let mut cached = self.0.lock();
        let mut hits = 0;
        for item in items {
            hits += u32::from(cached.shift_remove(&item.identifier));
            cached.insert(item.identifier.clone());
            if cached.len() > CAPACITY {
                cached.shift_remove_index(0);
            }
        }
        hits
    }

    /// Forgets them all.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
