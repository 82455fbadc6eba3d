//! Runs a scenario of faults on the pods during the workload: `--fleet-scenario`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use hyper::Method;

use super::pod::{GatewayPod, send_admin_request};
use vllm_sim_command_line::refuse;
use vllm_sim_service::scenario::FaultScenario;

/// Scenario file with faults; each pod runs the part for the replica with the pod's index.
pub(super) struct PodFleetScenario {
    text: String,
    scenario: FaultScenario,
}

impl PodFleetScenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// Returns an error if the file is unreadable or invalid.
    pub(super) fn read_scenario_file(file: &Path) -> Result<Self> {
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
        match FaultScenario::from_yaml(&text) {
            Ok(scenario) => Ok(Self { text, scenario }),
            Err(error) => refuse!("--fleet-scenario {shown}: {error}"),
        }
    }

    /// Starts the scenario on all pods, each as the replica of its pod index.
    ///
    /// # Errors
    /// Returns an error if the scenario names missing pods, or a pod rejects it.
    pub(super) async fn start_scenario_on_pods(&self, pods: &[GatewayPod]) -> Result<()> {
        if let Err(error) = self.scenario.check_replica_numbers(pods.len() as u32) {
            refuse!("--fleet-scenario: {error}");
        }
        for (number, pod) in pods.iter().enumerate() {
            let path = format!("/admin/scenario?replica={number}");
            let body = self.text.clone();
            match send_admin_request(&pod.target, Method::POST, &path, body).await {
                Ok(answer) if answer.status().is_success() => {}
                Ok(answer) => bail!(
                    "--fleet-scenario: {} responded to POST /admin/scenario with {}: start it \
                     with --dev-mode, or give --admin-api-key",
                    pod.url,
                    answer.status()
                ),
                Err(error) => bail!("--fleet-scenario: {}: {error}", pod.url),
            }
        }
        Ok(())
    }

    /// Ends the scenario on all pods; errors become notes, because the scenario may have stopped a
    /// pod.
    pub(super) async fn end_scenario_on_pods(&self, pods: &[GatewayPod]) -> Vec<String> {
        let mut notes = Vec::new();
        for pod in pods {
            let ended = send_admin_request(&pod.target, Method::DELETE, "/admin/scenario", "");
            if let Err(error) = ended.await {
                notes.push(format!(
                    "--fleet-scenario: {} did not end the scenario: {error}",
                    pod.url
                ));
            }
        }
        notes
    }
}
