use std::time::Duration;

use vllm_sim_engine::SimTime;

/// The instants at which workers are reported.
#[derive(Debug)]
pub(super) struct SampleRaster {
    /// Nanoseconds between two; 0: never.
    every: u64,
    next: u64,
}

impl SampleRaster {
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self {
            every: every.unwrap_or_default().as_nanos() as u64,
            next: 0,
        }
    }

    /// The instant that is next, if there are any.
    pub(super) fn next(&self) -> Option<SimTime> {
        (self.every > 0).then(|| SimTime::from_nanos(self.next))
    }

    /// The instant before `now` for which workers must be reported before anything happens then.
    pub(super) fn due(&mut self, now: SimTime) -> Option<SimTime> {
        let at = self.next().filter(|&at| at < now)?;
        // Nothing changed up to the last instant of the raster before now.
        let passed = (now.nanos() - 1) / self.every * self.every;
        self.next = (self.next + self.every).max(passed);
        Some(at)
    }
}
