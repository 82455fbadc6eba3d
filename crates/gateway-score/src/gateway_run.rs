//! Collects the requests of one run behind a gateway, live or simulated.

use vllm_sim_engine::SimTime;
use vllm_sim_replay::outcome::{HttpResponseInfo, ReplaySink, RequestOutcome, RequestStatus};

pub(super) struct GatewayRequestResult {
    pub(super) session: u64,
    pub(super) turn: u32,
    pub(super) sent: SimTime,
    pub(super) pod: Option<usize>,
    pub(super) input: u32,
    /// Number of the request's prompt tokens found in the prefix cache; `None` if unknown.
    pub(super) cached: Option<u32>,
    /// TTFT and E2E latency of a completed request, in ms.
    pub(super) ttft_ms: Option<f64>,
    pub(super) e2e_ms: Option<f64>,
    pub(super) completed: bool,
    /// Metadata of the HTTP response; empty in a simulated run.
    pub(super) reply: HttpResponseInfo,
    pub(super) error: Option<String>,
}

#[derive(Default)]
pub(super) struct GatewayRun {
    pub(super) turns: Vec<GatewayRequestResult>,
    /// Number of pods that accept requests in the run.
    pub(super) pods: usize,
    /// Numbers of prefix cache hits and queries during the run, in tokens, from the metrics of the
    /// pods. Set only if the responses do not contain token counts.
    pub(super) counted: Option<(f64, f64)>,
}

impl GatewayRun {
    pub(super) fn empty_gateway_run(pod_count: usize) -> Self {
        Self { pods: pod_count, ..Self::default() }
    }
}

impl GatewayRequestResult {
    /// Marks the request as failed with the reason `why`, although a response was received.
    pub(super) fn mark_request_failed(&mut self, why: &str) {
        self.completed = false;
        (self.ttft_ms, self.e2e_ms) = (None, None);
        self.error = Some(why.to_owned());
    }
}

impl ReplaySink for GatewayRun {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        // The end of the workload's time cut these requests, not the gateway.
        if outcome.status == RequestStatus::Incomplete && outcome.reply.is_some() {
            return;
        }
        let completed = outcome.status == RequestStatus::Completed;
        let after = |at: Option<SimTime>| {
            let at = at.filter(|_| completed)?;
            Some(at.duration_since(outcome.arrival).as_secs_f64() * 1e3)
        };
        let offline = || {
            let first = outcome.admissions.first()?;
            Some(first.reused.min(outcome.input))
        };
        self.turns.push(GatewayRequestResult {
            session: outcome.session,
            turn: outcome.turn,
            sent: outcome.arrival,
            // The worker of a live request is the gateway.
            pod: match outcome.reply {
                Some(_) => None,
                None => outcome.worker.map(|worker| worker as usize),
            },
            input: outcome.input,
            cached: match outcome.reply {
                Some(reply) => reply.cached,
                None => offline(),
            },
            ttft_ms: after(outcome.first),
            e2e_ms: after(outcome.last),
            completed,
            reply: outcome.reply.cloned().unwrap_or_default(),
            error: outcome.error.map(str::to_owned),
        });
    }
}
