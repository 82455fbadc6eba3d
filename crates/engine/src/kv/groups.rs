//! Models layer groups that keep only part of the KV cache, in addition to the full-attention
//! group.
//!
//! A sequence has a block table per group; all tables share one pool. Sliding-window layers free
//! blocks outside the window. State layers (Mamba, linear attention) keep only the newest state. In
//! the prefix cache each group has its own block keys. A prefix is a hit if all groups have the
//! blocks they need.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/{kv_cache_coordinator,single_type_kv_cache_manager}.py`.

use std::ops::Range;

use crate::BlockKey;

/// Arguments of [`BlockPool::allocate_blocks`](super::BlockPool::allocate_blocks). Counts are in
/// tokens, except `spare` and `reserved`, which are in KV blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlockAllocationRequest {
    /// Number of cached prompt tokens from
    /// [`BlockPool::cached_prefix_tokens`](super::BlockPool::cached_prefix_tokens); only used if
    /// the sequence holds no KV blocks yet.
    pub prefix: u32,
    /// Number of the sequence's tokens that need KV blocks: computed, new and lookahead tokens.
    pub tokens: u32,
    /// Number of lookahead tokens, the last ones of `tokens`. State layers need no KV blocks for
    /// lookahead tokens.
    pub lookahead: u32,
    /// Number of the sequence's tokens that cannot be rejected as drafts. KV blocks full of such
    /// tokens enter the prefix cache before their step has run, as in vLLM. If 0, only
    /// [`BlockPool::cache_full_blocks`](super::BlockPool::cache_full_blocks) adds blocks.
    pub cache: u32,
    /// Number of the sequence's tokens for which enough KV blocks must be free, although blocks are
    /// allocated only for `tokens` tokens (`scheduler_reserve_full_isl`).
    pub whole: u32,
    /// Number of KV blocks that must stay free (vLLM's watermark).
    pub spare: u32,
    /// Number of KV blocks that must stay free in addition to `spare` when blocks for `tokens`
    /// tokens are allocated. These blocks do not count when the room for `whole` tokens is checked.
    pub reserved: u32,
    /// Number of the sequence's tokens whose steps have ended. KV blocks outside the attention
    /// window before the last of these tokens are freed.
    pub processed: u32,
    /// Whether sliding-window and state layer groups allocate no more blocks than they can hold at
    /// a time.
    pub is_capped: bool,
}

/// Describes the KV cache groups of a model's layers: groups with full attention, and groups of
/// sliding-window or state layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCacheLayerGroups {
    /// Number of layer groups with full attention.
    pub full: u32,
    /// Number of groups of sliding-window or state layers, which have the first group indices in KV
    /// events.
    pub sparse: u32,
    /// Kind of the sparse layer groups: sliding-window or state layers.
    pub kind: SparseLayerKind,
    /// Interval of the positions at which sparse groups cache blocks, in tokens
    /// (`prefix_cache_retention_interval`). They also cache at the ends of prompts and where
    /// prompts diverge. 0: no further positions; `None`: all blocks.
    pub interval: Option<u32>,
}

/// Selects the part of the KV cache that sparse layers keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparseLayerKind {
    /// Sliding-window layers keep the KV cache of the newest tokens; the value is the window in
    /// tokens.
    Window(u32),
    /// State layers (Mamba) keep a state that sums up all previous tokens. The value is the maximum
    /// number of states per sequence, each in its own KV block.
    State(u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerGroupLimits {
    /// Maximum number of a sequence's scheduled tokens whose steps have not ended.
    pub in_flight: u32,
    pub max_model_len: u32,
    /// Number of draft tokens per sequence and step; each draft token has a recurrent state of its
    /// own.
    pub drafts: u32,
    pub drops_last: bool,
}

/// Number of tokens for which a sequence needs KV blocks: the tokens of its next step, or all its
/// tokens to check its admission.
#[derive(Debug, Clone, Copy)]
pub(super) enum TokensNeedingBlocks {
    /// Number of the sequence's tokens after the next step.
    Step(u32),
    /// Number of tokens of the whole sequence, for its admission; KV blocks outside the attention
    /// window do not count.
    Admission(u32),
}

impl TokensNeedingBlocks {
    pub(super) fn token_count(self) -> u32 {
        match self {
            Self::Step(tokens) | Self::Admission(tokens) => tokens,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerGroup {
    /// Attention window of the group's layers, in tokens, including the newest token.
    pub(super) window: u32,
    pub(super) block_size: u32,
    /// Maximum number of the layer group's KV blocks that count for the admission of a sequence.
    pub(super) cap: u32,
    pub(super) most: u32,
    /// Whether the layer group has state layers, which hold a block only at the end of the computed
    /// tokens.
    pub(super) is_state: bool,
    pub(super) spare: u32,
    /// Number of KV blocks directly before the end of a prefix-cache hit that must be cached for
    /// the layer group to use the hit.
    pub(super) run: u32,
    /// Number of KV blocks after the end of a prefix-cache hit that must be cached for the layer
    /// group to use the hit.
    pub(super) peek: u32,
    /// Salt of the block keys of the layer group, different for each group.
    pub(super) salt: u64,
    pub(super) index: u32,
}

/// Layer groups of the KV cache in addition to the first full-attention group.
#[derive(Debug, Default)]
pub(super) struct ExtraLayerGroups {
    pub(super) all: Vec<LayerGroup>,
    /// Whether no layer group has full attention. Then the block table of the first group holds
    /// null blocks.
    pub(super) is_first_null: bool,
    pub(super) drops_last: bool,
    pub(super) interval: Option<u32>,
    /// Keys of the KV blocks with Mamba states that were cached in the current scheduling pass;
    /// prompts can hit these blocks only after the pass.
    pub(super) fresh: Vec<BlockKey>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct LayerGroupBlockTable {
    /// Index in the sequence of the first KV block in the list `blocks`.
    pub(super) first: u32,
    /// KV block ids of the sequence in the layer group; 0 for a missing block.
    pub(super) blocks: Vec<u32>,
    pub(super) spare: Vec<u32>,
}

impl LayerGroupBlockTable {
    pub(super) fn len(&self) -> u32 {
        self.first + self.blocks.len() as u32
    }

    pub(super) fn block_id(&self, block_index: u32) -> u32 {
        let at = block_index.checked_sub(self.first);
        at.and_then(|at| self.blocks.get(at as usize)).copied().unwrap_or(0)
    }

    /// Iterates over the KV block ids of the layer group's block table, without missing ones.
    pub(super) fn held_block_ids(&self) -> impl Iterator<Item = u32> {
        let there = self.blocks.iter().chain(&self.spare).copied();
        there.filter(|&id| id != 0)
    }

    pub(super) fn clear_block_table(&mut self) {
        self.first = 0;
        self.blocks.clear();
        self.spare.clear();
    }
}

impl LayerGroup {
    pub(super) const fn full_attention_group(block_size: u32, index: u32) -> Self {
        Self {
            window: u32::MAX,
            block_size,
            cap: u32::MAX,
            most: u32::MAX,
            is_state: false,
            spare: 0,
            run: u32::MAX,
            peek: 0,
            salt: 0,
            index,
        }
    }

    pub(super) const fn has_full_attention(&self) -> bool {
        self.window == u32::MAX
    }

    pub(super) fn salted_key(&self, key: BlockKey) -> BlockKey {
        BlockKey(key.0 ^ self.salt)
    }

    /// Returns the number of leading blocks outside the attention window after `processed_tokens`
    /// tokens.
    pub(super) fn blocks_outside_window(&self, processed_tokens: u32) -> u32 {
        processed_tokens.saturating_sub(self.window - 1) / self.block_size
    }

    /// Returns the number of tokens for which the layer group needs KV blocks for a sequence.
    pub(super) fn tokens_needing_blocks(&self, need: &BlockAllocationRequest) -> u32 {
        match self.is_state {
            true => need.tokens.saturating_sub(need.lookahead),
            false => need.tokens,
        }
    }

    /// Returns the number of KV blocks that the layer group's block table lacks for the needed
    /// tokens.
    pub(super) fn missing_block_count(
        &self,
        table: &LayerGroupBlockTable,
        need: TokensNeedingBlocks,
    ) -> u32 {
        let all = match need {
            TokensNeedingBlocks::Step(tokens) => tokens.div_ceil(self.block_size),
            TokensNeedingBlocks::Admission(tokens) => {
                tokens.div_ceil(self.block_size).min(self.cap)
            }
        };
        let fresh = all.saturating_sub(table.len());
        match self.is_state {
            false => fresh,
            true => fresh.min(1) + self.spare - table.spare.len() as u32,
        }
    }
}

impl ExtraLayerGroups {
    /// Returns the index ranges of the sparse layer groups and of the other extra groups; in vLLM's
    /// order, the first full-attention group is between them.
    pub(super) fn sparse_and_other_groups(&self) -> (Range<usize>, Range<usize>) {
        let sparse = self.all.partition_point(|group| !group.has_full_attention());
        (0..sparse, sparse..self.all.len())
    }

    pub(super) fn new(
        groups: &KvCacheLayerGroups,
        block_size: u32,
        caching: bool,
        limits: &LayerGroupLimits,
    ) -> Self {
        let &LayerGroupLimits { in_flight, max_model_len, drafts, drops_last } = limits;
        let full = LayerGroup::full_attention_group(block_size, 0);
        let sparse = match groups.kind {
            SparseLayerKind::Window(tokens) => {
                let window = tokens.clamp(1, u32::MAX - 1);
                let kept = (window - 1).saturating_add(in_flight).min(max_model_len);
                // The window may begin inside a block.
                let cap = kept.div_ceil(block_size).saturating_add(1);
                LayerGroup {
                    window,
                    cap,
                    most: cap,
                    run: (window - 1).div_ceil(block_size),
                    peek: u32::from(drops_last),
                    ..full
                }
            }
            SparseLayerKind::State(most) => LayerGroup {
                window: 2,
                // Without a prefix cache there is one block of any length.
                block_size: if caching { block_size } else { u32::MAX },
                cap: u32::MAX,
                // While a step is in flight, three chunks may have separate states.
                most: if caching { most.max(3 + drafts) } else { 1 + drafts },
                is_state: true,
                spare: drafts,
                run: 1,
                ..full
            },
        };
        let is_first_null = groups.full == 0;
        let further = groups.full.saturating_sub(1) as usize;
        let kinds = std::iter::repeat_n(sparse, groups.sparse as usize);
        let kinds = kinds.chain(std::iter::repeat_n(full, further));
        let all = (0_u32..).zip(kinds).map(|(at, group)| LayerGroup {
            salt: (u64::from(at) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            index: at + u32::from(!is_first_null && at >= groups.sparse),
            ..group
        });
        Self {
            all: all.collect(),
            is_first_null,
            drops_last,
            interval: groups.interval,
            fresh: Vec::new(),
        }
    }

    /// Returns whether the prefix cache keeps block `block_index` of a layer group of a sequence.
    /// `divergence_blocks` are the block indices at which later prompts may diverge from the
    /// sequence.
    pub(super) fn keeps_block_cached(
        &self,
        group: &LayerGroup,
        divergence_blocks: &[u32],
        block_index: u32,
    ) -> bool {
        let Some(interval) = self.interval.filter(|_| !group.has_full_attention()) else {
            return true;
        };
        let need = group.run + group.peek;
        let every = interval / group.block_size;
        let regular = every > 0
            && (need >= every
                || block_index
                    .checked_sub(group.peek)
                    .is_some_and(|at| at % every >= every - need));
        let ends = divergence_blocks.iter().filter(|&&end| end > 0);
        let mut ends = ends.map(|end| end + group.peek);
        regular || ends.any(|end| block_index < end && block_index + need >= end)
    }
}
