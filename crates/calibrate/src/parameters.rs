//! Lists the roofline parameters that can be fitted, with defaults, prior scales and bounds.

use vllm_sim_engine::latency::RooflineCoefficients;

/// Fittable parameter of the roofline model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RooflineParameter {
    /// Roofline parameter: time in the API server before the engine's queue, in us.
    FrontEnd,
    /// Roofline parameter: factor for all step times, if the runs cannot distinguish the parts of a
    /// step.
    StepScale,
    /// Roofline parameter: fixed time per engine step, in us.
    Step,
    /// Roofline parameter: time per sequence of a step, in us.
    Sequence,
    /// Roofline parameter: factor of the compute throughput of matrix products.
    Compute,
    /// Roofline parameter: factor of the bandwidth of decode attention.
    Attention,
    /// Roofline parameter: factor of the bandwidth of matrix products.
    Memory,
    /// Roofline parameter: additional time of steps with a prompt chunk, in us.
    Mixed,
    /// Roofline parameter: factor of the all-reduce time.
    AllReduce,
    /// Roofline parameter: factor of the time of expert kernels.
    Moe,
}

/// All fittable parameters, ordered by how well typical runs determine them.
pub(super) const PARAMETER_FIT_ORDER: [RooflineParameter; 10] = [
    RooflineParameter::FrontEnd,
    RooflineParameter::StepScale,
    RooflineParameter::Step,
    RooflineParameter::Sequence,
    RooflineParameter::Compute,
    RooflineParameter::Attention,
    RooflineParameter::Memory,
    RooflineParameter::Mixed,
    RooflineParameter::AllReduce,
    RooflineParameter::Moe,
];

/// Prior of a parameter for the fit: default value, scale of deviations from it, and bounds, in the
/// parameter's own unit (latency-roofline reference, section 6).
pub(super) struct ParameterPrior {
    pub(super) centre: f64,
    pub(super) scale: f64,
    pub(super) bounds: (f64, f64),
}

impl RooflineParameter {
    /// Returns the name of the latency coefficient that the parameter sets.
    pub fn coefficient_name(self) -> &'static str {
        match self {
            Self::FrontEnd => "front_end_us",
            Self::StepScale => "step_scale",
            Self::Step => "step_us",
            Self::Sequence => "sequence_us",
            Self::Compute => "gemm_compute_scale",
            Self::Attention => "attention_scale",
            Self::Memory => "gemm_memory_scale",
            Self::Mixed => "mixed_us",
            Self::AllReduce => "all_reduce_scale",
            Self::Moe => "moe_scale",
        }
    }

    pub(super) fn from_coefficient_name(name: &str) -> Option<Self> {
        PARAMETER_FIT_ORDER.into_iter().find(|parameter| parameter.coefficient_name() == name)
    }

    pub(super) fn parameter_prior(self) -> ParameterPrior {
        let defaults = RooflineCoefficients::default();
        let (centre, scale, bounds) = match self {
            Self::FrontEnd => (defaults.front_end_us, 3000.0, (0.0, 40_000.0)),
            Self::StepScale => (defaults.step_scale, 0.05, (0.2, 5.0)),
            Self::Step => (defaults.step_us, 300.0, (0.0, 3000.0)),
            Self::Sequence => (defaults.sequence_us, 8.0, (0.0, 60.0)),
            Self::Compute => (defaults.gemm_compute_scale, 0.2, (0.5, 1.4)),
            Self::Attention => (defaults.attention_scale, 0.1, (0.85, 1.25)),
            Self::Memory => (defaults.gemm_memory_scale, 0.07, (0.85, 1.15)),
            Self::Mixed => (defaults.mixed_us, 800.0, (0.0, 6000.0)),
            Self::AllReduce => (defaults.all_reduce_scale, 0.4, (0.3, 3.0)),
            Self::Moe => (defaults.moe_scale, 0.1, (0.8, 1.25)),
        };
        ParameterPrior { centre, scale, bounds }
    }

    /// Sets the coefficient of the parameter in `to` to a value.
    pub(super) fn set_coefficient_value(self, value: f64, to: &mut RooflineCoefficients) {
        match self {
            Self::FrontEnd => to.front_end_us = value,
            Self::StepScale => to.step_scale = value,
            Self::Step => to.step_us = value,
            Self::Sequence => to.sequence_us = value,
            Self::Compute => to.gemm_compute_scale = value,
            Self::Attention => to.attention_scale = value,
            Self::Memory => to.gemm_memory_scale = value,
            Self::Mixed => to.mixed_us = value,
            Self::AllReduce => to.all_reduce_scale = value,
            Self::Moe => to.moe_scale = value,
        }
    }
}

/// Returns the names of all parameters, separated by commas, for messages.
pub fn comma_separated_parameter_names() -> String {
    PARAMETER_FIT_ORDER.map(RooflineParameter::coefficient_name).join(", ")
}
