//! Fault scenarios: injected faults and slow-downs over time, repeatable per request.
//!
//! A [`FaultScenario`] is a list of phases, each with settings, actions at its start, and an end.
//! [`ScenarioPosition`] computes the current phase from time and arrivals alone. The faults of a
//! request depend on the seed, round, phase and request (number within the phase, or id). A
//! repeated run therefore gives the same requests the same faults.

mod read;
mod run;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

pub use read::ScenarioError;
pub use run::{
    ScenarioPhaseCallback, ScenarioPhaseChange, ScenarioPosition, ScenarioRequestArrival,
    ScenarioRun,
};

/// A fault scenario: a sequence of phases that change the fault settings.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultScenario {
    /// Name of the fault scenario, in logs and metrics.
    pub name: String,
    /// Seed of the random faults; `None` uses the server's seed.
    pub seed: Option<u64>,
    /// Number of rounds over all phases of the fault scenario; 0 repeats forever.
    pub repeat: u32,
    /// Property of a request that determines its random faults.
    pub by: FaultRandomKey,
    /// Phases of the scenario, at least one.
    pub phases: Vec<ScenarioPhase>,
}

/// The property of a request that determines its random faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultRandomKey {
    /// A request's random faults depend on its index within the scenario's phase, in order of
    /// arrival.
    #[default]
    Ordinal,
    /// A request's random faults depend on its header `x-request-id`, or on its index within the
    /// phase if the header is absent.
    ///
    /// A request then gets the same faults at any concurrency, and so do the client's retries.
    RequestId,
}

/// The identity of a server replica within a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaId {
    /// Number of the server replica, starting at 0.
    pub number: u32,
    /// Name of the server replica's pod.
    pub pod: Option<String>,
}

impl FaultScenario {
    /// Returns the scenario of one replica, with the replica's overrides merged into each phase.
    #[must_use]
    pub fn scenario_for_replica(mut self, id: &ReplicaId) -> Self {
        let number = id.number.to_string();
        for phase in &mut self.phases {
            let mut replicas = std::mem::take(&mut phase.replicas);
            for name in [Some(&number), id.pod.as_ref()].into_iter().flatten() {
                if let Some(part) = replicas.remove(name) {
                    phase.set.extend(part.set);
                    phase.actions.extend(part.actions);
                }
            }
        }
        self
    }

    /// Checks that every replica number in the scenario is below `count`.
    ///
    /// # Errors
    /// [`ScenarioError`] with the phase that names another number.
    pub fn check_replica_numbers(&self, count: u32) -> Result<(), ScenarioError> {
        for (index, phase) in self.phases.iter().enumerate() {
            let numbers = phase.replicas.keys().filter_map(|key| key.parse().ok());
            if let Some(number) = numbers.max().filter(|number: &u32| *number >= count) {
                let why = format!(
                    "there is no replica {number}: {count} replicas have the numbers from 0"
                );
                return Err(ScenarioError::error_in_phase(index, &phase.name, why));
            }
        }
        Ok(())
    }
}

/// Additions to a phase of a scenario for one replica.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScenarioReplicaOverride {
    /// Additional fault settings for one server replica, merged over those of the scenario's phase.
    pub set: Map<String, Value>,
    /// Additional actions for one replica at the start of the phase, after the actions for all
    /// replicas.
    pub actions: Vec<ScenarioPhaseAction>,
}

/// One phase of a fault scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct ScenarioPhase {
    /// Name of the fault scenario's phase, in logs and metrics.
    pub name: String,
    /// Duration or number of requests after which the phase of the fault scenario ends.
    pub length: ScenarioPhaseLength,
    /// Fault settings in the format of `/admin/config`, merged over those from before the scenario.
    pub set: Map<String, Value>,
    /// Actions at the start of the fault scenario's phase, in order.
    pub actions: Vec<ScenarioPhaseAction>,
    /// Additions to the fault scenario's phase per server replica, keyed by number or pod name.
    pub replicas: BTreeMap<String, ScenarioReplicaOverride>,
}

/// The condition that ends a phase of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioPhaseLength {
    /// The phase of the fault scenario ends after this duration.
    Time(Duration),
    /// The phase of the fault scenario ends after this number of generation requests, at least 1.
    Requests(u64),
    /// The phase of the fault scenario has no limit; an operator must end the scenario.
    Open,
}

/// An action at the start of a scenario's phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScenarioPhaseAction {
    /// Scenario action: clears the prefix cache of all engines.
    ResetPrefixCache,
    /// Scenario action: aborts all requests in flight on the server.
    AbortRequests,
    /// Scenario action: loads a LoRA adapter, replacing a loaded one of the same name.
    LoadLora {
        /// Name of the LoRA adapter to load.
        name: String,
        /// Path of the files of the LoRA adapter to load.
        path: String,
    },
    /// Scenario action: unloads the LoRA adapter with this name, if it is loaded.
    UnloadLora(String),
    /// Scenario action: simulates a pod that is killed and restarted.
    ///
    /// Resets every client connection, and new ones until the given time has passed, and clears the
    /// caches.
    Restart(Duration),
}
