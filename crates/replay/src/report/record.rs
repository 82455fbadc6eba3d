//! Stores finished requests, and serializes them as records of the report.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use crate::outcome::{
    AdmissionOutcome, PoolRole, PrefillHandoffTimes, RequestOutcome, RequestOutcomeFacts,
    RequestStatus,
};
use vllm_sim_engine::SimTime;

/// Copy of a [`RequestOutcome`] without its token times.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestOutcomeRecord {
    pub(super) facts: RequestOutcomeFacts,
    session_id: Option<Arc<str>>,
    request_id: Option<Arc<str>>,
    admissions: Box<[AdmissionOutcome]>,
    preemptions: Box<[u64]>,
    handoff: Option<Box<PrefillHandoffTimes>>,
    error: Option<Box<str>>,
}

impl From<&RequestOutcome<'_>> for RequestOutcomeRecord {
    fn from(outcome: &RequestOutcome<'_>) -> Self {
        Self {
            facts: outcome.facts,
            session_id: outcome.session_id.cloned(),
            request_id: outcome.request_id.cloned(),
            admissions: outcome.admissions.into(),
            preemptions: outcome.preemptions.into(),
            handoff: outcome.handoff.map(Box::new),
            error: outcome.error.map(Into::into),
        }
    }
}

/// Record of one request in the report's JSON, with times in milliseconds since the start.
///
/// Keys and their order are those of Dynamo's replay 1.6.1 (`dynamo/replay/report.py`).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "fields of the peer's report, named by it")]
pub struct RequestRecord {
    pub uuid: String,
    pub session_id: Option<Arc<str>>,
    pub turn_index: Option<u32>,
    pub arrival_time_ms: f64,
    pub dispatched_at_ms: Option<f64>,
    pub first_admit_ms: Option<f64>,
    pub first_token_ms: Option<f64>,
    pub last_token_ms: Option<f64>,
    pub terminal_time_ms: f64,
    pub terminal_status: &'static str,
    pub ttft_ms: Option<f64>,
    pub ttst_ms: Option<f64>,
    pub itl_ms: Option<f64>,
    pub e2e_latency_ms: Option<f64>,
    pub input_length: u32,
    pub requested_output_length: u32,
    pub output_length: u32,
    pub reused_input_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_admission_g1_reused_input_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_admission_host_reused_input_tokens: Option<u32>,
    pub prefill_worker_idx: Option<u32>,
    pub decode_worker_idx: Option<u32>,
    pub prefill_admit_ms: Option<f64>,
    pub decode_admit_ms: Option<f64>,
    pub source_held_ms: Option<f64>,
    pub destination_reserved_ms: Option<f64>,
    pub destination_activated_ms: Option<f64>,
    pub source_released_ms: Option<f64>,
    pub decode_reused_input_tokens: Option<u32>,
    pub prefill_route_overlap_tokens: Option<u32>,
    pub decode_route_overlap_tokens: Option<u32>,
    pub admission_count: usize,
    pub readmission_count: usize,
    pub admission_history: Vec<AdmissionRecord>,
    pub routing_history: Value,
    pub pressure_record_ordinals: Vec<u64>,
    /// Send time of the request in a replay over HTTP; the arrival is its scheduled time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_time_ms: Option<f64>,
    /// Error message of a failed request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<str>>,
}

/// Record of one admission of a request to a running batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "fields of the peer's report, named by it")]
pub struct AdmissionRecord {
    pub admission_ordinal: usize,
    pub at_ms: f64,
    pub is_readmission: bool,
    pub pool: &'static str,
    pub pool_admission_ordinal: usize,
    pub reused_input_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub g1_reused_input_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_reused_input_tokens: Option<u32>,
}

pub(super) fn request_status_name(status: RequestStatus) -> &'static str {
    match status {
        RequestStatus::Completed => "completed",
        RequestStatus::Rejected => "rejected",
        RequestStatus::Incomplete => "incomplete",
        RequestStatus::Failed => "failed",
    }
}

/// Returns the id for a request without an id in the trace: the request's number plus one,
/// formatted as a UUID.
fn numbered_uuid(number: u64) -> String {
    let hex = format!("{:032x}", u128::from(number) + 1);
    let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

pub(super) fn sim_time_ms(at: SimTime) -> f64 {
    at.as_nanos() as f64 / 1e6
}

/// Latencies in milliseconds. They are differences of millisecond values, as in Dynamo's report.
impl RequestOutcomeFacts {
    pub(super) fn ttft_ms(&self) -> Option<f64> {
        Some(sim_time_ms(self.first?) - sim_time_ms(self.arrival))
    }

    pub(super) fn ttst_ms(&self) -> Option<f64> {
        Some(sim_time_ms(self.second?) - sim_time_ms(self.first?))
    }

    pub(super) fn e2e_ms(&self) -> Option<f64> {
        Some(sim_time_ms(self.last?) - sim_time_ms(self.arrival))
    }

    /// Returns the mean gap between the tokens of the request; `None` with fewer than two tokens.
    pub(super) fn mean_gap_ms(&self) -> Option<f64> {
        let gaps = self.output.saturating_sub(1);
        let span = sim_time_ms(self.last?) - sim_time_ms(self.first?);
        (gaps > 0).then(|| span / f64::from(gaps))
    }
}

impl RequestOutcomeRecord {
    /// Builds the request's record in the report's JSON.
    pub fn to_request_record(&self) -> RequestRecord {
        let split = self.is_disaggregated();
        let history = self.admission_records();
        let handoff = self.handoff.as_deref().copied().unwrap_or_default();
        let admitted = |pool| self.admissions.iter().find(|a| a.pool == pool);
        let decode = admitted(PoolRole::Serving).filter(|_| split);
        let reused = self.admissions.iter().filter(|a| !split || a.pool == PoolRole::Prefill);
        let reused = reused.map(|a| a.reused).max();
        let tiers = self.admissions.first().and_then(AdmissionOutcome::gpu_and_host_cached_tokens);
        let uuid = match &self.request_id {
            Some(id) => id.to_string(),
            None => numbered_uuid(self.facts.number),
        };
        RequestRecord {
            uuid,
            session_id: self.session_id.clone(),
            turn_index: self.session_id.as_ref().map(|_| self.facts.turn),
            arrival_time_ms: sim_time_ms(self.facts.arrival),
            // Dynamo reports it for agentic traces only.
            dispatched_at_ms: None,
            first_admit_ms: self.admissions.first().map(|a| sim_time_ms(a.at)),
            first_token_ms: self.facts.first.map(sim_time_ms),
            last_token_ms: self.facts.last.map(sim_time_ms),
            terminal_time_ms: sim_time_ms(self.facts.ended),
            terminal_status: request_status_name(self.facts.status),
            ttft_ms: self.facts.ttft_ms(),
            ttst_ms: self.facts.ttst_ms(),
            itl_ms: self.facts.mean_gap_ms(),
            e2e_latency_ms: self.facts.e2e_ms(),
            input_length: self.facts.input,
            requested_output_length: self.facts.requested,
            output_length: self.facts.output,
            reused_input_tokens: reused.unwrap_or(0),
            first_admission_g1_reused_input_tokens: tiers.map(|(gpu, _)| gpu),
            first_admission_host_reused_input_tokens: tiers.map(|(_, host)| host),
            prefill_worker_idx: self.facts.prefill_worker,
            decode_worker_idx: self.facts.worker,
            prefill_admit_ms: admitted(PoolRole::Prefill).map(|a| sim_time_ms(a.at)),
            decode_admit_ms: decode.map(|a| sim_time_ms(a.at)),
            source_held_ms: handoff.held.map(sim_time_ms),
            destination_reserved_ms: handoff.reserved.map(sim_time_ms),
            destination_activated_ms: handoff.activated.map(sim_time_ms),
            source_released_ms: handoff.released.map(sim_time_ms),
            decode_reused_input_tokens: self.handoff.as_ref().map(|handoff| handoff.reused),
            prefill_route_overlap_tokens: self.facts.prefill_worker.map(|_| {
                let tokens = self.facts.overlap.saturating_mul(self.facts.block_size);
                tokens.min(self.facts.input)
            }),
            decode_route_overlap_tokens: self.facts.worker.filter(|_| split).map(|_| 0),
            admission_count: history.len(),
            readmission_count: self.admissions.iter().filter(|a| a.again).count(),
            admission_history: history,
            routing_history: self.routing_json(),
            // References to pressure records, which a replay does not write.
            pressure_record_ordinals: Vec::new(),
            sent_time_ms: self.facts.sent.map(sim_time_ms),
            error: self.error.clone(),
        }
    }

    fn is_disaggregated(&self) -> bool {
        self.facts.prefill_worker.is_some()
    }

    fn admission_records(&self) -> Vec<AdmissionRecord> {
        let mut per_pool = [0, 0];
        let history = self.admissions.iter().enumerate().map(|(n, admission)| {
            let ordinal = &mut per_pool[admission.pool as usize];
            *ordinal += 1;
            AdmissionRecord {
                admission_ordinal: n,
                at_ms: sim_time_ms(admission.at),
                is_readmission: admission.again,
                pool: match admission.pool {
                    _ if !self.is_disaggregated() => "agg",
                    PoolRole::Prefill => "prefill",
                    PoolRole::Serving => "decode",
                },
                pool_admission_ordinal: *ordinal - 1,
                reused_input_tokens: admission.reused,
                g1_reused_input_tokens: admission.gpu_and_host_cached_tokens().map(|(gpu, _)| gpu),
                host_reused_input_tokens: admission
                    .gpu_and_host_cached_tokens()
                    .map(|(_, host)| host),
            }
        });
        history.collect()
    }

    fn routing_json(&self) -> Value {
        let one = |pool: &str, worker: u32| {
            // Decode workers are chosen immediately, whatever they have cached.
            let first = pool != "decode";
            let waited = first && self.facts.queued_ns > 0;
            let best = match first {
                true => self.facts.best_overlap,
                false => self.facts.best_overlap.map(|_| 0),
            };
            let found = if first { self.facts.overlap } else { 0 };
            json!({
                "pool": pool,
                "outcome": if waited { "queued" } else { "immediate" },
                "logical_worker_id": worker / self.facts.ranks.max(1),
                "scheduler_id": worker,
                "dp_rank": worker % self.facts.ranks.max(1),
                "reported_overlap_tokens": found * self.facts.block_size,
                "selected_overlap_blocks": best.map(|_| found),
                "best_available_overlap_blocks": best,
                "overlap_regret_blocks": best.map(|best| best.saturating_sub(found)),
                "queue_entered_at_ms": waited.then(|| sim_time_ms(self.facts.arrival)),
                "queue_wait_ms": if first { self.facts.queued_ns as f64 / 1e6 } else { 0.0 },
                "released_at_ms": self.facts.dispatched.filter(|_| waited).map(sim_time_ms),
                "placement_replica_id": null,
            })
        };
        let mut routes = Vec::new();
        routes.extend(self.facts.prefill_worker.map(|worker| one("prefill", worker)));
        let pool = if self.is_disaggregated() { "decode" } else { "agg" };
        routes.extend(self.facts.worker.map(|worker| one(pool, worker)));
        if self.facts.decode_first {
            routes.reverse();
        }
        Value::Array(routes)
    }
}
