//! Where step times come from, and how many blocks a GPU leaves room for.

use std::path::Path;

use super::error::{StartError, wrong};
use super::setup;
use vllm_sim_config::{Config, LatencySource};
use vllm_sim_engine::latency::{
    Coefficients, GPUS, Gpu, Grid, LatencyModel, Memory, ModelShape, Polynomial, Quantization,
    Roofline, Scheme, Setup, gpu, model,
};
use vllm_sim_observe::metrics::WorkModel;

/// The GPU when none is named.
const GPU: &str = "H100";

/// Step times, and the deployment that they follow from, if they do.
pub(super) fn latency(config: &Config) -> Result<(LatencyModel, Option<Setup>), StartError> {
    let engine = &config.engine;
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
    })
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
    Ok(Setup {
        tp: engine.parallel.tensor,
        pp: engine.parallel.pipeline,
        async_scheduling: engine.async_scheduling,
        kv_bytes: kv_bytes(config),
        expert_ranks: match engine.parallel.expert {
            true => engine.parallel.data,
            false => 1,
        },
        coefficients: coefficients.map_or(Ok(Coefficients::default()), read_coefficients)?,
        ..Setup::new(shape, gpu.clone())
    })
}

fn named_gpu(config: &Config) -> Result<&'static Gpu, StartError> {
    let name = config.engine.gpu.as_deref().unwrap_or(GPU);
    let found = gpu(name).or_else(|| gpu(name.split("_sxm").next()?));
    found.ok_or_else(|| {
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

fn memory(config: &Config, shape: &ModelShape, gpu: &Gpu) -> Memory {
    let engine = &config.engine;
    let stage = shape.stage(engine.parallel.pipeline);
    Memory::new(
        &stage,
        gpu,
        engine.parallel.tensor,
        engine.gpu_memory_utilization,
        (engine.block_size, kv_bytes(config)),
        engine.max_num_batched_tokens,
        None,
    )
}

/// Bytes per number in the KV cache.
fn kv_bytes(config: &Config) -> u32 {
    match config.engine.kv_cache_dtype.starts_with("fp8") {
        true => 1,
        false => 2,
    }
}

/// Blocks that fit: into the bytes set aside for them, else into what the weights leave on the
/// GPU. `None`: nobody named a GPU or bytes, or the model's shape is not known.
pub(super) fn blocks(config: &Config) -> Option<u32> {
    let engine = &config.engine;
    let roofline = matches!(engine.latency_source, LatencySource::Roofline { .. });
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
fn read_coefficients(path: &Path) -> Result<Coefficients, StartError> {
    let at = path.display();
    let text = match path.to_str().filter(|text| text.starts_with('{')) {
        Some(mapping) => mapping.to_owned(),
        None => std::fs::read_to_string(path)
            .map_err(|error| wrong(format!("--latency-coefficients {at}: {error}")))?,
    };
    serde_saphyr::from_str(&text)
        .map_err(|error| wrong(format!("--latency-coefficients {at}: {error}")))
}
