use super::{Gpu, ModelShape, Quantization, Scheme};

/// How much of a GPU is left for the KV cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// Weights on one GPU, bytes.
    pub weight_bytes: f64,
    /// One block on one GPU, bytes.
    pub block_bytes: f64,
    /// What the weights leave for the cache of one GPU, bytes; negative: they do not fit.
    pub room_bytes: f64,
    /// Blocks that fit; 0 when the weights do not.
    pub blocks: u32,
}

/// Activations, sampler warm-up and what is not torch's, measured back from eight servers.
const OVERHEAD_BYTES: f64 = 1.35e9;
/// The same with token budgets of 8192 and more.
const OVERHEAD_LARGE_BYTES: f64 = 1.6e9;

impl Memory {
    /// For a model on `tp` GPUs of that kind.
    ///
    /// `utilization` is the share the engine may take, `kv_bytes` the bytes per cached number,
    /// `overhead` what is lost beside the weights (`None`: from the token budget).
    pub fn new(
        shape: &ModelShape,
        gpu: &Gpu,
        tp: u32,
        utilization: f64,
        (block_size, kv_bytes): (u32, u32),
        batched_tokens: u32,
        overhead: Option<f64>,
    ) -> Self {
        let weight_bytes = weight_bytes(shape, tp);
        let block_bytes = f64::from(block_size) * shape.kv_bytes_per_token(tp, kv_bytes) as f64;
        let overhead = overhead.unwrap_or(if batched_tokens >= 8192 {
            OVERHEAD_LARGE_BYTES
        } else {
            OVERHEAD_BYTES
        });
        let room = utilization * gpu.memory_gib * f64::from(1 << 30) - weight_bytes - overhead;
        Self {
            weight_bytes,
            block_bytes,
            room_bytes: room,
            // Saturating: a model that does not fit leaves no block.
            blocks: (room / block_bytes).floor() as u32,
        }
    }
}

/// Bytes per weight.
pub(super) fn weight_width(scheme: Scheme) -> f64 {
    match scheme {
        Scheme::None => 2.0,
        Scheme::Fp8 | Scheme::Fp8Block | Scheme::Int8 => 1.0,
        // With the scales.
        Scheme::Int4 => 0.53,
    }
}

fn weight_bytes(shape: &ModelShape, tp: u32) -> f64 {
    let Quantization {
        scheme,
        keep_attention,
        keep_mlp,
        keep_shared,
    } = shape.quantization;
    let quantized = weight_width(scheme);
    let width = |kept: bool| if kept { 2.0 } else { quantized };
    let h = f64::from(shape.hidden);
    let d = f64::from(shape.head_dim);
    let heads = f64::from(shape.heads);
    let matrices = if shape.gated { 3.0 } else { 2.0 };
    let attention = match shape.mla {
        None => (2.0 * heads + 2.0 * f64::from(shape.kv_heads)) * d * h,
        Some(mla) => {
            let key = f64::from(mla.nope_dim + mla.rope_dim);
            let q_rank = f64::from(mla.q_rank);
            let query = if mla.q_rank == 0 {
                h * heads * key
            } else {
                h * q_rank + q_rank * heads * key
            };
            let kv = h * f64::from(mla.kv_rank + mla.rope_dim)
                + f64::from(mla.kv_rank) * heads * f64::from(mla.nope_dim + mla.v_dim);
            query + kv + heads * f64::from(mla.v_dim) * h
        }
    };
    let layers = f64::from(shape.layers);
    let moe_layers = shape.moe.map_or(0.0, |moe| f64::from(moe.layers));
    let dense = (layers - moe_layers) * matrices * h * f64::from(shape.intermediate);
    let experts = shape.moe.map_or(0.0, |moe| {
        let routed = f64::from(moe.experts) * 3.0 * h * f64::from(moe.intermediate) * quantized;
        let shared = 3.0 * h * f64::from(moe.shared) * width(keep_shared);
        f64::from(moe.layers) * (routed + shared)
    });
    let embeddings = f64::from(shape.vocab) * h * 2.0 * if shape.tied { 1.0 } else { 2.0 };
    (layers * attention * width(keep_attention) + dense * width(keep_mlp) + experts + embeddings)
        / f64::from(tp.max(1))
}

#[cfg(test)]
mod tests {
    use crate::latency::{gpu, model};

    use super::*;

    /// Block counts of real servers' logs (0.9 of the memory, blocks of 16).
    #[test]
    fn block_counts_are_near_those_of_real_servers() {
        for (name, tp, tokens, logged) in [
            ("meta-llama/Llama-3.1-70B-Instruct", 4, 2048, 30425),
            ("mistralai/Mistral-Nemo-Instruct-2407", 2, 1024, 48009),
            ("Qwen/Qwen2.5-7B-Instruct", 1, 2048, 65352),
        ] {
            let (shape, h100) = (model(name).unwrap(), gpu("H100").unwrap());
            let memory = Memory::new(&shape, h100, tp, 0.9, (16, 2), tokens, None);
            let off = f64::from(memory.blocks) / f64::from(logged) - 1.0;
            assert!(
                off.abs() < 0.015,
                "{name}: {} blocks, logged {logged}",
                memory.blocks
            );
        }
    }

    #[test]
    fn a_model_that_does_not_fit_leaves_no_block() {
        let (shape, l4) = (
            model("meta-llama/Llama-3.1-70B").unwrap(),
            gpu("L4").unwrap(),
        );
        assert_eq!(
            Memory::new(&shape, l4, 1, 0.9, (16, 2), 2048, None).blocks,
            0
        );
    }
}
