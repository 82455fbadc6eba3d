//! Models the memory that vLLM keeps free for its largest step.

use super::{ModelShape, QuantizationScheme};

/// Describes vLLM's profile run at start, a step of the maximum size that serves to measure the
/// engine's memory use.
///
/// The constants are read from start-up logs of 28 models on H100, vLLM 0.15 to 0.19
/// (`tests/fixtures/memory`).
///
/// **Source:** vLLM 0.33 `vllm/v1/worker/gpu_worker.py`, `determine_available_memory`;
/// `vllm/v1/worker/gpu_model_runner.py`, `profile_run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileRun {
    /// Token budget of a step (`max_num_batched_tokens`).
    pub batched_tokens: u32,
    /// Number of sequences whose next tokens are sampled (`max_num_seqs`).
    pub seqs: u32,
    /// Number of captured CUDA graph sizes.
    pub graph_sizes: u32,
    /// Version of vLLM (major, minor).
    pub version: (u32, u32),
}

/// Newest version of vLLM, whose memory rules apply if no version is given.
const NEWEST_VERSION: (u32, u32) = (0, 33);
/// First vLLM version with a vocabulary filter that does not sort and takes less memory.
const UNSORTED_SAMPLING_VERSION: (u32, u32) = (0, 17);
/// First vLLM version with larger buffers outside of torch.
const LARGE_BUFFERS_VERSION: (u32, u32) = (0, 18);
/// First vLLM version that subtracts the memory of CUDA graphs from that of the KV cache.
const PROFILED_GRAPHS_VERSION: (u32, u32) = (0, 21);
/// Memory to sample a token, in bytes per entry of the vocabulary: before and since
/// `UNSORTED_SAMPLING_VERSION`.
const SAMPLER_BYTES: [f64; 2] = [38.4, 14.95];
/// Memory outside of torch, in GiB, before and since `LARGE_BUFFERS_VERSION`: on one GPU, and on
/// each of several GPUs, which have buffers for all-reduces.
const NON_TORCH_GIB: [[f64; 2]; 2] = [[0.13, 0.65], [0.25, 2.1]];
/// Memory of the CUDA graphs of one batch size, in bytes per model layer: of the piecewise graph,
/// and of the full graph.
const GRAPH_LAYER_BYTES: f64 = 0.45 * 1024.0 * 1024.0;
const GIB: f64 = (1_u64 << 30) as f64;

impl ProfileRun {
    /// Creates the profile run of the newest vLLM version.
    pub fn profile_run_of_newest_vllm(
        max_batched_tokens: u32,
        max_num_seqs: u32,
        cuda_graph_count: u32,
    ) -> Self {
        Self {
            batched_tokens: max_batched_tokens,
            seqs: max_num_seqs,
            graph_sizes: cuda_graph_count,
            version: NEWEST_VERSION,
        }
    }

    /// Returns the memory on each of `tp` GPUs that holds neither weights nor the KV cache, in
    /// bytes.
    pub(super) fn overhead_bytes_per_gpu(&self, shape: &ModelShape, tp: u32) -> f64 {
        let since = |version| usize::from(self.version >= version);
        let non_torch = NON_TORCH_GIB[since(LARGE_BUFFERS_VERSION)][usize::from(tp > 1)] * GIB;
        let graphs = match self.version >= PROFILED_GRAPHS_VERSION {
            true => f64::from(shape.layers) * f64::from(self.graph_sizes) * GRAPH_LAYER_BYTES,
            false => 0.0,
        };
        let sampler = f64::from(self.seqs.min(self.batched_tokens))
            * f64::from(shape.vocab)
            * SAMPLER_BYTES[since(UNSORTED_SAMPLING_VERSION)];
        let hidden = f64::from(self.batched_tokens) * 2.0 * f64::from(shape.hidden);
        // Samplers run after the layers, whose output and expert buffers remain.
        let sampling = sampler + hidden + self.expert_buffer_bytes(shape, tp);
        let activations = sampling.max(self.layer_bytes(shape, tp));
        activations + non_torch + graphs + rotary_table_bytes(shape)
    }

    /// Returns the size of the activations of a layer, in bytes: both halves of the MLP's input,
    /// its product, and four vectors of the hidden size.
    fn layer_bytes(&self, shape: &ModelShape, tp: u32) -> f64 {
        let dense = shape.moe.is_none_or(|moe| moe.layers < shape.layers);
        let shared = shape.moe.map_or(0, |moe| moe.shared);
        let width = f64::from(if dense { shape.intermediate } else { shared });
        let matrices = if shape.gated { 3.0 } else { 2.0 };
        let numbers = matrices * width / f64::from(tp.max(1)) + 4.0 * f64::from(shape.hidden);
        f64::from(self.batched_tokens) * 2.0 * numbers
    }

    /// Returns the size of the buffers that expert kernels keep between steps, in bytes. The logs
    /// of servers of gpt-oss show no such buffers.
    fn expert_buffer_bytes(&self, shape: &ModelShape, tp: u32) -> f64 {
        let scheme = shape.quantization.scheme;
        let Some(moe) = shape.moe.filter(|_| scheme != QuantizationScheme::Mxfp4) else {
            return 0.0;
        };
        let hidden = f64::from(shape.hidden);
        let chosen = f64::from(moe.per_token);
        let width = chosen * f64::from(moe.intermediate) / f64::from(tp.max(1));
        let numbers = (2.0 * width).max(chosen * hidden) + width + hidden;
        f64::from(self.batched_tokens) * 2.0 * numbers
    }
}

/// Returns the size of the table of rotary embeddings, in bytes: a row per position of the longest
/// context. The table of Llama 4 Scout takes 2.7 GB on each GPU.
fn rotary_table_bytes(shape: &ModelShape) -> f64 {
    // Recorded runs do not name the context of their model.
    if shape.max_context == u32::MAX {
        return 0.0;
    }
    let width = shape.mla.map_or(shape.head_dim, |mla| mla.rope_dim);
    f64::from(shape.max_context) * f64::from(width) * 2.0
}
