use std::path::PathBuf;
use std::time::Duration;

use vllm_sim_engine::kv::HashAlgo;
use vllm_sim_engine::sched::sglang::SchedulePolicy;
use vllm_sim_engine::sched::vllm::{Policy, Victim};
use vllm_sim_engine::{Calculator, Delays};
use vllm_sim_service::{Admission, Role};

use super::error::ConfigError;
use super::parallel::Parallel;
use super::speculative::Speculative;
use super::values::Values;
use super::{CliMode, Model};

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
    /// vLLM's bounds of the queue, in requests and in prompt tokens: beyond them 503.
    pub admission: Admission,
    /// Delays of the pool scheduler, speed-up included.
    pub delays: Delays,
    /// Everything takes so many times as long [1]; the delays above know it already.
    pub latency_factor: f64,
    /// Where step times of the batching schedulers come from.
    pub latency_source: LatencySource,
    /// GPU whose constants the roofline uses.
    pub gpu: Option<String>,
    /// Share of GPU memory that is used [0.92].
    pub gpu_memory_utilization: f64,
    /// Tokens per block [16].
    pub block_size: u32,
    /// Blocks of the KV cache; `None`: what the GPU's memory leaves, or 16384 when it is unknown.
    pub num_blocks: Option<u32>,
    /// Bytes of the KV cache, from which `num_blocks` may follow.
    pub kv_cache_memory_bytes: Option<u64>,
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
    pub victim: Victim,
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
    /// What it does of a request.
    pub role: Role,
    /// Draft tokens.
    pub speculative: Option<Speculative>,
    /// Independent copies of the whole server, on ports one after the other [1].
    pub replicas: u32,
    /// From the start of one replica to that of the next [none].
    pub stagger_delay: Duration,
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
pub enum LatencySource {
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

/// Settings of the SGLang scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct Sglang {
    /// Order of the waiting queue [by arrival].
    pub schedule_policy: SchedulePolicy,
    /// Prompt tokens of one prefill batch [16384].
    pub max_prefill_tokens: u32,
    /// Longest piece of one prompt [8192].
    pub chunked_prefill_size: u32,
    /// Output tokens that admission assumes at most [4096].
    pub clip_max_new_tokens: u32,
    /// Greater admits less [1].
    pub schedule_conservativeness: f64,
}

/// Block sizes that llm-d allows.
const BLOCK_SIZES: [i64; 5] = [8, 16, 32, 64, 128];

impl Engine {
    pub(super) fn from_values(v: &Values, model: &Model) -> Result<Self, ConfigError> {
        let many = i64::from(u32::MAX);
        let latency_source = latency_source(v)?;
        let scheduler = scheduler(v, &latency_source)?;
        let seqs: u32 = v.ranged(
            "max-num-seqs",
            1..=many,
            "max num seqs cannot be less than 1",
        )?;
        let words = "max num active seqs cannot be less than 1 or more than max num seqs";
        let active = v.opt_ranged("max-num-active-seqs", 1..=i64::from(seqs), words)?;
        let chunked = v.switch("enable-chunked-prefill")?;
        let enable_kvcache = v.switch("enable-kvcache")?;
        Ok(Self {
            scheduler,
            max_num_seqs: active.unwrap_or(seqs),
            max_num_batched_tokens: batched_tokens(v, seqs, chunked, model.max_model_len)?,
            max_waiting_queue_length: v.opt_ranged(
                "max-waiting-queue-length",
                0..=many,
                "max waiting queue size cannot be less than 0",
            )?,
            admission: Admission {
                requests: v.opt_ranged(
                    "max-num-queued-reqs",
                    0..=many,
                    "max-num-queued-reqs cannot be less than 0",
                )?,
                tokens: queued_tokens(v)?,
            },
            delays: delays(v)?,
            latency_factor: latency_factor(v)?,
            latency_source,
            gpu: v.owned("gpu"),
            gpu_memory_utilization: v.ranged_float(
                "gpu-memory-utilization",
                f64::MIN_POSITIVE..=1.0,
                "gpu-memory-utilization must be more than 0 and at most 1",
            )?,
            block_size: block_size(v, scheduler)?,
            num_blocks: num_blocks(v)?,
            kv_cache_memory_bytes: v
                .count("kv-cache-memory-bytes")?
                .and_then(|n| u64::try_from(n).ok()),
            enable_prefix_caching: v
                .opt_switch("enable-prefix-caching")?
                .unwrap_or(enable_kvcache),
            enable_kvcache,
            cache_hit_threshold: v.ranged_float(
                "global-cache-hit-threshold",
                0.0..=1.0,
                "global cache hit threshold must be between in range [0, 1]",
            )?,
            hash_algo: hash_algo(v, enable_kvcache)?,
            hash_seed: v.owned("hash-seed"),
            enable_chunked_prefill: chunked,
            long_prefill_token_threshold: v.ranged(
                "long-prefill-token-threshold",
                0..=many,
                "long-prefill-token-threshold cannot be less than 0",
            )?,
            victim: match v.choice("preemption-mode")? {
                Some("fifo") => Victim::First,
                _ => Victim::Last,
            },
            policy: match v.choice("scheduling-policy")? {
                Some("priority") => Policy::Priority,
                _ => Policy::Fcfs,
            },
            async_scheduling: v.switch("async-scheduling")?,
            watermark: v.ranged_float(
                "watermark",
                0.0..=0.999_999,
                "watermark must be at least 0 and less than 1",
            )?,
            parallel: Parallel::from_values(v)?,
            speedup_ratio: speedup(v, "speedup-ratio")?,
            decode_speedup_ratio: speedup(v, "decode-speedup-ratio")?,
            role: role(v)?,
            speculative: Speculative::from_values(v)?,
            replicas: replicas(v)?,
            stagger_delay: stagger_delay(v)?,
            sglang: Sglang::from_values(v)?,
            kv_bytes_per_token: v.opt_ranged(
                "kv-bytes-per-token",
                1..=i64::MAX,
                "kv-bytes-per-token cannot be less than 1",
            )?,
            kv_transfer_bandwidth: bandwidth(v)?,
            kv_cache_dtype: v.text("kv-cache-dtype").unwrap_or("auto").to_owned(),
            quantization: v.owned("quantization"),
        })
    }
}

/// Source: `dynamo/mocker/args.py`: the old switches exclude the new flag.
fn role(v: &Values) -> Result<Role, ConfigError> {
    let name = "disaggregation-mode";
    let switches = (
        v.switch("is-prefill-worker")?,
        v.switch("is-decode-worker")?,
    );
    let chosen = match v.choice(name)? {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => Role::Whole,
    };
    match (switches, v.given(name)) {
        ((false, false), _) => Ok(chosen),
        ((true, false), false) => Ok(Role::Prefill),
        ((false, true), false) => Ok(Role::Decode),
        _ => Err(ConfigError::Invalid(
            "--is-prefill-worker, --is-decode-worker and --disaggregation-mode exclude each other"
                .to_owned(),
        )),
    }
}

/// Dynamo reads 0 as "not applied".
fn speedup(v: &Values, name: &str) -> Result<f64, ConfigError> {
    let words = format!("{name} cannot be negative");
    match v.ranged_float(name, 0.0..=1e9, &words)? {
        0.0 => Ok(1.0),
        ratio => Ok(ratio),
    }
}

fn replicas(v: &Values) -> Result<u32, ConfigError> {
    v.ranged("replicas", 1..=1024, "replicas must be between 1 and 1024")
}

/// What -1 stands for is dynamo-mocker's rule (`dynamo/mocker/main.py` 1.6.1).
fn stagger_delay(v: &Values) -> Result<Duration, ConfigError> {
    let words = "stagger-delay must be -1 (by the number of replicas) or 0 to 3600 seconds";
    let seconds = v.ranged_float("stagger-delay", -1.0..=3600.0, words)?;
    if seconds >= 0.0 {
        return Ok(Duration::from_secs_f64(seconds));
    }
    if seconds != -1.0 {
        return Err(ConfigError::Invalid(words.to_owned()));
    }
    Ok(Duration::from_millis(match replicas(v)? {
        0..=32 => 0,
        33..=128 => 100,
        _ => 200,
    }))
}

fn latency_factor(v: &Values) -> Result<f64, ConfigError> {
    let words = "latency factor must be more than 0 and at most 1000000";
    v.ranged_float("latency-factor", 1e-6..=1e6, words)
}

impl Engine {
    /// How much faster than modelled steps run, the latency factor included.
    pub fn speed(&self) -> f64 {
        self.speedup_ratio / self.latency_factor
    }
}

fn bandwidth(v: &Values) -> Result<Option<f64>, ConfigError> {
    match v.opt_float("kv-transfer-bandwidth")? {
        Some(rate) if rate < 0.0 => Err(v.wrong(
            "kv-transfer-bandwidth cannot be negative",
            "kv-transfer-bandwidth",
        )),
        rate => Ok(rate.filter(|rate| *rate > 0.0)),
    }
}

fn queued_tokens(v: &Values) -> Result<Option<u64>, ConfigError> {
    let name = "max-num-queued-tokens";
    v.count(name)?
        .map(|n| {
            u64::try_from(n)
                .map_err(|_| v.wrong("max-num-queued-tokens cannot be less than 0", name))
        })
        .transpose()
}

/// The token budget; a default grows where vLLM would refuse it.
///
/// **Source:** vLLM `vllm/config/scheduler.py`, `verify_max_model_len`.
fn batched_tokens(v: &Values, seqs: u32, chunked: bool, context: u32) -> Result<u32, ConfigError> {
    let name = "max-num-batched-tokens";
    let typed = v.count(name)?.unwrap_or(i64::from(seqs));
    let typed = u32::try_from(typed)
        .ok()
        .filter(|n| *n >= 1)
        .ok_or_else(|| v.wrong("max-num-batched-tokens cannot be less than 1", name))?;
    let least = if chunked { seqs } else { seqs.max(context) };
    if typed >= least {
        return Ok(typed);
    }
    if !v.given(name) {
        v.derive(name, least);
        return Ok(least);
    }
    Err(ConfigError::Invalid(if typed < seqs {
        format!(
            "max_num_batched_tokens ({typed}) must be greater than or equal to max_num_seqs ({seqs})."
        )
    } else {
        format!(
            "max_num_batched_tokens ({typed}) is smaller than max_model_len ({context}) and chunked \
             prefill is off: a prompt could never be read"
        )
    }))
}

fn latency_source(v: &Values) -> Result<LatencySource, ConfigError> {
    let profile = v.path("latency-profile");
    let coefficients = v.path("latency-coefficients");
    let roofline = LatencySource::Roofline { coefficients };
    match (v.choice("latency-model")?, profile) {
        (Some("delays"), _) => Ok(LatencySource::Delays),
        (Some("polynomial"), _) => Ok(LatencySource::Polynomial),
        (Some("roofline"), _) if v.text("gpu").is_none() => Err(ConfigError::Invalid(
            "--latency-model roofline requires --gpu".to_owned(),
        )),
        (Some("roofline"), _) => Ok(roofline),
        (Some("profile"), None) => Err(ConfigError::Invalid(
            "--latency-model profile requires --latency-profile".to_owned(),
        )),
        (_, Some(profile)) => Ok(LatencySource::Profile(profile)),
        (_, None) if v.text("gpu").is_some() => Ok(roofline),
        (_, None) => Ok(LatencySource::Delays),
    }
}

/// Recorded instants need sequences with timelines of their own.
fn timeline_scheduler(v: &Values, typed: SchedulerKind) -> Result<SchedulerKind, ConfigError> {
    if typed != SchedulerKind::Pool && v.given("scheduler") {
        return Err(ConfigError::Invalid(
            "--replay-timing releases each token at its recorded instant: it needs --scheduler \
             pool, a batching scheduler makes instants of its own"
                .to_owned(),
        ));
    }
    if typed != SchedulerKind::Pool {
        v.derive("scheduler", "pool");
    }
    Ok(SchedulerKind::Pool)
}

/// Step times need steps: naming a model of them asks for a scheduler that has some.
fn scheduler(v: &Values, latency: &LatencySource) -> Result<SchedulerKind, ConfigError> {
    let typed = match v.choice("scheduler")? {
        Some("vllm") => SchedulerKind::Vllm,
        Some("sglang") => SchedulerKind::Sglang,
        _ => SchedulerKind::Pool,
    };
    if v.switch("replay-timing")? {
        return timeline_scheduler(v, typed);
    }
    if typed != SchedulerKind::Pool || *latency == LatencySource::Delays {
        return Ok(typed);
    }
    if v.given("scheduler") {
        return Err(ConfigError::Invalid(
            "the pool scheduler has delays and no steps: --latency-model, --latency-profile and --gpu \
             need --scheduler vllm or sglang"
                .to_owned(),
        ));
    }
    v.derive("scheduler", "vllm");
    Ok(SchedulerKind::Vllm)
}

fn block_size(v: &Values, scheduler: SchedulerKind) -> Result<u32, ConfigError> {
    let name = "block-size";
    let llmds = v.cli_mode == CliMode::Llmd && scheduler == SchedulerKind::Pool;
    if llmds && !BLOCK_SIZES.contains(&v.int(name)?) {
        return Err(v.wrong(
            "token block size should be one of the following: 8, 16, 32, 64, 128",
            name,
        ));
    }
    v.ranged(name, 1..=65536, "block-size must be between 1 and 65536")
}

fn num_blocks(v: &Values) -> Result<Option<u32>, ConfigError> {
    let many = i64::from(u32::MAX);
    let words = "KV cache size cannot be negative";
    let size = v.opt_ranged("kv-cache-size", 0..=many, words)?;
    let words = "num-gpu-blocks-override cannot be less than 1";
    Ok(v.opt_ranged("num-gpu-blocks-override", 1..=many, words)?
        .or(size))
}

fn hash_algo(v: &Values, enable_kvcache: bool) -> Result<HashAlgo, ConfigError> {
    Ok(match v.choice("prefix-caching-hash-algo")? {
        Some("sha256") => HashAlgo::Sha256,
        Some("sha256_cbor") => HashAlgo::Sha256Cbor,
        Some("xxhash") => HashAlgo::Xxhash,
        Some("xxhash_cbor") => HashAlgo::XxhashCbor,
        Some("fnv64_cbor") => HashAlgo::LlmdFnv,
        _ if enable_kvcache => HashAlgo::LlmdFnv,
        _ => HashAlgo::Sha256,
    })
}

/// A mean and a standard deviation of at most 30 % of it.
///
/// **Source:** llm-d-inference-sim `pkg/common/config.go`, `validate`: the comparison is done in
/// 32-bit floats.
pub(super) fn with_std_dev(
    v: &Values,
    mean: &'static str,
    std_dev: &'static str,
    what: &str,
    limit: &str,
) -> Result<(Duration, Duration), ConfigError> {
    let average = v.duration(mean, &format!("{what} cannot be negative"))?;
    let words = format!("{what} standard deviation cannot be negative");
    let deviation = v.duration(std_dev, &words)?;
    if deviation.as_nanos() as f32 > 0.3 * average.as_nanos() as f32 {
        let words = format!("{limit} standard deviation cannot be more than 30% of {limit}");
        return Err(v.wrong(words, std_dev));
    }
    Ok((average, deviation))
}

fn delays(v: &Values) -> Result<Delays, ConfigError> {
    let calculator = match v.text("latency-calculator") {
        None => Calculator::Default,
        Some("constant") => Calculator::Constant,
        Some("per-token") => Calculator::PerToken,
        Some(other) => {
            let words = format!(
                "unknown latency-calculator '{other}', valid values are 'constant' and 'per-token'"
            );
            return Err(v.wrong(words, "latency-calculator"));
        }
    };
    let (ttft, itl) = ("time to first token", "inter token latency");
    let (time, transfer) = ("kv-cache transfer time", "kv-cache transfer");
    let factor = "time-factor-under-load";
    Ok(Delays {
        calculator,
        ttft: with_std_dev(
            v,
            "time-to-first-token",
            "time-to-first-token-std-dev",
            ttft,
            ttft,
        )?,
        itl: with_std_dev(
            v,
            "inter-token-latency",
            "inter-token-latency-std-dev",
            itl,
            itl,
        )?,
        kv_transfer: with_std_dev(
            v,
            "kv-cache-transfer-latency",
            "kv-cache-transfer-latency-std-dev",
            time,
            transfer,
        )?,
        prefill_overhead: v.duration("prefill-overhead", "prefill overhead cannot be negative")?,
        prefill_per_token: v.duration(
            "prefill-time-per-token",
            "prefill time per token cannot be negative",
        )?,
        prefill_std_dev: v.duration(
            "prefill-time-std-dev",
            "prefill time standard deviation cannot be negative",
        )?,
        kv_transfer_per_token: v.duration(
            "kv-cache-transfer-time-per-token",
            "kv-cache transfer time per token cannot be negative",
        )?,
        kv_transfer_per_token_std_dev: v.duration(
            "kv-cache-transfer-time-std-dev",
            "kv-cache transfer time standard deviation cannot be negative",
        )?,
        factor_under_load: v.ranged_float(
            factor,
            1.0..=1e9,
            "time factor under load cannot be less than 1.0",
        )?,
        speedup: speedup(v, "speedup-ratio")? / latency_factor(v)?,
    })
}

impl Sglang {
    fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let size = |name: &str| {
            v.ranged(
                name,
                1..=i64::from(u32::MAX),
                &format!("{name} cannot be less than 1"),
            )
        };
        Ok(Self {
            schedule_policy: match v.choice("sglang-schedule-policy")? {
                Some("lpm") => SchedulePolicy::Lpm,
                _ => SchedulePolicy::Fifo,
            },
            max_prefill_tokens: size("sglang-max-prefill-tokens")?,
            chunked_prefill_size: size("sglang-chunked-prefill-size")?,
            clip_max_new_tokens: size("sglang-clip-max-new-tokens")?,
            schedule_conservativeness: v.ranged_float(
                "sglang-schedule-conservativeness",
                0.0..=1e9,
                "sglang-schedule-conservativeness cannot be negative",
            )?,
        })
    }
}
