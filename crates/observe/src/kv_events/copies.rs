//! Counts the GPU blocks with the same hash, for KV events of open pull requests of vLLM.
//!
//! vLLM does not deduplicate cached blocks: a hash may have several copies, and each announces its
//! removal.

use std::collections::BTreeMap;

use super::message::KvEventPreviewFeatures;
use vllm_sim_engine::{BlockKey, LayerGroupCacheEvent, SchedulerEvent};

/// Map from a layer group and block hash to the number of GPU blocks with this hash.
#[derive(Debug, Default)]
pub(super) struct KvBlockCopyCounts(BTreeMap<(u32, BlockKey), u32>);

impl KvBlockCopyCounts {
    /// Counts the copies of each KV block on the GPU in a batch of events, and drops the removal
    /// events that the enabled preview features suppress.
    ///
    /// Returns the remaining copies of each GPU block whose removal is announced, in order. The
    /// parameter `main` is the index of the main layer group.
    pub(super) fn count_and_filter_kv_events(
        &mut self,
        events: &mut Vec<SchedulerEvent>,
        main: u32,
        preview: KvEventPreviewFeatures,
    ) -> Vec<u32> {
        let mut remaining = Vec::new();
        let mut keep = |copies: &mut Self, group, key| {
            let left = copies.remove(group, key);
            let is_announced = left == 0 || !preview.removal_after_last_copy;
            if is_announced {
                remaining.push(left);
            }
            is_announced
        };
        events.retain_mut(|event| match event {
            SchedulerEvent::Stored { plan, from, to } => {
                for key in plan.keys.iter().take(*to as usize).skip(*from as usize) {
                    self.add(main, *key);
                }
                true
            }
            SchedulerEvent::Removed { keys } => {
                keys.retain(|(key, _)| keep(self, main, *key));
                !keys.is_empty()
            }
            SchedulerEvent::Group(event) => match &mut **event {
                LayerGroupCacheEvent::Stored { group, plan, kept, .. } => {
                    for key in kept.iter().filter_map(|at| plan.keys.get(*at as usize)) {
                        self.add(*group, *key);
                    }
                    true
                }
                LayerGroupCacheEvent::Removed { group, keys } => {
                    keys.retain(|(key, _)| keep(self, *group, *key));
                    !keys.is_empty()
                }
            },
            SchedulerEvent::Cleared => {
                self.0.clear();
                true
            }
            _ => true,
        });
        remaining
    }

    fn add(&mut self, group: u32, key: BlockKey) {
        let copies = self.0.entry((group, key)).or_default();
        *copies = copies.saturating_add(1);
    }

    /// Counts the removal of one GPU block, and returns the number of remaining GPU blocks with its
    /// hash.
    fn remove(&mut self, group: u32, key: BlockKey) -> u32 {
        let copies = self.0.remove(&(group, key)).unwrap_or(1).saturating_sub(1);
        if copies > 0 {
            self.0.insert((group, key), copies);
        }
        copies
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use vllm_sim_engine::PlannedKvBlocks;

    fn stored(key: u64) -> SchedulerEvent {
        let plan = PlannedKvBlocks {
            keys: vec![BlockKey(key)],
            block_size: 1,
            ..PlannedKvBlocks::default()
        };
        SchedulerEvent::Stored { plan: Arc::new(plan), from: 0, to: 1 }
    }

    fn removed(keys: &[u64]) -> SchedulerEvent {
        SchedulerEvent::Removed { keys: keys.iter().map(|key| (BlockKey(*key), None)).collect() }
    }

    #[test]
    fn each_removal_names_the_copies_that_remain() {
        let mut copies = KvBlockCopyCounts::default();
        let counts = KvEventPreviewFeatures {
            remaining_copy_counts: true,
            ..KvEventPreviewFeatures::default()
        };
        let mut first = vec![stored(1), stored(1), stored(2), removed(&[1, 2])];
        assert_eq!(copies.count_and_filter_kv_events(&mut first, 0, counts), [1, 0]);
        assert_eq!(copies.count_and_filter_kv_events(&mut vec![removed(&[1])], 0, counts), [0]);
        let mut again = vec![stored(1), SchedulerEvent::Cleared, stored(1), removed(&[1])];
        assert_eq!(copies.count_and_filter_kv_events(&mut again, 0, counts), [0]);
    }

    #[test]
    fn only_the_last_removal_is_announced() {
        let mut copies = KvBlockCopyCounts::default();
        let last = KvEventPreviewFeatures {
            removal_after_last_copy: true,
            ..KvEventPreviewFeatures::default()
        };
        let mut first = vec![stored(1), stored(1), stored(2), removed(&[1, 2]), removed(&[1])];
        assert_eq!(copies.count_and_filter_kv_events(&mut first, 0, last), [0, 0]);
        assert_eq!(first[3..], [removed(&[2]), removed(&[1])]);
        let mut second = vec![stored(3), stored(3), removed(&[3])];
        copies.count_and_filter_kv_events(&mut second, 0, last);
        assert_eq!(second.len(), 2);
    }
}
