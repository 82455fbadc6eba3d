use std::sync::Arc;

use super::cache::CachedBlocks;
use super::queue::FreeQueue;
use crate::{BlockKey, BlockPlan, CachedBlock, Event};

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
    blocks: Vec<u32>,
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
    pub(super) fn ids(&self) -> &[u32] {
        &self.blocks
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
/// queue is the eviction order. Source: `vllm/v1/core/{block_pool,kv_cache_manager}.py`, 0.33, one
/// full-attention group.
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
        if table.is_empty() && !self.admit(table, plan, need) {
            return false;
        }
        let fresh = self.blocks_for(need.tokens).saturating_sub(table.len());
        if fresh > 0 {
            if fresh.saturating_add(need.spare) > self.free.len() {
                return false;
            }
            self.take(table, fresh, out);
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
            let block = &mut self.blocks[id as usize];
            if block.refs == 0 {
                self.free.remove(id);
                self.idle -= 1;
            }
            block.refs += 1;
        }
        table.cached = hits;
        table.epoch = self.epoch;
        true
    }

    /// Moves `n` free blocks into the table; the caller has seen that there are that many.
    fn take(&mut self, table: &mut BlockTable, n: u32, out: &mut impl FnMut(Event)) {
        let mut removed = Vec::new();
        if n > 4 {
            let ids = self.free.iter().take(n as usize);
            let cached = ids.filter(|&id| self.blocks[id as usize].cached);
            self.cache.touch(cached.map(|id| self.cache.key(id)));
        }
        table.blocks.reserve(n as usize);
        for _ in 0..n {
            let Some(id) = self.free.pop_front() else {
                break;
            };
            let block = &mut self.blocks[id as usize];
            block.refs = 1;
            table.blocks.push(id);
            if std::mem::take(&mut block.cached) {
                let key = self.cache.remove(id);
                self.idle -= 1;
                if self.config.events {
                    let hash = self.hashes.get_mut(id as usize).and_then(Option::take);
                    removed.push((key, hash));
                }
            }
        }
        if !removed.is_empty() {
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
            table.settled = room;
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
            for i in from as usize..full as usize {
                self.remember(table.blocks[i], plan, i);
            }
            table.cached = full;
            if self.config.events {
                let plan = Arc::clone(plan);
                out(Event::Stored {
                    plan,
                    from,
                    to: full,
                });
            }
        }
        table.settled = if table.cached < keys {
            // One token short of the next full block.
            room.min((table.cached + 1).saturating_mul(size) - 1)
        } else {
            room
        };
    }

    /// Enters one block of a table as block `i` of `plan`.
    fn remember(&mut self, id: u32, plan: &BlockPlan, i: usize) {
        let key = plan.keys[i];
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
        for &id in &table.blocks {
            let block = &mut self.blocks[id as usize];
            if !block.cached {
                block.refs -= 1;
                if block.refs == 0 {
                    self.free.push_front(id);
                }
            }
        }
        for &id in table.blocks.iter().rev() {
            let block = &mut self.blocks[id as usize];
            if block.cached {
                block.refs -= 1;
                if block.refs == 0 {
                    self.free.push_back(id);
                    self.idle += 1;
                }
            }
        }
        table.blocks.clear();
        (table.cached, table.settled) = (0, 0);
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
            key: self.cache.key(id),
            block: id,
            users: block.refs,
        };
        blocks.map(named).collect()
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
