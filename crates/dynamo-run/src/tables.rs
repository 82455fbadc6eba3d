//! Maps Dynamo's engine arguments for AIConfigurator's kernel tables (`aic_…`, `ais_…`) to a
//! latency model.
//!
//! The tables come with a vendor package. Without it, the roofline model replaces them, with the
//! same model, GPU and tensor-parallel size.
//!
//! Source: ai-dynamo 1.4 `MockEngineArgs` (flat `aic_…` names, which need `aic_backend`), 1.6.1
//! `timing_model` with provider `ais` or `aic`. Both have the defaults of `aisimulate`: GPUs from
//! the tensor-parallel size, blocks from the memory that the weights leave.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use vllm_sim_engine::latency::{
    AiConfiguratorSetup, AiConfiguratorStepTimes, Gpu, KNOWN_GPUS, KvCacheMemory, LatencyModel,
    MixedStepTiming, ModelShape, RooflineModel, RooflineModelSetup, StepOverhead, find_gpu,
    find_installed_kernel_tables, known_model_names, known_model_shape,
};

use super::error::DynamoRunError;
use super::json_args::{DynamoJsonArgs, invalid_field_error, read_json_file};

const DEFAULT_AIC_SYSTEM: &str = "h200_sxm";
const AIC_BACKENDS: [&str; 3] = ["vllm", "sglang", "trtllm"];
/// Pairs of names of the kernel-table arguments: after the prefix `aic_` or `ais_`, and in a
/// `timing_model` of Dynamo 1.6.
const TABLE_ARG_KEYS: [(&str, &str); 9] = [
    ("backend", "backend"),
    ("system", "system"),
    ("backend_version", "backend_version"),
    ("model_path", "model"),
    ("tp_size", "tp"),
    ("moe_tp_size", "moe_tp_size"),
    ("moe_ep_size", "moe_ep_size"),
    ("attention_dp_size", "attention_dp"),
    ("kv_cache_dtype", "kvcache_quant_mode"),
];

/// Folders of the recorded run and of AIConfigurator's kernel tables.
#[derive(Debug, Clone, Copy)]
pub struct DynamoRunFolders<'a> {
    /// Folder of the recorded run, the base of relative paths.
    pub run: &'a Path,
    /// Folder of AIConfigurator's kernel tables, if installed.
    pub kernel_tables: Option<&'a Path>,
}

/// Returns the folder of AIConfigurator's kernel tables in the active Python environment, if any.
pub fn python_env_kernel_table_folder() -> Option<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"];
    let mut paths = environments.iter().filter_map(std::env::var_os);
    paths.find_map(|path| find_installed_kernel_tables(Path::new(&path)))
}

/// Latency model from AIConfigurator's kernel tables, or from the roofline model that replaces
/// them.
#[derive(Debug)]
pub(super) struct KernelTimingModel {
    /// Name of the inference engine whose kernels were measured.
    pub backend: &'static str,
    pub setup: RooflineModelSetup,
    pub model: LatencyModel,
    /// Number of KV blocks that fit next to the weights on a GPU.
    pub blocks: u32,
}

/// Removes the kernel-table arguments from an engine's arguments, and builds the latency model from
/// them.
///
/// An explicit timing model takes precedence over flat names, which have no effect without a
/// backend.
///
/// # Errors
/// Returns [`DynamoRunError`] with the name of the argument.
pub(super) fn take_kernel_timing_model(
    engine: &mut DynamoJsonArgs,
    dir: DynamoRunFolders<'_>,
) -> Result<Option<KernelTimingModel>, DynamoRunError> {
    let mut named = Map::new();
    for (key, _) in TABLE_ARG_KEYS {
        let (old, new) = (format!("aic_{key}"), format!("ais_{key}"));
        let value = match (engine.take_value(&old), engine.take_value(&new)) {
            (Some(_), Some(_)) => {
                return Err(engine.invalid_field(
                    &new,
                    format!("cannot be used with {old}: both set the same value"),
                ));
            }
            (old, new) => old.or(new),
        };
        named.extend(value.map(|value| (key.to_owned(), value)));
    }
    let timing = engine.take_value("timing_model").unwrap_or_default();
    let provider = timing["provider"].as_str();
    if timing["type"].as_str() == Some("external") && matches!(provider, Some("ais" | "aic")) {
        return parse_canonical_table_args(&timing["config"])?.open_timing_model(dir).map(Some);
    }
    if !timing.is_null() {
        engine.put_value_back("timing_model", timing);
        return Ok(None);
    }
    let tables = KernelTableArgs { named, prefix: "extra_engine_args.engine.aic_" };
    if tables.named.contains_key("backend") {
        return tables.open_timing_model(dir).map(Some);
    }
    if !tables.named.is_empty() {
        let names: Vec<_> = tables.named.keys().map(|key| format!("aic_{key}")).collect();
        let names = names.join(", ");
        tracing::warn!("no effect without aic_backend: {names}");
    }
    Ok(None)
}

fn parse_canonical_table_args(config: &Value) -> Result<KernelTableArgs, DynamoRunError> {
    let mut args = DynamoJsonArgs::new("extra_engine_args.engine.timing_model.config", config)?;
    let mut named = Map::new();
    for (key, canonical) in TABLE_ARG_KEYS {
        let value = args.take_value(canonical).or_else(|| args.take_value(key));
        named.extend(value.map(|value| (key.to_owned(), value)));
    }
    args.ignore_fields(&["worker_type", "estimation_mode", "fallback_policy"]);
    args.reject_unknown_fields()?;
    Ok(KernelTableArgs { named, prefix: "extra_engine_args.engine.timing_model.config." })
}

/// Returns the size of a token in the KV cache of one GPU, in bytes, with 16-bit values.
pub(super) fn kv_bytes_per_token(
    model: &str,
    tp: u32,
    dir: DynamoRunFolders<'_>,
) -> Result<u64, DynamoRunError> {
    let args = KernelTableArgs { named: Map::new(), prefix: "engine." };
    Ok(args.read_model_shape(model, dir.run)?.kv_bytes_per_token(tp, 2))
}

/// Arguments for the selection of kernel tables.
struct KernelTableArgs {
    named: Map<String, Value>,
    prefix: &'static str,
}

impl KernelTableArgs {
    fn invalid_field(&self, key: &str, problem: impl Into<String>) -> DynamoRunError {
        let (own, canonical) = (self.prefix.ends_with('_'), TABLE_ARG_KEYS.iter());
        let spelt = canonical.clone().find(|(name, _)| !own && *name == key);
        let key = spelt.map_or(key, |(_, canonical)| canonical);
        invalid_field_error(&format!("{}{key}", self.prefix), problem)
    }

    fn text_arg(&self, key: &str) -> Result<Option<&str>, DynamoRunError> {
        let Some(value) = self.named.get(key) else {
            return Ok(None);
        };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| self.invalid_field(key, format!("{value} is not a string")))
    }

    fn count_arg(&self, key: &str) -> Result<u32, DynamoRunError> {
        let Some(value) = self.named.get(key) else {
            return Ok(1);
        };
        let count = value.as_u64().and_then(|n| u32::try_from(n).ok());
        let count = count.filter(|n| *n >= 1);
        count.ok_or_else(|| {
            self.invalid_field(key, format!("{value} is not a whole number of 1 or more"))
        })
    }

    fn open_timing_model(
        &self,
        dir: DynamoRunFolders<'_>,
    ) -> Result<KernelTimingModel, DynamoRunError> {
        let backend = self.backend_arg()?;
        let gpu = self.gpu_arg()?;
        if self.count_arg("attention_dp_size")? != 1 {
            return Err(self.invalid_field("attention_dp_size", "only 1 is modelled"));
        }
        self.count_arg("moe_tp_size")?;
        self.count_arg("moe_ep_size")?;
        self.text_arg("backend_version")?;
        let path = self.text_arg("model_path")?;
        let path = path.ok_or_else(|| self.invalid_field("model_path", "is missing"))?;
        let tp = self.count_arg("tp_size")?;
        let dtype = self.text_arg("kv_cache_dtype")?.unwrap_or("auto");
        let setup = RooflineModelSetup {
            tp,
            kv_bytes: if dtype.contains("8") { 1 } else { 2 },
            ..RooflineModelSetup::new(self.read_model_shape(path, dir.run)?, gpu.clone())
        };
        if let Some(folder) = dir.kernel_tables {
            return self.open_kernel_tables(folder, backend, setup);
        }
        // Either way the experts of a layer are spread over its GPUs, and all versions share one
        // roofline.
        let roofline = RooflineModel::new(&setup);
        let roofline =
            roofline.map_err(|error| self.invalid_field("tp_size", error.to_string()))?;
        tracing::warn!(
            "no kernel tables found (--kernel-tables, $VIRTUAL_ENV, $CONDA_PREFIX): the roofline \
             gives the step times of {backend} with {path} on {tp} x {}",
            gpu.name
        );
        Ok(KernelTimingModel {
            backend,
            setup,
            model: LatencyModel::Roofline(Box::new(roofline)),
            blocks: 0,
        })
    }

    /// Opens the kernel tables with Dynamo's cost rule: separate passes for prefills and decodes,
    /// no step overhead.
    fn open_kernel_tables(
        &self,
        folder: &Path,
        backend: &'static str,
        setup: RooflineModelSetup,
    ) -> Result<KernelTimingModel, DynamoRunError> {
        let aic = AiConfiguratorSetup {
            shape: setup.shape.clone(),
            system: self.text_arg("system")?.unwrap_or(DEFAULT_AIC_SYSTEM).to_owned(),
            backend: backend.to_owned(),
            version: self.text_arg("backend_version")?.map(str::to_owned),
            tp: setup.tp,
            moe_ep: self.count_arg("moe_ep_size")?,
            kv_bytes: setup.kv_bytes,
            qk_norm: setup.shape.qk_norm,
            mixed: MixedStepTiming::Sum,
            overhead: StepOverhead::default(),
        };
        let aic = AiConfiguratorStepTimes::load_kernel_times(folder, &aic);
        let aic = aic.map_err(|error| self.invalid_field("system", error.to_string()))?;
        tracing::info!(
            version = aic.version,
            "step times come from the kernel tables of {}",
            folder.display()
        );
        Ok(KernelTimingModel { backend, setup, model: LatencyModel::Aic(Box::new(aic)), blocks: 0 })
    }

    fn backend_arg(&self) -> Result<&'static str, DynamoRunError> {
        let named = self.text_arg("backend")?.unwrap_or(AIC_BACKENDS[0]);
        let known = AIC_BACKENDS.iter().find(|known| **known == named);
        known.copied().ok_or_else(|| {
            let known = AIC_BACKENDS.join(", ");
            let problem = format!("{named:?} is not known; available are {known}");
            self.invalid_field("backend", problem)
        })
    }

    fn gpu_arg(&self) -> Result<&'static Gpu, DynamoRunError> {
        let system = self.text_arg("system")?.unwrap_or(DEFAULT_AIC_SYSTEM);
        let found = find_gpu(system).or_else(|| find_gpu(system.split("_sxm").next()?));
        found.ok_or_else(|| {
            let known: Vec<_> = KNOWN_GPUS.iter().map(|gpu| gpu.name).collect();
            let known = known.join(", ");
            self.invalid_field("system", format!("{system:?} is not known; available are {known}"))
        })
    }

    fn read_model_shape(&self, path: &str, dir: &Path) -> Result<ModelShape, DynamoRunError> {
        let file = dir.join(path).join("config.json");
        if file.is_file() {
            return ModelShape::from_hf_config(&read_json_file(&file)?)
                .map_err(|error| self.invalid_field("model_path", format!("{path}: {error}")));
        }
        known_model_shape(path).ok_or_else(|| {
            let known: Vec<_> = known_model_names().collect();
            let known = known.join(", ");
            let problem = format!(
                "{path:?} is neither a folder with a config.json nor the name of a known model; \
                 known are {known}"
            );
            self.invalid_field("model_path", problem)
        })
    }
}

impl KernelTimingModel {
    /// Computes the number of KV blocks that fit next to the weights, unless an argument gives this
    /// number.
    ///
    /// # Errors
    /// Returns [`DynamoRunError`] if the weights leave no memory.
    pub(super) fn with_kv_cache_size(
        self,
        worker: &mut DynamoJsonArgs,
        engine: &mut DynamoJsonArgs,
    ) -> Result<Self, DynamoRunError> {
        let given = worker.take_optional_number("gpu_memory_utilization")?;
        let fraction = worker.take_optional_number("mem_fraction_static")?;
        let (share, block_size) = match self.backend {
            "sglang" => (fraction.or(given).unwrap_or(0.88), 1),
            "trtllm" => (given.unwrap_or(0.9), 32),
            _ => (given.unwrap_or(0.9), 64),
        };
        if engine.has_value("num_gpu_blocks") {
            return Ok(self);
        }
        let told = |args: &mut DynamoJsonArgs, key: &str, default| -> Result<u32, DynamoRunError> {
            if !args.has_value(key) {
                return Ok(default);
            }
            let count = args.take_count(key, default)?;
            args.put_value_back(key, count.into());
            Ok(count)
        };
        let block_size = told(engine, "block_size", block_size)?.max(1);
        let batched = told(engine, "max_num_batched_tokens", 8192)?;
        let seqs = told(engine, "max_num_seqs", 256)?;
        let setup = &self.setup;
        let cell = (block_size, setup.kv_bytes);
        let (shape, gpu) = (&setup.shape, &setup.gpu);
        let profile = setup.profile_run(batched, seqs);
        let memory = KvCacheMemory::new(shape, gpu, setup.weight_ranks(), share, cell, &profile);
        if memory.blocks == 0 {
            let (tp, weights) = (setup.tp, memory.weight_bytes / 1e9);
            let problem = format!(
                "the model does not fit on {tp} x {}: the weights alone take {weights:.1} GB of each",
                gpu.name
            );
            return Err(invalid_field_error("extra_engine_args.engine.aic_tp_size", problem));
        }
        Ok(Self { blocks: memory.blocks, ..self })
    }
}
