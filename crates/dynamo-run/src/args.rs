use std::time::Duration;

use serde_json::Value;

use vllm_sim_engine::latency::{
    LatencyModel, PolynomialStepTime, SimulationSpeedFactors, StepTimeGrid,
};
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::dynamo_mocker::DynamoMockerConfig;
use vllm_sim_engine::sched::sglang::{SglangConfig, SglangSchedulePolicy};
use vllm_sim_engine::sched::vllm::PreemptionVictim;
use vllm_sim_replay::load::AgentRunOrder;
use vllm_sim_replay::report::LatencySlo;
use vllm_sim_replay::workload::WorkloadSource;
use vllm_sim_replay::{KvAwareRouterConfig, KvTransferTime, RouterConfig};

use super::error::DynamoRunError;
use super::json_args::{DynamoJsonArgs, invalid_field_error};
use super::tables::{self, DynamoRunFolders, KernelTimingModel};
use super::workload;

pub(super) struct DynamoRunSetup {
    /// Prefill workers of a disaggregated deployment; `None` if the same workers do prefill and
    /// decode.
    pub prefill: Option<DynamoWorkerGroup>,
    pub serving: DynamoWorkerGroup,
    pub router: RouterConfig,
    /// Maximum number of concurrent sessions (closed loop); `None` sends them at the trace's start
    /// times.
    pub concurrency: Option<usize>,
    /// Maximum number of concurrent agent runs (closed loop); `None` starts them at the trace's
    /// start times.
    pub plays: Option<usize>,
    /// Divisor of the trace's arrival times in an open loop.
    pub speedup: f64,
    pub sla: LatencySlo,
    pub max_ms: Option<f64>,
    pub capture: bool,
}

pub(super) struct DynamoWorkerGroup {
    pub worker: DynamoWorker,
    pub count: u32,
}

/// Engine and resources of one Dynamo worker.
#[derive(Debug, Clone)]
pub struct DynamoWorker {
    pub engine: SchedulerSpec,
    pub ranks: u32,
    /// Number of GPUs of the worker, for the report.
    pub gpus: u32,
    /// Duration of a KV cache transfer from the worker to another pool.
    pub transfer: KvTransferTime,
    role: WorkerRole,
}

const MAX_DATA_PARALLEL_RANKS: u32 = 1024;

/// Serving role of a worker, from its argument `worker_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerRole {
    Aggregated,
    Prefill,
    Decode,
}

pub(super) fn parse_dynamo_run_args(
    args: &Value,
    dir: DynamoRunFolders<'_>,
) -> Result<(DynamoRunSetup, Box<dyn WorkloadSource>), DynamoRunError> {
    let mut kwargs = DynamoJsonArgs::new("kwargs", &args["kwargs"])?;
    let (prefill, serving) = parse_worker_pools(&mut kwargs, dir)?;
    let router = parse_router(&mut kwargs)?;
    if super::host_offload::has_host_kv_offload(&serving.worker.engine)
        && matches!(router, RouterConfig::Kv(_))
    {
        let problem = "kv_router is not modelled with native_host_offload";
        return Err(invalid_field_error("kwargs.router_mode", problem));
    }
    kwargs.take_choice_index("replay_mode", &["offline"])?;
    let sla = parse_slo(&mut kwargs)?;
    let concurrency = kwargs.take_optional_count("replay_concurrency")?.map(|n| n as usize);
    let plays = match args["api"].as_str() {
        Some("run_trace_replay") => parse_agentic_lanes(&mut kwargs, concurrency)?,
        _ => None,
    };
    let speedup = kwargs.take_number("arrival_speedup_ratio", 1.0)?;
    if speedup <= 0.0 {
        return Err(invalid_field_error("kwargs.arrival_speedup_ratio", "must be more than 0"));
    }
    let max_ms = kwargs.take_optional_number("max_sim_time_ms")?;
    let capture = kwargs.take_optional_bool("capture_per_request")?.unwrap_or(false);
    kwargs.ignore_fields(&[
        "report_jsonl_path",
        "telemetry_options",
        "model_name",
        "benchmark_granularity",
        "capture_planner_details",
        "performance_model_metadata",
    ]);
    let positional = args["positional"].as_array().map_or(&[][..], Vec::as_slice);
    let closed = concurrency.is_some();
    let source = match args["api"].as_str() {
        Some("run_synthetic_trace_replay") => workload::synthetic_workload(
            positional,
            &mut kwargs,
            serving.worker.engine.block_size(),
            concurrency,
        )?,
        Some("run_trace_replay") => {
            let order = match plays {
                None => AgentRunOrder::ByStart,
                Some(_) => AgentRunOrder::ByRequestId,
            };
            workload::trace_workload(positional, &mut kwargs, dir.run, (closed, order))?
        }
        other => {
            return Err(invalid_field_error("api", format!("{other:?} is not modelled")));
        }
    };
    kwargs.reject_unknown_fields()?;
    let setup = DynamoRunSetup {
        prefill,
        serving,
        router,
        concurrency,
        plays,
        speedup,
        sla,
        max_ms,
        capture,
    };
    Ok((setup, source))
}

/// Builds the prefill workers (`None` unless disaggregated) and the other workers from the run's
/// arguments.
fn parse_worker_pools(
    kwargs: &mut DynamoJsonArgs,
    dir: DynamoRunFolders<'_>,
) -> Result<(Option<DynamoWorkerGroup>, DynamoWorkerGroup), DynamoRunError> {
    let split = kwargs.has_value("prefill_engine_args") || kwargs.has_value("decode_engine_args");
    if !split {
        for key in ["num_prefill_workers", "num_decode_workers"] {
            if kwargs.take_count(key, 1)? != 1 {
                return Err(kwargs.invalid_field(
                    key,
                    "applies only to separate prefill and decode workers; use num_workers",
                ));
            }
        }
        let serving = parse_worker_pool(kwargs, dir, "extra_engine_args", "num_workers")?;
        serving.require_role("extra_engine_args", WorkerRole::Aggregated)?;
        return Ok((None, serving));
    }
    if kwargs.take_count("num_workers", 1)? != 1 {
        return Err(kwargs.invalid_field(
            "num_workers",
            "does not apply to separate prefill and decode workers",
        ));
    }
    let prefill = parse_worker_pool(kwargs, dir, "prefill_engine_args", "num_prefill_workers")?;
    prefill.require_role("prefill_engine_args", WorkerRole::Prefill)?;
    let serving = parse_worker_pool(kwargs, dir, "decode_engine_args", "num_decode_workers")?;
    serving.require_role("decode_engine_args", WorkerRole::Decode)?;
    if prefill.worker.engine.block_size() != serving.worker.engine.block_size() {
        let problem = "block_size must be that of decode_engine_args";
        return Err(invalid_field_error("kwargs.prefill_engine_args", problem));
    }
    if prefill.worker.ranks.max(serving.worker.ranks) > 1 {
        let problem = "more than 1 is not modelled for separate prefill and decode workers";
        return Err(invalid_field_error("kwargs.prefill_engine_args.dp_size", problem));
    }
    Ok((Some(prefill), serving))
}

fn parse_worker_pool(
    kwargs: &mut DynamoJsonArgs,
    dir: DynamoRunFolders<'_>,
    args: &str,
    count: &str,
) -> Result<DynamoWorkerGroup, DynamoRunError> {
    let worker = parse_dynamo_worker(&kwargs.take_value(args).unwrap_or_default(), dir)?;
    match kwargs.take_count(count, 1)? {
        0 => Err(kwargs.invalid_field(count, "must be at least 1")),
        count => Ok(DynamoWorkerGroup { worker, count }),
    }
}

impl DynamoWorkerGroup {
    fn require_role(&self, args: &str, role: WorkerRole) -> Result<(), DynamoRunError> {
        if self.worker.role == role {
            return Ok(());
        }
        let problem = format!("worker_type must be {role:?}, is {:?}", self.worker.role);
        Err(invalid_field_error(&format!("kwargs.{args}"), problem.to_lowercase()))
    }
}

fn parse_router(kwargs: &mut DynamoJsonArgs) -> Result<RouterConfig, DynamoRunError> {
    let config = kwargs.take_value("router_config").unwrap_or_default();
    let lag = kwargs.take_number("kv_event_lag_ms", 0.0)?;
    let drawn = kwargs.take_choice_index("router_mode", &["round_robin", "kv_router"])? == 1;
    if !drawn && lag > 0.0 {
        return Err(kwargs.invalid_field("kv_event_lag_ms", "requires router_mode kv_router"));
    }
    if !drawn {
        return Ok(RouterConfig::RoundRobin);
    }
    Ok(RouterConfig::Kv(KvAwareRouterConfig {
        event_lag: Duration::try_from_secs_f64(lag / 1e3)
            .map_err(|_| kwargs.invalid_field("kv_event_lag_ms", format!("{lag} is too long")))?,
        ..super::router::parse_kv_router_config(&config)?
    }))
}

fn parse_agentic_lanes(
    kwargs: &mut DynamoJsonArgs,
    concurrency: Option<usize>,
) -> Result<Option<usize>, DynamoRunError> {
    match kwargs.take_optional_count("agentic_lanes")? {
        Some(0) => Err(kwargs.invalid_field("agentic_lanes", "must be at least 1")),
        Some(_) if concurrency.is_some() => {
            Err(kwargs.invalid_field("agentic_lanes", "cannot be used with replay_concurrency"))
        }
        lanes => Ok(lanes.map(|lanes| lanes as usize)),
    }
}

fn parse_slo(kwargs: &mut DynamoJsonArgs) -> Result<LatencySlo, DynamoRunError> {
    let mut bound = |key: &str| -> Result<Option<f64>, DynamoRunError> {
        match kwargs.take_optional_number(key)? {
            Some(0.0) => Err(kwargs.invalid_field(key, "must be more than 0")),
            bound => Ok(bound),
        }
    };
    let sla = LatencySlo {
        ttft_ms: bound("sla_ttft_ms")?,
        itl_ms: bound("sla_itl_ms")?,
        e2e_ms: bound("sla_e2e_ms")?,
    };
    if sla.e2e_ms.is_some() && (sla.ttft_ms.is_some() || sla.itl_ms.is_some()) {
        let problem = "cannot be used with sla_ttft_ms and sla_itl_ms";
        return Err(invalid_field_error("kwargs.sla_e2e_ms", problem));
    }
    Ok(sla)
}

/// Builds a worker from its JSON arguments, or from the flat engine arguments of Dynamo 1.4.2.
///
/// # Errors
/// Returns [`DynamoRunError`] with the name of the argument.
pub fn parse_dynamo_worker(
    value: &Value,
    dir: DynamoRunFolders<'_>,
) -> Result<DynamoWorker, DynamoRunError> {
    let around = ["engine", "dp_size", "tensor_parallel_size", "startup_time", "dynamo"];
    let flat = value
        .as_object()
        .is_some_and(|map| !map.is_empty() && !around.iter().any(|key| map.contains_key(*key)));
    if flat {
        return parse_worker_args(&serde_json::json!({ "engine": value }), dir);
    }
    parse_worker_args(value, dir)
}

fn parse_worker_args(
    value: &Value,
    dir: DynamoRunFolders<'_>,
) -> Result<DynamoWorker, DynamoRunError> {
    let mut worker = DynamoJsonArgs::new("extra_engine_args", value)?;
    let mut engine = worker.take_object("engine")?;
    let ranks = worker.take_count("dp_size", 1)?;
    if !(1..=MAX_DATA_PARALLEL_RANKS).contains(&ranks) {
        let problem = format!("{ranks}, must be between 1 and {MAX_DATA_PARALLEL_RANKS}");
        return Err(invalid_field_error("extra_engine_args.dp_size", problem));
    }
    let measured = tables::take_kernel_timing_model(&mut engine, dir)?;
    let gpus = measured.as_ref().map_or(1, |measured| measured.setup.tp);
    let gpus = worker.take_count("tensor_parallel_size", gpus)?;
    let measured = match measured {
        Some(measured) => Some(measured.with_kv_cache_size(&mut worker, &mut engine)?),
        None => None,
    };
    let gpus = gpus.saturating_mul(ranks);
    worker.ignore_fields(&[
        "startup_time",
        "gpu_memory_utilization",
        "mem_fraction_static",
        "free_gpu_memory_fraction",
        "dynamo",
    ]);
    worker.reject_unknown_fields()?;
    let roles = [WorkerRole::Aggregated, WorkerRole::Prefill, WorkerRole::Decode];
    let role =
        roles[engine.take_choice_index("worker_type", &["aggregated", "prefill", "decode"])?];
    engine.ignore_fields(&["emit_kv_events", "emit_kv_token_ids"]);
    let transfer = take_transfer_time(&mut engine)?;
    let host = super::host_offload::take_host_kv_offload_args(&mut engine)?;
    let measured = measured.as_ref();
    let mut parsed = match take_scheduler_kind(&mut engine, measured)? {
        0 => SchedulerSpec::Mocker(Box::new(take_vllm_config(
            &mut engine,
            measured,
            dir,
            (ranks, 64),
        )?)),
        1 => SchedulerSpec::Sglang(Box::new(take_sglang_config(&mut engine, measured, dir)?)),
        _ => SchedulerSpec::Mocker(Box::new(take_trtllm_config(
            &mut engine,
            measured,
            dir,
            ranks,
            role,
        )?)),
    };
    if let Some(host) = host {
        host.add_host_kv_tier(&mut parsed, (ranks, role == WorkerRole::Aggregated))?;
    }
    engine.reject_unknown_fields()?;
    if ranks > 1 {
        set_data_parallel_rank_config(&mut parsed, ranks)?;
    }
    let least = if matches!(parsed, SchedulerSpec::Mocker(_)) { 2 } else { 1 };
    if parsed.block_size() < least {
        let problem = format!("must be at least {least}");
        return Err(invalid_field_error("extra_engine_args.engine.block_size", problem));
    }
    Ok(DynamoWorker { engine: parsed, ranks, gpus, transfer, role })
}

/// Changes a worker's engine configuration into the configuration of one of the worker's
/// data-parallel ranks.
fn set_data_parallel_rank_config(
    engine: &mut SchedulerSpec,
    ranks: u32,
) -> Result<(), DynamoRunError> {
    let key = "extra_engine_args.engine.";
    let unmodelled =
        |name: &str| Err(invalid_field_error(&format!("{key}{name}"), "needs dp_size 1"));
    match engine {
        SchedulerSpec::Sglang(config) if config.prefill_decode_interval != 0 => {
            unmodelled("prefill_decode_interval")
        }
        SchedulerSpec::Sglang(config) => {
            // aisimulate-core 0.13.0 `scheduler/rank.rs`; SGLang does the same at startup.
            config.chunked_prefill_size /= ranks;
            config.schedule_conservativeness *= 0.3;
            Ok(())
        }
        SchedulerSpec::Vllm(_) | SchedulerSpec::Mocker(_) | SchedulerSpec::Pool(_) => Ok(()),
    }
}

/// Returns the index of the engine's scheduler: 0 for vLLM, 1 for SGLang, 2 for TensorRT-LLM.
///
/// Without an argument, the backend of the kernel tables decides; TensorRT-LLM's batches are
/// closest to vLLM's.
fn take_scheduler_kind(
    engine: &mut DynamoJsonArgs,
    measured: Option<&KernelTimingModel>,
) -> Result<usize, DynamoRunError> {
    const SCHEDULER_KINDS: [&str; 3] = ["vllm", "sglang", "trtllm"];
    let key = match engine.has_value("engine_type") {
        true => "engine_type",
        false => "backend",
    };
    let measured = measured.map(|measured| measured.backend);
    if !engine.has_value(key) {
        return Ok(usize::from(measured == Some(SCHEDULER_KINDS[1])));
    }
    let kind = engine.take_choice_index(key, &SCHEDULER_KINDS)?;
    if let Some(other) = measured.filter(|name| *name != SCHEDULER_KINDS[kind]) {
        let own = SCHEDULER_KINDS[kind];
        tracing::warn!("aic_backend is {other}, {key} is {own}: batches are built as in {own}");
    }
    Ok(kind)
}

fn take_transfer_time(args: &mut DynamoJsonArgs) -> Result<KvTransferTime, DynamoRunError> {
    let older = args.take_optional_number("kv_bytes_per_token")?;
    let bytes = args.take_optional_number("kv_transfer_bytes_per_token")?.or(older);
    let bandwidth = args.take_optional_number("kv_transfer_bandwidth")?.filter(|gb| *gb > 0.0);
    let modes = ["full_prompt", "destination_missing"];
    let whole = args.take_choice_index("kv_transfer_timing_mode", &modes)? == 0;
    // Gigabytes per second are bytes per nanosecond.
    let ns_per_token = match (bytes, bandwidth) {
        (Some(bytes), Some(bandwidth)) => bytes / bandwidth,
        _ => 0.0,
    };
    Ok(KvTransferTime { ns_per_token, whole, ..KvTransferTime::default() })
}

fn take_speed_factors(args: &mut DynamoJsonArgs) -> Result<SimulationSpeedFactors, DynamoRunError> {
    Ok(SimulationSpeedFactors {
        all: args.take_number("speedup_ratio", 1.0)?,
        decode: args.take_number("decode_speedup_ratio", 1.0)?,
    })
}

fn take_trtllm_config(
    args: &mut DynamoJsonArgs,
    measured: Option<&KernelTimingModel>,
    dir: DynamoRunFolders<'_>,
    ranks: u32,
    role: WorkerRole,
) -> Result<DynamoMockerConfig, DynamoRunError> {
    if role != WorkerRole::Aggregated {
        let problem = "is not modelled for trtllm, only aggregated";
        return Err(args.invalid_field("worker_type", problem));
    }
    let mut more = args.take_object("trtllm")?;
    more.take_choice_index("capacity_scheduler_policy", &["guaranteed_no_evict"])?;
    more.reject_unknown_fields()?;
    let config = take_vllm_config(args, measured, dir, (ranks, 32))?;
    if !config.accept.is_empty() {
        return Err(args.invalid_field("aic_nextn", "is not modelled for trtllm"));
    }
    Ok(DynamoMockerConfig { no_evict: true, ..config })
}

/// Builds the configuration of a vLLM engine from its arguments; `block_size` is the default number
/// of tokens per KV block.
fn take_vllm_config(
    args: &mut DynamoJsonArgs,
    measured: Option<&KernelTimingModel>,
    dir: DynamoRunFolders<'_>,
    (ranks, block_size): (u32, u32),
) -> Result<DynamoMockerConfig, DynamoRunError> {
    let blocks = measured.map_or(16_384, |measured| measured.blocks);
    let num_gpu_blocks = args.take_count("num_gpu_blocks", blocks)?;
    let block_size = args.take_count("block_size", block_size)?;
    // The interval has an effect only if ranks wait for each other.
    let interval = args.take_count("prefill_schedule_interval", 1)?;
    if interval == 0 || (interval > 1 && ranks > 1) {
        let problem = "must be at least 1, and 1 where dp_size is more";
        return Err(args.invalid_field("prefill_schedule_interval", problem));
    }
    let victims = [PreemptionVictim::Last, PreemptionVictim::First];
    let (accept, seed) = take_acceptance_rates(args)?;
    Ok(DynamoMockerConfig {
        latency: take_latency_model(
            args,
            measured,
            u64::from(num_gpu_blocks) * u64::from(block_size),
            dir,
        )?,
        speed: take_speed_factors(args)?,
        num_gpu_blocks,
        block_size,
        max_num_seqs: args.take_count_limit("max_num_seqs", 256)?,
        max_num_batched_tokens: args.take_count_limit("max_num_batched_tokens", 8192)?,
        max_model_len: args.take_count("max_model_len", u32::MAX)?,
        enable_chunked_prefill: args.take_optional_bool("enable_chunked_prefill")?.unwrap_or(true),
        enable_prefix_caching: args.take_optional_bool("enable_prefix_caching")?.unwrap_or(true),
        victim: victims[args.take_choice_index("preemption_mode", &["lifo", "fifo"])?],
        accept,
        seed,
        log_admissions: true,
        ..DynamoMockerConfig::default()
    })
}

/// Reads the acceptance rates of draft tokens (empty without speculative decoding), and the seed of
/// their random acceptance.
fn take_acceptance_rates(args: &mut DynamoJsonArgs) -> Result<(Vec<f64>, u64), DynamoRunError> {
    let rates = args.take_optional_text("aic_nextn_accept_rates")?;
    let seed = args.take_count("aic_mtp_seed", 42)?.into();
    let Some(drafts) = args.take_optional_count("aic_nextn")? else {
        return match rates {
            Some(_) => Err(args.invalid_field("aic_nextn_accept_rates", "needs aic_nextn")),
            None => Ok((Vec::new(), seed)),
        };
    };
    let faster = args.get("decode_speedup_ratio").and_then(Value::as_f64);
    if faster.is_some_and(|ratio| ratio != 1.0) {
        return Err(args.invalid_field("aic_nextn", "needs decode_speedup_ratio 1"));
    }
    if !(1..=5).contains(&drafts) {
        return Err(args.invalid_field("aic_nextn", format!("{drafts}, must be between 1 and 5")));
    }
    let rates = rates.as_deref().unwrap_or("0.85,0.3,0,0,0").split(',');
    let mut accept = Vec::new();
    for rate in rates.map(str::trim) {
        let number = rate.parse().ok().filter(|n| (0.0..=1.0).contains(n));
        accept.push(number.ok_or_else(|| {
            let problem = format!("{rate:?} is not a number from 0 to 1");
            args.invalid_field("aic_nextn_accept_rates", problem)
        })?);
    }
    accept.resize(drafts as usize, 0.0);
    Ok((accept, seed))
}

fn take_sglang_config(
    args: &mut DynamoJsonArgs,
    measured: Option<&KernelTimingModel>,
    dir: DynamoRunFolders<'_>,
) -> Result<SglangConfig, DynamoRunError> {
    let pages = measured.map_or(16_384, |measured| measured.blocks);
    let num_pages = args.take_count("num_gpu_blocks", pages)?;
    let page_size = args.take_count("block_size", 1)?;
    let mut more = args.take_object("sglang")?;
    let policies = [SglangSchedulePolicy::Fifo, SglangSchedulePolicy::Lpm];
    let defaults = SglangConfig::default();
    if !args.take_optional_bool("enable_chunked_prefill")?.unwrap_or(true) {
        return Err(args.invalid_field("enable_chunked_prefill", "must be true for sglang"));
    }
    args.ignore_fields(&["max_num_batched_tokens", "preemption_mode"]);
    let (accept, seed) = take_acceptance_rates(args)?;
    let config = SglangConfig {
        accept,
        seed,
        latency: take_latency_model(
            args,
            measured,
            u64::from(num_pages) * u64::from(page_size),
            dir,
        )?,
        speed: take_speed_factors(args)?,
        num_pages,
        page_size,
        max_num_seqs: args.take_count_limit("max_num_seqs", 256)?,
        max_model_len: args.take_count("max_model_len", u32::MAX)?,
        enable_prefix_caching: args.take_optional_bool("enable_prefix_caching")?.unwrap_or(true),
        prefill_decode_interval: args.take_count("prefill_decode_interval", 0)?,
        schedule_policy: policies[more.take_choice_index("schedule_policy", &["fifo", "lpm"])?],
        max_prefill_tokens: more.take_count("max_prefill_tokens", defaults.max_prefill_tokens)?,
        chunked_prefill_size: more
            .take_count("chunked_prefill_size", defaults.chunked_prefill_size)?,
        clip_max_new_tokens: more
            .take_count("clip_max_new_tokens", defaults.clip_max_new_tokens)?,
        schedule_conservativeness: more.take_number("schedule_conservativeness", 1.0)?,
        log_admissions: true,
        ..defaults
    };
    more.reject_unknown_fields()?;
    Ok(config)
}

fn take_latency_model(
    args: &mut DynamoJsonArgs,
    measured: Option<&KernelTimingModel>,
    capacity: u64,
    dir: DynamoRunFolders<'_>,
) -> Result<LatencyModel, DynamoRunError> {
    if let Some(measured) = measured {
        return Ok(measured.model.clone());
    }
    let mut timing = args.take_object("timing_model")?;
    let model = match timing.take_choice_index("type", &["polynomial", "fixed", "external"])? {
        0 => LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(capacity)),
        1 => LatencyModel::Constant {
            prefill: timing.take_milliseconds("prefill_ms")?,
            decode: timing.take_milliseconds("decode_ms")?,
        },
        _ => {
            timing.take_choice_index("provider", &["dynamo_profile"])?;
            let config = timing.take_value("config").unwrap_or_default();
            let path = config["path"].as_str();
            let path =
                path.ok_or_else(|| timing.invalid_field("config.path", "must be a string"))?;
            LatencyModel::Grid(Box::new(StepTimeGrid::open(&dir.run.join(path))?))
        }
    };
    timing.reject_unknown_fields()?;
    Ok(model)
}
