//! Waves of data-parallel ranks with experts: they begin together and rest together.
//!
//! Upstream's ranks agree by an all-reduce; these are in one process and look at one state. Ranks
//! of another process are not heard.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/core.py`, `DPEngineCoreProc`; `vllm/v1/engine/coordinator.py`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The wave of the ranks of this process.
#[derive(Debug)]
pub struct Waves {
    /// Whether the rank that ends waves is among them.
    leads: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the wave that runs, or of the next one.
    wave: u64,
    /// Ranks that have requests.
    busy: BTreeSet<u32>,
}

impl Waves {
    /// Ranks that rest, the first of them this one.
    pub fn new(first_rank: u32) -> Self {
        Self {
            leads: first_rank == 0,
            state: Mutex::default(),
        }
    }

    /// A panic of another rank leaves the state as good as any: each change is one assignment.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> u64 {
        self.state().wave
    }

    /// Somebody knows of this wave: those before it are over.
    pub(crate) fn raise(&self, wave: u64) {
        let mut state = self.state();
        state.wave = state.wave.max(wave);
    }

    /// A rank has requests from now on: the wave that begins with it, if all rested.
    pub(crate) fn begin(&self, rank: u32) -> Option<u64> {
        let mut state = self.state();
        let rested = state.busy.is_empty();
        state.busy.insert(rank);
        rested.then_some(state.wave)
    }

    /// A rank has no more requests: the wave that is complete with it, if all rest now.
    pub(crate) fn end(&self, rank: u32) -> Option<u64> {
        let mut state = self.state();
        if !state.busy.remove(&rank) || !state.busy.is_empty() {
            return None;
        }
        let wave = state.wave;
        state.wave += 1;
        self.leads.then_some(wave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_lasts_from_the_first_request_to_the_last() {
        let waves = Waves::new(0);
        assert_eq!((waves.begin(1), waves.begin(0)), (Some(0), None));
        assert_eq!((waves.end(1), waves.end(1)), (None, None));
        assert_eq!((waves.end(0), waves.current()), (Some(0), 1));
        waves.raise(7);
        waves.raise(3);
        assert_eq!((waves.begin(0), waves.end(0)), (Some(7), Some(7)));
        let others = Waves::new(2);
        assert_eq!((others.begin(2), others.end(2)), (Some(0), None));
    }
}
