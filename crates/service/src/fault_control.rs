//! What may go wrong with a request, and the settings that an operator may change: every request
//! takes one snapshot when it arrives and keeps it to its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::admission::Admission;
use crate::fault::{
    AdmissionBound, DrawnFault, FaultObserver, FaultOrigin, FaultRates, KV_LOAD_FAILURE,
};
use crate::scenario::{ScenarioArrival, ScenarioRun};
use vllm_sim_engine::Delays;
use vllm_sim_engine::SimTime;

/// Settings that may change while the server runs.
#[derive(Debug, Clone, Default)]
pub struct LiveSettings {
    /// Which requests fail, and how.
    pub rates: FaultRates,
    /// Delays of the pool scheduler, one per rank; a rank without any has its engine's own.
    pub delays: Vec<Arc<Delays>>,
    /// Bounds on what is in flight.
    pub admission: Admission,
    /// What health checks are told.
    pub health: u16,
    /// `Retry-After` of refusals with 429 or 503, in seconds; `None`: none.
    pub retry_after_seconds: Option<u32>,
    /// Whose settings these are.
    pub origin: FaultOrigin,
}

/// Failures in force, and the scenario that changes them.
#[derive(Default)]
pub struct FaultControl {
    /// Whether any request needs a decision: otherwise all of this costs one load.
    armed: AtomicBool,
    settings: ArcSwap<LiveSettings>,
    /// Requests that chance looked at.
    drawn: AtomicU64,
    scenario: ArcSwapOption<ScenarioRun>,
    observer: OnceLock<Arc<dyn FaultObserver>>,
}

/// A load that may fail, for who counts it.
pub(crate) struct LoadFailureReport {
    observer: Arc<dyn FaultObserver>,
    origin: FaultOrigin,
}

impl LoadFailureReport {
    /// It has failed.
    pub(crate) fn count(&self) {
        self.observer.fault(KV_LOAD_FAILURE, &self.origin);
    }
}

impl FaultControl {
    /// Faults are reported to `observer`; the first one given counts.
    pub fn report_to(&self, observer: Arc<dyn FaultObserver>) {
        let _ = self.observer.set(observer);
    }

    /// Settings from now on.
    pub fn set(&self, settings: LiveSettings) {
        self.settings.store(Arc::new(settings));
        self.armed.store(true, Ordering::Release);
    }

    /// Settings of the start. Every request has those anyway, so idle ones need no decision.
    pub fn begin(&self, settings: LiveSettings) {
        if settings.rates.is_idle() {
            self.settings.store(Arc::new(settings));
        } else {
            self.set(settings);
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<LiveSettings> {
        self.settings.load_full()
    }

    /// Whether requests need a decision.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// The scenario that decides from now on; `None`: chance alone.
    pub fn run_scenario(&self, scenario: Option<Arc<ScenarioRun>>) {
        self.scenario.store(scenario);
        self.armed.store(true, Ordering::Release);
    }

    /// The settings of a request that arrives now, and what chance draws for it. Its id matters to
    /// scenarios that know requests by it.
    pub(crate) fn decide(
        &self,
        seed: u64,
        now: SimTime,
        id: Option<&str>,
    ) -> (Arc<LiveSettings>, DrawnFault) {
        let scenario = self.scenario.load_full();
        let arrival = scenario.and_then(|scenario| {
            scenario.arrive(now, id, |scenario, arrival: ScenarioArrival| {
                let seed = scenario.seed.unwrap_or(seed);
                self.draw(seed, arrival.key)
            })
        });
        arrival.unwrap_or_else(|| {
            let number = self.drawn.fetch_add(1, Ordering::Relaxed);
            self.draw(seed, number)
        })
    }

    fn draw(&self, seed: u64, key: u64) -> (Arc<LiveSettings>, DrawnFault) {
        let settings = self.settings();
        let drawn = settings.rates.draw(seed, key);
        (settings, drawn)
    }

    /// A bound on what is in flight turned a request away.
    pub fn refused(&self, bound: AdmissionBound) {
        if let Some(observer) = self.observer.get() {
            observer.refused(bound);
        }
    }

    /// Who is told once a client got to feel that its prompt could not be loaded.
    pub(crate) fn felt(&self, origin: &FaultOrigin) -> Option<LoadFailureReport> {
        let observer = self.observer.get()?.clone();
        let origin = origin.clone();
        Some(LoadFailureReport { observer, origin })
    }

    /// A client got to feel a fault.
    pub fn count(&self, kind: &'static str, origin: &FaultOrigin) {
        if let Some(observer) = self.observer.get() {
            observer.fault(kind, origin);
        }
    }
}
