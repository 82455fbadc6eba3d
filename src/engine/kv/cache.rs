use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::engine::BlockKey;

/// Which blocks hold which key.
///
/// One key may be held by several blocks: vLLM does not merge a block that is computed again with
/// the one already cached, so that block tables stay append-only. They form a list in the order
/// they were cached; a look-up gives the oldest, as vLLM's dict does.
/// Source: `BlockHashToBlockMap`, `vllm/v1/core/block_pool.py`.
#[derive(Debug)]
pub(super) struct CachedBlocks {
    ends: HashMap<u64, Ends, BuildHasherDefault<KeyHasher>>,
    twins: Vec<Twins>,
}

/// Oldest and newest block of one key.
#[derive(Debug, Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
}

/// Neighbours of a block among those of its key; 0 (the null block) stands for none.
#[derive(Debug, Clone, Copy, Default)]
struct Twins {
    older: u32,
    newer: u32,
}

impl CachedBlocks {
    pub(super) fn new(num_blocks: usize) -> Self {
        Self {
            ends: HashMap::default(),
            twins: vec![Twins::default(); num_blocks],
        }
    }

    /// The oldest block that holds `key`.
    pub(super) fn find(&self, key: BlockKey) -> Option<u32> {
        self.ends.get(&key.0).map(|ends| ends.oldest)
    }

    pub(super) fn insert(&mut self, key: BlockKey, id: u32) {
        let ends = self.ends.entry(key.0).or_insert(Ends {
            oldest: id,
            newest: 0,
        });
        let older = std::mem::replace(&mut ends.newest, id);
        self.twins[id as usize] = Twins { older, newer: 0 };
        if older != 0 {
            self.twins[older as usize].newer = id;
        }
    }

    /// Takes out a block that was inserted under `key`.
    pub(super) fn remove(&mut self, key: BlockKey, id: u32) {
        let Twins { older, newer } = std::mem::take(&mut self.twins[id as usize]);
        if older != 0 {
            self.twins[older as usize].newer = newer;
        }
        if newer != 0 {
            self.twins[newer as usize].older = older;
        }
        if older == 0 && newer == 0 {
            self.ends.remove(&key.0);
        } else if let Some(ends) = self.ends.get_mut(&key.0) {
            if older == 0 {
                ends.oldest = newer;
            }
            if newer == 0 {
                ends.newest = older;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.twins.fill(Twins::default());
    }
}

/// One multiplication: keys are hashes already, or small numbers of a trace.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        // The table takes its place from the low bits and its tag from the high ones; both halves
        // of the product are needed for either to depend on the whole key.
        let key = u128::from(key ^ 0x9e37_79b9_7f4a_7c15);
        let product = key * 0xf135_7aea_2e62_a9c5;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_several_copies_is_found_and_each_can_leave() {
        let key = BlockKey(7);
        let mut cache = CachedBlocks::new(5);
        for id in [2, 4, 1, 3] {
            cache.insert(key, id);
        }
        let mut found = vec![cache.find(key)];
        for id in [4, 2, 3, 1] {
            cache.remove(key, id);
            found.push(cache.find(key));
        }
        assert_eq!(found, [Some(2), Some(2), Some(1), Some(1), None]);
    }

    #[test]
    fn small_keys_spread_over_tags_and_places() {
        let hashes: Vec<u64> = (0..4096)
            .map(|key| {
                let mut hasher = KeyHasher::default();
                hasher.write_u64(key);
                hasher.finish()
            })
            .collect();
        let distinct = |bits: fn(&u64) -> u64| {
            let mut seen: Vec<u64> = hashes.iter().map(bits).collect();
            seen.sort_unstable();
            seen.dedup();
            seen.len()
        };
        assert_eq!(distinct(|h| h >> 57), 128);
        assert!(distinct(|h| h & 4095) > 2000);
    }
}
