use std::sync::Arc;

use parking_lot::Mutex;

use super::{FaultRandomKey, FaultScenario, ScenarioPhaseLength};
use vllm_sim_engine::SimTime;
use vllm_sim_random::mix_u64_pair;

/// The current position in a fault scenario, computed from time and arrivals alone.
#[derive(Debug, Clone)]
pub struct ScenarioPosition {
    scenario: Arc<FaultScenario>,
    round: u32,
    phase: usize,
    since: SimTime,
    requests: u64,
    over: bool,
}

/// The position of one arriving request in a fault scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScenarioRequestArrival {
    /// Round over the fault scenario's phases in which the request arrived, starting at 0.
    pub round: u32,
    /// Index of the scenario's phase, starting at 0.
    pub phase: usize,
    /// Index of the request within the scenario's phase, starting at 0.
    pub ordinal: u64,
    /// Random key of the request, the seed of its faults.
    pub key: u64,
}

impl ScenarioPosition {
    /// Creates the position at the start of the fault scenario's first phase.
    pub fn new(scenario: Arc<FaultScenario>, now: SimTime) -> Self {
        Self { scenario, round: 0, phase: 0, since: now, requests: 0, over: false }
    }

    /// Returns the fault scenario to which the position belongs.
    pub fn scenario(&self) -> &Arc<FaultScenario> {
        &self.scenario
    }

    /// Returns the current round and phase index of the fault scenario; `None` if the scenario is
    /// over.
    pub fn scenario_round_and_phase(&self) -> Option<(u32, usize)> {
        (!self.over).then_some((self.round, self.phase))
    }

    /// Returns the number of requests that arrived in the current phase of the fault scenario.
    pub fn requests_in_phase(&self) -> u64 {
        self.requests
    }

    /// Returns the time at which the current phase of the fault scenario ends; `None` if it has no
    /// time limit.
    pub fn scenario_phase_end_time(&self) -> Option<SimTime> {
        match self.scenario.phases[self.phase].length {
            ScenarioPhaseLength::Time(time) if !self.over => Some(self.since + time),
            _ => None,
        }
    }

    /// Moves to the next phase of the fault scenario if the current one has ended by `now`; returns
    /// whether it did.
    ///
    /// A phase after one of fixed duration starts at the end time of that phase, however late
    /// `step` is called.
    pub fn advance_scenario_phase(&mut self, now: SimTime) -> bool {
        let began = match self.scenario.phases[self.phase].length {
            _ if self.over => return false,
            ScenarioPhaseLength::Time(time) if self.since + time <= now => self.since + time,
            ScenarioPhaseLength::Requests(requests) if self.requests >= requests => now,
            _ => return false,
        };
        self.since = began;
        self.requests = 0;
        self.phase += 1;
        if self.phase == self.scenario.phases.len() {
            self.round = self.round.saturating_add(1);
            self.over = self.scenario.repeat != 0 && self.round >= self.scenario.repeat;
            self.phase = 0;
        }
        true
    }

    /// Counts a request in the current phase of the fault scenario and returns its position; `None`
    /// if the scenario is over.
    pub fn count_request_arrival(&mut self, id: Option<&str>) -> Option<ScenarioRequestArrival> {
        let (round, phase) = self.scenario_round_and_phase()?;
        let ordinal = self.requests;
        self.requests += 1;
        let known = match (self.scenario.by, id) {
            (FaultRandomKey::RequestId, Some(id)) => {
                id.bytes().fold(0x1d, |key, byte| mix_u64_pair(key, u64::from(byte)))
            }
            _ => ordinal,
        };
        let place = u64::from(round) << 32 | phase as u64;
        Some(ScenarioRequestArrival {
            round,
            phase,
            ordinal,
            key: mix_u64_pair(mix_u64_pair(0xd411, place), known),
        })
    }
}

/// The reason for a call of [`ScenarioPhaseCallback`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioPhaseChange {
    /// Reason for the call: a phase of the fault scenario begins.
    Begin,
    /// Reason for the call: the phase of the fault scenario continues, but the settings from before
    /// the scenario have changed.
    Again,
}

/// Callback for each phase change of a scenario, in order; if round and phase index are `None`, the
/// scenario has ended.
pub type ScenarioPhaseCallback =
    Box<dyn Fn(&FaultScenario, Option<(u32, usize)>, ScenarioPhaseChange) + Send + Sync>;

/// A running fault scenario, shared by all requests.
pub struct ScenarioRun {
    position: Mutex<ScenarioPosition>,
    on_change: ScenarioPhaseCallback,
}

impl ScenarioRun {
    /// Starts a fault scenario and calls `on_change` for its first phase.
    pub fn start_scenario(
        scenario: Arc<FaultScenario>,
        now: SimTime,
        on_change: ScenarioPhaseCallback,
    ) -> Self {
        on_change(&scenario, Some((0, 0)), ScenarioPhaseChange::Begin);
        Self { position: Mutex::new(ScenarioPosition::new(scenario, now)), on_change }
    }

    /// Enters every phase that has begun by `now`, and returns the time at which to call this
    /// function again.
    pub fn enter_due_phases(&self, now: SimTime) -> Option<SimTime> {
        let mut position = self.position.lock();
        self.catch_up(&mut position, now);
        position.scenario_phase_end_time()
    }

    /// Counts an arriving request, and calls `decide` with its position while the phase cannot
    /// change.
    ///
    /// Returns `None` if the scenario is over.
    pub fn count_request_arrival<T>(
        &self,
        now: SimTime,
        id: Option<&str>,
        decide: impl FnOnce(&FaultScenario, ScenarioRequestArrival) -> T,
    ) -> Option<T> {
        let mut position = self.position.lock();
        self.catch_up(&mut position, now);
        let arrival = position.count_request_arrival(id)?;
        let scenario = position.scenario().clone();
        let decided = decide(&scenario, arrival);
        // A phase of n requests ends with the n-th request.
        self.catch_up(&mut position, now);
        Some(decided)
    }

    /// Returns the current position in the fault scenario.
    pub fn current_scenario_position(&self) -> ScenarioPosition {
        self.position.lock().clone()
    }

    /// Calls the scenario's callback for the current phase again, unless the scenario is over.
    pub fn call_phase_callback_again(&self) {
        let position = self.position.lock();
        if position.scenario_round_and_phase().is_some() {
            (self.on_change)(
                position.scenario(),
                position.scenario_round_and_phase(),
                ScenarioPhaseChange::Again,
            );
        }
    }

    /// Ends the scenario; calls its callback unless it was already over.
    pub fn end_scenario(&self) {
        let mut position = self.position.lock();
        if !std::mem::replace(&mut position.over, true) {
            (self.on_change)(position.scenario(), None, ScenarioPhaseChange::Begin);
        }
    }

    fn catch_up(&self, position: &mut ScenarioPosition, now: SimTime) {
        while position.advance_scenario_phase(now) {
            (self.on_change)(
                position.scenario(),
                position.scenario_round_and_phase(),
                ScenarioPhaseChange::Begin,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scenario::ReplicaId;

    const SCENARIO: &str = "
name: three
seed: 3
repeat: 2
phases:
  - {name: calm, requests: 3}
  - {name: burst, for: 10s, set: {failure-injection-rate: 50}}
  - {name: after, requests: 1}
";

    fn at(ms: u64) -> SimTime {
        SimTime::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn phases_end_by_requests_and_by_time_without_drift() {
        let scenario = Arc::new(FaultScenario::from_yaml(SCENARIO).unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        let on_change: ScenarioPhaseCallback = Box::new(move |_, place, _| seen.lock().push(place));
        let run = ScenarioRun::start_scenario(scenario, at(0), on_change);
        let arrival = |ms| {
            run.count_request_arrival(at(ms), None, |_, arrival| (arrival.phase, arrival.ordinal))
        };
        assert_eq!([arrival(1), arrival(2), arrival(3)], [0, 1, 2].map(|n| Some((0, n))));
        // A late call: the third phase began when the second was due to end.
        assert_eq!(run.enter_due_phases(at(4)), Some(at(10_003)));
        assert_eq!(arrival(5), Some((1, 0)));
        assert_eq!(arrival(20_000), Some((2, 0)));
        assert_eq!(run.current_scenario_position().scenario_round_and_phase(), Some((1, 0)));
        for ms in 20_001..20_004 {
            arrival(ms);
        }
        assert_eq!(run.enter_due_phases(at(40_000)), None);
        assert_eq!((arrival(40_001), arrival(40_002)), (Some((2, 0)), None));
        let places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
        let mut places: Vec<_> = places.into_iter().map(Some).collect();
        places.push(None);
        assert_eq!(*log.lock(), places);
    }

    #[test]
    fn a_request_is_identified_by_ordinal_or_by_id() {
        let keys = |by: &str, ids: [&str; 3]| {
            let text = SCENARIO.replace("repeat: 2", &format!("repeat: 0\nby: {by}"));
            let scenario = Arc::new(FaultScenario::from_yaml(&text).unwrap());
            let mut position = ScenarioPosition::new(scenario, at(0));
            ids.map(|id| position.count_request_arrival(Some(id)).unwrap().key)
        };
        assert_eq!(keys("ordinal", ["a", "b", "c"]), keys("ordinal", ["c", "b", "a"]));
        let (mut there, mut back) =
            (keys("request-id", ["a", "b", "c"]), keys("request-id", ["c", "b", "a"]));
        assert_ne!(there, back);
        there.sort_unstable();
        back.sort_unstable();
        assert_eq!(there, back);
    }

    #[test]
    fn replica_settings_override_those_of_all_replicas() {
        let text = "
phases:
  - set: {latency-factor: 2, retry-after: 1}
    do: [abort-requests]
    replicas:
      0: {set: {latency-factor: 8}}
      pod-b: {do: [{restart: 5s}]}
";
        let scenario = FaultScenario::from_yaml(text).unwrap();
        let played = |number, pod: &str| {
            let id = ReplicaId { number, pod: Some(pod.to_owned()) };
            let phase = scenario.clone().scenario_for_replica(&id).phases.remove(0);
            assert!(phase.replicas.is_empty());
            (phase.set["latency-factor"].clone(), phase.actions.len())
        };
        assert_eq!(played(0, "pod-a"), (8.into(), 1));
        assert_eq!(played(1, "pod-b"), (2.into(), 2));
        assert_eq!(played(2, "pod-c"), (2.into(), 1));
        assert!(scenario.check_replica_numbers(1).is_ok());
        let error = scenario.check_replica_numbers(0).unwrap_err().to_string();
        assert!(error.contains("there is no replica 0"), "{error}");
    }

    #[test]
    fn errors_name_their_phase() {
        let cases = [
            ("[]", "a mapping with the keys"),
            ("{phases: []}", "'phases' must be a list of 1 to 1000 phases"),
            ("{phases: [{}], speed: 1}", "unknown key \"speed\""),
            ("{phases: [{name: a, for: 1s}, {name: a}]}", "a unique name"),
            ("{phases: [{name: a}, {name: b}]}", "phases[0] \"a\": a phase with neither"),
            ("{phases: [{name: a, for: 1s, requests: 2}]}", "phases[0] \"a\": 'for' and"),
            ("{phases: [{for: x}]}", "phases[0] \"phase-1\": 'for': \"x\" is not a duration"),
            ("{phases: [{for: 0}]}", "'for' must be at least 1ms"),
            ("{phases: [{requests: 0}]}", "'requests' must be a whole number of at least 1"),
            (
                "{phases: [{do: dance}]}",
                "'do' has the unknown action \"dance\"; allowed are reset-prefix-cache",
            ),
            ("{phases: [{replicas: {1: {for: 1s}}}]}", "replicas: \"1\": unknown key \"for\""),
            ("{phases: [{replicas: [1]}]}", "'replicas' must map numbers or"),
            ("{phases: [{}], by: luck}", "'by' must be ordinal or request-id"),
        ];
        for (text, why) in cases {
            let error = FaultScenario::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
