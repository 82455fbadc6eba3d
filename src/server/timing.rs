//! Selects the latency model of the engines and computes the size of their KV cache.

use std::path::{Path, PathBuf};

use super::error::{StartError, engine_start_error};
use super::setup;
use vllm_sim_config::{
    Config, KernelTableSource, SchedulerKind, StepLatencySource, configured_model_shape,
};
use vllm_sim_engine::latency::{
    AiConfiguratorSetup, AiConfiguratorStepTimes, DraftLatencyModel, Gpu, KNOWN_GPUS,
    KvCacheMemory, LatencyModel, MfuWorkModel, ModelShape, PolynomialStepTime, QuantizationScheme,
    RooflineCoefficients, RooflineModel, RooflineModelSetup, StepTimeGrid, find_gpu,
    find_installed_kernel_tables, kv_bytes_per_value, sampling_defaults,
};

const FALLBACK_GPU: &str = "H100";

pub(super) fn build_latency_model(
    config: &Config,
) -> Result<(LatencyModel, Option<RooflineModelSetup>), StartError> {
    let engine = &config.engine;
    let built = match &engine.timing.latency_source {
        StepLatencySource::Delays => {
            let delays = engine.timing.delays.clone();
            (LatencyModel::Delays(Box::new(delays)), None)
        }
        StepLatencySource::Polynomial => {
            let capacity = u64::from(setup::kv_block_count(config)) * u64::from(engine.block_size);
            (LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(capacity)), None)
        }
        StepLatencySource::Profile(path) => {
            let grid = StepTimeGrid::open(path).map_err(engine_start_error)?;
            (LatencyModel::Grid(Box::new(grid)), None)
        }
        StepLatencySource::Roofline { coefficients } => {
            let setup = build_roofline_setup(config, coefficients.as_deref())?;
            let roofline = RooflineModel::new(&setup).map_err(engine_start_error)?;
            (LatencyModel::Roofline(Box::new(roofline)), Some(setup))
        }
        StepLatencySource::Aic(tables) => {
            let setup = build_roofline_setup(config, tables.coefficients.as_deref())?;
            let aic = build_kernel_tables_model(config, tables, &setup)?;
            (LatencyModel::Aic(Box::new(aic)), Some(setup))
        }
    };
    // Weights that do not fit are the first reason.
    match engine.kv_cache.as_ref().and_then(|size| size.refusal.clone()) {
        Some(refusal) => Err(StartError::DoesNotFit(refusal)),
        None => Ok(built),
    }
}

/// Returns the latency model of the draft model in speculative decoding; `None` without speculative
/// decoding or without a draft model.
pub(super) fn build_drafter_latency(
    config: &Config,
    setup: &RooflineModelSetup,
) -> Result<Option<Box<DraftLatencyModel>>, StartError> {
    let engine = &config.engine;
    let (Some(drafter), Some(drafts)) = (&engine.drafter, &engine.speculative) else {
        return Ok(None);
    };
    let target = RooflineModelSetup { tp: drafts.tensor.unwrap_or(setup.tp), ..setup.clone() };
    let drafting = drafter.draft_latency_model(&target).map_err(engine_start_error)?;
    Ok(Some(Box::new(drafting)))
}

/// Returns the folder of AIConfigurator's kernel tables: the named folder, else that of the active
/// Python environment.
fn tables_folder(named: Option<&Path>) -> Result<PathBuf, StartError> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"];
    let installed = || {
        let paths = environments.iter().filter_map(std::env::var_os);
        paths.map(PathBuf::from).find_map(|path| find_installed_kernel_tables(&path))
    };
    named.map(Path::to_owned).or_else(installed).ok_or_else(|| {
        engine_start_error(
            "--latency-model aic requires --aic-data, the folder of an installed \
             aiconfigurator-core or aisimulate: neither $VIRTUAL_ENV nor $CONDA_PREFIX holds one",
        )
    })
}

fn build_kernel_tables_model(
    config: &Config,
    tables: &KernelTableSource,
    setup: &RooflineModelSetup,
) -> Result<AiConfiguratorStepTimes, StartError> {
    let engine = &config.engine;
    let data = tables_folder(tables.folder.as_deref())?;
    warn_of_unused_coefficients(&setup.coefficients);
    if setup.pp > 1 || setup.pcp > 1 || engine.parallel.data > 1 {
        return Err(engine_start_error(
            "--aic-data: pipeline, prefill context and data parallelism are not read from the \
             tables, must be 1",
        ));
    }
    let roofline = RooflineModel::new(setup).map_err(engine_start_error)?;
    let refuse = |error| engine_start_error(format!("--aic-data: {error}"));
    let mut asked = AiConfiguratorSetup::new(setup, roofline.step_overhead()).map_err(refuse)?;
    asked.version.clone_from(&tables.version);
    if engine.scheduler == SchedulerKind::Sglang {
        "sglang".clone_into(&mut asked.backend);
    }
    if engine.parallel.expert {
        asked.moe_ep = setup.tp;
    }
    AiConfiguratorStepTimes::load_kernel_times(&data, &asked).map_err(refuse)
}

/// Warns about latency coefficients without effect with kernel tables: those of kernels, and the
/// factor of all step times.
fn warn_of_unused_coefficients(given: &RooflineCoefficients) {
    let usual = RooflineCoefficients::default();
    let of = |co: &RooflineCoefficients| {
        [
            ("step_scale", co.step_scale),
            ("mixed_group_share", co.mixed_group_share),
            ("layer_us", co.layer_us),
            ("qk_norm_us", co.qk_norm_us),
            ("gemm_memory_scale", co.gemm_memory_scale),
            ("gemm_compute_scale", co.gemm_compute_scale),
            ("attention_scale", co.attention_scale),
            ("all_reduce_scale", co.all_reduce_scale),
            ("moe_scale", co.moe_scale),
            ("expert_popularity", co.expert_popularity),
        ]
    };
    let moved = of(given).into_iter().zip(of(&usual));
    let names: Vec<_> =
        moved.filter(|(own, usual)| own != usual).map(|((name, _), _)| name).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        tracing::warn!("--latency-coefficients: no effect with kernel tables: {names}");
    }
}

fn build_roofline_setup(
    config: &Config,
    coefficients: Option<&Path>,
) -> Result<RooflineModelSetup, StartError> {
    let engine = &config.engine;
    let gpu = named_gpu(config)?;
    let shape = configured_model_shape(&config.model, engine).map_err(engine_start_error)?;
    let memory = gpu_memory_layout(config, &shape, gpu);
    let cache = engine.kv_cache.as_ref();
    let offloaded = cache.map_or(0.0, |cache| cache.offloaded_bytes);
    let weights = memory.weight_bytes - offloaded;
    // An explicit cache size sets the memory of the cache; the weights must fit in any case.
    let is_typed =
        engine.memory.num_blocks.is_some() || engine.memory.kv_cache_memory_bytes.is_some();
    let is_full = memory.subtract_kv_bytes_per_gpu(-offloaded).blocks == 0;
    let gpu_bytes = gpu.memory_gib * f64::from(1 << 30);
    if weights > gpu_bytes || (is_full && !is_typed) {
        let utilization = engine.memory.gpu_memory_utilization;
        let usable = utilization * gpu_bytes;
        let gb = weights / 1e9;
        let why = match weights > usable {
            true => format!("the weights alone take {gb:.1} GB per GPU"),
            false => format!(
                "the weights take {gb:.1} GB per GPU, activations and other parts {:.1} GB, and \
                 --gpu-memory-utilization {utilization} leaves {:.1} GB for all",
                memory.overhead_bytes / 1e9,
                usable / 1e9
            ),
        };
        return Err(StartError::DoesNotFit(format!(
            "{} does not fit on {} x {}: {why}",
            config.model.name, engine.parallel.tensor, gpu.name,
        )));
    }
    let read =
        coefficients.map_or(Ok(RooflineCoefficients::default()), read_latency_coefficients)?;
    let sampling = default_sampling(config);
    let slices_experts = shape.moe.is_some() && engine.scheduler == SchedulerKind::Vllm;
    Ok(RooflineModelSetup {
        tp: engine.parallel.tensor,
        pp: engine.parallel.pipeline,
        pcp: engine.parallel.prefill_context,
        async_scheduling: engine.scheduling.async_scheduling,
        kv_bytes: kv_dtype_bytes(config),
        // Ranks of SGLang hold all experts, unless expert parallelism spreads them.
        expert_ranks: match engine.parallel.expert || slices_experts {
            true => engine.parallel.data,
            false => 1,
        },
        expert_parallel: engine.parallel.expert,
        all2all: engine.parallel.all2all,
        graphs: engine.graphs.clone(),
        truncated_sampling: sampling.truncated,
        penalized_sampling: sampling.penalized,
        coefficients: RooflineCoefficients {
            // Each GPU reads its part of a context.
            attention_scale: read.attention_scale * f64::from(engine.parallel.context),
            ..read
        },
        ..RooflineModelSetup::new(shape, gpu.clone())
    })
}

/// Default sampling of requests that set no sampling parameters.
pub struct DefaultSamplingSummary {
    /// Whether top-p or top-k limits the vocabulary by default.
    pub truncated: bool,
    /// Whether a repetition penalty applies by default.
    pub penalized: bool,
    /// Description of the default sampling parameters and their source, for `explain`.
    pub because: String,
}

/// Returns the default sampling of the model's generation config, including overrides.
///
/// **Source:** vLLM `vllm/config/model.py`, `try_get_generation_config`, `get_diff_sampling_param`.
pub(super) fn default_sampling(config: &Config) -> DefaultSamplingSummary {
    let model = &config.model;
    let folder = match model.generation_config.as_str() {
        "vllm" => None,
        "auto" => Some(model.name.as_str()),
        folder => Some(folder),
    };
    let mut defaults = serde_json::Map::new();
    let mut source = "--generation-config vllm".to_owned();
    if let Some(folder) = folder {
        // A model name on the hub is no folder here.
        if let Some(file) = &model.generation_config_file {
            defaults = file.clone();
            let path = Path::new(folder).join("generation_config.json");
            source = path.display().to_string();
        } else if let Some(known) = sampling_defaults(folder) {
            defaults.insert("top_p".to_owned(), known.top_p.into());
            defaults.insert("top_k".to_owned(), known.top_k.into());
            defaults.insert("repetition_penalty".to_owned(), known.repetition_penalty.into());
            source = "the generation_config.json of this family".to_owned();
        } else {
            source = "no generation_config.json is known of it".to_owned();
        }
    }
    if !model.generation_config_overrides.is_empty() {
        source.push_str(", --override-generation-config");
    }
    defaults.extend(model.generation_config_overrides.clone());
    let number = |name: &str| defaults.get(name).and_then(serde_json::Value::as_f64);
    let greedy = number("temperature") == Some(0.0);
    let cuts = [
        number("top_p").filter(|p| *p < 1.0).map(|p| format!("top-p {p}")),
        number("top_k").filter(|k| *k > 0.0).map(|k| format!("top-k {k}")),
    ];
    let cuts: Vec<String> = cuts.into_iter().flatten().collect();
    let cut = match (&cuts[..], greedy) {
        ([], _) => "no top-p or top-k".to_owned(),
        (_, true) => "temperature 0".to_owned(),
        (cuts, false) => cuts.join(", "),
    };
    // vLLM reads no other penalty from the generation config.
    let penalty = number("repetition_penalty").filter(|penalty| *penalty != 1.0);
    let penalty_text = penalty.map(|penalty| format!(", repetition penalty {penalty}"));
    DefaultSamplingSummary {
        truncated: !cuts.is_empty() && !greedy,
        penalized: penalty.is_some(),
        because: format!("{cut}{}: {source}", penalty_text.unwrap_or_default()),
    }
}

fn named_gpu(config: &Config) -> Result<&'static Gpu, StartError> {
    let name = config.engine.gpu.as_deref().unwrap_or(FALLBACK_GPU);
    find_gpu(name).ok_or_else(|| {
        let known: Vec<_> = KNOWN_GPUS.iter().map(|gpu| gpu.name).collect();
        let known = known.join(", ");
        engine_start_error(format!("--gpu {name:?} is not known; known are {known}"))
    })
}

/// Returns the compute and memory traffic per token, for `--enable-mfu-metrics` and a known model
/// shape.
pub(super) fn mfu_metrics_work_model(config: &Config) -> Option<MfuWorkModel> {
    if !config.metrics.mfu {
        return None;
    }
    let shape = configured_model_shape(&config.model, &config.engine);
    let shape = match shape.map_err(engine_start_error) {
        Ok(shape) => shape,
        Err(error) => {
            tracing::warn!(%error, "--enable-mfu-metrics: the counters stay 0");
            return None;
        }
    };
    let parallel = &config.engine.parallel;
    let experts = if parallel.expert { parallel.data } else { 1 };
    let weights = match shape.quantization.scheme {
        QuantizationScheme::None => 2.0,
        QuantizationScheme::Fp8 | QuantizationScheme::Fp8Block | QuantizationScheme::Int8 => 1.0,
        QuantizationScheme::Int4 | QuantizationScheme::Mxfp4 | QuantizationScheme::Fp4 => 0.5,
    };
    Some(MfuWorkModel::new(
        &shape,
        (parallel.tensor, parallel.pipeline, experts),
        (weights, f64::from(kv_dtype_bytes(config))),
    ))
}

/// Returns the number of KV cache regions per GPU, and the bytes per token of each.
///
/// `None` if the model's shape is unknown.
pub(super) fn kv_regions_and_bytes_per_token(config: &Config) -> Option<(u32, f64)> {
    let engine = &config.engine;
    let shape = configured_model_shape(&config.model, engine).ok()?;
    let shape = shape.largest_pipeline_stage(engine.parallel.pipeline);
    let width = kv_bytes_per_value(&engine.memory.kv_cache_dtype, shape.head_dim)?;
    let bytes = shape.kv_bytes_per_token(engine.parallel.tensor, 1) as f64 * width;
    let regions = if shape.mla.is_some() { 1 } else { 2 };
    Some((shape.layers * regions, bytes))
}

/// Returns the size of the KV cache of a prompt token, over all layers and all GPUs of an engine, in
/// bytes.
///
/// `None` if the model's shape is unknown.
pub(super) fn kv_bytes_per_prompt_token(config: &Config) -> Option<f64> {
    let shape = configured_model_shape(&config.model, &config.engine).ok()?;
    let width = kv_bytes_per_value(&config.engine.memory.kv_cache_dtype, shape.head_dim)?;
    Some(shape.kv_bytes_per_token(1, 1) as f64 * width)
}

fn gpu_memory_layout(config: &Config, shape: &ModelShape, gpu: &Gpu) -> KvCacheMemory {
    let engine = &config.engine;
    let stage = shape.largest_pipeline_stage(engine.parallel.pipeline);
    let memory = KvCacheMemory::new(
        &stage,
        gpu,
        engine.parallel.weight_sharding_ranks(),
        engine.memory.gpu_memory_utilization,
        (engine.block_size, kv_dtype_bytes(config)),
        &engine.memory_profile_run(),
    );
    memory.subtract_kv_bytes_per_gpu(engine.memory.reserved.reserved_bytes_per_gpu())
}

/// Returns the size of a number in the KV cache, in whole bytes, as the latency model uses it.
fn kv_dtype_bytes(config: &Config) -> u32 {
    let width = kv_bytes_per_value(&config.engine.memory.kv_cache_dtype, 128);
    width.map_or(2, |bytes| bytes.round().max(1.0) as u32)
}

/// Returns the number of KV blocks that fit into the configured bytes, else into the GPU memory
/// that the weights leave.
///
/// `None` without a GPU and configured bytes, or if the model's shape is unknown.
pub(super) fn kv_blocks_that_fit_in_memory(config: &Config) -> Option<u32> {
    let engine = &config.engine;
    let roofline = engine.timing.latency_source.step_times_depend_on_gpu();
    if engine.memory.kv_cache_memory_bytes.is_none() && !roofline {
        return None;
    }
    let shape = configured_model_shape(&config.model, engine).ok()?;
    let memory = gpu_memory_layout(config, &shape, named_gpu(config).ok()?);
    let fit = match engine.memory.kv_cache_memory_bytes {
        // The cast saturates. vLLM reports the same number, of which the first block is never used.
        Some(bytes) => (bytes as f64 / memory.block_bytes) as u32,
        None => memory.blocks,
    };
    Some(fit.max(2))
}

/// Reads the latency coefficients that `vllm-sim calibrate` fitted: names and numbers, in YAML or
/// JSON.
///
/// A profile for `--config` contains the mapping itself in place of a path.
///
/// # Errors
/// [`StartError`] that names the file, or the invalid number.
pub fn read_latency_coefficients(path: &Path) -> Result<RooflineCoefficients, StartError> {
    let at = path.display();
    let text = match path.to_str().filter(|text| text.starts_with('{')) {
        Some(mapping) => mapping.to_owned(),
        None => std::fs::read_to_string(path)
            .map_err(|error| engine_start_error(format!("--latency-coefficients {at}: {error}")))?,
    };
    serde_saphyr::from_str(&text)
        .map_err(|error| engine_start_error(format!("--latency-coefficients {at}: {error}")))
}
