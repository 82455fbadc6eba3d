//! Batch sizes for which vLLM captures a CUDA graph.

use serde_json::{Map, Value};

use super::choices::PerformanceMode;
use super::error::{ConfigError, invalid};
use super::flags::engine;
use super::values::FlagValues;
use vllm_sim_engine::latency::{CudaGraphLimits, CudaGraphs, find_gpu};

/// Keys of `--compilation-config` with an effect in the simulator.
const SUPPORTED_COMPILATION_KEYS: [&str; 3] =
    ["cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"];

/// Reads the batch sizes with a CUDA graph from the flags and `--compilation-config`. Without these
/// settings, computes vLLM's defaults from the limits of a step and the number of draft tokens.
///
/// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `_set_cudagraph_sizes`;
/// `vllm/engine/arg_utils.py`, where a flag and its key exclude each other.
pub(super) fn cuda_graph_batch_sizes(
    v: &FlagValues,
    (seqs, tokens): (u32, u32),
    drafts: u32,
) -> Result<CudaGraphs, ConfigError> {
    let config = v.get(&engine::COMPILATION_CONFIG)?.unwrap_or_default();
    let idle = config.keys().filter(|key| !SUPPORTED_COMPILATION_KEYS.contains(&key.as_str()));
    let idle: Vec<&str> = idle.map(String::as_str).collect();
    if !idle.is_empty() {
        let keys = idle.join(", ");
        v.add_warning(format!("--compilation-config: keys without effect: {keys}"));
    }
    let typed = read_capture_sizes(v, &config)?;
    let most = read_max_capture_size(v, &config)?;
    let mode = config.get("cudagraph_mode");
    let none = mode.is_some_and(|mode| {
        mode.as_str().is_some_and(|mode| mode.eq_ignore_ascii_case("none"))
            || mode.as_u64() == Some(0)
    });
    let level = v.get(&engine::OPTIMIZATION_LEVEL)?;
    let is_eager = v.get(&engine::ENFORCE_EAGER)?.unwrap_or_default()
        || none
        || mode.is_none() && level == Some(0)
        || most == Some(0);
    if is_eager {
        return Ok(CudaGraphs::NO_CUDA_GRAPHS);
    }
    if let Some(sizes) = typed {
        let graphs = CudaGraphs::from_configured_sizes(sizes, tokens);
        let valid = graphs.cudagraph_capture_sizes().last().copied().unwrap_or(0);
        return match most.filter(|most| *most != valid) {
            None => Ok(graphs),
            Some(most) => Err(invalid!(
                "customized max_cudagraph_capture_size(={most}) should be consistent with the max \
                 value of cudagraph_capture_sizes(={valid})"
            )),
        };
    }
    let name = v.get(&engine::GPU)?;
    let known = name.as_deref().and_then(find_gpu);
    let dense = v.get_choice(&engine::PERFORMANCE_MODE)?.unwrap_or_default();
    Ok(CudaGraphs::vllm_default_sizes(CudaGraphLimits {
        seqs,
        tokens,
        drafts,
        most,
        blackwell: known.is_some_and(|gpu| gpu.is_data_center_blackwell()),
        dense: dense == PerformanceMode::Interactivity,
    }))
}

fn read_capture_sizes(
    v: &FlagValues,
    config: &Map<String, Value>,
) -> Result<Option<Vec<u32>>, ConfigError> {
    let flag = &engine::CUDAGRAPH_CAPTURE_SIZES;
    let key = "cudagraph_capture_sizes";
    let of_key = config.get(key).filter(|value| !value.is_null());
    if v.is_flag_set(flag) && of_key.is_some() {
        return Err(mutually_exclusive_error(flag.name, key));
    }
    let texts = match of_key {
        Some(Value::Array(sizes)) => sizes.iter().map(Value::to_string).collect(),
        Some(other) => vec![other.to_string()],
        None if v.is_flag_set(flag) => v.read_comma_separated_list(flag)?,
        None => return Ok(None),
    };
    let size = |text: &String| {
        let size = text.parse::<u32>().ok().filter(|size| *size > 0);
        size.ok_or_else(|| v.unreadable_value_error(flag, text, "a whole number, at least 1"))
    };
    texts.iter().map(size).collect::<Result<_, _>>().map(Some)
}

fn read_max_capture_size(
    v: &FlagValues,
    config: &Map<String, Value>,
) -> Result<Option<u32>, ConfigError> {
    let flag = &engine::MAX_CUDAGRAPH_CAPTURE_SIZE;
    let key = "max_cudagraph_capture_size";
    let Some(value) = config.get(key).filter(|value| !value.is_null()) else {
        return v.get(flag);
    };
    if v.is_flag_set(flag) {
        return Err(mutually_exclusive_error(flag.name, key));
    }
    let most = value.as_u64().and_then(|most| u32::try_from(most).ok());
    most.map(Some).ok_or_else(|| {
        let value = value.to_string();
        v.unreadable_json_value_error(&engine::COMPILATION_CONFIG, key, &value, "a whole number")
    })
}

fn mutually_exclusive_error(flag: &str, key: &str) -> ConfigError {
    invalid!("--{flag} and --compilation-config['{key}'] are mutually exclusive")
}
