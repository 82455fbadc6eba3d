//! Reports requests, token gaps and worker changes to the sink.

use crate::disaggregation::PrefillHandoffOrder;
use crate::outcome::{RequestOutcome, RequestOutcomeFacts, RequestStatus};
use crate::pool::{DECODE_OR_UNIFIED_POOL_INDEX, PREFILL_POOL_INDEX};
use crate::sessions::NumberedSessionSource;
use vllm_sim_engine::SimTime;

use super::EventLoop;
use super::report_position::{EventLoopPosition, PositionedReplaySink};

impl<S: PositionedReplaySink + ?Sized, N: NumberedSessionSource> EventLoop<'_, S, N> {
    pub(super) fn report_ended_request(
        &mut self,
        slot: u32,
        ended: SimTime,
        status: RequestStatus,
    ) {
        let request = self.requests.get(slot);
        let (session_id, request_id) = match request.over {
            Some(_) => (request.names.0.as_ref(), request.names.1.as_ref()),
            None => {
                let open = self.sessions.get(request.place);
                let spec = open.session_turn(request.turn);
                (open.session.id.as_ref(), spec.request_id.as_ref())
            }
        };
        let (mut second, mut last) = (None, None);
        self.tokens.clear();
        if let Some(worker) = request.worker {
            let log = &mut self.pools[DECODE_OR_UNIFIED_POOL_INDEX].workers[worker as usize].log;
            if status == RequestStatus::Completed {
                request.tokens.report_token_gaps(log, self.sink);
            }
            second = request.tokens.token_times(log).nth(1);
            last = request.tokens.last_token_time(log);
            if self.wants_tokens {
                self.tokens.extend(request.tokens.token_times(log));
            }
        }
        let pool = &self.pools[DECODE_OR_UNIFIED_POOL_INDEX];
        self.sink.on_request_finished(&RequestOutcome {
            facts: RequestOutcomeFacts {
                session: request.session,
                turn: request.turn,
                number: request.number,
                arrival: request.arrival,
                sent: None,
                dispatched: request.dispatched.filter(|_| request.queued_ns > 0),
                ended,
                status,
                input: request.input,
                requested: request.output,
                output: request.tokens.output_token_count(),
                first: request.first,
                second,
                last,
                worker: request.worker.map(|at| self.first_worker + at),
                prefill_worker: request.prefill_worker,
                overlap: request.overlap,
                best_overlap: request.best_overlap,
                block_size: pool.block_size,
                ranks: pool.ranks,
                decode_first: self.handoffs.order == Some(PrefillHandoffOrder::DestinationFirst),
                queued_ns: request.queued_ns,
            },
            session_id,
            request_id,
            tokens: &self.tokens,
            admissions: &request.admissions,
            preemptions: &request.preemptions,
            preempted: &request.preempted,
            handoff: request.handoff,
            error: (status == RequestStatus::Failed).then_some("the worker was lost"),
            reply: None,
        });
    }

    /// Reports all unfinished requests as ended at `end`, and removes all workers.
    pub(super) fn report_unfinished_requests(&mut self, end: SimTime) {
        let mut left: Vec<(u64, u32)> =
            self.requests.requests_in_flight().map(|(s, r)| (r.number, s)).collect();
        left.sort_unstable();
        for (_, slot) in left {
            let over = self.requests.get(slot).over;
            let (at, status) = over.unwrap_or((end, RequestStatus::Incomplete));
            let number = self.requests.get(slot).number;
            self.sink.set_position(EventLoopPosition::sent_request_position(
                SimTime::MAX,
                0,
                number,
            ));
            self.report_ended_request(slot, at, status);
        }
        for pool in [PREFILL_POOL_INDEX, DECODE_OR_UNIFIED_POOL_INDEX] {
            self.pools[pool].router.drop_block_index();
            for at in 0..self.pools[pool].workers.len() as u32 {
                // The last steps of workers follow the unfinished requests.
                let worker = self.first_worker + at;
                self.sink.set_position(EventLoopPosition::worker_step_position(
                    SimTime::MAX,
                    1,
                    worker,
                ));
                self.retire_worker((pool, at));
            }
        }
        self.totals.stuck = self.sessions.describe_stuck_sessions();
    }
}
