use super::ModelShape;
use crate::kv::{KvCacheLayerGroups, SparseLayerKind};

/// Describes the layout of a model's KV cache in blocks.
///
/// Layers are divided into full-attention layers and sparse layers (with a window or a state). Both
/// are cut into groups of equally many layers that share one pool. A block belongs to one group and
/// holds its tokens in all layers of that group.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/kv_cache_planning.py`,
/// `_get_kv_cache_groups_uniform_page_size`; `vllm/v1/kv_cache_interface.py`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvCachePlan {
    /// Number of tokens per KV block.
    pub block_size: u32,
    /// Size of a KV block on one GPU, in bytes.
    pub block_bytes: f64,
    /// Number of model layers in each KV cache group.
    pub group_layers: u32,
    /// Number of KV cache groups with full-attention layers.
    pub full_groups: u32,
    /// Number of KV cache groups with sparse layers (window or state). Sparse groups are numbered
    /// before the full-attention groups.
    pub sparse_groups: u32,
    /// Kind of the sparse layers; for state layers, with the maximum number of states per request.
    pub sparse: SparseLayerKind,
    /// Numbers of full-attention layers and of sparse layers in the model.
    pub layers: (u32, u32),
    /// Whether keys and values are compressed (multi-head latent attention, DeepSeek).
    pub is_mla: bool,
    page_bytes: f64,
    layer_token_bytes: f64,
}

impl KvCachePlan {
    /// Plans the KV blocks of a model on each of `tp` GPUs, with `kv_bytes_per_value` bytes per
    /// cached number. Without `hybrid_kv_cache`, window layers count as full-attention layers;
    /// state layers always have groups of their own.
    ///
    /// A block must have room for a state ([`KvCachePlan::min_block_size_for_recurrent_state`]).
    pub fn new(
        shape: &ModelShape,
        tp: u32,
        block_size: u32,
        kv_bytes_per_value: f64,
        hybrid_kv_cache: bool,
    ) -> Self {
        let attention = shape.attention_layer_count();
        let token =
            shape.kv_bytes_per_token(tp, 1) as f64 / f64::from(attention) * kv_bytes_per_value;
        let page_bytes = token * f64::from(block_size);
        let window = shape.window.filter(|window| hybrid_kv_cache && window.layers > 0);
        let (sparse_layers, sparse, page_bytes) = match (shape.state, window) {
            (Some(state), _) => {
                let most = 2 + u32::from(state.checkpoints);
                let page_bytes = page_bytes.max(state.recurrent_state_bytes(tp) as f64);
                (state.layers.min(shape.layers), SparseLayerKind::State(most), page_bytes)
            }
            (None, Some(window)) => {
                let layers = window.layers.min(shape.layers);
                (layers, SparseLayerKind::Window(window.tokens), page_bytes)
            }
            (None, None) => (0, SparseLayerKind::Window(0), page_bytes),
        };
        let full = shape.layers - sparse_layers;
        let group = match (full.min(sparse_layers), full.max(sparse_layers)) {
            (0, all) => all,
            // With similar numbers of both, the smaller part is padded.
            (small, large) if f64::from(large) < 1.5 * f64::from(small) => large,
            (small, _) => small,
        };
        Self {
            block_size,
            block_bytes: f64::from(group) * page_bytes,
            group_layers: group,
            full_groups: full.div_ceil(group.max(1)),
            sparse_groups: sparse_layers.div_ceil(group.max(1)),
            sparse,
            layers: (full, sparse_layers),
            is_mla: shape.mla.is_some(),
            page_bytes,
            layer_token_bytes: token,
        }
    }

    /// Returns the minimum KV block size in tokens, in steps of `step` tokens, for which a layer's
    /// keys and values are as large as a state; `None` without state layers.
    ///
    /// **Source:** vLLM 0.33 `vllm/platforms/interface.py`, `_align_hybrid_block_size`.
    pub fn min_block_size_for_recurrent_state(
        shape: &ModelShape,
        tp: u32,
        width: f64,
        step: u32,
    ) -> Option<u32> {
        let state = shape.state?.recurrent_state_bytes(tp) as f64;
        let hybrid = true;
        let token = Self::new(shape, tp, 1, width, hybrid).layer_token_bytes;
        let steps = (state / (token * f64::from(step))).ceil().max(1.0);
        Some(step.saturating_mul(steps as u32))
    }

    /// Sets the number of states that a request has in state layers. The number depends on prefix
    /// caching and on the number of draft tokens per step.
    #[must_use]
    pub fn with_recurrent_states_per_request(
        self,
        prefix_caching: bool,
        drafts_per_step: u32,
    ) -> Self {
        let sparse = match self.sparse {
            SparseLayerKind::State(most) => {
                SparseLayerKind::State(drafts_per_step + if prefix_caching { most } else { 1 })
            }
            window => window,
        };
        Self { sparse, ..self }
    }

    /// Returns the layer groups for the scheduler's KV cache; `None` with a single full-attention
    /// group.
    pub fn kv_cache_layer_groups(
        &self,
        retention_interval: Option<u32>,
    ) -> Option<KvCacheLayerGroups> {
        (self.sparse_groups > 0).then_some(KvCacheLayerGroups {
            full: self.full_groups,
            sparse: self.sparse_groups,
            kind: self.sparse,
            interval: retention_interval,
        })
    }

    /// Returns the size of a token's keys and values, in bytes, summed over all layers with keys
    /// and values.
    pub fn kv_bytes_per_token(&self) -> f64 {
        let sparse = match self.sparse {
            SparseLayerKind::Window(_) => self.layers.1,
            SparseLayerKind::State(_) => 0,
        };
        f64::from(self.layers.0 + sparse) * self.layer_token_bytes
    }

    /// Returns the number of KV blocks in a full-attention group and in a sparse group, for a
    /// request of `context_tokens` tokens with up to `in_flight_tokens` tokens in flight.
    pub fn full_and_sparse_group_blocks(
        &self,
        context_tokens: u32,
        in_flight_tokens: u32,
    ) -> (u32, u32) {
        let size = self.block_size.max(1);
        let sparse = match self.sparse {
            SparseLayerKind::Window(window) => {
                let kept = window.saturating_sub(1).saturating_add(in_flight_tokens);
                // The window may begin inside a block.
                kept.min(context_tokens).div_ceil(size) + 1
            }
            SparseLayerKind::State(most) => most,
        };
        (context_tokens.div_ceil(size), sparse)
    }

    /// Returns the number of KV blocks in all groups for a request of `context_tokens` tokens.
    pub fn kv_blocks_per_request(&self, context_tokens: u32, in_flight_tokens: u32) -> u64 {
        let (full, sparse) = self.full_and_sparse_group_blocks(context_tokens, in_flight_tokens);
        let full = u64::from(self.full_groups) * u64::from(full);
        full + u64::from(self.sparse_groups) * u64::from(sparse)
    }

    /// Returns the number of requests of `context_tokens` tokens that fit into `total_blocks` KV
    /// blocks.
    pub fn max_concurrency(
        &self,
        total_blocks: u32,
        context_tokens: u32,
        in_flight_tokens: u32,
    ) -> f64 {
        let request = self.kv_blocks_per_request(context_tokens, in_flight_tokens).max(1);
        f64::from(total_blocks) / request as f64
    }

    /// Returns the KV cache size of a request of `context_tokens` tokens, in bytes.
    pub fn kv_bytes_per_request(&self, context_tokens: u32, in_flight_tokens: u32) -> f64 {
        let (full, sparse) = self.full_and_sparse_group_blocks(context_tokens, in_flight_tokens);
        let full = f64::from(self.layers.0) * f64::from(full);
        let sparse = f64::from(self.layers.1) * f64::from(sparse);
        (full + sparse) * self.page_bytes
    }

    /// Returns the maximum context of a request, in tokens, whose KV cache fits into
    /// `kv_cache_bytes`; at most `token_limit`, 0 if none fits.
    pub fn max_context_tokens(
        &self,
        kv_cache_bytes: f64,
        token_limit: u32,
        in_flight_tokens: u32,
    ) -> u32 {
        let fits =
            |context: u32| self.kv_bytes_per_request(context, in_flight_tokens) <= kv_cache_bytes;
        let (mut fitting, mut beyond) = (0, token_limit.saturating_add(1));
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            match fits(middle) {
                true => fitting = middle,
                false => beyond = middle,
            }
        }
        fitting
    }
}

/// Returns the bytes per cached number for a `--kv-cache-dtype`, or `None` for an unknown type. The
/// scale of a token and head, if any, is distributed over its `head_dim` numbers.
///
/// **Source:** vLLM 0.33 `vllm/config/cache.py`, `CacheDType`; bits by the names of the types.
pub fn kv_bytes_per_value(dtype: &str, head_dim: u32) -> Option<f64> {
    let scale = 4.0 / f64::from(head_dim.max(1));
    Some(match dtype {
        "auto" | "float16" | "bfloat16" => 2.0,
        "fp8" | "fp8_e4m3" | "fp8_e5m2" | "fp8_inc" => 1.0,
        // 656 bytes for the 576 numbers of a token.
        "fp8_ds_mla" => 656.0 / 576.0,
        "int8_per_token_head" | "fp8_per_token_head" => 1.0 + scale,
        "int4_per_token_head" => 0.5 + scale,
        "nvfp4" | "nvfp4_4over6" | "nvfp4_ds_mla" => 0.5 + 1.0 / 16.0,
        "turboquant_k8v4" => 0.75,
        "turboquant_4bit_nc" | "ultraquant_4bit" => 0.5,
        "turboquant_k3v4_nc" | "octave_k3v4" => 0.4375,
        "turboquant_3bit_nc" | "octave_k3v3" | "octave_k3v3_compact" => 0.375,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::latency::known_model_shape;

    use super::*;

    const GIB: f64 = (1_u64 << 30) as f64;
    /// Two steps of 8192 tokens.
    const IN_FLIGHT: u32 = 16_384;

    fn plan(name: &str) -> KvCachePlan {
        KvCachePlan::new(&known_model_shape(name).unwrap(), 1, 16, 2.0, true)
    }

    #[test]
    fn sliding_window_layers_form_separate_groups() {
        for (name, full, windowed) in [
            ("openai/gpt-oss-20b", 1, 1),
            ("openai/gpt-oss-120b", 1, 1),
            ("google/gemma-3-27b-it", 1, 6),
            ("google/gemma-3-12b-it", 1, 5),
            ("meta-llama/Llama-3.1-8B", 1, 0),
            ("mistralai/Mistral-7B-v0.1", 0, 1),
        ] {
            let plan = plan(name);
            let groups = (plan.full_groups, plan.sparse_groups);
            assert_eq!(groups, (full, windowed), "{name}");
        }
    }

    #[test]
    fn a_cache_of_groups_holds_as_many_tokens_as_vllm_counts() {
        for (name, gib, context, block_bytes, blocks, concurrency, tokens) in [
            ("openai/gpt-oss-20b", 60.0, 131_072, 393_216.0, 163_840, 17.76, 2_327_895),
            ("google/gemma-3-27b-it", 20.0, 131_072, 1_310_720.0, 16_384, 1.11, 145_829),
            ("google/gemma-3-27b-it", 20.0, 32_768, 1_310_720.0, 16_384, 1.91, 62_557),
        ] {
            let plan = plan(name);
            assert_eq!(plan.block_bytes, block_bytes, "{name}");
            let found = (gib * GIB / plan.block_bytes) as u32;
            let times = plan.max_concurrency(found, context, IN_FLIGHT);
            let size = (times * f64::from(context)) as u64;
            let rounded = (times * 100.0).round() / 100.0;
            assert_eq!((found, rounded, size), (blocks, concurrency, tokens), "{name}");
        }
    }

    #[test]
    fn a_block_grows_until_a_state_fits_and_states_form_groups() {
        for (name, step, least, groups, bytes) in [
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", 16, 544, (1, 3), 12.0 * 544.0 * 2048.0),
            // Prompts' states come out of FlashInfer's kernel at multiples of 64 tokens.
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", 64, 576, (1, 3), 12.0 * 576.0 * 2048.0),
            ("nvidia/Nemotron-H-8B-Base-8K", 16, 1040, (1, 6), 4.0 * 1040.0 * 4096.0),
        ] {
            let shape = known_model_shape(name).unwrap();
            let size = KvCachePlan::min_block_size_for_recurrent_state(&shape, 1, 2.0, step);
            assert_eq!(size, Some(least), "{name}");
            let plan = KvCachePlan::new(&shape, 1, least, 2.0, true);
            assert_eq!((plan.full_groups, plan.sparse_groups), groups, "{name}");
            assert_eq!(plan.block_bytes, bytes, "{name}");
        }
        let shape = known_model_shape("Qwen/Qwen3-Next-80B-A3B-Instruct").unwrap();
        let plan = KvCachePlan::new(&shape, 1, 544, 2.0, true);
        assert_eq!(plan.kv_bytes_per_token(), 12.0 * 2048.0);
        // 482 blocks for the tokens, two states in each of three groups; one without a prefix
        // cache.
        assert_eq!(plan.kv_blocks_per_request(262_144, 8192), 482 + 3 * 2);
        let plain = plan.with_recurrent_states_per_request(false, 0);
        assert_eq!(plain.kv_blocks_per_request(262_144, 8192), 482 + 3);
        assert_eq!(
            KvCachePlan::min_block_size_for_recurrent_state(
                &known_model_shape("gpt-oss-20b").unwrap(),
                1,
                2.0,
                16
            ),
            None
        );
    }

    #[test]
    fn the_longest_request_fits_and_one_more_token_does_not() {
        for name in ["openai/gpt-oss-20b", "google/gemma-3-27b-it", "meta-llama/Llama-3.1-8B"] {
            let (plan, bytes) = (plan(name), 3.0 * GIB);
            let longest = plan.max_context_tokens(bytes, 131_072, 4096);
            assert!(longest > 0 && longest < 131_072, "{name}: {longest}");
            assert!(plan.kv_bytes_per_request(longest, 4096) <= bytes);
            assert!(plan.kv_bytes_per_request(longest + 1, 4096) > bytes);
        }
        assert_eq!(plan("openai/gpt-oss-20b").max_context_tokens(1.0, 100, 0), 0);
    }

    #[test]
    fn kv_cache_dtypes_have_bytes_per_value() {
        assert_eq!(kv_bytes_per_value("fp8_e4m3", 128), Some(1.0));
        assert_eq!(kv_bytes_per_value("int8_per_token_head", 128), Some(1.03125));
        assert_eq!(kv_bytes_per_value("float8", 128), None);
    }
}
