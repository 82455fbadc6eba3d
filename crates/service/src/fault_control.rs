//! What may go wrong with a request, and the settings that an operator may change: every request
//! takes one snapshot when it arrives and keeps it to its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::Admission;
use crate::fault::{Bound, DrawnFault, FaultRates, Origin, Tally};
use crate::scenario::{ScenarioRun, Turn};
use vllm_sim_engine::Delays;
use vllm_sim_engine::SimTime;

/// Settings that may change while the server runs.
#[derive(Debug, Clone, Default)]
pub struct LiveSettings {
    /// Which requests fail, and how.
    pub plan: FaultRates,
    /// Delays of the pool scheduler, one per rank; a rank without any has its engine's own.
    pub delays: Vec<Arc<Delays>>,
    /// Bounds on what is in flight.
    pub admission: Admission,
    /// What health checks are told.
    pub health: u16,
    /// Whose settings these are.
    pub origin: Origin,
}

/// What befalls one request.
#[derive(Debug, Clone)]
pub struct FaultDecision {
    /// The settings it is answered under.
    pub tuned: Arc<LiveSettings>,
    /// What chance dealt it.
    pub dealt: DrawnFault,
}

/// Failures in force, and the drill that changes them.
#[derive(Default)]
pub struct FaultControl {
    /// Whether any request needs a verdict: otherwise all of this costs one load.
    armed: AtomicBool,
    tuned: ArcSwap<LiveSettings>,
    /// Requests that chance looked at.
    drawn: AtomicU64,
    stage: ArcSwapOption<ScenarioRun>,
    tally: OnceLock<Arc<dyn Tally>>,
}

impl FaultControl {
    /// Faults are reported to `tally`; the first one given counts.
    pub fn report_to(&self, tally: Arc<dyn Tally>) {
        let _ = self.tally.set(tally);
    }

    /// Settings from now on. With `armed` unset they are those of the start, which every request
    /// has anyway.
    pub fn set(&self, tuned: LiveSettings, armed: bool) {
        let armed = armed || !tuned.plan.is_idle();
        self.tuned.store(Arc::new(tuned));
        if armed {
            self.armed.store(true, Ordering::Release);
        }
    }

    /// The settings in force.
    pub fn tuned(&self) -> Arc<LiveSettings> {
        self.tuned.load_full()
    }

    /// Whether requests need a verdict.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// The drill that decides from now on; `None`: chance alone.
    pub fn play(&self, stage: Option<Arc<ScenarioRun>>) {
        self.stage.store(stage);
        self.armed.store(true, Ordering::Release);
    }

    /// The settings and the fate of a request that arrives now. Its id matters to drills that
    /// know requests by it.
    pub fn judge(&self, seed: u64, now: SimTime, id: Option<&str>) -> FaultDecision {
        let stage = self.stage.load_full();
        let turn = stage.and_then(|stage| {
            stage.arrive(now, id, |scenario, turn: Turn| {
                let seed = scenario.seed.unwrap_or(seed);
                self.verdict(seed, turn.key)
            })
        });
        turn.unwrap_or_else(|| {
            let number = self.drawn.fetch_add(1, Ordering::Relaxed);
            self.verdict(seed, number)
        })
    }

    fn verdict(&self, seed: u64, key: u64) -> FaultDecision {
        let tuned = self.tuned();
        let dealt = tuned.plan.deal(seed, key);
        FaultDecision { tuned, dealt }
    }

    /// A bound on what is in flight turned a request away.
    pub fn refused(&self, bound: Bound) {
        if let Some(tally) = self.tally.get() {
            tally.refused(bound);
        }
    }

    /// A client got to feel a fault.
    pub fn count(&self, kind: &'static str, origin: &Origin) {
        if let Some(tally) = self.tally.get() {
            tally.count(kind, origin);
        }
    }
}
