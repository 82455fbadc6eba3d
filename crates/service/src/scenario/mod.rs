//! Scenarios: failures and slow-downs over time, repeatable to the request.
//!
//! A [`Scenario`] is a list of phases. Each lays settings over those the server was started with
//! and may do something at its start; it lasts a while or for a number of requests. A [`ScenarioPosition`]
//! says which phase it is, from instants and arrivals alone. What happens to a request is drawn
//! from the scenario's seed, the round, the phase and the request's number within the phase (or
//! its id), never from the time of day: played again, a scenario faults the same requests.

mod read;
mod run;

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
