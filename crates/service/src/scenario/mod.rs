//! Scenarios: failures and slow-downs over time, repeatable to the request.
//!
//! A [`Scenario`] is a list of phases. Each lays settings over those the server was started with
//! and may do something at its start; it lasts a while or for a number of requests. A [`ScenarioPosition`]
//! says which phase it is, from instants and arrivals alone. What happens to a request is drawn
//! from the scenario's seed, the round, the phase and the request's number within the phase (or
//! its id), never from the time of day: played again, a scenario faults the same requests.

mod read;
mod run;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

pub use read::ScenarioError;
pub use run::{OnPhaseChange, PhaseChange, ScenarioArrival, ScenarioPosition, ScenarioRun};

/// A scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What logs and metrics call it.
    pub name: String,
    /// Root of its draws; `None`: the server's.
    pub seed: Option<u64>,
    /// How often all phases are played; 0: for ever.
    pub repeat: u32,
    /// What a request is known by.
    pub by: Identity,
    /// The phases, at least one.
    pub phases: Vec<Phase>,
}

/// What a request is known by when its fate is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identity {
    /// Its number within the phase, in the order of arrival.
    #[default]
    Ordinal,
    /// Its `x-request-id`, where it has one: the same fate at any concurrency, and for a retry
    /// that keeps the id.
    RequestId,
}

/// Which replica of a fleet a server is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaId {
    /// Its number, from 0.
    pub number: u32,
    /// The name of its pod.
    pub pod: Option<String>,
}

impl Scenario {
    /// The scenario as one replica plays it: what its phases have for this replica lies over what
    /// they have for all.
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

    /// Whether every replica that is named by number is one of `count`.
    ///
    /// # Errors
    /// [`ScenarioError`] with the phase that names another.
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

/// What a phase has for one replica besides.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplicaPart {
    /// Settings over those of the phase.
    pub set: Map<String, Value>,
    /// What happens at the start of the phase, after what happens on all.
    pub actions: Vec<Action>,
}

/// A part of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// What logs and metrics call it.
    pub name: String,
    /// When it ends.
    pub length: Length,
    /// Settings during it, as `/admin/config` takes them, over those from before the scenario.
    pub set: Map<String, Value>,
    /// What happens when it starts, in order.
    pub actions: Vec<Action>,
    /// What single replicas have besides, by number or by the name of the pod.
    pub replicas: BTreeMap<String, ReplicaPart>,
}

/// How long a phase lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// A time.
    Time(Duration),
    /// A number of requests for generation, at least one.
    Requests(u64),
    /// Until somebody ends the scenario.
    Open,
}

/// Something that happens at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The prefix cache is emptied.
    ResetPrefixCache,
    /// Everything in flight ends with `abort`.
    AbortRequests,
    /// An adapter is loaded; one of that name is replaced.
    LoadLora {
        /// Its name.
        name: String,
        /// Its path.
        path: String,
    },
    /// An adapter is unloaded, if it is there.
    UnloadLora(String),
    /// The process goes away as a killed pod does: every connection is reset, new ones are reset
    /// too until this time has passed, and the cache is cold.
    Restart(Duration),
}
