//! How long one step of a batching engine takes.
//!
//! Every model sees only sums over the batch, so a step costs the same to predict whatever the
//! batch holds. Floats compute a delay and end here: what leaves is whole nanoseconds.

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

use super::{Delays, LONGEST_DELAY};

#[cfg(feature = "aic")]
pub use aic::{Aic, AicError, AicSetup, MixedStep, installed_tables};
pub use all_reduce::AllReduce;
pub use batch::Batch;
pub use cuda_graphs::{CudaGraphs, GraphLimits};
pub use drafter::{Drafter, Drafting};
pub use encoder::{EncoderLatency, EncoderShape};
pub use gpus::{GPUS, Gpu, gpu};
pub use grid::{Grid, GridError};
pub use host_link::HostLink;
pub use kv_cache_plan::{KvCachePlan, kv_width};
pub use memory::{Memory, WeightRanks, lora_bytes};
pub use models::{known_models, model};
pub use polynomial::Polynomial;
pub use quantization::{Quantization, Scheme};
pub use roofline::{Breakdown, Coefficients, Overhead, Roofline, RooflineError, Setup};
pub use sampling_defaults::{SamplingDefaults, sampling_defaults};
pub use shape::{Mla, ModelShape, Moe, ShapeError, StateLayers, Window};

/// Where the duration of a step comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum LatencyModel {
    /// The same for every step that has such work (Dynamo's `fixed`).
    Constant {
        /// A step with prompt work.
        prefill: Duration,
        /// A step with decode work; both add up.
        decode: Duration,
    },
    /// The pool's delays, their means: that before a first token for a step with prompt work, that
    /// between tokens for one with decode work; both add up.
    Delays(Box<Delays>),
    /// The default curves of Dynamo's mocker.
    Polynomial(Polynomial),
    /// Tables measured by a profiler.
    Grid(Box<Grid>),
    /// Model shape + GPU + tensor parallelism.
    Roofline(Box<Roofline>),
    /// NVIDIA's kernel tables.
    #[cfg(feature = "aic")]
    Aic(Box<Aic>),
}

/// By what durations are divided; 0 and 1 leave them alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Divides every duration.
    pub all: f64,
    /// Divides decode work once more (not known to the roofline, whose steps are one piece).
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
    /// No delay at all.
    pub const ZERO: Self = Self::Constant {
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
    };

    /// Duration of a step, at the given speed; at most [`LONGEST_DELAY`].
    ///
    /// Prompt and decode work are rounded to nanoseconds apart, before and after the division
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
                return divide(roofline.step(batch), speed.all).min(LONGEST_DELAY);
            }
            #[cfg(feature = "aic")]
            Self::Aic(aic) => aic.work(batch),
        };
        let (prefill, decode) = (
            divide(prefill, speed.all),
            divide(decode, speed.all * speed.decode),
        );
        prefill.saturating_add(decode).min(LONGEST_DELAY)
    }

    /// What experts that are spread over data-parallel ranks take when each rank has so many tokens;
    /// zero where that is not modelled.
    pub fn spread_experts(&self, tokens: f64, speed: Speed) -> Duration {
        match self {
            Self::Roofline(roofline) => divide(roofline.spread_experts(tokens), speed.all),
            _ => Duration::ZERO,
        }
    }

    /// Takes other delays, if it has any; whether it has.
    pub fn delay(&mut self, new: &Delays) -> bool {
        let Self::Delays(delays) = self else {
            return false;
        };
        (**delays).clone_from(new);
        true
    }

    /// The window beyond which some layers do not look, if any: [`Batch::clipped`] is summed with it.
    pub fn window(&self) -> Option<u32> {
        match self {
            Self::Roofline(roofline) => roofline.window(),
            _ => None,
        }
    }
}

/// Milliseconds as a duration, to the nearest nanosecond; nonsense is no delay.
fn millis(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms.max(0.0) / 1e3).unwrap_or(Duration::ZERO)
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
