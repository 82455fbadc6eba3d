use std::path::PathBuf;

use super::error::ConfigError;
use super::values::Values;
use vllm_sim_service::fault::{Failure, FaultRates, FaultSpec};

/// Failures on purpose.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    /// Percentage of requests that fail [0].
    pub rate: u8,
    /// Which failures; empty: all of them.
    pub types: Vec<Failure>,
    /// Percentage of replies with a stream_fault [0].
    pub stream_rate: f64,
    /// Which stream_faults [a cut after five tokens].
    pub orders: Vec<FaultSpec>,
    /// What health checks are told [200].
    pub health_status: u16,
    /// Failures over time, from a file.
    pub scenario: Option<PathBuf>,
}

impl Faults {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let words = "failure injection rate should be between 0 and 100";
        let mut types = Vec::new();
        for typed in v.comma_list("failure-types") {
            types.push(Failure::named(&typed).ok_or_else(|| unknown(&typed))?);
        }
        let mut orders = Vec::new();
        for typed in v.list("stream-faults") {
            let order: Result<FaultSpec, _> = typed.parse();
            orders.push(order.map_err(|error| ConfigError::Invalid(error.to_string()))?);
        }
        if orders.is_empty() {
            orders.push(FaultSpec {
                stream_faults: vec![vllm_sim_service::fault::StreamFault::CutAfter(5)],
                ..FaultSpec::default()
            });
        }
        Ok(Self {
            rate: v.ranged("failure-injection-rate", 0..=100, words)?,
            types,
            stream_rate: v.ranged_float(
                "stream-fault-rate",
                0.0..=100.0,
                "stream fault rate should be between 0 and 100",
            )?,
            orders,
            health_status: v.ranged(
                "health-status",
                200..=599,
                "health status should be between 200 and 599",
            )?,
            scenario: v.path("scenario"),
        })
    }

    /// The shares and kinds as chance deals them out.
    pub fn plan(&self) -> FaultRates {
        let failures = match self.types.as_slice() {
            [] => Failure::ALL.to_vec(),
            types => types.to_vec(),
        };
        FaultRates {
            rate: self.rate,
            failures,
            stream_rate: self.stream_rate,
            orders: self.orders.clone(),
        }
    }
}

fn unknown(typed: &str) -> ConfigError {
    let allowed = Failure::ALL.map(Failure::name).join(", ");
    ConfigError::Invalid(format!(
        "invalid failure type '{typed}', valid types are: {allowed}"
    ))
}
