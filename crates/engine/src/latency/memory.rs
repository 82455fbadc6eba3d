use super::{Gpu, ModelQuantization, ModelShape, ProfileRun, QuantizationScheme};

/// GPU counts over which a model's weights are sharded: one for layers (tensor parallelism), one
/// for experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightShardingRanks {
    /// Number of GPUs that each hold a part of every layer (tensor-parallel size).
    pub tensor: u32,
    /// Number of GPUs that hold a part of the experts: the GPUs of all data-parallel engines, with
    /// whole experts (expert parallelism) or slices.
    ///
    /// **Source:** vLLM 0.33 `vllm/model_executor/layers/fused_moe/config.py`,
    /// `FusedMoEParallelConfig.make`.
    pub experts: u32,
}

impl WeightShardingRanks {
    /// Creates the GPU counts of `data_parallel_size` data-parallel engines with
    /// `tensor_parallel_size` GPUs each.
    pub fn new(tensor_parallel_size: u32, data_parallel_size: u32) -> Self {
        let experts = tensor_parallel_size.saturating_mul(data_parallel_size);
        Self { tensor: tensor_parallel_size, experts }
    }
}

impl From<u32> for WeightShardingRanks {
    fn from(tensor: u32) -> Self {
        Self::new(tensor, 1)
    }
}

/// Computes the GPU memory available for the KV cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvCacheMemory {
    /// Size of the weights on each GPU, in bytes.
    pub weight_bytes: f64,
    /// Size of activations and other overhead on each GPU, in bytes.
    pub overhead_bytes: f64,
    /// Size of a KV block on each GPU, in bytes.
    pub block_bytes: f64,
    /// Memory left for the KV cache of each GPU, in bytes; negative if the weights do not fit.
    pub room_bytes: f64,
    /// Number of KV blocks in the cache; 0 if the weights do not fit.
    pub blocks: u32,
}

impl KvCacheMemory {
    /// Computes the KV cache memory of a model whose weights are sharded over the GPU counts
    /// `ranks`.
    ///
    /// `utilization` is the fraction of GPU memory for the engine, `kv_bytes` the bytes per cached
    /// number. The memory of `profile` is for neither weights nor cache.
    pub fn new(
        shape: &ModelShape,
        gpu: &Gpu,
        ranks: impl Into<WeightShardingRanks>,
        utilization: f64,
        (block_size, kv_bytes): (u32, u32),
        profile: &ProfileRun,
    ) -> Self {
        let ranks = ranks.into();
        let weight_bytes = weight_bytes(shape, ranks);
        let token = shape.kv_bytes_per_token(ranks.tensor, kv_bytes) as f64;
        let block_bytes = f64::from(block_size) * token;
        let overhead = profile.overhead_bytes_per_gpu(shape, ranks.tensor);
        let room = utilization * gpu.memory_gib * f64::from(1 << 30) - weight_bytes - overhead;
        Self {
            weight_bytes,
            overhead_bytes: overhead,
            block_bytes,
            room_bytes: room,
            // The cast saturates: negative memory gives 0 blocks.
            blocks: (room / block_bytes).floor() as u32,
        }
    }

    /// Subtracts `bytes` from the memory for the KV cache of each GPU.
    #[must_use]
    pub fn subtract_kv_bytes_per_gpu(self, bytes: f64) -> Self {
        let room_bytes = self.room_bytes - bytes;
        Self { room_bytes, blocks: (room_bytes / self.block_bytes).floor() as u32, ..self }
    }
}

/// Returns the size of LoRA adapter slots on each of `tp` GPUs, in bytes: two matrices of `rank`
/// rows per projection of attention and dense MLP. Expert adapters are not counted.
///
/// **Source:** vLLM 0.33 `vllm/lora/layers`, `create_lora_weights`.
pub fn lora_slot_bytes(shape: &ModelShape, tp: u32, slots: u32, rank: u32) -> f64 {
    let tp = f64::from(tp.max(1));
    let (h, d) = (f64::from(shape.hidden), f64::from(shape.head_dim));
    let heads = f64::from(shape.heads) * d / tp;
    let cached = 2.0 * f64::from(shape.kv_heads) * d / tp;
    let attention = 3.0 * h + heads + cached + heads + h;
    let mlp = 2.0 * h + 3.0 * f64::from(shape.intermediate) / tp + h;
    let dense = shape.layers - shape.moe.map_or(0, |moe| moe.layers.min(shape.layers));
    let rows = f64::from(shape.layers) * attention + f64::from(dense) * mlp;
    f64::from(slots) * f64::from(rank) * rows * 2.0
}

/// Factor of the size of MXFP4 experts: their width of 2880 is padded to 3072.
const MXFP4_PADDING: f64 = 3072.0 / 2880.0;

pub(super) fn bytes_per_weight(scheme: QuantizationScheme) -> f64 {
    match scheme {
        QuantizationScheme::None => 2.0,
        QuantizationScheme::Fp8 | QuantizationScheme::Fp8Block | QuantizationScheme::Int8 => 1.0,
        // Includes the scales.
        QuantizationScheme::Int4 | QuantizationScheme::Mxfp4 => 0.53,
        QuantizationScheme::Fp4 => 0.5625,
    }
}

pub(super) fn weight_bytes(shape: &ModelShape, ranks: WeightShardingRanks) -> f64 {
    let ModelQuantization { scheme, keep_attention, keep_mlp, keep_shared } = shape.quantization;
    let quantized = match scheme {
        QuantizationScheme::Mxfp4 => bytes_per_weight(scheme) * MXFP4_PADDING,
        _ => bytes_per_weight(scheme),
    };
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
            let query =
                if mla.q_rank == 0 { h * heads * key } else { h * q_rank + q_rank * heads * key };
            let kv = h * f64::from(mla.kv_rank + mla.rope_dim)
                + f64::from(mla.kv_rank) * heads * f64::from(mla.nope_dim + mla.v_dim);
            query + kv + heads * f64::from(mla.v_dim) * h
        }
    };
    let layers = f64::from(shape.layers);
    let moe_layers = shape.moe.map_or(0.0, |moe| f64::from(moe.layers));
    let dense = (layers - moe_layers) * matrices * h * f64::from(shape.intermediate);
    let routed = shape.moe.map_or(0.0, |moe| {
        let each = f64::from(moe.experts) * 3.0 * h * f64::from(moe.intermediate) * quantized;
        f64::from(moe.layers) * each
    });
    let embeddings = f64::from(shape.vocab) * h * 2.0 * if shape.tied { 1.0 } else { 2.0 };
    let layers = layers * attention * width(keep_attention) + dense * width(keep_mlp);
    let shared = shape.moe.map_or(0.0, |moe| {
        let each = 3.0 * h * f64::from(moe.shared) * width(keep_shared);
        f64::from(moe.layers) * each
    });
    (layers + shared + embeddings) / f64::from(ranks.tensor.max(1))
        + routed / f64::from(ranks.experts.max(1))
}

#[cfg(test)]
mod tests {
    use crate::latency::{find_gpu, known_model_shape};

    use super::*;

    const PROFILE: ProfileRun =
        ProfileRun { batched_tokens: 8192, seqs: 256, graph_sizes: 51, version: (0, 33) };

    /// Each line of `tests/fixtures/memory/servers.csv` is the start-up log of a server.
    #[test]
    fn block_counts_are_those_of_real_servers() {
        let text = include_str!("../../../../tests/fixtures/memory/servers.csv");
        let mut seen = 0;
        for line in text.lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let [model, weights, gpu, tp, share, tokens, seqs, sizes, minor, kv, logged, most, _] =
                cells[..]
            else {
                panic!("{line}");
            };
            let number = |text: &str| text.parse::<u32>().unwrap();
            let mut shape = known_model_shape(model).unwrap();
            if let Some(quantization) = ModelQuantization::from_quantization_flag(weights) {
                shape.quantization = quantization;
            }
            let profile = ProfileRun {
                version: (0, number(minor)),
                ..ProfileRun::profile_run_of_newest_vllm(
                    number(tokens),
                    number(seqs),
                    number(sizes),
                )
            };
            let (gpu, share) = (find_gpu(gpu).unwrap(), share.parse().unwrap());
            let memory =
                KvCacheMemory::new(&shape, gpu, number(tp), share, (16, number(kv)), &profile);
            let off = 100.0 * (f64::from(memory.blocks) / f64::from(number(logged)) - 1.0);
            let most: f64 = most.parse().unwrap();
            assert!(off.abs() < most, "{line}: {} blocks, {off:.2} %", memory.blocks);
            seen += 1;
        }
        assert_eq!(seen, 38);
    }

    #[test]
    fn experts_are_spread_over_the_engines_of_a_deployment() {
        let (shape, h200) =
            (known_model_shape("deepseek-ai/DeepSeek-V3").unwrap(), find_gpu("H200").unwrap());
        let weights = |ranks| weight_bytes(&shape, ranks) / 1e9;
        let (one, eight) =
            (weights(WeightShardingRanks::from(1)), weights(WeightShardingRanks::new(1, 8)));
        // 256 experts in each of 58 layers: 654 of the 671 billion weights.
        assert!((one - eight - 7.0 / 8.0 * 654.0).abs() < 1.0, "{one} {eight}");
        let memory = KvCacheMemory::new(
            &shape,
            h200,
            WeightShardingRanks::new(1, 8),
            0.92,
            (64, 2),
            &PROFILE,
        );
        assert!(memory.room_bytes > 10e9, "{memory:?}");
        assert!(memory.subtract_kv_bytes_per_gpu(memory.room_bytes).blocks == 0);
    }

    #[test]
    fn lora_slots_take_rank_rows_of_every_projection() {
        let shape = known_model_shape("meta-llama/Llama-3.1-8B").unwrap();
        let one = lora_slot_bytes(&shape, 1, 1, 16) / 1e6;
        assert!((one - 83.9).abs() < 0.1, "{one}");
        assert_eq!(lora_slot_bytes(&shape, 1, 4, 32), 8.0 * lora_slot_bytes(&shape, 1, 1, 16));
    }

    #[test]
    fn a_model_that_does_not_fit_leaves_no_block() {
        let (shape, l4) =
            (known_model_shape("meta-llama/Llama-3.1-70B").unwrap(), find_gpu("L4").unwrap());
        assert_eq!(KvCacheMemory::new(&shape, l4, 1, 0.9, (16, 2), &PROFILE).blocks, 0);
    }
}
