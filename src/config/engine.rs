use std::path::PathBuf;

use serde_json::Value;

use crate::engine::Delays;

/// When replies say what they say.
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// Who decides which sequence runs [pool; behind `serve` vllm].
    pub scheduler: SchedulerKind,
    /// Sequences that run at once [5; behind `serve` 256]; at least 1.
    pub max_num_seqs: u32,
    /// Token budget of one step [8192; behind `serve` 2048].
    pub max_num_batched_tokens: u32,
    /// llm-d's bound of the queue [1000; behind `serve` none]: beyond it 429.
    pub max_waiting_queue_length: Option<u32>,
    /// vLLM's bound of the queue in requests: beyond it 503.
    pub max_num_queued_reqs: Option<u32>,
    /// vLLM's bound of the queue in prompt tokens: beyond it 503.
    pub max_num_queued_tokens: Option<u64>,
    /// Delays of the pool scheduler, speed-up included.
    pub delays: Delays,
    /// Where step times of the batching schedulers come from.
    pub latency_model: LatencyModel,
    /// GPU whose constants the roofline uses.
    pub gpu: Option<String>,
    /// Share of GPU memory that is used [0.92].
    pub gpu_memory_utilization: f64,
    /// Tokens per block [16].
    pub block_size: u32,
    /// Blocks of the KV cache; `None`: what the GPU's memory leaves, or 16384 when it is unknown.
    pub num_blocks: Option<u32>,
    /// Whether full blocks are found again.
    pub enable_prefix_caching: bool,
    /// llm-d's `enable-kvcache`.
    pub enable_kvcache: bool,
    /// llm-d's `global-cache-hit-threshold` [0: off].
    pub cache_hit_threshold: f64,
    /// How blocks are named.
    pub hash_algo: HashAlgo,
    /// Seed of block names; `None`: the algorithm's own.
    pub hash_seed: Option<String>,
    /// Whether a prompt may be read in pieces [yes].
    pub enable_chunked_prefill: bool,
    /// Longest piece of a long prompt per step; 0: the token budget.
    pub long_prefill_token_threshold: u32,
    /// Who gives way when blocks run out [the youngest].
    pub preemption_mode: Preemption,
    /// Order of the waiting queue.
    pub policy: Policy,
    /// Two steps in flight instead of one [yes].
    pub async_scheduling: bool,
    /// Share of blocks kept free on admission [0].
    pub watermark: f64,
    /// Ranks and how they are reached.
    pub parallel: Parallel,
    /// Every modelled duration is divided by this; more than 0 [1].
    pub speedup_ratio: f64,
    /// Decode durations are divided by this too; more than 0 [1].
    pub decode_speedup_ratio: f64,
    /// Draft tokens.
    pub speculative: Option<Speculative>,
    /// Independent copies of the whole server, on ports one after the other [1].
    pub replicas: u32,
    /// Settings of the SGLang scheduler.
    pub sglang: Sglang,
    /// Bytes of KV cache per prompt token, for transfers.
    pub kv_bytes_per_token: Option<u64>,
    /// Bandwidth of transfers between pods, GB/s; `None`: transfers take the delays above.
    pub kv_transfer_bandwidth: Option<f64>,
    /// Cache data type as typed [auto].
    pub kv_cache_dtype: String,
    /// Quantisation as typed.
    pub quantization: Option<String>,
}

/// Who decides which sequence runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulerKind {
    /// llm-d: slots, each sequence on its own timeline.
    #[default]
    Pool,
    /// Continuous batching as vLLM v1.
    Vllm,
    /// Radix cache as SGLang.
    Sglang,
}

/// Where step times of the batching schedulers come from.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum LatencyModel {
    /// The delays of the pool: a prefill takes the first-token delay, a decode step the gap.
    #[default]
    Delays,
    /// Dynamo's built-in polynomials.
    Polynomial,
    /// Measured grid: an NPZ file or a profiler's folder.
    Profile(PathBuf),
    /// config.json + GPU + tensor parallel size.
    Roofline {
        /// Fitted coefficients written by `vllm-sim calibrate`.
        coefficients: Option<PathBuf>,
    },
}

/// How blocks are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashAlgo {
    /// SHA-256 over Python's pickle.
    #[default]
    Sha256,
    /// SHA-256 over canonical CBOR.
    Sha256Cbor,
    /// XXH3-128 over Python's pickle.
    Xxhash,
    /// XXH3-128 over canonical CBOR.
    XxhashCbor,
    /// FNV-1a 64 over canonical CBOR: llm-d-inference-sim.
    Fnv64Cbor,
}

/// Who gives way when blocks run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preemption {
    /// The youngest.
    #[default]
    Lifo,
    /// The oldest.
    Fifo,
}

/// Order of the waiting queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// By arrival.
    #[default]
    Fcfs,
    /// By the request's priority, then arrival.
    Priority,
}

/// Ranks and how they are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parallel {
    /// Tensor parallel size [1].
    pub tensor: u32,
    /// Pipeline parallel size [1].
    pub pipeline: u32,
    /// Data parallel size [1].
    pub data: u32,
    /// Ranks in this process, first and count: all of them unless the flags say otherwise.
    pub local_ranks: (u32, u32),
    /// How ranks are reached.
    pub balance: Balance,
    /// Port of the supervisor (multi-port mode) [9256].
    pub supervisor_port: Option<u16>,
    /// API server processes to report [data parallel size].
    pub api_servers: u32,
    /// Experts spread over ranks.
    pub expert: bool,
}

/// How data-parallel ranks are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// One port, one server, the least loaded rank gets the request (vLLM's default).
    Internal,
    /// Each rank on its own port, `port + rank` (llm-d; vLLM's multi-port mode).
    #[default]
    PortPerRank,
    /// One rank only, somebody else balances.
    External,
    /// Some ranks behind one port, somebody else balances between hosts.
    Hybrid,
}

/// Draft tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculative {
    /// vLLM's `method` [ngram].
    pub method: String,
    /// Draft tokens per step; at least 1.
    pub num_tokens: u32,
    /// Chance that draft i is accepted when all before were; one per draft.
    pub acceptance: Vec<f64>,
    /// The whole object as typed.
    pub raw: Value,
}

/// Settings of the SGLang scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct Sglang {
    /// Longest matching prefix first, instead of arrival.
    pub longest_prefix_first: bool,
    /// Prompt tokens of one prefill batch [16384].
    pub max_prefill_tokens: u32,
    /// Longest piece of one prompt [8192].
    pub chunked_prefill_size: u32,
    /// Output tokens that admission assumes at most [4096].
    pub clip_max_new_tokens: u32,
    /// Greater admits less [1].
    pub schedule_conservativeness: f64,
}
