//! Ratios by which simulated durations are shortened.

use super::error::ConfigError;
use super::flag::Flag;
use super::flags::engine;
use super::values::FlagValues;

/// Divisors of simulated durations (speed-up ratios).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulationSpeedupRatios {
    /// Divisor of every modelled duration, more than 0 (default 1).
    pub speedup_ratio: f64,
    /// Additional divisor of decode durations, more than 0 (default 1).
    pub decode_speedup_ratio: f64,
}

impl SimulationSpeedupRatios {
    pub(super) fn from_flag_values(v: &FlagValues) -> Result<Self, ConfigError> {
        Ok(Self {
            speedup_ratio: read_speedup_ratio(v, &engine::SPEEDUP_RATIO)?,
            decode_speedup_ratio: read_speedup_ratio(v, &engine::DECODE_SPEEDUP_RATIO)?,
        })
    }
}

/// Returns the value of a flag for a speed-up ratio; 0 stands for 1.
pub(super) fn read_speedup_ratio(v: &FlagValues, flag: &Flag<f64>) -> Result<f64, ConfigError> {
    Ok(match v.get(flag)? {
        0.0 => 1.0,
        ratio => ratio,
    })
}
