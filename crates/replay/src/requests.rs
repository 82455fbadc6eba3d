use std::sync::Arc;

use vllm_sim_engine::PlannedKvBlocks;
use vllm_sim_engine::SimTime;

use super::outcome::{AdmissionOutcome, PrefillHandoffTimes, RequestStatus};
use super::steps::OutputTokenTimes;

#[derive(Debug, Default)]
pub(super) struct ReplayRequest {
    pub alive: bool,
    pub place: u32,
    pub session: u64,
    pub turn: u32,
    pub number: u64,
    pub arrival: SimTime,
    pub dispatched: Option<SimTime>,
    pub queued_ns: u64,
    pub input: u32,
    pub output: u32,
    pub plan: Option<Arc<PlannedKvBlocks>>,
    pub priority: i32,
    pub strict_priority: u32,
    pub adapter: Option<u64>,
    pub worker: Option<u32>,
    pub prefill_worker: Option<u32>,
    pub tokens: OutputTokenTimes,
    pub first: Option<SimTime>,
    pub admissions: Vec<AdmissionOutcome>,
    pub preemptions: Vec<u64>,
    pub preempted: Vec<SimTime>,
    pub handoff: Option<PrefillHandoffTimes>,
    /// Number of prompt tokens that the decode worker has not cached; known once this worker has
    /// reserved KV blocks for the request.
    pub missing: Option<u32>,
    /// End time and status of an ended request whose prompt's KV blocks the prefill worker still
    /// holds.
    pub over: Option<(SimTime, RequestStatus)>,
    /// Session id and request id from the trace, stored here because the session may already be
    /// closed.
    pub names: (Option<Arc<str>>, Option<Arc<str>>),
    pub overlap: u32,
    pub best_overlap: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct RequestSlab {
    slots: Vec<ReplayRequest>,
    free: Vec<u32>,
}

impl RequestSlab {
    pub(super) fn claim_request_slot(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ReplayRequest::default());
            (self.slots.len() - 1) as u32
        });
        let request = &mut self.slots[slot as usize];
        request.tokens.clear_token_times();
        request.admissions.clear();
        request.preemptions.clear();
        request.preempted.clear();
        *request = ReplayRequest {
            alive: true,
            tokens: std::mem::take(&mut request.tokens),
            admissions: std::mem::take(&mut request.admissions),
            preemptions: std::mem::take(&mut request.preemptions),
            preempted: std::mem::take(&mut request.preempted),
            ..ReplayRequest::default()
        };
        slot
    }

    pub(super) fn release_request_slot(&mut self, slot: u32) {
        let request = &mut self.slots[slot as usize];
        request.alive = false;
        request.plan = None;
        self.free.push(slot);
    }

    pub(super) fn get(&self, slot: u32) -> &ReplayRequest {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut ReplayRequest {
        &mut self.slots[slot as usize]
    }

    pub(super) fn requests_in_flight(&self) -> impl Iterator<Item = (u32, &ReplayRequest)> {
        (0..).zip(&self.slots).filter(|(_, request)| request.alive)
    }
}
