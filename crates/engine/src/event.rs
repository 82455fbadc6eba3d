use std::sync::Arc;
use std::time::Duration;

use super::kv::HostCounts;
use super::{BlockKey, BlockPlan, LoadFailurePolicy, LoraId, SeqId};

/// Reason why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// All planned tokens were released.
    Finished,
    /// The client disconnected or cancelled.
    Aborted,
    /// The engine cancelled it (pause, sleep); clients receive `abort`.
    Cancelled,
    /// The cached fraction of the prompt was below `cache_hit_threshold`.
    Threshold,
    /// The prompt could not be loaded ([`LoadFailurePolicy::Fail`](crate::LoadFailurePolicy));
    /// clients receive an error.
    Failed,
}

/// Event of a scheduler. The outbox stores the instant at which it was due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A sequence left the waiting queue for the first time.
    Scheduled {
        /// Sequence.
        id: SeqId,
        /// Prompt tokens found in the GPU prefix cache.
        cached: u32,
        /// Prompt tokens fetched from another engine or from host memory.
        external: u32,
    },
    /// The fetch of a prompt from another engine starts.
    Fetched {
        /// Sequence.
        id: SeqId,
        /// Prompt tokens to transfer.
        tokens: u32,
        /// Duration of the transfer.
        took: Duration,
    },
    /// A prompt could not be loaded, or only in part, from another engine or from host memory.
    LoadFailed {
        /// Sequence.
        id: SeqId,
        /// Prompt tokens missing after the load.
        tokens: u32,
        /// Policy for the sequence after the failure.
        policy: LoadFailurePolicy,
        /// Whether the source is another engine.
        remote: bool,
    },
    /// A sequence released output tokens.
    Tokens {
        /// Sequence.
        id: SeqId,
        /// Number of tokens, at least one.
        n: u32,
    },
    /// A step verified draft tokens of a sequence. The released tokens of the step follow.
    Drafts {
        /// Sequence.
        id: SeqId,
        /// Number of drafts, at least one.
        proposed: u32,
        /// Number of accepted drafts.
        accepted: u32,
    },
    /// A sequence released one token at the end of each of the last `n` steps.
    ///
    /// Only emitted with `ReportingConfig::run_lengths`, between the [`Event::Step`] of the last of
    /// these steps and the next one. Its own instant has no meaning. Within a step, all
    /// [`Event::Tokens`] precede the [`Event::Step`]. The token before a run was released in the
    /// step before the run, so the gap before each token is the duration of its step.
    Decoded {
        /// Sequence.
        id: SeqId,
        /// Number of tokens, at least one.
        n: u32,
    },
    /// A running sequence lost its blocks and waits again.
    Preempted {
        /// Sequence.
        id: SeqId,
    },
    /// A preempted sequence left the waiting queue again.
    Resumed {
        /// Sequence.
        id: SeqId,
    },
    /// A sequence ended; its slot and blocks are free.
    Ended {
        /// Sequence.
        id: SeqId,
        /// Reason.
        end: End,
    },
    /// The blocks of a finished sequence are kept for another engine.
    Leased {
        /// Sequence.
        id: SeqId,
        /// Block ids, in token order.
        blocks: Box<[u32]>,
    },
    /// Blocks `from..to` of a plan entered the prefix cache. The parent of the first is block `from
    /// - 1` of the same plan.
    Stored {
        /// Plan with the blocks.
        plan: Arc<BlockPlan>,
        /// Index of the first block.
        from: u32,
        /// Index after the last block.
        to: u32,
    },
    /// Blocks left the prefix cache.
    Removed {
        /// Keys; with the full hash if the plan had one.
        keys: Vec<(BlockKey, Option<[u8; 32]>)>,
    },
    /// Blocks of a layer group other than the first full-attention group changed.
    Group(Box<GroupEvent>),
    /// The prefix cache was emptied.
    Cleared,
    /// The host tier changed.
    Host(Box<HostEvent>),
    /// A step ended (batching schedulers only).
    Step {
        /// Computed prompt tokens, without cached ones.
        prompt_tokens: u32,
        /// Released output tokens.
        output_tokens: u32,
    },
    /// A sequence waits for its adapter to load.
    LoraLoading {
        /// Adapter.
        lora: LoraId,
    },
}

/// Event of a layer group ([`LayerGroups`](crate::kv::LayerGroups)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent {
    /// Some of blocks `from..to` of a plan entered the prefix cache.
    Stored {
        /// Number of the group.
        group: u32,
        /// Plan with the blocks.
        plan: Arc<BlockPlan>,
        /// Index of the first block.
        from: u32,
        /// Index after the last block.
        to: u32,
        /// Indices of the cached blocks.
        kept: Vec<u32>,
    },
    /// Blocks left the prefix cache.
    Removed {
        /// Number of the group.
        group: u32,
        /// Keys; with the full hash if the plan had one.
        keys: Vec<(BlockKey, Option<[u8; 32]>)>,
    },
}

/// Direction of a copy between the GPU and host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyDirection {
    /// The copy goes from the GPU to host memory.
    ToHost,
    /// The copy goes from host memory to the GPU.
    ToDevice,
}

/// Event of the host tier ([`HostTierConfig`](crate::kv::HostTierConfig)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEvent {
    /// Chunks of a plan were stored.
    Stored {
        /// Plan with the blocks.
        plan: Arc<BlockPlan>,
        /// Layer group and chunk index in the plan, from 0, per chunk.
        chunks: Vec<(u32, u32)>,
        /// Blocks per chunk.
        blocks_per_chunk: u32,
    },
    /// Chunks were evicted.
    Removed {
        /// Layer group, key of the last block, and full hash if the plan had one, per chunk.
        keys: Vec<(u32, BlockKey, Option<[u8; 32]>)>,
    },
    /// A copy ended.
    Copied {
        /// Direction of the copy.
        direction: CopyDirection,
        /// Number of bytes, summed over all GPUs.
        bytes: u64,
        /// Duration without queueing.
        took: Duration,
    },
    /// Blocks of a request found room.
    Allocated {
        /// Number of chunks.
        chunks: u32,
    },
    /// Blocks of a request found no room, or not all of them.
    Refused,
    /// The delayed lookup of a request was answered.
    Answered {
        /// Duration of the wait.
        waited: Duration,
    },
}

impl Event {
    /// Returns the sequence of the event, if it concerns one.
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

/// Operator command for an engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Stops scheduling; sequences stay.
    Pause,
    /// Continues scheduling.
    Resume,
    /// Ends every sequence, waiting or running, with [`End::Cancelled`].
    CancelAll,
    /// Empties the prefix cache.
    ResetPrefixCache(PrefixCacheReset),
    /// Empties the host tier.
    ResetHostTier,
    /// Empties the encoder cache.
    ResetEncoderCache,
    /// Enables or disables the prefix cache.
    Caching(bool),
    /// Frees the blocks of an ended sequence after another engine has read them.
    Release(SeqId),
    /// Sets the delays of later sequences (pool scheduler) or of later steps (batching schedulers
    /// without their own latency model).
    Delays(Arc<super::Delays>),
    /// Sets the maximum numbers of running and waiting sequences; existing sequences stay.
    Bounds {
        /// Maximum of running sequences, at least one.
        running: u32,
        /// Maximum of waiting sequences; `None`: no limit.
        waiting: Option<u32>,
    },
    /// Sets the speed-up factor of step times, above zero (batching schedulers).
    Speed(f64),
}

/// Selects the treatment of blocks in use when the prefix cache is emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCacheReset {
    /// Fails if blocks are in use.
    WhenIdle,
    /// Preempts running sequences, which recompute everything. Schedulers without preemption act as
    /// for [`PrefixCacheReset::Forget`].
    Preempt,
    /// Sequences keep their blocks, which cannot be found by others.
    Forget,
}

/// Describes a block in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedBlock {
    /// Key of its content; several blocks may have the same.
    pub key: BlockKey,
    /// Block id.
    pub block: u32,
    /// Number of sequences with this block.
    pub users: u32,
}

/// Counts blocks by use. The sum of `used`, `cached` and `unused` is the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockUse {
    /// Blocks held by sequences.
    pub used: u32,
    /// Blocks held by several sequences; part of `used`.
    pub shared: u32,
    /// Additional blocks for the sequences without sharing.
    pub saved: u64,
    /// Blocks in the prefix cache without a user.
    pub cached: u32,
    /// Blocks without content.
    pub unused: u32,
}

/// Progress of a live sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceProgress {
    /// Prompt and output tokens in the KV cache, including those of steps in flight.
    pub computed: u32,
    /// Whether it waits for its prompt from another engine or from host memory.
    pub waits_for_kv: bool,
}

/// Gauges of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Sequences in the running batch.
    pub running: usize,
    /// Sequences waiting for capacity.
    pub waiting: usize,
    /// Sequences waiting for an adapter, a transfer or an encoder.
    pub deferred: usize,
    /// Sequences with a prompt to fetch or load: not started, in progress, done and waiting for
    /// admission.
    pub fetches: [u32; 3],
    /// Blocks referenced by sequences.
    pub used_blocks: u32,
    /// Number of usable blocks.
    pub total_blocks: u32,
    /// Tokens looked up in the prefix cache since the start.
    pub cache_queries: u64,
    /// Tokens found in the prefix cache since the start.
    pub cache_hits: u64,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Chunks in the host tier.
    pub host: HostCounts,
}
