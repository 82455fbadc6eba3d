//! Groups of layers that do not keep everything, beside the one that does.
//!
//! A sequence has a table for each group, and all take their blocks from one pool. Layers with a
//! window give blocks back once the window has passed them, layers with a state (Mamba, linear
//! attention) keep the newest state alone. In the prefix cache a block of each group has a name of its own, and a
//! prefix is found where all groups have what they need of it.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/{kv_cache_coordinator,single_type_kv_cache_manager}.py`.

use crate::BlockKey;

/// How the layers of a model share the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerGroups {
    /// Groups whose layers see everything.
    pub full: u32,
    /// Groups whose layers do not; they are numbered first.
    pub sparse: u32,
    /// What these keep.
    pub kind: SparseKind,
    /// They are found again where a prompt ends or two part, and at every multiple of so many
    /// tokens; 0: there alone; `None`: everywhere (`prefix_cache_retention_interval`).
    pub interval: Option<u32>,
}

/// What layers keep that do not keep everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparseKind {
    /// The last so many tokens.
    Window(u32),
    /// One state of all tokens before, so many at once at most.
    State(u32),
}

/// What the rules need beside the groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLimits {
    /// Tokens that may be scheduled and not settled.
    pub in_flight: u32,
    pub max_model_len: u32,
    /// Drafts of a step, each of which has a state.
    pub drafts: u32,
    /// Whether a hit gives up its last block.
    pub drops_last: bool,
}

/// One group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// Tokens that its layers see, the newest included.
    pub(super) window: u32,
    pub(super) block_size: u32,
    /// A sequence counts for no more blocks when it is admitted.
    pub(super) cap: u32,
    /// It holds no more.
    pub(super) most: u32,
    /// Of a run of blocks only the last is there.
    pub(super) is_state: bool,
    /// Blocks for drafts.
    pub(super) spare: u32,
    /// Blocks before a hit that it needs.
    pub(super) run: u32,
    /// Further blocks beyond the hit.
    pub(super) peek: u32,
    /// Tells its blocks from those of others.
    pub(super) salt: u64,
    /// Its number in events.
    pub(super) index: u32,
}

/// All groups but the first that sees everything.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) all: Vec<Group>,
    /// No group sees everything: the first table is made of null blocks.
    pub(super) is_first_null: bool,
    /// Whether a hit gives up its last block.
    pub(super) drops_last: bool,
    pub(super) interval: Option<u32>,
    /// Last blocks of states that were cached in this pass: nobody may build on them yet.
    pub(super) fresh: Vec<BlockKey>,
}

/// The blocks of one group that a sequence holds.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupTable {
    /// Blocks before these are gone, or were never there.
    pub(super) first: u32,
    /// 0: not there.
    pub(super) blocks: Vec<u32>,
    pub(super) spare: Vec<u32>,
}

impl GroupTable {
    pub(super) fn len(&self) -> u32 {
        self.first + self.blocks.len() as u32
    }

    pub(super) fn get(&self, block: u32) -> u32 {
        let at = block.checked_sub(self.first);
        at.and_then(|at| self.blocks.get(at as usize))
            .copied()
            .unwrap_or(0)
    }

    /// Blocks that it really holds.
    pub(super) fn held(&self) -> impl Iterator<Item = u32> {
        let there = self.blocks.iter().chain(&self.spare).copied();
        there.filter(|&id| id != 0)
    }

    pub(super) fn clear(&mut self) {
        self.first = 0;
        self.blocks.clear();
        self.spare.clear();
    }
}

impl Group {
    /// One whose layers see everything.
    pub(super) const fn full(block_size: u32, index: u32) -> Self {
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

    /// Whether its layers see everything.
    pub(super) const fn sees_all(&self) -> bool {
        self.window == u32::MAX
    }

    /// The name of a block in this group.
    pub(super) fn key(&self, key: BlockKey) -> BlockKey {
        BlockKey(key.0 ^ self.salt)
    }

    /// Blocks at the front that nobody needs who has so many tokens behind it.
    pub(super) fn passed(&self, processed: u32) -> u32 {
        processed.saturating_sub(self.window - 1) / self.block_size
    }

    /// New blocks of a table for so many tokens; `is_whole`: for the check of an admission.
    pub(super) fn missing(&self, table: &GroupTable, tokens: u32, is_whole: bool) -> u32 {
        let all = tokens.div_ceil(self.block_size);
        let all = if is_whole { all.min(self.cap) } else { all };
        let fresh = all.saturating_sub(table.len());
        match self.is_state {
            false => fresh,
            true => fresh.min(1) + self.spare - table.spare.len() as u32,
        }
    }
}

impl Groups {
    pub(super) fn new(
        groups: &LayerGroups,
        block_size: u32,
        caching: bool,
        limits: &GroupLimits,
    ) -> Self {
        let &GroupLimits {
            in_flight,
            max_model_len,
            drafts,
            drops_last,
        } = limits;
        let full = Group::full(block_size, 0);
        let sparse = match groups.kind {
            SparseKind::Window(tokens) => {
                let window = tokens.clamp(1, u32::MAX - 1);
                let kept = (window - 1).saturating_add(in_flight).min(max_model_len);
                // The window may begin inside a block.
                let cap = kept.div_ceil(block_size).saturating_add(1);
                Group {
                    window,
                    cap,
                    most: cap,
                    run: (window - 1).div_ceil(block_size),
                    peek: u32::from(drops_last),
                    ..full
                }
            }
            SparseKind::State(most) => Group {
                window: 2,
                // Without a prefix cache there is one block of any length.
                block_size: if caching { block_size } else { u32::MAX },
                cap: u32::MAX,
                // While a step is in flight three chunks may have states of their own.
                most: if caching {
                    most.max(3 + drafts)
                } else {
                    1 + drafts
                },
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
        let all = (0_u32..).zip(kinds).map(|(at, group)| Group {
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

    /// Whether block `i` of a sequence whose hits may end at `ends` is kept for others.
    pub(super) fn keeps(&self, group: &Group, ends: &[u32], i: u32) -> bool {
        let Some(interval) = self.interval.filter(|_| !group.sees_all()) else {
            return true;
        };
        let need = group.run + group.peek;
        let every = interval / group.block_size;
        let regular = every > 0
            && (need >= every
                || i.checked_sub(group.peek)
                    .is_some_and(|at| at % every >= every - need));
        let ends = ends.iter().filter(|&&end| end > 0);
        let mut ends = ends.map(|end| end + group.peek);
        regular || ends.any(|end| i < end && i + need >= end)
    }
}
