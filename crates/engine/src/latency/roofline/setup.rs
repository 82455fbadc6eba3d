use super::coefficients::RooflineCoefficients;
use crate::latency::{
    All2AllBackend, CudaGraphs, Gpu, ModelShape, ProfileRun, WeightShardingRanks,
};

/// Describes a deployment whose step times the roofline models.
#[derive(Debug, Clone, PartialEq)]
pub struct RooflineModelSetup {
    /// Layer sizes of the model.
    pub shape: ModelShape,
    /// GPU type of the deployment.
    pub gpu: Gpu,
    /// Number of GPUs that share each layer (tensor-parallel size), at least 1.
    pub tp: u32,
    /// Number of pipeline stages, at least 1.
    pub pp: u32,
    /// Number of ranks of prefill context parallelism, at least 1.
    pub pcp: u32,
    /// Number of data-parallel ranks that each hold a part of the experts; 1: experts are not
    /// spread.
    pub expert_ranks: u32,
    /// Whether a data-parallel rank holds whole experts (expert parallelism); if false, it holds a
    /// slice of every expert, as vLLM flattens tensor over data parallelism.
    pub expert_parallel: bool,
    /// Backend of the token exchange between the ranks of experts.
    pub all2all: All2AllBackend,
    /// Whether the next step is scheduled while one runs (asynchronous scheduling).
    pub async_scheduling: bool,
    /// Whether fp32 matrix products use TF32 (`VLLM_FLOAT32_MATMUL_PRECISION=high`).
    pub tf32_products: bool,
    /// Bytes per number in the KV cache: 2, or 1 with fp8.
    pub kv_bytes: u32,
    /// Whether sampling sorts the vocabulary (top-p or top-k).
    pub truncated_sampling: bool,
    /// Whether sampling penalizes repeated tokens (repetition, presence or frequency penalty).
    pub penalized_sampling: bool,
    /// Batch sizes with captured CUDA graphs.
    pub graphs: CudaGraphs,
    /// Coefficients of the roofline model that a calibration may change.
    pub coefficients: RooflineCoefficients,
}

impl RooflineModelSetup {
    /// Creates the deployment of a model on one GPU with default roofline settings.
    pub fn new(shape: ModelShape, gpu: Gpu) -> Self {
        Self {
            shape,
            gpu,
            tp: 1,
            pp: 1,
            pcp: 1,
            expert_ranks: 1,
            expert_parallel: true,
            all2all: All2AllBackend::default(),
            async_scheduling: true,
            tf32_products: false,
            kv_bytes: 2,
            truncated_sampling: false,
            penalized_sampling: false,
            graphs: CudaGraphs::default(),
            coefficients: RooflineCoefficients::default(),
        }
    }

    /// Returns the number of GPUs over which each kind of weights is sharded.
    pub fn weight_ranks(&self) -> WeightShardingRanks {
        WeightShardingRanks::new(self.tp, self.expert_ranks.saturating_mul(self.pcp))
    }

    /// Returns the profile run of an engine whose steps have at most `batched_tokens` tokens and
    /// `seqs` sequences.
    pub fn profile_run(&self, batched_tokens: u32, seqs: u32) -> ProfileRun {
        ProfileRun::profile_run_of_newest_vllm(
            batched_tokens,
            seqs,
            self.graphs.cudagraph_capture_sizes().len() as u32,
        )
    }

    /// Returns the number of GPUs of one data-parallel engine.
    pub fn gpu_count(&self) -> u32 {
        self.tp.saturating_mul(self.pp).saturating_mul(self.pcp)
    }
}
