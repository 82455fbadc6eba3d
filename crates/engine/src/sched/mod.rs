//! Implements the schedulers behind the [`Scheduler`](super::Scheduler) trait.
//!
//! [`pool`] runs each sequence on its own timeline. The batching schedulers run steps; a
//! [`LatencyModel`](super::latency::LatencyModel) returns the duration of each step.

pub mod mocker;
pub mod pool;
pub mod sglang;
mod spec;
pub mod vllm;

pub use spec::EngineSpec;

use crate::SeqId;
use crate::SimTime;

/// Records the admission of a sequence to the running batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Id of the sequence.
    pub id: SeqId,
    /// Time of the admission.
    pub at: SimTime,
    /// Cached prompt tokens, on the GPU or in host memory.
    pub cached: u32,
    /// Cached prompt tokens that came from the mocker's host tier; `None` without such a tier.
    pub host: Option<u32>,
    /// Whether the sequence ran before and was preempted.
    pub again: bool,
}

/// Reports a setting that cannot work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The setting is a count and is zero.
    #[error("{field} is 0, must be at least 1")]
    Zero {
        /// Name of the setting.
        field: &'static str,
    },
    /// The value is outside its range.
    #[error("{field} is {value}, must be between {low} and {high}")]
    Range {
        /// Name of the setting.
        field: &'static str,
        /// Rejected value.
        value: f64,
        /// Minimum.
        low: f64,
        /// Maximum.
        high: f64,
    },
    /// The value is not a multiple of another one.
    #[error("{field} is {value}, must be a multiple of {of}")]
    Multiple {
        /// Name of the setting.
        field: &'static str,
        /// Rejected value.
        value: u32,
        /// Required divisor.
        of: u32,
    },
    /// Two settings exclude each other.
    #[error("{field} excludes {other}")]
    Excludes {
        /// Name of the setting.
        field: &'static str,
        /// Name of the setting that it excludes.
        other: &'static str,
    },
}

/// Maximum number of blocks; the tables for them take some gigabytes of memory.
const MAX_BLOCKS: f64 = 67_108_864.0;

fn at_least_one(field: &'static str, value: u32) -> Result<(), ConfigError> {
    if value == 0 {
        return Err(ConfigError::Zero { field });
    }
    Ok(())
}

fn within(field: &'static str, value: f64, low: f64, high: f64) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Range {
        field,
        value,
        low,
        high,
    })
}
