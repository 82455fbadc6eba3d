//! Waves of data-parallel ranks of a mixture-of-experts model, which start and pause together.
//!
//! vLLM's ranks synchronise with an all-reduce. These ranks share one state within the process and
//! ignore ranks of other processes.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/core.py`, `DPEngineCoreProc`; `vllm/v1/engine/coordinator.py`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of the waves, shared by the data-parallel ranks in this process.
#[derive(Debug)]
pub struct Waves {
    /// Whether rank 0, which announces the end of waves, is in this process.
    leads: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the current wave, or of the next one if all ranks are idle.
    wave: u64,
    busy: BTreeSet<u32>,
}

impl Waves {
    /// Creates the wave state of idle ranks; the lowest rank in this process is `first_rank`.
    pub fn new(first_rank: u32) -> Self {
        Self {
            leads: first_rank == 0,
            state: Mutex::default(),
        }
    }

    /// A poisoned lock is safe to use, because each change is one assignment.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> u64 {
        self.state().wave
    }

    /// Raises the wave number to one that another process has announced.
    pub(crate) fn raise(&self, wave: u64) {
        let mut state = self.state();
        state.wave = state.wave.max(wave);
    }

    /// Marks a rank as busy; returns the number of the wave that this starts, if all ranks were
    /// idle.
    pub(crate) fn begin(&self, rank: u32) -> Option<u64> {
        let mut state = self.state();
        let rested = state.busy.is_empty();
        state.busy.insert(rank);
        rested.then_some(state.wave)
    }

    /// Marks a rank as idle; returns the number of the wave that this ends, if all ranks are idle
    /// and rank 0 is in this process.
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
