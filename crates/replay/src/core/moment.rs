use vllm_sim_engine::SimTime;

use crate::outcome::Sink;

/// When something is reported, in the order of the loop over all workers: by instant, by round at
/// this instant, first what workers did, then what was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    pub(super) at: SimTime,
    round: u32,
    sent: bool,
    /// Worker or request.
    number: u64,
}

impl Moment {
    /// A worker goes on.
    pub(super) fn of_worker(at: SimTime, round: u32, worker: u32) -> Self {
        Self {
            at,
            round,
            sent: false,
            number: worker.into(),
        }
    }

    /// A request is sent.
    pub(super) fn of_request(at: SimTime, round: u32, number: u64) -> Self {
        Self {
            at,
            round,
            sent: true,
            number,
        }
    }

    /// The run is over: a request that is not.
    pub(super) fn of_rest(number: u64) -> Self {
        Self::of_request(SimTime::MAX, 0, number)
    }

    /// After those: the steps of a worker that were not reported yet.
    pub(super) fn of_last_steps(worker: u32) -> Self {
        Self::of_worker(SimTime::MAX, 1, worker)
    }
}

/// A sink that wants to know at which point of the loop it is called.
pub(super) trait OrderedSink: Sink + Sized {
    /// All that follows belongs to this moment.
    fn moment(&mut self, moment: Moment) {
        let _ = moment;
    }

    /// A sequence was preempted.
    fn preempted(&mut self) {}
}

impl OrderedSink for &mut (dyn Sink + '_) {}
