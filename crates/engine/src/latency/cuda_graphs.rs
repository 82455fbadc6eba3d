//! Models the effect of CUDA graphs on the duration of a step.

/// Time to launch the kernels of a layer from Python, without CUDA graphs or compilation, in us.
///
/// Not measured: 3 to 8 ms per step are usual for models of 32 to 80 layers.
pub(super) const EAGER_LAYER_LAUNCH_US: f64 = 95.0;

/// Number of tokens per step above which computing on the GPU takes longer than launching the
/// kernels.
const LAUNCH_BOUND_TOKENS: u64 = 512;

/// Lists the batch sizes, in tokens, with captured CUDA graphs. A step is padded to the next size;
/// a larger step runs without a graph.
///
/// **Source:** vLLM 0.33 `vllm/config/vllm.py`, `_set_cudagraph_sizes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaGraphs {
    /// Captured batch sizes in tokens, ascending; empty for `--enforce-eager`.
    sizes: Vec<u32>,
}

/// Holds the settings from which vLLM computes its default CUDA graph sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaGraphLimits {
    /// Maximum number of running sequences (`max_num_seqs`).
    pub seqs: u32,
    /// Token budget of a step (`max_num_batched_tokens`).
    pub tokens: u32,
    /// Number of draft tokens per sequence and step.
    pub drafts: u32,
    /// Largest batch size for which vLLM captures a CUDA graph, in tokens; `None`: depends on the
    /// GPU.
    pub most: Option<u32>,
    /// Whether the GPU is a data-center Blackwell, for which vLLM captures CUDA graphs up to 1024
    /// tokens.
    pub blackwell: bool,
    /// Whether every small batch size is captured (`--performance-mode interactivity`).
    pub dense: bool,
}

impl Default for CudaGraphs {
    fn default() -> Self {
        Self::vllm_default_sizes(CudaGraphLimits {
            seqs: 256,
            tokens: 2048,
            drafts: 0,
            most: None,
            blackwell: false,
            dense: false,
        })
    }
}

impl CudaGraphs {
    /// Settings for a server without CUDA graphs.
    pub const NO_CUDA_GRAPHS: Self = Self { sizes: Vec::new() };

    /// Creates the list of captured CUDA graph sizes from the configured `sizes`, without sizes
    /// above `max_capture_size`.
    pub fn from_configured_sizes(mut sizes: Vec<u32>, max_capture_size: u32) -> Self {
        sizes.retain(|size| (1..=max_capture_size).contains(size));
        sizes.sort_unstable();
        sizes.dedup();
        Self { sizes }
    }

    /// Creates the list of CUDA graph sizes that vLLM captures by default.
    pub fn vllm_default_sizes(limits: CudaGraphLimits) -> Self {
        let ceiling = if limits.blackwell { 1024 } else { 512 };
        let rows = limits.drafts + 1;
        let usual = limits.seqs.saturating_mul(rows).saturating_mul(2).min(ceiling);
        let most = limits.most.unwrap_or(usual).min(limits.tokens);
        let mut sizes = match limits.dense {
            true => (1..=most.min(32)).chain(default_sizes_up_to(most)).collect(),
            false => [1, 2, 4].into_iter().chain(default_sizes_up_to(most)).collect::<Vec<_>>(),
        };
        sizes.push(limits.tokens);
        if limits.most.is_none() {
            // Steps in which all sequences have all their drafts.
            let most = limits.seqs.min(ceiling);
            let counts = [1, 2, 4].into_iter().chain(default_sizes_up_to(most)).chain([most]);
            let widths = counts.filter(|count| *count <= most).map(|count| count * rows);
            match rows {
                1 => sizes.push(limits.seqs),
                _ => sizes.extend(widths),
            }
        }
        sizes.retain(|size| *size <= most);
        Self::from_configured_sizes(sizes, limits.tokens)
    }

    /// Returns the captured CUDA graph sizes in tokens, ascending.
    pub fn cudagraph_capture_sizes(&self) -> &[u32] {
        &self.sizes
    }

    #[inline]
    pub(super) fn padded_tokens(&self, tokens: u64) -> u64 {
        let tokens32 = u32::try_from(tokens).unwrap_or(u32::MAX);
        let at = self.sizes.partition_point(|size| *size < tokens32);
        self.sizes.get(at).map_or(tokens, |size| u64::from(*size))
    }

    /// Returns whether a step of `tokens` tokens is larger than every captured CUDA graph.
    pub(super) fn exceeds_largest_graph(&self, tokens: u64) -> bool {
        self.sizes.last().is_none_or(|most| u64::from(*most) < tokens)
    }

    /// Returns whether a step has more than 512 tokens, or more than the largest captured CUDA
    /// graph.
    pub(super) fn exceeds_launch_bound_or_graph(&self, tokens: u64) -> bool {
        tokens > LAUNCH_BOUND_TOKENS || self.exceeds_largest_graph(tokens)
    }

    pub(super) fn is_launch_bound(&self, tokens: u64) -> bool {
        self.sizes.is_empty() && tokens <= LAUNCH_BOUND_TOKENS
    }
}

fn default_sizes_up_to(most: u32) -> impl Iterator<Item = u32> {
    let fine = (8..=most.min(255)).step_by(8);
    fine.chain((256..=most).step_by(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: CudaGraphLimits = CudaGraphLimits {
        seqs: 1024,
        tokens: 8192,
        drafts: 0,
        most: None,
        blackwell: false,
        dense: false,
    };

    #[test]
    fn default_cuda_graph_sizes_equal_vllm() {
        let graphs = CudaGraphs::vllm_default_sizes(SERVER);
        assert_eq!(graphs.cudagraph_capture_sizes()[..5], [1, 2, 4, 8, 16]);
        assert_eq!(graphs.cudagraph_capture_sizes().last(), Some(&512));
        let padded = [1, 3, 9, 250, 257, 512, 513].map(|tokens| graphs.padded_tokens(tokens));
        assert_eq!(padded, [1, 4, 16, 256, 272, 512, 513]);
        let blackwell =
            CudaGraphs::vllm_default_sizes(CudaGraphLimits { blackwell: true, ..SERVER });
        assert_eq!(blackwell.cudagraph_capture_sizes().last(), Some(&1024));
        let few = CudaGraphs::vllm_default_sizes(CudaGraphLimits { seqs: 5, ..SERVER });
        assert_eq!(few.cudagraph_capture_sizes(), [1, 2, 4, 5, 8]);
    }

    #[test]
    fn drafts_have_separate_graph_sizes() {
        let drafting = CudaGraphs::vllm_default_sizes(CudaGraphLimits { drafts: 2, ..SERVER });
        let padded = [3, 6, 9].map(|tokens| drafting.padded_tokens(tokens));
        assert_eq!(padded, [3, 6, 12]);
        let dense = CudaGraphs::vllm_default_sizes(CudaGraphLimits { dense: true, ..SERVER });
        assert_eq!((dense.padded_tokens(27), dense.padded_tokens(35)), (27, 40));
    }

    #[test]
    fn configured_cuda_graph_sizes_are_sorted() {
        let typed = CudaGraphs::from_configured_sizes(vec![64, 8, 8, 9000], 2048);
        assert_eq!(typed.cudagraph_capture_sizes(), [8, 64]);
        assert_eq!((typed.padded_tokens(3), typed.padded_tokens(65)), (8, 65));
        let eager = CudaGraphs::NO_CUDA_GRAPHS;
        assert!(eager.is_launch_bound(1) && !eager.is_launch_bound(4096));
        assert!(!typed.is_launch_bound(100));
    }
}
