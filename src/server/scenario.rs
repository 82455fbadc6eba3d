//! Reads and starts the scenario of `--scenario`, and counts injected faults.

use std::sync::Arc;

use super::error::{StartError, invalid_file_error};
use vllm_sim_config::Config;
use vllm_sim_http::AdminState;
use vllm_sim_observe::metrics::{Metrics, RejectionReason};
use vllm_sim_service::fault::{ExceededAdmissionLimit, FaultObserver, FaultScenarioAndPhase};
use vllm_sim_service::scenario::FaultScenario;

/// Counts injected faults and admission errors in the metrics, and logs the faults.
pub(super) struct FaultMetricsObserver(pub(super) Arc<Metrics>);

impl FaultObserver for FaultMetricsObserver {
    fn on_fault(&self, kind: &'static str, origin: &FaultScenarioAndPhase) {
        let (scenario, phase) = (&*origin.scenario, &*origin.phase);
        self.0.on_fault(kind, scenario, phase);
        tracing::debug!(kind, scenario, phase, "injected fault");
    }

    fn on_rejected(&self, bound: ExceededAdmissionLimit) {
        self.0.on_request_rejected(match bound {
            ExceededAdmissionLimit::Requests => RejectionReason::QueuedRequests,
            ExceededAdmissionLimit::Tokens => RejectionReason::QueuedTokens,
        });
    }
}

pub(super) fn read_fault_scenario(config: &Config) -> Result<Option<FaultScenario>, StartError> {
    let Some(path) = &config.faults.scenario else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|error| scenario_error(config, error))?;
    let scenario = FaultScenario::from_yaml(&text);
    scenario.map(Some).map_err(|error| scenario_error(config, error))
}

/// Starts the fault scenario on all data-parallel ranks of a deployment.
pub(super) fn start_fault_scenario(
    admin_state: &AdminState,
    config: &Config,
    scenario: Option<FaultScenario>,
) -> Result<(), StartError> {
    let Some(scenario) = scenario else {
        return Ok(());
    };
    let started = admin_state.start_configured_scenario(scenario);
    started.map_err(|why| scenario_error(config, why))
}

fn scenario_error(config: &Config, why: impl ToString) -> StartError {
    invalid_file_error("--scenario", config.faults.scenario.as_ref(), why)
}
