use std::time::Duration;

use vllm_sim_engine::SimTime;

#[derive(Debug)]
pub(super) struct WorkerSampleClock {
    every: u64,
    next: u64,
}

impl WorkerSampleClock {
    pub(super) fn new(interval: Option<Duration>) -> Self {
        Self { every: interval.unwrap_or_default().as_nanos() as u64, next: 0 }
    }

    pub(super) fn next_sample_time(&self) -> Option<SimTime> {
        (self.every > 0).then(|| SimTime::from_nanos(self.next))
    }

    /// Returns the next time at which the workers' gauges are sampled, if that time is before
    /// `now`, and advances to the sample time after it.
    pub(super) fn pop_due_sample_time(&mut self, now: SimTime) -> Option<SimTime> {
        let at = self.next_sample_time().filter(|&at| at < now)?;
        // Nothing changed between the last sample time before `now` and `now`, so the ones between
        // are skipped.
        let passed = (now.as_nanos() - 1) / self.every * self.every;
        self.next = (self.next + self.every).max(passed);
        Some(at)
    }
}
