//! Warnings about settings with which vLLM does not start, on this GPU or with this model.
//!
//! vLLM's rules differ between releases and builds, so none of the settings is refused here.

use super::choices::SchedulerKind;
use super::cli_mode::CliMode;
use super::engine::EngineConfig;
use super::flags::{kv, model as model_flags};
use super::kv_cache;
use super::model::ModelConfig;
use super::values::FlagValues;
use vllm_sim_engine::latency::{Gpu, ModelQuantization, ModelShape, find_gpu, known_model_shape};

/// Names of the quantization methods for compute capability 7.5 (Turing) or newer.
///
/// **Source:** `get_min_capability` in `vllm/model_executor/layers/quantization`. Methods and
/// releases differ from 7.5 (`gptq_marlin.py`) to 8.9 (`modelopt.py`); 7.5 is what all need.
const TURING_QUANTIZATIONS: [&str; 9] = [
    "fp8",
    "fbgemm_fp8",
    "awq",
    "auto_awq",
    "awq_marlin",
    "gptq_marlin",
    "modelopt",
    "modelopt_fp4",
    "mxfp4",
];

/// Names of the quantization methods for checkpoints with quantized weights.
const CHECKPOINT_QUANTIZATIONS: [&str; 9] = [
    "awq",
    "auto_awq",
    "awq_marlin",
    "gptq",
    "auto_gptq",
    "gptq_marlin",
    "modelopt",
    "modelopt_fp4",
    "compressed-tensors",
];

/// Number of tokens of which the blocks of vLLM's attention backends are multiples.
const BACKEND_BLOCK_TOKENS: u32 = 16;

/// Warns about settings that vLLM refuses at its start.
pub(super) fn warn_of_settings_vllm_refuses(
    v: &FlagValues,
    model: &ModelConfig,
    engine: &EngineConfig,
) {
    if v.cli_mode != CliMode::Vllm || engine.scheduler != SchedulerKind::Vllm {
        return;
    }
    let gpu = engine.gpu.as_deref().and_then(find_gpu);
    if let Some(method) = &engine.quantization {
        if let Some(why) = gpu.and_then(|gpu| unsupported_quantization_reason(method, gpu)) {
            v.add_no_effect_warning(format!(
                "--{} {method}: vLLM would refuse to start, because {why}",
                model_flags::QUANTIZATION.name
            ));
        }
        if CHECKPOINT_QUANTIZATIONS.contains(&method.as_str()) && has_plain_weights(model) {
            v.add_no_effect_warning(format!(
                "--{} {method}: vLLM would refuse to start, because the weights of {:?} are not \
                 quantized; name a repository with such weights",
                model_flags::QUANTIZATION.name,
                model.name
            ));
        }
    }
    let shape = kv_cache::configured_model_shape(model, engine).ok();
    if engine.memory.kv_cache_dtype == "fp8_ds_mla"
        && shape.is_some_and(|shape| shape.mla.is_none())
    {
        v.add_no_effect_warning(format!(
            "--{} fp8_ds_mla: vLLM would refuse to start, because the model has no latent \
             attention (MLA)",
            kv::KV_CACHE_DTYPE.name
        ));
    }
    let size = engine.block_size;
    if gpu.is_some() && v.is_flag_set(&kv::BLOCK_SIZE) && !size.is_multiple_of(BACKEND_BLOCK_TOKENS)
    {
        v.add_no_effect_warning(format!(
            "--{} {size}: vLLM would refuse to start, because its attention backends take \
             multiples of {BACKEND_BLOCK_TOKENS}",
            kv::BLOCK_SIZE.name
        ));
    }
}

/// Returns the reason why vLLM does not run a quantization method on a GPU; `None` if no reason is
/// known.
fn unsupported_quantization_reason(method: &str, gpu: &Gpu) -> Option<String> {
    let name = gpu.name;
    if gpu.is_older_than_turing() && TURING_QUANTIZATIONS.contains(&method) {
        return Some(format!(
            "the method needs compute capability 7.5 or newer, and {name} has 7.0"
        ));
    }
    // Source: `supported_quantization` in `vllm/platforms/rocm.py`.
    let is_nvidias = method.starts_with("modelopt") || method.starts_with("nvfp4");
    (gpu.is_amd() && is_nvidias)
        .then(|| format!("vLLM for ROCm does not have the method, and {name} needs ROCm"))
}

/// Returns whether the model's checkpoint is known to have weights that are not quantized.
fn has_plain_weights(model: &ModelConfig) -> bool {
    let plain = |shape: ModelShape| shape.quantization == ModelQuantization::default();
    match &model.hf_config {
        Some(found) => {
            found["quantization_config"].is_null() && found["compression_config"].is_null()
        }
        None => known_model_shape(&model.name).is_some_and(plain),
    }
}
