//! Waves of data-parallel ranks of a mixture-of-experts model, which start and pause together.
//!
//! vLLM's ranks synchronise with an all-reduce. These ranks share one state within the process and
//! ignore ranks of other processes.
//!
//! Source: vLLM 0.33 `vllm/v1/engine/core.py`, `DPEngineCoreProc`; `vllm/v1/engine/coordinator.py`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State of the waves of data-parallel ranks, shared by the ranks in this process.
#[derive(Debug)]
pub struct DataParallelWaves {
    /// Whether data-parallel rank 0, which announces the end of waves, is in this process.
    leads: bool,
    state: Mutex<WaveState>,
}

#[derive(Debug, Default)]
struct WaveState {
    /// Number of the current wave of data-parallel ranks, or of the next one if all ranks are idle.
    wave: u64,
    busy: BTreeSet<u32>,
}

impl DataParallelWaves {
    /// Creates the wave state of idle data-parallel ranks; `lowest_rank` is the lowest rank in this
    /// process.
    pub fn with_idle_ranks(lowest_rank: u32) -> Self {
        Self { leads: lowest_rank == 0, state: Mutex::default() }
    }

    /// Locks the wave state, also after a panic of a thread that held it: each change is one
    /// assignment.
    fn lock_state(&self) -> MutexGuard<'_, WaveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current_wave(&self) -> u64 {
        self.lock_state().wave
    }

    /// Raises the number of the current data-parallel wave to one that another process has
    /// announced.
    pub(crate) fn raise_wave_number(&self, wave: u64) {
        let mut state = self.lock_state();
        state.wave = state.wave.max(wave);
    }

    /// Marks a data-parallel rank as busy. If all ranks were idle, this starts a wave, whose number
    /// is returned.
    pub(crate) fn mark_rank_busy(&self, rank: u32) -> Option<u64> {
        let mut state = self.lock_state();
        let rested = state.busy.is_empty();
        state.busy.insert(rank);
        rested.then_some(state.wave)
    }

    /// Marks a data-parallel rank as idle. If all ranks are then idle and rank 0 is in this
    /// process, the wave ends, and its number is returned.
    pub(crate) fn mark_rank_idle(&self, rank: u32) -> Option<u64> {
        let mut state = self.lock_state();
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
        let waves = DataParallelWaves::with_idle_ranks(0);
        assert_eq!((waves.mark_rank_busy(1), waves.mark_rank_busy(0)), (Some(0), None));
        assert_eq!((waves.mark_rank_idle(1), waves.mark_rank_idle(1)), (None, None));
        assert_eq!((waves.mark_rank_idle(0), waves.current_wave()), (Some(0), 1));
        waves.raise_wave_number(7);
        waves.raise_wave_number(3);
        assert_eq!((waves.mark_rank_busy(0), waves.mark_rank_idle(0)), (Some(7), Some(7)));
        let others = DataParallelWaves::with_idle_ranks(2);
        assert_eq!((others.mark_rank_busy(2), others.mark_rank_idle(2)), (Some(0), None));
    }
}
