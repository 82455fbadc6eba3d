use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use vllm_sim_engine::{BlockKey, Event};

use super::key_table::KeyTable;

/// Index of KV cache blocks by key: the workers that cache each block, and those whose requests use
/// it.
///
/// A key covers all blocks before it. One walk over a prompt's keys therefore yields the length of
/// the common prefix with every worker.
#[derive(Debug, Default)]
pub(super) struct BlockIndex {
    table: KeyTable,
    /// Words per node (indexed block): key, one bit per worker that caches it, one bit per worker
    /// whose requests use it.
    ///
    /// Stored together because they are read together.
    nodes: Vec<u64>,
    free: Vec<u32>,
    words: usize,
    workers: usize,
    /// Number of further copies of a KV block cached twice or more on a worker.
    copies: NodeCounts,
    users: NodeCounts,
    overlaps: Vec<u32>,
    shared: Vec<u32>,
    alive: Vec<u64>,
}

type NodeCounts = HashMap<u64, u32, BuildHasherDefault<NodeHasher>>;

/// Fast hash without protection against chosen keys; clients cannot choose nodes or workers.
#[derive(Debug, Default)]
pub(super) struct NodeHasher(u64);

impl Hasher for NodeHasher {
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
fn pair(node: u32, worker: u32) -> u64 {
    u64::from(worker) << 32 | u64::from(node)
}

/// Number of KV blocks read ahead before lookups, so that their cache misses overlap.
const READ_AHEAD: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockUse {
    Cached,
    Used,
}

impl BlockIndex {
    pub(super) fn add(&mut self, worker: u32) {
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
            for node in old.chunks(self.stride()) {
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

    pub(super) fn forget(&mut self, worker: u32) {
        self.copies
            .retain(|pair, _| pair >> 32 != u64::from(worker));
        for node in self.table.nodes() {
            self.unset(BlockUse::Cached, node, worker);
            self.drop_unused(node);
        }
    }

    pub(super) fn apply(&mut self, worker: u32, event: &Event) {
        match event {
            Event::Stored { plan, from, to } => {
                let keys = &plan.keys[*from as usize..*to as usize];
                for some in keys.chunks(READ_AHEAD) {
                    self.touch(some.iter().copied());
                    some.iter().for_each(|key| self.store(worker, *key));
                }
            }
            Event::Removed { keys } => {
                for some in keys.chunks(READ_AHEAD) {
                    self.touch(some.iter().map(|(key, _)| *key));
                    some.iter().for_each(|(key, _)| self.evict(worker, *key));
                }
            }
            Event::Cleared => self.forget(worker),
            _ => {}
        }
    }

    fn store(&mut self, worker: u32, key: BlockKey) {
        let node = self.node(key);
        if self.has(BlockUse::Cached, node, worker) {
            *self.copies.entry(pair(node, worker)).or_insert(0) += 1;
        } else {
            self.set(BlockUse::Cached, node, worker);
        }
    }

    fn evict(&mut self, worker: u32, key: BlockKey) {
        let Some(node) = self.find(key) else {
            return;
        };
        if take_one(&mut self.copies, pair(node, worker)) {
            return;
        }
        self.unset(BlockUse::Cached, node, worker);
        self.drop_unused(node);
    }

    /// Prefetches the index nodes of `keys` into the CPU cache, so that their cache misses overlap.
    fn touch(&self, keys: impl Iterator<Item = BlockKey>) {
        let stride = self.stride();
        let nodes = keys.filter_map(|key| self.table.guess(key.0));
        let read = nodes.map(|node| self.nodes[node as usize * stride]);
        std::hint::black_box(read.fold(0, |all, key| all ^ key));
    }

    /// Returns, per worker, how many leading KV blocks of a prompt it has cached.
    pub(super) fn overlaps(&mut self, keys: &[BlockKey]) -> &[u32] {
        let mut overlaps = std::mem::take(&mut self.overlaps);
        self.walk(BlockUse::Cached, keys, &mut overlaps);
        self.overlaps = overlaps;
        &self.overlaps
    }

    /// Returns the worker's number of cached blocks in the last lookup of [`BlockIndex::overlaps`].
    pub(super) fn overlap(&self, worker: u32) -> u32 {
        self.overlaps[worker as usize]
    }

    /// Returns, per worker, how many leading KV blocks of a prompt its requests use.
    pub(super) fn shared(&mut self, keys: &[BlockKey]) -> &[u32] {
        let mut shared = std::mem::take(&mut self.shared);
        self.walk(BlockUse::Used, keys, &mut shared);
        self.shared = shared;
        &self.shared
    }

    /// Returns the worker's number of used blocks in the last lookup of [`BlockIndex::shared`].
    pub(super) fn shared_with(&self, worker: u32) -> u32 {
        self.shared[worker as usize]
    }

    fn walk(&mut self, kind: BlockUse, keys: &[BlockKey], depths: &mut [u32]) {
        depths.fill(0);
        let mut alive = std::mem::take(&mut self.alive);
        alive.clear();
        alive.resize(self.words, u64::MAX);
        let mut depth = 0;
        for key in keys {
            let Some(node) = self.find(*key) else {
                break;
            };
            let bits = &self.nodes[self.place(kind, node)..][..self.words];
            let mut any = false;
            for (word, (alive, bits)) in alive.iter_mut().zip(bits).enumerate() {
                each_bit(*alive & !bits, |bit| {
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
            each_bit(*alive, |bit| {
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
    pub(super) fn enter(
        &mut self,
        worker: u32,
        keys: &[BlockKey],
        mut nodes: Vec<u32>,
    ) -> (Vec<u32>, u32) {
        nodes.clear();
        let mut fresh = 0;
        for some in keys.chunks(READ_AHEAD) {
            self.touch(some.iter().copied());
            for key in some {
                let node = self.node(*key);
                if self.has(BlockUse::Used, node, worker) {
                    *self.users.entry(pair(node, worker)).or_insert(0) += 1;
                } else {
                    self.set(BlockUse::Used, node, worker);
                    fresh += 1;
                }
                nodes.push(node);
            }
        }
        (nodes, fresh)
    }

    /// Records that a request has ended; returns how many of its blocks no request on the worker
    /// uses after that.
    pub(super) fn leave(&mut self, worker: u32, nodes: &[u32]) -> u32 {
        let mut freed = 0;
        for &node in nodes {
            if take_one(&mut self.users, pair(node, worker)) {
                continue;
            }
            self.unset(BlockUse::Used, node, worker);
            self.drop_unused(node);
            freed += 1;
        }
        freed
    }

    fn find(&self, key: BlockKey) -> Option<u32> {
        let stride = self.stride();
        self.table
            .find(key.0, |node| self.nodes[node as usize * stride] == key.0)
    }

    fn node(&mut self, key: BlockKey) -> u32 {
        let stride = self.stride();
        let Self {
            table, nodes, free, ..
        } = self;
        let is = |nodes: &Vec<u64>, node: u32| nodes[node as usize * stride] == key.0;
        let slot = match table.entry(key.0, |node| is(nodes, node)) {
            Ok(node) => return node,
            Err(slot) => slot,
        };
        let node = free.pop().unwrap_or_else(|| {
            nodes.resize(nodes.len() + stride, 0);
            (nodes.len() / stride - 1) as u32
        });
        nodes[node as usize * stride] = key.0;
        table.fill(slot, key.0, node);
        node
    }

    fn drop_unused(&mut self, node: u32) {
        let at = node as usize * self.stride();
        let (key, bits) = (self.nodes[at], &self.nodes[at + 1..][..2 * self.words]);
        if bits.iter().all(|&bits| bits == 0) {
            self.table.remove(key, node);
            self.free.push(node);
        }
    }

    fn stride(&self) -> usize {
        1 + 2 * self.words
    }

    fn place(&self, kind: BlockUse, node: u32) -> usize {
        let key = node as usize * self.stride();
        match kind {
            BlockUse::Cached => key + 1,
            BlockUse::Used => key + 1 + self.words,
        }
    }

    fn word(&mut self, kind: BlockUse, node: u32, worker: u32) -> &mut u64 {
        let at = self.place(kind, node) + worker as usize / 64;
        &mut self.nodes[at]
    }

    fn has(&self, kind: BlockUse, node: u32, worker: u32) -> bool {
        let at = self.place(kind, node) + worker as usize / 64;
        self.nodes[at] >> (worker % 64) & 1 == 1
    }

    fn set(&mut self, kind: BlockUse, node: u32, worker: u32) {
        *self.word(kind, node, worker) |= 1 << (worker % 64);
    }

    fn unset(&mut self, kind: BlockUse, node: u32, worker: u32) {
        *self.word(kind, node, worker) &= !(1 << (worker % 64));
    }
}

fn take_one(extra: &mut NodeCounts, pair: u64) -> bool {
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

fn each_bit(mut bits: u64, mut found: impl FnMut(usize)) {
    while bits != 0 {
        found(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use vllm_sim_engine::BlockPlan;

    fn keys(of: &[u64]) -> Vec<BlockKey> {
        of.iter().copied().map(BlockKey).collect()
    }

    fn stored(of: &[u64]) -> Event {
        Event::Stored {
            plan: Arc::new(BlockPlan {
                keys: keys(of),
                ..BlockPlan::default()
            }),
            from: 0,
            to: of.len() as u32,
        }
    }

    fn removed(of: &[u64]) -> Event {
        let keys = keys(of).into_iter().map(|key| (key, None)).collect();
        Event::Removed { keys }
    }

    #[test]
    fn the_common_prefix_with_each_worker_is_found() {
        let mut index = BlockIndex::default();
        for worker in [0, 1, 70] {
            index.add(worker);
        }
        index.apply(0, &stored(&[1, 2, 3]));
        index.apply(70, &stored(&[1, 2, 9]));
        let found = index.overlaps(&keys(&[1, 2, 3, 4])).to_vec();
        assert_eq!((found[0], found[1], found[70]), (3, 0, 2));
        index.apply(0, &removed(&[2]));
        let found = index.overlaps(&keys(&[1, 2, 3, 4])).to_vec();
        assert_eq!((found[0], found[70]), (1, 2));
        index.forget(70);
        assert_eq!(index.overlaps(&keys(&[1, 2]))[70], 0);
    }

    #[test]
    fn a_second_copy_outlives_the_first() {
        let mut index = BlockIndex::default();
        index.add(0);
        index.apply(0, &stored(&[1]));
        index.apply(0, &stored(&[1]));
        let mut found = Vec::new();
        for _ in 0..3 {
            found.push(index.overlaps(&keys(&[1]))[0]);
            index.apply(0, &removed(&[1]));
        }
        assert_eq!(found, [1, 1, 0]);
        assert!(index.table.nodes().is_empty());
    }

    #[test]
    fn blocks_in_use_count_once_and_are_removed_completely() {
        let mut index = BlockIndex::default();
        index.add(1);
        let (a, fresh_a) = index.enter(1, &keys(&[1, 2, 3]), Vec::new());
        let (b, fresh_b) = index.enter(1, &keys(&[1, 2, 4]), Vec::new());
        assert_eq!((fresh_a, fresh_b), (3, 1));
        assert_eq!(index.shared(&keys(&[1, 2, 5]))[1], 2);
        assert_eq!((index.leave(1, &a), index.leave(1, &b)), (1, 3));
        assert!(index.table.nodes().is_empty());
    }
}
