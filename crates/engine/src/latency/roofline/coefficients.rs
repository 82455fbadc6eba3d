use super::error::RooflineError;

/// The few numbers that a calibration may move; the rest is physics and kernel tables.
///
/// The defaults were fitted to the public runs of docs/fidelity.md. benches/results/fidelity.md
/// names these runs, and the errors on runs that were left out of the fit.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Coefficients {
    /// Front end: HTTP, tokenisation, first-chunk delivery. Charged once, before queueing.
    pub front_end_us: f64,
    /// The same for every request in progress: the front end hands out the tokens of a step one
    /// sequence after the other, and the newest sequence comes last.
    pub front_end_sequence_us: f64,
    /// Every step.
    pub step_us: f64,
    /// Every step when the next one is not scheduled ahead.
    pub sync_us: f64,
    /// Every sequence of a step.
    pub sequence_us: f64,
    /// The same once more when the next step is not scheduled ahead: work of the CPU that a running
    /// step hides otherwise.
    pub sync_sequence_us: f64,
    /// Every sequence and vocabulary entry, at 3.35 TB/s, when sampling is truncated.
    pub vocab_us: f64,
    /// Every step when sampling is truncated: the extra kernels of top-k and top-p.
    pub truncated_us: f64,
    /// The same for every vocabulary entry: rows are cut side by side, so that the length of one
    /// counts and not their number.
    pub truncated_vocab_us: f64,
    /// Every sequence and vocabulary entry, at 3.35 TB/s, when a penalty on repetition is in force:
    /// 85 bytes each, of two counts of tokens, their masks and the logits. Fitted to nothing.
    /// **Source:** vLLM `vllm/model_executor/layers/utils.py`, `apply_penalties`.
    pub penalty_vocab_us: f64,
    /// A step with a prompt chunk (no full CUDA graph).
    pub mixed_us: f64,
    /// Share of what decode attention reads that is read once more for every further query head of
    /// a group, where a prompt chunk shares the step and flash attention is version 2: it packs
    /// the heads of a group only when each sequence has one token. Caches hold the rest.
    pub mixed_group_share: f64,
    /// Small kernels, per layer.
    pub layer_us: f64,
    /// Norms of queries and keys, per layer of a model that has them: two kernels more, at what a
    /// small kernel takes inside a CUDA graph. Fitted to nothing.
    pub qk_norm_us: f64,
    /// Times the share of bandwidth that matrix products reach.
    pub gemm_memory_scale: f64,
    /// Times the share of peak that matrix products reach.
    pub gemm_compute_scale: f64,
    /// Times the share of bandwidth that decode attention reaches.
    pub attention_scale: f64,
    /// Times the duration of an all-reduce.
    pub all_reduce_scale: f64,
    /// Times the duration of expert kernels.
    pub moe_scale: f64,
}

impl Default for Coefficients {
    fn default() -> Self {
        Self {
            front_end_us: 5600.0,
            front_end_sequence_us: 45.0,
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
        }
    }
}

impl Coefficients {
    /// # Errors
    /// [`RooflineError::Coefficient`] names the one that cannot be used.
    pub(super) fn check(&self) -> Result<(), RooflineError> {
        let co = self;
        for (what, value, positive) in [
            ("front_end_us", co.front_end_us, false),
            ("front_end_sequence_us", co.front_end_sequence_us, false),
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
        ] {
            let bound = if positive { "more than 0" } else { "0 or more" };
            if !value.is_finite() || value < 0.0 || (positive && value == 0.0) {
                return Err(RooflineError::Coefficient { what, value, bound });
            }
        }
        Ok(())
    }
}
