//! Transfers the KV cache of a prompt from its prefill worker to its decode worker.
//!
//! Source first (vLLM): the prefill worker computes and holds the prompt, then a decode worker
//! reserves KV blocks, the transfer runs, and the prefill worker frees its blocks. Destination
//! first (SGLang): the decode worker reserves KV blocks before prefill starts. An action on a
//! worker in the middle of a step is deferred to the end of that step.
//!
//! Source: aisimulate-core 0.13.0 `src/replay/{handoff,disagg}.rs`.

use std::collections::{HashMap, VecDeque};

use crate::disaggregation::PrefillHandoffOrder;
use crate::outcome::{PrefillHandoffTimes, RequestStatus};
use crate::pool::{DECODE_OR_UNIFIED_POOL_INDEX, PREFILL_POOL_INDEX};
use vllm_sim_engine::SimTime;
use vllm_sim_engine::{EngineCommand, Outbox, SchedulerEvent, SeqId};

use super::report_position::PositionedReplaySink;
use super::{EventLoop, ReplayError, TimerEvent, WorkerAddress};
use crate::sessions::NumberedSessionSource;

/// Next action of the handoff of a request from its prefill worker to its decode worker, with the
/// request's index in the `RequestSlab`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrefillHandoffAction {
    /// Handoff action: routes the request's prompt to a prefill worker.
    Compute(u32),
    /// Handoff action: routes the request to a decode worker, which reserves KV blocks.
    Reserve(u32),
    /// Handoff action: starts decoding the request, whose KV transfer is complete.
    Activate(u32),
    /// Handoff action: frees the KV blocks of the request's prompt on the prefill worker.
    Release(u32),
}

#[derive(Debug, Default)]
pub(super) struct PrefillHandoffQueue {
    /// Order of the prefill and of the KV block reservation on the decode worker; `None` if the
    /// engines manage the handoff themselves.
    pub order: Option<PrefillHandoffOrder>,
    actions: VecDeque<PrefillHandoffAction>,
    deferred: HashMap<WorkerAddress, VecDeque<PrefillHandoffAction>>,
    transfers: usize,
}

impl PrefillHandoffQueue {
    pub(super) fn push_handoff_action(&mut self, action: PrefillHandoffAction) {
        self.actions.push_back(action);
    }

    pub(super) fn finish_kv_transfer(&mut self, request_slot: u32) {
        self.transfers -= 1;
        self.push_handoff_action(PrefillHandoffAction::Activate(request_slot));
    }

    pub(super) fn has_running_kv_transfers(&self) -> bool {
        self.transfers > 0
    }

    pub(super) fn has_due_handoff_actions(&self) -> bool {
        !self.actions.is_empty()
    }
}

impl<S: PositionedReplaySink + ?Sized, N: NumberedSessionSource> EventLoop<'_, S, N> {
    pub(super) fn start_prefill_handoff(&mut self, request_slot: u32) {
        self.handoffs.push_handoff_action(match self.handoffs.order {
            Some(PrefillHandoffOrder::DestinationFirst) => {
                PrefillHandoffAction::Reserve(request_slot)
            }
            _ => PrefillHandoffAction::Compute(request_slot),
        });
    }

    /// Queues the handoff actions deferred for a worker if `out` contains the end of its step.
    pub(super) fn queue_deferred_handoff_actions(&mut self, address: WorkerAddress, out: &Outbox) {
        if self.handoffs.deferred.is_empty() {
            return;
        }
        let step =
            |(_, event): &(SimTime, SchedulerEvent)| matches!(event, SchedulerEvent::Step { .. });
        if out.iter().any(step)
            && let Some(mut actions) = self.handoffs.deferred.remove(&address)
        {
            self.handoffs.actions.append(&mut actions);
        }
    }

    pub(super) fn run_prefill_handoffs(&mut self) -> Result<(), ReplayError> {
        while let Some(action) = self.handoffs.actions.pop_front() {
            match action {
                PrefillHandoffAction::Compute(slot) => {
                    self.route_request_to_worker(PREFILL_POOL_INDEX, slot)
                }
                PrefillHandoffAction::Reserve(slot) => {
                    self.route_request_to_worker(DECODE_OR_UNIFIED_POOL_INDEX, slot)
                }
                PrefillHandoffAction::Activate(slot) => self.start_decode(slot)?,
                PrefillHandoffAction::Release(slot) => self.release_prefill_blocks(slot)?,
            }
            self.submit_routed_requests()?;
        }
        Ok(())
    }

    /// Records that the prefill worker has computed the prompt and holds its KV blocks, and queues
    /// the next handoff action.
    pub(super) fn record_prompt_computed(&mut self, request_slot: u32, when: SimTime) {
        let request = self.requests.get_mut(request_slot);
        let handoff = request.handoff.get_or_insert_with(PrefillHandoffTimes::default);
        handoff.held = Some(when);
        match self.handoffs.order {
            Some(PrefillHandoffOrder::DestinationFirst) => self.start_transfer(request_slot),
            _ => self.handoffs.push_handoff_action(PrefillHandoffAction::Reserve(request_slot)),
        }
    }

    /// Continues the handoffs for which the engine of a decode worker has reserved KV blocks.
    pub(super) fn handle_decode_kv_reservations(&mut self, (pool, at): WorkerAddress) {
        if self.handoffs.order.is_none() || pool != DECODE_OR_UNIFIED_POOL_INDEX {
            return;
        }
        for (id, missing) in self.pools[pool].workers[at as usize].engine.take_reserved_prompts() {
            let slot = id.0 as u32;
            let request = self.requests.get_mut(slot);
            request.missing = Some(missing);
            let handoff = request.handoff.get_or_insert_with(PrefillHandoffTimes::default);
            handoff.reserved = Some(self.now);
            match self.handoffs.order {
                Some(PrefillHandoffOrder::DestinationFirst) => {
                    self.handoffs.push_handoff_action(PrefillHandoffAction::Compute(slot))
                }
                _ => self.start_transfer(slot),
            }
        }
    }

    fn start_transfer(&mut self, slot: u32) {
        let request = self.requests.get(slot);
        let time = self.pools[PREFILL_POOL_INDEX].spec.as_ref();
        let time = time.map(|spec| spec.transfer).unwrap_or_default();
        let time =
            time.duration_for_prompt(request.input, request.missing.unwrap_or(request.input));
        if time.is_zero() {
            self.handoffs.push_handoff_action(PrefillHandoffAction::Activate(slot));
        } else {
            self.handoffs.transfers += 1;
            self.timers.schedule_item(self.now + time, TimerEvent::Transferred(slot));
        }
    }

    /// Returns whether the worker is in the middle of a step; if so, defers `action` to its end.
    fn defer_if_mid_step(&mut self, address: WorkerAddress, action: PrefillHandoffAction) -> bool {
        let (pool, at) = address;
        let busy = self.pools[pool].workers[at as usize].engine.is_busy();
        if busy {
            let deferred = self.handoffs.deferred.entry(address).or_default();
            deferred.push_back(action);
        }
        busy
    }

    /// Starts decoding of a transferred prompt, and queues the handoff action that frees the
    /// prompt's KV blocks on the prefill worker.
    fn start_decode(&mut self, slot: u32) -> Result<(), ReplayError> {
        let Some(at) = self.requests.get(slot).worker else {
            return Ok(());
        };
        let address = (DECODE_OR_UNIFIED_POOL_INDEX, at);
        if self.defer_if_mid_step(address, PrefillHandoffAction::Activate(slot)) {
            return Ok(());
        }
        if let Some(handoff) = &mut self.requests.get_mut(slot).handoff {
            handoff.activated = Some(self.now);
        }
        self.change_engine(address, |engine, now, out| {
            engine.resume_transferred(now, SeqId(slot.into()), out);
        })?;
        self.handoffs.push_handoff_action(PrefillHandoffAction::Release(slot));
        Ok(())
    }

    /// Frees the prompt's KV blocks on the prefill worker, and reports the request if it has ended.
    fn release_prefill_blocks(&mut self, slot: u32) -> Result<(), ReplayError> {
        let Some(at) = self.requests.get(slot).prefill_worker else {
            return Ok(());
        };
        let address = (PREFILL_POOL_INDEX, at);
        if self.defer_if_mid_step(address, PrefillHandoffAction::Release(slot)) {
            return Ok(());
        }
        if let Some(handoff) = &mut self.requests.get_mut(slot).handoff {
            handoff.released = Some(self.now);
        }
        self.change_engine(address, |engine, now, out| {
            engine.apply_command(now, EngineCommand::Release(SeqId(slot.into())), out);
        })?;
        self.remove_from_worker(address, slot);
        if let Some((when, status)) = self.requests.get(slot).over {
            self.report_ended_request(slot, when, status);
            self.requests.release_request_slot(slot);
        }
        Ok(())
    }

    /// Returns whether the prefill worker still holds the KV blocks of an ended request's prompt.
    ///
    /// If so, postpones the report of the request until the prompt is released.
    pub(super) fn defer_report_until_prompt_release(
        &mut self,
        slot: u32,
        when: SimTime,
        status: RequestStatus,
    ) -> bool {
        let request = self.requests.get(slot);
        let kept = request
            .handoff
            .is_some_and(|handoff| handoff.held.is_some() && handoff.released.is_none());
        if self.handoffs.order.is_none() || !kept {
            return false;
        }
        let open = self.sessions.get(request.place);
        let spec = open.session_turn(request.turn);
        let names = (open.session.id.clone(), spec.request_id.clone());
        let fresh = request.handoff.is_some_and(|handoff| handoff.activated.is_none());
        let request = self.requests.get_mut(slot);
        request.over = Some((when, status));
        request.names = names;
        if fresh {
            // The decode worker never activated it, so no other event triggers the release.
            self.handoffs.push_handoff_action(PrefillHandoffAction::Release(slot));
        }
        true
    }

    /// Aborts a request whose prompt was rejected by the prefill worker, on the decode worker that
    /// reserved KV blocks for it.
    pub(super) fn abort_request_on_decode_worker(
        &mut self,
        request_slot: u32,
    ) -> Result<(), ReplayError> {
        let request = self.requests.get_mut(request_slot);
        let Some(at) = request.worker.filter(|_| request.missing.take().is_some()) else {
            return Ok(());
        };
        let address = (DECODE_OR_UNIFIED_POOL_INDEX, at);
        self.change_engine(address, |engine, now, out| {
            engine.abort(now, SeqId(request_slot.into()), out);
            // The caller reports the end of the request.
            out.retain(|(_, event)| !matches!(event, SchedulerEvent::Ended { .. }));
        })?;
        self.remove_from_worker(address, request_slot);
        Ok(())
    }
}
