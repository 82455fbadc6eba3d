//! Models the duration of an engine step, in which a batch of sequences is computed.
//!
//! Each model sees only sums over the batch, so its cost does not depend on the batch size. Results
//! are rounded to whole nanoseconds.

#[cfg(feature = "aic")]
mod aic;
mod all_reduce;
mod batch;
mod cuda_graphs;
mod drafter;
mod encoder;
mod float_array;
mod gpus;
mod grid;
mod host_link;
mod kv_cache_plan;
mod memory;
mod models;
#[cfg(feature = "npz")]
mod npz;
mod polynomial;
mod quantization;
mod roofline;
mod sampling_defaults;
mod shape;

use std::time::Duration;

use super::{Delays, MAX_DELAY};

#[cfg(feature = "aic")]
pub use aic::{Aic, AicError, AicSetup, MixedStepTiming, installed_tables};
pub use all_reduce::AllReduce;
pub use batch::Batch;
pub use cuda_graphs::{CudaGraphs, GraphLimits};
pub use drafter::{DraftLatency, Drafter};
pub use encoder::{EncoderLatency, EncoderShape};
pub use gpus::{GPUS, Gpu, gpu};
pub use grid::{Grid, GridError};
pub use host_link::HostLink;
pub use kv_cache_plan::{KvCachePlan, kv_width};
pub use memory::{Memory, WeightRanks, lora_bytes};
pub use models::{known_models, model};
pub use polynomial::Polynomial;
pub use quantization::{Quantization, Scheme};
pub use roofline::{
    Coefficients, Roofline, RooflineError, RooflineSetup, StepBreakdown, StepOverhead,
};
pub use sampling_defaults::{SamplingDefaults, sampling_defaults};
pub use shape::{Mla, ModelShape, Moe, ShapeError, StateLayers, Window};

/// Selects the model of engine step times, with its data.
#[derive(Debug, Clone, PartialEq)]
pub enum LatencyModel {
    /// Constant step times (Dynamo's `fixed`).
    Constant {
        /// Duration of the prefill part of a step.
        prefill: Duration,
        /// Duration of the decode part of a step, added to the prefill part.
        decode: Duration,
    },
    /// Mean delays of the pool scheduler: the first-token delay as prefill part of a step, the
    /// inter-token delay as decode part; both are added.
    Delays(Box<Delays>),
    /// Step times by the default polynomials of Dynamo's mocker.
    Polynomial(Polynomial),
    /// Step times measured by a profiler.
    Grid(Box<Grid>),
    /// Roofline model, computed from model shape, GPU and tensor-parallel size.
    Roofline(Box<Roofline>),
    /// Step times from the kernel-time tables of NVIDIA's AIConfigurator.
    #[cfg(feature = "aic")]
    Aic(Box<Aic>),
}

/// Divisors of modelled durations; 0 and 1 have no effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Divisor of every modelled duration.
    pub all: f64,
    /// Additional divisor of decode work. Ignored by the roofline, whose steps have no separate
    /// prefill and decode parts.
    pub decode: f64,
}

impl Default for Speed {
    fn default() -> Self {
        Self {
            all: 1.0,
            decode: 1.0,
        }
    }
}

impl LatencyModel {
    /// Latency model without any delay.
    pub const ZERO: Self = Self::Constant {
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
    };

    /// Returns the duration of a step over `batch`, divided by `speed`, at most [`MAX_DELAY`].
    ///
    /// Prefill and decode work are rounded to nanoseconds separately, before and after the division
    /// (aisimulate-core `src/engine/timing.rs`).
    pub fn step(&self, batch: &Batch, speed: Speed) -> Duration {
        let (prefill, decode) = match self {
            Self::Constant { prefill, decode } => (
                if batch.chunks > 0 {
                    *prefill
                } else {
                    Duration::ZERO
                },
                if batch.decodes > 0 {
                    *decode
                } else {
                    Duration::ZERO
                },
            ),
            Self::Delays(delays) => (
                if batch.chunks > 0 {
                    delays.chunk(batch.chunk_tokens)
                } else {
                    Duration::ZERO
                },
                if batch.decodes > 0 {
                    delays.itl.0
                } else {
                    Duration::ZERO
                },
            ),
            Self::Polynomial(curves) => {
                (millis(curves.prefill(batch)), millis(curves.decode(batch)))
            }
            Self::Grid(grid) => (millis(grid.prefill(batch)), millis(grid.decode(batch))),
            Self::Roofline(roofline) => {
                return divide(roofline.step(batch), speed.all).min(MAX_DELAY);
            }
            #[cfg(feature = "aic")]
            Self::Aic(aic) => aic.work(batch),
        };
        let (prefill, decode) = (
            divide(prefill, speed.all),
            divide(decode, speed.all * speed.decode),
        );
        prefill.saturating_add(decode).min(MAX_DELAY)
    }

    /// Returns the time in a step of experts that are spread over data-parallel ranks, if each rank
    /// computes `tokens` tokens; zero if not modelled.
    pub fn spread_experts(&self, tokens: f64, speed: Speed) -> Duration {
        match self {
            Self::Roofline(roofline) => divide(roofline.spread_experts(tokens), speed.all),
            _ => Duration::ZERO,
        }
    }

    /// Replaces the delays of [`Self::Delays`]; returns false for other latency models.
    pub fn delay(&mut self, new: &Delays) -> bool {
        let Self::Delays(delays) = self else {
            return false;
        };
        (**delays).clone_from(new);
        true
    }

    /// Returns the sliding window in tokens, for [`Batch::clipped`]; `None` without window layers.
    pub fn window(&self) -> Option<u32> {
        match self {
            Self::Roofline(roofline) => roofline.window(),
            _ => None,
        }
    }
}

/// Converts milliseconds to a duration, to the nearest nanosecond.
///
/// Negative values and NaN become zero; values that are too large become the longest duration.
fn millis(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms.max(0.0) / 1e3).unwrap_or(Duration::MAX)
}

fn divide(d: Duration, by: f64) -> Duration {
    if by == 1.0 || by <= 0.0 || d.is_zero() {
        return d;
    }
    Duration::try_from_secs_f64(d.as_secs_f64() / by).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_too_long_has_the_longest_duration() {
        assert_eq!(
            [1.5, -1.0, f64::NAN, 1e300, f64::INFINITY].map(millis),
            [
                Duration::from_micros(1500),
                Duration::ZERO,
                Duration::ZERO,
                Duration::MAX,
                Duration::MAX
            ]
        );
        assert_eq!(divide(Duration::from_secs(1), 1e-300), Duration::MAX);
    }

    #[test]
    fn prompt_and_decode_work_of_one_step_add_up() {
        let model = LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(3),
        };
        let mut batch = Batch::default();
        batch.add_decode(100, 1, None);
        let speed = Speed {
            all: 2.0,
            decode: 3.0,
        };
        assert_eq!(model.step(&batch, speed), Duration::from_micros(500));
        batch.add_chunk(5, 0, None);
        assert_eq!(model.step(&batch, speed), Duration::from_micros(5_500));
        assert_eq!(
            model.step(
                &batch,
                Speed {
                    all: 0.0,
                    decode: 1.0
                }
            ),
            Duration::from_millis(13)
        );
    }
}
