use std::path::PathBuf;

use super::error::ConfigError;
use super::values::Values;
use vllm_sim_service::fault::{Failure, FaultRates, FaultSpec, StreamFault};

/// Failures on purpose.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    /// How often requests fail [0], and how [all failures; of streams a cut after five tokens].
    pub rates: FaultRates,
    /// What health checks are told [200].
    pub health_status: u16,
    /// Failures over time, from a file.
    pub scenario: Option<PathBuf>,
}

impl Faults {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let words = "failure injection rate should be between 0 and 100";
        let mut failures = Vec::new();
        for typed in v.comma_list("failure-types") {
            failures.push(Failure::named(&typed).ok_or_else(|| unknown(&typed))?);
        }
        let mut specs = Vec::new();
        for typed in v.list("stream-faults") {
            let spec: Result<FaultSpec, _> = typed.parse();
            specs.push(spec.map_err(|error| ConfigError::Invalid(error.to_string()))?);
        }
        if failures.is_empty() {
            failures.extend(Failure::ALL);
        }
        if specs.is_empty() {
            specs.push(FaultSpec {
                stream_faults: vec![StreamFault::CutAfter(5)],
                ..FaultSpec::default()
            });
        }
        Ok(Self {
            rates: FaultRates {
                rate: v.ranged("failure-injection-rate", 0..=100, words)?,
                failures,
                stream_rate: v.ranged_float(
                    "stream-fault-rate",
                    0.0..=100.0,
                    "stream fault rate should be between 0 and 100",
                )?,
                specs,
            },
            health_status: v.ranged(
                "health-status",
                200..=599,
                "health status should be between 200 and 599",
            )?,
            scenario: v.path("scenario"),
        })
    }
}

fn unknown(typed: &str) -> ConfigError {
    let allowed = Failure::ALL.map(Failure::name).join(", ");
    ConfigError::Invalid(format!(
        "invalid failure type '{typed}', valid types are: {allowed}"
    ))
}
