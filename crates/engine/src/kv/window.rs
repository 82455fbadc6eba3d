use std::collections::HashSet;

use crate::{BlockKey, BlockPlan};

/// Which prefixes can be found again where some layers see a window only.
///
/// For a hit of n tokens such layers need the blocks of the window before n. These are kept where a
/// prompt ends, where a prompt went on otherwise than one before it, and at multiples of an
/// interval; hits end there. They are taken to stay as long as the blocks of the other layers.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/single_type_kv_cache_manager.py`,
/// `prefix_cache_retention_interval`.
#[derive(Debug)]
pub(crate) struct WindowEnds {
    block_size: u32,
    /// Blocks of a window.
    run: u32,
    /// Tokens; 0: none.
    interval: u32,
    /// Last blocks of prefixes that can be found.
    ends: HashSet<BlockKey>,
    /// Beyond so many of them, those that are cached no longer are forgotten.
    most: usize,
}

impl WindowEnds {
    /// No prefix can be found yet, in a pool of `num_blocks`.
    pub(crate) fn new(window: u32, interval: u32, block_size: u32, num_blocks: u32) -> Self {
        let block_size = block_size.max(1);
        Self {
            block_size,
            run: window.saturating_sub(1).div_ceil(block_size),
            interval,
            ends: HashSet::new(),
            most: 2 * num_blocks as usize,
        }
    }

    /// The longest prefix of `plan` that can be found, of `blocks` blocks at most.
    pub(crate) fn longest(&self, plan: &BlockPlan, blocks: u32) -> u32 {
        let every = self.interval / self.block_size;
        let ends = |length: &u32| {
            let kept = every > 0 && length.is_multiple_of(every);
            kept || self.ends.contains(&plan.keys[*length as usize - 1])
        };
        let blocks = blocks.min(plan.keys.len() as u32);
        (1..=blocks).rev().find(ends).unwrap_or(0)
    }

    /// Keeps what a prompt of `blocks` full blocks leaves, of which the other layers had `found`.
    pub(crate) fn keep(
        &mut self,
        plan: &BlockPlan,
        (blocks, found): (u32, u32),
        is_cached: impl Fn(BlockKey) -> bool,
    ) {
        if self.ends.len() > self.most {
            self.ends.retain(|&key| is_cached(key));
        }
        for end in [blocks, found] {
            let end = end.min(plan.keys.len() as u32) as usize;
            // A window that reaches the start serves every shorter prefix too.
            let first = if end <= self.run as usize { 0 } else { end - 1 };
            self.ends.extend(&plan.keys[first..end]);
        }
    }

    /// The cache was emptied.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
    }
}
