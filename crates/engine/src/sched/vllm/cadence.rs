/// Tracks past steps to decide whether the next one may prefill.
///
/// **Source:** `prefill_schedule_interval`, vLLM 0.33 `vllm/v1/core/sched/scheduler.py`.
#[derive(Debug)]
pub(super) struct PrefillCadence {
    /// Number of steps since the last one with prompt tokens.
    pub since: u32,
    /// Whether sequences were still waiting after the last pass that was allowed to prefill.
    pub was_short: bool,
}

impl Default for PrefillCadence {
    fn default() -> Self {
        Self { since: u32::MAX, was_short: false }
    }
}
