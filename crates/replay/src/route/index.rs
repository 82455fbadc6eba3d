use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use vllm_sim_engine::{BlockKey, LayerGroupCacheEvent, SchedulerEvent};

use super::key_table::BlockKeyTable;

/// Index of KV cache blocks by key: the workers that cache each block, and the workers whose
/// requests use the block.
///
/// A key covers all blocks before it. One walk over a prompt's keys therefore yields the length of
/// the common prefix with every worker.
#[derive(Debug, Default)]
pub(super) struct RouterBlockIndex {
    table: BlockKeyTable,
    /// Number of words per node of the block index. A node has the key of a KV block, one bit per
    /// worker that caches the block, and one bit per worker whose requests use the block.
    ///
    /// Stored together because they are read together.
    nodes: Vec<u64>,
    free: Vec<u32>,
    words: usize,
    workers: usize,
    /// Number of additional cached copies of a KV block, on a worker that caches the block more
    /// than once.
    copies: NodeCounts,
    users: NodeCounts,
    overlaps: Vec<u32>,
    shared: Vec<u32>,
    alive: Vec<u64>,
}

type NodeCounts = HashMap<u64, u32, BuildHasherDefault<BlockNodeHasher>>;

/// Fast hash without protection against chosen keys, which is not needed because clients cannot
/// choose nodes or workers.
#[derive(Debug, Default)]
pub(super) struct BlockNodeHasher(u64);

impl Hasher for BlockNodeHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, pair: u64) {
        self.0 = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Packs an index node and a worker into a key of [`NodeCounts`]; the node, which varies more, is
/// in the low bits.
fn pack_node_and_worker(node: u32, worker: u32) -> u64 {
    u64::from(worker) << 32 | u64::from(node)
}

/// Number of KV blocks read ahead before lookups, so that their cache misses overlap.
const READ_AHEAD: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockUseKind {
    Cached,
    Used,
}

impl RouterBlockIndex {
    pub(super) fn add_worker(&mut self, worker: u32) {
        let workers = worker as usize + 1;
        if workers <= self.workers {
            return;
        }
        self.workers = workers;
        self.overlaps.resize(workers, 0);
        self.shared.resize(workers, 0);
        let words = workers.div_ceil(64);
        if words > self.words {
            let old = std::mem::take(&mut self.nodes);
            for node in old.chunks(self.words_per_node()) {
                let (key, bits) = node.split_at(1);
                let (cached, used) = bits.split_at(self.words);
                self.nodes.extend_from_slice(key);
                for bits in [cached, used] {
                    self.nodes.extend_from_slice(bits);
                    self.nodes.extend((self.words..words).map(|_| 0));
                }
            }
            self.words = words;
        }
    }

    pub(super) fn remove_worker(&mut self, worker: u32) {
        self.copies.retain(|pair, _| pair >> 32 != u64::from(worker));
        for node in self.table.block_node_indices() {
            self.clear_worker(BlockUseKind::Cached, node, worker);
            self.drop_unused(node);
        }
    }

    pub(super) fn apply_kv_event(&mut self, worker: u32, event: &SchedulerEvent) {
        match event {
            SchedulerEvent::Stored { plan, from, to } => {
                let keys = &plan.keys[*from as usize..*to as usize];
                for some in keys.chunks(READ_AHEAD) {
                    self.prefetch_nodes(some.iter().copied());
                    some.iter().for_each(|key| self.record_cached(worker, *key));
                }
            }
            SchedulerEvent::Removed { keys } => {
                for some in keys.chunks(READ_AHEAD) {
                    self.prefetch_nodes(some.iter().map(|(key, _)| *key));
                    some.iter().for_each(|(key, _)| self.record_evicted(worker, *key));
                }
            }
            SchedulerEvent::Group(event) => {
                if let LayerGroupCacheEvent::Stored { is_main: true, plan, kept, .. } = &**event {
                    kept.iter().for_each(|&i| self.record_cached(worker, plan.keys[i as usize]));
                }
            }
            SchedulerEvent::Cleared => self.remove_worker(worker),
            _ => {}
        }
    }

    fn record_cached(&mut self, worker: u32, key: BlockKey) {
        let node = self.find_or_create_node(key);
        if self.has_worker(BlockUseKind::Cached, node, worker) {
            *self.copies.entry(pack_node_and_worker(node, worker)).or_insert(0) += 1;
        } else {
            self.set_worker(BlockUseKind::Cached, node, worker);
        }
    }

    fn record_evicted(&mut self, worker: u32, key: BlockKey) {
        let Some(node) = self.find_node(key) else {
            return;
        };
        if take_extra_copy(&mut self.copies, pack_node_and_worker(node, worker)) {
            return;
        }
        self.clear_worker(BlockUseKind::Cached, node, worker);
        self.drop_unused(node);
    }

    /// Prefetches the index nodes of `keys` into the CPU cache, so that their cache misses overlap.
    fn prefetch_nodes(&self, keys: impl Iterator<Item = BlockKey>) {
        let stride = self.words_per_node();
        let nodes = keys.filter_map(|key| self.table.block_node_in_home_slot(key.0));
        let read = nodes.map(|node| self.nodes[node as usize * stride]);
        std::hint::black_box(read.fold(0, |all, key| all ^ key));
    }

    /// Returns, per worker, the number of leading KV blocks of a prompt that the worker has cached.
    pub(super) fn cached_prefix_blocks_by_worker(&mut self, keys: &[BlockKey]) -> &[u32] {
        let mut overlaps = std::mem::take(&mut self.overlaps);
        self.walk_prefix(BlockUseKind::Cached, keys, &mut overlaps);
        self.overlaps = overlaps;
        &self.overlaps
    }

    /// Returns the worker's number of cached blocks from the last call of
    /// [`Self::cached_prefix_blocks_by_worker`].
    pub(super) fn last_lookup_cached_blocks(&self, worker: u32) -> u32 {
        self.overlaps[worker as usize]
    }

    /// Returns, per worker, the number of leading KV blocks of a prompt that the worker's requests
    /// use.
    pub(super) fn active_prefix_blocks_by_worker(&mut self, keys: &[BlockKey]) -> &[u32] {
        let mut shared = std::mem::take(&mut self.shared);
        self.walk_prefix(BlockUseKind::Used, keys, &mut shared);
        self.shared = shared;
        &self.shared
    }

    /// Returns the worker's number of used blocks from the last call of
    /// [`Self::active_prefix_blocks_by_worker`].
    pub(super) fn last_lookup_active_blocks(&self, worker: u32) -> u32 {
        self.shared[worker as usize]
    }

    fn walk_prefix(&mut self, kind: BlockUseKind, keys: &[BlockKey], depths: &mut [u32]) {
        depths.fill(0);
        let mut alive = std::mem::take(&mut self.alive);
        alive.clear();
        alive.resize(self.words, u64::MAX);
        let mut depth = 0;
        for key in keys {
            let Some(node) = self.find_node(*key) else {
                break;
            };
            let bits = &self.nodes[self.bitset_offset(kind, node)..][..self.words];
            let mut any = false;
            for (word, (alive, bits)) in alive.iter_mut().zip(bits).enumerate() {
                for_each_set_bit(*alive & !bits, |bit| {
                    if let Some(found) = depths.get_mut(word * 64 + bit) {
                        *found = depth;
                    }
                });
                *alive &= bits;
                any |= *alive != 0;
            }
            depth += 1;
            if !any {
                break;
            }
        }
        for (word, alive) in alive.iter().enumerate() {
            for_each_set_bit(*alive, |bit| {
                if let Some(found) = depths.get_mut(word * 64 + bit) {
                    *found = depth;
                }
            });
        }
        self.alive = alive;
    }

    /// Records that a request on a worker uses the KV blocks of `keys`.
    ///
    /// Returns their nodes in the index, and how many of them no other request on the worker used.
    pub(super) fn add_request_blocks(
        &mut self,
        worker: u32,
        keys: &[BlockKey],
        mut nodes: Vec<u32>,
    ) -> (Vec<u32>, u32) {
        nodes.clear();
        let mut fresh = 0;
        for some in keys.chunks(READ_AHEAD) {
            self.prefetch_nodes(some.iter().copied());
            for key in some {
                let node = self.find_or_create_node(*key);
                if self.has_worker(BlockUseKind::Used, node, worker) {
                    *self.users.entry(pack_node_and_worker(node, worker)).or_insert(0) += 1;
                } else {
                    self.set_worker(BlockUseKind::Used, node, worker);
                    fresh += 1;
                }
                nodes.push(node);
            }
        }
        (nodes, fresh)
    }

    /// Records that a request has ended; returns how many of the request's blocks no other request
    /// on the worker uses.
    pub(super) fn remove_request_blocks(&mut self, worker: u32, nodes: &[u32]) -> u32 {
        let mut freed = 0;
        for &node in nodes {
            if take_extra_copy(&mut self.users, pack_node_and_worker(node, worker)) {
                continue;
            }
            self.clear_worker(BlockUseKind::Used, node, worker);
            self.drop_unused(node);
            freed += 1;
        }
        freed
    }

    fn find_node(&self, key: BlockKey) -> Option<u32> {
        let stride = self.words_per_node();
        self.table.find_block_node(key.0, |node| self.nodes[node as usize * stride] == key.0)
    }

    fn find_or_create_node(&mut self, key: BlockKey) -> u32 {
        let stride = self.words_per_node();
        let Self { table, nodes, free, .. } = self;
        let is = |nodes: &Vec<u64>, node: u32| nodes[node as usize * stride] == key.0;
        let slot = match table.find_node_or_free_slot(key.0, |node| is(nodes, node)) {
            Ok(node) => return node,
            Err(slot) => slot,
        };
        let node = free.pop().unwrap_or_else(|| {
            nodes.resize(nodes.len() + stride, 0);
            (nodes.len() / stride - 1) as u32
        });
        nodes[node as usize * stride] = key.0;
        table.fill_slot(slot, key.0, node);
        node
    }

    fn drop_unused(&mut self, node: u32) {
        let at = node as usize * self.words_per_node();
        let (key, bits) = (self.nodes[at], &self.nodes[at + 1..][..2 * self.words]);
        if bits.iter().all(|&bits| bits == 0) {
            self.table.remove_block_node(key, node);
            self.free.push(node);
        }
    }

    fn words_per_node(&self) -> usize {
        1 + 2 * self.words
    }

    fn bitset_offset(&self, kind: BlockUseKind, node: u32) -> usize {
        let key = node as usize * self.words_per_node();
        match kind {
            BlockUseKind::Cached => key + 1,
            BlockUseKind::Used => key + 1 + self.words,
        }
    }

    fn bitset_word(&mut self, kind: BlockUseKind, node: u32, worker: u32) -> &mut u64 {
        let at = self.bitset_offset(kind, node) + worker as usize / 64;
        &mut self.nodes[at]
    }

    fn has_worker(&self, kind: BlockUseKind, node: u32, worker: u32) -> bool {
        let at = self.bitset_offset(kind, node) + worker as usize / 64;
        self.nodes[at] >> (worker % 64) & 1 == 1
    }

    fn set_worker(&mut self, kind: BlockUseKind, node: u32, worker: u32) {
        *self.bitset_word(kind, node, worker) |= 1 << (worker % 64);
    }

    fn clear_worker(&mut self, kind: BlockUseKind, node: u32, worker: u32) {
        *self.bitset_word(kind, node, worker) &= !(1 << (worker % 64));
    }
}

fn take_extra_copy(extra: &mut NodeCounts, pair: u64) -> bool {
    if extra.is_empty() {
        return false;
    }
    match extra.get_mut(&pair) {
        None => false,
        Some(1) => extra.remove(&pair).is_some(),
        Some(n) => {
            *n -= 1;
            true
        }
    }
}

fn for_each_set_bit(mut bits: u64, mut found: impl FnMut(usize)) {
    while bits != 0 {
        found(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use vllm_sim_engine::PlannedKvBlocks;

    fn keys(of: &[u64]) -> Vec<BlockKey> {
        of.iter().copied().map(BlockKey).collect()
    }

    fn stored(of: &[u64]) -> SchedulerEvent {
        SchedulerEvent::Stored {
            plan: Arc::new(PlannedKvBlocks { keys: keys(of), ..PlannedKvBlocks::default() }),
            from: 0,
            to: of.len() as u32,
        }
    }

    fn removed(of: &[u64]) -> SchedulerEvent {
        let keys = keys(of).into_iter().map(|key| (key, None)).collect();
        SchedulerEvent::Removed { keys }
    }

    #[test]
    fn finds_cached_prefix_per_worker() {
        let mut index = RouterBlockIndex::default();
        for worker in [0, 1, 70] {
            index.add_worker(worker);
        }
        index.apply_kv_event(0, &stored(&[1, 2, 3]));
        index.apply_kv_event(70, &stored(&[1, 2, 9]));
        let found = index.cached_prefix_blocks_by_worker(&keys(&[1, 2, 3, 4])).to_vec();
        assert_eq!((found[0], found[1], found[70]), (3, 0, 2));
        index.apply_kv_event(0, &removed(&[2]));
        let found = index.cached_prefix_blocks_by_worker(&keys(&[1, 2, 3, 4])).to_vec();
        assert_eq!((found[0], found[70]), (1, 2));
        index.remove_worker(70);
        assert_eq!(index.cached_prefix_blocks_by_worker(&keys(&[1, 2]))[70], 0);
    }

    #[test]
    fn only_blocks_that_the_main_group_kept_are_found() {
        let mut index = RouterBlockIndex::default();
        index.add_worker(0);
        for (is_main, kept) in [(false, vec![1]), (true, vec![0])] {
            let plan =
                Arc::new(PlannedKvBlocks { keys: keys(&[1, 2]), ..PlannedKvBlocks::default() });
            let (group, from, to) = (0, 0, 2);
            let stored = LayerGroupCacheEvent::Stored { group, is_main, plan, from, to, kept };
            index.apply_kv_event(0, &SchedulerEvent::Group(Box::new(stored)));
        }
        assert_eq!(index.cached_prefix_blocks_by_worker(&keys(&[1, 2]))[0], 1);
    }

    #[test]
    fn block_stays_until_last_copy_is_evicted() {
        let mut index = RouterBlockIndex::default();
        index.add_worker(0);
        index.apply_kv_event(0, &stored(&[1]));
        index.apply_kv_event(0, &stored(&[1]));
        let mut found = Vec::new();
        for _ in 0..3 {
            found.push(index.cached_prefix_blocks_by_worker(&keys(&[1]))[0]);
            index.apply_kv_event(0, &removed(&[1]));
        }
        assert_eq!(found, [1, 1, 0]);
        assert!(index.table.block_node_indices().is_empty());
    }

    #[test]
    fn used_blocks_count_once_and_are_removed() {
        let mut index = RouterBlockIndex::default();
        index.add_worker(1);
        let (a, fresh_a) = index.add_request_blocks(1, &keys(&[1, 2, 3]), Vec::new());
        let (b, fresh_b) = index.add_request_blocks(1, &keys(&[1, 2, 4]), Vec::new());
        assert_eq!((fresh_a, fresh_b), (3, 1));
        assert_eq!(index.active_prefix_blocks_by_worker(&keys(&[1, 2, 5]))[1], 2);
        assert_eq!(
            (index.remove_request_blocks(1, &a), index.remove_request_blocks(1, &b)),
            (1, 3)
        );
        assert!(index.table.block_node_indices().is_empty());
    }
}
