use serde_json::Value;

use super::ModelQuantization;

/// Layer sizes of a model, as in its `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Hidden size of the model (width of the residual stream).
    pub hidden: u32,
    /// Number of decoder layers.
    pub layers: u32,
    /// Number of query heads of attention.
    pub heads: u32,
    /// Number of key/value heads of attention.
    pub kv_heads: u32,
    /// Width of an attention head.
    pub head_dim: u32,
    /// Width of the dense MLP (`intermediate_size`).
    pub intermediate: u32,
    /// Number of tokens in the vocabulary.
    pub vocab: u32,
    /// Whether input and output embeddings share one matrix.
    pub tied: bool,
    /// Whether the MLP has a gate (three matrices instead of two).
    pub gated: bool,
    /// Multi-head latent attention (DeepSeek), if used; replaces `kv_heads`.
    pub mla: Option<LatentAttentionShape>,
    /// Mixture of experts, if used.
    pub moe: Option<MoeShape>,
    /// Sliding-window attention of some layers, if used.
    pub window: Option<SlidingWindowLayers>,
    /// Layers with a recurrent state instead of keys and values, if any.
    pub state: Option<RecurrentStateLayers>,
    /// Whether separate kernels normalize queries and keys (Qwen3, Gemma 3, MiniMax). Llama 4's
    /// norm has no weights and no visible effect in recorded runs.
    pub qk_norm: bool,
    /// Quantization of the model's weights.
    pub quantization: ModelQuantization,
    /// Maximum context length, in tokens (`max_position_embeddings`).
    pub max_context: u32,
}

/// Sizes of multi-head latent attention (compressed keys and values).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentAttentionShape {
    /// Rank of compressed attention queries; 0: not compressed.
    pub q_rank: u32,
    /// Rank of compressed attention keys and values.
    pub kv_rank: u32,
    /// Width of the rotary part of an attention key, shared by all heads.
    pub rope_dim: u32,
    /// Width of the non-rotary part of an attention key, per head.
    pub nope_dim: u32,
    /// Width of an attention value, per head.
    pub v_dim: u32,
}

/// Sizes of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeShape {
    /// Number of routed experts per layer.
    pub experts: u32,
    /// Number of routed experts that compute each token.
    pub per_token: u32,
    /// Width of a routed expert's MLP.
    pub intermediate: u32,
    /// Width of the shared expert's MLP; 0: no shared expert.
    pub shared: u32,
    /// Number of layers with experts; the other layers have the dense MLP.
    pub layers: u32,
    /// Whether the MoE router (gate) computes in fp32 (MiniMax M2).
    pub fp32_router: bool,
}

/// Sliding-window attention of some layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindowLayers {
    /// Width of the attention window, in tokens.
    pub tokens: u32,
    /// Number of layers with a sliding window.
    pub layers: u32,
}

/// Layers with one recurrent state per sequence instead of keys and values (Mamba, linear
/// attention).
///
/// **Source:** vLLM 0.33 `vllm/model_executor/layers/mamba/mamba_utils.py`,
/// `MambaStateShapeCalculator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentStateLayers {
    /// Number of layers with a recurrent state.
    pub layers: u32,
    /// Number of channels of the short convolution that are in no channel group.
    pub channels: u32,
    /// Number of convolution channel groups, at least one per GPU, and channels per group.
    pub groups: (u32, u32),
    /// Width of the convolution window in tokens, including the newest token.
    pub kernel: u32,
    /// Size of a layer's recurrent state, as a count of numbers.
    pub numbers: u32,
    /// Size of a number of the recurrent state, in bytes.
    pub number_bytes: u32,
    /// Whether prefix caching also keeps a recurrent state at a position within the last step of a
    /// prompt.
    pub checkpoints: bool,
}

impl RecurrentStateLayers {
    /// Returns the size of a layer's recurrent state on each of `tp` GPUs, in bytes.
    pub fn recurrent_state_bytes(&self, tp: u32) -> u64 {
        let tp = tp.max(1);
        let (groups, width) = self.groups;
        let groups = if groups.is_multiple_of(tp) { groups } else { groups.max(tp) };
        let channels = u64::from(self.channels) + u64::from(groups) * u64::from(width);
        let convolution = channels / u64::from(tp) * u64::from(self.kernel.saturating_sub(1)) * 2;
        convolution + u64::from(self.numbers / tp) * u64::from(self.number_bytes)
    }
}

/// Reports a `config.json` without usable layer sizes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelShapeError {
    /// A layer size is missing in the `config.json`; its key is named.
    #[error("config.json has no {0} (a positive whole number)")]
    Missing(&'static str),
    /// A layer size in the `config.json` is zero; its key is named.
    #[error("config.json: {0} is 0, must be at least 1")]
    Zero(&'static str),
}

const UNGATED_MLP_MODEL_TYPES: &[&str] = &[
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "bloom",
    "falcon",
    "mpt",
    "phi",
    "gpt_bigcode",
    "starcoder2",
    "nemotron",
    "nemotron_h",
];

impl ModelShape {
    /// Returns the layer sizes of the largest of `stages` pipeline stages.
    #[must_use]
    pub fn largest_pipeline_stage(&self, stages: u32) -> Self {
        let part = |layers: u32| layers.div_ceil(stages.max(1));
        Self {
            layers: part(self.layers),
            moe: self.moe.map(|moe| MoeShape { layers: part(moe.layers), ..moe }),
            window: self
                .window
                .map(|window| SlidingWindowLayers { layers: part(window.layers), ..window }),
            state: self
                .state
                .map(|state| RecurrentStateLayers { layers: part(state.layers), ..state }),
            ..self.clone()
        }
    }

    /// Reads the layer sizes from a `config.json`; for multimodal models from its text model.
    ///
    /// # Errors
    /// [`ModelShapeError`] if a size is missing or zero.
    pub fn from_hf_config(hf_config: &Value) -> Result<Self, ModelShapeError> {
        let text = text_model_config(hf_config);
        let need = |keys: &[&'static str]| match read_config_size(text, keys) {
            None => Err(ModelShapeError::Missing(keys[0])),
            Some(0) => Err(ModelShapeError::Zero(keys[0])),
            Some(n) => Ok(n),
        };
        let hidden = need(&["hidden_size", "n_embd", "d_model"])?;
        let layers = need(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])?;
        // Each letter is a mixer or an MLP; a layer of other models has both.
        let pattern = text["hybrid_override_pattern"].as_str();
        let count = |letters: &str| {
            let found = pattern.map(|all| all.chars().filter(|&c| letters.contains(c)).count());
            found.map(|n| clamp_layer_size(n as u64))
        };
        let mixers = count("M*").unwrap_or(layers).max(1);
        let layers = count("-E").map_or(layers, |mlps| mlps.max(mixers));
        let heads = need(&["num_attention_heads", "n_head", "n_heads"])?;
        let vocab = need(&["vocab_size"])?;
        let small = |keys: &[&str], default: u32| read_config_size(text, keys).unwrap_or(default);
        let one_kv = text["multi_query"].as_bool() == Some(true);
        let kv_default = if one_kv { 1 } else { heads };
        let kv_heads = small(&["num_key_value_heads", "num_kv_heads", "n_head_kv"], kv_default);
        let intermediate = small(
            &["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"],
            hidden.saturating_mul(4),
        );
        let kind = text["model_type"].as_str().unwrap_or_default();
        let quantization = [text, hf_config]
            .iter()
            .map(|part| &part["quantization_config"])
            .find(|q| q.is_object())
            .map_or_else(ModelQuantization::default, ModelQuantization::from_quantization_config);
        let tied = [text, hf_config].iter().find_map(|part| part["tie_word_embeddings"].as_bool());
        Ok(Self {
            hidden,
            layers,
            heads,
            kv_heads: kv_heads.clamp(1, heads),
            head_dim: small(&["head_dim", "attention_head_dim"], (hidden / heads).max(1)).max(1),
            intermediate,
            vocab,
            tied: tied.unwrap_or_else(|| kind.starts_with("gemma")),
            gated: !UNGATED_MLP_MODEL_TYPES.contains(&kind),
            mla: read_latent_attention(text),
            moe: read_experts(text, count("E").unwrap_or(layers), intermediate),
            window: read_sliding_window(text, kind, layers),
            state: read_state_layers(text, layers),
            qk_norm: match text["use_qk_norm"].as_bool() {
                Some(named) => named && !kind.starts_with("llama4"),
                None => {
                    let kinds = ["qwen3", "gemma3", "minimax_m2", "olmo2"];
                    kinds.iter().any(|known| kind.starts_with(known))
                }
            },
            quantization,
            max_context: small(
                &["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"],
                32_768,
            ),
        })
    }

    /// Returns the size of a token in the KV cache of one GPU, in bytes over all layers, with
    /// `kv_bytes` bytes per number.
    pub fn kv_bytes_per_token(&self, tp: u32, kv_bytes: u32) -> u64 {
        let per_layer = match self.mla {
            Some(mla) => u64::from(mla.kv_rank + mla.rope_dim),
            None => 2 * u64::from((self.kv_heads / tp.max(1)).max(1)) * u64::from(self.head_dim),
        };
        per_layer
            .saturating_mul(u64::from(self.attention_layer_count()))
            .saturating_mul(u64::from(kv_bytes))
    }

    /// Returns the number of layers with keys and values, at least one.
    pub fn attention_layer_count(&self) -> u32 {
        let states = self.state.map_or(0, |state| state.layers);
        self.layers.saturating_sub(states).max(1)
    }
}

/// Returns the configuration of the language model in a multimodal `config.json`, at most three
/// levels down.
fn text_model_config(config: &Value) -> &Value {
    const TEXT_CONFIG_KEYS: &[&str] =
        &["text_config", "llm_config", "language_config", "decoder", "thinker_config"];
    let mut part = config;
    for _ in 0..3 {
        match TEXT_CONFIG_KEYS.iter().map(|key| &part[*key]).find(|v| v.is_object()) {
            Some(inner) => part = inner,
            None => break,
        }
    }
    part
}

/// Limits a layer size to 2^26, so that sums and products stay in range.
pub(super) fn clamp_layer_size(n: u64) -> u32 {
    n.min(1 << 26) as u32
}

pub(super) fn read_config_size(config: &Value, keys: &[&str]) -> Option<u32> {
    let n = keys.iter().find_map(|key| config[*key].as_u64())?;
    Some(clamp_layer_size(n))
}

fn read_latent_attention(config: &Value) -> Option<LatentAttentionShape> {
    Some(LatentAttentionShape {
        kv_rank: read_config_size(config, &["kv_lora_rank"])?,
        q_rank: read_config_size(config, &["q_lora_rank"]).unwrap_or(0),
        rope_dim: read_config_size(config, &["qk_rope_head_dim"])?,
        nope_dim: read_config_size(config, &["qk_nope_head_dim"])?,
        v_dim: read_config_size(config, &["v_head_dim"])?,
    })
}

fn read_experts(config: &Value, layers: u32, intermediate: u32) -> Option<MoeShape> {
    let experts = read_config_size(
        config,
        &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"],
    )?;
    if experts < 2 {
        return None;
    }
    let per_token =
        read_config_size(config, &["num_experts_per_tok", "moe_top_k", "experts_per_token"]);
    let width = read_config_size(config, &["moe_intermediate_size"]).unwrap_or(intermediate);
    let shared =
        read_config_size(config, &["shared_expert_intermediate_size"]).unwrap_or_else(|| {
            // Llama-4 has one shared expert of the width of a routed one, without an entry in its
            // configuration.
            let llama4 = config["model_type"].as_str().is_some_and(|t| t.starts_with("llama4"));
            let count =
                read_config_size(config, &["n_shared_experts"]).unwrap_or(u32::from(llama4));
            count.saturating_mul(width)
        });
    let dense_first = read_config_size(config, &["first_k_dense_replace"]).unwrap_or(0);
    let listed = config["mlp_only_layers"].as_array().map_or(0, Vec::len);
    let every = read_config_size(config, &["decoder_sparse_step", "interleave_moe_layer_step"])
        .unwrap_or(1);
    let candidates = layers.saturating_sub(dense_first) / every.max(1);
    Some(MoeShape {
        experts,
        per_token: per_token.unwrap_or(1).clamp(1, experts),
        intermediate: width,
        shared,
        layers: candidates.saturating_sub(u32::try_from(listed).unwrap_or(u32::MAX)),
        fp32_router: config["model_type"]
            .as_str()
            .is_some_and(|kind| kind.starts_with("minimax_m2")),
    })
}

fn read_sliding_window(config: &Value, kind: &str, layers: u32) -> Option<SlidingWindowLayers> {
    if config["use_sliding_window"].as_bool() == Some(false) {
        return None;
    }
    if let Some(tokens) = read_config_size(config, &["attention_chunk_size"]).filter(|&n| n > 0) {
        // In Llama-4, three of four layers attend only to their chunk.
        let layers = layers - layers / 4;
        return Some(SlidingWindowLayers { tokens, layers });
    }
    let tokens = read_config_size(config, &["sliding_window"]).filter(|&n| n > 0)?;
    let listed = config["layer_types"].as_array().map(|types| {
        let sliding = |t: &&Value| t.as_str() == Some("sliding_attention");
        u32::try_from(types.iter().filter(sliding).count()).unwrap_or(layers)
    });
    let layers = listed.unwrap_or_else(|| {
        match (kind, read_config_size(config, &["sliding_window_pattern"])) {
            (_, Some(every)) if every > 1 => layers - layers / every,
            (k, _) if k.starts_with("gemma3") => layers - layers / 6,
            ("gemma2" | "gpt_oss", _) => layers.div_ceil(2),
            _ => layers,
        }
    });
    (layers > 0).then_some(SlidingWindowLayers { tokens, layers })
}

/// Reads the state layers of a `config.json`: gated delta nets (Qwen3-Next, Qwen3.5) and Mamba-2
/// (Nemotron-H, Granite 4).
fn read_state_layers(config: &Value, layers: u32) -> Option<RecurrentStateLayers> {
    let number = |key: &'static str| read_config_size(config, &[key]);
    let listed = |kind: &str| {
        let types = config["layer_types"].as_array()?;
        let found = types.iter().filter(|t| t.as_str() == Some(kind)).count();
        Some(clamp_layer_size(found as u64))
    };
    let wide = |key: &str| config[key].as_str() == Some("float32");
    if let (Some(keys), Some(values)) =
        (number("linear_num_key_heads"), number("linear_num_value_heads"))
    {
        let (key, value) = (number("linear_key_head_dim")?, number("linear_value_head_dim")?);
        let every = number("full_attention_interval").unwrap_or(4).max(1);
        return Some(RecurrentStateLayers {
            layers: listed("linear_attention").unwrap_or(layers - layers / every),
            channels: 2 * keys * key + values * value,
            groups: (0, 0),
            kernel: number("linear_conv_kernel_dim").unwrap_or(4),
            numbers: values.saturating_mul(key).saturating_mul(value),
            number_bytes: if wide("mamba_ssm_dtype") { 4 } else { 2 },
            checkpoints: false,
        })
        .filter(|state| state.layers > 0);
    }
    let pattern = config["hybrid_override_pattern"].as_str();
    let letters = pattern.map(|all| clamp_layer_size(all.matches('M').count() as u64));
    let heads = read_config_size(config, &["mamba_num_heads", "mamba_n_heads"])?;
    let width = read_config_size(config, &["mamba_head_dim", "mamba_d_head"])?;
    let depth = read_config_size(config, &["ssm_state_size", "mamba_d_state"])?;
    // By default only Nemotron-H keeps float32 states.
    let is_narrow = pattern.is_none() || config["mamba_ssm_cache_dtype"].is_string();
    Some(RecurrentStateLayers {
        layers: letters.or_else(|| listed("mamba"))?,
        channels: heads.saturating_mul(width),
        groups: (read_config_size(config, &["n_groups", "mamba_n_groups"]).unwrap_or(1), 2 * depth),
        kernel: read_config_size(config, &["conv_kernel", "mamba_d_conv"]).unwrap_or(4),
        numbers: heads.saturating_mul(width).saturating_mul(depth),
        number_bytes: if is_narrow && !wide("mamba_ssm_cache_dtype") { 2 } else { 4 },
        checkpoints: true,
    })
    .filter(|state| state.layers > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_config_is_found_and_defaults_are_filled() {
        let shape = ModelShape::from_hf_config(&json!({
            "model_type": "gemma3",
            "text_config": {"hidden_size": 2560, "num_hidden_layers": 34, "num_attention_heads": 8,
                "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240,
                "vocab_size": 262208, "sliding_window": 1024, "model_type": "gemma3_text"}
        }))
        .unwrap();
        assert_eq!(shape.window, Some(SlidingWindowLayers { tokens: 1024, layers: 29 }));
        assert_eq!((shape.head_dim, shape.kv_heads, shape.tied), (256, 4, true));
    }

    #[test]
    fn shape_error_names_the_missing_size() {
        let err = ModelShape::from_hf_config(&json!({"hidden_size": 8})).unwrap_err();
        assert_eq!(
            err.to_string(),
            "config.json has no num_hidden_layers (a positive whole number)"
        );
    }

    #[test]
    fn experts_in_some_layers_only_are_read() {
        let shape = ModelShape::from_hf_config(&json!({
            "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
            "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128
        }))
        .unwrap();
        let moe = shape.moe.unwrap();
        assert_eq!((moe.layers, moe.shared, moe.per_token), (58, 2048, 8));
        assert_eq!(shape.kv_bytes_per_token(8, 2), 61 * 576 * 2);
    }

    #[test]
    fn state_layers_are_not_attention_layers() {
        let qwen = ModelShape::from_hf_config(&json!({
            "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "vocab_size": 151936, "full_attention_interval": 4, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4
        }))
        .unwrap();
        let state = qwen.state.unwrap();
        // 3 tokens of 8192 channels, and 32 x 128 x 128 numbers.
        assert_eq!((state.layers, state.recurrent_state_bytes(1)), (36, 49_152 + 1_048_576));
        assert_eq!(state.recurrent_state_bytes(2), (49_152 + 1_048_576) / 2);
        assert_eq!((qwen.attention_layer_count(), qwen.kv_bytes_per_token(1, 2)), (12, 12 * 2048));
        let nemotron = ModelShape::from_hf_config(&json!({
            "model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 52,
            "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
            "vocab_size": 131072, "mamba_num_heads": 128, "mamba_head_dim": 64,
            "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
        }))
        .unwrap();
        let state = nemotron.state.unwrap();
        let convolution = (8192 + 2 * 8 * 128) * 3 * 2;
        assert_eq!((state.layers, state.recurrent_state_bytes(1)), (24, convolution + 4_194_304));
        assert_eq!((nemotron.layers, nemotron.attention_layer_count()), (28, 4));
        assert!(!nemotron.gated && nemotron.moe.is_none());
    }
}
