use std::sync::Arc;
use std::time::Duration;

use super::kv::HostCounts;
use super::{BlockKey, BlockPlan, LoadFailurePolicy, LoraId, SeqId};

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// All planned tokens were released.
    Finished,
    /// Somebody gave it up: the client went away.
    Aborted,
    /// The engine itself gave it up (pause, sleep): the client is told `abort`.
    Cancelled,
    /// Too little of the prompt was cached (`cache_hit_threshold`).
    Threshold,
    /// Its prompt could not be loaded ([`LoadFailurePolicy::Fail`](crate::LoadFailurePolicy)): the client
    /// is told of an error.
    Failed,
}

/// What happened, stamped by the outbox with the instant it was due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A sequence left the waiting queue for the first time.
    Scheduled {
        /// Which.
        id: SeqId,
        /// Prompt tokens found in this engine's prefix cache.
        cached: u32,
        /// Prompt tokens fetched from another engine or the memory of the host.
        external: u32,
    },
    /// The prompt of a sequence comes from another engine.
    Fetched {
        /// Whose.
        id: SeqId,
        /// Prompt tokens that are moved.
        tokens: u32,
        /// How long that takes.
        took: Duration,
    },
    /// The prompt of a sequence was to come from another engine or the memory of the host, and did not,
    /// or not all of it.
    LoadFailed {
        /// Whose.
        id: SeqId,
        /// Prompt tokens whose blocks are no good.
        tokens: u32,
        /// What follows.
        policy: LoadFailurePolicy,
        /// Whether it was to come from another engine.
        remote: bool,
    },
    /// Output tokens came out.
    Tokens {
        /// Whose.
        id: SeqId,
        /// How many, at least one.
        n: u32,
    },
    /// Draft tokens of a sequence were verified in a step; its tokens of that step follow.
    Drafts {
        /// Whose.
        id: SeqId,
        /// Drafts, at least one.
        proposed: u32,
        /// Of these, how many were right, from the first on.
        accepted: u32,
    },
    /// One output token came out at the end of each of the last `n` steps.
    ///
    /// Only from an engine that was asked for run lengths (`VllmConfig::run_lengths`). It comes after
    /// the [`Event::Step`] of the last of these steps and before the next one; its own instant says
    /// nothing else. Within one step all [`Event::Tokens`] come before its step. A token before a
    /// run came out in the step before the run, so the gap in front of each token of a run is that
    /// step's own.
    Decoded {
        /// Whose.
        id: SeqId,
        /// How many, at least one.
        n: u32,
    },
    /// A running sequence lost its blocks and waits again.
    Preempted {
        /// Which.
        id: SeqId,
    },
    /// A preempted sequence left the waiting queue again.
    Resumed {
        /// Which.
        id: SeqId,
    },
    /// A sequence is over; its slot and blocks are free.
    Ended {
        /// Which.
        id: SeqId,
        /// Why.
        end: End,
    },
    /// The blocks of a finished sequence are kept for another engine to read.
    Leased {
        /// Whose.
        id: SeqId,
        /// Their numbers, in the order of its tokens.
        blocks: Box<[u32]>,
    },
    /// Blocks `from..to` of a plan entered the prefix cache; the parent of the first is block
    /// `from - 1` of the same plan.
    Stored {
        /// Whose blocks.
        plan: Arc<BlockPlan>,
        /// First block.
        from: u32,
        /// One past the last block.
        to: u32,
    },
    /// Blocks left the prefix cache.
    Removed {
        /// Which; the whole hash where the plan had one.
        keys: Vec<(BlockKey, Option<[u8; 32]>)>,
    },
    /// Something happened to blocks of another group of layers than the first that sees everything.
    Group(Box<GroupEvent>),
    /// The prefix cache was emptied.
    Cleared,
    /// Something happened in the memory of the host.
    Host(Box<HostEvent>),
    /// One batch ran (batching schedulers only).
    Step {
        /// Prompt tokens computed, cached ones not counted.
        prompt_tokens: u32,
        /// Output tokens made.
        output_tokens: u32,
    },
    /// A sequence waits for its adapter to load.
    LoraLoading {
        /// Which adapter.
        lora: LoraId,
    },
}

/// What happened to blocks of a group of layers
/// ([`LayerGroups`](crate::kv::LayerGroups)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent {
    /// Of blocks `from..to` of a plan some entered the prefix cache.
    Stored {
        /// Number of the group.
        group: u32,
        /// Whose blocks.
        plan: Arc<BlockPlan>,
        /// First block.
        from: u32,
        /// One past the last block.
        to: u32,
        /// Which of them.
        kept: Vec<u32>,
    },
    /// Blocks left the prefix cache.
    Removed {
        /// Number of the group.
        group: u32,
        /// Which; the whole hash where the plan had one.
        keys: Vec<(BlockKey, Option<[u8; 32]>)>,
    },
}

/// What happened to blocks in the memory of the host
/// ([`HostTierConfig`](crate::kv::HostTierConfig)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEvent {
    /// Chunks of a plan came in.
    Stored {
        /// Whose blocks.
        plan: Arc<BlockPlan>,
        /// The group of layers of each, and which chunk of the plan it is, the first one being 0.
        chunks: Vec<(u32, u32)>,
        /// Blocks of a chunk.
        blocks_per_chunk: u32,
    },
    /// Chunks left, to make room.
    Removed {
        /// The group of layers of each, its last block, and the whole hash where the plan had one.
        keys: Vec<(u32, BlockKey, Option<[u8; 32]>)>,
    },
    /// Blocks were copied.
    Copied {
        /// Into the memory of the host; else back.
        to_host: bool,
        /// How many bytes, all GPUs together.
        bytes: u64,
        /// How long that took, without waiting for others.
        took: Duration,
    },
    /// Blocks of a request found room.
    Allocated {
        /// Chunks that they fill.
        chunks: u32,
    },
    /// Blocks of a request found no room, or not all.
    Refused,
    /// A request that had to wait until it was known what is there knows it.
    Answered {
        /// How long it waited.
        waited: Duration,
    },
}

impl Event {
    /// The sequence it is about, if it is about one.
    pub fn sequence(&self) -> Option<SeqId> {
        match self {
            Self::Scheduled { id, .. }
            | Self::Fetched { id, .. }
            | Self::LoadFailed { id, .. }
            | Self::Tokens { id, .. }
            | Self::Drafts { id, .. }
            | Self::Decoded { id, .. }
            | Self::Preempted { id }
            | Self::Resumed { id }
            | Self::Leased { id, .. }
            | Self::Ended { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// What an operator does to an engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Scheduling stops; nothing is lost.
    Pause,
    /// Scheduling goes on.
    Resume,
    /// Every sequence, waiting or running, ends with [`End::Cancelled`].
    CancelAll,
    /// Forget the prefix cache.
    ResetPrefixCache(Reset),
    /// Forget what the memory of the host holds.
    ResetHostTier,
    /// Forget what the encoders made of images and audio.
    ResetEncoderCache,
    /// Whether full blocks enter the prefix cache from now on, and are found in it.
    Caching(bool),
    /// Another engine has read the blocks of an ended sequence.
    Release(SeqId),
    /// Delays of sequences that are submitted from now on (pool scheduler), of steps from now on
    /// (batching schedulers without a model of their own).
    Delays(Arc<super::Delays>),
    /// How many sequences may run and wait from now on; what runs or waits already stays.
    Bounds {
        /// Sequences that run at once, at least one.
        running: u32,
        /// Sequences that may wait; `None`: any number.
        waiting: Option<u32>,
    },
    /// How much faster than modelled steps run from now on, more than zero (batching schedulers).
    Speed(f64),
}

/// What becomes of blocks in use when the prefix cache is emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// While there are any, nothing happens.
    WhenIdle,
    /// Running sequences give theirs up, wait, and compute all they had again. Schedulers that
    /// cannot preempt act as for [`Reset::Forget`].
    Preempt,
    /// They stay with their sequences, and nobody finds them any more.
    Forget,
}

/// A block in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedBlock {
    /// What it holds. Several blocks may hold the same.
    pub key: BlockKey,
    /// Its number.
    pub block: u32,
    /// Sequences that use it.
    pub users: u32,
}

/// What blocks are used for; `used`, `cached` and `unused` add up to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockUse {
    /// Blocks that sequences hold.
    pub used: u32,
    /// Of these, blocks that several sequences hold.
    pub shared: u32,
    /// Blocks that the sequences would hold besides if they shared none.
    pub saved: u64,
    /// Blocks that nobody holds and the prefix cache still finds.
    pub cached: u32,
    /// Blocks that hold nothing.
    pub unused: u32,
}

/// How far a living sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceProgress {
    /// Tokens of prompt and output whose cache is computed, those of the steps in flight included.
    pub computed: u32,
    /// Whether it waits until its prompt's cache is fetched from another engine or the memory of the
    /// host.
    pub waits_for_kv: bool,
}

/// Gauges of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Sequences in the running batch.
    pub running: usize,
    /// Sequences that wait for capacity.
    pub waiting: usize,
    /// Sequences that wait for something else (an adapter, a transfer).
    pub deferred: usize,
    /// Sequences whose prompt is fetched or loaded: not yet begun, under way, over and waiting for
    /// their turn.
    pub fetches: [u32; 3],
    /// Blocks referenced by sequences.
    pub used_blocks: u32,
    /// Blocks that can be used.
    pub total_blocks: u32,
    /// Prefix-cache tokens looked up since the start.
    pub cache_queries: u64,
    /// Of these, tokens found.
    pub cache_hits: u64,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Chunks in the memory of the host.
    pub host: HostCounts,
}
