//! Computes the number of KV cache blocks and checks that a request of maximum length fits.

use serde_json::Value;

use super::choices::{KvOffloadBackend, SchedulerKind};
use super::cli_mode::CliMode;
use super::engine::EngineConfig;
use super::error::{ConfigError, bail};
use super::flags::{self, kv};
use super::model::ModelConfig;
use super::reserved_memory::ReservedGpuMemory;
use super::values::FlagValues;
use vllm_sim_engine::latency::{
    Gpu, KvCacheMemory, KvCachePlan, ModelQuantization, ModelShape, find_gpu, kv_bytes_per_value,
};
use vllm_sim_engine::sched::vllm::PreemptionVictim;

/// Name of the GPU to assume if no GPU is set and only the shape of the model matters.
const FALLBACK_GPU: &str = "H100";
const BYTES_PER_GIB: f64 = (1_u64 << 30) as f64;
/// KV connectors of vLLM that support a single group of layers only.
const SINGLE_GROUP_CONNECTORS: [&str; 5] = [
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "ExampleConnector",
    "FlexKVConnectorV1",
    "HF3FSKVConnector",
];

/// Size of the KV cache of one engine, as vLLM plans it at start.
#[derive(Debug, Clone, PartialEq)]
pub struct KvCacheCapacity {
    /// Division of the KV cache into blocks and groups of layers.
    pub plan: KvCachePlan,
    /// Memory use of weights and activations on one GPU.
    pub memory: KvCacheMemory,
    /// Size of the weights kept in CPU memory, in bytes per GPU.
    pub offloaded_bytes: f64,
    /// GPU memory of draft models and LoRA adapters.
    pub reserved: ReservedGpuMemory,
    /// Memory available for the KV cache, in bytes per GPU.
    pub available_bytes: f64,
    /// Number of KV blocks, including the null block.
    pub blocks: u32,
    /// Capacity of the KV cache in tokens, for requests of `max_model_len` tokens.
    pub tokens: u64,
    /// Number of requests of `max_model_len` tokens that fit into the KV cache.
    pub concurrency: f64,
    /// Number of KV blocks of a request of `max_model_len` tokens: in a full-attention group, and
    /// in a sparse group.
    pub request_blocks: (u32, u32),
    /// Description of the rule by which the number of KV blocks was computed.
    pub rule: &'static str,
    /// vLLM's error message at start if a request of `max_model_len` tokens does not fit into the
    /// KV cache; `None` if it fits.
    pub refusal: Option<String>,
}

fn describe_block_count_source(engine: &EngineConfig) -> &'static str {
    match (engine.memory.num_blocks, engine.memory.kv_cache_memory_bytes) {
        (Some(_), _) => "as typed",
        (None, Some(_)) => "--kv-cache-memory-bytes divided by the bytes of a block",
        (None, None) => {
            "GPU memory left by weights and activations, divided by the bytes of a \
             block"
        }
    }
}

/// Rejects engine settings that are not simulated for models with several groups of layers.
fn check_groups(engine: &EngineConfig) -> Result<(), ConfigError> {
    if engine.scheduling.victim == PreemptionVictim::First {
        bail!(
            "--preemption-mode: fifo is not simulated for models with sliding-window or state \
             layers; use lifo, or --disable-hybrid-kv-cache-manager for sliding windows"
        );
    }
    if engine.parallel.context > 1 {
        bail!(
            "--decode-context-parallel-size: the KV cache of sliding-window and state layers \
             cannot be shared between GPUs"
        );
    }
    Ok(())
}

impl KvCacheCapacity {
    /// Plans the KV cache; `None` if the memory or the model's shape is unknown. Resolves a
    /// `--max-model-len` of `auto` or `-1`.
    ///
    /// **Source:** vLLM 0.33 `vllm/v1/core/kv_cache_planning.py`, `get_kv_cache_configs`,
    /// `_check_enough_kv_cache_memory` and `_auto_fit_max_model_len`.
    pub(super) fn from_flag_values(
        v: &FlagValues,
        model: &mut ModelConfig,
        engine: &EngineConfig,
    ) -> Result<Option<Self>, ConfigError> {
        let flag = &kv::KV_CACHE_DTYPE;
        let is_served = v.cli_mode == CliMode::Vllm && engine.scheduler == SchedulerKind::Vllm;
        let is_flat = v.get(&kv::DISABLE_HYBRID_KV_CACHE_MANAGER)?;
        let shape = configured_model_shape(model, engine).ok();
        let head_dim = shape.as_ref().map_or(128, |shape| shape.head_dim);
        let Some(width) = kv_bytes_per_value(&engine.memory.kv_cache_dtype, head_dim) else {
            if v.cli_mode == CliMode::Vllm && v.is_flag_set(flag) {
                let expected = "auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2, fp8_inc, \
                    fp8_ds_mla, nvfp4, nvfp4_4over6, nvfp4_ds_mla, int8_per_token_head, \
                    fp8_per_token_head, int4_per_token_head, or a type of turboquant, octave or \
                    ultraquant";
                return Err(v.unreadable_value_error(
                    flag,
                    &engine.memory.kv_cache_dtype,
                    expected,
                ));
            }
            return Ok(None);
        };
        let gpu = find_gpu(engine.gpu.as_deref().unwrap_or(FALLBACK_GPU));
        let (true, Some(shape), Some(gpu)) = (is_served, shape, gpu) else {
            return Ok(None);
        };
        let hybrid =
            !is_flat && !has_chunked_attention(model) && !needs_single_layer_group(v, &shape)?;
        let stage = shape.largest_pipeline_stage(engine.parallel.pipeline);
        let tp = engine.parallel.tensor;
        let drafts = engine.speculative.as_ref().map_or(0, |s| s.num_tokens);
        let cached = add_draft_model_layers(engine, &stage, width);
        // The GPUs that share a context split the tokens of a block.
        let width = width / f64::from(engine.parallel.context);
        let plan = KvCachePlan::new(&cached, tp, engine.block_size, width, hybrid)
            .with_recurrent_states_per_request(engine.prefix_cache.enable_prefix_caching, drafts);
        if plan.sparse_groups > 0 {
            check_groups(engine)?;
        }
        // With several groups, a configured number of blocks is enough.
        let typed = engine.memory.num_blocks.filter(|_| plan.sparse_groups > 0);
        let typed = typed.map(|blocks| f64::from(blocks) * plan.block_bytes);
        let (memory, offloaded_bytes) = plan_gpu_memory(engine, &stage, gpu);
        let Some(available_bytes) = available_kv_cache_bytes(engine, memory).or(typed) else {
            return Ok(None);
        };
        if stage.state.is_some() {
            v.add_warning(
                "State layers (Mamba, linear attention) have their own groups in the KV cache; \
                 their weights count as attention weights, and their time is that of the matrix \
                 products only",
            );
        }
        let fit = (available_bytes / plan.block_bytes).floor() as u32;
        let mut size = Self {
            plan,
            memory,
            offloaded_bytes,
            reserved: engine.memory.reserved,
            available_bytes,
            blocks: engine.memory.num_blocks.unwrap_or(fit.max(2)),
            tokens: 0,
            concurrency: 0.0,
            request_blocks: (0, 0),
            rule: describe_block_count_source(engine),
            refusal: None,
        };
        let memory = &engine.memory;
        let typed = memory.num_blocks.is_some() || memory.kv_cache_memory_bytes.is_some();
        if fit > 0 || typed {
            size.check_max_model_len_fits(v, model, engine)?;
        }
        let in_flight = max_steps_in_flight(engine);
        size.request_blocks = plan.full_and_sparse_group_blocks(model.max_model_len, in_flight);
        size.concurrency = plan.max_concurrency(size.blocks, model.max_model_len, in_flight);
        size.tokens = (size.concurrency * f64::from(model.max_model_len)) as u64;
        Ok(Some(size))
    }

    /// Checks that the KV cache holds a request of `max_model_len` tokens; shrinks a context length
    /// of `auto` until it fits.
    fn check_max_model_len_fits(
        &mut self,
        v: &FlagValues,
        model: &mut ModelConfig,
        engine: &EngineConfig,
    ) -> Result<(), ConfigError> {
        let available = match engine.memory.num_blocks {
            Some(blocks) => f64::from(blocks) * self.plan.block_bytes,
            None => self.available_bytes,
        };
        // The null block holds no tokens.
        let usable = available - self.plan.block_bytes;
        let in_flight = max_steps_in_flight(engine);
        let context = model.max_model_len;
        let needed = self.plan.kv_bytes_per_request(context, in_flight);
        if needed <= usable {
            return Ok(());
        }
        let longest = self.plan.max_context_tokens(usable, context, in_flight);
        let flag = &flags::model::MAX_MODEL_LEN;
        let typed = v.raw_flag_texts(flag).last().map(String::as_str);
        let is_open = v.is_flag_set(flag) && matches!(typed, Some("auto" | "-1"));
        if is_open && longest > 0 {
            let gib = usable / BYTES_PER_GIB;
            let rule = format!(
                "the longest context that fits into {gib:.2} GiB of KV cache; the \
                 model allows {context}"
            );
            v.record_value_derived_by_rule(flag, longest, rule);
            model.max_model_len = longest;
            return Ok(());
        }
        let estimate = match longest {
            0 => String::new(),
            longest => format!(
                "Based on the available memory, the estimated maximum model length is {longest}. "
            ),
        };
        let text = format!(
            "To serve at least one request with the model's max seq len ({context}), ({} GiB KV \
             cache is needed, which is larger than the available KV cache memory ({} GiB). \
             {estimate}Try increasing `gpu_memory_utilization` (which also controls CPU memory on \
             the CPU backend) or decreasing `max_model_len` when initializing the engine. See \
             https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
            format_gib(needed),
            format_gib(usable)
        );
        match engine.memory.num_blocks {
            // A small cache is a valid way to show preemption.
            Some(_) => v.add_warning(format!("vLLM would refuse to start: {text}")),
            None => self.refusal = Some(text),
        }
        Ok(())
    }
}

/// Warns if the configured number of KV blocks is too small for a request of `max_model_len`
/// tokens, where [`KvCacheCapacity`] is unknown.
pub(super) fn warn_of_too_few_blocks(v: &FlagValues, model: &ModelConfig, engine: &EngineConfig) {
    let cache = &engine.prefix_cache;
    let flags = [&kv::NUM_GPU_BLOCKS_OVERRIDE.spec, &kv::KV_CACHE_SIZE.spec];
    let typed = flags.into_iter().find(|flag| v.is_flag_set(flag));
    let (true, None, Some(flag), Some(blocks)) =
        (engine.has_prefix_cache(), &engine.kv_cache, typed, engine.memory.num_blocks)
    else {
        return;
    };
    // vLLM's count includes a null block, llm-d's does not.
    let usable = blocks.saturating_sub(u32::from(!cache.enable_kvcache));
    let context = model.max_model_len;
    if usable >= context.div_ceil(engine.block_size.max(1)) {
        return;
    }
    let refusal = match v.cli_mode {
        CliMode::Vllm => "; vLLM would refuse to start",
        CliMode::Llmd => "",
    };
    v.add_warning(format!(
        "--{} {blocks} is too small for a request of --max-model-len ({context}) tokens: {usable} \
         blocks hold {} tokens{refusal}",
        flag.name,
        u64::from(usable) * u64::from(engine.block_size),
    ));
}

fn format_gib(bytes: f64) -> String {
    let rounded = (bytes / BYTES_PER_GIB * 100.0).round() / 100.0;
    format!("{rounded:?}")
}

fn max_steps_in_flight(engine: &EngineConfig) -> u32 {
    let steps = match engine.scheduling.async_scheduling {
        true => engine.parallel.pipeline.saturating_add(1),
        false => engine.parallel.pipeline,
    };
    steps.saturating_mul(engine.max_num_batched_tokens)
}

fn plan_gpu_memory(engine: &EngineConfig, stage: &ModelShape, gpu: &Gpu) -> (KvCacheMemory, f64) {
    let memory = KvCacheMemory::new(
        stage,
        gpu,
        engine.parallel.weight_sharding_ranks(),
        engine.memory.gpu_memory_utilization,
        (engine.block_size, 2),
        &engine.memory_profile_run(),
    );
    let offloaded = (engine.memory.cpu_offload_gib * BYTES_PER_GIB).min(memory.weight_bytes);
    let rest = KvCacheMemory { weight_bytes: memory.weight_bytes - offloaded, ..memory };
    let memory =
        rest.subtract_kv_bytes_per_gpu(engine.memory.reserved.reserved_bytes_per_gpu() - offloaded);
    (memory, offloaded)
}

/// Returns the size available for the KV cache, in bytes; `None` if neither a size nor a GPU is
/// set.
fn available_kv_cache_bytes(engine: &EngineConfig, memory: KvCacheMemory) -> Option<f64> {
    if let Some(bytes) = engine.memory.kv_cache_memory_bytes {
        return Some(bytes as f64);
    }
    let roofline = engine.timing.latency_source.step_times_depend_on_gpu();
    roofline.then_some(memory.room_bytes.max(0.0))
}

/// Returns the shape of a pipeline stage with additional layers that need as much KV cache as the
/// draft model.
fn add_draft_model_layers(engine: &EngineConfig, stage: &ModelShape, width: f64) -> ModelShape {
    let tp = engine.parallel.tensor;
    let layer = stage.kv_bytes_per_token(tp, 1) as f64 * width / f64::from(stage.layers.max(1));
    let drafts = engine.drafter.as_ref();
    let drafts = drafts.map_or(0.0, |drafter| drafter.draft_kv_bytes_per_token(tp, width));
    ModelShape { layers: stage.layers + (drafts / layer.max(1.0)).ceil() as u32, ..stage.clone() }
}

/// Returns the model's layer sizes and weights; `--quantization` applies if `config.json` has none.
///
/// # Errors
/// Returns the errors of [`ModelConfig::shape`].
pub fn configured_model_shape(
    model: &ModelConfig,
    engine: &EngineConfig,
) -> Result<ModelShape, String> {
    let found = model.shape()?;
    let typed = engine.quantization.as_deref();
    let typed = typed.and_then(ModelQuantization::from_quantization_flag);
    let silent = found.quantization == ModelQuantization::default();
    let quantization = typed.filter(|_| silent).unwrap_or(found.quantization);
    Ok(ModelShape { quantization, ..found })
}

/// Returns whether the KV connector supports only one group of layers, and the model has several.
///
/// **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/factory.py`, `supports_hma`.
fn needs_single_layer_group(v: &FlagValues, shape: &ModelShape) -> Result<bool, ConfigError> {
    let offloads = v.get(&kv::KV_OFFLOADING_SIZE)?.is_some_and(|gib| gib > 0.0);
    let backend = v.get_choice(&kv::KV_OFFLOADING_BACKEND)?.unwrap_or_default();
    let found = match (offloads, backend) {
        (true, KvOffloadBackend::LmCache) => Some("LMCacheMPConnector".to_owned()),
        (true, _) => None,
        (false, _) => v
            .get(&kv::KV_TRANSFER_CONFIG)?
            .and_then(|config| find_single_group_connector(&Value::Object(config))),
    };
    let Some(name) = found.filter(|_| shape.window.is_some_and(|window| window.layers > 0)) else {
        return Ok(false);
    };
    v.add_warning(format!(
        "{name} supports a single group of layers: sliding-window layers keep all tokens, as in \
         vLLM"
    ));
    Ok(true)
}

fn find_single_group_connector(config: &Value) -> Option<String> {
    let name = config.get("kv_connector")?.as_str()?;
    if name == "MultiConnector" {
        let children = config.get("kv_connector_extra_config")?.get("connectors")?;
        return children.as_array()?.iter().find_map(find_single_group_connector);
    }
    SINGLE_GROUP_CONNECTORS.contains(&name).then(|| name.to_owned())
}

/// Returns whether layers of the model attend to chunks (Llama-4); vLLM caches them like full
/// attention.
fn has_chunked_attention(model: &ModelConfig) -> bool {
    let config = model.hf_config.as_ref();
    let told = config.is_some_and(|config| {
        let text = config.get("text_config").unwrap_or(config);
        text["attention_chunk_size"].is_u64()
    });
    told || model.name.to_ascii_lowercase().contains("llama-4")
}
