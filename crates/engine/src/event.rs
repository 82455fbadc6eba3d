use std::sync::Arc;
use std::time::Duration;

use super::kv::HostCacheChunkCounts;
use super::{BlockKey, KvLoadFailurePolicy, LoraId, PlannedKvBlocks, SeqId, SimTime};

/// Reason why a simulated sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SequenceEndReason {
    /// The sequence emitted all its planned output tokens.
    Finished,
    /// The client disconnected or cancelled the request.
    Aborted,
    /// The engine cancelled the sequence (pause, sleep); clients receive the finish reason `abort`.
    Cancelled,
    /// The cached fraction of the prompt was below the request's `cache_hit_threshold`.
    Threshold,
    /// The KV cache of the prompt could not be loaded
    /// ([`KvLoadFailurePolicy::Fail`](crate::KvLoadFailurePolicy)); clients receive an error.
    Failed,
}

/// Event of a scheduler. The [`Outbox`](crate::Outbox) stores the simulated time of each event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// A sequence left the waiting queue for the first time.
    Scheduled {
        /// Id of the admitted sequence.
        id: SeqId,
        /// Number of prompt tokens found in the GPU prefix cache.
        cached: u32,
        /// Number of prompt tokens fetched from another engine or from host memory.
        external: u32,
    },
    /// The transfer of a prompt's KV cache from another engine starts.
    Fetched {
        /// Id of the sequence whose prompt is transferred.
        id: SeqId,
        /// Number of prompt tokens whose KV cache is transferred.
        tokens: u32,
        /// Duration of the KV transfer.
        took: Duration,
    },
    /// The KV cache of a prompt could not be loaded, or only in part, from another engine or from
    /// host memory.
    LoadFailed {
        /// Id of the sequence whose prompt could not be loaded.
        id: SeqId,
        /// Number of prompt tokens whose KV cache is missing after the failed load.
        tokens: u32,
        /// Policy for the sequence after the failed KV load: end or recompute.
        policy: KvLoadFailurePolicy,
        /// Whether the KV cache was to be loaded from another engine; false if from host memory.
        remote: bool,
    },
    /// A sequence emitted output tokens.
    Tokens {
        /// Id of the sequence that emitted output tokens.
        id: SeqId,
        /// Number of emitted output tokens, at least one.
        n: u32,
    },
    /// A step verified draft tokens of a sequence. The event with the output tokens of the step
    /// follows.
    Drafts {
        /// Id of the sequence with the draft tokens.
        id: SeqId,
        /// Number of draft tokens verified, at least one.
        proposed: u32,
        /// Number of draft tokens accepted.
        accepted: u32,
    },
    /// A sequence emitted one output token at the end of each of `n` consecutive steps.
    ///
    /// Steps that take no time are reported together: the event precedes the
    /// [`SchedulerEvent::Step`] that counts them, as [`SchedulerEvent::Tokens`] do.
    ///
    /// With `SchedulerReportingConfig::run_lengths`, the event covers the last `n` steps instead, and
    /// is emitted between the [`SchedulerEvent::Step`] of the last of them and the next one. Its own
    /// instant then has no meaning. The token before a run was released in the step before the run,
    /// so the gap before each token is the duration of its step.
    Decoded {
        /// Id of the sequence that emitted an output token in each of the steps.
        id: SeqId,
        /// Number of consecutive steps in which the sequence emitted one output token each; at
        /// least one.
        n: u32,
    },
    /// A running sequence was preempted: it lost its KV blocks and waits again.
    Preempted {
        /// Id of the preempted sequence.
        id: SeqId,
    },
    /// A preempted sequence left the waiting queue again.
    Resumed {
        /// Id of the resumed sequence.
        id: SeqId,
    },
    /// A sequence ended; its slot and KV blocks are free.
    Ended {
        /// Id of the ended sequence.
        id: SeqId,
        /// Reason why the sequence ended.
        end: SequenceEndReason,
    },
    /// The KV blocks of a finished prefill are kept until another engine has read them.
    Leased {
        /// Id of the finished sequence.
        id: SeqId,
        /// Ids of the kept KV blocks, in token order.
        blocks: Box<[u32]>,
    },
    /// The KV blocks `from..to` in a sequence's list of planned blocks entered the prefix cache.
    /// The parent of block `from` is block `from - 1` of the same sequence.
    Stored {
        /// All planned KV blocks of the sequence, with their keys and hashes.
        plan: Arc<PlannedKvBlocks>,
        /// Index, among the sequence's planned KV blocks, of the first block that entered the
        /// prefix cache.
        from: u32,
        /// Index, among the sequence's planned KV blocks, after the last block that entered the
        /// prefix cache.
        to: u32,
    },
    /// The first KV blocks in a sequence's list of planned blocks were found in the prefix cache,
    /// in all layer groups.
    ///
    /// Only emitted if the plan asks for it ([`PlannedKvBlocks::reports_reused`]); the cache is
    /// unchanged.
    Reused {
        /// All planned KV blocks of the sequence, with their keys and hashes.
        plan: Arc<PlannedKvBlocks>,
        /// Number of KV blocks found in the prefix cache, at least one.
        blocks: u32,
        /// Number of layer groups of the model's KV cache.
        groups: u32,
    },
    /// KV blocks were removed from the prefix cache.
    Removed {
        /// Key of each removed KV block, and its full hash if the engine keeps full hashes.
        keys: Vec<(BlockKey, Option<[u8; 32]>)>,
    },
    /// KV blocks of a layer group other than the main one entered or left the prefix cache. The
    /// event is also emitted for a main layer group of sliding-window or state layers if the group
    /// cached only some of its filled blocks.
    Group(Box<LayerGroupCacheEvent>),
    /// The prefix cache was emptied.
    Cleared,
    /// The prefix cache in host memory changed, or a copy between host memory and the GPU ended.
    Host(Box<HostCacheEvent>),
    /// A step ended (batching schedulers only), or several equal ones that take no time.
    Step {
        /// Simulated time at which the step started.
        begun: SimTime,
        /// Number of prompt tokens that the step computed; cached tokens do not count.
        prompt_tokens: u32,
        /// Number of output tokens that the step emitted.
        output_tokens: u32,
        /// Number of equal steps that ended, at least one.
        count: u32,
    },
    /// A sequence waits until its LoRA adapter is loaded.
    LoraLoading {
        /// Id of the LoRA adapter that is loaded.
        lora: LoraId,
    },
}

/// Change of the prefix cache of one layer group
/// ([`KvCacheLayerGroups`](crate::kv::KvCacheLayerGroups)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerGroupCacheEvent {
    /// Some of the KV blocks `from..to` in a sequence's list of planned blocks entered the prefix
    /// cache of the layer group.
    Stored {
        /// Index of the KV cache group of layers whose prefix cache changed.
        group: u32,
        /// Whether the layer group is the main one, whose other changes are reported as
        /// [`SchedulerEvent::Stored`] and [`SchedulerEvent::Removed`].
        is_main: bool,
        /// All planned KV blocks of the sequence, with their keys and hashes.
        plan: Arc<PlannedKvBlocks>,
        /// Index, among the sequence's planned KV blocks, of the first block in the range
        /// `from..to`.
        from: u32,
        /// Index, among the sequence's planned KV blocks, after the last block in the range
        /// `from..to`.
        to: u32,
        /// Indices, among the sequence's planned KV blocks, of those that entered the prefix cache
        /// of the layer group; empty if the group caches none of the range.
        kept: Vec<u32>,
    },
    /// KV blocks left the prefix cache of the layer group.
    Removed {
        /// Index of the KV cache group of layers whose prefix cache changed.
        group: u32,
        /// Key of each removed KV block, and its full hash if the engine keeps full hashes.
        keys: Vec<(BlockKey, Option<[u8; 32]>)>,
    },
}

/// Direction of a copy between the GPU and host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostCopyDirection {
    /// The copy goes from the GPU to host memory.
    ToHost,
    /// The copy goes from host memory to the GPU.
    ToDevice,
}

/// Event of the prefix cache in host memory ([`HostCacheConfig`](crate::kv::HostCacheConfig)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostCacheEvent {
    /// Chunks of KV blocks were written to host memory.
    Stored {
        /// All planned KV blocks of the sequence, with their keys and hashes.
        plan: Arc<PlannedKvBlocks>,
        /// Layer group of each written chunk of KV blocks, and the chunk's index in the sequence,
        /// from 0.
        chunks: Vec<(u32, u32)>,
        /// Number of KV blocks per chunk in host memory.
        blocks_per_chunk: u32,
    },
    /// Chunks of KV blocks were evicted from host memory.
    Removed {
        /// Layer group of each chunk evicted from host memory, key of the chunk's last KV block,
        /// and that block's full hash if the engine keeps full hashes.
        keys: Vec<(u32, BlockKey, Option<[u8; 32]>)>,
    },
    /// A copy between GPU and host memory ended.
    Copied {
        /// Direction of the copy between GPU and host memory.
        direction: HostCopyDirection,
        /// Number of copied bytes, summed over all GPUs.
        bytes: u64,
        /// Duration of the copy, without the wait for earlier copies.
        took: Duration,
    },
    /// Host memory had room for the KV blocks of a request.
    Allocated {
        /// Number of chunks allocated in host memory for KV blocks.
        chunks: u32,
    },
    /// Host memory had no room for the KV blocks of a request, or not for all of them.
    Refused,
    /// A request's lookup in host memory, which waited for copies in progress, was answered.
    Answered {
        /// Waiting time of the lookup in host memory, caused by copies in progress.
        waited: Duration,
    },
}

impl SchedulerEvent {
    /// Returns the id of the sequence that the event concerns, if any.
    pub fn sequence_id(&self) -> Option<SeqId> {
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

    /// Returns whether the event reports that a sequence ended or that a prefix cache changed.
    pub(crate) fn ends_sequence_or_changes_cache(&self) -> bool {
        match self {
            Self::Ended { .. }
            | Self::Stored { .. }
            | Self::Removed { .. }
            | Self::Group(_)
            | Self::Cleared => true,
            Self::Host(event) => {
                matches!(**event, HostCacheEvent::Stored { .. } | HostCacheEvent::Removed { .. })
            }
            _ => false,
        }
    }
}

/// Operator command for an engine.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineCommand {
    /// Stops the scheduling of steps; sequences remain.
    Pause,
    /// Stops the admission of waiting sequences that hold no KV blocks; all other sequences
    /// continue to their end. Only the schedulers of vLLM and of Dynamo's mocker support this
    /// command.
    PauseAdmission,
    /// Continues the scheduling after [`EngineCommand::Pause`] or
    /// [`EngineCommand::PauseAdmission`].
    Resume,
    /// Ends every sequence, waiting or running, with [`SequenceEndReason::Cancelled`].
    CancelAll,
    /// Empties the prefix cache.
    ResetPrefixCache(PrefixCacheResetScope),
    /// Empties the prefix cache in host memory.
    ResetHostTier,
    /// Empties the cache of encoded images, audio and video.
    ResetEncoderCache,
    /// Enables (true) or disables (false) the prefix cache.
    Caching(bool),
    /// Frees the KV blocks of a finished prefill after another engine has read them.
    Release(SeqId),
    /// Sets the token delays of later sequences (pool scheduler) or of later steps (batching
    /// schedulers without a latency model).
    Delays(Arc<super::TokenDelays>),
    /// Sets the maximum numbers of running and waiting sequences; existing sequences stay.
    Bounds {
        /// Maximum number of running sequences, at least one.
        running: u32,
        /// Maximum number of waiting sequences; `None`: no limit.
        waiting: Option<u32>,
    },
    /// Sets the speed factor by which step times are divided, above zero (batching schedulers).
    Speed(f64),
    /// Sets a pause before each later step; zero ends the pauses. Schedulers without pauses ignore
    /// this command.
    StepPause(Duration),
}

/// Selects what happens to KV blocks in use when the prefix cache is emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCacheResetScope {
    /// The reset of the prefix cache fails if sequences hold KV blocks.
    WhenIdle,
    /// Running sequences are preempted and recompute all their tokens. Schedulers without
    /// preemption act as for [`PrefixCacheResetScope::Forget`].
    Preempt,
    /// Sequences keep their KV blocks, but later prompts cannot find these blocks.
    Forget,
}

/// Describes a KV block in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedBlock {
    /// Key of the block's content; several blocks may have the same key.
    pub key: BlockKey,
    /// Id of the KV block.
    pub block: u32,
    /// Number of sequences that hold this block.
    pub users: u32,
}

/// Counts KV blocks by use. The sum of `used`, `cached` and `unused` is the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvBlockUsage {
    /// Number of KV blocks held by sequences.
    pub used: u32,
    /// Number of KV blocks held by more than one sequence; part of `used`.
    pub shared: u32,
    /// Number of additional KV blocks that all sequences together would hold if they shared no
    /// blocks.
    pub saved: u64,
    /// Number of KV blocks in the prefix cache that no sequence holds.
    pub cached: u32,
    /// Number of KV blocks that are free and not in the prefix cache.
    pub unused: u32,
}

/// Progress of an unfinished sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceProgress {
    /// Number of the sequence's prompt and output tokens in the KV cache, including the tokens of
    /// steps in flight.
    pub computed: u32,
    /// Whether the sequence waits for the KV cache of its prompt from another engine or from host
    /// memory.
    pub waits_for_kv: bool,
}

/// Counts of one engine's sequences, KV blocks and prefix-cache lookups, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Number of sequences in the running batch.
    pub running: usize,
    /// Number of sequences waiting for capacity.
    pub waiting: usize,
    /// Number of sequences still on their way through the simulated API server.
    pub in_api_server: usize,
    /// Number of sequences waiting for a LoRA adapter, a KV transfer or a media encoder.
    pub deferred: usize,
    /// Number of sequences, waiting or deferred for a resource such as a LoRA adapter, that are not
    /// admitted because of a pause of admissions.
    pub held: usize,
    /// Numbers of sequences whose prompt's KV cache is loaded from another engine or from host
    /// memory. They are counted by progress: load not started, load running, and load finished but
    /// sequence not yet admitted.
    pub fetches: [u32; 3],
    /// Number of KV blocks held by sequences.
    pub used_blocks: u32,
    /// Number of KV blocks of the engine that sequences can use.
    pub total_blocks: u32,
    /// Number of empty token slots (without keys and values yet) in used KV blocks; only counted if
    /// an observer needs this number.
    pub empty_token_slots: u64,
    /// Number of tokens looked up in the prefix cache since the engine's start.
    pub cache_queries: u64,
    /// Number of tokens found in the prefix cache since the engine's start.
    pub cache_hits: u64,
    /// Number of preemptions since the engine's start.
    pub preemptions: u64,
    /// Numbers of chunks in the prefix cache in host memory, by state.
    pub host: HostCacheChunkCounts,
}
