use serde_json::Value;

use super::Quantization;

/// What a model's `config.json` says about its size.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Width of the dense MLP.
    pub intermediate: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Input and output embeddings are one matrix.
    pub tied: bool,
    /// The MLP has a gate (three matrices instead of two).
    pub gated: bool,
    /// Compressed attention (DeepSeek), instead of `kv_heads`.
    pub mla: Option<Mla>,
    /// Mixture of experts.
    pub moe: Option<Moe>,
    /// Layers that look back a bounded way.
    pub window: Option<Window>,
    /// Quantised weights.
    pub quantization: Quantization,
    /// Longest context (`max_position_embeddings`).
    pub max_context: u32,
}

/// Multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mla {
    /// Rank of the compressed query; 0: not compressed.
    pub q_rank: u32,
    /// Rank of the compressed keys and values.
    pub kv_rank: u32,
    /// Width of the rotary part of a key.
    pub rope_dim: u32,
    /// Width of the other part of a key, per head.
    pub nope_dim: u32,
    /// Width of a value, per head.
    pub v_dim: u32,
}

/// Mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moe {
    /// Routed experts per layer.
    pub experts: u32,
    /// Experts that a token visits.
    pub per_token: u32,
    /// Width of an expert.
    pub intermediate: u32,
    /// Width of the shared expert; 0: none.
    pub shared: u32,
    /// Layers with experts; the others have the dense MLP.
    pub layers: u32,
}

/// Sliding-window attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Tokens that such a layer sees.
    pub tokens: u32,
    /// Layers that have it.
    pub layers: u32,
}

/// Why a `config.json` gives no shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A number is missing.
    #[error("config.json has no {0} (a positive whole number)")]
    Missing(&'static str),
    /// A number makes no sense.
    #[error("config.json: {key} is {value}, must be at least 1")]
    Zero {
        /// Which.
        key: &'static str,
        /// What it says.
        value: u64,
    },
}

/// Model types whose MLP has no gate.
const UNGATED: &[&str] = &[
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
];

impl ModelShape {
    /// The largest of `stages` stages that its layers are split into.
    #[must_use]
    pub fn stage(&self, stages: u32) -> Self {
        let part = |layers: u32| layers.div_ceil(stages.max(1));
        Self {
            layers: part(self.layers),
            moe: self.moe.map(|moe| Moe {
                layers: part(moe.layers),
                ..moe
            }),
            window: self.window.map(|window| Window {
                layers: part(window.layers),
                ..window
            }),
            ..self.clone()
        }
    }

    /// Reads a `config.json`; multimodal ones are read at their text part.
    ///
    /// # Errors
    /// [`ShapeError`] when a size is missing or zero.
    pub fn from_config(config: &Value) -> Result<Self, ShapeError> {
        let text = text_part(config);
        let number = |keys: &[&str]| keys.iter().find_map(|key| text[*key].as_u64());
        let need = |keys: &[&'static str]| match number(keys) {
            None => Err(ShapeError::Missing(keys[0])),
            Some(0) => Err(ShapeError::Zero {
                key: keys[0],
                value: 0,
            }),
            Some(n) => Ok(size(n)),
        };
        let hidden = need(&["hidden_size", "n_embd", "d_model"])?;
        let layers = need(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])?;
        let heads = need(&["num_attention_heads", "n_head", "n_heads"])?;
        let vocab = need(&["vocab_size"])?;
        let small = |keys: &[&str], default: u32| number(keys).map_or(default, size);
        let one_kv = text["multi_query"].as_bool() == Some(true);
        let kv_default = if one_kv { 1 } else { heads };
        let kv_heads = small(
            &["num_key_value_heads", "num_kv_heads", "n_head_kv"],
            kv_default,
        );
        let intermediate = small(
            &["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"],
            hidden.saturating_mul(4),
        );
        let kind = text["model_type"].as_str().unwrap_or_default();
        let quantization = [text, config]
            .iter()
            .map(|part| &part["quantization_config"])
            .find(|q| q.is_object())
            .map_or_else(Quantization::default, Quantization::from_config);
        let tied = [text, config]
            .iter()
            .find_map(|part| part["tie_word_embeddings"].as_bool());
        Ok(Self {
            hidden,
            layers,
            heads,
            kv_heads: kv_heads.clamp(1, heads),
            head_dim: small(&["head_dim"], (hidden / heads).max(1)).max(1),
            intermediate,
            vocab,
            tied: tied.unwrap_or_else(|| kind.starts_with("gemma")),
            gated: !UNGATED.contains(&kind),
            mla: mla(text),
            moe: moe(text, layers, intermediate),
            window: window(text, kind, layers),
            quantization,
            max_context: small(
                &[
                    "max_position_embeddings",
                    "n_positions",
                    "max_seq_len",
                    "seq_length",
                ],
                32_768,
            ),
        })
    }

    /// Bytes of one token in the cache of one GPU, all layers; `kv_bytes` per number.
    pub fn kv_bytes_per_token(&self, tp: u32, kv_bytes: u32) -> u64 {
        let per_layer = match self.mla {
            Some(mla) => u64::from(mla.kv_rank + mla.rope_dim),
            None => 2 * u64::from((self.kv_heads / tp.max(1)).max(1)) * u64::from(self.head_dim),
        };
        per_layer
            .saturating_mul(u64::from(self.layers))
            .saturating_mul(u64::from(kv_bytes))
    }
}

/// The language model of a multimodal configuration, which may lie two levels down.
fn text_part(config: &Value) -> &Value {
    const PARTS: &[&str] = &[
        "text_config",
        "llm_config",
        "language_config",
        "decoder",
        "thinker_config",
    ];
    let mut part = config;
    for _ in 0..3 {
        match PARTS.iter().map(|key| &part[*key]).find(|v| v.is_object()) {
            Some(inner) => part = inner,
            None => break,
        }
    }
    part
}

/// No model is larger than this in any direction; sums and products of sizes stay in range.
fn size(n: u64) -> u32 {
    n.min(1 << 26) as u32
}

fn field(config: &Value, keys: &[&str]) -> Option<u32> {
    let n = keys.iter().find_map(|key| config[*key].as_u64())?;
    Some(size(n))
}

fn mla(config: &Value) -> Option<Mla> {
    Some(Mla {
        kv_rank: field(config, &["kv_lora_rank"])?,
        q_rank: field(config, &["q_lora_rank"]).unwrap_or(0),
        rope_dim: field(config, &["qk_rope_head_dim"])?,
        nope_dim: field(config, &["qk_nope_head_dim"])?,
        v_dim: field(config, &["v_head_dim"])?,
    })
}

fn moe(config: &Value, layers: u32, intermediate: u32) -> Option<Moe> {
    let experts = field(
        config,
        &[
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
        ],
    )?;
    if experts < 2 {
        return None;
    }
    let per_token = field(
        config,
        &["num_experts_per_tok", "moe_top_k", "experts_per_token"],
    );
    let width = field(config, &["moe_intermediate_size"]).unwrap_or(intermediate);
    let shared = field(config, &["shared_expert_intermediate_size"]).unwrap_or_else(|| {
        // Llama-4 has one shared expert of the width of a routed one and says so nowhere.
        let llama4 = config["model_type"]
            .as_str()
            .is_some_and(|t| t.starts_with("llama4"));
        let count = field(config, &["n_shared_experts"]).unwrap_or(u32::from(llama4));
        count.saturating_mul(width)
    });
    let dense_first = field(config, &["first_k_dense_replace"]).unwrap_or(0);
    let listed = config["mlp_only_layers"].as_array().map_or(0, Vec::len);
    let every = field(
        config,
        &["decoder_sparse_step", "interleave_moe_layer_step"],
    )
    .unwrap_or(1);
    let candidates = layers.saturating_sub(dense_first) / every.max(1);
    Some(Moe {
        experts,
        per_token: per_token.unwrap_or(1).clamp(1, experts),
        intermediate: width,
        shared,
        layers: candidates.saturating_sub(u32::try_from(listed).unwrap_or(u32::MAX)),
    })
}

fn window(config: &Value, kind: &str, layers: u32) -> Option<Window> {
    if config["use_sliding_window"].as_bool() == Some(false) {
        return None;
    }
    if let Some(tokens) = field(config, &["attention_chunk_size"]).filter(|&n| n > 0) {
        // Llama-4: three layers of four see only their chunk.
        let layers = layers - layers / 4;
        return Some(Window { tokens, layers });
    }
    let tokens = field(config, &["sliding_window"]).filter(|&n| n > 0)?;
    let listed = config["layer_types"].as_array().map(|types| {
        let sliding = |t: &&Value| t.as_str() == Some("sliding_attention");
        u32::try_from(types.iter().filter(sliding).count()).unwrap_or(layers)
    });
    let layers =
        listed.unwrap_or_else(
            || match (kind, field(config, &["sliding_window_pattern"])) {
                (_, Some(every)) if every > 1 => layers - layers / every,
                (k, _) if k.starts_with("gemma3") => layers - layers / 6,
                ("gemma2" | "gpt_oss", _) => layers.div_ceil(2),
                _ => layers,
            },
        );
    (layers > 0).then_some(Window { tokens, layers })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_part_is_found_and_defaults_are_filled() {
        let shape = ModelShape::from_config(&json!({
            "model_type": "gemma3",
            "text_config": {"hidden_size": 2560, "num_hidden_layers": 34, "num_attention_heads": 8,
                "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240,
                "vocab_size": 262208, "sliding_window": 1024, "model_type": "gemma3_text"}
        }))
        .unwrap();
        assert_eq!(
            shape.window,
            Some(Window {
                tokens: 1024,
                layers: 29
            })
        );
        assert_eq!((shape.head_dim, shape.kv_heads, shape.tied), (256, 4, true));
    }

    #[test]
    fn a_missing_size_is_named() {
        let err = ModelShape::from_config(&json!({"hidden_size": 8})).unwrap_err();
        assert_eq!(
            err.to_string(),
            "config.json has no num_hidden_layers (a positive whole number)"
        );
    }

    #[test]
    fn experts_of_some_layers_only() {
        let shape = ModelShape::from_config(&json!({
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
}
