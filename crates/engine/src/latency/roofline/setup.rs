use super::coefficients::Coefficients;
use crate::latency::{CudaGraphs, Gpu, ModelShape, WeightRanks};

/// What a deployment looks like to the roofline.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The model.
    pub shape: ModelShape,
    /// The GPU.
    pub gpu: Gpu,
    /// Tensor-parallel size, at least 1.
    pub tp: u32,
    /// Stages of the pipeline, at least 1.
    pub pp: u32,
    /// Ranks that share the tokens of each prompt (prefill context parallelism), at least 1.
    pub pcp: u32,
    /// Data-parallel ranks over which experts are spread; 1: not spread.
    pub expert_ranks: u32,
    /// The next step is scheduled while one runs.
    pub async_scheduling: bool,
    /// Bytes per number in the KV cache: 2, or 1 with fp8.
    pub kv_bytes: u32,
    /// Sampling sorts the vocabulary (top-p or top-k).
    pub truncated_sampling: bool,
    /// Sampling penalizes what was said before (repetition, presence or frequency penalty).
    pub penalized_sampling: bool,
    /// Sizes of which a step's kernels are captured.
    pub graphs: CudaGraphs,
    /// The adjustable numbers.
    pub coefficients: Coefficients,
}

impl Setup {
    /// A model on one GPU with the usual settings.
    pub fn new(shape: ModelShape, gpu: Gpu) -> Self {
        Self {
            shape,
            gpu,
            tp: 1,
            pp: 1,
            pcp: 1,
            expert_ranks: 1,
            async_scheduling: true,
            kv_bytes: 2,
            truncated_sampling: false,
            penalized_sampling: false,
            graphs: CudaGraphs::default(),
            coefficients: Coefficients::default(),
        }
    }

    /// GPUs that share the weights.
    pub fn ranks(&self) -> WeightRanks {
        WeightRanks::new(self.tp, self.expert_ranks.saturating_mul(self.pcp))
    }

    /// GPUs of one engine.
    pub fn gpus(&self) -> u32 {
        self.tp.saturating_mul(self.pp).saturating_mul(self.pcp)
    }
}
