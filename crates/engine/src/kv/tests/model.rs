//! Compares the block pool with a simple model of vLLM's, over random workloads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::{BlockAllocationRequest, BlockPool, BlockPoolConfig, BlockTable};
use super::{ObservedEvent, plan, stored_event, to_observed};
use crate::{BlockKey, PlannedKvBlocks};

/// Models vLLM's pool with plain collections (`block_pool.py`, `kv_cache_manager.py`).
struct ReferencePool {
    size: u32,
    free: VecDeque<u32>,
    refs: Vec<u32>,
    keys: Vec<Option<u64>>,
    cached: BTreeMap<u64, Vec<u32>>,
    said: Vec<ObservedEvent>,
}

#[derive(Default)]
struct ReferenceTable {
    ids: Vec<u32>,
    cached: usize,
}

impl ReferencePool {
    fn new(num_blocks: u32, size: u32) -> Self {
        Self {
            size,
            free: (1..num_blocks).collect(),
            refs: vec![0; num_blocks as usize],
            keys: vec![None; num_blocks as usize],
            cached: BTreeMap::new(),
            said: vec![],
        }
    }

    fn prefix(&self, plan: &PlannedKvBlocks, tokens: u32) -> Vec<u32> {
        let most = (tokens - 1) / self.size;
        let keys = plan.keys.iter().take(most as usize);
        keys.map_while(|key| self.cached.get(&key.0).map(|ids| ids[0])).collect()
    }

    fn allocate(
        &mut self,
        table: &mut ReferenceTable,
        hits: &[u32],
        plan: &PlannedKvBlocks,
        tokens: u32,
    ) -> bool {
        let held = (table.ids.len() + hits.len()) as u32;
        let fresh = tokens.div_ceil(self.size).saturating_sub(held) as usize;
        let idle = hits.iter().filter(|&&id| self.refs[id as usize] == 0).count();
        if fresh + idle > self.free.len() {
            return false;
        }
        for &id in hits {
            self.free.retain(|&free| free != id);
            self.refs[id as usize] += 1;
            table.ids.push(id);
            table.cached += 1;
        }
        let mut gone = vec![];
        for _ in 0..fresh {
            let id = self.free.pop_front().unwrap();
            if let Some(key) = self.keys[id as usize].take() {
                let ids = self.cached.get_mut(&key).unwrap();
                ids.retain(|&other| other != id);
                if ids.is_empty() {
                    self.cached.remove(&key);
                }
                gone.push(key);
            }
            self.refs[id as usize] = 1;
            table.ids.push(id);
        }
        if !gone.is_empty() {
            self.said.push(ObservedEvent::Removed(gone));
        }
        let full = ((tokens / self.size) as usize).min(plan.keys.len());
        if table.cached < full {
            for i in table.cached..full {
                let (id, key) = (table.ids[i], plan.keys[i].0);
                self.keys[id as usize] = Some(key);
                self.cached.entry(key).or_default().push(id);
            }
            self.said.push(stored_event(plan, table.cached, full));
            table.cached = full;
        }
        true
    }

    fn release(&mut self, table: &mut ReferenceTable) {
        let (mut first, mut last) = (vec![], vec![]);
        for id in std::mem::take(table).ids.into_iter().rev() {
            self.refs[id as usize] -= 1;
            if self.refs[id as usize] == 0 {
                match self.keys[id as usize] {
                    None => first.push(id),
                    Some(_) => last.push(id),
                }
            }
        }
        first.into_iter().rev().for_each(|id| self.free.push_front(id));
        self.free.extend(last);
    }
}

#[derive(Debug, Clone)]
enum PoolOperation {
    /// A sequence arrives: keys of its blocks, and prompt length in tokens.
    Start(Vec<u64>, u32),
    /// The `n`th sequence computes more tokens.
    Grow(prop::sample::Index, u32),
    /// The `n`th sequence ends or is preempted.
    End(prop::sample::Index),
    PrefixCacheReset,
}

fn any_operations() -> impl Strategy<Value = Vec<PoolOperation>> {
    let any = any::<prop::sample::Index>;
    let op = prop_oneof![
        4 => (prop::collection::vec(0..2u64, 1..9), 1..24u32).prop_map(|(p, n)| PoolOperation::Start(p, n)),
        6 => (any(), 1..5u32).prop_map(|(which, n)| PoolOperation::Grow(which, n)),
        3 => any().prop_map(PoolOperation::End),
        1 => Just(PoolOperation::PrefixCacheReset),
    ];
    prop::collection::vec(op, 1..120)
}

/// Checks invariants 8 and 9 as a subscriber can.
#[derive(Default)]
struct EventSubscriber(BTreeMap<u64, u32>);

impl EventSubscriber {
    fn apply_event(&mut self, said: &ObservedEvent) {
        match said {
            ObservedEvent::Stored(keys, parent) => {
                let known = parent.is_none_or(|parent| self.0.contains_key(&parent));
                assert!(known, "the parent of {keys:?} was never stored");
                keys.iter().for_each(|&key| *self.0.entry(key).or_default() += 1);
            }
            ObservedEvent::Removed(keys) => keys.iter().for_each(|key| {
                let copies = self.0.get_mut(key).expect("removed, but never stored");
                *copies -= 1;
                if *copies == 0 {
                    self.0.remove(key);
                }
            }),
            ObservedEvent::Cleared => self.0.clear(),
        }
    }
}

proptest! {
    /// Compares tables, events and hits with the model, and accounts for all blocks.
    #[test]
    fn block_pool_equals_reference_of_vllm(num_blocks in 1..24u32, size in 1..5u32, ops in any_operations()) {
        let config = BlockPoolConfig { num_blocks, block_size: size, prefix_caching: true, events: true };
        let mut pool = BlockPool::new(config);
        let mut model = ReferencePool::new(num_blocks, size);
        let mut subscriber = EventSubscriber::default();
        let mut running: Vec<(Arc<PlannedKvBlocks>, u32, BlockTable, ReferenceTable)> = vec![];
        for op in ops {
            let mut events = vec![];
            let out = &mut |event| events.push(to_observed(event));
            match op {
                PoolOperation::Start(path, prompt) => {
                    let plan = plan(&path, size);
                    let prefix = pool.cached_prefix_tokens(&plan, prompt);
                    let hits = model.prefix(&plan, prompt);
                    prop_assert_eq!(prefix, hits.len() as u32 * size);
                    let (mut table, mut same) = Default::default();
                    let need = BlockAllocationRequest { prefix, tokens: prompt, cache: prompt, ..BlockAllocationRequest::default() };
                    let fits = pool.allocate_blocks(&mut table, Some(&plan), &need, out);
                    prop_assert_eq!(fits, model.allocate(&mut same, &hits, &plan, prompt));
                    if fits {
                        running.push((plan, prompt, table, same));
                    }
                }
                PoolOperation::Grow(which, more) if !running.is_empty() => {
                    let which = which.index(running.len());
                    let (plan, computed, table, same) = &mut running[which];
                    let tokens = *computed + more;
                    let need = BlockAllocationRequest { tokens, cache: tokens, ..BlockAllocationRequest::default() };
                    let settled = tokens <= table.tokens_until_block_table_change();
                    let fits = pool.allocate_blocks(table, Some(&*plan), &need, out);
                    prop_assert_eq!(fits, model.allocate(same, &[], plan, tokens));
                    prop_assert!(!settled || fits && model.said.is_empty());
                    *computed += if fits { more } else { 0 };
                }
                PoolOperation::End(which) if !running.is_empty() => {
                    let (_, _, mut table, mut same) = running.remove(which.index(running.len()));
                    pool.release_block_table(&mut table);
                    model.release(&mut same);
                    prop_assert!(table.is_empty() && table.tokens_until_block_table_change() == 0);
                }
                PoolOperation::PrefixCacheReset => {
                    let done = pool.reset_prefix_cache(out);
                    prop_assert_eq!(done, running.is_empty());
                    if done {
                        model.cached.clear();
                        model.keys.fill(None);
                        model.said.push(ObservedEvent::Cleared);
                    }
                }
                PoolOperation::Grow(..) | PoolOperation::End(_) => {}
            }
            prop_assert_eq!(&events, &model.said);
            model.said.clear();
            events.iter().for_each(|event| subscriber.apply_event(event));
            for (_, _, table, same) in &running {
                prop_assert_eq!(table.block_ids(), &same.ids[..]);
            }
            let counts = pool.block_counts();
            prop_assert_eq!(counts.unused + counts.idle + counts.used, pool.usable_block_count());
            prop_assert_eq!(counts.used, model.refs.iter().filter(|&&refs| refs > 0).count() as u32);
            let copies: u32 = subscriber.0.values().sum();
            let cached = model.keys.iter().flatten().count() as u32;
            prop_assert_eq!(copies, cached);
            let free = |id: &u32| model.keys[*id as usize].is_some();
            prop_assert_eq!(counts.idle, model.free.iter().filter(|id| free(id)).count() as u32);
        }
    }

    /// A trace may repeat a hash id within one sequence: nothing fails or leaks.
    #[test]
    fn block_plan_may_repeat_keys(keys in prop::collection::vec(0..3u64, 1..12), rounds in 1..6usize) {
        let config = BlockPoolConfig { num_blocks: 14, block_size: 2, prefix_caching: true, events: true };
        let mut pool = BlockPool::new(config);
        let plan = Arc::new(PlannedKvBlocks {
            keys: keys.iter().map(|&key| BlockKey(key)).collect(),
            block_size: 2,
            ..PlannedKvBlocks::default()
        });
        let tokens = keys.len() as u32 * 2 + 1;
        for _ in 0..rounds {
            let mut table = BlockTable::default();
            let prefix = pool.cached_prefix_tokens(&plan, tokens);
            let need = BlockAllocationRequest { prefix, tokens, cache: tokens, ..BlockAllocationRequest::default() };
            if pool.allocate_blocks(&mut table, Some(&plan), &need, &mut |_| ()) {
                pool.release_block_table(&mut table);
            }
            let counts = pool.block_counts();
            prop_assert_eq!((counts.used, counts.unused + counts.idle), (0, 13));
        }
    }
}
