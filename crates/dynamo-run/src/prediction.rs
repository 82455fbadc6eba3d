//! Reads the YAML of AISimulate's `predict`, and translates it to the arguments of a Dynamo run.
//!
//! AISimulate compiles the same YAML to the same engine arguments. A field that is not translated
//! is rejected by name, unless it has AISimulate's default.
//!
//! **Source:** aisimulate 0.13 `config/engine.py`, `config/traffic.py` (fields and defaults),
//! `compiler.py` (engine arguments).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::error::DynamoRunError;
use super::json_args::{DynamoJsonArgs, invalid_field_error};
use super::tables::{DynamoRunFolders, kv_bytes_per_token};

/// Reads a prediction's YAML file as the JSON arguments of a run (`args.json`).
///
/// # Errors
/// Returns [`DynamoRunError`] with the path of the field in the YAML file.
pub(super) fn read_aisimulate_prediction_file(path: &Path) -> Result<Value, DynamoRunError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| DynamoRunError::Io { path: path.to_owned(), error })?;
    let yaml: Value = serde_saphyr::from_str(&text)
        .map_err(|error| invalid_field_error(&path.display().to_string(), error.to_string()))?;
    let mut config = DynamoJsonArgs::new("", &yaml)?;
    if !config.has_value("engine") {
        return Err(invalid_field_error("engine", "is missing: no YAML of aisimulate predict"));
    }
    let mut kwargs = Map::new();
    let block = take_engine(&mut config.take_object("engine")?, &mut kwargs)?;
    if !config.has_value("traffic") {
        config.put_value_back("traffic", json!({"stop": {"requests": 100}}));
    }
    let traffic = &mut config.take_object("traffic")?;
    let (api, positional) = take_traffic(traffic, &mut kwargs, block)?;
    let mut evaluation = config.take_object("evaluation")?;
    let mut sla = evaluation.take_object("sla")?;
    for key in ["ttft_ms", "itl_ms", "e2e_ms"] {
        insert_some(&mut kwargs, &format!("sla_{key}"), sla.take_value(key));
    }
    sla.reject_unknown_fields()?;
    evaluation.reject_unknown_fields()?;
    // Limits of the host that runs the prediction.
    config.ignore_fields(&["execution"]);
    config.reject_unknown_fields()?;
    kwargs.insert("capture_per_request".to_owned(), true.into());
    Ok(json!({"api": api, "positional": positional, "kwargs": kwargs}))
}

fn insert_some(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    map.extend(value.map(|value| (key.to_owned(), value)));
}

/// Removes fields of a prediction file that are not simulated, and returns an error if such a field
/// does not have its default value.
fn take_defaults(
    args: &mut DynamoJsonArgs,
    defaults: &[(&str, Value)],
) -> Result<(), DynamoRunError> {
    for (key, default) in defaults {
        let Some(value) = args.take_value(key).filter(|value| value != default) else {
            continue;
        };
        let is_same = value.as_f64().is_some_and(|n| Some(n) == default.as_f64());
        if !is_same {
            return Err(args.invalid_field(key, format!("{value} is not modelled, only {default}")));
        }
    }
    Ok(())
}

/// Settings of a prediction for all of its workers.
struct SharedEngineArgs {
    backend: &'static str,
    model: String,
    hardware: String,
    /// Arguments of the engine that are the same for every worker.
    engine: Map<String, Value>,
    chunked: Option<Value>,
}

/// Adds the prediction's workers to the arguments of the run, and returns the workers' KV block
/// size in tokens.
fn take_engine(
    engine: &mut DynamoJsonArgs,
    kwargs: &mut Map<String, Value>,
) -> Result<u32, DynamoRunError> {
    const BACKENDS: [&str; 3] = ["vllm", "sglang", "trtllm"];
    let split = engine.take_choice_index("mode", &["aggregated", "disaggregated"])? == 1;
    let backend = BACKENDS[engine.take_choice_index("backend", &BACKENDS)?];
    let required = |engine: &mut DynamoJsonArgs, key: &str| {
        engine.take_optional_text(key)?.ok_or_else(|| engine.invalid_field(key, "is missing"))
    };
    let model = required(engine, "model")?;
    let hardware = required(engine, "hardware")?;
    let mut shared = Map::new();
    shared.insert("engine_type".to_owned(), backend.into());
    match engine.take_value("context_length") {
        Some(Value::String(max)) if max == "max" => {}
        length => insert_some(&mut shared, "max_model_len", length),
    }
    insert_some(&mut shared, "aic_backend_version", engine.take_value("backend_version"));
    if let Some(drafts) = engine.take_optional_count("nextn")?.filter(|drafts| *drafts > 0) {
        let accepted = engine.take_number("nextn_accepted", 0.0)?;
        shared.insert("aic_nextn".to_owned(), drafts.into());
        shared.insert("aic_nextn_accept_rates".to_owned(), accept_rates(drafts, accepted).into());
    }
    take_defaults(
        engine,
        &[
            ("enable_eplb", json!(false)),
            ("decoder_replay", json!(false)),
            ("database_mode", json!("SILICON")),
            ("estimation_mode", json!("auto")),
            ("fallback_policy", json!("deny")),
            ("estimator_config", json!({})),
            ("moe_backend", json!("default")),
        ],
    )?;
    insert_some(&mut shared, "aic_kv_cache_dtype", engine.take_value("kvcache_quant_mode"));
    let chunked = engine.take_value("enable_chunked_prefill");
    let shared = SharedEngineArgs { backend, model, hardware, engine: shared, chunked };
    let transfer = engine.take_value("kv_transfer");
    let mut workers = engine.take_object("workers")?;
    let mut block = 0;
    let roles: &[(&str, &str, &str)] = match split {
        false => &[("aggregated", "extra_engine_args", "num_workers")],
        true => &[
            ("prefill", "prefill_engine_args", "num_prefill_workers"),
            ("decode", "decode_engine_args", "num_decode_workers"),
        ],
    };
    for (role, args, count) in roles {
        if workers.get(role).is_none() {
            return Err(workers.invalid_field(role, "is missing"));
        }
        let mut worker = WorkerArgs::take(&shared, role, &mut workers.take_object(role)?)?;
        if let Some(transfer) = &transfer {
            worker.add_transfer(&shared, transfer)?;
        }
        block = worker.block;
        kwargs.insert((*args).to_owned(), worker.to_json());
        kwargs.insert((*count).to_owned(), worker.replicas.into());
    }
    workers.reject_unknown_fields()?;
    engine.reject_unknown_fields()?;
    Ok(block)
}

/// Returns acceptance rates with which `expected` of `drafts` draft tokens are accepted on average.
///
/// **Source:** aisimulate 0.13 `runner.py`, `_accept_rates_for_expected`.
fn accept_rates(drafts: u32, expected: f64) -> String {
    let rates = (0..drafts).map(|draft| (expected - f64::from(draft)).clamp(0.0, 1.0));
    rates.map(|rate| rate.to_string()).collect::<Vec<_>>().join(",")
}

/// Source of the step times of a worker (`timing.type`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepTimeSource {
    /// Step times are from NVIDIA's kernel tables.
    Tables,
    Fixed,
    Polynomial,
}

struct WorkerArgs {
    engine: Map<String, Value>,
    worker: Map<String, Value>,
    replicas: u32,
    tensor: u32,
    block: u32,
}

impl WorkerArgs {
    fn take(
        shared: &SharedEngineArgs,
        role: &str,
        args: &mut DynamoJsonArgs,
    ) -> Result<Self, DynamoRunError> {
        let mut made = Self {
            engine: shared.engine.clone(),
            worker: Map::new(),
            replicas: 1,
            tensor: 1,
            block: match shared.backend {
                "vllm" => 64,
                "sglang" => 1,
                _ => 32,
            },
        };
        made.insert("worker_type", role);
        if role != "decode" {
            insert_some(&mut made.engine, "enable_chunked_prefill", shared.chunked.clone());
        }
        let hardware =
            args.take_optional_text("hardware")?.unwrap_or_else(|| shared.hardware.clone());
        let length = args.take_value("context_length");
        insert_some(&mut made.engine, "max_model_len", length);
        let mut timing = args.take_object("timing")?;
        let kinds = [StepTimeSource::Tables, StepTimeSource::Fixed, StepTimeSource::Polynomial];
        let source =
            kinds[timing.take_choice_index("type", &["default", "fixed", "polynomial"])?];
        made.take_parallelism(&mut args.take_object("parallelism")?, source)?;
        made.take_scheduler(&mut args.take_object("scheduler")?, shared.backend, role)?;
        made.take_kv_cache(&mut args.take_object("kv_cache")?, shared, source)?;
        match source {
            StepTimeSource::Tables => {
                made.insert("aic_backend", shared.backend);
                made.insert("aic_system", hardware);
                made.insert("aic_model_path", shared.model.as_str());
                made.insert("aic_tp_size", made.tensor);
                take_defaults(&mut timing, &[("estimation_mode", json!("auto"))])?;
            }
            StepTimeSource::Fixed => {
                let mut ms = |key: &str| {
                    let ms = timing.take_optional_number(key)?;
                    ms.ok_or_else(|| timing.invalid_field(key, "is missing"))
                };
                let (prefill, decode) = (ms("prefill_ms")?, ms("decode_ms")?);
                let model = json!({"type": "fixed", "prefill_ms": prefill, "decode_ms": decode});
                made.insert("timing_model", model);
            }
            StepTimeSource::Polynomial => {
                made.insert("timing_model", json!({"type": "polynomial"}));
            }
        }
        if source != StepTimeSource::Tables {
            made.engine.retain(|key, _| !key.starts_with("aic_") || key.starts_with("aic_nextn"));
        }
        timing.reject_unknown_fields()?;
        take_defaults(args, &[("startup_seconds", json!(0.0)), ("host_loop", json!(false))])?;
        args.reject_unknown_fields()?;
        Ok(made)
    }

    fn insert(&mut self, key: &str, value: impl Into<Value>) {
        self.engine.insert(key.to_owned(), value.into());
    }

    fn to_json(&self) -> Value {
        let mut worker = self.worker.clone();
        worker.insert("engine".to_owned(), Value::Object(self.engine.clone()));
        Value::Object(worker)
    }

    fn take_parallelism(
        &mut self,
        args: &mut DynamoJsonArgs,
        source: StepTimeSource,
    ) -> Result<(), DynamoRunError> {
        let mut count = |key: &str| args.take_optional_count(key).map(|n| n.unwrap_or(1));
        (self.replicas, self.tensor) = (count("replicas")?, count("tensor")?);
        let (ranks, moe) = (count("attention_data")?, (count("moe_tensor")?, count("moe_expert")?));
        take_defaults(
            args,
            &[("pipeline", json!(1)), ("prefill_context", json!(1)), ("decode_context", json!(1))],
        )?;
        let measured = source == StepTimeSource::Tables;
        if measured && ranks > 1 {
            let problem = "more than 1 needs timing.type fixed or polynomial";
            return Err(args.invalid_field("attention_data", problem));
        }
        if measured && moe != (1, 1) {
            self.insert("aic_moe_tp_size", moe.0);
            self.insert("aic_moe_ep_size", moe.1);
        }
        self.worker.insert("tensor_parallel_size".to_owned(), self.tensor.into());
        self.worker.insert("dp_size".to_owned(), ranks.into());
        args.reject_unknown_fields()
    }

    fn take_scheduler(
        &mut self,
        args: &mut DynamoJsonArgs,
        backend: &str,
        role: &str,
    ) -> Result<(), DynamoRunError> {
        let tokens = args.take_count("max_batched_tokens", 8192)?;
        let sequences = if role == "prefill" { 1 } else { 256 };
        let sequences = args.take_count("max_sequences", sequences)?;
        self.insert("max_num_batched_tokens", tokens);
        self.insert("max_num_seqs", sequences);
        let (own, other) = match backend {
            "sglang" => ("prefill_decode_interval", ("prefill_schedule_interval", json!(1))),
            _ => ("prefill_schedule_interval", ("prefill_decode_interval", json!(0))),
        };
        insert_some(&mut self.engine, own, args.take_value(own));
        take_defaults(args, &[other])?;
        args.reject_unknown_fields()
    }

    fn take_kv_cache(
        &mut self,
        args: &mut DynamoJsonArgs,
        shared: &SharedEngineArgs,
        source: StepTimeSource,
    ) -> Result<(), DynamoRunError> {
        self.block = args.take_count("block_size", self.block)?;
        self.insert("block_size", self.block);
        let caching = args.take_optional_bool("prefix_caching")?.unwrap_or(true);
        self.insert("enable_prefix_caching", caching);
        let token = args.take_value("bytes_per_token").filter(|value| *value != "auto");
        let host = args.take_value("host_offload");
        let mut capacity = args.take_object("capacity")?;
        if capacity.take_choice_index("type", &["default", "fixed"])? == 1 {
            let blocks = match capacity.take_optional_count("blocks")? {
                Some(blocks) => blocks,
                None => {
                    let bytes = capacity.take_number("bytes", 0.0)?;
                    let token = token.as_ref().and_then(Value::as_f64);
                    let token =
                        token.ok_or_else(|| args.invalid_field("bytes_per_token", "is missing"))?;
                    (bytes / (f64::from(self.block) * token)) as u32
                }
            };
            self.insert("num_gpu_blocks", blocks);
        } else if source == StepTimeSource::Tables {
            let (key, fraction) = match shared.backend {
                "vllm" => ("gpu_memory_utilization", 0.9),
                "sglang" => ("mem_fraction_static", 0.88),
                _ => ("free_gpu_memory_fraction", 0.9),
            };
            let fraction = capacity.take_number("memory_fraction", fraction)?;
            self.worker.insert(key.to_owned(), fraction.into());
        } else {
            let problem = "must be fixed, because timing.type is not default";
            return Err(capacity.invalid_field("type", problem));
        }
        take_defaults(&mut capacity, &[("cuda_graph_reserved_bytes", json!(0))])?;
        capacity.reject_unknown_fields()?;
        if let Some(host) = host {
            let token = match token {
                Some(token) => token,
                None => self.estimated_token_bytes(shared)?,
            };
            self.insert("kv_cache_bytes_per_token", token);
            self.insert("native_host_offload", host);
        }
        args.reject_unknown_fields()
    }

    fn estimated_token_bytes(&self, shared: &SharedEngineArgs) -> Result<Value, DynamoRunError> {
        let dir = DynamoRunFolders { run: Path::new(""), kernel_tables: None };
        Ok(kv_bytes_per_token(&shared.model, self.tensor, dir)?.into())
    }

    fn add_transfer(
        &mut self,
        shared: &SharedEngineArgs,
        transfer: &Value,
    ) -> Result<(), DynamoRunError> {
        let mut args = DynamoJsonArgs::new("engine.kv_transfer", transfer)?;
        let bandwidth = args.take_value("bandwidth_gb_per_second");
        let bytes = args.take_value("bytes_per_token").filter(|value| *value != "auto");
        if bandwidth.is_some() {
            let bytes = match bytes {
                Some(bytes) => bytes,
                None => self.estimated_token_bytes(shared)?,
            };
            self.insert("kv_transfer_bytes_per_token", bytes);
        }
        insert_some(&mut self.engine, "kv_transfer_bandwidth", bandwidth);
        let mode = args.take_value("timing_mode").unwrap_or_else(|| "destination_missing".into());
        self.insert("kv_transfer_timing_mode", mode);
        args.reject_unknown_fields()
    }
}

/// Adds the prediction's traffic to the keyword arguments of the run; returns the name and the
/// positional arguments of Dynamo's replay function.
fn take_traffic(
    args: &mut DynamoJsonArgs,
    kwargs: &mut Map<String, Value>,
    block: u32,
) -> Result<(&'static str, Value), DynamoRunError> {
    let mut source = args.take_object("source")?;
    let (mut load, mut stop) = (args.take_object("load")?, args.take_object("stop")?);
    args.reject_unknown_fields()?;
    let kinds = ["synthetic", "synthetic-session", "trace"];
    let kind = source.take_choice_index("type", &kinds)?;
    let unit = take_load(&mut load, kwargs, kind)?;
    load.reject_unknown_fields()?;
    if kind == 2 {
        let paths = take_trace(&mut source, kwargs)?;
        source.reject_unknown_fields()?;
        let seconds = stop.take_optional_number("max_virtual_time_seconds")?;
        insert_some(kwargs, "max_sim_time_ms", seconds.map(|seconds| (seconds * 1e3).into()));
        stop.reject_unknown_fields()?;
        return Ok(("run_trace_replay", json!([paths])));
    }
    let counted = if kind == 0 { "requests" } else { "sessions" };
    let per_unit = stop.take_optional_number(&format!("{counted}_per_load_unit"))?;
    let count =
        stop.take_optional_count(counted)?.or(per_unit.map(|n| (n * unit).round().max(1.0) as u32));
    let count = count.ok_or_else(|| stop.invalid_field(counted, "is missing"))?;
    stop.reject_unknown_fields()?;
    let names = match kind {
        0 => ["input_tokens", "output_tokens"],
        _ => ["new_input_tokens_per_turn", "output_tokens_per_turn"],
    };
    let input = source.take_count(names[0], 1024)?;
    let output = source.take_count(names[1], 128)?;
    let shared = source.take_count("cached_prefix_tokens", 0)?;
    if shared % block != 0 || shared > input {
        let problem =
            format!("{shared}, must be a multiple of the block size {block}, at most {input}");
        return Err(source.invalid_field("cached_prefix_tokens", problem));
    }
    if shared > 0 {
        let blocks = input.div_ceil(block);
        let ratio = f64::from(shared / block) / f64::from(blocks);
        kwargs.insert("shared_prefix_ratio".to_owned(), ratio.into());
        kwargs.insert("num_prefix_groups".to_owned(), 1.into());
    }
    let mut session = source.take_object("session")?;
    if kind == 1 {
        let turns = session.take_count("turns", 4)?;
        kwargs.insert("turns_per_session".to_owned(), turns.into());
        for (key, arg) in [
            ("shared_prefix_ratio", "shared_prefix_ratio"),
            ("prefix_groups", "num_prefix_groups"),
            ("inter_turn_delay_ms", "inter_turn_delay_ms"),
        ] {
            insert_some(kwargs, arg, session.take_value(key));
        }
    }
    session.reject_unknown_fields()?;
    source.reject_unknown_fields()?;
    let mut positional = vec![input, output, count];
    positional.extend((kind == 1).then_some(input));
    Ok(("run_synthetic_trace_replay", positional.into()))
}

/// Adds the arrival process to the arguments of the run. Returns the request rate or concurrency by
/// which a `…_per_load_unit` limit is multiplied.
fn take_load(
    load: &mut DynamoJsonArgs,
    kwargs: &mut Map<String, Value>,
    source: usize,
) -> Result<f64, DynamoRunError> {
    let kinds = ["concurrency", "poisson", "constant_rate", "trace_timestamps"];
    let kind = load.take_choice_index("type", &kinds)?;
    if (source == 2) != (kind == 3) && kind != 0 {
        let problem = format!("{} does not fit traffic.source.type", kinds[kind]);
        return Err(load.invalid_field("type", problem));
    }
    let mut insert = |key: &str, value: Value| drop(kwargs.insert(key.to_owned(), value));
    let rate_key = if source == 0 { "requests_per_second" } else { "sessions_per_second" };
    match kind {
        0 => {
            let sessions = load.take_count("concurrency", 10)?;
            insert("replay_concurrency", sessions.into());
            Ok(sessions.into())
        }
        3 => {
            let speedup = load.take_number("speedup", 1.0)?;
            insert("arrival_speedup_ratio", speedup.into());
            insert_some(kwargs, "agentic_lanes", load.take_value("agentic_lanes"));
            take_defaults(load, &[("agentic_warmup", json!(false))])?;
            Ok(1.0)
        }
        _ => {
            let rate = load.take_optional_number(rate_key)?.filter(|rate| *rate > 0.0);
            let rate = rate.ok_or_else(|| load.invalid_field(rate_key, "must be above 0"))?;
            if kind == 1 {
                insert("request_rate", rate.into());
                insert("arrival_seed", load.take_count("seed", 42)?.into());
            } else {
                insert("arrival_interval_ms", (1e3 / rate).into());
            }
            Ok(rate)
        }
    }
}

/// Removes the trace's format, block size and paths from `source` and returns the trace's files. A
/// path of a folder means all JSON files in the folder.
fn take_trace(
    source: &mut DynamoJsonArgs,
    kwargs: &mut Map<String, Value>,
) -> Result<Vec<String>, DynamoRunError> {
    let format = source.take_optional_text("format")?.unwrap_or_else(|| "mooncake".to_owned());
    if format == "agentic_mooncake" {
        kwargs.insert("execution_model".to_owned(), "aisimulate".into());
    }
    kwargs.insert("trace_format".to_owned(), format.into());
    insert_some(kwargs, "trace_block_size", source.take_value("block_size"));
    // The reader decides this for each sub-agent.
    source.ignore_fields(&["nested_timestamp_basis"]);
    let paths = source.take_value("paths").unwrap_or_default();
    let paths = paths.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
    let mut files = Vec::new();
    for path in paths {
        let Ok(folder) = std::fs::read_dir(path) else {
            files.push(path.to_owned());
            continue;
        };
        let found = folder.filter_map(|entry| Some(entry.ok()?.path()));
        let is_json =
            |path: &PathBuf| path.extension().is_some_and(|ext| ext == "json" || ext == "jsonl");
        let mut found: Vec<PathBuf> = found.filter(is_json).collect();
        found.sort();
        files.extend(found.iter().map(|path| path.display().to_string()));
    }
    if files.is_empty() {
        return Err(source.invalid_field("paths", "names no file"));
    }
    Ok(files)
}
