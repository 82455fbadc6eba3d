//! Models the duration of an engine step, in which a batch of sequences is computed.
//!
//! Each model sees only sums over the batch, so its cost does not depend on the batch size. Results
//! are rounded to whole nanoseconds.

#[cfg(feature = "aic")]
mod aic;
mod all2all;
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
mod mfu;
mod models;
#[cfg(feature = "npz")]
mod npz;
mod polynomial;
mod profile_run;
mod quantization;
mod roofline;
mod sampling_defaults;
mod shape;

use std::time::Duration;

use super::{MAX_SIMULATED_DELAY, TokenDelays};

#[cfg(feature = "aic")]
pub use aic::{
    AiConfiguratorError, AiConfiguratorSetup, AiConfiguratorStepTimes, MixedStepTiming,
    find_installed_kernel_tables,
};
pub use all_reduce::AllReduceTable;
pub use all2all::All2AllBackend;
pub use batch::BatchWork;
pub use cuda_graphs::{CudaGraphLimits, CudaGraphs};
pub use drafter::{DraftLatencyModel, Drafter};
pub use encoder::{MediaEncoderLatency, MediaEncoderShape};
pub use gpus::{Gpu, KNOWN_GPUS, find_gpu};
pub use grid::{StepTimeGrid, StepTimeGridError};
pub use host_link::HostLinkBandwidth;
pub use kv_cache_plan::{KvCachePlan, kv_bytes_per_value};
pub use memory::{KvCacheMemory, WeightShardingRanks, lora_slot_bytes};
pub use mfu::{MfuStepTokens, MfuWorkModel};
pub use models::{default_context_tokens, known_model_names, known_model_shape};
pub use polynomial::PolynomialStepTime;
pub use profile_run::ProfileRun;
pub use quantization::{ModelQuantization, QuantizationScheme, checkpoint_kv_cache_dtype};
pub use roofline::{
    RooflineCoefficients, RooflineError, RooflineModel, RooflineModelSetup, StepOverhead,
    StepTimeBreakdown,
};
pub use sampling_defaults::{ModelSamplingDefaults, sampling_defaults};
pub use shape::{
    LatentAttentionShape, ModelShape, ModelShapeError, MoeShape, RecurrentStateLayers,
    SlidingWindowLayers,
};

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
    /// Step times from the mean delays of the pool scheduler: the first-token delay for the prefill
    /// part of a step, plus the inter-token delay for the decode part.
    Delays(Box<TokenDelays>),
    /// Step times from the default polynomials of Dynamo's mocker.
    Polynomial(PolynomialStepTime),
    /// Step times measured by a profiler.
    Grid(Box<StepTimeGrid>),
    /// Roofline model, computed from model shape, GPU and tensor-parallel size.
    Roofline(Box<RooflineModel>),
    /// Step times from the kernel-time tables of NVIDIA's AIConfigurator.
    #[cfg(feature = "aic")]
    Aic(Box<AiConfiguratorStepTimes>),
}

/// Divisors of modelled durations; 0 and 1 have no effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulationSpeedFactors {
    /// Divisor of every modelled duration.
    pub all: f64,
    /// Additional divisor of decode work. The roofline model ignores this divisor, because its
    /// steps have no separate prefill and decode parts.
    pub decode: f64,
}

impl Default for SimulationSpeedFactors {
    fn default() -> Self {
        Self { all: 1.0, decode: 1.0 }
    }
}

impl LatencyModel {
    /// Latency model without any delay.
    pub const ZERO: Self = Self::Constant { prefill: Duration::ZERO, decode: Duration::ZERO };

    /// Removes the time of vLLM's API server, for an engine behind a real one.
    pub fn remove_api_server(&mut self) {
        if let Self::Roofline(roofline) = self {
            roofline.remove_api_server();
        }
    }

    /// Returns how long vLLM's API server processes a request with `prompt_tokens` tokens before
    /// the engine, with `running_requests` other requests in progress; divided by `speed`. Zero
    /// unless the model is the roofline.
    pub fn front_end_delay(
        &self,
        prompt_tokens: u32,
        running_requests: u32,
        speed: SimulationSpeedFactors,
    ) -> Duration {
        let Self::Roofline(roofline) = self else {
            return Duration::ZERO;
        };
        let delay = roofline.front_end_processing_delay(prompt_tokens, running_requests);
        divide_duration(delay, speed.all).min(MAX_SIMULATED_DELAY)
    }

    /// Returns the duration of a step over `batch`, divided by `speed`, at most
    /// [`MAX_SIMULATED_DELAY`].
    ///
    /// Prefill and decode work are rounded to nanoseconds separately, before and after the division
    /// (aisimulate-core `src/engine/timing.rs`).
    pub fn step_time(&self, batch: &BatchWork, speed: SimulationSpeedFactors) -> Duration {
        let if_any = |sequences: u32, time: Duration| match sequences {
            0 => Duration::ZERO,
            _ => time,
        };
        let (prefill, decode) = match self {
            Self::Constant { prefill, decode } => {
                (if_any(batch.chunks, *prefill), if_any(batch.decodes, *decode))
            }
            Self::Delays(delays) => (
                if_any(batch.chunks, delays.mean_prefill_time(batch.chunk_tokens)),
                if_any(batch.decodes, delays.itl.0),
            ),
            Self::Polynomial(curves) => (
                duration_from_ms(curves.prefill_ms(batch)),
                duration_from_ms(curves.decode_ms(batch)),
            ),
            Self::Grid(grid) => {
                (duration_from_ms(grid.prefill_ms(batch)), duration_from_ms(grid.decode_ms(batch)))
            }
            Self::Roofline(roofline) => {
                return divide_duration(roofline.step_time(batch), speed.all)
                    .min(MAX_SIMULATED_DELAY);
            }
            #[cfg(feature = "aic")]
            Self::Aic(aic) => {
                let (prefill, decode) = aic.prefill_decode_step_ms(batch);
                (duration_from_ms(prefill), duration_from_ms(decode))
            }
        };
        let (prefill, decode) = (
            divide_duration(prefill, speed.all),
            divide_duration(decode, speed.all * speed.decode),
        );
        prefill.saturating_add(decode).min(MAX_SIMULATED_DELAY)
    }

    /// Returns the time that experts spread over data-parallel ranks take in a step in which each
    /// rank computes `tokens` tokens; zero if not modelled.
    pub fn distributed_expert_time(&self, tokens: f64, speed: SimulationSpeedFactors) -> Duration {
        match self {
            Self::Roofline(roofline) => {
                let time = divide_duration(roofline.distributed_expert_time(tokens), speed.all);
                time.min(MAX_SIMULATED_DELAY)
            }
            _ => Duration::ZERO,
        }
    }

    /// Replaces the token delays of a [`Self::Delays`] model; returns false for other latency
    /// models.
    pub fn replace_token_delays(&mut self, new: &TokenDelays) -> bool {
        let Self::Delays(delays) = self else {
            return false;
        };
        (**delays).clone_from(new);
        true
    }

    /// Returns the sliding window in tokens, for [`BatchWork::clipped`]; `None` without window
    /// layers.
    pub fn sliding_window(&self) -> Option<u32> {
        match self {
            Self::Roofline(roofline) => roofline.sliding_window(),
            _ => None,
        }
    }
}

/// Converts milliseconds to a duration, to the nearest nanosecond.
///
/// Negative values and NaN become zero; values that are too large become the longest duration.
fn duration_from_ms(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms.max(0.0) / 1e3).unwrap_or(Duration::MAX)
}

fn divide_duration(d: Duration, by: f64) -> Duration {
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
            [1.5, -1.0, f64::NAN, 1e300, f64::INFINITY].map(duration_from_ms),
            [
                Duration::from_micros(1500),
                Duration::ZERO,
                Duration::ZERO,
                Duration::MAX,
                Duration::MAX
            ]
        );
        assert_eq!(divide_duration(Duration::from_secs(1), 1e-300), Duration::MAX);
    }

    #[test]
    fn prefill_and_decode_time_of_a_step_add_up() {
        let model = LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(3),
        };
        let mut batch = BatchWork::default();
        batch.add_decoding_sequence(100, 1, None);
        let speed = SimulationSpeedFactors { all: 2.0, decode: 3.0 };
        assert_eq!(model.step_time(&batch, speed), Duration::from_micros(500));
        batch.add_prompt_chunk(5, 0, None);
        assert_eq!(model.step_time(&batch, speed), Duration::from_micros(5_500));
        assert_eq!(
            model.step_time(&batch, SimulationSpeedFactors { all: 0.0, decode: 1.0 }),
            Duration::from_millis(13)
        );
    }
}
