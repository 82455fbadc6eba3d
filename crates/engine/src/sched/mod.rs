//! Implements the schedulers behind the [`Scheduler`](super::Scheduler) trait.
//!
//! [`pool`] runs each sequence on its own timeline. The batching schedulers run steps; a
//! [`LatencyModel`](super::latency::LatencyModel) returns the duration of each step.

pub mod dynamo_mocker;
pub mod pool;
pub mod sglang;
mod spec;
pub mod vllm;

pub use spec::SchedulerSpec;

use crate::SeqId;
use crate::SimTime;

/// Records the admission of a sequence to the running batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmittedSequence {
    /// Id of the admitted sequence.
    pub id: SeqId,
    /// Simulated time of the admission.
    pub at: SimTime,
    /// Number of the sequence's cached prompt tokens, on the GPU or in host memory.
    pub cached: u32,
    /// Number of the sequence's prompt tokens loaded from host memory by Dynamo's mocker; `None`
    /// without such memory.
    pub host: Option<u32>,
    /// Whether the sequence was admitted again, after a preemption.
    pub again: bool,
}

/// Reports a setting with which a scheduler cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SchedulerConfigError {
    /// The setting is a count and must be at least 1, but is 0.
    #[error("{field} is 0, must be at least 1")]
    Zero {
        /// Name of the setting that is 0.
        field: &'static str,
    },
    /// The value of a scheduler's setting is outside the allowed range.
    #[error("{field} is {value}, must be between {low} and {high}")]
    Range {
        /// Name of the setting with the rejected value.
        field: &'static str,
        /// Rejected value of the setting.
        value: f64,
        /// Minimum value of the setting.
        low: f64,
        /// Maximum value of the setting.
        high: f64,
    },
    /// The value of a setting is not a multiple of a required divisor.
    #[error("{field} is {value}, must be a multiple of {of}")]
    Multiple {
        /// Name of the setting with the rejected value.
        field: &'static str,
        /// Rejected value of the setting.
        value: u32,
        /// Required divisor of the setting's value.
        of: u32,
    },
    /// Two settings of the scheduler cannot be used together.
    #[error("{field} cannot be used with {other}")]
    Excludes {
        /// Name of the first of two incompatible settings.
        field: &'static str,
        /// Name of the setting that cannot be used with the first.
        other: &'static str,
    },
}

/// Maximum number of KV blocks; the tables for them take some gigabytes of memory.
const MAX_KV_BLOCKS: f64 = 67_108_864.0;

fn check_at_least_one(field: &'static str, value: u32) -> Result<(), SchedulerConfigError> {
    if value == 0 {
        return Err(SchedulerConfigError::Zero { field });
    }
    Ok(())
}

fn check_range(
    field: &'static str,
    value: f64,
    low: f64,
    high: f64,
) -> Result<(), SchedulerConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(SchedulerConfigError::Range { field, value, low, high })
}
