use std::ops::Range;
use std::sync::Arc;

use super::block_lists::{CachedBlockMap, FreeBlockQueue};
use super::groups::{
    BlockAllocationRequest, ExtraLayerGroups, KvCacheLayerGroups, LayerGroupBlockTable,
    LayerGroupLimits,
};
use crate::{BlockKey, CachedBlock, KvBlockUsage, PlannedKvBlocks, SchedulerEvent};

/// Configures a [`BlockPool`], the KV cache of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPoolConfig {
    /// Number of KV blocks, including vLLM's null block, which is not usable.
    pub num_blocks: u32,
    /// Number of tokens per KV block; 0 counts as 1.
    pub block_size: u32,
    /// Whether full KV blocks are kept for later prompts.
    pub prefix_caching: bool,
    /// Whether the block pool emits [`SchedulerEvent::Stored`], [`SchedulerEvent::Removed`] and
    /// [`SchedulerEvent::Cleared`].
    pub events: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct BlockTable {
    pub(super) blocks: Vec<u32>,
    pub(super) groups: Vec<LayerGroupBlockTable>,
    /// Block indices at which later prompts may diverge from the sequence; sparse layer groups
    /// cache blocks there.
    pub(super) ends: [u32; 4],
    cached: u32,
    settled: u32,
    /// Number of resets of the block pool's prefix cache before the block table got its first
    /// block.
    epoch: u32,
}

impl BlockTable {
    pub(crate) fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn block_ids(&self) -> &[u32] {
        &self.blocks
    }

    /// Returns the end of the prefix-cache hit in the full-attention groups, in tokens, if it was
    /// longer than the hit in all groups; 0 if it was not.
    pub(crate) fn longer_full_attention_hit_tokens(&self, block_size: u32) -> u32 {
        self.ends[3] * block_size
    }

    /// Returns the total number of tokens up to which the sequence neither needs a new KV block nor
    /// fills one.
    ///
    /// A scheduler may skip the allocation in steps that stay at or below it.
    pub(crate) const fn tokens_until_block_table_change(&self) -> u32 {
        self.settled
    }
}

/// Counts the usable KV blocks by state. Each block has exactly one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvBlockCounts {
    /// Number of free KV blocks outside the prefix cache.
    pub unused: u32,
    /// Number of free KV blocks in the prefix cache.
    pub idle: u32,
    /// Number of KV blocks held by sequences.
    pub used: u32,
}

#[derive(Debug, Clone, Default)]
struct BlockState {
    refs: u32,
    cached: bool,
}

/// Manages all KV blocks of one engine.
///
/// A free block keeps its key until it is allocated, so the free queue is also the eviction order.
///
/// **Source:** `vllm/v1/core/{block_pool,kv_cache_manager}.py`, 0.33.
#[derive(Debug)]
pub struct BlockPool {
    config: BlockPoolConfig,
    blocks: Vec<BlockState>,
    /// Full hash of each KV block in the prefix cache, if the planned KV blocks of sequences have
    /// full hashes.
    hashes: Vec<Option<[u8; 32]>>,
    free: FreeBlockQueue,
    cache: CachedBlockMap,
    idle: u32,
    epoch: u32,
    /// Delay, in tokens, between the token that fills a decoded block and the entry of the block in
    /// the prefix cache.
    late: u32,
    pub(super) groups: ExtraLayerGroups,
    /// Index of the KV cache group of each block, if there are several groups.
    owners: Vec<u8>,
}

impl BlockPool {
    pub(crate) fn new(config: BlockPoolConfig) -> Self {
        let config = BlockPoolConfig {
            num_blocks: config.num_blocks.max(1),
            block_size: config.block_size.max(1),
            ..config
        };
        Self {
            config,
            blocks: vec![BlockState::default(); config.num_blocks as usize],
            hashes: Vec::new(),
            free: FreeBlockQueue::with_all_blocks(config.num_blocks - 1),
            cache: CachedBlockMap::new(config.num_blocks as usize),
            idle: 0,
            epoch: 0,
            late: 0,
            groups: ExtraLayerGroups::default(),
            owners: Vec::new(),
        }
    }

    /// Sets the delay, in tokens, with which full decoded blocks enter the prefix cache: 1 with
    /// asynchronous scheduling, because the next step is planned before the last token is known.
    #[must_use]
    pub(crate) fn with_block_caching_delay(self, delay_tokens: u32) -> Self {
        Self { late: delay_tokens, ..self }
    }

    #[must_use]
    pub(crate) fn with_layer_groups(
        self,
        groups: &KvCacheLayerGroups,
        limits: &LayerGroupLimits,
    ) -> Self {
        let BlockPoolConfig { block_size, prefix_caching, .. } = self.config;
        Self {
            groups: ExtraLayerGroups::new(groups, block_size, prefix_caching, limits),
            owners: vec![0; self.blocks.len()],
            ..self
        }
    }

    pub(crate) const fn config(&self) -> &BlockPoolConfig {
        &self.config
    }

    pub(crate) const fn blocks_for_tokens(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.block_size)
    }

    /// Returns the number of a sequence's leading tokens that are cached, a multiple of the block
    /// size. `plan` has the keys of the sequence's KV blocks.
    ///
    /// `tokens` is the length of the sequence (after a preemption with output). Its last token must
    /// always be computed, so at most `tokens - 1` are found.
    pub(crate) fn cached_prefix_tokens(&self, plan: &PlannedKvBlocks, tokens: u32) -> u32 {
        if !self.config.prefix_caching {
            return 0;
        }
        let most = tokens.saturating_sub(1) / self.config.block_size;
        let hits = plan.keys.iter().take(most as usize);
        let hits = hits.take_while(|&&key| self.cache.find_block(key).is_some());
        hits.count() as u32 * self.config.block_size
    }

    pub(crate) fn is_block_cached(&self, key: BlockKey) -> bool {
        self.cache.find_block(key).is_some()
    }

    /// Returns how many of the first `max_blocks` KV blocks of a prompt are cached and held by
    /// sequences, counted up to the first block that is not.
    pub(crate) fn cached_prefix_blocks_in_use(
        &self,
        plan: &PlannedKvBlocks,
        max_blocks: u32,
    ) -> u32 {
        let keys = plan.keys.iter().take(max_blocks as usize);
        let held = keys.take_while(|&&key| {
            let found = self.cache.find_block(key);
            found.is_some_and(|id| self.blocks[id as usize].refs > 0)
        });
        held.count() as u32
    }

    /// Extends a sequence's block table with KV blocks for `need.tokens` tokens. An empty table
    /// gets the cached prefix blocks first. The other blocks come from the front of the free queue;
    /// blocks cached there are evicted.
    ///
    /// Returns false without any change if there are too few free blocks or the prefix was evicted.
    #[must_use]
    pub(crate) fn allocate_blocks(
        &mut self,
        table: &mut BlockTable,
        plan: Option<&Arc<PlannedKvBlocks>>,
        need: &BlockAllocationRequest,
        out: &mut impl FnMut(SchedulerEvent),
    ) -> bool {
        let next = table.cached.saturating_add(1);
        let fills_none = need.cache / self.config.block_size < next;
        if need.tokens <= table.settled && need.whole <= table.settled && fills_none {
            return true;
        }
        if self.has_layer_groups() {
            return self.allocate_group_blocks(table, plan, need, out);
        }
        if table.is_empty() {
            if !self.take_cached_prefix(table, plan, need) {
                return false;
            }
            self.report_reused_blocks(table, plan, out);
        }
        let missing = |tokens| self.blocks_for_tokens(tokens).saturating_sub(table.len());
        let (fresh, whole) = (missing(need.tokens), missing(need.whole));
        if fresh.max(whole) > 0 {
            if fresh.max(whole).saturating_add(need.spare) > self.free.len() {
                return false;
            }
            self.take_free_blocks(&mut table.blocks, 0, fresh, out);
        }
        self.cache_full_blocks(table, plan, need.cache.min(need.tokens), out);
        true
    }

    fn take_cached_prefix(
        &mut self,
        table: &mut BlockTable,
        plan: Option<&Arc<PlannedKvBlocks>>,
        need: &BlockAllocationRequest,
    ) -> bool {
        let hits = match plan {
            Some(plan) if self.config.prefix_caching => {
                let hits = need.prefix / self.config.block_size;
                let keys = plan.keys.iter().take(hits as usize);
                table.blocks.extend(keys.map_while(|&key| self.cache.find_block(key)));
                hits
            }
            _ => 0,
        };
        // Cached blocks without a user also leave the free queue.
        let idle = table.blocks.iter().filter(|&&id| self.blocks[id as usize].refs == 0);
        let taken = idle.count() as u32;
        let wanted = |tokens, kept| {
            let fresh = self.blocks_for_tokens(tokens).saturating_sub(hits);
            taken.saturating_add(fresh).saturating_add(kept)
        };
        let now = wanted(need.tokens, need.spare.saturating_add(need.reserved));
        if table.len() != hits || now.max(wanted(need.whole, need.spare)) > self.free.len() {
            table.blocks.clear();
            return false;
        }
        for &id in &table.blocks {
            self.add_block_reference(id);
        }
        self.record_prefix_hit(table, hits);
        true
    }

    /// Emits a KV event about the cached prefix that a sequence reuses, if the sequence's planned
    /// KV blocks request such events (vLLM's `kv_cache_report_mode: full`).
    ///
    /// vLLM emits the event when it looks the prefix up, so a prompt that waits for free blocks is
    /// reported again in each step; here only the lookup before the admission counts.
    ///
    /// Source: vLLM 0.33 `vllm/v1/core/kv_cache_manager.py`, `get_computed_blocks`.
    pub(super) fn report_reused_blocks(
        &self,
        table: &BlockTable,
        plan: Option<&Arc<PlannedKvBlocks>>,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        if let Some(plan) = plan.filter(|plan| plan.reports_reused)
            && self.config.events
            && table.cached > 0
        {
            let groups = self.groups.all.len() as u32 + u32::from(!self.groups.is_first_null);
            let (plan, blocks) = (Arc::clone(plan), table.cached);
            out(SchedulerEvent::Reused { plan, blocks, groups });
        }
    }

    pub(super) fn find_cached_block(&self, key: BlockKey) -> Option<u32> {
        self.cache.find_block(key)
    }

    pub(super) fn is_block_unreferenced(&self, id: u32) -> bool {
        self.blocks[id as usize].refs == 0
    }

    pub(super) fn add_block_reference(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        if block.refs == 0 {
            self.free.remove_free_block(id);
            self.idle -= 1;
        }
        block.refs += 1;
    }

    pub(super) fn record_prefix_hit(&self, table: &mut BlockTable, hits: u32) {
        (table.cached, table.epoch) = (hits, self.epoch);
    }

    /// Adds `n` free KV blocks to a block table of layer group `owner`. The caller has checked that
    /// there are enough.
    pub(super) fn take_free_blocks(
        &mut self,
        table: &mut Vec<u32>,
        owner: u8,
        n: u32,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        let (mut removed, mut owners) = (Vec::new(), Vec::new());
        if n > 4 {
            let ids = self.free.iter().take(n as usize);
            let cached = ids.filter(|&id| self.blocks[id as usize].cached);
            self.cache.prefetch_hash_slots(cached.map(|id| self.cache.block_key(id)));
        }
        table.reserve(n as usize);
        for _ in 0..n {
            let Some(id) = self.free.pop_first_free_block() else {
                break;
            };
            let block = &mut self.blocks[id as usize];
            block.refs = 1;
            table.push(id);
            let last = self.owners.get_mut(id as usize);
            let last = last.map(|last| std::mem::replace(last, owner));
            if std::mem::take(&mut block.cached) {
                let name = self.cache.remove_cached_block(id);
                self.idle -= 1;
                if self.config.events {
                    let hash = self.hashes.get_mut(id as usize).and_then(Option::take);
                    let key = last.map_or(name, |last| self.unsalted_block_key(last, name));
                    removed.push((key, hash));
                    owners.extend(last);
                }
            }
        }
        if !owners.is_empty() {
            self.emit_removed_block_events(removed, &owners, out);
        } else if !removed.is_empty() {
            out(SchedulerEvent::Removed { keys: removed });
        }
    }

    /// Adds the blocks that the first `upto` tokens of a sequence fill to the prefix cache, with
    /// one event.
    ///
    /// [`BlockPool::allocate_blocks`] does this itself; call it for loaded tokens.
    pub(crate) fn cache_full_blocks(
        &mut self,
        table: &mut BlockTable,
        plan: Option<&Arc<PlannedKvBlocks>>,
        upto: u32,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        let size = self.config.block_size;
        let room = table.len().saturating_mul(size);
        // A table from before a cache reset has lost its prefix: the blocks it fills later could
        // never be found.
        let plan = plan.filter(|_| self.config.prefix_caching && table.epoch == self.epoch);
        let Some(plan) = plan else {
            table.settled = self.compute_settled_tokens(table, room);
            return;
        };
        let keys = u32::try_from(plan.keys.len()).unwrap_or(u32::MAX);
        let full = (upto / size).min(table.len()).min(keys);
        let from = table.cached;
        if from < full {
            if full - from > 4 {
                let keys = &plan.keys[from as usize..full as usize];
                self.cache.prefetch_hash_slots(keys.iter().copied());
            }
            if !self.groups.is_first_null {
                for i in from as usize..full as usize {
                    self.add_to_prefix_cache(table.blocks[i], plan.keys[i], plan, i);
                }
            }
            table.cached = full;
            let (sparse, others) = self.groups.sparse_and_other_groups();
            self.cache_group_blocks(table, plan, (from, full), sparse, out);
            if self.config.events && !self.groups.is_first_null {
                let plan = Arc::clone(plan);
                out(SchedulerEvent::Stored { plan, from, to: full });
            }
            self.cache_group_blocks(table, plan, (from, full), others, out);
        }
        let settled = if table.cached < keys {
            // One token less than the next full block.
            room.min((table.cached + 1).saturating_mul(size) - 1 + self.late)
        } else {
            room
        };
        table.settled = self.compute_settled_tokens(table, settled);
    }

    /// Returns the number of a sequence's tokens up to which no layer group needs a new KV block or
    /// fills one ([`BlockTable::settled`]).
    fn compute_settled_tokens(&self, table: &BlockTable, first: u32) -> u32 {
        match self.has_layer_groups() {
            true => first.min(self.tokens_until_group_table_change(table)),
            false => first,
        }
    }

    /// Adds a KV block to the prefix cache under `key`, as block `i` of `plan`.
    pub(super) fn add_to_prefix_cache(
        &mut self,
        id: u32,
        key: BlockKey,
        plan: &PlannedKvBlocks,
        i: usize,
    ) {
        self.blocks[id as usize].cached = true;
        self.cache.insert_cached_block(key, id);
        if let (true, Some(&hash)) = (self.config.events, plan.hashes.get(i)) {
            if self.hashes.is_empty() {
                self.hashes = vec![None; self.blocks.len()];
            }
            self.hashes[id as usize] = Some(hash);
        }
    }

    /// Frees the KV blocks of `table` that `tokens` tokens do not need and that are not cached.
    pub(crate) fn free_blocks_beyond(&mut self, table: &mut BlockTable, tokens: u32) {
        let keep = self.blocks_for_tokens(tokens).max(table.cached);
        while table.len() > keep {
            let Some(id) = table.blocks.pop() else {
                break;
            };
            let block = &mut self.blocks[id as usize];
            block.refs -= 1;
            if block.refs == 0 {
                self.free.push_first_free_block(id);
            }
        }
        table.settled = table.settled.min(table.len() * self.config.block_size);
    }

    /// Frees all KV blocks of a sequence that ends or is preempted.
    ///
    /// Cached blocks are appended to the free queue, last block first, so that a prefix is evicted
    /// after its continuation. Other blocks go to the front.
    pub(crate) fn release_block_table(&mut self, table: &mut BlockTable) {
        let (sparse, others) = self.groups.sparse_and_other_groups();
        self.release_group_blocks(table, sparse);
        if !self.groups.is_first_null {
            self.release_block_ids(&table.blocks);
        }
        self.release_group_blocks(table, others);
        table.blocks.clear();
        (table.cached, table.settled) = (0, 0);
    }

    pub(super) fn release_block_ids(&mut self, ids: &[u32]) {
        for &id in ids {
            let block = &mut self.blocks[id as usize];
            if !block.cached {
                block.refs -= 1;
                if block.refs == 0 {
                    self.free.push_first_free_block(id);
                }
            }
        }
        for &id in ids.iter().rev() {
            let block = &mut self.blocks[id as usize];
            if block.cached {
                block.refs -= 1;
                if block.refs == 0 {
                    self.free.push_last_free_block(id);
                    self.idle += 1;
                }
            }
        }
    }

    /// Empties the prefix cache (vLLM's `reset_prefix_cache`). Returns false without any change if
    /// sequences hold blocks.
    pub(crate) fn reset_prefix_cache(&mut self, out: &mut impl FnMut(SchedulerEvent)) -> bool {
        let unheld = self.used_block_count() == 0;
        if unheld {
            self.clear_prefix_cache_keeping_blocks(out);
        }
        unheld
    }

    /// Empties the prefix cache. Sequences keep their KV blocks, but later prompts find neither
    /// these blocks nor blocks that the sequences fill later.
    pub(crate) fn clear_prefix_cache_keeping_blocks(
        &mut self,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        self.cache.clear_cached_blocks();
        self.hashes.clear();
        for block in &mut self.blocks {
            block.cached = false;
        }
        self.idle = 0;
        self.epoch = self.epoch.wrapping_add(1);
        if self.config.events {
            out(SchedulerEvent::Cleared);
        }
    }

    pub(crate) fn set_prefix_caching(&mut self, enabled: bool) {
        self.config.prefix_caching = enabled;
    }

    pub(crate) fn cached_blocks(&self) -> Vec<CachedBlock> {
        let blocks = (0..).zip(&self.blocks).filter(|(_, block)| block.cached);
        let named = |(id, block): (u32, &BlockState)| CachedBlock {
            key: self.unsalted_block_key(
                self.owners.get(id as usize).copied().unwrap_or(0),
                self.cache.block_key(id),
            ),
            block: id,
            users: block.refs,
        };
        blocks.map(named).collect()
    }

    pub(crate) fn kv_block_usage(&self, block_ids: Range<u32>) -> KvBlockUsage {
        let blocks = self.blocks.iter().take(block_ids.end as usize);
        // The null block does not count.
        let mut all = KvBlockUsage::default();
        for block in blocks.skip(block_ids.start.max(1) as usize) {
            match (block.refs, block.cached) {
                (0, true) => all.cached += 1,
                (0, false) => all.unused += 1,
                (refs, _) => {
                    all.used += 1;
                    all.shared += u32::from(refs > 1);
                    all.saved += u64::from(refs - 1);
                }
            }
        }
        all
    }

    /// Returns the number of KV blocks without the null block.
    pub const fn usable_block_count(&self) -> u32 {
        self.config.num_blocks - 1
    }

    /// Returns the number of free KV blocks, including those in the prefix cache.
    pub const fn free_block_count(&self) -> u32 {
        self.free.len()
    }

    pub(crate) const fn used_block_count(&self) -> u32 {
        self.usable_block_count() - self.free.len()
    }

    /// Returns the numbers of KV blocks by state; their sum is [`BlockPool::usable_block_count`].
    pub const fn block_counts(&self) -> KvBlockCounts {
        KvBlockCounts {
            unused: self.free.len() - self.idle,
            idle: self.idle,
            used: self.used_block_count(),
        }
    }
}
