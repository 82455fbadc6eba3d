//! Reconstructs the prefix cache of an engine from its events, by layer group, and checks the use
//! of blocks.

use std::collections::HashMap;

use proptest::prelude::*;
use vllm_sim_engine::kv::{KvCacheLayerGroups, SparseLayerKind};
use vllm_sim_engine::{
    BlockKey, EngineStats, KvBlockUsage, LayerGroupCacheEvent, Scheduler, SchedulerEvent,
};

/// Group number for events without one.
const MAIN: u32 = u32::MAX;

/// Number of copies of each block, by group and key.
#[derive(Debug, Default)]
pub(crate) struct CacheFromEvents(HashMap<(u32, BlockKey), u32>);

impl CacheFromEvents {
    /// Checks an event against invariants 8 and 9; `has_all`: some group keeps every block.
    pub(crate) fn apply(
        &mut self,
        event: &SchedulerEvent,
        has_all: bool,
    ) -> Result<(), TestCaseError> {
        match event {
            SchedulerEvent::Stored { plan, from, to } => {
                prop_assert!(from < to);
                if let Some(parent) = from.checked_sub(1).filter(|_| has_all) {
                    let parent = (MAIN, plan.keys[parent as usize]);
                    prop_assert!(self.0.contains_key(&parent), "{:?} has no parent", event);
                }
                for key in &plan.keys[*from as usize..*to as usize] {
                    *self.0.entry((MAIN, *key)).or_default() += 1;
                }
            }
            SchedulerEvent::Removed { keys } => self.remove_blocks(MAIN, keys)?,
            SchedulerEvent::Cleared => self.0.clear(),
            SchedulerEvent::Group(event) => match &**event {
                LayerGroupCacheEvent::Stored { group, is_main, plan, from, to, kept } => {
                    let group = if *is_main { MAIN } else { *group };
                    prop_assert!(kept.is_sorted());
                    prop_assert!(kept.iter().all(|i| (*from..*to).contains(i)));
                    for &i in kept {
                        let key = plan.keys[i as usize];
                        *self.0.entry((group, key)).or_default() += 1;
                    }
                }
                LayerGroupCacheEvent::Removed { group, keys } => {
                    self.remove_blocks(*group, keys)?
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn remove_blocks(
        &mut self,
        group: u32,
        keys: &[(BlockKey, Option<[u8; 32]>)],
    ) -> Result<(), TestCaseError> {
        for (key, _) in keys {
            let copies = self.0.get_mut(&(group, *key));
            let Some(copies) = copies else {
                return Err(TestCaseError::fail(format!("{key:?} was not stored")));
            };
            *copies -= 1;
            if *copies == 0 {
                self.0.remove(&(group, *key));
            }
        }
        Ok(())
    }

    /// Returns the cached keys, one per copy, sorted.
    pub(crate) fn keys(&self) -> Vec<BlockKey> {
        let copies = self.0.iter();
        let keys = copies.flat_map(|((_, key), n)| std::iter::repeat_n(*key, *n as usize));
        let mut keys: Vec<BlockKey> = keys.collect();
        keys.sort_unstable();
        keys
    }
}

/// Generates layer groups with a window or a state, or none.
pub(crate) fn any_groups() -> impl Strategy<Value = Option<KvCacheLayerGroups>> {
    let kind = prop_oneof![
        2 => (1..80u32).prop_map(SparseLayerKind::Window),
        1 => (2..4u32).prop_map(SparseLayerKind::State),
    ];
    let interval = prop_oneof![2 => Just(Some(0)), 1 => (1..64u32).prop_map(Some), 1 => Just(None)];
    let groups = (0..3u32, 1..4u32, kind, interval);
    let groups = groups.prop_map(|(full, sparse, kind, interval)| KvCacheLayerGroups {
        full,
        sparse,
        kind,
        interval,
    });
    proptest::option::weighted(0.6, groups)
}

/// Checks that every block has one use (4), for any range of blocks.
pub(crate) fn check_block_use(
    engine: &dyn Scheduler,
    stats: &EngineStats,
) -> Result<(), TestCaseError> {
    let (total, end) = (stats.total_blocks, stats.total_blocks + 1);
    let all = engine.block_usage(1..end);
    prop_assert_eq!(all.used, stats.used_blocks);
    prop_assert_eq!(all.used + all.cached + all.unused, total);
    prop_assert!(all.shared <= all.used && u64::from(all.shared) <= all.saved);
    let middle = 1 + total / 2;
    let (front, back) = (engine.block_usage(1..middle), engine.block_usage(middle..end));
    let sum = |count: fn(&KvBlockUsage) -> u32| count(&front) + count(&back);
    prop_assert_eq!([sum(|b| b.used), sum(|b| b.shared)], [all.used, all.shared]);
    prop_assert_eq!(sum(|b| b.cached), all.cached);
    Ok(())
}
