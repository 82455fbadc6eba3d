//! Estimates the work of a step: floating-point operations, bytes read and bytes written
//! (`--enable-mfu-metrics`).
//!
//! Values are per GPU: heads and widths are divided by the tensor-parallel size, layers by the
//! number of pipeline stages. A prompt counts with its first token, as if computed in one step.
//! Multi-head latent attention counts as attention of its compressed width.
//!
//! **Source:** vLLM 0.33 `vllm/v1/metrics/perf.py`.

use super::ModelShape;

/// Size of an activation, and of a weight without quantization, in bytes.
const WIDE: f64 = 2.0;

/// Estimate of a language model's floating-point operations and memory traffic, per GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MfuWorkModel {
    hidden: f64,
    layers: f64,
    heads: f64,
    kv_heads: f64,
    head: f64,
    /// Number of layers with a dense MLP, and the MLP's width.
    dense: (f64, f64),
    sparse: f64,
    /// Shape of the experts: width of an expert, number of experts, number of experts per token,
    /// width of the shared expert.
    expert: (f64, f64, f64, f64),
    vocabulary: f64,
    weight_bytes: f64,
    cache_bytes: f64,
}

impl MfuWorkModel {
    /// Creates the estimate of floating-point operations and memory traffic on each of `tensor` ×
    /// `pipeline` GPUs, with experts spread over `experts` ranks.
    pub fn new(
        shape: &ModelShape,
        (tensor, pipeline, experts): (u32, u32, u32),
        (weight_bytes, cache_bytes): (f64, f64),
    ) -> Self {
        let share = |n: u32| f64::from((n / tensor.max(1)).max(1));
        let stage = |layers: u32| f64::from(layers) / f64::from(pipeline.max(1));
        let sparse = shape.moe.map_or(0, |moe| moe.layers);
        let split = if experts > 1 { 1 } else { tensor.max(1) };
        let (kv_heads, head) = match shape.mla {
            Some(mla) => (1.0, f64::from(mla.kv_rank + mla.rope_dim)),
            None => (share(shape.kv_heads), f64::from(shape.head_dim)),
        };
        Self {
            hidden: shape.hidden.into(),
            layers: stage(shape.layers),
            heads: share(shape.heads),
            kv_heads,
            head,
            dense: (stage(shape.layers.saturating_sub(sparse)), share(shape.intermediate)),
            sparse: stage(sparse),
            expert: shape.moe.map_or((0.0, 0.0, 0.0, 0.0), |moe| {
                (
                    f64::from(moe.intermediate / split),
                    f64::from(moe.experts) / f64::from(experts.max(1)),
                    f64::from(moe.per_token) / f64::from(experts.max(1)),
                    f64::from(moe.shared / split),
                )
            }),
            vocabulary: share(shape.vocab),
            weight_bytes,
            cache_bytes,
        }
    }

    /// Returns the floating-point operations, bytes read and bytes written of one step, per GPU.
    pub fn step_flops_read_written_bytes(&self, load: &MfuStepTokens) -> [f64; 3] {
        let Self { hidden, layers, heads, kv_heads, head, .. } = *self;
        let (tokens, logits) = (load.computed_tokens(), load.logits);
        let qkv = (heads + 2.0 * kv_heads) * head;
        let (dense, width) = self.dense;
        let (expert, experts, per_token, shared) = self.expert;
        let visits = tokens * per_token;
        let active = visits.min(experts);
        // The three matrices are up, gate and down.
        let mlps = dense * width * tokens + self.sparse * (expert * visits + shared * tokens);
        let flops = 2.0 * tokens * hidden * (qkv + heads * head) * layers
            + 4.0 * heads * head * load.products * layers
            + 6.0 * hidden * mlps
            + 2.0 * logits * hidden * self.vocabulary;
        let weights = hidden * (qkv + heads * head) * layers
            + 3.0 * hidden * dense * width
            + 3.0 * hidden * self.sparse * (expert * active + shared)
            + hidden * self.vocabulary;
        let activations = tokens * (hidden + 2.0 * heads * head) * layers
            + 2.0 * load.prefill_context * kv_heads * head * layers
            + (dense + self.sparse * per_token) * tokens * hidden
            + 3.0 * mlps
            + logits * hidden;
        let cache = 2.0 * kv_heads * head * layers;
        let read = weights * self.weight_bytes
            + activations * WIDE
            + cache * load.decode_context * self.cache_bytes;
        let written = tokens * (qkv + hidden) * layers
            + 3.0 * mlps
            + tokens * hidden * (dense + self.sparse * per_token)
            + logits * self.vocabulary;
        [flops, read, written * WIDE + cache * tokens * self.cache_bytes]
    }
}

/// Token counts and context lengths of one engine step, summed over its sequences, to estimate the
/// floating-point operations and bytes of the step.
#[derive(Debug, Clone, Copy, Default)]
pub struct MfuStepTokens {
    /// Number of prompt tokens that the step computes.
    prefill: f64,
    /// Number of output tokens that the step decodes; the first output token of a sequence does not
    /// count.
    decode: f64,
    /// Sum over the prompts of their context length, in tokens.
    prefill_context: f64,
    /// Sum over the decoded tokens of their context length, in tokens.
    decode_context: f64,
    /// Sum over the step's tokens of the length of their context, in tokens.
    products: f64,
    /// Number of tokens whose logits are computed.
    logits: f64,
}

impl MfuStepTokens {
    /// Adds a prompt of `context` tokens, of which the step computes `computed`, and the prompt's
    /// first output token.
    pub fn add_prompt(&mut self, computed: u32, context: u32) {
        let (computed, context) = (f64::from(computed), f64::from(context));
        self.prefill += computed;
        self.prefill_context += context;
        self.products += computed * context;
        self.logits += 1.0;
    }

    /// Adds the decode of `tokens` output tokens of a sequence with `context` tokens.
    pub fn add_decode(&mut self, tokens: u32, context: f64) {
        let tokens = f64::from(tokens);
        self.decode += tokens;
        self.decode_context += tokens * context;
        self.products += tokens * context;
        self.logits += tokens;
    }

    /// Returns the number of tokens that the step computes.
    pub fn computed_tokens(&self) -> f64 {
        self.prefill + self.decode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_costs_two_operations_per_weight() {
        let config = serde_json::json!({
            "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128_256,
            "model_type": "llama",
        });
        let shape = ModelShape::from_hf_config(&config).expect("a shape");
        let cost = |tensor: u32, pipeline: u32| {
            let model = MfuWorkModel::new(&shape, (tensor, pipeline, 1), (WIDE, WIDE));
            let mut load = MfuStepTokens::default();
            load.add_decode(1, 1.0);
            model.step_flops_read_written_bytes(&load)
        };
        let [flops, read, written] = cost(1, 1);
        // The 7.5 billion weights in use exclude the input embedding.
        assert!((flops / 15.01e9 - 1.0).abs() < 0.01, "{flops}");
        assert!((read / 15.01e9 - 1.0).abs() < 0.01, "{read}");
        assert!(written < read / 1000.0, "{written}");
        let [half, ..] = cost(2, 1);
        assert!((half / flops - 0.5).abs() < 0.01, "{half}");
        let [staged, ..] = cost(1, 2);
        assert!((0.5..0.55).contains(&(staged / flops)), "{staged}");
    }
}
