//! Allocates and caches the blocks of sequences in several layer groups.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/{kv_cache_coordinator,kv_cache_manager}.py`.

use std::ops::Range;
use std::sync::Arc;

use super::groups::{
    BlockAllocationRequest, LayerGroup, LayerGroupBlockTable, TokensNeedingBlocks,
};
use super::pool::{BlockPool, BlockTable};
use crate::{BlockKey, LayerGroupCacheEvent, PlannedKvBlocks, SchedulerEvent};

impl BlockPool {
    #[inline]
    pub(crate) fn has_layer_groups(&self) -> bool {
        !self.groups.all.is_empty()
    }

    /// Returns the index of the first layer group with full attention, or 0 without one.
    pub(crate) fn first_full_attention_group(&self) -> u32 {
        match self.groups.is_first_null {
            true => 0,
            false => self.groups.sparse_and_other_groups().0.len() as u32,
        }
    }

    /// Returns all layer groups, for the prefix cache in host memory. The first group has full
    /// attention if any group has.
    pub(crate) fn all_layer_groups(&self) -> Vec<LayerGroup> {
        let groups = &self.groups;
        let sparse = groups.all.iter().filter(|group| !group.has_full_attention());
        let first = (!groups.is_first_null).then(|| {
            LayerGroup::full_attention_group(self.config().block_size, sparse.count() as u32)
        });
        first.into_iter().chain(groups.all.iter().copied()).collect()
    }

    /// Returns whether a block table holds block `i` of layer group `at` (index in
    /// [`BlockPool::all_layer_groups`]) and the prefix cache keeps that block for the group.
    pub(crate) fn is_block_kept_in_prefix_cache(
        &self,
        table: &BlockTable,
        at: usize,
        i: u32,
    ) -> bool {
        let Some(at) = (at + usize::from(self.groups.is_first_null)).checked_sub(1) else {
            return true;
        };
        let (group, table_of) = (self.groups.all.get(at), table.groups.get(at));
        group.zip(table_of).is_some_and(|(group, blocks)| {
            group.block_size == self.config().block_size
                && blocks.block_id(i) != 0
                && self.groups.keeps_block_cached(group, &table.ends, i)
        })
    }

    pub(crate) fn begin_scheduling_pass(&mut self) {
        self.groups.fresh.clear();
    }

    /// Returns whether a prefix-cache hit of `tokens` tokens ends at a Mamba state that the current
    /// scheduling pass still computes.
    pub(crate) fn is_recurrent_state_still_computing(
        &self,
        plan: &PlannedKvBlocks,
        tokens: u32,
    ) -> bool {
        let last = (tokens / self.config().block_size).checked_sub(1);
        let key = last.and_then(|last| plan.keys.get(last as usize));
        key.is_some_and(|key| self.groups.fresh.contains(key))
    }

    /// Returns the maximum number of KV blocks that a sequence of `tokens` tokens holds, over all
    /// layer groups.
    pub(crate) fn max_blocks_for_tokens(&self, tokens: u32) -> u32 {
        let first = match self.groups.is_first_null {
            true => 0,
            false => self.blocks_for_tokens(tokens),
        };
        let others = self.groups.all.iter().map(|group| {
            let all = tokens.div_ceil(group.block_size);
            all.saturating_add(group.spare).min(group.most)
        });
        others.fold(first, u32::saturating_add)
    }

    /// Returns an upper bound of the number of new KV blocks that a block table needs for `tokens`
    /// tokens.
    pub(crate) fn max_new_blocks(&self, table: &BlockTable, tokens: u32) -> u32 {
        let first = self.blocks_for_tokens(tokens).saturating_sub(table.len());
        if !self.has_layer_groups() {
            return first;
        }
        self.missing_group_blocks(table, TokensNeedingBlocks::Step(tokens))
    }

    /// Returns the number of KV blocks that a sequence still needs to reach `tokens` tokens.
    pub(crate) fn blocks_still_needed(&self, table: &BlockTable, tokens: u32) -> u32 {
        if !self.has_layer_groups() {
            return self.blocks_for_tokens(tokens).saturating_sub(table.len());
        }
        let first = match self.groups.is_first_null {
            true => 0,
            false => table.len(),
        };
        let others = table.groups.iter().map(|table| table.held_block_ids().count() as u32);
        self.max_blocks_for_tokens(tokens).saturating_sub(first + others.sum::<u32>())
    }

    /// Returns the number of empty token slots in the KV blocks of a block table whose sequence has
    /// `tokens` tokens in the KV cache. The block of a state layer counts as filled.
    pub(crate) fn empty_token_slots(&self, table: &BlockTable, tokens: u32) -> u64 {
        let empty = |blocks: u32, size: u32| {
            (u64::from(blocks) * u64::from(size)).saturating_sub(tokens.into())
        };
        let first = match self.groups.is_first_null {
            true => 0,
            false => empty(table.len(), self.config().block_size),
        };
        let others = self.groups.all.iter().zip(&table.groups);
        let others = others.filter(|(group, _)| !group.is_state);
        others.fold(first, |sum, (group, table)| sum + empty(table.len(), group.block_size))
    }

    fn missing_group_blocks(&self, table: &BlockTable, need: TokensNeedingBlocks) -> u32 {
        let first = match self.groups.is_first_null {
            true => 0,
            false => self.blocks_for_tokens(need.token_count()).saturating_sub(table.len()),
        };
        let none = LayerGroupBlockTable::default();
        let others = self.groups.all.iter().enumerate().map(|(at, group)| {
            let table = table.groups.get(at).unwrap_or(&none);
            group.missing_block_count(table, need)
        });
        others.fold(first, u32::saturating_add)
    }

    /// Returns the number of leading tokens of a sequence that are cached in all layer groups, and
    /// the number cached in the full-attention groups. `plan` has the keys of the sequence's KV
    /// blocks.
    pub(crate) fn cached_prefix_tokens_in_groups(
        &self,
        plan: &PlannedKvBlocks,
        tokens: u32,
    ) -> (u32, u32) {
        if !self.config().prefix_caching {
            return (0, 0);
        }
        let groups = &self.groups;
        let size = self.config().block_size;
        let most = (tokens.saturating_sub(1) / size).min(plan.keys.len() as u32);
        let keys = &plan.keys[..most as usize];
        let (sparse, full): (Vec<&LayerGroup>, Vec<&LayerGroup>) =
            groups.all.iter().partition(|group| !group.has_full_attention());
        let sees_all = |&&key: &&BlockKey| {
            (groups.is_first_null || self.is_block_cached(key))
                && full.iter().all(|group| self.is_block_cached(group.salted_key(key)))
        };
        let found = keys.iter().take_while(sees_all).count() as u32;
        let drop = u32::from(groups.drops_last);
        let Some(one) = sparse.first() else {
            let hit = found.saturating_sub(drop);
            return (hit * size, hit * size);
        };
        // A state must be where the other groups end, after they dropped their last block.
        let most = match one.is_state {
            true => found.saturating_sub(drop),
            false => found,
        };
        let need = one.run + one.peek;
        let (mut end, mut run) = (0, 0);
        for i in (0..most).rev() {
            let key = keys[i as usize];
            if !sparse.iter().all(|group| self.is_block_cached(group.salted_key(key))) {
                run = 0;
                continue;
            }
            run += 1;
            // A window that reaches the first block needs no longer run.
            if run >= need || (i == 0 && !one.is_state) {
                end = i + run;
                break;
            }
        }
        let hit = end.saturating_sub(if one.is_state { 0 } else { drop });
        (hit * size, found.saturating_sub(drop) * size)
    }

    /// Records the block indices at which later prompts may diverge from a sequence: the end of its
    /// prompt, and the end of its cached prefix in the full-attention groups. The latter counts
    /// only if it is longer (`found` tokens) than the prefix cached in all groups (`hit` tokens).
    pub(crate) fn record_prompt_divergence_points(
        &self,
        table: &mut BlockTable,
        prompt: u32,
        (hit, found): (u32, u32),
    ) {
        let size = self.config().block_size;
        let (resend, extension) = (prompt.saturating_sub(1) / size, prompt / size);
        let divergence = if found > hit { found / size } else { 0 };
        table.ends = match self.groups.drops_last {
            false => [resend, 0, 0, divergence],
            true => {
                let before = |end: u32| end.saturating_sub(1);
                [before(resend), before(extension), before(divergence), divergence]
            }
        };
    }

    pub(super) fn allocate_group_blocks(
        &mut self,
        table: &mut BlockTable,
        plan: Option<&Arc<PlannedKvBlocks>>,
        need: &BlockAllocationRequest,
        out: &mut impl FnMut(SchedulerEvent),
    ) -> bool {
        let starts = table.is_empty();
        table.groups.resize_with(self.groups.all.len(), LayerGroupBlockTable::default);
        let is_found = match starts {
            true => self.find_prefix_in_groups(table, plan, need),
            false => {
                self.free_blocks_outside_window(table, need.processed);
                true
            }
        };
        let idle = match starts {
            true => self.idle_block_count(table),
            false => 0,
        };
        let now = self.new_blocks_needed(table, need);
        let whole = match starts || need.whole > 0 {
            true => self.missing_group_blocks(table, TokensNeedingBlocks::Admission(need.whole)),
            false => 0,
        };
        let wanted = |fresh: u32, kept: u32| fresh.saturating_add(idle).saturating_add(kept);
        let most =
            wanted(now, need.spare.saturating_add(need.reserved)).max(wanted(whole, need.spare));
        let takes = now.max(whole).saturating_add(idle) > 0;
        if !is_found || ((starts || takes) && most > self.free_block_count()) {
            if starts {
                self.clear_found_blocks(table);
            }
            return false;
        }
        if starts {
            self.hold_found_blocks(table, need.prefix / self.config().block_size);
            self.report_reused_blocks(table, plan, out);
        }
        self.take_group_blocks(table, need, out);
        self.cache_full_blocks(table, plan, need.cache.min(need.tokens), out);
        true
    }

    fn new_blocks_needed(&self, table: &BlockTable, need: &BlockAllocationRequest) -> u32 {
        let first = match self.groups.is_first_null {
            true => 0,
            false => self.blocks_for_tokens(need.tokens).saturating_sub(table.len()),
        };
        let others = self.groups.all.iter().zip(&table.groups);
        let others = others.map(|(group, table)| Self::new_group_blocks(group, table, need));
        others.fold(first, u32::saturating_add)
    }

    fn new_group_blocks(
        group: &LayerGroup,
        table: &LayerGroupBlockTable,
        need: &BlockAllocationRequest,
    ) -> u32 {
        let fresh = group.missing_block_count(
            table,
            TokensNeedingBlocks::Step(group.tokens_needing_blocks(need)),
        );
        if need.is_capped { fresh.min(group.most) } else { fresh }
    }

    /// Adds the cached prefix blocks of all layer groups to an empty block table; returns false if
    /// part of the prefix is missing.
    fn find_prefix_in_groups(
        &self,
        table: &mut BlockTable,
        plan: Option<&Arc<PlannedKvBlocks>>,
        need: &BlockAllocationRequest,
    ) -> bool {
        let size = self.config().block_size;
        let plan = plan.filter(|_| self.config().prefix_caching);
        let hits = plan.map_or(0, |_| need.prefix / size);
        let keys = plan.map_or(&[][..], |plan| &plan.keys[..]);
        let Some(keys) = keys.get(..hits as usize) else {
            return false;
        };
        match self.groups.is_first_null {
            true => table.blocks.resize(hits as usize, 0),
            false => table.blocks.extend(keys.iter().map_while(|&key| self.find_cached_block(key))),
        }
        let mut is_found = table.len() == hits;
        for (group, table) in self.groups.all.iter().zip(&mut table.groups) {
            table.first = group.blocks_outside_window(need.processed.max(need.prefix));
            let keys = keys.iter().skip(table.first as usize);
            // For a state group this is only the last block.
            let keys = keys.map(|&key| self.find_cached_block(group.salted_key(key)));
            is_found &= keys.clone().all(|id| id.is_some());
            table.blocks.extend(keys.flatten());
        }
        is_found
    }

    /// Returns how many of the cached KV blocks found for a block table are held by no sequence.
    /// These blocks stay in the free queue until the block table holds them.
    fn idle_block_count(&self, table: &BlockTable) -> u32 {
        let others = table.groups.iter().flat_map(|table| &table.blocks);
        let all = table.blocks.iter().chain(others);
        all.filter(|&&id| id != 0 && self.is_block_unreferenced(id)).count() as u32
    }

    fn clear_found_blocks(&self, table: &mut BlockTable) {
        table.blocks.clear();
        table.groups.iter_mut().for_each(LayerGroupBlockTable::clear_block_table);
    }

    fn hold_found_blocks(&mut self, table: &mut BlockTable, hits: u32) {
        let others = table.groups.iter().flat_map(|table| &table.blocks);
        for &id in table.blocks.iter().chain(others).filter(|&&id| id != 0) {
            self.add_block_reference(id);
        }
        self.record_prefix_hit(table, hits.min(table.len()));
    }

    fn take_group_blocks(
        &mut self,
        table: &mut BlockTable,
        need: &BlockAllocationRequest,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        let (sparse, others) = self.groups.sparse_and_other_groups();
        self.take_further(table, need, sparse, out);
        let fresh = self.blocks_for_tokens(need.tokens).saturating_sub(table.len());
        match self.groups.is_first_null {
            true => table.blocks.resize(table.blocks.len() + fresh as usize, 0),
            false => self.take_free_blocks(&mut table.blocks, 0, fresh, out),
        }
        self.take_further(table, need, others, out);
    }

    /// Allocates new KV blocks for a sequence in the layer groups with an index in `groups`; the
    /// first full-attention group is not among them.
    fn take_further(
        &mut self,
        table: &mut BlockTable,
        need: &BlockAllocationRequest,
        groups: Range<usize>,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        for at in groups {
            let group = self.groups.all[at];
            let table = &mut table.groups[at];
            let owner = at as u8 + 1;
            if !group.is_state {
                let fresh = Self::new_group_blocks(&group, table, need);
                self.take_free_blocks(&mut table.blocks, owner, fresh, out);
                continue;
            }
            let spare = group.spare - table.spare.len() as u32;
            self.take_free_blocks(&mut table.spare, owner, spare, out);
            let all = group.tokens_needing_blocks(need).div_ceil(group.block_size);
            if all > table.len() {
                if table.blocks.is_empty() {
                    table.first = all - 1;
                }
                table.blocks.resize((all - 1 - table.first) as usize, 0);
                self.take_free_blocks(&mut table.blocks, owner, 1, out);
            }
        }
    }

    /// Frees the KV blocks that no layer of a group will read again after `processed` tokens.
    fn free_blocks_outside_window(&mut self, table: &mut BlockTable, processed: u32) {
        for at in 0..self.groups.all.len() {
            let group = self.groups.all[at];
            let table = &mut table.groups[at];
            let upto = group.blocks_outside_window(processed).min(table.len());
            let passed = upto.saturating_sub(table.first);
            if passed == 0 {
                continue;
            }
            let mut ids: Vec<u32> = table.blocks.drain(..passed as usize).collect();
            table.first = upto;
            while table.blocks.first() == Some(&0) {
                table.blocks.remove(0);
                table.first += 1;
            }
            ids.retain(|&id| id != 0);
            self.release_block_ids(&ids);
        }
    }

    /// Frees the KV blocks of a sequence in the layer groups with an index in `groups`; the first
    /// full-attention group is not among them.
    pub(super) fn release_group_blocks(&mut self, table: &mut BlockTable, groups: Range<usize>) {
        table.ends = [0; 4];
        let tables = table.groups.get_mut(groups).into_iter().flatten();
        for table in tables {
            let ids: Vec<u32> = table.held_block_ids().collect();
            self.release_block_ids(&ids);
            table.clear_block_table();
        }
    }

    /// Adds blocks `from..to` of a block table to the prefix cache, except blocks that their layer
    /// groups do not keep.
    pub(super) fn cache_group_blocks(
        &mut self,
        table: &BlockTable,
        plan: &Arc<PlannedKvBlocks>,
        (from, to): (u32, u32),
        groups: Range<usize>,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        for at in groups {
            let group = self.groups.all[at];
            let mut kept = Vec::new();
            for i in from..to {
                let id = table.groups[at].block_id(i);
                if id == 0 || !self.groups.keeps_block_cached(&group, &table.ends, i) {
                    continue;
                }
                let key = plan.keys[i as usize];
                self.add_to_prefix_cache(id, group.salted_key(key), plan, i as usize);
                kept.push(i);
                if group.is_state && at == 0 {
                    self.groups.fresh.push(key);
                }
            }
            if !self.config().events {
                continue;
            }
            let plan = Arc::clone(plan);
            let is_main = self.groups.is_first_null && at == 0;
            if is_main && kept.len() == (to - from) as usize {
                out(SchedulerEvent::Stored { plan, from, to });
                continue;
            }
            let group = group.index;
            let stored = LayerGroupCacheEvent::Stored { group, is_main, plan, from, to, kept };
            out(SchedulerEvent::Group(Box::new(stored)));
        }
    }

    pub(super) fn tokens_until_group_table_change(&self, table: &BlockTable) -> u32 {
        let tables = self.groups.all.iter().zip(&table.groups);
        let settled = tables.map(|(group, table)| {
            let room = table.len().saturating_mul(group.block_size);
            let passes = (table.first + 1).saturating_mul(group.block_size);
            room.min(passes.saturating_add(group.window - 1))
        });
        settled.min().unwrap_or(u32::MAX)
    }

    /// Emits events for blocks removed from the prefix cache, in order, grouped by layer group.
    pub(super) fn emit_removed_block_events(
        &self,
        removed: Vec<(BlockKey, Option<[u8; 32]>)>,
        owners: &[u8],
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        let plain = |owner: u8| owner == 0 || (owner == 1 && self.groups.is_first_null);
        let mut removed = removed.into_iter();
        for run in owners.chunk_by(|a, b| a == b) {
            let keys = removed.by_ref().take(run.len()).collect();
            out(match self.group_of_owner(run[0]) {
                Some(group) if !plain(run[0]) => {
                    let group = group.index;
                    SchedulerEvent::Group(Box::new(LayerGroupCacheEvent::Removed { group, keys }))
                }
                _ => SchedulerEvent::Removed { keys },
            });
        }
    }

    fn group_of_owner(&self, owner: u8) -> Option<&LayerGroup> {
        usize::from(owner).checked_sub(1).and_then(|at| self.groups.all.get(at))
    }

    /// Returns the key of a KV block without the salt of its layer group; `salted_key` is the
    /// salted key under which the prefix cache stores the block.
    pub(super) fn unsalted_block_key(&self, layer_group: u8, salted_key: BlockKey) -> BlockKey {
        self.group_of_owner(layer_group).map_or(salted_key, |group| group.salted_key(salted_key))
    }
}
