//! The free blocks of a pool, and its cached blocks by their keys.

use crate::BlockKey;

/// Holds the free KV blocks in allocation order, as a doubly linked list over block ids.
///
/// Every operation is O(1). Slot 0 is the null block, which is never free. It serves as the anchor:
/// `next` is the front, `prev` the back.
#[derive(Debug)]
pub(super) struct FreeBlockQueue {
    links: Vec<FreeBlockLink>,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct FreeBlockLink {
    prev: u32,
    next: u32,
}

const LIST_HEAD_BLOCK: u32 = 0;

impl FreeBlockQueue {
    pub(super) fn with_all_blocks(last_block_id: u32) -> Self {
        let links = (0..=last_block_id)
            .map(|id| FreeBlockLink {
                prev: if id == LIST_HEAD_BLOCK { last_block_id } else { id - 1 },
                next: if id == last_block_id { LIST_HEAD_BLOCK } else { id + 1 },
            })
            .collect();
        Self { links, len: last_block_id }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let next = |id: u32| Some(self.links[id as usize].next).filter(|&id| id != LIST_HEAD_BLOCK);
        std::iter::successors(next(LIST_HEAD_BLOCK), move |&id| next(id))
    }

    pub(super) fn pop_first_free_block(&mut self) -> Option<u32> {
        let front = self.links[LIST_HEAD_BLOCK as usize].next;
        (front != LIST_HEAD_BLOCK).then(|| {
            self.remove_free_block(front);
            front
        })
    }

    pub(super) fn push_first_free_block(&mut self, id: u32) {
        self.insert_between(id, LIST_HEAD_BLOCK, self.links[LIST_HEAD_BLOCK as usize].next);
    }

    pub(super) fn push_last_free_block(&mut self, id: u32) {
        self.insert_between(id, self.links[LIST_HEAD_BLOCK as usize].prev, LIST_HEAD_BLOCK);
    }

    pub(super) fn remove_free_block(&mut self, id: u32) {
        let FreeBlockLink { prev, next } = self.links[id as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len -= 1;
    }

    fn insert_between(&mut self, id: u32, prev: u32, next: u32) {
        self.links[id as usize] = FreeBlockLink { prev, next };
        self.links[prev as usize].next = id;
        self.links[next as usize].prev = id;
        self.len += 1;
    }
}

/// Maps the content keys of KV blocks to the blocks that hold this content.
///
/// Several blocks may hold one key: to keep block tables append-only, vLLM does not merge a
/// recomputed block with the cached one. Such blocks form a ring in caching order. A lookup returns
/// the oldest, as vLLM's dict does.
///
/// An open-addressing table with eight bytes per slot, at most half full and without tombstones:
/// this is the engine's largest random access.
///
/// **Source:** `BlockHashToBlockMap`, `vllm/v1/core/block_pool.py`.
#[derive(Debug)]
pub(super) struct CachedBlockMap {
    slots: Vec<BlockHashSlot>,
    /// Number of bits by which the hash of a block key is shifted right to select a slot of the
    /// hash table.
    shift: u32,
    keys: Vec<BlockKey>,
    /// Neighbors of each KV block in the ring of blocks with the same content key;
    /// [`DuplicateLinks::NONE`] if no other block has this key.
    duplicates: Vec<DuplicateLinks>,
    duplicated: usize,
}

/// Slot of the hash table from content keys to KV blocks; an empty slot has `id` 0, the null block.
#[derive(Debug, Clone, Copy, Default)]
struct BlockHashSlot {
    hash: u32,
    id: u32,
}

/// Neighbors of a KV block in the ring of blocks with the same content key. The newest block is
/// linked to the oldest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct DuplicateLinks {
    older: u32,
    newer: u32,
}

impl DuplicateLinks {
    const NONE: Self = Self { older: 0, newer: 0 };
}

impl CachedBlockMap {
    pub(super) fn new(num_blocks: usize) -> Self {
        let slots = (2 * num_blocks).next_power_of_two().clamp(2, 1 << 31);
        Self {
            slots: vec![BlockHashSlot::default(); slots],
            shift: 32 - slots.trailing_zeros(),
            keys: vec![BlockKey(0); num_blocks],
            duplicates: vec![DuplicateLinks::NONE; num_blocks],
            duplicated: 0,
        }
    }

    pub(super) fn find_block(&self, key: BlockKey) -> Option<u32> {
        let at = self.probe_slot(key, slot_hash(key));
        Some(self.slots[at].id).filter(|&id| id != 0)
    }

    pub(super) fn block_key(&self, id: u32) -> BlockKey {
        self.keys[id as usize]
    }

    pub(super) fn insert_cached_block(&mut self, key: BlockKey, id: u32) {
        let hash = slot_hash(key);
        let at = self.probe_slot(key, hash);
        self.keys[id as usize] = key;
        match self.slots[at].id {
            0 => self.slots[at] = BlockHashSlot { hash, id },
            oldest => self.link_duplicate(oldest, id),
        }
    }

    pub(super) fn remove_cached_block(&mut self, id: u32) -> BlockKey {
        let key = self.keys[id as usize];
        let heir = match self.duplicated {
            0 => None,
            _ => self.unlink_duplicate(id),
        };
        let mask = self.slots.len() - 1;
        let mut at = (slot_hash(key) >> self.shift) as usize;
        loop {
            match self.slots[at].id {
                // The block is a duplicate, but not the oldest one.
                0 => break,
                found if found == id => {
                    match heir {
                        Some(next) => self.slots[at].id = next,
                        None => self.backward_shift_delete(at),
                    }
                    break;
                }
                _ => at = (at + 1) & mask,
            }
        }
        key
    }

    /// Reads the hash-table slots of many keys in advance, so that the CPU's cache misses overlap.
    pub(super) fn prefetch_hash_slots(&self, keys: impl Iterator<Item = BlockKey>) {
        let read = keys.map(|key| self.slots[(slot_hash(key) >> self.shift) as usize].id);
        std::hint::black_box(read.fold(0, |all, id| all ^ id));
    }

    pub(super) fn clear_cached_blocks(&mut self) {
        self.slots.fill(BlockHashSlot::default());
        self.duplicates.fill(DuplicateLinks::NONE);
        self.duplicated = 0;
    }

    /// Returns the index of the hash-table slot that holds `key`, or of the empty slot where `key`
    /// belongs.
    fn probe_slot(&self, key: BlockKey, hash: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (hash >> self.shift) as usize;
        loop {
            let slot = self.slots[at];
            if slot.id == 0 || (slot.hash == hash && self.keys[slot.id as usize] == key) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// Removes the hash-table slot `hole` by backward-shift deletion, so that lookups need no
    /// tombstones.
    fn backward_shift_delete(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.id == 0 {
                break;
            }
            let home = (slot.hash >> self.shift) as usize;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = BlockHashSlot::default();
    }

    fn link_duplicate(&mut self, oldest: u32, id: u32) {
        let ring = self.duplicates[oldest as usize];
        let newest = match ring {
            DuplicateLinks::NONE => {
                self.duplicated += 1;
                oldest
            }
            ring => ring.older,
        };
        self.duplicated += 1;
        self.duplicates[id as usize] = DuplicateLinks { older: newest, newer: oldest };
        self.duplicates[newest as usize].newer = id;
        self.duplicates[oldest as usize].older = id;
    }

    /// Removes a KV block from the ring of blocks with the same content key, if any, and returns
    /// the next newer block.
    fn unlink_duplicate(&mut self, id: u32) -> Option<u32> {
        let ring = std::mem::replace(&mut self.duplicates[id as usize], DuplicateLinks::NONE);
        if ring == DuplicateLinks::NONE {
            return None;
        }
        let DuplicateLinks { older, newer } = ring;
        self.duplicated -= 1;
        if older == newer {
            self.duplicated -= 1;
            self.duplicates[older as usize] = DuplicateLinks::NONE;
        } else {
            self.duplicates[older as usize].newer = newer;
            self.duplicates[newer as usize].older = older;
        }
        Some(newer)
    }
}

/// Hashes a block key with one multiplication: keys are hashes already, or small numbers from a
/// trace.
fn slot_hash(key: BlockKey) -> u32 {
    // The golden ratio spreads consecutive keys evenly (Knuth, TAOCP 6.4).
    let product = u128::from(key.0 ^ 0xf135_7aea_2e62_a9c5) * 0x9e37_79b9_7f4a_7c15;
    let folded = product as u64 ^ (product >> 64) as u64;
    (folded >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lookup_finds_oldest_duplicate_and_any_can_be_removed() {
        let key = BlockKey(7);
        let mut cache = CachedBlockMap::new(5);
        for id in [2, 4, 1, 3] {
            cache.insert_cached_block(key, id);
        }
        let mut found = vec![cache.find_block(key)];
        for id in [4, 2, 3, 1] {
            cache.remove_cached_block(id);
            found.push(cache.find_block(key));
        }
        assert_eq!(found, [Some(2), Some(2), Some(1), Some(1), None]);
    }

    proptest! {
        /// Few keys and a full table, so that slots collide.
        #[test]
        fn block_map_equals_a_map_of_queues(moves in proptest::collection::vec((1..16u32, 0..8u64), 0..200)) {
            let mut cache = CachedBlockMap::new(16);
            let mut model: BTreeMap<u64, VecDeque<u32>> = BTreeMap::new();
            let mut held: BTreeMap<u32, u64> = BTreeMap::new();
            for (id, key) in moves {
                if let Some(key) = held.remove(&id) {
                    prop_assert_eq!(cache.remove_cached_block(id), BlockKey(key));
                    model.entry(key).or_default().retain(|&other| other != id);
                } else {
                    cache.insert_cached_block(BlockKey(key), id);
                    held.insert(id, key);
                    model.entry(key).or_default().push_back(id);
                }
                for key in 0..8 {
                    let oldest = model.get(&key).and_then(|ids| ids.front().copied());
                    prop_assert_eq!(cache.find_block(BlockKey(key)), oldest);
                }
            }
        }
    }

    #[test]
    fn small_keys_spread_over_hash_slots() {
        let mut seen: Vec<u32> = (0..4096).map(|key| slot_hash(BlockKey(key)) >> 20).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 2000, "{}", seen.len());
    }

    fn drain(mut queue: FreeBlockQueue) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop_first_free_block()).collect()
    }

    #[test]
    fn free_queue_starts_with_all_blocks_in_order() {
        assert_eq!(drain(FreeBlockQueue::with_all_blocks(4)), [1, 2, 3, 4]);
    }

    #[test]
    fn free_queue_excludes_the_null_block() {
        assert_eq!(drain(FreeBlockQueue::with_all_blocks(0)), [0; 0]);
    }

    #[test]
    fn blocks_are_removed_anywhere_and_returned_at_either_end() {
        let mut queue = FreeBlockQueue::with_all_blocks(5);
        queue.remove_free_block(3);
        queue.remove_free_block(1);
        queue.push_first_free_block(3);
        queue.push_last_free_block(1);
        assert_eq!(queue.len(), 5);
        assert_eq!(drain(queue), [3, 2, 4, 5, 1]);
    }
}
