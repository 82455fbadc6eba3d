use std::ops::Range;
use std::sync::Arc;

use super::cache::CachedBlocks;
use super::groups::{GroupLimits, GroupTable, Groups, LayerGroups};
use super::queue::FreeQueue;
use crate::{BlockKey, BlockPlan, BlockUse, CachedBlock, Event};

/// Size and habits of a [`BlockPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvConfig {
    /// Blocks, with the null block that vLLM sets aside: one more than can be used.
    pub num_blocks: u32,
    /// Tokens per block; 0 counts as 1.
    pub block_size: u32,
    /// Whether full blocks are kept for later prompts.
    pub prefix_caching: bool,
    /// Whether anybody wants [`Event::Stored`], [`Event::Removed`] and [`Event::Cleared`].
    pub events: bool,
}

/// The blocks that one sequence holds, in the order of its tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockTable {
    pub(super) blocks: Vec<u32>,
    /// Its blocks in other groups than the first.
    pub(super) groups: Vec<GroupTable>,
    /// Blocks after which others may go on, with groups that do not keep everything.
    pub(super) ends: [u32; 4],
    /// Leading blocks that have entered the prefix cache.
    cached: u32,
    /// See [`BlockTable::settled`].
    settled: u32,
    /// The pool's epoch when the first block came in.
    epoch: u32,
}

impl BlockTable {
    /// How many blocks it holds.
    pub(crate) fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether it holds none.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Their numbers.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.blocks
    }

    /// Where groups that see everything went on finding its prompt, in tokens; 0: nowhere.
    pub(crate) fn parting(&self, block_size: u32) -> u32 {
        self.ends[3] * block_size
    }

    /// Up to this many tokens nothing happens: no block is missing and none becomes full.
    ///
    /// A scheduler may pass over all steps that stay at or below it.
    pub(crate) const fn settled(&self) -> u32 {
        self.settled
    }
}

/// What [`BlockPool::allocate`] is asked for; all in tokens but `spare`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlockRequest {
    /// What [`BlockPool::cached_prefix`] found; counts while the table is empty.
    pub prefix: u32,
    /// What the table must cover: computed + new (+ look-ahead).
    pub tokens: u32,
    /// Of these, the tokens that are certain: blocks full of them enter the prefix cache at once,
    /// before their step has run, as in vLLM. 0 puts that off until [`BlockPool::cache_full`].
    pub cache: u32,
    /// What would have to fit, though only `tokens` are taken (vLLM admits a prompt only when all
    /// of it fits, `scheduler_reserve_full_isl`).
    pub whole: u32,
    /// Blocks that must stay free (vLLM's watermark and reserved blocks).
    pub spare: u32,
    /// Tokens whose steps are over: no layer looks at what a window before them has passed.
    pub processed: u32,
    /// Groups that do not keep everything take no more than they ever hold.
    pub is_capped: bool,
}

/// Every usable block is in exactly one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockCounts {
    /// Free and empty.
    pub unused: u32,
    /// Free, but still in the prefix cache.
    pub idle: u32,
    /// Referenced by sequences.
    pub used: u32,
}

#[derive(Debug, Clone, Default)]
struct Block {
    /// Sequences that hold it.
    refs: u32,
    /// It is in the prefix cache.
    cached: bool,
}

/// All blocks of one engine: who holds them, which can be taken, and what they still remember.
///
/// A free block keeps its key until somebody takes it, so there is no separate eviction: the free
/// queue is the eviction order. Source: `vllm/v1/core/{block_pool,kv_cache_manager}.py`, 0.33.
#[derive(Debug)]
pub struct BlockPool {
    config: KvConfig,
    blocks: Vec<Block>,
    /// Whole hashes by block, once a plan had any.
    hashes: Vec<Option<[u8; 32]>>,
    free: FreeQueue,
    cache: CachedBlocks,
    /// Free blocks with a key.
    idle: u32,
    /// How often the cache was emptied.
    epoch: u32,
    /// Groups beside the first.
    pub(super) groups: Groups,
    /// By block, with such groups: the group that has it, 0 being the first.
    owners: Vec<u8>,
}

impl BlockPool {
    /// A pool whose blocks are all free and empty.
    pub(crate) fn new(config: KvConfig) -> Self {
        let config = KvConfig {
            num_blocks: config.num_blocks.max(1),
            block_size: config.block_size.max(1),
            ..config
        };
        Self {
            config,
            blocks: vec![Block::default(); config.num_blocks as usize],
            hashes: Vec::new(),
            free: FreeQueue::full(config.num_blocks - 1),
            cache: CachedBlocks::new(config.num_blocks as usize),
            idle: 0,
            epoch: 0,
            groups: Groups::default(),
            owners: Vec::new(),
        }
    }

    /// The same for layers in groups.
    #[must_use]
    pub(crate) fn with_groups(self, groups: &LayerGroups, limits: &GroupLimits) -> Self {
        let KvConfig {
            block_size,
            prefix_caching,
            ..
        } = self.config;
        Self {
            groups: Groups::new(groups, block_size, prefix_caching, limits),
            owners: vec![0; self.blocks.len()],
            ..self
        }
    }

    /// Its size and habits.
    pub(crate) const fn config(&self) -> &KvConfig {
        &self.config
    }

    /// Blocks that `tokens` tokens take.
    pub(crate) const fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.block_size)
    }

    /// Tokens at the start of `plan` that need no computation, a multiple of the block size.
    ///
    /// `tokens` is what the sequence has (prompt, and after a preemption also output); the last of
    /// them must always be computed, so at most `tokens - 1` are found.
    pub(crate) fn cached_prefix(&self, plan: &BlockPlan, tokens: u32) -> u32 {
        if !self.config.prefix_caching {
            return 0;
        }
        let most = tokens.saturating_sub(1) / self.config.block_size;
        let hits = plan.keys.iter().take(most as usize);
        let hits = hits.take_while(|&&key| self.cache.find(key).is_some());
        hits.count() as u32 * self.config.block_size
    }

    /// Whether some block holds this.
    pub(crate) fn is_cached(&self, key: BlockKey) -> bool {
        self.cache.find(key).is_some()
    }

    /// Of the first `blocks` of `plan`, those at the front that are cached and held by somebody.
    pub(crate) fn held_prefix(&self, plan: &BlockPlan, blocks: u32) -> u32 {
        let keys = plan.keys.iter().take(blocks as usize);
        let held = keys.take_while(|&&key| {
            let found = self.cache.find(key);
            found.is_some_and(|id| self.blocks[id as usize].refs > 0)
        });
        held.count() as u32
    }

    /// Makes `table` cover what is needed: cached prefix blocks first (if the table is empty),
    /// then blocks from the front of the free queue, which thereby leave the prefix cache.
    ///
    /// False: there are not enough free blocks, or the prefix is cached no longer; nothing changed.
    #[must_use]
    pub(crate) fn allocate(
        &mut self,
        table: &mut BlockTable,
        plan: Option<&Arc<BlockPlan>>,
        need: &BlockRequest,
        out: &mut impl FnMut(Event),
    ) -> bool {
        if need.tokens <= table.settled {
            return true;
        }
        if self.has_groups() {
            return self.allocate_in_groups(table, plan, need, out);
        }
        if table.is_empty() && !self.admit(table, plan, need) {
            return false;
        }
        let fresh = self.blocks_for(need.tokens).saturating_sub(table.len());
        if fresh > 0 {
            if fresh.saturating_add(need.spare) > self.free.len() {
                return false;
            }
            self.take(&mut table.blocks, 0, fresh, out);
        }
        self.cache_full(table, plan, need.cache.min(need.tokens), out);
        true
    }

    /// Puts the cached prefix into an empty table, if all else that is needed will fit too.
    fn admit(
        &mut self,
        table: &mut BlockTable,
        plan: Option<&Arc<BlockPlan>>,
        need: &BlockRequest,
    ) -> bool {
        let hits = match plan {
            Some(plan) if self.config.prefix_caching => {
                let hits = need.prefix / self.config.block_size;
                let keys = plan.keys.iter().take(hits as usize);
                table
                    .blocks
                    .extend(keys.map_while(|&key| self.cache.find(key)));
                hits
            }
            _ => 0,
        };
        // A hit that nobody holds leaves the free queue too.
        let idle = table
            .blocks
            .iter()
            .filter(|&&id| self.blocks[id as usize].refs == 0);
        let taken = idle.count() as u32;
        let fresh = self
            .blocks_for(need.tokens.max(need.whole))
            .saturating_sub(hits);
        let wanted = taken.saturating_add(fresh).saturating_add(need.spare);
        if table.len() != hits || wanted > self.free.len() {
            table.blocks.clear();
            return false;
        }
        for &id in &table.blocks {
            self.hold(id);
        }
        self.start(table, hits);
        true
    }

    /// The block that a key finds.
    pub(super) fn find(&self, key: BlockKey) -> Option<u32> {
        self.cache.find(key)
    }

    /// Whether nobody holds a block.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        self.blocks[id as usize].refs == 0
    }

    /// Somebody holds a cached block from now on.
    pub(super) fn hold(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        if block.refs == 0 {
            self.free.remove(id);
            self.idle -= 1;
        }
        block.refs += 1;
    }

    /// A table begins with so many cached blocks.
    pub(super) fn start(&self, table: &mut BlockTable, hits: u32) {
        (table.cached, table.epoch) = (hits, self.epoch);
    }

    /// Moves `n` free blocks into a table of group `owner`; the caller has seen that there are that
    /// many.
    pub(super) fn take(
        &mut self,
        table: &mut Vec<u32>,
        owner: u8,
        n: u32,
        out: &mut impl FnMut(Event),
    ) {
        let (mut removed, mut owners) = (Vec::new(), Vec::new());
        if n > 4 {
            let ids = self.free.iter().take(n as usize);
            let cached = ids.filter(|&id| self.blocks[id as usize].cached);
            self.cache.touch(cached.map(|id| self.cache.key(id)));
        }
        table.reserve(n as usize);
        for _ in 0..n {
            let Some(id) = self.free.pop_front() else {
                break;
            };
            let block = &mut self.blocks[id as usize];
            block.refs = 1;
            table.push(id);
            let last = self.owners.get_mut(id as usize);
            let last = last.map(|last| std::mem::replace(last, owner));
            if std::mem::take(&mut block.cached) {
                let name = self.cache.remove(id);
                self.idle -= 1;
                if self.config.events {
                    let hash = self.hashes.get_mut(id as usize).and_then(Option::take);
                    let key = last.map_or(name, |last| self.plan_key(last, name));
                    removed.push((key, hash));
                    owners.extend(last);
                }
            }
        }
        if !owners.is_empty() {
            self.report_removed(removed, &owners, out);
        } else if !removed.is_empty() {
            out(Event::Removed { keys: removed });
        }
    }

    /// Enters the blocks that the first `upto` tokens fill into the prefix cache, as one event.
    ///
    /// [`BlockPool::allocate`] does so by itself; this is for tokens that came from elsewhere.
    pub(crate) fn cache_full(
        &mut self,
        table: &mut BlockTable,
        plan: Option<&Arc<BlockPlan>>,
        upto: u32,
        out: &mut impl FnMut(Event),
    ) {
        let size = self.config.block_size;
        let room = table.len().saturating_mul(size);
        // After the cache was emptied, a table from before has lost its prefix: what it fills
        // later could never be found.
        let plan = plan.filter(|_| self.config.prefix_caching && table.epoch == self.epoch);
        let Some(plan) = plan else {
            table.settled = self.settled(table, room);
            return;
        };
        let keys = u32::try_from(plan.keys.len()).unwrap_or(u32::MAX);
        let full = (upto / size).min(table.len()).min(keys);
        let from = table.cached;
        if from < full {
            if full - from > 4 {
                let keys = &plan.keys[from as usize..full as usize];
                self.cache.touch(keys.iter().copied());
            }
            if !self.groups.is_first_null {
                for i in from as usize..full as usize {
                    self.remember(table.blocks[i], plan.keys[i], plan, i);
                }
            }
            table.cached = full;
            if self.config.events && !self.groups.is_first_null {
                let plan = Arc::clone(plan);
                out(Event::Stored {
                    plan,
                    from,
                    to: full,
                });
            }
            if self.has_groups() {
                self.cache_in_groups(table, plan, (from, full), out);
            }
        }
        let settled = if table.cached < keys {
            // One token short of the next full block.
            room.min((table.cached + 1).saturating_mul(size) - 1)
        } else {
            room
        };
        table.settled = self.settled(table, settled);
    }

    /// What the first group says of [`BlockTable::settled`], held against the others.
    fn settled(&self, table: &BlockTable, first: u32) -> u32 {
        match self.has_groups() {
            true => first.min(self.settled_in_groups(table)),
            false => first,
        }
    }

    /// Enters one block of a table as block `i` of `plan`, under a name.
    pub(super) fn remember(&mut self, id: u32, key: BlockKey, plan: &BlockPlan, i: usize) {
        self.blocks[id as usize].cached = true;
        self.cache.insert(key, id);
        if let (true, Some(&hash)) = (self.config.events, plan.hashes.get(i)) {
            if self.hashes.is_empty() {
                self.hashes = vec![None; self.blocks.len()];
            }
            self.hashes[id as usize] = Some(hash);
        }
    }

    /// Gives back the blocks of `table` that `tokens` tokens do not need and that are not cached.
    pub(crate) fn trim(&mut self, table: &mut BlockTable, tokens: u32) {
        let keep = self.blocks_for(tokens).max(table.cached);
        while table.len() > keep {
            let Some(id) = table.blocks.pop() else {
                break;
            };
            let block = &mut self.blocks[id as usize];
            block.refs -= 1;
            if block.refs == 0 {
                self.free.push_front(id);
            }
        }
        table.settled = table.settled.min(table.len() * self.config.block_size);
    }

    /// Gives all blocks of `table` back, at the end or for a preemption.
    ///
    /// Cached ones join the back of the free queue, last block first, so that a prefix outlives
    /// what follows it; the others go to the front and are taken next.
    pub(crate) fn release(&mut self, table: &mut BlockTable) {
        if !self.groups.is_first_null {
            self.give_back(&table.blocks);
        }
        if self.has_groups() {
            self.release_groups(table);
        }
        table.blocks.clear();
        (table.cached, table.settled) = (0, 0);
    }

    /// A sequence no longer holds these blocks.
    pub(super) fn give_back(&mut self, ids: &[u32]) {
        for &id in ids {
            let block = &mut self.blocks[id as usize];
            if !block.cached {
                block.refs -= 1;
                if block.refs == 0 {
                    self.free.push_front(id);
                }
            }
        }
        for &id in ids.iter().rev() {
            let block = &mut self.blocks[id as usize];
            if block.cached {
                block.refs -= 1;
                if block.refs == 0 {
                    self.free.push_back(id);
                    self.idle += 1;
                }
            }
        }
    }

    /// Empties the prefix cache, unless a sequence holds blocks: then false, and nothing changed
    /// (vLLM's `reset_prefix_cache`).
    pub(crate) fn reset(&mut self, out: &mut impl FnMut(Event)) -> bool {
        let unheld = self.used() == 0;
        if unheld {
            self.forget(out);
        }
        unheld
    }

    /// Empties the prefix cache; blocks that sequences hold stay with them, and neither these nor
    /// what the same sequences fill later can be found.
    pub(crate) fn forget(&mut self, out: &mut impl FnMut(Event)) {
        self.cache.clear();
        self.hashes.clear();
        for block in &mut self.blocks {
            block.cached = false;
        }
        self.idle = 0;
        self.epoch = self.epoch.wrapping_add(1);
        if self.config.events {
            out(Event::Cleared);
        }
    }

    /// Whether full blocks enter the prefix cache from now on, and are found in it.
    pub(crate) fn set_caching(&mut self, on: bool) {
        self.config.prefix_caching = on;
    }

    /// What is in the prefix cache, by block.
    pub(crate) fn cached_blocks(&self) -> Vec<CachedBlock> {
        let blocks = (0..).zip(&self.blocks).filter(|(_, block)| block.cached);
        let named = |(id, block): (u32, &Block)| CachedBlock {
            key: self.plan_key(
                self.owners.get(id as usize).copied().unwrap_or(0),
                self.cache.key(id),
            ),
            block: id,
            users: block.refs,
        };
        blocks.map(named).collect()
    }

    /// What the blocks of these numbers are used for.
    pub(crate) fn block_use(&self, numbers: Range<u32>) -> BlockUse {
        let blocks = self.blocks.iter().take(numbers.end as usize);
        // The null block is nobody's.
        let mut all = BlockUse::default();
        for block in blocks.skip(numbers.start.max(1) as usize) {
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

    /// Blocks that exist, the null block aside.
    pub const fn usable(&self) -> u32 {
        self.config.num_blocks - 1
    }

    /// Blocks that can be taken, those still in the prefix cache included.
    pub const fn free(&self) -> u32 {
        self.free.len()
    }

    /// Blocks that sequences hold.
    pub(crate) const fn used(&self) -> u32 {
        self.usable() - self.free.len()
    }

    /// Blocks by class; their sum is [`BlockPool::usable`].
    pub const fn counts(&self) -> BlockCounts {
        BlockCounts {
            unused: self.free.len() - self.idle,
            idle: self.idle,
            used: self.used(),
        }
    }
}
