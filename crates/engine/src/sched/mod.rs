//! The schedulers: siblings behind [`Scheduler`](super::Scheduler).
//!
//! [`pool`] gives each sequence a timeline of its own; the batching ones run steps that last as
//! long as a [`LatencyModel`](super::latency::LatencyModel) says.

pub mod mocker;
pub mod pool;
pub mod sglang;
mod spec;
pub mod vllm;

pub use spec::EngineSpec;

use crate::SeqId;
use crate::SimTime;

/// A sequence entered the running batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Which.
    pub id: SeqId,
    /// When.
    pub at: SimTime,
    /// Tokens that were cached, here or in the memory of the host.
    pub cached: u32,
    /// Of these, those that were in the memory of the host; `None`: there is none of the mocker's.
    pub host: Option<u32>,
    /// It ran before and was preempted.
    pub again: bool,
}

/// A setting that cannot work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A count is zero.
    #[error("{field} is 0, must be at least 1")]
    Zero {
        /// Which setting.
        field: &'static str,
    },
    /// A share or rate is out of its range.
    #[error("{field} is {value}, must be between {low} and {high}")]
    Range {
        /// Which setting.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Least value.
        low: f64,
        /// Greatest value.
        high: f64,
    },
    /// Two numbers do not fit together.
    #[error("{field} is {value}, must be a multiple of {of}")]
    Multiple {
        /// Which setting.
        field: &'static str,
        /// Its value.
        value: u32,
        /// What it must be a multiple of.
        of: u32,
    },
    /// Two settings exclude each other.
    #[error("{field} excludes {other}")]
    Excludes {
        /// Which setting.
        field: &'static str,
        /// The other one.
        other: &'static str,
    },
}

/// Blocks that the bookkeeping is made for: some gigabytes of it.
const MOST_BLOCKS: f64 = 67_108_864.0;

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
