use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::engine::End;
use crate::sim::SimTime;

use super::args::{Setup, Sla};
use super::replay::Played;

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
    pub decode_worker_idx: usize,
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

impl Report {
    pub(super) fn new(setup: &Setup, played: &[Played]) -> Self {
        let mut records: Vec<Record> = played
            .iter()
            .enumerate()
            .filter_map(|(i, played)| Record::new(i, setup, played))
            .collect();
        records.sort_by(|a, b| a.arrival_time_ms.total_cmp(&b.arrival_time_ms));
        let summary = summary(setup, played, &records);
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
    fn new(i: usize, setup: &Setup, played: &Played) -> Option<Self> {
        let (end, how) = played.end?;
        let session = &setup.sessions[played.session];
        let turn = &session.turns[played.turn];
        let reused = |cached: u32| cached.min(turn.prompt);
        let history = played
            .admissions
            .iter()
            .enumerate()
            .map(|(n, admitted)| Admission {
                admission_ordinal: n,
                at_ms: ms(admitted.at),
                is_readmission: n > 0,
                pool: "agg",
                pool_admission_ordinal: n,
                reused_input_tokens: reused(admitted.cached),
            });
        let history: Vec<Admission> = history.collect();
        let arrival = ms(played.arrival);
        let first = played.tokens.first().map(|&at| ms(at));
        let last = played.tokens.last().map(|&at| ms(at));
        let gaps = played.tokens.len().saturating_sub(1);
        let span = last
            .zip(first)
            .filter(|_| gaps > 0)
            .map(|(last, first)| last - first);
        Some(Self {
            uuid: uuid::Uuid::from_u128(i as u128 + 1).to_string(),
            session_id: session.id.clone(),
            turn_index: session.id.as_ref().map(|_| played.turn),
            arrival_time_ms: arrival,
            dispatched_at_ms: None,
            first_admit_ms: history.first().map(|admission| admission.at_ms),
            first_token_ms: first,
            last_token_ms: last,
            terminal_time_ms: ms(end),
            terminal_status: match how {
                End::Finished => "completed",
                _ => "rejected",
            },
            ttft_ms: first.map(|first| first - arrival),
            ttst_ms: played
                .tokens
                .get(1)
                .zip(first)
                .map(|(&second, first)| ms(second) - first),
            itl_ms: span.map(|span| span / gaps as f64),
            e2e_latency_ms: last.map(|last| last - arrival),
            input_length: turn.prompt,
            requested_output_length: turn.output,
            output_length: played.tokens.len(),
            reused_input_tokens: history
                .iter()
                .map(|a| a.reused_input_tokens)
                .max()
                .unwrap_or(0),
            prefill_worker_idx: None,
            decode_worker_idx: played.worker,
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
                "logical_worker_id": played.worker,
                "scheduler_id": played.worker,
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
            pressure_record_ordinals: played.preemptions.clone(),
        })
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

fn summary(setup: &Setup, played: &[Played], records: &[Record]) -> Map<String, Value> {
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
    put("num_requests", json!(played.len()));
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
    latencies(&mut map, played, &done);
    map
}

/// The distributions of completed requests.
fn latencies(map: &mut Map<String, Value>, played: &[Played], done: &[&Record]) {
    let collect = |of: &dyn Fn(&Record) -> Option<f64>| -> Vec<f64> {
        done.iter().filter_map(|record| of(record)).collect()
    };
    let ttft = collect(&|r| r.ttft_ms);
    let tpot = collect(&|r| r.itl_ms);
    let e2e = collect(&|r| r.e2e_latency_ms);
    let mut put = |key: &str, value: usize| drop(map.insert(key.to_owned(), json!(value)));
    put("num_ttft_samples", ttft.len());
    put("num_tpot_samples", tpot.len());
    put("num_e2e_latency_samples", e2e.len());
    let completed = played
        .iter()
        .filter(|p| matches!(p.end, Some((_, End::Finished))));
    let gaps: Vec<f64> = completed
        .flat_map(|p| p.tokens.windows(2).map(|pair| ms(pair[1]) - ms(pair[0])))
        .collect();
    let rates = gaps
        .iter()
        .filter(|gap| **gap > 0.0)
        .map(|gap| 1e3 / gap)
        .collect();
    distribution(map, "ttft_ms", ttft);
    distribution(map, "ttst_ms", collect(&|r| r.ttst_ms));
    distribution(map, "tpot_ms", tpot);
    distribution(map, "itl_ms", gaps);
    distribution(map, "e2e_latency_ms", e2e);
    distribution(map, "output_token_throughput_per_user", rates);
}

/// Mean, extremes, percentiles (the nearest value, not interpolated) and population deviation.
fn distribution(map: &mut Map<String, Value>, name: &str, mut values: Vec<f64>) {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    values.sort_by(f64::total_cmp);
    let at = |p: f64| {
        let index = (values.len().saturating_sub(1) as f64 * p / 100.0).round() as usize;
        values.get(index).copied().unwrap_or(0.0)
    };
    for (kind, value) in [
        ("mean", mean),
        ("min", at(0.0)),
        ("max", at(100.0)),
        ("median", at(50.0)),
        ("p75", at(75.0)),
        ("p90", at(90.0)),
        ("p95", at(95.0)),
        ("p99", at(99.0)),
        ("std", variance.sqrt()),
    ] {
        map.insert(format!("{kind}_{name}"), json!(value));
    }
}
