use std::time::Duration;

use serde_json::Value;

use vllm_sim_engine::latency::{Grid, LatencyModel, Polynomial, Speed};
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_engine::sched::mocker::MockerConfig;
use vllm_sim_engine::sched::sglang::{SchedulePolicy, SglangConfig};
use vllm_sim_engine::sched::vllm::PreemptionVictim;
use vllm_sim_replay::load::AgentOrder;
use vllm_sim_replay::report::Slo;
use vllm_sim_replay::workload::WorkloadSource;
use vllm_sim_replay::{KvConfig, RouterConfig, TransferTime};

use super::error::DynamoError;
use super::json_args::{Args, wrong};
use super::tables::{self, Folders, TimingTables};
use super::workload;

pub(super) struct RooflineSetup {
    /// Prefill workers of a disaggregated deployment; `None`: prefill and decode on the same
    /// workers.
    pub prefill: Option<Workers>,
    pub serving: Workers,
    pub router: RouterConfig,
    /// Maximum number of concurrent sessions (closed loop); `None` sends them at the trace's start
    /// times.
    pub concurrency: Option<usize>,
    /// Maximum number of concurrent agent runs (closed loop); `None` starts them at the trace's
    /// start times.
    pub plays: Option<usize>,
    /// Divisor of the trace's arrival times in an open loop.
    pub speedup: f64,
    pub sla: Slo,
    pub max_ms: Option<f64>,
    pub capture: bool,
}

pub(super) struct Workers {
    pub worker: Worker,
    pub count: u32,
}

/// Engine and resources of one Dynamo worker.
#[derive(Debug, Clone)]
pub struct Worker {
    pub engine: EngineSpec,
    pub ranks: u32,
    /// Number of GPUs of the worker, for the report.
    pub gpus: u32,
    /// Duration of a KV cache transfer from the worker to another pool.
    pub transfer: TransferTime,
    role: Role,
}

const MOST_RANKS: u32 = 1024;

/// Serving role of a worker, from its argument `worker_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Aggregated,
    Prefill,
    Decode,
}

pub(super) fn read(
    args: &Value,
    dir: Folders<'_>,
) -> Result<(RooflineSetup, Box<dyn WorkloadSource>), DynamoError> {
    let mut kwargs = Args::new("kwargs", &args["kwargs"])?;
    let (prefill, serving) = pools(&mut kwargs, dir)?;
    let router = routing(&mut kwargs)?;
    if super::host_offload::is_in(&serving.worker.engine) && matches!(router, RouterConfig::Kv(_)) {
        let problem = "kv_router is not modelled with native_host_offload";
        return Err(wrong("kwargs.router_mode", problem));
    }
    kwargs.one_of("replay_mode", &["offline"])?;
    let sla = sla(&mut kwargs)?;
    let concurrency = kwargs.count("replay_concurrency")?.map(|n| n as usize);
    let plays = match args["api"].as_str() {
        Some("run_trace_replay") => plays(&mut kwargs, concurrency)?,
        _ => None,
    };
    let speedup = kwargs.number("arrival_speedup_ratio")?.unwrap_or(1.0);
    if speedup <= 0.0 {
        return Err(wrong("kwargs.arrival_speedup_ratio", "must be more than 0"));
    }
    let max_ms = kwargs.number("max_sim_time_ms")?;
    let capture = kwargs.flag("capture_per_request")?.unwrap_or(false);
    kwargs.ignore(&[
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
        Some("run_synthetic_trace_replay") => workload::synthetic(
            positional,
            &mut kwargs,
            serving.worker.engine.block_size(),
            concurrency,
        )?,
        Some("run_trace_replay") => {
            let order = match plays {
                None => AgentOrder::ByStart,
                Some(_) => AgentOrder::ByRequestId,
            };
            workload::trace(positional, &mut kwargs, dir.run, (closed, order))?
        }
        other => return Err(wrong("api", format!("{other:?} is not modelled"))),
    };
    kwargs.done()?;
    let setup = RooflineSetup {
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
fn pools(kwargs: &mut Args, dir: Folders<'_>) -> Result<(Option<Workers>, Workers), DynamoError> {
    let split = kwargs.has("prefill_engine_args") || kwargs.has("decode_engine_args");
    if !split {
        for key in ["num_prefill_workers", "num_decode_workers"] {
            if kwargs.count(key)?.unwrap_or(1) != 1 {
                return Err(kwargs.wrong(
                    key,
                    "applies only to separate prefill and decode workers; use num_workers",
                ));
            }
        }
        let serving = pool(kwargs, dir, "extra_engine_args", "num_workers")?;
        serving.must_be("extra_engine_args", Role::Aggregated)?;
        return Ok((None, serving));
    }
    if kwargs.count("num_workers")?.unwrap_or(1) != 1 {
        return Err(kwargs.wrong(
            "num_workers",
            "does not apply to separate prefill and decode workers",
        ));
    }
    let prefill = pool(kwargs, dir, "prefill_engine_args", "num_prefill_workers")?;
    prefill.must_be("prefill_engine_args", Role::Prefill)?;
    let serving = pool(kwargs, dir, "decode_engine_args", "num_decode_workers")?;
    serving.must_be("decode_engine_args", Role::Decode)?;
    if prefill.worker.engine.block_size() != serving.worker.engine.block_size() {
        let problem = "block_size must be that of decode_engine_args";
        return Err(wrong("kwargs.prefill_engine_args", problem));
    }
    if prefill.worker.ranks.max(serving.worker.ranks) > 1 {
        let problem = "more than 1 is not modelled for separate prefill and decode workers";
        return Err(wrong("kwargs.prefill_engine_args.dp_size", problem));
    }
    Ok((Some(prefill), serving))
}

fn pool(
    kwargs: &mut Args,
    dir: Folders<'_>,
    args: &str,
    count: &str,
) -> Result<Workers, DynamoError> {
    let worker = worker(&kwargs.take(args).unwrap_or_default(), dir)?;
    match kwargs.count(count)?.unwrap_or(1) {
        0 => Err(kwargs.wrong(count, "must be at least 1")),
        count => Ok(Workers { worker, count }),
    }
}

impl Workers {
    fn must_be(&self, args: &str, role: Role) -> Result<(), DynamoError> {
        if self.worker.role == role {
            return Ok(());
        }
        let problem = format!("worker_type must be {role:?}, is {:?}", self.worker.role);
        Err(wrong(&format!("kwargs.{args}"), problem.to_lowercase()))
    }
}

fn routing(kwargs: &mut Args) -> Result<RouterConfig, DynamoError> {
    let config = kwargs.take("router_config").unwrap_or_default();
    let lag = kwargs.number("kv_event_lag_ms")?.unwrap_or(0.0);
    let drawn = kwargs.one_of("router_mode", &["round_robin", "kv_router"])? == 1;
    if !drawn && lag > 0.0 {
        return Err(kwargs.wrong("kv_event_lag_ms", "requires router_mode kv_router"));
    }
    if !drawn {
        return Ok(RouterConfig::RoundRobin);
    }
    Ok(RouterConfig::Kv(KvConfig {
        event_lag: Duration::try_from_secs_f64(lag / 1e3)
            .map_err(|_| kwargs.wrong("kv_event_lag_ms", format!("{lag} is too long")))?,
        ..super::router::config(&config)?
    }))
}

fn plays(kwargs: &mut Args, concurrency: Option<usize>) -> Result<Option<usize>, DynamoError> {
    match kwargs.count("agentic_lanes")? {
        Some(0) => Err(kwargs.wrong("agentic_lanes", "must be at least 1")),
        Some(_) if concurrency.is_some() => {
            Err(kwargs.wrong("agentic_lanes", "cannot be used with replay_concurrency"))
        }
        lanes => Ok(lanes.map(|lanes| lanes as usize)),
    }
}

fn sla(kwargs: &mut Args) -> Result<Slo, DynamoError> {
    let mut bound = |key: &str| -> Result<Option<f64>, DynamoError> {
        match kwargs.number(key)? {
            Some(0.0) => Err(kwargs.wrong(key, "must be more than 0")),
            bound => Ok(bound),
        }
    };
    let sla = Slo {
        ttft_ms: bound("sla_ttft_ms")?,
        itl_ms: bound("sla_itl_ms")?,
        e2e_ms: bound("sla_e2e_ms")?,
    };
    if sla.e2e_ms.is_some() && (sla.ttft_ms.is_some() || sla.itl_ms.is_some()) {
        let problem = "cannot be used with sla_ttft_ms and sla_itl_ms";
        return Err(wrong("kwargs.sla_e2e_ms", problem));
    }
    Ok(sla)
}

/// Builds a worker from its JSON arguments, or from the flat engine arguments of Dynamo 1.4.2.
///
/// # Errors
/// Returns [`DynamoError`] with the name of the argument.
pub fn worker(value: &Value, dir: Folders<'_>) -> Result<Worker, DynamoError> {
    let around = [
        "engine",
        "dp_size",
        "tensor_parallel_size",
        "startup_time",
        "dynamo",
    ];
    let flat = value
        .as_object()
        .is_some_and(|map| !map.is_empty() && !around.iter().any(|key| map.contains_key(*key)));
    if flat {
        return worker_args(&serde_json::json!({ "engine": value }), dir);
    }
    worker_args(value, dir)
}

fn worker_args(value: &Value, dir: Folders<'_>) -> Result<Worker, DynamoError> {
    let mut worker = Args::new("extra_engine_args", value)?;
    let engine = worker.take("engine").unwrap_or_default();
    let mut engine = Args::new("extra_engine_args.engine", &engine)?;
    let ranks = worker.count("dp_size")?.unwrap_or(1);
    if !(1..=MOST_RANKS).contains(&ranks) {
        let problem = format!("{ranks}, must be between 1 and {MOST_RANKS}");
        return Err(wrong("extra_engine_args.dp_size", problem));
    }
    let measured = tables::take(&mut engine, dir)?;
    let gpus = measured.as_ref().map_or(1, |measured| measured.setup.tp);
    let gpus = worker.count("tensor_parallel_size")?.unwrap_or(gpus);
    let measured = match measured {
        Some(measured) => Some(measured.sized(&mut worker, &mut engine)?),
        None => None,
    };
    let gpus = gpus.saturating_mul(ranks);
    worker.ignore(&[
        "startup_time",
        "gpu_memory_utilization",
        "mem_fraction_static",
        "free_gpu_memory_fraction",
        "dynamo",
    ]);
    worker.done()?;
    let roles = [Role::Aggregated, Role::Prefill, Role::Decode];
    let role = roles[engine.one_of("worker_type", &["aggregated", "prefill", "decode"])?];
    engine.ignore(&["emit_kv_events", "emit_kv_token_ids"]);
    let transfer = transfer(&mut engine)?;
    let host = super::host_offload::take(&mut engine)?;
    let measured = measured.as_ref();
    let mut parsed = match scheduler(&mut engine, measured)? {
        0 => EngineSpec::Mocker(Box::new(vllm(&mut engine, measured, dir, (ranks, 64))?)),
        1 => EngineSpec::Sglang(Box::new(sglang(&mut engine, measured, dir)?)),
        _ => EngineSpec::Mocker(Box::new(trtllm(&mut engine, measured, dir, ranks, role)?)),
    };
    if let Some(host) = host {
        host.apply(&mut parsed, (ranks, role == Role::Aggregated))?;
    }
    engine.done()?;
    if ranks > 1 {
        with_ranks(&mut parsed, ranks)?;
    }
    let least = if matches!(parsed, EngineSpec::Mocker(_)) {
        2
    } else {
        1
    };
    if parsed.block_size() < least {
        let problem = format!("must be at least {least}");
        return Err(wrong("extra_engine_args.engine.block_size", problem));
    }
    Ok(Worker {
        engine: parsed,
        ranks,
        gpus,
        transfer,
        role,
    })
}

/// Changes a worker's engine configuration to that of one of its data-parallel ranks.
fn with_ranks(engine: &mut EngineSpec, ranks: u32) -> Result<(), DynamoError> {
    let key = "extra_engine_args.engine.";
    let unmodelled = |name: &str| Err(wrong(&format!("{key}{name}"), "needs dp_size 1"));
    match engine {
        EngineSpec::Sglang(config) if config.prefill_decode_interval != 0 => {
            unmodelled("prefill_decode_interval")
        }
        EngineSpec::Sglang(config) => {
            // aisimulate-core 0.13.0 `scheduler/rank.rs`; SGLang does the same at startup.
            config.chunked_prefill_size /= ranks;
            config.schedule_conservativeness *= 0.3;
            Ok(())
        }
        EngineSpec::Vllm(_) | EngineSpec::Mocker(_) | EngineSpec::Pool(_) => Ok(()),
    }
}

/// Returns the number of the engine's scheduler: 0 for vLLM, 1 for SGLang, 2 for TensorRT-LLM.
///
/// Without an argument, the backend of the kernel tables decides; TensorRT-LLM's batches are
/// closest to vLLM's.
fn scheduler(engine: &mut Args, measured: Option<&TimingTables>) -> Result<usize, DynamoError> {
    const KINDS: [&str; 3] = ["vllm", "sglang", "trtllm"];
    let key = match engine.has("engine_type") {
        true => "engine_type",
        false => "backend",
    };
    let measured = measured.map(|measured| measured.backend);
    if !engine.has(key) {
        return Ok(usize::from(measured == Some(KINDS[1])));
    }
    let kind = engine.one_of(key, &KINDS)?;
    if let Some(other) = measured.filter(|name| *name != KINDS[kind]) {
        let own = KINDS[kind];
        tracing::warn!("aic_backend is {other}, {key} is {own}: batches are built as in {own}");
    }
    Ok(kind)
}

fn transfer(args: &mut Args) -> Result<TransferTime, DynamoError> {
    let older = args.number("kv_bytes_per_token")?;
    let bytes = args.number("kv_transfer_bytes_per_token")?.or(older);
    let bandwidth = args.number("kv_transfer_bandwidth")?.filter(|gb| *gb > 0.0);
    let modes = ["full_prompt", "destination_missing"];
    let whole = args.one_of("kv_transfer_timing_mode", &modes)? == 0;
    // Gigabytes per second are bytes per nanosecond.
    let ns_per_token = match (bytes, bandwidth) {
        (Some(bytes), Some(bandwidth)) => bytes / bandwidth,
        _ => 0.0,
    };
    Ok(TransferTime {
        ns_per_token,
        whole,
    })
}

fn speed(args: &mut Args) -> Result<Speed, DynamoError> {
    Ok(Speed {
        all: args.number("speedup_ratio")?.unwrap_or(1.0),
        decode: args.number("decode_speedup_ratio")?.unwrap_or(1.0),
    })
}

fn trtllm(
    args: &mut Args,
    measured: Option<&TimingTables>,
    dir: Folders<'_>,
    ranks: u32,
    role: Role,
) -> Result<MockerConfig, DynamoError> {
    if role != Role::Aggregated {
        let problem = "is not modelled for trtllm, only aggregated";
        return Err(args.wrong("worker_type", problem));
    }
    let more = args.take("trtllm").unwrap_or_default();
    let mut more = Args::new("extra_engine_args.engine.trtllm", &more)?;
    more.one_of("capacity_scheduler_policy", &["guaranteed_no_evict"])?;
    more.done()?;
    let config = vllm(args, measured, dir, (ranks, 32))?;
    if !config.accept.is_empty() {
        return Err(args.wrong("aic_nextn", "is not modelled for trtllm"));
    }
    Ok(MockerConfig {
        no_evict: true,
        ..config
    })
}

/// Builds the configuration of a vLLM engine from its arguments; `block_size` is the default number
/// of tokens per KV block.
fn vllm(
    args: &mut Args,
    measured: Option<&TimingTables>,
    dir: Folders<'_>,
    (ranks, block_size): (u32, u32),
) -> Result<MockerConfig, DynamoError> {
    let blocks = measured.map_or(16_384, |measured| measured.blocks);
    let num_gpu_blocks = args.count("num_gpu_blocks")?.unwrap_or(blocks);
    let block_size = args.count("block_size")?.unwrap_or(block_size);
    // The interval has an effect only if ranks wait for each other.
    let interval = args.count("prefill_schedule_interval")?.unwrap_or(1);
    if interval == 0 || (interval > 1 && ranks > 1) {
        let problem = "must be at least 1, and 1 where dp_size is more";
        return Err(args.wrong("prefill_schedule_interval", problem));
    }
    let victims = [PreemptionVictim::Last, PreemptionVictim::First];
    let (accept, seed) = drafts(args)?;
    Ok(MockerConfig {
        latency: latency(
            args,
            measured,
            u64::from(num_gpu_blocks) * u64::from(block_size),
            dir,
        )?,
        speed: speed(args)?,
        num_gpu_blocks,
        block_size,
        max_num_seqs: args.limit("max_num_seqs", 256)?,
        max_num_batched_tokens: args.limit("max_num_batched_tokens", 8192)?,
        max_model_len: args.count("max_model_len")?.unwrap_or(u32::MAX),
        enable_chunked_prefill: args.flag("enable_chunked_prefill")?.unwrap_or(true),
        enable_prefix_caching: args.flag("enable_prefix_caching")?.unwrap_or(true),
        victim: victims[args.one_of("preemption_mode", &["lifo", "fifo"])?],
        accept,
        seed,
        log_admissions: true,
        ..MockerConfig::default()
    })
}

/// Reads the acceptance rates of draft tokens (empty without speculative decoding), and the seed of
/// the acceptance draws.
fn drafts(args: &mut Args) -> Result<(Vec<f64>, u64), DynamoError> {
    let rates = args.text("aic_nextn_accept_rates")?;
    let seed = args.count("aic_mtp_seed")?.unwrap_or(42).into();
    let Some(drafts) = args.count("aic_nextn")? else {
        return match rates {
            Some(_) => Err(args.wrong("aic_nextn_accept_rates", "needs aic_nextn")),
            None => Ok((Vec::new(), seed)),
        };
    };
    let faster = args.get("decode_speedup_ratio").and_then(Value::as_f64);
    if faster.is_some_and(|ratio| ratio != 1.0) {
        return Err(args.wrong("aic_nextn", "needs decode_speedup_ratio 1"));
    }
    if !(1..=5).contains(&drafts) {
        return Err(args.wrong("aic_nextn", format!("{drafts}, must be between 1 and 5")));
    }
    let rates = rates.as_deref().unwrap_or("0.85,0.3,0,0,0").split(',');
    let mut accept = Vec::new();
    for rate in rates.map(str::trim) {
        let number = rate.parse().ok().filter(|n| (0.0..=1.0).contains(n));
        accept.push(number.ok_or_else(|| {
            let problem = format!("{rate:?} is not a number from 0 to 1");
            args.wrong("aic_nextn_accept_rates", problem)
        })?);
    }
    accept.resize(drafts as usize, 0.0);
    Ok((accept, seed))
}

fn sglang(
    args: &mut Args,
    measured: Option<&TimingTables>,
    dir: Folders<'_>,
) -> Result<SglangConfig, DynamoError> {
    let pages = measured.map_or(16_384, |measured| measured.blocks);
    let num_pages = args.count("num_gpu_blocks")?.unwrap_or(pages);
    let page_size = args.count("block_size")?.unwrap_or(1);
    let more = args.take("sglang").unwrap_or_default();
    let mut more = Args::new("extra_engine_args.engine.sglang", &more)?;
    let policies = [SchedulePolicy::Fifo, SchedulePolicy::Lpm];
    let defaults = SglangConfig::default();
    if !args.flag("enable_chunked_prefill")?.unwrap_or(true) {
        return Err(args.wrong("enable_chunked_prefill", "must be true for sglang"));
    }
    args.ignore(&["max_num_batched_tokens", "preemption_mode"]);
    let (accept, seed) = drafts(args)?;
    let config = SglangConfig {
        accept,
        seed,
        latency: latency(
            args,
            measured,
            u64::from(num_pages) * u64::from(page_size),
            dir,
        )?,
        speed: speed(args)?,
        num_pages,
        page_size,
        max_num_seqs: args.limit("max_num_seqs", 256)?,
        max_model_len: args.count("max_model_len")?.unwrap_or(u32::MAX),
        enable_prefix_caching: args.flag("enable_prefix_caching")?.unwrap_or(true),
        prefill_decode_interval: args.count("prefill_decode_interval")?.unwrap_or(0),
        schedule_policy: policies[more.one_of("schedule_policy", &["fifo", "lpm"])?],
        max_prefill_tokens: more
            .count("max_prefill_tokens")?
            .unwrap_or(defaults.max_prefill_tokens),
        chunked_prefill_size: more
            .count("chunked_prefill_size")?
            .unwrap_or(defaults.chunked_prefill_size),
        clip_max_new_tokens: more
            .count("clip_max_new_tokens")?
            .unwrap_or(defaults.clip_max_new_tokens),
        schedule_conservativeness: more.number("schedule_conservativeness")?.unwrap_or(1.0),
        log_admissions: true,
        ..defaults
    };
    more.done()?;
    Ok(config)
}

fn latency(
    args: &mut Args,
    measured: Option<&TimingTables>,
    capacity: u64,
    dir: Folders<'_>,
) -> Result<LatencyModel, DynamoError> {
    if let Some(measured) = measured {
        return Ok(measured.model.clone());
    }
    let value = args.take("timing_model").unwrap_or_default();
    let mut timing = Args::new("extra_engine_args.engine.timing_model", &value)?;
    let model = match timing.one_of("type", &["polynomial", "fixed", "external"])? {
        0 => LatencyModel::Polynomial(Polynomial::new(capacity)),
        1 => {
            let mut ms = |key| -> Result<Duration, DynamoError> {
                let ms = timing.number(key)?.unwrap_or(0.0);
                Duration::try_from_secs_f64(ms / 1e3)
                    .map_err(|_| timing.wrong(key, format!("{ms} ms is too long")))
            };
            LatencyModel::Constant {
                prefill: ms("prefill_ms")?,
                decode: ms("decode_ms")?,
            }
        }
        _ => {
            timing.one_of("provider", &["dynamo_profile"])?;
            let config = timing.take("config").unwrap_or_default();
            let path = config["path"].as_str();
            let path = path.ok_or_else(|| timing.wrong("config.path", "must be a string"))?;
            LatencyModel::Grid(Box::new(Grid::open(&dir.run.join(path))?))
        }
    };
    timing.done()?;
    Ok(model)
}
