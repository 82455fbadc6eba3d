use super::ModelShape;

/// How the cache of a model is cut into blocks.
///
/// Layers of one kind form a bucket: those that see everything, and those that see a window. Buckets
/// are cut into groups of equally many layers, and all groups share one pool: a block belongs to one
/// group and holds its tokens in all layers of that group.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/kv_cache_planning.py`,
/// `_get_kv_cache_groups_uniform_page_size`; `vllm/v1/kv_cache_interface.py`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvCachePlan {
    /// Tokens per block.
    pub block_size: u32,
    /// One block on one GPU, bytes.
    pub block_bytes: f64,
    /// Groups whose layers see everything.
    pub full_groups: u32,
    /// Groups whose layers see a window.
    pub window_groups: u32,
    /// That window, in tokens; 0: there is none.
    pub window: u32,
    /// Layers of both kinds.
    layers: (u32, u32),
    /// A block of one layer, bytes.
    page_bytes: f64,
}

impl KvCachePlan {
    /// The blocks of a model on each of `tp` GPUs; `width`: bytes per cached number. Without `hybrid`
    /// layers with a window are kept as if they saw everything.
    pub fn new(shape: &ModelShape, tp: u32, block_size: u32, width: f64, hybrid: bool) -> Self {
        let token = shape.kv_bytes_per_token(tp, 1) as f64 / f64::from(shape.layers.max(1));
        let page_bytes = token * width * f64::from(block_size);
        let window = shape.window.filter(|window| hybrid && window.layers > 0);
        let windowed = window.map_or(0, |window| window.layers.min(shape.layers));
        let full = shape.layers - windowed;
        let group = match (full.min(windowed), full.max(windowed)) {
            (0, all) => all,
            // Nearly as many of both: the smaller bucket is filled up.
            (small, large) if f64::from(large) < 1.5 * f64::from(small) => large,
            (small, _) => small,
        };
        Self {
            block_size,
            block_bytes: f64::from(group) * page_bytes,
            full_groups: full.div_ceil(group.max(1)),
            window_groups: windowed.div_ceil(group.max(1)),
            window: window.map_or(0, |window| window.tokens),
            layers: (full, windowed),
            page_bytes,
        }
    }

    /// Bytes of one token in all layers.
    pub fn token_bytes(&self) -> f64 {
        f64::from(self.layers.0 + self.layers.1) * self.page_bytes
            / f64::from(self.block_size.max(1))
    }

    /// Blocks of a group whose layers see everything, and of one with a window, for a request of
    /// `context` tokens of which `in_flight` may be scheduled and not settled.
    fn group_blocks(&self, context: u32, in_flight: u32) -> (u32, u32) {
        let size = self.block_size.max(1);
        let kept = (self.window.saturating_sub(1)).saturating_add(in_flight);
        // The window may begin inside a block.
        let windowed = kept.min(context).div_ceil(size) + 1;
        (context.div_ceil(size), windowed)
    }

    /// Requests of `context` tokens that `blocks` blocks have room for.
    pub fn concurrency(&self, blocks: u32, context: u32, in_flight: u32) -> f64 {
        let (full, windowed) = self.group_blocks(context, in_flight);
        let full = u64::from(self.full_groups) * u64::from(full);
        let windowed = u64::from(self.window_groups) * u64::from(windowed);
        f64::from(blocks) / ((full + windowed).max(1) as f64)
    }

    /// Bytes that a request of `context` tokens takes.
    pub fn request_bytes(&self, context: u32, in_flight: u32) -> f64 {
        let (full, windowed) = self.group_blocks(context, in_flight);
        let full = f64::from(self.layers.0) * f64::from(full);
        let windowed = f64::from(self.layers.1) * f64::from(windowed);
        (full + windowed) * self.page_bytes
    }

    /// The longest request, of `most` tokens at most, that fits into `bytes`; 0: none does.
    pub fn longest(&self, bytes: f64, most: u32, in_flight: u32) -> u32 {
        let fits = |context: u32| self.request_bytes(context, in_flight) <= bytes;
        let (mut fitting, mut beyond) = (0, most.saturating_add(1));
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

/// Bytes per cached number with this `--kv-cache-dtype`; `None`: there is no such type. The scales of
/// types that have one per token and head are shared by the `head_dim` numbers of the head.
///
/// **Source:** vLLM 0.33 `vllm/config/cache.py`, `CacheDType`; bits by the names of the types.
pub fn kv_width(dtype: &str, head_dim: u32) -> Option<f64> {
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
    use crate::latency::model;

    use super::*;

    const GIB: f64 = (1_u64 << 30) as f64;
    /// Two steps of 8192 tokens.
    const IN_FLIGHT: u32 = 16_384;

    fn plan(name: &str) -> KvCachePlan {
        KvCachePlan::new(&model(name).unwrap(), 1, 16, 2.0, true)
    }

    #[test]
    fn layers_with_a_window_form_groups_of_their_own() {
        for (name, full, windowed) in [
            ("openai/gpt-oss-20b", 1, 1),
            ("openai/gpt-oss-120b", 1, 1),
            ("google/gemma-3-27b-it", 1, 6),
            ("google/gemma-3-12b-it", 1, 5),
            ("meta-llama/Llama-3.1-8B", 1, 0),
            ("mistralai/Mistral-7B-v0.1", 0, 1),
        ] {
            let plan = plan(name);
            let groups = (plan.full_groups, plan.window_groups);
            assert_eq!(groups, (full, windowed), "{name}");
        }
    }

    #[test]
    fn a_cache_of_groups_holds_as_many_tokens_as_vllm_counts() {
        for (name, gib, context, block_bytes, blocks, concurrency, tokens) in [
            (
                "openai/gpt-oss-20b",
                60.0,
                131_072,
                393_216.0,
                163_840,
                17.76,
                2_327_895,
            ),
            (
                "google/gemma-3-27b-it",
                20.0,
                131_072,
                1_310_720.0,
                16_384,
                1.11,
                145_829,
            ),
            (
                "google/gemma-3-27b-it",
                20.0,
                32_768,
                1_310_720.0,
                16_384,
                1.91,
                62_557,
            ),
        ] {
            let plan = plan(name);
            assert_eq!(plan.block_bytes, block_bytes, "{name}");
            let found = (gib * GIB / plan.block_bytes) as u32;
            let times = plan.concurrency(found, context, IN_FLIGHT);
            let size = (times * f64::from(context)) as u64;
            let rounded = (times * 100.0).round() / 100.0;
            assert_eq!(
                (found, rounded, size),
                (blocks, concurrency, tokens),
                "{name}"
            );
        }
    }

    #[test]
    fn the_longest_request_fits_and_one_more_token_does_not() {
        for name in [
            "openai/gpt-oss-20b",
            "google/gemma-3-27b-it",
            "meta-llama/Llama-3.1-8B",
        ] {
            let (plan, bytes) = (plan(name), 3.0 * GIB);
            let longest = plan.longest(bytes, 131_072, 4096);
            assert!(longest > 0 && longest < 131_072, "{name}: {longest}");
            assert!(plan.request_bytes(longest, 4096) <= bytes);
            assert!(plan.request_bytes(longest + 1, 4096) > bytes);
        }
        assert_eq!(plan("openai/gpt-oss-20b").longest(1.0, 100, 0), 0);
    }

    #[test]
    fn types_have_widths() {
        assert_eq!(kv_width("fp8_e4m3", 128), Some(1.0));
        assert_eq!(kv_width("int8_per_token_head", 128), Some(1.03125));
        assert_eq!(kv_width("float8", 128), None);
    }
}
