//! Where step times come from, and how many blocks a GPU leaves room for.

use std::path::Path;

use super::error::{StartError, wrong};
use super::setup;
use vllm_sim_config::{Config, LatencySource};
use vllm_sim_engine::latency::{
    Aic, AicSetup, Coefficients, Drafting, GPUS, Gpu, Grid, LatencyModel, Memory, MixedStep,
    ModelShape, Polynomial, Quantization, Roofline, Scheme, Setup, gpu, kv_width, model,
};
use vllm_sim_observe::metrics::WorkModel;

/// The GPU when none is named.
const GPU: &str = "H100";

/// Step times, and the deployment that they follow from, if they do.
pub(super) fn latency(config: &Config) -> Result<(LatencyModel, Option<Setup>), StartError> {
    let engine = &config.engine;
    let planned = engine.kv_cache.as_ref();
    if let Some(refusal) = planned.and_then(|size| size.refusal.as_ref()) {
        return Err(StartError::DoesNotFit(refusal.clone()));
    }
    Ok(match &engine.latency_source {
        LatencySource::Delays => {
            let delays = engine.delays.clone();
            (LatencyModel::Delays(Box::new(delays)), None)
        }
        LatencySource::Polynomial => {
            let capacity = u64::from(setup::blocks(config)) * u64::from(engine.block_size);
            (LatencyModel::Polynomial(Polynomial::new(capacity)), None)
        }
        LatencySource::Profile(path) => {
            let grid = Grid::open(path).map_err(wrong)?;
            (LatencyModel::Grid(Box::new(grid)), None)
        }
        LatencySource::Roofline { coefficients } => {
            let setup = deployment(config, coefficients.as_deref())?;
            let roofline = Roofline::new(&setup).map_err(wrong)?;
            (LatencyModel::Roofline(Box::new(roofline)), Some(setup))
        }
        LatencySource::Aic(data) => {
            let setup = deployment(config, None)?;
            let aic = kernel_tables(config, data, &setup)?;
            (LatencyModel::Aic(Box::new(aic)), Some(setup))
        }
    })
}

/// How long it takes to make drafts in this deployment.
pub(super) fn drafting(
    config: &Config,
    setup: &Setup,
) -> Result<Option<Box<Drafting>>, StartError> {
    let engine = &config.engine;
    let (Some(drafter), Some(drafts)) = (&engine.drafter, &engine.speculative) else {
        return Ok(None);
    };
    let target = Setup {
        tp: drafts.tensor.unwrap_or(setup.tp),
        ..setup.clone()
    };
    let drafting = drafter.timed(&target).map_err(wrong)?;
    Ok(Some(Box::new(drafting)))
}

/// Names of GPUs in NVIDIA's kernel tables.
const SYSTEMS: [(&str, &str); 9] = [
    ("A100-SXM-80GB", "a100_sxm"),
    ("B200-SXM-180GB", "b200_sxm"),
    ("B300-SXM-288GB", "b300_sxm"),
    ("GB200-186GB", "gb200"),
    ("GB300-288GB", "gb300"),
    ("H100-SXM-80GB", "h100_sxm"),
    ("H200-SXM-141GB", "h200_sxm"),
    ("L40S-48GB", "l40s"),
    ("RTX-PRO-6000-96GB", "rtx_pro_6000_server"),
];

fn kernel_tables(config: &Config, data: &Path, setup: &Setup) -> Result<Aic, StartError> {
    let engine = &config.engine;
    let system = SYSTEMS.iter().find(|(gpu, _)| *gpu == setup.gpu.name);
    let (_, system) = system.ok_or_else(|| {
        let known = SYSTEMS.map(|(gpu, _)| gpu).join(", ");
        let gpu = setup.gpu.name;
        wrong(format!(
            "--aic-data: there are no tables of {gpu}, but of {known}"
        ))
    })?;
    if setup.pp > 1 || engine.parallel.data > 1 {
        return Err(wrong(
            "--aic-data: pipeline and data parallelism are not read from the tables, must be 1",
        ));
    }
    let kind = |config: &serde_json::Value| {
        let kind = config["model_type"].as_str().unwrap_or_default();
        kind.starts_with("qwen3")
    };
    let named = || config.model.name.to_ascii_lowercase().contains("qwen3");
    let roofline = Roofline::new(setup).map_err(wrong)?;
    let setup = AicSetup {
        shape: setup.shape.clone(),
        system: (*system).to_owned(),
        backend: "vllm".to_owned(),
        version: None,
        tp: setup.tp,
        moe_ep: if engine.parallel.expert { setup.tp } else { 1 },
        kv_bytes: setup.kv_bytes,
        qk_norm: config.model.hf_config.as_deref().map_or_else(named, kind),
        mixed: MixedStep::Combined,
        overhead: roofline.overhead(),
    };
    Aic::open(data, &setup).map_err(|error| wrong(format!("--aic-data: {error}")))
}

fn deployment(config: &Config, coefficients: Option<&Path>) -> Result<Setup, StartError> {
    let engine = &config.engine;
    let gpu = named_gpu(config)?;
    let shape = shape(config)?;
    let memory = memory(config, &shape, gpu);
    if memory.blocks == 0 && engine.num_blocks.is_none() && engine.kv_cache_memory_bytes.is_none() {
        return Err(StartError::DoesNotFit(format!(
            "{} does not fit on {} x {}: the weights alone take {:.1} GB per GPU",
            config.model.name,
            engine.parallel.tensor,
            gpu.name,
            memory.weight_bytes / 1e9
        )));
    }
    let read = coefficients.map_or(Ok(Coefficients::default()), read_coefficients)?;
    Ok(Setup {
        tp: engine.parallel.tensor,
        pp: engine.parallel.pipeline,
        async_scheduling: engine.async_scheduling,
        kv_bytes: kv_bytes(config),
        expert_ranks: match engine.parallel.expert {
            true => engine.parallel.data,
            false => 1,
        },
        graphs: engine.graphs.clone(),
        truncated_sampling: truncated_sampling(config)?,
        coefficients: Coefficients {
            // Each GPU reads its share of a context.
            attention_scale: read.attention_scale * f64::from(engine.parallel.context),
            ..read
        },
        ..Setup::new(shape, gpu.clone())
    })
}

/// Whether requests that say nothing of sampling have their vocabulary cut (top-p, top-k): what the
/// model's generation config says, with the overrides laid over it.
///
/// **Source:** vLLM `vllm/config/model.py`, `try_get_generation_config`, `get_diff_sampling_param`.
fn truncated_sampling(config: &Config) -> Result<bool, StartError> {
    let model = &config.model;
    let folder = match model.generation_config.as_str() {
        "vllm" => None,
        "auto" => Some(model.name.as_str()),
        folder => Some(folder),
    };
    let mut defaults = serde_json::Map::new();
    if let Some(folder) = folder {
        let file = Path::new(folder).join("generation_config.json");
        // A name on the hub has no folder here; nothing is known of it then.
        if let Ok(text) = std::fs::read_to_string(&file) {
            defaults = serde_json::from_str(&text)
                .map_err(|error| wrong(format!("{}: {error}", file.display())))?;
        }
    }
    defaults.extend(model.generation_config_overrides.clone());
    let number = |name: &str| defaults.get(name).and_then(serde_json::Value::as_f64);
    let greedy = number("temperature") == Some(0.0);
    let cut = number("top_p").is_some_and(|p| p < 1.0) || number("top_k").is_some_and(|k| k > 0.0);
    Ok(cut && !greedy)
}

fn named_gpu(config: &Config) -> Result<&'static Gpu, StartError> {
    let name = config.engine.gpu.as_deref().unwrap_or(GPU);
    gpu(name).ok_or_else(|| {
        let known: Vec<_> = GPUS.iter().map(|gpu| gpu.name).collect();
        let known = known.join(", ");
        wrong(format!("--gpu {name:?} is not known, there are {known}"))
    })
}

/// The model's shape, with weights stored as `--quantization` says where `config.json` is silent.
fn shape(config: &Config) -> Result<ModelShape, StartError> {
    let name = &config.model.name;
    let found = match &config.model.hf_config {
        Some(config) => ModelShape::from_config(config).map_err(wrong)?,
        None => model(name).ok_or_else(|| {
            wrong(format!(
                "the shape of {name:?} is not known: give a folder with its config.json"
            ))
        })?,
    };
    let typed = config.engine.quantization.as_deref();
    let typed = typed.and_then(Quantization::from_flag);
    let silent = found.quantization == Quantization::default();
    let quantization = typed.filter(|_| silent).unwrap_or(found.quantization);
    Ok(ModelShape {
        quantization,
        ..found
    })
}

/// What a token costs, when somebody counts it and the model's shape is known.
pub(super) fn work(config: &Config) -> Option<WorkModel> {
    if !config.metrics.mfu {
        return None;
    }
    let shape = match shape(config) {
        Ok(shape) => shape,
        Err(error) => {
            tracing::warn!(%error, "--enable-mfu-metrics: nothing is counted");
            return None;
        }
    };
    let parallel = &config.engine.parallel;
    let experts = if parallel.expert { parallel.data } else { 1 };
    let weights = match shape.quantization.scheme {
        Scheme::None => 2.0,
        Scheme::Fp8 | Scheme::Fp8Block | Scheme::Int8 => 1.0,
        Scheme::Int4 => 0.5,
    };
    Some(WorkModel::new(
        &shape,
        (parallel.tensor, parallel.pipeline, experts),
        (weights, f64::from(kv_bytes(config))),
    ))
}

/// Regions of the cache of one GPU that a block lies in, and its bytes per token; `None`: the model's
/// shape is not known.
pub(super) fn cached_layers(config: &Config) -> Option<(u32, f64)> {
    let engine = &config.engine;
    let shape = shape(config).ok()?.stage(engine.parallel.pipeline);
    let width = kv_width(&engine.kv_cache_dtype, shape.head_dim)?;
    let bytes = shape.kv_bytes_per_token(engine.parallel.tensor, 1) as f64 * width;
    let regions = if shape.mla.is_some() { 1 } else { 2 };
    Some((shape.layers * regions, bytes))
}

fn memory(config: &Config, shape: &ModelShape, gpu: &Gpu) -> Memory {
    let engine = &config.engine;
    let stage = shape.stage(engine.parallel.pipeline);
    let memory = Memory::new(
        &stage,
        gpu,
        engine.parallel.weight_ranks(),
        engine.gpu_memory_utilization,
        (engine.block_size, kv_bytes(config)),
        engine.max_num_batched_tokens,
        None,
    );
    memory.without(engine.reserved.total())
}

/// Whole bytes per number in the KV cache, as step times count them.
fn kv_bytes(config: &Config) -> u32 {
    let width = kv_width(&config.engine.kv_cache_dtype, 128);
    width.map_or(2, |bytes| bytes.round().max(1.0) as u32)
}

/// Blocks that fit: into the bytes set aside for them, else into what the weights leave on the
/// GPU. `None`: nobody named a GPU or bytes, or the model's shape is not known.
pub(super) fn blocks(config: &Config) -> Option<u32> {
    let engine = &config.engine;
    let roofline = engine.latency_source.knows_gpu();
    if engine.kv_cache_memory_bytes.is_none() && !roofline {
        return None;
    }
    let memory = memory(config, &shape(config).ok()?, named_gpu(config).ok()?);
    let fit = match engine.kv_cache_memory_bytes {
        // Saturating; as many as vLLM would report, of which the first is never used.
        Some(bytes) => (bytes as f64 / memory.block_bytes) as u32,
        None => memory.blocks,
    };
    Some(fit.max(2))
}

/// What `vllm-sim calibrate` fitted: a mapping of names to numbers, in YAML or JSON; in a profile
/// for `--config` it stands itself where the file could be named.
///
/// # Errors
/// [`StartError`] names the file, or the number that cannot be read.
pub fn read_coefficients(path: &Path) -> Result<Coefficients, StartError> {
    let at = path.display();
    let text = match path.to_str().filter(|text| text.starts_with('{')) {
        Some(mapping) => mapping.to_owned(),
        None => std::fs::read_to_string(path)
            .map_err(|error| wrong(format!("--latency-coefficients {at}: {error}")))?,
    };
    serde_saphyr::from_str(&text)
        .map_err(|error| wrong(format!("--latency-coefficients {at}: {error}")))
}
