use super::error::RooflineError;

/// Coefficients of the roofline model that a calibration may change.
///
/// The defaults are fitted to the public runs of docs/fidelity.md. benches/results/fidelity.md
/// lists these runs, and the errors on runs outside of the fit.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RooflineCoefficients {
    /// Time of a request in the API server before the engine's queue, in us: HTTP, tokenization,
    /// first chunk.
    pub front_end_us: f64,
    /// Additional API server time per request in progress, in us. The API server sends the tokens
    /// of a step to one sequence after another, to the newest sequence last.
    pub front_end_sequence_us: f64,
    /// Additional API server time per prompt token, in us, to tokenize and pass on the prompt.
    pub front_end_token_us: f64,
    /// Factor of all step times, for a fit that cannot distinguish the parts of a step.
    pub step_scale: f64,
    /// Fixed time per engine step, in us.
    pub step_us: f64,
    /// Additional time per step without asynchronous scheduling, in us.
    pub sync_us: f64,
    /// Time per sequence of an engine step, in us.
    pub sequence_us: f64,
    /// Additional time per sequence of a step without asynchronous scheduling, in us, for CPU work
    /// that would otherwise overlap with a running step.
    pub sync_sequence_us: f64,
    /// Time per sequence and vocabulary entry with truncated sampling (top-k or top-p), in us, at
    /// 3.35 TB/s.
    pub vocab_us: f64,
    /// Additional time per step with truncated sampling, in us, for the kernels of top-k and top-p.
    pub truncated_us: f64,
    /// Additional time of a step per vocabulary entry with truncated sampling, in us. The time does
    /// not depend on the number of rows, which are truncated in parallel.
    pub truncated_vocab_us: f64,
    /// Time per sequence and vocabulary entry with a repetition penalty, in us, at 3.35 TB/s: 85
    /// bytes each, of two token counts, their masks and the logits. Not fitted.
    ///
    /// **Source:** vLLM `vllm/model_executor/layers/utils.py`, `apply_penalties`.
    pub penalty_vocab_us: f64,
    /// Additional time of a step with a prompt chunk (no full CUDA graph), in us.
    pub mixed_us: f64,
    /// Fraction of the KV cache reads of decode attention that is repeated for each further query
    /// head of a group, in steps with a prompt chunk and flash attention 2. That version packs the
    /// heads of a group only if each sequence has one token; GPU caches serve the other reads.
    pub mixed_group_share: f64,
    /// Time of small kernels per model layer, in us.
    pub layer_us: f64,
    /// Time to normalize queries and keys per model layer, in us: two small kernels in a CUDA
    /// graph. Not fitted.
    pub qk_norm_us: f64,
    /// Factor of the bandwidth efficiency of matrix products; 1: as in the GPU's fit.
    pub gemm_memory_scale: f64,
    /// Factor of the arithmetic efficiency of matrix products; 1: as in the GPU's fit.
    pub gemm_compute_scale: f64,
    /// Factor of the bandwidth efficiency of decode attention; 1: as in the GPU's fit.
    pub attention_scale: f64,
    /// Factor of the modelled duration of an all-reduce; 1: as measured.
    pub all_reduce_scale: f64,
    /// Factor of the modelled duration of expert kernels; 1: as in the GPU's fit.
    pub moe_scale: f64,
    /// Shape of the gamma distribution of how often tokens choose an expert, times the number of
    /// experts. Experts are not equally popular, so a step reads fewer of them than with equal
    /// chances. Fitted to InferenceX points of models with 128, 256 and 384 experts.
    pub expert_popularity: f64,
}

impl Default for RooflineCoefficients {
    fn default() -> Self {
        Self {
            front_end_us: 3400.0,
            front_end_sequence_us: 45.0,
            front_end_token_us: 3.2,
            step_scale: 1.0,
            step_us: 81.5,
            sync_us: 417.5,
            sequence_us: 4.51,
            sync_sequence_us: 1.24,
            vocab_us: 38.8e-6,
            truncated_us: 201.8,
            truncated_vocab_us: 2.69e-3,
            penalty_vocab_us: 25.4e-6,
            mixed_us: 610.0,
            mixed_group_share: 0.395,
            layer_us: 15.1,
            qk_norm_us: 4.0,
            gemm_memory_scale: 1.0,
            gemm_compute_scale: 1.0,
            attention_scale: 1.0,
            all_reduce_scale: 1.0,
            moe_scale: 1.0,
            expert_popularity: 356.0,
        }
    }
}

impl RooflineCoefficients {
    /// Checks the range of each roofline coefficient.
    ///
    /// # Errors
    /// [`RooflineError::Coefficient`] names the first one out of range.
    pub(super) fn check_coefficient_ranges(&self) -> Result<(), RooflineError> {
        let co = self;
        for (what, value, positive) in [
            ("front_end_us", co.front_end_us, false),
            ("front_end_sequence_us", co.front_end_sequence_us, false),
            ("front_end_token_us", co.front_end_token_us, false),
            ("step_scale", co.step_scale, true),
            ("step_us", co.step_us, false),
            ("sync_us", co.sync_us, false),
            ("sequence_us", co.sequence_us, false),
            ("sync_sequence_us", co.sync_sequence_us, false),
            ("vocab_us", co.vocab_us, false),
            ("truncated_us", co.truncated_us, false),
            ("truncated_vocab_us", co.truncated_vocab_us, false),
            ("penalty_vocab_us", co.penalty_vocab_us, false),
            ("mixed_us", co.mixed_us, false),
            ("mixed_group_share", co.mixed_group_share, false),
            ("layer_us", co.layer_us, false),
            ("qk_norm_us", co.qk_norm_us, false),
            ("gemm_memory_scale", co.gemm_memory_scale, true),
            ("gemm_compute_scale", co.gemm_compute_scale, true),
            ("attention_scale", co.attention_scale, true),
            ("all_reduce_scale", co.all_reduce_scale, true),
            ("moe_scale", co.moe_scale, true),
            ("expert_popularity", co.expert_popularity, true),
        ] {
            let bound = if positive { "more than 0" } else { "0 or more" };
            if !value.is_finite() || value < 0.0 || (positive && value == 0.0) {
                return Err(RooflineError::Coefficient { what, value, bound });
            }
        }
        Ok(())
    }
}
