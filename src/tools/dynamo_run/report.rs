use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::replay::Totals;
use crate::replay::outcome::{Outcome, Sink, Status};
use crate::replay::samples::Samples;
use crate::sim::SimTime;

use super::args::{Setup, Sla};

/// The peer's report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Totals, throughputs and latency distributions by name.
    pub summary: Map<String, Value>,
    /// One entry per request that came to an end, by arrival.
    pub per_request: Vec<Record>,
    /// What was recorded.
    pub coverage: Value,
    /// Always null: there is no planner.
    pub planner: Value,
}

/// One request, times in ms since the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "fields of the peer's report, named by it")]
pub struct Record {
    pub uuid: String,
    pub session_id: Option<String>,
    pub turn_index: Option<usize>,
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
    pub output_length: usize,
    pub reused_input_tokens: u32,
    pub prefill_worker_idx: Option<usize>,
    pub decode_worker_idx: Option<usize>,
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
    pub admission_history: Vec<Admission>,
    pub routing_history: Value,
    pub pressure_record_ordinals: Vec<u64>,
}

/// One entry into the running batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "fields of the peer's report, named by it")]
pub struct Admission {
    pub admission_ordinal: usize,
    pub at_ms: f64,
    pub is_readmission: bool,
    pub pool: &'static str,
    pub pool_admission_ordinal: usize,
    pub reused_input_tokens: u32,
}

fn ms(at: SimTime) -> f64 {
    at.nanos() as f64 / 1e6
}

/// Writes down what a replay tells.
#[derive(Default)]
pub(super) struct Recorder {
    records: Vec<Record>,
    /// Gaps between tokens, ms.
    gaps: Samples,
    /// Tokens per second of one request, gap by gap.
    rates: Samples,
}

impl Sink for Recorder {
    fn request(&mut self, outcome: &Outcome<'_>) {
        // What never came to an end has no record.
        if outcome.status != Status::Incomplete {
            self.records.push(Record::new(outcome));
        }
    }

    fn gaps(&mut self, nanos: u64, times: u64) {
        let gap = nanos as f64 / 1e6;
        self.gaps.add(gap, times);
        if nanos > 0 {
            self.rates.add(1e3 / gap, times);
        }
    }
}

impl Report {
    pub(super) fn new(setup: &Setup, recorder: Recorder, totals: &Totals) -> Self {
        let Recorder {
            mut records,
            gaps,
            rates,
        } = recorder;
        records.sort_by(|a, b| {
            let by_arrival = a.arrival_time_ms.total_cmp(&b.arrival_time_ms);
            by_arrival.then_with(|| a.uuid.cmp(&b.uuid))
        });
        let mut summary = summary(setup, totals, &records);
        distribution(&mut summary, "itl_ms", gaps);
        distribution(&mut summary, "output_token_throughput_per_user", rates);
        let per_request = if setup.capture { records } else { Vec::new() };
        Self {
            summary,
            coverage: json!({
                "capture_per_request": setup.capture,
                "capture_planner_details": false,
                "per_request_records": per_request.len(),
            }),
            per_request,
            planner: Value::Null,
        }
    }
}

impl Record {
    fn new(outcome: &Outcome<'_>) -> Self {
        let history = outcome.admissions.iter().enumerate();
        let history: Vec<Admission> = history
            .map(|(n, admission)| Admission {
                admission_ordinal: n,
                at_ms: ms(admission.at),
                is_readmission: n > 0,
                pool: "agg",
                pool_admission_ordinal: n,
                reused_input_tokens: admission.reused,
            })
            .collect();
        let arrival = ms(outcome.arrival);
        let (first, last) = (outcome.first.map(ms), outcome.last.map(ms));
        let gaps = outcome.output.saturating_sub(1);
        let span = last.zip(first).filter(|_| gaps > 0);
        let span = span.map(|(last, first)| last - first);
        let second = outcome.second.map(ms);
        let worker = outcome.worker.map(|worker| worker as usize);
        Self {
            uuid: uuid::Uuid::from_u128(u128::from(outcome.number) + 1).to_string(),
            session_id: outcome.session_id.map(ToString::to_string),
            turn_index: outcome.session_id.map(|_| outcome.turn as usize),
            arrival_time_ms: arrival,
            dispatched_at_ms: None,
            first_admit_ms: history.first().map(|admission| admission.at_ms),
            first_token_ms: first,
            last_token_ms: last,
            terminal_time_ms: ms(outcome.ended),
            terminal_status: match outcome.status {
                Status::Completed => "completed",
                _ => "rejected",
            },
            ttft_ms: first.map(|first| first - arrival),
            ttst_ms: second.zip(first).map(|(second, first)| second - first),
            itl_ms: span.map(|span| span / f64::from(gaps)),
            e2e_latency_ms: last.map(|last| last - arrival),
            input_length: outcome.input,
            requested_output_length: outcome.requested,
            output_length: outcome.output as usize,
            reused_input_tokens: history
                .iter()
                .map(|a| a.reused_input_tokens)
                .max()
                .unwrap_or(0),
            prefill_worker_idx: outcome.prefill_worker.map(|worker| worker as usize),
            decode_worker_idx: worker,
            prefill_admit_ms: None,
            decode_admit_ms: None,
            source_held_ms: None,
            destination_reserved_ms: None,
            destination_activated_ms: None,
            source_released_ms: None,
            decode_reused_input_tokens: None,
            prefill_route_overlap_tokens: None,
            decode_route_overlap_tokens: None,
            admission_count: history.len(),
            readmission_count: history.len().saturating_sub(1),
            admission_history: history,
            routing_history: json!([{
                "pool": "agg",
                "outcome": "immediate",
                "logical_worker_id": worker,
                "scheduler_id": worker,
                "dp_rank": 0,
                "reported_overlap_tokens": 0,
                "selected_overlap_blocks": null,
                "best_available_overlap_blocks": null,
                "overlap_regret_blocks": null,
                "queue_entered_at_ms": null,
                "queue_wait_ms": 0.0,
                "released_at_ms": null,
                "placement_replica_id": null,
            }]),
            pressure_record_ordinals: outcome.preemptions.to_vec(),
        }
    }

    fn completed(&self) -> bool {
        self.terminal_status == "completed"
    }

    /// Whether a completed request kept all bounds.
    fn is_good(&self, sla: Sla) -> bool {
        let within = |value: Option<f64>, bound: Option<f64>| match (value, bound) {
            (Some(value), Some(bound)) => value <= bound,
            _ => true,
        };
        within(self.ttft_ms, sla.ttft)
            && within(self.itl_ms, sla.itl)
            && within(self.e2e_latency_ms, sla.e2e)
    }
}

fn summary(setup: &Setup, totals: &Totals, records: &[Record]) -> Map<String, Value> {
    let done: Vec<&Record> = records.iter().filter(|record| record.completed()).collect();
    let sum = |of: &dyn Fn(&Record) -> u64| done.iter().map(|record| of(record)).sum::<u64>();
    let input = sum(&|r| r.input_length.into());
    let output = sum(&|r| r.output_length as u64);
    let first_reuse = |r: &Record| {
        r.admission_history
            .first()
            .map_or(0, |a| a.reused_input_tokens)
    };
    let duration_ms = done.iter().map(|r| r.terminal_time_ms).fold(0.0, f64::max);
    let seconds = (duration_ms / 1e3).max(1e-9);
    let share = |tokens: u64| {
        if input == 0 {
            0.0
        } else {
            tokens as f64 / input as f64
        }
    };
    let computed = |r: &Record| {
        let admitted = r.admission_history.iter();
        admitted
            .map(|a| u64::from(r.input_length - a.reused_input_tokens))
            .sum()
    };
    let worker_seconds = duration_ms / 1e3 * f64::from(setup.workers);
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| drop(map.insert(key.to_owned(), value));
    put("num_requests", json!(totals.requests));
    put("completed_requests", json!(done.len()));
    put("total_input_tokens", json!(input));
    put("total_output_tokens", json!(output));
    put("duration_ms", json!(duration_ms));
    put("request_throughput_rps", json!(done.len() as f64 / seconds));
    put("input_throughput_tok_s", json!(input as f64 / seconds));
    put("output_throughput_tok_s", json!(output as f64 / seconds));
    put(
        "total_throughput_tok_s",
        json!((input + output) as f64 / seconds),
    );
    put("prefill_worker_seconds", json!(0.0));
    put("decode_worker_seconds", json!(worker_seconds));
    put("prefill_gpus_per_worker", json!(0));
    put("decode_gpus_per_worker", json!(setup.gpus));
    put(
        "gpu_hours",
        json!(worker_seconds * f64::from(setup.gpus) / 3600.0),
    );
    put("power_w", Value::Null);
    put("power_coverage", Value::Null);
    if let Sla {
        ttft: None,
        itl: None,
        e2e: None,
    } = setup.sla
    {
    } else {
        let good: Vec<_> = done
            .iter()
            .filter(|record| record.is_good(setup.sla))
            .collect();
        let tokens: usize = good.iter().map(|record| record.output_length).sum();
        put("goodput_completed_requests", json!(good.len()));
        put(
            "goodput_request_throughput_rps",
            json!(good.len() as f64 / seconds),
        );
        put(
            "goodput_output_throughput_tok_s",
            json!(tokens as f64 / seconds),
        );
    }
    put("processed_tokens", json!(input + output));
    put(
        "prefix_cache_reused_ratio",
        json!(share(sum(&|r| r.reused_input_tokens.into()))),
    );
    let first = share(sum(&|r| first_reuse(r).into()));
    put("first_admission_prefix_cache_reused_ratio", json!(first));
    put("committed_prefill_tokens", json!(sum(&computed)));
    put("kv_eviction_policy", json!("lru"));
    latencies(&mut map, &done);
    map
}

/// The distributions of completed requests.
fn latencies(map: &mut Map<String, Value>, done: &[&Record]) {
    let collect = |of: &dyn Fn(&Record) -> Option<f64>| -> Samples {
        let mut samples = Samples::new();
        let values = done.iter().filter_map(|record| of(record));
        values.for_each(|value| samples.add(value, 1));
        samples
    };
    let ttft = collect(&|r| r.ttft_ms);
    let tpot = collect(&|r| r.itl_ms);
    let e2e = collect(&|r| r.e2e_latency_ms);
    let mut put = |key: &str, value: u64| drop(map.insert(key.to_owned(), json!(value)));
    put("num_ttft_samples", ttft.count());
    put("num_tpot_samples", tpot.count());
    put("num_e2e_latency_samples", e2e.count());
    distribution(map, "ttft_ms", ttft);
    distribution(map, "ttst_ms", collect(&|r| r.ttst_ms));
    distribution(map, "tpot_ms", tpot);
    distribution(map, "e2e_latency_ms", e2e);
}

/// Mean, extremes, percentiles and population deviation.
fn distribution(map: &mut Map<String, Value>, name: &str, mut values: Samples) {
    let [median, p75, p90, p95, p99] = values.percentiles([50.0, 75.0, 90.0, 95.0, 99.0]);
    for (kind, value) in [
        ("mean", values.mean()),
        ("min", values.min()),
        ("max", values.max()),
        ("median", median),
        ("p75", p75),
        ("p90", p90),
        ("p95", p95),
        ("p99", p99),
        ("std", values.std()),
    ] {
        map.insert(format!("{kind}_{name}"), json!(value));
    }
}
