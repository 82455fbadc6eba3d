use std::sync::Arc;

use vllm_sim_engine::BlockPlan;
use vllm_sim_engine::SimTime;

use super::outcome::{Admission, HandoffTimes, Status};
use super::steps::TokenTimes;

/// A request on its way.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub alive: bool,
    /// Place and number of its session.
    pub place: u32,
    pub session: u64,
    pub turn: u32,
    pub number: u64,
    pub arrival: SimTime,
    pub dispatched: Option<SimTime>,
    pub queued_ns: u64,
    pub input: u32,
    pub output: u32,
    pub plan: Option<Arc<BlockPlan>>,
    pub priority: i32,
    pub strict_priority: u32,
    /// Adapter that it asks for.
    pub adapter: Option<u64>,
    pub worker: Option<u32>,
    pub prefill_worker: Option<u32>,
    pub tokens: TokenTimes,
    pub first: Option<SimTime>,
    pub admissions: Vec<Admission>,
    pub preemptions: Vec<u64>,
    /// When they were.
    pub preempted: Vec<SimTime>,
    pub handoff: Option<HandoffTimes>,
    /// Tokens of the prompt that the decode worker has not, once it has room for them.
    pub missing: Option<u32>,
    /// It is over, but the prefill worker has to learn of it: when, and how.
    pub over: Option<(SimTime, Status)>,
    /// Names of the session and of the request, once its session may be closed.
    pub names: (Option<Arc<str>>, Option<Arc<str>>),
    pub overlap: u32,
    pub best_overlap: Option<u32>,
}

/// Requests that live, in slots that are used again.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Request>,
    free: Vec<u32>,
}

impl Requests {
    /// A request whose lists are empty and whose other fields are to be set.
    pub(super) fn claim(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Request::default());
            (self.slots.len() - 1) as u32
        });
        let request = &mut self.slots[slot as usize];
        request.tokens.clear();
        request.admissions.clear();
        request.preemptions.clear();
        request.preempted.clear();
        *request = Request {
            alive: true,
            tokens: std::mem::take(&mut request.tokens),
            admissions: std::mem::take(&mut request.admissions),
            preemptions: std::mem::take(&mut request.preemptions),
            preempted: std::mem::take(&mut request.preempted),
            ..Request::default()
        };
        slot
    }

    pub(super) fn release(&mut self, slot: u32) {
        let request = &mut self.slots[slot as usize];
        request.alive = false;
        request.plan = None;
        self.free.push(slot);
    }

    pub(super) fn get(&self, slot: u32) -> &Request {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Request {
        &mut self.slots[slot as usize]
    }

    pub(super) fn living(&self) -> impl Iterator<Item = (u32, &Request)> {
        (0..).zip(&self.slots).filter(|(_, request)| request.alive)
    }
}
