use std::collections::{BTreeMap, HashMap};

use crate::BlockKey;

/// Counts, for the most recent chunks of KV blocks, how many times requests have asked to copy each
/// of them to host memory.
///
/// **Source:** vLLM 0.33 `vllm/v1/kv_offload/cpu/manager.py`, `_record_accesses`.
#[derive(Debug, Default)]
pub(super) struct ChunkOfferCounts {
    counts: HashMap<BlockKey, (u32, u64)>,
    order: BTreeMap<u64, BlockKey>,
    clock: u64,
}

impl ChunkOfferCounts {
    /// Counts that a request asks to copy a chunk of KV blocks to host memory, and returns how many
    /// requests have asked for this chunk. Drops the oldest counted chunk if more than `max_chunks`
    /// chunks are counted.
    pub(super) fn count_chunk_offer(&mut self, key: BlockKey, max_chunks: usize) -> u32 {
        self.clock += 1;
        let (times, before) = self.counts.get(&key).copied().unwrap_or_default();
        match times {
            0 if self.counts.len() >= max_chunks => {
                if let Some((_, oldest)) = self.order.pop_first() {
                    self.counts.remove(&oldest);
                }
            }
            0 => {}
            _ => drop(self.order.remove(&before)),
        }
        self.counts.insert(key, (times + 1, self.clock));
        self.order.insert(self.clock, key);
        times + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_counted_of_the_newest_chunks() {
        let mut offers = ChunkOfferCounts::default();
        let mut count = |key| offers.count_chunk_offer(BlockKey(key), 2);
        assert_eq!([count(1), count(1), count(2)], [1, 2, 1]);
        // 1 was offered longest ago.
        assert_eq!([count(3), count(2), count(1)], [1, 2, 1]);
    }
}
