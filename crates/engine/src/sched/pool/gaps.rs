//! Computes the delays between the tokens of a sequence.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;

use super::{RunningSequence, SlotScheduler};
use crate::{Sequence, TokenDelays};
use vllm_sim_random::{StreamPurpose, request_rng};

impl SlotScheduler {
    /// Draws a delay of a sequence. The random generator is created on first use, and not kept if
    /// all delays have a standard deviation of zero.
    pub(super) fn draw_sequence_delay(
        &self,
        running: &mut RunningSequence,
        f: impl FnOnce(&TokenDelays, &mut ChaCha8Rng) -> Duration,
    ) -> Duration {
        let (seed, key) = (self.config.seed, running.seq.key);
        let fresh = || request_rng(seed, key, StreamPurpose::Latency);
        let delays = running.seq.delays.as_deref().unwrap_or(&self.delays);
        if delays.is_deterministic() {
            return f(delays, &mut fresh());
        }
        let rng = running.rng.get_or_insert_with(|| Box::new(fresh()));
        f(delays, rng)
    }

    pub(super) fn token_delays_of<'a>(&'a self, seq: &'a Sequence) -> &'a TokenDelays {
        seq.delays.as_deref().unwrap_or(&self.delays)
    }

    /// Returns the recorded delay before the next token, if the sequence has recorded token times.
    pub(super) fn recorded_token_gap(&self, running: &RunningSequence) -> Option<Duration> {
        let timeline = running.seq.timeline.as_ref()?;
        let next = running.released as usize;
        let at = *timeline.get(next)?;
        let before = next.checked_sub(1).map_or(Duration::ZERO, |i| timeline[i]);
        Some(self.token_delays_of(&running.seq).divide_by_speedup(at.saturating_sub(before)))
    }

    pub(super) fn next_token_gap(&mut self, running: &mut RunningSequence) -> Duration {
        let tokens_without_gap = &running.seq.tokens_without_gap;
        if tokens_without_gap.get(running.next_no_gap as usize) == Some(&running.released) {
            running.next_no_gap += 1;
            return Duration::ZERO;
        }
        if let Some(gap) = self.recorded_token_gap(running) {
            return gap;
        }
        let delays = self.token_delays_of(&running.seq);
        if delays.itl.0.is_zero() {
            return Duration::ZERO;
        }
        let load = delays.load_factor(self.running_count(), self.config.slots);
        if delays.itl.1.is_zero() {
            return delays.mean_inter_token_delay(load);
        }
        self.draw_sequence_delay(running, |d, rng| d.draw_inter_token_delay(load, rng))
    }
}
