//! Routes each scheduled turn to a worker and submits it to the worker's engine.

use vllm_sim_engine::{EngineCommand, PromptKvTransfer, SeqId, Sequence};

use crate::content::lora_root_block_key;
use crate::outcome::RequestStatus;
use crate::pool::{DECODE_OR_UNIFIED_POOL_INDEX, PREFILL_POOL_INDEX, WorkerPool};
use crate::route::RouteRequest;
use crate::sessions::{DueTurn, NumberedSessionSource};

use super::report_position::{EventLoopPosition, PositionedReplaySink};
use super::{EventLoop, ReplayError};

impl<S: PositionedReplaySink + ?Sized, N: NumberedSessionSource> EventLoop<'_, S, N> {
    /// Creates the request of a due turn and routes it to its first worker.
    pub(super) fn send_due_turn(
        &mut self,
        (arrival, session, turn, place): DueTurn,
    ) -> Result<(), ReplayError> {
        let block_size = self.pools[DECODE_OR_UNIFIED_POOL_INDEX].block_size;
        let open = self.sessions.get_mut(place);
        let (input, plan) = open.next_turn_block_keys(turn, block_size.max(1));
        let spec = open.session_turn(turn);
        let (output, priority, strict) = (spec.output, spec.priority, spec.strict_priority);
        let adapter = spec.lora.as_deref().map(lora_root_block_key);
        let slot = self.requests.claim_request_slot();
        let request = self.requests.get_mut(slot);
        (request.place, request.session, request.turn) = (place, session, turn);
        let number = match N::IN_ORDER {
            true => session,
            false => self.totals.requests,
        };
        (request.arrival, request.number) = (arrival, number);
        (request.input, request.output, request.plan) = (input, output, Some(plan));
        (request.priority, request.strict_priority) = (priority, strict);
        request.adapter = adapter;
        self.sink
            .set_position(EventLoopPosition::sent_request_position(self.now, self.round, number));
        self.totals.requests += 1;
        self.totals.events += 1;
        self.in_flight += 1;
        self.totals.most_requests = self.totals.most_requests.max(self.in_flight);
        self.sessions.record_sent_turn(place, turn, self.now);
        if self.handoffs.order.is_some() {
            // Queued, so that engines with work at this instant advance first.
            self.start_prefill_handoff(slot);
            return Ok(());
        }
        self.route_request_to_worker(
            if self.split { PREFILL_POOL_INDEX } else { DECODE_OR_UNIFIED_POOL_INDEX },
            slot,
        );
        self.submit_routed_requests()
    }

    pub(super) fn route_request_to_worker(&mut self, pool: usize, request_slot: u32) {
        let request = self.requests.get(request_slot);
        let ask = RouteRequest {
            slot: request_slot,
            number: request.number,
            session: request.session,
            adapter: request.adapter,
            plan: request.plan.clone(),
            prompt: request.input,
            priority: request.priority,
            strict_priority: request.strict_priority,
        };
        let WorkerPool { workers, router, .. } = &mut self.pools[pool];
        let gauges = |worker: u32| workers[worker as usize].engine.stats();
        if let Some(choice) = router.route_or_queue_request(ask, self.now, &gauges) {
            self.outgoing.push_back((pool, request_slot, choice));
        }
    }

    /// Frees the KV blocks of fetched prompts on prefill workers, then submits routed requests to
    /// their workers.
    pub(super) fn submit_routed_requests(&mut self) -> Result<(), ReplayError> {
        while let Some((at, slot)) = self.fetched.pop() {
            self.change_engine((PREFILL_POOL_INDEX, at), |engine, now, out| {
                engine.apply_command(now, EngineCommand::Release(SeqId(slot.into())), out);
            })?;
        }
        while let Some((pool, slot, choice)) = self.outgoing.pop_front() {
            let address = (pool, choice.worker);
            let request = self.requests.get_mut(slot);
            request.dispatched.get_or_insert(self.now);
            let (mut output, mut transfer) = (request.output, PromptKvTransfer::Local);
            if pool == PREFILL_POOL_INDEX {
                request.prefill_worker = Some(choice.worker);
                (request.overlap, request.best_overlap) = (choice.overlap, choice.best);
                (output, transfer) = (1, PromptKvTransfer::RemoteDecode);
            } else {
                request.worker = Some(choice.worker);
                if self.split {
                    transfer = PromptKvTransfer::RemotePrefill;
                } else {
                    (request.overlap, request.best_overlap) = (choice.overlap, choice.best);
                }
            }
            let worker = &mut self.pools[pool].workers[choice.worker as usize];
            let mut sequence = Sequence {
                key: request.number,
                priority: request.priority.into(),
                transfer,
                plan: request.plan.clone(),
                ..Sequence::new(SeqId(slot.into()), request.input, output)
            };
            sequence.front_end_delay = worker.engine.front_end_delay(&sequence);
            worker.load += 1;
            let mut out = std::mem::take(&mut self.out);
            let taken = worker.engine.submit(self.now, sequence, &mut out);
            if taken.is_err() {
                self.complete_request(address, slot, self.now, RequestStatus::Rejected)?;
            }
            self.handle_events(address, &mut out)?;
            self.out = out;
            self.update_next_wakeup(address);
        }
        Ok(())
    }
}
