use std::time::Duration;

use vllm_sim_engine::kv::BlockHashAlgorithm;
use vllm_sim_engine::latency::{CudaGraphs, Drafter, ProfileRun};
use vllm_sim_engine::sched::sglang::SglangSchedulePolicy;
use vllm_sim_engine::sched::vllm::{ChunkedPrefillConfig, PreemptionVictim, SchedulingPolicy};
use vllm_sim_engine::{TokenDelays, TtftFormula};
use vllm_sim_service::{AdmissionLimits, ServingRole};

use super::batch_limits::SchedulerBatchLimits;
use super::choices::{KvOffloadBackend, LatencyModelKind, ModelTask, SchedulerKind};
use super::cli_mode::CliMode;
use super::delay_limit::check_delays_with_factors;
use super::encoder::MediaEncoderConfig;
use super::error::{ConfigError, bail, invalid};
use super::flag::Flag;
use super::flags::{self, engine, faults, kv};
use super::kv_cache::KvCacheCapacity;
use super::kv_offload::KvOffloadConfig;
use super::latency_source::{KernelTableSource, StepLatencySource};
use super::model::{ModelConfig, kv_cache_dtype};
use super::parallel::ParallelConfig;
use super::reserved_memory::ReservedGpuMemory;
use super::speculative::SpeculativeConfig;
use super::speedup::{SimulationSpeedupRatios, read_speedup_ratio};
use super::values::FlagValues;
use super::{api, block_size, cuda_graphs};

/// Settings of the engine: scheduler, step times, KV cache and parallelism.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Kind of scheduler (default `pool`; `vllm` with `serve`).
    pub scheduler: SchedulerKind,
    /// Maximum number of running sequences, at least 1. Default: 5; with `serve`, vLLM's default
    /// for the GPU, or 256 without a GPU.
    pub max_num_seqs: u32,
    /// Maximum number of tokens per step. Default: 8192; with `serve`, vLLM's default for the GPU,
    /// or 2048 without a GPU.
    pub max_num_batched_tokens: u32,
    /// Limits of the waiting queue, in requests and tokens.
    pub queue: WaitingQueueLimits,
    /// Settings of chunked prefill.
    pub prefill: ChunkedPrefillConfig,
    /// Settings of preemption and queue order.
    pub scheduling: SchedulingConfig,
    /// Settings of the durations of engine steps and of the delays of the pool scheduler.
    pub timing: StepTimingConfig,
    /// Divisors of modelled durations (speed-up ratios).
    pub speedup: SimulationSpeedupRatios,
    /// Name of the GPU, which selects the constants of the roofline model.
    pub gpu: Option<String>,
    /// Size of a KV block in tokens; the block is divided among all GPUs that share a context.
    /// Default: 16; with `serve`, by vLLM's rules for GPU and model.
    pub block_size: u32,
    /// Settings of GPU and CPU memory for the KV cache.
    pub memory: KvCacheMemoryConfig,
    /// Size of the KV cache as vLLM plans it; `None` for other schedulers, or if model shape or
    /// memory is unknown.
    pub kv_cache: Option<KvCacheCapacity>,
    /// KV cache offloading to CPU memory; `None`: disabled.
    pub kv_offload: Option<KvOffloadConfig>,
    /// Settings of the prefix cache and its block hashes.
    pub prefix_cache: PrefixCachingConfig,
    /// Cost of KV cache transfer from another server.
    pub transfer: KvTransferCostConfig,
    /// Settings of parallel sizes and data-parallel ranks.
    pub parallel: ParallelConfig,
    /// Whether data-parallel ranks start and end their steps together, as models with experts need.
    pub lock_step: bool,
    /// Role of the engine in disaggregated serving: prefill, decode or both.
    pub role: ServingRole,
    /// Settings of speculative decoding; `None`: disabled.
    pub speculative: Option<SpeculativeConfig>,
    /// Latency model of the draft model, if the shapes of the models are known.
    pub drafter: Option<Drafter>,
    /// Encoders of images, video and audio; `None`: the model has none.
    pub encoder: Option<MediaEncoderConfig>,
    /// Batch sizes for which a CUDA graph is captured.
    pub graphs: CudaGraphs,
    /// Number of independent servers in this process, and the delay between their starts.
    pub replicas: ServerReplicaConfig,
    /// Settings of the SGLang scheduler.
    pub sglang: SglangSchedulerConfig,
    /// Quantization method of the weights, in lower case (`--quantization`).
    pub quantization: Option<String>,
}

/// Limits of the waiting queue, in requests and tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingQueueLimits {
    /// llm-d's limit of waiting requests; more get status 429 (default 1000; none with `serve`).
    pub max_waiting_queue_length: Option<u32>,
    /// vLLM's limits of waiting requests and prompt tokens; more requests get status 503.
    pub admission: AdmissionLimits,
}

/// Settings of preemption and queue order.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulingConfig {
    /// Sequence to preempt when KV blocks run out (default the youngest).
    pub victim: PreemptionVictim,
    /// Order of requests in the engine's waiting queue.
    pub policy: SchedulingPolicy,
    /// Whether the engine schedules the next step while one runs (default yes).
    pub async_scheduling: bool,
    /// Fraction of KV blocks that must stay free when a request is admitted (default 0).
    pub watermark: f64,
}

/// Settings of the durations of engine steps and of the delays of the pool scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimingConfig {
    /// Delays of the pool scheduler, with speed-up ratios and latency factor applied.
    pub delays: TokenDelays,
    /// Factor of all simulated durations (default 1). The delays in `delays` already contain this
    /// factor.
    pub latency_factor: f64,
    /// The source of the step times of batching schedulers.
    pub latency_source: StepLatencySource,
}

/// Settings of GPU and CPU memory for the KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct KvCacheMemoryConfig {
    /// Fraction of GPU memory that the engine may use (default 0.92).
    pub gpu_memory_utilization: f64,
    /// Whether a flag sets the KV block size.
    pub block_size_typed: bool,
    /// Number of KV blocks; `None`: derived from the GPU's memory, or 16384 if that is unknown.
    pub num_blocks: Option<u32>,
    /// Size of the KV cache in bytes, from which `num_blocks` may be derived.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Data type of the KV cache, as typed (default auto).
    pub kv_cache_dtype: String,
    /// Size of the weights kept in CPU memory, in GiB per GPU.
    pub cpu_offload_gib: f64,
    /// Size of the KV cache in CPU memory, in GiB, and the name of its backend.
    pub kv_offloading: (Option<f64>, &'static str),
    /// GPU memory of draft models and LoRA adapters.
    pub reserved: ReservedGpuMemory,
}

/// Settings of the prefix cache and its block hashes.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefixCachingConfig {
    /// Interval in tokens at which sliding-window layers keep KV blocks in the prefix cache; 0:
    /// only at prompt ends.
    pub retention_interval: Option<u32>,
    /// Whether later requests reuse full KV blocks (prefix caching).
    pub enable_prefix_caching: bool,
    /// Whether llm-d's flag `--enable-kvcache` is set.
    pub enable_kvcache: bool,
    /// Minimum fraction of a prompt that must be in the prefix cache for the request to be accepted
    /// (`--global-cache-hit-threshold`, default 0).
    pub cache_hit_threshold: f64,
    /// Hash algorithm for the hashes of KV blocks.
    pub hash_algo: BlockHashAlgorithm,
    /// Seed of KV block hashes; `None`: the algorithm's default.
    pub hash_seed: Option<String>,
}

/// Cost of KV cache transfer from another server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvTransferCostConfig {
    /// Size of the KV cache per prompt token, in bytes.
    pub kv_bytes_per_token: Option<u64>,
    /// KV transfer bandwidth, in GB/s; `None`: transfers take the pool scheduler's delays.
    pub kv_transfer_bandwidth: Option<f64>,
}

/// Independent servers of one process, on consecutive ports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerReplicaConfig {
    /// Number of servers in the process (default 1).
    pub count: u32,
    /// Index of this server in the process, from 0.
    pub index: u32,
    /// Delay between the starts of two servers of the process (default 0).
    pub stagger_delay: Duration,
}

/// Settings of the SGLang scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct SglangSchedulerConfig {
    /// Order of SGLang's waiting queue (default by arrival).
    pub schedule_policy: SglangSchedulePolicy,
    /// Maximum number of prompt tokens per prefill batch (default 16384).
    pub max_prefill_tokens: u32,
    /// Maximum number of tokens of one prompt per prefill batch (default 8192).
    pub chunked_prefill_size: u32,
    /// Maximum output tokens that SGLang's admission assumes per request (default 4096).
    pub clip_max_new_tokens: u32,
    /// SGLang's factor on expected output lengths; a higher one admits fewer requests (default 1).
    pub schedule_conservativeness: f64,
}

impl WaitingQueueLimits {
    fn from_flag_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let max_waiting_queue_length = v.get(&engine::MAX_WAITING_QUEUE_LENGTH)?;
        let requests = v.get(&engine::MAX_NUM_QUEUED_REQS)?;
        let tokens = v.get(&engine::MAX_NUM_QUEUED_TOKENS)?;
        Ok(Self { max_waiting_queue_length, admission: AdmissionLimits { requests, tokens } })
    }
}

impl EngineConfig {
    /// Returns the numbers of tokens, sequences and CUDA graphs in vLLM's profile run: the largest
    /// step, by which vLLM measures memory use.
    pub fn memory_profile_run(&self) -> ProfileRun {
        let sizes = self.graphs.cudagraph_capture_sizes().len() as u32;
        ProfileRun::profile_run_of_newest_vllm(
            self.max_num_batched_tokens,
            self.max_num_seqs,
            sizes,
        )
    }

    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &ModelConfig,
    ) -> Result<Self, ConfigError> {
        let latency_source = latency_source(v)?;
        let scheduler = read_scheduler_kind(v, &latency_source)?;
        let batch = SchedulerBatchLimits::from_flag_values(v, scheduler, model.max_model_len)?;
        let enable_kvcache = v.get(&kv::ENABLE_KVCACHE)?;
        let memory = v.get(&kv::KV_CACHE_MEMORY_BYTES)?;
        let blocks = v.get(&kv::NUM_GPU_BLOCKS_OVERRIDE)?;
        let speculative = SpeculativeConfig::from_flag_values(v, model, scheduler)?;
        let drafting = speculative.as_ref().filter(|_| scheduler == SchedulerKind::Vllm);
        let drafts = drafting.map_or(0, |s| s.num_tokens);
        // The order decides which of several wrong flags is reported.
        let prefill = read_chunked_prefill(v, batch.tokens)?;
        let queue = WaitingQueueLimits::from_flag_values(v)?;
        let timing = StepTimingConfig {
            delays: read_delays(v)?,
            latency_factor: v.get(&faults::LATENCY_FACTOR)?,
            latency_source,
        };
        let gpu = v.get(&engine::GPU)?;
        let gpu_memory_utilization = v.get(&engine::GPU_MEMORY_UTILIZATION)?;
        let block_size = block_size::kv_block_size_tokens(v, scheduler, model)?
            .saturating_mul(v.get(&engine::DECODE_CONTEXT_PARALLEL_SIZE)?);
        let memory = KvCacheMemoryConfig {
            gpu_memory_utilization,
            block_size_typed: v.is_flag_set(&kv::BLOCK_SIZE),
            num_blocks: blocks.or(v.get(&kv::KV_CACHE_SIZE)?),
            kv_cache_memory_bytes: memory.and_then(|n| u64::try_from(n).ok()),
            kv_cache_dtype: kv_cache_dtype(v, model)?,
            cpu_offload_gib: v.get(&kv::CPU_OFFLOAD_GB)?,
            kv_offloading: (v.get(&kv::KV_OFFLOADING_SIZE)?, offloading_backend(v)?),
            reserved: ReservedGpuMemory::default(),
        };
        let prefix_cache = PrefixCachingConfig {
            retention_interval: v.get(&kv::PREFIX_CACHE_RETENTION_INTERVAL)?,
            enable_prefix_caching: v.get(&kv::ENABLE_PREFIX_CACHING)?.unwrap_or(enable_kvcache),
            enable_kvcache,
            cache_hit_threshold: v.get(&kv::GLOBAL_CACHE_HIT_THRESHOLD)?,
            hash_algo: hash_algo(v)?,
            hash_seed: v.get(&kv::HASH_SEED)?,
        };
        Ok(Self {
            scheduler,
            max_num_seqs: batch.seqs,
            max_num_batched_tokens: batch.tokens,
            queue,
            timing,
            gpu,
            block_size,
            memory,
            kv_cache: None,
            kv_offload: None,
            prefix_cache,
            prefill,
            scheduling: SchedulingConfig {
                victim: v.get_choice(&engine::PREEMPTION_MODE)?.unwrap_or_default(),
                policy: v.get_choice(&engine::SCHEDULING_POLICY)?.unwrap_or_default(),
                async_scheduling: async_scheduling(v, scheduler, speculative.as_ref())?,
                watermark: v.get(&engine::WATERMARK)?,
            },
            parallel: ParallelConfig::from_flag_values(v)?,
            speedup: SimulationSpeedupRatios::from_flag_values(v)?,
            role: read_serving_role(v)?,
            speculative,
            drafter: None,
            encoder: None,
            lock_step: false,
            graphs: cuda_graphs::cuda_graph_batch_sizes(v, (batch.seqs, batch.tokens), drafts)?,
            replicas: ServerReplicaConfig::from_values(v)?,
            sglang: SglangSchedulerConfig::from_values(v)?,
            transfer: KvTransferCostConfig::from_values(v)?,
            quantization: v.get(&flags::model::QUANTIZATION)?.map(|it| it.to_ascii_lowercase()),
        })
    }

    /// Returns whether the engine has a prefix cache, which only the pool scheduler can lack.
    pub fn has_prefix_cache(&self) -> bool {
        self.scheduler != SchedulerKind::Pool || self.prefix_cache.is_enabled()
    }

    /// Returns the divisor of the durations of all steps, which includes the latency factor.
    pub fn total_step_speedup_ratio(&self) -> f64 {
        self.speedup.speedup_ratio / self.timing.latency_factor
    }
}

impl PrefixCachingConfig {
    /// Returns whether a flag of vLLM or of llm-d enables the prefix cache.
    pub fn is_enabled(&self) -> bool {
        self.enable_prefix_caching || self.enable_kvcache
    }
}

impl ServerReplicaConfig {
    fn from_values(v: &FlagValues) -> Result<Self, ConfigError> {
        Ok(Self {
            count: v.get(&flags::model::REPLICAS)?,
            index: 0,
            stagger_delay: stagger_delay(v)?,
        })
    }
}

impl KvTransferCostConfig {
    fn from_values(v: &FlagValues) -> Result<Self, ConfigError> {
        Ok(Self {
            kv_bytes_per_token: v.get(&kv::KV_BYTES_PER_TOKEN)?,
            kv_transfer_bandwidth: v.get(&kv::KV_TRANSFER_BANDWIDTH)?.filter(|rate| *rate > 0.0),
        })
    }
}

fn read_chunked_prefill(
    v: &FlagValues,
    token_budget: u32,
) -> Result<ChunkedPrefillConfig, ConfigError> {
    let scheduled = v.get(&engine::MAX_NUM_SCHEDULED_TOKENS)?;
    Ok(ChunkedPrefillConfig {
        max_num_scheduled_tokens: Some(scheduled.unwrap_or(token_budget).min(token_budget)),
        enable_chunked_prefill: v.get(&engine::ENABLE_CHUNKED_PREFILL)?,
        long_prefill_token_threshold: v.get(&engine::LONG_PREFILL_TOKEN_THRESHOLD)?,
        long_prefill_token_threshold_adaptive: v
            .get(&engine::LONG_PREFILL_TOKEN_THRESHOLD_ADAPTIVE)?,
        prefill_schedule_interval: v.get(&engine::PREFILL_SCHEDULE_INTERVAL)?,
        reserve_full_prompt: v.get(&engine::SCHEDULER_RESERVE_FULL_ISL)?,
    })
}

fn offloading_backend(v: &FlagValues) -> Result<&'static str, ConfigError> {
    Ok(match v.get_choice(&kv::KV_OFFLOADING_BACKEND)?.unwrap_or_default() {
        KvOffloadBackend::Native => "native",
        KvOffloadBackend::LmCache => "lmcache",
    })
}

fn hash_algo(v: &FlagValues) -> Result<BlockHashAlgorithm, ConfigError> {
    if let Some(typed) = v.get_choice(&kv::PREFIX_CACHING_HASH_ALGO)? {
        return Ok(typed);
    }
    Ok(match v.get(&kv::ENABLE_KVCACHE)? {
        true => BlockHashAlgorithm::LlmdFnv,
        false => BlockHashAlgorithm::Sha256,
    })
}

/// Returns whether the engine schedules the next step while one runs.
///
/// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `__post_init__`.
fn async_scheduling(
    v: &FlagValues,
    scheduler: SchedulerKind,
    speculative: Option<&SpeculativeConfig>,
) -> Result<bool, ConfigError> {
    let flag = &engine::ASYNC_SCHEDULING;
    let (ahead, typed) = (v.get(flag)?, v.is_flag_set(flag));
    if !ahead || scheduler != SchedulerKind::Vllm {
        return Ok(ahead);
    }
    let reason = speculative.and_then(|s| s.synchronous.as_deref());
    if let Some(reason) = reason {
        if typed {
            bail!("Async scheduling is not supported by the V1 model runner with {reason}.");
        }
        let rule = format!("the V1 model runner does not schedule ahead with {reason}");
        v.add_warning(format!("Async scheduling is disabled because {rule}."));
        v.record_value_derived_by_rule(flag, false, rule);
        return Ok(false);
    }
    let pools = matches!(
        api::read_model_task(v)?,
        ModelTask::Embed | ModelTask::Classify | ModelTask::Score | ModelTask::Reward
    );
    if pools && !typed && v.cli_mode == CliMode::Vllm {
        v.record_value_derived_by_rule(flag, false, "vLLM's default for pooling models");
        return Ok(false);
    }
    Ok(true)
}

/// Reads the role in disaggregated serving; the flags that set it exclude each other.
///
/// **Source:** `dynamo/mocker/args.py`.
fn read_serving_role(v: &FlagValues) -> Result<ServingRole, ConfigError> {
    let flag = &engine::DISAGGREGATION_MODE;
    let switches = (v.get(&engine::IS_PREFILL_WORKER)?, v.get(&engine::IS_DECODE_WORKER)?);
    let chosen = v.get_choice(flag)?.unwrap_or_default();
    match (switches, v.is_flag_set(flag)) {
        ((false, false), _) => Ok(chosen),
        ((true, false), false) => Ok(ServingRole::Prefill),
        ((false, true), false) => Ok(ServingRole::Decode),
        _ => Err(invalid!(
            "--is-prefill-worker, --is-decode-worker and --disaggregation-mode cannot be used \
             together"
        )),
    }
}

/// Reads the delay between server starts; -1: a delay that depends on the number of replicas.
///
/// **Source:** `dynamo/mocker/main.py` of dynamo-mocker 1.6.1.
fn stagger_delay(v: &FlagValues) -> Result<Duration, ConfigError> {
    let flag = &flags::model::STAGGER_DELAY;
    let seconds = v.get(flag)?;
    if seconds >= 0.0 {
        return Ok(Duration::from_secs_f64(seconds));
    }
    if seconds != -1.0 {
        return Err(ConfigError::Invalid(flag.out_of_bounds_message(v.cli_mode)));
    }
    Ok(Duration::from_millis(match v.get(&flags::model::REPLICAS)? {
        0..=32 => 0,
        33..=128 => 100,
        _ => 200,
    }))
}

fn latency_source(v: &FlagValues) -> Result<StepLatencySource, ConfigError> {
    let profile = v.get(&engine::LATENCY_PROFILE)?;
    let coefficients = v.get(&engine::LATENCY_COEFFICIENTS)?;
    let gpu = v.get(&engine::GPU)?.is_some();
    let tables = KernelTableSource {
        folder: v.get(&engine::AIC_DATA)?,
        version: v.get(&engine::AIC_BACKEND_VERSION)?,
        coefficients: coefficients.clone(),
    };
    let roofline = StepLatencySource::Roofline { coefficients };
    let kind = v.get_choice(&engine::LATENCY_MODEL)?.unwrap_or_default();
    let is_auto = kind == LatencyModelKind::Auto;
    if kind == LatencyModelKind::Aic || (is_auto && tables.folder.is_some()) {
        return match gpu {
            true => Ok(StepLatencySource::Aic(tables)),
            false => Err(invalid!("kernel tables (--latency-model aic, --aic-data) require --gpu")),
        };
    }
    for (name, given) in
        [("aic-data", tables.folder.is_some()), ("aic-backend-version", tables.version.is_some())]
    {
        if given {
            let reason = "step times do not come from kernel tables";
            v.add_warning(format!("--{name} has no effect: {reason}"));
        }
    }
    match (kind, profile) {
        (LatencyModelKind::Aic | LatencyModelKind::Delays, _) => Ok(StepLatencySource::Delays),
        (LatencyModelKind::Polynomial, _) => Ok(StepLatencySource::Polynomial),
        (LatencyModelKind::Roofline, _) if !gpu => {
            Err(invalid!("--latency-model roofline requires --gpu"))
        }
        (LatencyModelKind::Roofline, _) => Ok(roofline),
        (LatencyModelKind::Profile, None) => {
            Err(invalid!("--latency-model profile requires --latency-profile"))
        }
        (LatencyModelKind::Auto | LatencyModelKind::Profile, Some(profile)) => {
            Ok(StepLatencySource::Profile(profile))
        }
        (LatencyModelKind::Auto, None) => {
            Ok(if gpu { roofline } else { StepLatencySource::Delays })
        }
    }
}

fn scheduler_for_replay_timing(
    v: &FlagValues,
    typed: SchedulerKind,
) -> Result<SchedulerKind, ConfigError> {
    if typed != SchedulerKind::Pool && v.is_flag_set(&engine::SCHEDULER) {
        bail!(
            "--replay-timing releases each token at its recorded time, so it needs --scheduler \
             pool; batching schedulers compute the times of tokens"
        );
    }
    if typed != SchedulerKind::Pool {
        v.record_derived_value(&engine::SCHEDULER, "pool");
    }
    Ok(SchedulerKind::Pool)
}

/// Returns the scheduler kind; if `--scheduler` is not given, a latency model selects a scheduler
/// that runs steps.
fn read_scheduler_kind(
    v: &FlagValues,
    latency: &StepLatencySource,
) -> Result<SchedulerKind, ConfigError> {
    let flag = &engine::SCHEDULER;
    let typed = v.get_choice(flag)?.unwrap_or_default();
    if v.get(&flags::content::REPLAY_TIMING)? {
        return scheduler_for_replay_timing(v, typed);
    }
    if typed != SchedulerKind::Pool || *latency == StepLatencySource::Delays {
        return Ok(typed);
    }
    if v.is_flag_set(flag) {
        bail!(
            "--latency-model, --latency-profile and --gpu need --scheduler vllm or sglang: the \
             pool scheduler uses fixed delays instead of step times"
        );
    }
    v.record_derived_value(flag, "vllm");
    Ok(SchedulerKind::Vllm)
}

/// Reads the mean and standard deviation of a delay. If the deviation exceeds 30 % of the mean,
/// returns an error that calls the delay `what`.
///
/// **Source:** llm-d-inference-sim `pkg/common/config.go`, `validate`: the comparison is done in
/// 32-bit floats.
pub(super) fn read_delay_with_std_dev(
    v: &FlagValues,
    mean: &Flag<Duration>,
    std_dev: &Flag<Duration>,
    what: &str,
) -> Result<(Duration, Duration), ConfigError> {
    let average = v.get(mean)?;
    let deviation = v.get(std_dev)?;
    if deviation.as_nanos() as f32 > 0.3 * average.as_nanos() as f32 {
        let words = format!("{what} standard deviation cannot be more than 30% of {what}");
        return Err(v.unsupported_value_error(words, std_dev));
    }
    Ok((average, deviation))
}

fn read_latency_calculator(v: &FlagValues) -> Result<TtftFormula, ConfigError> {
    let flag = &engine::LATENCY_CALCULATOR;
    let Some(word) = v.get_text(flag) else {
        return Ok(TtftFormula::Default);
    };
    flag.choice_by_name(word).copied().ok_or_else(|| {
        let words = format!(
            "unknown latency-calculator '{word}', valid values are 'constant' and 'per-token'"
        );
        v.unsupported_value_error(words, flag)
    })
}

fn read_delays(v: &FlagValues) -> Result<TokenDelays, ConfigError> {
    let delays = TokenDelays {
        calculator: read_latency_calculator(v)?,
        ttft: read_delay_with_std_dev(
            v,
            &engine::TIME_TO_FIRST_TOKEN,
            &engine::TIME_TO_FIRST_TOKEN_STD_DEV,
            "time to first token",
        )?,
        itl: read_delay_with_std_dev(
            v,
            &engine::INTER_TOKEN_LATENCY,
            &engine::INTER_TOKEN_LATENCY_STD_DEV,
            "inter token latency",
        )?,
        kv_transfer: read_delay_with_std_dev(
            v,
            &engine::KV_CACHE_TRANSFER_LATENCY,
            &engine::KV_CACHE_TRANSFER_LATENCY_STD_DEV,
            "kv-cache transfer",
        )?,
        prefill_overhead: v.get(&engine::PREFILL_OVERHEAD)?,
        prefill_per_token: v.get(&engine::PREFILL_TIME_PER_TOKEN)?,
        prefill_std_dev: v.get(&engine::PREFILL_TIME_STD_DEV)?,
        kv_transfer_per_token: v.get(&engine::KV_CACHE_TRANSFER_TIME_PER_TOKEN)?,
        kv_transfer_per_token_std_dev: v.get(&engine::KV_CACHE_TRANSFER_TIME_STD_DEV)?,
        factor_under_load: v.get(&engine::TIME_FACTOR_UNDER_LOAD)?,
        speedup: read_speedup_ratio(v, &engine::SPEEDUP_RATIO)? / v.get(&faults::LATENCY_FACTOR)?,
    };
    check_delays_with_factors(v, delays)
}

impl SglangSchedulerConfig {
    fn from_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let policy = v.get_choice(&engine::SGLANG_SCHEDULE_POLICY)?;
        Ok(Self {
            schedule_policy: policy.unwrap_or_default(),
            max_prefill_tokens: v.get(&engine::SGLANG_MAX_PREFILL_TOKENS)?,
            chunked_prefill_size: v.get(&engine::SGLANG_CHUNKED_PREFILL_SIZE)?,
            clip_max_new_tokens: v.get(&engine::SGLANG_CLIP_MAX_NEW_TOKENS)?,
            schedule_conservativeness: v.get(&engine::SGLANG_SCHEDULE_CONSERVATIVENESS)?,
        })
    }
}
