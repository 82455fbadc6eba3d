use crate::SimTime;

/// Tracks past steps to decide whether the next step may compute prompt tokens.
///
/// **Source:** `prefill_schedule_interval`, vLLM 0.33 `vllm/v1/core/sched/scheduler.py`; for
/// data-parallel ranks `_should_throttle_prefills`, `vllm/v1/engine/core.py`.
#[derive(Debug)]
pub(super) struct PrefillThrottleState {
    /// Number of steps since the last step with prompt tokens.
    pub since: u32,
    /// Number of steps of a data-parallel rank since all ranks were idle.
    pub wave_steps: u64,
    /// Whether the last step of a data-parallel rank left no sequence that had arrived before the
    /// step was planned.
    pub was_idle: bool,
    /// Whether a data-parallel rank had sequences at its last scheduling pass, and has run no step
    /// since.
    pub is_awake: bool,
    /// Whether sequences were still waiting after the last scheduling pass that was allowed to
    /// compute prompt tokens.
    pub was_short: bool,
}

impl Default for PrefillThrottleState {
    fn default() -> Self {
        Self { since: u32::MAX, wave_steps: 0, was_idle: false, is_awake: false, was_short: false }
    }
}

/// Keeps the times of step ends and lease expiries, which vLLM's engine core processes before or
/// after inputs of the same time.
#[derive(Debug, Default)]
pub(super) struct EndsBeforeInputs {
    /// Time of the last step end; `None` after the next scheduling pass. vLLM reads commands
    /// between the end and the pass.
    pub step: Option<SimTime>,
    /// End of the last step.
    pub last_step: SimTime,
    /// Time of the last ends of loads, leases and copies without a running step. Inputs of that
    /// time come first.
    pub transfers: Option<SimTime>,
}
