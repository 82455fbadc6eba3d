//! Fault settings that an operator may change at run time.
//!
//! Every request takes one snapshot on arrival and keeps it to its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;

use super::admission::AdmissionLimits;
use crate::fault::{
    DrawnFaults, ExceededAdmissionLimit, FaultObserver, FaultRates, FaultScenarioAndPhase,
    KV_LOAD_FAILURE,
};
use crate::scenario::{ScenarioRequestArrival, ScenarioRun};
use vllm_sim_engine::{SimTime, TokenDelays};

/// Fault settings, replaced as a whole while the server runs.
#[derive(Debug, Clone, Default)]
pub struct LiveFaultSettings {
    /// Rates of faults that are drawn at random.
    pub rates: FaultRates,
    /// Token delays of engines with the scheduler named `pool`, one entry per data-parallel rank. A
    /// rank without an entry uses the delays of its engine.
    pub delays: Vec<Arc<TokenDelays>>,
    /// Limits on the requests in flight.
    pub admission: AdmissionLimits,
    /// HTTP status of health checks (200 if healthy).
    pub health: u16,
    /// Value of `Retry-After` in responses with 429 or 503, in seconds; `None` sends no header.
    pub retry_after_seconds: Option<u32>,
    /// Fault scenario and its phase that set these fault settings.
    pub origin: FaultScenarioAndPhase,
}

/// The current fault settings, and the scenario that changes them.
#[derive(Default)]
pub struct FaultControl {
    /// Whether a request needs [`Self::decide_faults`]; while false, a request costs one atomic load.
    needs_fault_draw: AtomicBool,
    settings: ArcSwap<LiveFaultSettings>,
    /// Number of requests whose faults were drawn outside a scenario.
    drawn: AtomicU64,
    scenario: ArcSwapOption<ScenarioRun>,
    observer: OnceLock<Arc<dyn FaultObserver>>,
}

/// Reports to the observer that a KV cache load failed, once the failure affected the client.
pub(crate) struct KvLoadFailureReport {
    observer: Arc<dyn FaultObserver>,
    origin: FaultScenarioAndPhase,
}

impl KvLoadFailureReport {
    pub(crate) fn report_kv_load_failure(&self) {
        self.observer.on_fault(KV_LOAD_FAILURE, &self.origin);
    }
}

impl FaultControl {
    /// Sets the observer that receives injected faults; only the first call has an effect.
    pub fn set_fault_observer(&self, observer: Arc<dyn FaultObserver>) {
        let _ = self.observer.set(observer);
    }

    /// Replaces the fault settings.
    pub fn replace_fault_settings(&self, settings: LiveFaultSettings) {
        self.settings.store(Arc::new(settings));
        self.needs_fault_draw.store(true, Ordering::Release);
    }

    /// Sets the initial fault settings.
    ///
    /// Settings without fault rates apply to every request anyway, so they do not require a
    /// decision per request.
    pub fn set_initial_fault_settings(&self, settings: LiveFaultSettings) {
        if settings.rates.injects_no_faults() {
            self.settings.store(Arc::new(settings));
        } else {
            self.replace_fault_settings(settings);
        }
    }

    /// Returns the current fault settings.
    pub fn settings(&self) -> Arc<LiveFaultSettings> {
        self.settings.load_full()
    }

    /// Returns whether each request must look up its fault settings and draw its faults.
    pub fn needs_fault_draw(&self) -> bool {
        self.needs_fault_draw.load(Ordering::Acquire)
    }

    /// Replaces the fault scenario; with `None`, the configured rates alone determine the faults.
    pub fn set_scenario(&self, scenario: Option<Arc<ScenarioRun>>) {
        self.scenario.store(scenario);
        self.needs_fault_draw.store(true, Ordering::Release);
    }

    /// Returns the fault settings of a request that arrives at `now`, and the faults drawn for it.
    ///
    /// Scenarios that identify requests by their id use `id`.
    pub(crate) fn decide_faults(
        &self,
        seed: u64,
        now: SimTime,
        id: Option<&str>,
    ) -> (Arc<LiveFaultSettings>, DrawnFaults) {
        let scenario = self.scenario.load_full();
        let arrival = scenario.and_then(|scenario| {
            scenario.count_request_arrival(now, id, |scenario, arrival: ScenarioRequestArrival| {
                let seed = scenario.seed.unwrap_or(seed);
                self.draw_faults(seed, arrival.key)
            })
        });
        arrival.unwrap_or_else(|| {
            let number = self.drawn.fetch_add(1, Ordering::Relaxed);
            self.draw_faults(seed, number)
        })
    }

    fn draw_faults(&self, seed: u64, key: u64) -> (Arc<LiveFaultSettings>, DrawnFaults) {
        let settings = self.settings();
        let drawn = settings.rates.draw_faults(seed, key);
        (settings, drawn)
    }

    /// Reports to the observer that an admission limit rejected a request.
    pub fn report_rejected_request(&self, limit: ExceededAdmissionLimit) {
        if let Some(observer) = self.observer.get() {
            observer.on_rejected(limit);
        }
    }

    /// Returns the report to send when the KV cache of a request could not be loaded; `None`
    /// without an observer.
    pub(crate) fn kv_load_failure_report(
        &self,
        origin: &FaultScenarioAndPhase,
    ) -> Option<KvLoadFailureReport> {
        let observer = self.observer.get()?.clone();
        let origin = origin.clone();
        Some(KvLoadFailureReport { observer, origin })
    }

    /// Reports to the observer an injected fault that reached a client.
    pub fn report_fault(&self, kind: &'static str, origin: &FaultScenarioAndPhase) {
        if let Some(observer) = self.observer.get() {
            observer.on_fault(kind, origin);
        }
    }
}

/// A handle by which an injected fault breaks a client connection.
///
/// The task that serves the connection awaits [`Self::wait_until_connection_broken`] in parallel with its work, then
/// drops the socket. [`Self::is_connection_reset`] selects a TCP reset instead of a regular close.
#[derive(Debug, Default)]
pub struct ConnectionHandle {
    reset: AtomicBool,
    broken: Notify,
}

impl ConnectionHandle {
    /// Breaks the connection with a TCP reset, regardless of pending I/O.
    pub fn reset_connection(&self) {
        self.reset.store(true, Ordering::Release);
        self.broken.notify_one();
    }

    /// Returns whether the connection must be closed with a TCP reset instead of a regular close.
    pub fn is_connection_reset(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// Resolves when an injected fault breaks the connection.
    pub async fn wait_until_connection_broken(&self) {
        self.broken.notified().await;
    }
}

/// Simulated availability of a server to its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerAvailability {
    /// Number of simulated restarts of the server; connections from before a restart are reset.
    pub lives: u32,
    /// Whether the server also resets new connections.
    pub down: bool,
    /// Whether the server closes each connection after the current response, and each new one after
    /// its first response, so that clients move to other servers.
    pub leaving: bool,
    /// Whether the server is stopping: it accepts no connections, and open ones are closed
    /// gracefully.
    pub stopping: bool,
}
