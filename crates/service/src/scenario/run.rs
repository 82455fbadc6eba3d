use std::sync::Arc;

use parking_lot::Mutex;

use super::{FaultKey, PhaseLength, Scenario};
use vllm_sim_engine::SimTime;
use vllm_sim_random::mix;

/// The current position in a scenario, computed from time and arrivals alone.
#[derive(Debug, Clone)]
pub struct ScenarioPosition {
    scenario: Arc<Scenario>,
    round: u32,
    phase: usize,
    since: SimTime,
    requests: u64,
    over: bool,
}

/// The position of one request in a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScenarioArrival {
    /// Round, starting at 0.
    pub round: u32,
    /// Phase index, starting at 0.
    pub phase: usize,
    /// Number within the phase, starting at 0.
    pub ordinal: u64,
    /// Key for the random faults of the request.
    pub key: u64,
}

impl ScenarioPosition {
    /// Creates the position at the start of the first phase.
    pub fn new(scenario: Arc<Scenario>, now: SimTime) -> Self {
        Self {
            scenario,
            round: 0,
            phase: 0,
            since: now,
            requests: 0,
            over: false,
        }
    }

    /// Returns the scenario.
    pub fn scenario(&self) -> &Arc<Scenario> {
        &self.scenario
    }

    /// Returns round and phase; `None` if the scenario is over.
    pub fn place(&self) -> Option<(u32, usize)> {
        (!self.over).then_some((self.round, self.phase))
    }

    /// Returns the number of requests that arrived in the current phase.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns when the phase ends; `None` if it has no time limit.
    pub fn due(&self) -> Option<SimTime> {
        match self.scenario.phases[self.phase].length {
            PhaseLength::Time(time) if !self.over => Some(self.since + time),
            _ => None,
        }
    }

    /// Moves to the next phase if the current one has ended by `now`; returns whether it did.
    ///
    /// A phase after a timed one starts at the due time, however late this is called.
    pub fn step(&mut self, now: SimTime) -> bool {
        let began = match self.scenario.phases[self.phase].length {
            _ if self.over => return false,
            PhaseLength::Time(time) if self.since + time <= now => self.since + time,
            PhaseLength::Requests(requests) if self.requests >= requests => now,
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

    /// Counts a request in the current phase; `None` if the scenario is over.
    pub fn arrive(&mut self, id: Option<&str>) -> Option<ScenarioArrival> {
        let (round, phase) = self.place()?;
        let ordinal = self.requests;
        self.requests += 1;
        let known = match (self.scenario.by, id) {
            (FaultKey::RequestId, Some(id)) => {
                id.bytes().fold(0x1d, |key, byte| mix(key, u64::from(byte)))
            }
            _ => ordinal,
        };
        let place = u64::from(round) << 32 | phase as u64;
        Some(ScenarioArrival {
            round,
            phase,
            ordinal,
            key: mix(mix(0xd411, place), known),
        })
    }
}

/// Reports why a phase is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseChange {
    /// The phase begins.
    Begin,
    /// The phase continues with changed base settings.
    Again,
}

/// Callback for each phase change, in order; `None` in place of round and phase ends the scenario.
pub type OnPhaseChange = Box<dyn Fn(&Scenario, Option<(u32, usize)>, PhaseChange) + Send + Sync>;

/// A running scenario, shared by all requests.
pub struct ScenarioRun {
    position: Mutex<ScenarioPosition>,
    on_change: OnPhaseChange,
}

impl ScenarioRun {
    /// Starts the scenario and calls `on_change` for its first phase.
    pub fn begin(scenario: Arc<Scenario>, now: SimTime, on_change: OnPhaseChange) -> Self {
        on_change(&scenario, Some((0, 0)), PhaseChange::Begin);
        Self {
            position: Mutex::new(ScenarioPosition::new(scenario, now)),
            on_change,
        }
    }

    /// Enters every phase that has begun by `now`, and returns when to call again.
    pub fn tick(&self, now: SimTime) -> Option<SimTime> {
        let mut position = self.position.lock();
        self.catch_up(&mut position, now);
        position.due()
    }

    /// Counts an arriving request and calls `decide` while the phase cannot change.
    ///
    /// Returns `None` if the scenario is over.
    pub fn arrive<T>(
        &self,
        now: SimTime,
        id: Option<&str>,
        decide: impl FnOnce(&Scenario, ScenarioArrival) -> T,
    ) -> Option<T> {
        let mut position = self.position.lock();
        self.catch_up(&mut position, now);
        let arrival = position.arrive(id)?;
        let scenario = position.scenario().clone();
        let decided = decide(&scenario, arrival);
        // A phase of n requests ends with the n-th request.
        self.catch_up(&mut position, now);
        Some(decided)
    }

    /// Returns the current position.
    pub fn position(&self) -> ScenarioPosition {
        self.position.lock().clone()
    }

    /// Announces the current phase again, unless the scenario is over.
    pub fn again(&self) {
        let position = self.position.lock();
        if position.place().is_some() {
            (self.on_change)(position.scenario(), position.place(), PhaseChange::Again);
        }
    }

    /// Ends the scenario; calls `on_change` unless it was already over.
    pub fn end(&self) {
        let mut position = self.position.lock();
        if !std::mem::replace(&mut position.over, true) {
            (self.on_change)(position.scenario(), None, PhaseChange::Begin);
        }
    }

    fn catch_up(&self, position: &mut ScenarioPosition, now: SimTime) {
        while position.step(now) {
            (self.on_change)(position.scenario(), position.place(), PhaseChange::Begin);
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
        let scenario = Arc::new(Scenario::from_yaml(SCENARIO).unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        let on_change: OnPhaseChange = Box::new(move |_, place, _| seen.lock().push(place));
        let run = ScenarioRun::begin(scenario, at(0), on_change);
        let arrival = |ms| run.arrive(at(ms), None, |_, arrival| (arrival.phase, arrival.ordinal));
        assert_eq!(
            [arrival(1), arrival(2), arrival(3)],
            [0, 1, 2].map(|n| Some((0, n)))
        );
        // A late call: the third phase began when the second was due to end.
        assert_eq!(run.tick(at(4)), Some(at(10_003)));
        assert_eq!(arrival(5), Some((1, 0)));
        assert_eq!(arrival(20_000), Some((2, 0)));
        assert_eq!(run.position().place(), Some((1, 0)));
        for ms in 20_001..20_004 {
            arrival(ms);
        }
        assert_eq!(run.tick(at(40_000)), None);
        assert_eq!((arrival(40_001), arrival(40_002)), (Some((2, 0)), None));
        let places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
        let mut places: Vec<_> = places.into_iter().map(Some).collect();
        places.push(None);
        assert_eq!(*log.lock(), places);
    }

    #[test]
    fn a_request_is_known_by_its_place_or_by_its_id() {
        let keys = |by: &str, ids: [&str; 3]| {
            let text = SCENARIO.replace("repeat: 2", &format!("repeat: 0\nby: {by}"));
            let scenario = Arc::new(Scenario::from_yaml(&text).unwrap());
            let mut position = ScenarioPosition::new(scenario, at(0));
            ids.map(|id| position.arrive(Some(id)).unwrap().key)
        };
        assert_eq!(
            keys("ordinal", ["a", "b", "c"]),
            keys("ordinal", ["c", "b", "a"])
        );
        let (mut there, mut back) = (
            keys("request-id", ["a", "b", "c"]),
            keys("request-id", ["c", "b", "a"]),
        );
        assert_ne!(there, back);
        there.sort_unstable();
        back.sort_unstable();
        assert_eq!(there, back);
    }

    #[test]
    fn a_replica_plays_its_own_part_over_what_all_play() {
        let text = "
phases:
  - set: {latency-factor: 2, retry-after: 1}
    do: [abort-requests]
    replicas:
      0: {set: {latency-factor: 8}}
      pod-b: {do: [{restart: 5s}]}
";
        let scenario = Scenario::from_yaml(text).unwrap();
        let played = |number, pod: &str| {
            let id = ReplicaId {
                number,
                pod: Some(pod.to_owned()),
            };
            let phase = scenario.clone().for_replica(&id).phases.remove(0);
            assert!(phase.replicas.is_empty());
            (phase.set["latency-factor"].clone(), phase.actions.len())
        };
        assert_eq!(played(0, "pod-a"), (8.into(), 1));
        assert_eq!(played(1, "pod-b"), (2.into(), 2));
        assert_eq!(played(2, "pod-c"), (2.into(), 1));
        assert!(scenario.check_replicas(1).is_ok());
        let error = scenario.check_replicas(0).unwrap_err().to_string();
        assert!(error.contains("there is no replica 0"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_phase() {
        let cases = [
            ("[]", "a mapping with the keys"),
            ("{phases: []}", "'phases' is a list of 1 to 1000 phases"),
            ("{phases: [{}], speed: 1}", "unknown key \"speed\""),
            ("{phases: [{name: a}, {name: a}]}", "a name of its own"),
            (
                "{phases: [{name: a, for: 1s, requests: 2}]}",
                "phases[0] \"a\": 'for' and",
            ),
            (
                "{phases: [{for: x}]}",
                "phases[0] \"phase-1\": 'for': \"x\" is not a duration",
            ),
            ("{phases: [{for: 0}]}", "'for' is at least 1ms"),
            (
                "{phases: [{requests: 0}]}",
                "'requests' is a number from 1 on",
            ),
            (
                "{phases: [{do: dance}]}",
                "'do' does not know \"dance\"; there are reset-prefix-cache",
            ),
            (
                "{phases: [{replicas: {1: {for: 1s}}}]}",
                "replicas: \"1\": unknown key \"for\"",
            ),
            ("{phases: [{replicas: [1]}]}", "'replicas' maps numbers or"),
            ("{phases: [{}], by: luck}", "'by' is ordinal or request-id"),
        ];
        for (text, why) in cases {
            let error = Scenario::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
