//! Fault scenarios: faults and slow-downs over time, repeatable per request.
//!
//! A [`Scenario`] is a list of phases, each with settings, actions at its start, and an end.
//! [`ScenarioPosition`] computes the current phase from time and arrivals alone. The faults of a
//! request depend on the seed, round, phase and request (number within the phase, or id). A
//! repeated run therefore gives the same requests the same faults.

mod read;
mod run;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

pub use read::ScenarioError;
pub use run::{OnPhaseChange, PhaseChange, ScenarioArrival, ScenarioPosition, ScenarioRun};

/// A sequence of phases that change the fault settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Name in logs and metrics.
    pub name: String,
    /// Seed of the random faults; `None` uses the server's seed.
    pub seed: Option<u64>,
    /// Number of rounds over all phases; 0 repeats forever.
    pub repeat: u32,
    /// Key of a request for its random faults.
    pub by: FaultKey,
    /// Phases, at least one.
    pub phases: Vec<Phase>,
}

/// Selects the key of a request for its random faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultKey {
    /// Number within the phase, in order of arrival.
    #[default]
    Ordinal,
    /// Header `x-request-id`, or the number without one.
    ///
    /// A request then gets the same faults at any concurrency, and so do its retries.
    RequestId,
}

/// The identity of a replica within a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaId {
    /// Number, starting at 0.
    pub number: u32,
    /// Pod name.
    pub pod: Option<String>,
}

impl Scenario {
    /// Returns the scenario of one replica, with its own overrides merged into each phase.
    #[must_use]
    pub fn for_replica(mut self, id: &ReplicaId) -> Self {
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

    /// Checks that every replica number is below `count`.
    ///
    /// # Errors
    /// [`ScenarioError`] with the phase that names another number.
    pub fn check_replicas(&self, count: u32) -> Result<(), ScenarioError> {
        for (index, phase) in self.phases.iter().enumerate() {
            let numbers = phase.replicas.keys().filter_map(|key| key.parse().ok());
            if let Some(number) = numbers.max().filter(|number: &u32| *number >= count) {
                let why = format!("there is no replica {number}: there are {count}, from 0 on");
                return Err(ScenarioError::in_phase(index, &phase.name, why));
            }
        }
        Ok(())
    }
}

/// Additions to a phase for one replica.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplicaOverride {
    /// Additional settings, merged over those of the phase.
    pub set: Map<String, Value>,
    /// Actions at the start of the phase, after those for all replicas.
    pub actions: Vec<PhaseAction>,
}

/// One phase of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Name in logs and metrics.
    pub name: String,
    /// End of the phase.
    pub length: PhaseLength,
    /// Settings in the format of `/admin/config`, merged over those from before the scenario.
    pub set: Map<String, Value>,
    /// Actions at the start, in order.
    pub actions: Vec<PhaseAction>,
    /// Additions per replica, keyed by number or pod name.
    pub replicas: BTreeMap<String, ReplicaOverride>,
}

/// The condition that ends a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseLength {
    /// A fixed duration.
    Time(Duration),
    /// A number of generation requests, at least 1.
    Requests(u64),
    /// No limit; an operator ends the scenario.
    Open,
}

/// An action at the start of a phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PhaseAction {
    /// Clears the prefix cache.
    ResetPrefixCache,
    /// Aborts all requests in flight.
    AbortRequests,
    /// Loads an adapter, replacing a loaded one of the same name.
    LoadLora {
        /// Adapter name.
        name: String,
        /// Path of the adapter's files.
        path: String,
    },
    /// Unloads an adapter, if it is loaded.
    UnloadLora(String),
    /// Simulates a killed and restarted pod.
    ///
    /// Resets every connection, and new ones until this time has passed, and clears the caches.
    Restart(Duration),
}
