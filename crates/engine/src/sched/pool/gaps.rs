//! Computes the delays between the tokens of a sequence.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;

use super::{Pool, RunningSeq};
use crate::{Delays, Sequence};
use vllm_sim_random::{Purpose, stream};

impl Pool {
    /// Draws a delay of a sequence. The random generator is created on first use, and not kept if
    /// all delays have a standard deviation of zero.
    pub(super) fn draw(
        &self,
        running: &mut RunningSeq,
        f: impl FnOnce(&Delays, &mut ChaCha8Rng) -> Duration,
    ) -> Duration {
        let (seed, key) = (self.config.seed, running.seq.key);
        let fresh = || stream(seed, key, Purpose::Latency);
        let delays = running.seq.delays.as_deref().unwrap_or(&self.delays);
        if delays.is_exact() {
            return f(delays, &mut fresh());
        }
        let rng = running.rng.get_or_insert_with(|| Box::new(fresh()));
        f(delays, rng)
    }

    pub(super) fn delays<'a>(&'a self, seq: &'a Sequence) -> &'a Delays {
        seq.delays.as_deref().unwrap_or(&self.delays)
    }

    /// Returns the recorded delay before the next token, if the sequence has recorded token times.
    pub(super) fn recorded_gap(&self, running: &RunningSeq) -> Option<Duration> {
        let timeline = running.seq.timeline.as_ref()?;
        let next = running.released as usize;
        let at = *timeline.get(next)?;
        let before = next.checked_sub(1).map_or(Duration::ZERO, |i| timeline[i]);
        Some(
            self.delays(&running.seq)
                .apply_speedup(at.saturating_sub(before)),
        )
    }

    pub(super) fn gap(&mut self, running: &mut RunningSeq) -> Duration {
        let tokens_without_gap = &running.seq.tokens_without_gap;
        if tokens_without_gap.get(running.next_no_gap as usize) == Some(&running.released) {
            running.next_no_gap += 1;
            return Duration::ZERO;
        }
        if let Some(gap) = self.recorded_gap(running) {
            return gap;
        }
        let delays = self.delays(&running.seq);
        if delays.itl.0.is_zero() {
            return Duration::ZERO;
        }
        let load = delays.load(self.running(), self.config.slots);
        if delays.itl.1.is_zero() {
            return delays.exact_gap(load);
        }
        self.draw(running, |d, rng| d.gap(load, rng))
    }
}
