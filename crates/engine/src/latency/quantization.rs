use serde_json::Value;

/// Storage format and arithmetic of quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QuantizationScheme {
    /// Weights in bf16 or fp16, not quantized.
    #[default]
    None,
    /// Weights of 8-bit floats with a scale per tensor or channel; activations are quantized at run
    /// time.
    Fp8,
    /// Weights of 8-bit floats with a scale per block of weights (DeepSeek).
    Fp8Block,
    /// Weights of 8-bit integers, with quantized activations.
    Int8,
    /// 4-bit weights with bf16 arithmetic (AWQ, GPTQ, w4a16).
    Int4,
    /// Weights of 4-bit floats with a scale per 32 values and bf16 arithmetic (gpt-oss).
    Mxfp4,
    /// Weights and activations of 4-bit floats with a scale per 16 values (NVFP4). GPUs without fp4
    /// units multiply in bf16.
    Fp4,
}

impl QuantizationScheme {
    /// Returns the name of the weights' data type, for the user.
    pub fn weight_dtype_name(self) -> &'static str {
        match self {
            Self::None => "bf16",
            Self::Fp8 => "fp8",
            Self::Fp8Block => "fp8 with block scales",
            Self::Int8 => "int8",
            Self::Int4 | Self::Mxfp4 => "4-bit",
            Self::Fp4 => "fp4",
        }
    }
}

/// Storage format of a model's weights, and the weights that stay in bf16. Embeddings, router and
/// output head are never quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelQuantization {
    /// Storage format of the quantized weights.
    pub scheme: QuantizationScheme,
    /// Whether the weights of attention projections stay in bf16.
    pub keep_attention: bool,
    /// Whether the weights of the dense MLP stay in bf16.
    pub keep_mlp: bool,
    /// Whether the weights of the shared expert stay in bf16.
    pub keep_shared: bool,
}

impl ModelQuantization {
    /// Creates a quantization of all weights that can be quantized.
    pub const fn for_all_weights(scheme: QuantizationScheme) -> Self {
        Self { scheme, keep_attention: false, keep_mlp: false, keep_shared: false }
    }

    /// Creates a quantization of the experts' weights only.
    pub const fn for_experts_only(scheme: QuantizationScheme) -> Self {
        Self { scheme, keep_attention: true, keep_mlp: true, keep_shared: false }
    }

    /// Reads the weight quantization from the `quantization_config` of a `config.json`; an unknown
    /// method counts as none.
    pub fn from_quantization_config(quantization_config: &Value) -> Self {
        let method = quantization_config["quant_method"].as_str().unwrap_or_default();
        let scheme = match method {
            "modelopt" => modelopt_scheme(quantization_config),
            "fp8" | "fbgemm_fp8" if !quantization_config["weight_block_size"].is_null() => {
                QuantizationScheme::Fp8Block
            }
            "fp8" | "fbgemm_fp8" => QuantizationScheme::Fp8,
            "awq" | "gptq" | "gptq_marlin" | "awq_marlin" => {
                match quantization_config["bits"].as_u64() {
                    Some(8) => QuantizationScheme::Int8,
                    _ => QuantizationScheme::Int4,
                }
            }
            "mxfp4" => QuantizationScheme::Mxfp4,
            "modelopt_fp4" | "nvfp4" => QuantizationScheme::Fp4,
            "bitsandbytes" if quantization_config["load_in_8bit"].as_bool() == Some(true) => {
                QuantizationScheme::Int8
            }
            "bitsandbytes" => QuantizationScheme::Int4,
            "compressed-tensors" => compressed_tensors_scheme(quantization_config),
            _ => QuantizationScheme::None,
        };
        let kept: Vec<&str> = ["ignore", "modules_to_not_convert", "ignored_layers"]
            .iter()
            .filter_map(|key| quantization_config[*key].as_array())
            .flatten()
            .filter_map(Value::as_str)
            // Norms are never quantized, so `post_attention_layernorm` does not concern attention.
            .filter(|name| !name.contains("norm"))
            .collect();
        let keeps = |words: &[&str]| kept.iter().any(|k| words.iter().any(|w| k.contains(w)));
        Self {
            scheme,
            keep_attention: keeps(&["self_attn", "q_proj", "attention"]),
            keep_mlp: keeps(&["feed_forward.down", "feed_forward.gate", "mlp.down", "mlp.up"]),
            keep_shared: keeps(&["shared_expert"]),
        }
    }

    /// Derives the weight quantization from a repository name (`...-FP8-dynamic`, `...-AWQ`,
    /// `...w4a16`, `...-FP4`).
    pub(crate) fn guess_from_repository_name(repo: &str) -> Option<Self> {
        let repo = repo.to_ascii_lowercase();
        let (owner, name) = repo.rsplit_once('/').unwrap_or(("", &repo));
        let has = |words: &[&str]| words.iter().any(|w| name.contains(w));
        let scheme = if has(&["mxfp4"]) {
            QuantizationScheme::Mxfp4
        } else if has(&["awq", "gptq", "int4", "w4a16", "4bit"]) {
            QuantizationScheme::Int4
        } else if has(&["fp4"]) {
            QuantizationScheme::Fp4
        } else if has(&["w8a8-int8", "int8", "w8a16", "quantized.w8a8"]) {
            QuantizationScheme::Int8
        } else if has(&["fp8"]) {
            // Qwen's own FP8 checkpoints have 128 x 128 blocks; others have a scale per channel or
            // tensor.
            let blocks = has(&["qwen3"]) && name.ends_with("fp8") && matches!(owner, "" | "qwen");
            if blocks { QuantizationScheme::Fp8Block } else { QuantizationScheme::Fp8 }
        } else {
            return None;
        };
        Some(Self::for_all_weights(scheme))
    }

    /// Parses the `--quantization` value of `vllm serve`; returns `None` for an unknown value.
    pub fn from_quantization_flag(quantization: &str) -> Option<Self> {
        let scheme = match quantization {
            "none" => QuantizationScheme::None,
            "fp8" | "fbgemm_fp8" | "modelopt" | "ptpc_fp8" | "fp8_per_tensor"
            | "fp8_per_channel" => QuantizationScheme::Fp8,
            "fp8_block" | "deepgemm" | "fp8_per_block" => QuantizationScheme::Fp8Block,
            "int8" | "experts_int8" => QuantizationScheme::Int8,
            "awq" | "gptq" | "awq_marlin" | "gptq_marlin" | "auto_awq" | "auto_gptq"
            | "bitsandbytes" | "int4" => QuantizationScheme::Int4,
            "mxfp4" | "gpt_oss_mxfp4" => QuantizationScheme::Mxfp4,
            "modelopt_fp4" | "nvfp4" | "nvfp4_per_token" | "fp4" => QuantizationScheme::Fp4,
            _ => return None,
        };
        Some(Self::for_all_weights(scheme))
    }
}

/// Returns the data type of the KV cache that a checkpoint has, by the `quantization_config` of its
/// `config.json`; `None` if the cache is not quantized.
///
/// **Source:** vLLM 0.33 `vllm/utils/torch_utils.py`, `get_kv_cache_quant_algo_string`, and
/// `vllm/model_executor/layers/attention/attention.py`.
pub fn checkpoint_kv_cache_dtype(quantization_config: &Value) -> Option<&'static str> {
    let method = quantization_config["quant_method"].as_str().unwrap_or_default();
    if method == "compressed-tensors" {
        return (!quantization_config["kv_cache_scheme"].is_null()).then_some("fp8");
    }
    if !method.starts_with("modelopt") {
        return None;
    }
    let algorithm = ["kv_cache_scheme", "kv_cache_quant_algo"]
        .iter()
        .flat_map(|key| [&quantization_config["quantization"][*key], &quantization_config[*key]])
        .find(|value| !value.is_null())?;
    let is_float = algorithm["type"].as_str() == Some("float");
    match (algorithm.as_str(), algorithm["num_bits"].as_u64()) {
        (Some(name), _) if name.eq_ignore_ascii_case("fp8") => Some("fp8_e4m3"),
        (Some(name), _) if name.eq_ignore_ascii_case("nvfp4") => Some("nvfp4"),
        (None, Some(8)) if is_float && algorithm["dynamic"].as_bool() == Some(false) => {
            Some("fp8_e4m3")
        }
        (None, Some(4)) if is_float => Some("nvfp4"),
        _ => None,
    }
}

/// Reads the quantization algorithm from the `config.json` of a ModelOpt checkpoint.
///
/// **Source:** vLLM `vllm/model_executor/layers/quantization/modelopt.py`, `quant_algo`.
fn modelopt_scheme(config: &Value) -> QuantizationScheme {
    let algorithm = [&config["quant_algo"], &config["quantization"]["quant_algo"]]
        .iter()
        .find_map(|value| value.as_str())
        .unwrap_or_default();
    match algorithm {
        "NVFP4" => QuantizationScheme::Fp4,
        "FP8_PB_WO" => QuantizationScheme::Fp8Block,
        _ if !config["weight_block_size"].is_null() => QuantizationScheme::Fp8Block,
        _ => QuantizationScheme::Fp8,
    }
}

fn compressed_tensors_scheme(config: &Value) -> QuantizationScheme {
    let weights = config["config_groups"]
        .as_object()
        .and_then(|groups| groups.values().next())
        .map(|group| &group["weights"]);
    let Some(weights) = weights else {
        return QuantizationScheme::None;
    };
    let float = weights["type"].as_str() == Some("float");
    match (weights["num_bits"].as_u64(), float) {
        (Some(8), true) if weights["strategy"].as_str() == Some("block") => {
            QuantizationScheme::Fp8Block
        }
        (Some(8), true) => QuantizationScheme::Fp8,
        (Some(8), false) => QuantizationScheme::Int8,
        // NVFP4, also weight-only, has a scale per 16 values.
        (Some(4), true) => QuantizationScheme::Fp4,
        (Some(_), _) => QuantizationScheme::Int4,
        (None, _) => QuantizationScheme::None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn checkpoints_name_the_data_type_of_their_kv_cache() {
        let of = |method: &str, key: &str, value: Value| {
            checkpoint_kv_cache_dtype(&json!({"quant_method": method, key: value}))
        };
        let scheme = |bits, kind| json!({"dynamic": false, "num_bits": bits, "type": kind});
        for (method, key, value, expected) in [
            ("modelopt", "kv_cache_scheme", scheme(8, "float"), Some("fp8_e4m3")),
            ("modelopt", "kv_cache_scheme", scheme(4, "float"), Some("nvfp4")),
            ("modelopt", "kv_cache_scheme", scheme(8, "int"), None),
            ("modelopt_fp4", "kv_cache_quant_algo", json!("FP8"), Some("fp8_e4m3")),
            ("modelopt", "quantization", json!({"kv_cache_quant_algo": "FP8"}), Some("fp8_e4m3")),
            ("modelopt", "kv_cache_quant_algo", Value::Null, None),
            ("modelopt", "kv_cache_quant_algo", json!("int8"), None),
            ("compressed-tensors", "kv_cache_scheme", scheme(8, "float"), Some("fp8")),
            ("compressed-tensors", "kv_cache_scheme", Value::Null, None),
            ("fp8", "kv_cache_scheme", scheme(8, "float"), None),
        ] {
            assert_eq!(of(method, key, value.clone()), expected, "{method} {key} {value}");
        }
    }

    #[test]
    fn quantization_methods_of_config_json_are_distinguished() {
        let scheme = |v| ModelQuantization::from_quantization_config(&v).scheme;
        assert_eq!(scheme(Value::Null), QuantizationScheme::None);
        let modelopt =
            |algorithm| scheme(json!({"quant_method": "modelopt", "quant_algo": algorithm}));
        assert_eq!(modelopt("NVFP4"), QuantizationScheme::Fp4);
        assert_eq!(modelopt("FP8"), QuantizationScheme::Fp8);
        assert_eq!(modelopt("FP8_PB_WO"), QuantizationScheme::Fp8Block);
        let float = json!({"weights": {"num_bits": 4, "type": "float", "group_size": 16}});
        let nvfp4 = json!({"quant_method": "compressed-tensors", "config_groups": {"g": float}});
        assert_eq!(scheme(nvfp4), QuantizationScheme::Fp4);
        assert_eq!(scheme(json!({"quant_method": "fp8"})), QuantizationScheme::Fp8);
        let block = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
        assert_eq!(scheme(block), QuantizationScheme::Fp8Block);
        let norms = json!({"quant_method": "fp8", "modules_to_not_convert":
            ["lm_head", "model.layers.0.post_attention_layernorm", "model.layers.0.mlp.gate"]});
        assert!(!ModelQuantization::from_quantization_config(&norms).keep_attention);
        assert_eq!(scheme(json!({"quant_method": "awq", "bits": 4})), QuantizationScheme::Int4);
        let group = json!({"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}});
        let scout = ModelQuantization::from_quantization_config(&json!({
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": group},
            "ignore": ["language_model.model.layers.0.self_attn.q_proj", "re:.*router"],
        }));
        assert_eq!(
            scout,
            ModelQuantization {
                keep_attention: true,
                ..ModelQuantization::for_all_weights(QuantizationScheme::Fp8)
            }
        );
    }
}
