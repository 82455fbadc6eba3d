//! Implements SGLang's prefix cache as a radix tree of pages.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::{BlockKey, CachedBlock, KvBlockUsage};

/// Index of a node in the radix tree of cached KV pages; 0 is the root.
pub(super) type RadixNodeId = u32;

const ROOT: RadixNodeId = 0;

/// Stores cached KV pages in a radix tree by prefix, and counts the free pages.
///
/// An edge holds a run of pages. A sequence locks the path it uses. Unlocked leaves are evicted in
/// LRU order, from their last page. A key covers all tokens before it, so it is in the tree only
/// once.
///
/// **Source:** `sglang/srt/mem_cache/radix_cache.py`, as modelled by aisimulate-core
/// `cache/radix_cache.rs`. Those use wall-clock time; here a counter orders the operations.
#[derive(Debug)]
pub(super) struct RadixTree {
    nodes: Vec<RadixNode>,
    unused: Vec<RadixNodeId>,
    leaves: BTreeSet<(u64, RadixNodeId)>,
    clock: u64,
    free: u32,
    evictable: u32,
    locked: u32,
    /// Number of cached KV pages that several sequences lock.
    shared: u32,
    /// Sum over all cached KV pages of the number of sequences that lock a page.
    references: u64,
}

#[derive(Debug, Default)]
struct RadixNode {
    parent: RadixNodeId,
    children: HashMap<BlockKey, RadixNodeId>,
    pages: Vec<BlockKey>,
    locks: u32,
    used: u64,
    /// Whether the prefix cache was reset while sequences used the pages of this radix tree node.
    /// Prompts cannot find such a node, and its removal emits no event.
    ghost: bool,
}

impl RadixTree {
    pub(super) fn with_free_pages(page_count: u32) -> Self {
        Self {
            nodes: vec![RadixNode::default()],
            unused: Vec::new(),
            leaves: BTreeSet::new(),
            clock: 0,
            free: page_count,
            evictable: 0,
            locked: 0,
            shared: 0,
            references: 0,
        }
    }

    pub(super) fn available_pages(&self) -> u32 {
        self.free + self.evictable
    }

    pub(super) const fn root_node() -> RadixNodeId {
        ROOT
    }

    fn next_use_counter(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Returns the number of cached KV pages at the front of `keys`, without updating the pages'
    /// time of last use.
    pub(super) fn cached_prefix_pages(&self, keys: &[BlockKey]) -> u32 {
        let (mut at, mut matched) = (ROOT, 0);
        while let Some(&child) = keys.get(matched).and_then(|key| self.node(at).children.get(key)) {
            let pages = &self.node(child).pages;
            let common = common_prefix_len(pages, &keys[matched..]);
            matched += common;
            if common < pages.len() {
                break;
            }
            at = child;
        }
        matched as u32
    }

    /// Locks the longest cached prefix of the KV pages `keys`. Returns the number of pages in this
    /// prefix, and the radix tree node of the last page.
    pub(super) fn lock_longest_prefix(&mut self, keys: &[BlockKey]) -> (u32, RadixNodeId) {
        let now = self.next_use_counter();
        let (mut at, mut matched) = (ROOT, 0);
        while let Some(&child) = keys.get(matched).and_then(|key| self.node(at).children.get(key)) {
            let common = common_prefix_len(&self.node(child).pages, &keys[matched..]);
            matched += common;
            if common < self.node(child).pages.len() {
                // The front part of a split edge keeps the last use of the whole edge.
                at = self.split_node(child, common);
                break;
            }
            self.touch_node(child, now);
            at = child;
        }
        self.lock_path_to_root(at);
        (matched as u32, at)
    }

    /// Takes free KV cache pages for a sequence, evicting cached pages if needed. Returns false
    /// without any change if there are too few.
    pub(super) fn allocate_pages(
        &mut self,
        pages: u32,
        evicted: &mut impl FnMut(BlockKey),
    ) -> bool {
        if pages > self.available_pages() {
            return false;
        }
        self.evict_pages(pages.saturating_sub(self.free), evicted);
        self.free -= pages;
        true
    }

    pub(super) fn release_pages(&mut self, pages: u32) {
        self.free += pages;
    }

    /// Inserts the KV pages `keys` of a sequence after the locked radix tree node `from`. Returns
    /// the node of the last page, not yet locked, and the number of pages that were not cached
    /// before.
    pub(super) fn insert_pages(
        &mut self,
        from: RadixNodeId,
        keys: &[BlockKey],
    ) -> (RadixNodeId, u32) {
        if keys.is_empty() {
            return (from, 0);
        }
        let now = self.next_use_counter();
        self.touch_path(from, now);
        let (mut at, mut done) = (from, 0);
        loop {
            let rest = &keys[done..];
            if rest.is_empty() {
                return (at, 0);
            }
            let node = self.node(at);
            let mine = node.locks == 0 || (at == from && node.locks == 1);
            if at != ROOT && node.children.is_empty() && mine {
                return (self.extend_leaf(at, rest, now), rest.len() as u32);
            }
            let Some(&child) = node.children.get(&rest[0]) else {
                return (self.add_branch(at, rest), rest.len() as u32);
            };
            let common = common_prefix_len(&self.node(child).pages, rest);
            done += common;
            if common < self.node(child).pages.len() {
                at = self.split_node(child, common);
                let rest = &keys[done..];
                if rest.is_empty() {
                    return (at, 0);
                }
                return (self.add_branch(at, rest), rest.len() as u32);
            }
            self.touch_node(child, now);
            at = child;
        }
    }

    pub(super) fn lock_path_to_root(&mut self, mut at: RadixNodeId) {
        while at != ROOT {
            self.unindex_evictable_leaf(at);
            let node = self.node_mut(at);
            node.locks += 1;
            let (locks, pages) = (node.locks, node.pages.len() as u32);
            at = node.parent;
            self.references += u64::from(pages);
            match locks {
                1 => {
                    self.evictable -= pages;
                    self.locked += pages;
                }
                2 => self.shared += pages,
                _ => {}
            }
        }
    }

    pub(super) fn unlock_path_to_root(&mut self, mut at: RadixNodeId) {
        while at != ROOT {
            let node = self.node_mut(at);
            node.locks -= 1;
            let (locks, pages, parent) = (node.locks, node.pages.len() as u32, node.parent);
            self.references -= u64::from(pages);
            match locks {
                0 => {
                    self.locked -= pages;
                    self.evictable += pages;
                    self.index_evictable_leaf(at);
                }
                1 => self.shared -= pages,
                _ => {}
            }
            at = parent;
        }
    }

    fn evict_pages(&mut self, mut pages: u32, evicted: &mut impl FnMut(BlockKey)) {
        while pages > 0 {
            let Some((_, leaf)) = self.leaves.pop_first() else {
                return;
            };
            let node = self.node_mut(leaf);
            let keep = node.pages.len().saturating_sub(pages as usize);
            let gone = node.pages.split_off(keep);
            let first = gone.first().copied();
            let count = gone.len() as u32;
            if !node.ghost {
                gone.into_iter().rev().for_each(&mut *evicted);
            }
            self.evictable -= count;
            self.free += count;
            pages -= count;
            if keep > 0 {
                self.index_evictable_leaf(leaf);
                continue;
            }
            let parent = self.node(leaf).parent;
            *self.node_mut(leaf) = RadixNode::default();
            self.unused.push(leaf);
            let children = &mut self.node_mut(parent).children;
            if let Some(first) = first.filter(|first| children.get(first) == Some(&leaf)) {
                children.remove(&first);
            }
            self.index_evictable_leaf(parent);
        }
    }

    /// Evicts all unlocked KV pages, and makes locked pages unreachable for later prompts.
    pub(super) fn clear_cache_keeping_locked_pages(&mut self) {
        let mut sink = |_| {};
        self.evict_pages(self.evictable, &mut sink);
        self.node_mut(ROOT).children.clear();
        self.nodes.iter_mut().for_each(|node| node.ghost = true);
        self.nodes[ROOT as usize].ghost = false;
    }

    /// Lists the cached KV pages. Pages have no ids in this simulation, so the list numbers them in
    /// order.
    pub(super) fn cached_pages(&self) -> Vec<CachedBlock> {
        let known = self.nodes.iter().filter(|node| !node.ghost);
        let pages = known.flat_map(|node| node.pages.iter().map(|&key| (key, node.locks)));
        let named = |(at, (key, users))| CachedBlock { key, block: at as u32, users };
        pages.enumerate().map(named).collect()
    }

    /// Counts the KV cache pages with the numbers `page_numbers` by use, out of pages 1 to
    /// `page_count`. Pages have no ids: used pages are numbered first, then cached pages.
    pub(super) fn kv_page_usage(&self, page_count: u32, page_numbers: Range<u32>) -> KvBlockUsage {
        let used = page_count - self.available_pages();
        let (from, to) = (page_numbers.start.max(1) - 1, page_numbers.end.max(1) - 1);
        let within = |begin: u32, end: u32| to.min(end).saturating_sub(from.max(begin));
        let saved = self.references - u64::from(self.locked);
        KvBlockUsage {
            used: within(0, used),
            shared: within(0, self.shared),
            saved: if from == 0 && to > 0 { saved } else { 0 },
            cached: within(used, used + self.evictable),
            unused: within(used + self.evictable, page_count),
        }
    }

    fn extend_leaf(&mut self, leaf: RadixNodeId, keys: &[BlockKey], now: u64) -> RadixNodeId {
        self.unindex_evictable_leaf(leaf);
        let count = keys.len() as u32;
        let node = self.node_mut(leaf);
        node.used = now;
        node.pages.extend_from_slice(keys);
        if node.locks == 0 {
            self.evictable += count;
            self.index_evictable_leaf(leaf);
        } else {
            // Only its owner extends a locked leaf.
            self.locked += count;
            self.references += u64::from(count);
        }
        leaf
    }

    fn add_branch(&mut self, parent: RadixNodeId, keys: &[BlockKey]) -> RadixNodeId {
        let used = self.next_use_counter();
        let child =
            self.add_node(RadixNode { parent, pages: keys.to_vec(), used, ..RadixNode::default() });
        self.unindex_evictable_leaf(parent);
        self.node_mut(parent).children.insert(keys[0], child);
        self.evictable += keys.len() as u32;
        self.index_evictable_leaf(child);
        child
    }

    /// Splits a radix tree node: a new node gets the first `at` pages, the old node keeps the rest.
    fn split_node(&mut self, child: RadixNodeId, at: usize) -> RadixNodeId {
        let node = self.node_mut(child);
        let rest = node.pages.split_off(at);
        let front = std::mem::replace(&mut node.pages, rest);
        let (parent, locks, used, ghost) = (node.parent, node.locks, node.used, node.ghost);
        let (first, next) = (front[0], node.pages[0]);
        let children = HashMap::from([(next, child)]);
        let middle =
            self.add_node(RadixNode { parent, children, pages: front, locks, used, ghost });
        self.node_mut(child).parent = middle;
        self.node_mut(parent).children.insert(first, middle);
        middle
    }

    fn add_node(&mut self, node: RadixNode) -> RadixNodeId {
        if let Some(id) = self.unused.pop() {
            *self.node_mut(id) = node;
            return id;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as RadixNodeId
    }

    fn touch_node(&mut self, at: RadixNodeId, now: u64) {
        let indexed = self.unindex_evictable_leaf(at);
        self.node_mut(at).used = now;
        if indexed {
            self.index_evictable_leaf(at);
        }
    }

    fn touch_path(&mut self, mut at: RadixNodeId, now: u64) {
        while at != ROOT {
            self.touch_node(at, now);
            at = self.node(at).parent;
        }
    }

    /// Adds a radix tree node to the evictable leaves if the node is an unlocked leaf.
    fn index_evictable_leaf(&mut self, at: RadixNodeId) {
        let node = self.node(at);
        if at != ROOT && node.locks == 0 && node.children.is_empty() {
            self.leaves.insert((node.used, at));
        }
    }

    fn unindex_evictable_leaf(&mut self, at: RadixNodeId) -> bool {
        let used = self.node(at).used;
        self.leaves.remove(&(used, at))
    }

    fn node(&self, id: RadixNodeId) -> &RadixNode {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: RadixNodeId) -> &mut RadixNode {
        &mut self.nodes[id as usize]
    }
}

fn common_prefix_len(a: &[BlockKey], b: &[BlockKey]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[u64]) -> Vec<BlockKey> {
        keys.iter().copied().map(BlockKey).collect()
    }

    /// Puts a finished sequence into the tree.
    fn insert_unlocked_path(radix: &mut RadixTree, path: &[u64]) {
        let path = keys(path);
        let (matched, node) = radix.lock_longest_prefix(&path);
        assert!(radix.allocate_pages(path.len() as u32 - matched, &mut |_| {}));
        radix.insert_pages(node, &path[matched as usize..]);
        radix.unlock_path_to_root(node);
    }

    fn evict(radix: &mut RadixTree, pages: u32) -> Vec<u64> {
        let mut gone = Vec::new();
        let wanted = radix.free + pages;
        assert!(radix.allocate_pages(wanted, &mut |key| gone.push(key.0)));
        radix.release_pages(wanted);
        gone
    }

    #[test]
    fn lru_radix_leaf_is_evicted_from_its_end() {
        let mut radix = RadixTree::with_free_pages(10);
        insert_unlocked_path(&mut radix, &[1, 2, 3]);
        insert_unlocked_path(&mut radix, &[1, 2, 4]);
        insert_unlocked_path(&mut radix, &[5, 6]);
        assert_eq!((radix.free, radix.evictable), (4, 6));
        assert_eq!(radix.cached_prefix_pages(&keys(&[1, 2, 3, 9])), 3);
        // 3 and 4 are older than 5 6; their parent 1 2 was used with 4 and goes before 5 6.
        assert_eq!(evict(&mut radix, 3), [3, 4, 2]);
        assert_eq!(evict(&mut radix, 2), [1, 6]);
        assert_eq!(radix.cached_prefix_pages(&keys(&[5, 6])), 1);
    }

    #[test]
    fn locked_radix_path_is_not_evicted() {
        let mut radix = RadixTree::with_free_pages(4);
        insert_unlocked_path(&mut radix, &[1, 2]);
        let (matched, node) = radix.lock_longest_prefix(&keys(&[1, 9]));
        assert_eq!((matched, radix.available_pages()), (1, 3));
        assert!(!radix.allocate_pages(4, &mut |_| {}));
        assert_eq!(evict(&mut radix, 1), [2]);
        radix.unlock_path_to_root(node);
        assert_eq!(evict(&mut radix, 1), [1]);
        assert_eq!(radix.free, 4);
    }

    #[test]
    fn insert_counts_only_pages_not_cached_before() {
        let mut radix = RadixTree::with_free_pages(8);
        let root = RadixTree::root_node();
        assert_eq!(radix.insert_pages(root, &keys(&[1, 2])).1, 2);
        let (end, new) = radix.insert_pages(root, &keys(&[1, 2, 3]));
        assert_eq!(new, 1);
        assert_eq!(radix.insert_pages(end, &[]), (end, 0));
        assert_eq!(radix.insert_pages(root, &keys(&[1])).1, 0);
    }
}
