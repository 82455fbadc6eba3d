//! Refuses names of quantization methods and kernels that vLLM does not know.

use super::cli_mode::CliMode;
use super::did_you_mean::closest_known_name;
use super::error::ConfigError;
use super::flags::{engine, model};
use super::imitated_engine::imitated_engine_command_line;
use super::values::FlagValues;
use vllm_sim_engine::latency::ModelQuantization;
use vllm_sim_wire::VllmVersion;

/// Quantization methods of vLLM 0.31 and later.
///
/// **Source:** vLLM 0.33 `vllm/model_executor/layers/quantization/__init__.py`,
/// `QuantizationMethods`.
const QUANTIZATION_METHODS: [&str; 30] = [
    "awq",
    "auto_awq",
    "fp8",
    "fbgemm_fp8",
    "fp_quant",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mxfp8",
    "modelopt_mixed",
    "auto_gptq",
    "gptq",
    "gptq_marlin",
    "awq_marlin",
    "humming",
    "compressed-tensors",
    "experts_int8",
    "quark",
    "moe_wna16",
    "torchao",
    "inc",
    "mxfp4",
    "gpt_oss_mxfp4",
    "deepseek_v4_fp8",
    "online",
    "fp8_per_tensor",
    "fp8_per_block",
    "fp8_per_channel",
    "int8_per_channel_weight_only",
    "nvfp4_per_token",
    "mxfp8",
];
/// Name of a quantization method that vLLM 0.26 has and later releases lack.
const QUANTIZATION_METHOD_OF_VLLM_0_26: &str = "bitsandbytes";

/// Attention backends of vLLM, including those of older releases.
///
/// **Source:** vLLM 0.33 `vllm/v1/attention/backends/registry.py`, `AttentionBackendEnum`.
const ATTENTION_BACKENDS: &str = "FLASH_ATTN, FLASH_ATTN_DIFFKV, TRITON_ATTN, TRITON_ATTN_DIFFKV, \
    TRITON_FLASH_ATTN, ROCM_ATTN, ROCM_SEGMENTED_ATTN, ROCM_AITER_MLA, ROCM_AITER_TRITON_MLA, \
    ROCM_AITER_FA, ROCM_AITER_MLA_SPARSE, XPU_MLA_SPARSE, TORCH_SDPA, FLASHINFER, \
    TRITON_FLASHINFER, FLASHINFER_MLA, TOKENSPEED_MLA, FLASHINFER_MLA_SPARSE, \
    FLASHINFER_MLA_SPARSE_SM120, FLASHINFER_MLA_SPARSE_SM90, TRITON_MLA, CUTLASS_MLA, FLASHMLA, \
    FLASHMLA_SPARSE, FLASHMLA_SPARSE_DSV4, FLASHINFER_MLA_SPARSE_DSV4, ROCM_FLASHMLA_SPARSE_DSV4, \
    FLASHMLA_SPARSE_DSV41, FLASHINFER_MLA_SPARSE_DSV41, ROCM_FLASHMLA_SPARSE_DSV41, \
    FLASHMLA_MEGA_ATTN_DSV41, B12X, FLASH_ATTN_MLA, FLASH_ATTN_MLA_SPARSE, \
    FLASH_ATTN_MLA_SPARSE_FA4, MINIMAX_M3_SPARSE, CUTLASS_MSA, TRITON_MSA, STEP5_DSA, \
    NO_ATTENTION, FLEX_ATTENTION, HPC_ATTN, ROCM_AITER_UNIFIED_ATTN, CPU_ATTN, CPU_MLA, AMX_MLA, \
    TURBOQUANT, ROCM_OCTAVE, ULTRAQUANT, CUSTOM";

/// All-to-all backends that vLLM's command line accepts, including those of older releases.
///
/// **Source:** vLLM 0.33 `vllm/config/parallel.py`, `All2AllBackend`, without `passthrough`.
const ALL2ALL_BACKENDS: [&str; 13] = [
    "naive",
    "pplx",
    "deepep_high_throughput",
    "deepep_low_latency",
    "deepep_v2",
    "mori_high_throughput",
    "mori_low_latency",
    "moonep",
    "nixl_ep",
    "allgather_reducescatter",
    "flashinfer_all2allv",
    "flashinfer_nvlink_two_sided",
    "flashinfer_nvlink_one_sided",
];

/// Refuses a quantization method, an attention backend or an all-to-all backend that vLLM does not
/// know, and warns of a method whose weights are not simulated.
///
/// llm-d-inference-sim ignores these flags, and SGLang has names of its own: their command lines
/// accept every name.
pub(super) fn check_vllm_names(v: &FlagValues) -> Result<(), ConfigError> {
    let compat = v.get_choice(&model::COMPAT)?;
    if v.cli_mode != CliMode::Vllm || imitated_engine_command_line(compat).is_some() {
        return Ok(());
    }
    check_quantization(v)?;
    if let Some(name) = v.get(&engine::ATTENTION_BACKEND)? {
        let name = name.to_ascii_uppercase();
        if name != "AUTO" && !ATTENTION_BACKENDS.split(", ").any(|known| known == name) {
            let words = format!(
                "Unknown attention backend: '{name}'. Valid options are: {ATTENTION_BACKENDS}"
            );
            return Err(v.unsupported_value_error(words, &engine::ATTENTION_BACKEND));
        }
    }
    match v.get(&engine::ALL2ALL_BACKEND)? {
        Some(name) if !ALL2ALL_BACKENDS.contains(&name.as_str()) => {
            let hint = closest_known_name(&name, ALL2ALL_BACKENDS.into_iter())
                .map_or_else(String::new, |near| format!("; did you mean {near}?"));
            let expected = format!("one of {}{hint}", ALL2ALL_BACKENDS.join(", "));
            Err(v.unreadable_value_error(&engine::ALL2ALL_BACKEND, &name, expected))
        }
        _ => Ok(()),
    }
}

/// Checks `--quantization`.
///
/// **Source:** vLLM 0.33 `vllm/config/model.py`, `_verify_quantization`.
fn check_quantization(v: &FlagValues) -> Result<(), ConfigError> {
    let Some(method) = v.get(&model::QUANTIZATION)?.map(|method| method.to_ascii_lowercase())
    else {
        return Ok(());
    };
    let mut known = QUANTIZATION_METHODS.to_vec();
    if v.vllm_version()? == VllmVersion::V026 {
        known.push(QUANTIZATION_METHOD_OF_VLLM_0_26);
    }
    if !known.contains(&method.as_str()) {
        let words = format!(
            "Unknown quantization method: {method}. Must be one of ['{}'].",
            known.join("', '")
        );
        return Err(v.unsupported_value_error(words, &model::QUANTIZATION));
    }
    if ModelQuantization::from_quantization_flag(&method).is_none() {
        v.add_no_effect_warning(format!(
            "--quantization {method}: no effect because its weights are not simulated; without a \
             quantization in config.json they count as bf16"
        ));
    }
    Ok(())
}
