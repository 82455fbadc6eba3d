//! Reads benchmark records of aiperf and published points of InferenceX.

use std::path::Path;

use serde_json::Value;

use super::bench::{BenchRun, LatencyStats, MeasuredRequest, OfferedLoad};
use super::lines::for_each_json_row;
use super::row::JsonRow;
use crate::workload::WorkloadError;
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, request_rng};

/// Reads aiperf's `profile_export.jsonl`, one request per line.
///
/// Skips warm-up, cancelled and failed requests. Source: aiperf 0.13
/// `common/models/record_models.py`, `MetricRecordInfo`.
pub(super) fn read_aiperf_records(path: &Path) -> Result<BenchRun, WorkloadError> {
    let mut run = BenchRun::new(path.display().to_string());
    let mut first = None;
    for_each_json_row(&[path.to_owned()], |row, _| {
        let metadata = row.required(JsonRow::object_field, "metadata")?;
        let is_cancelled = metadata.find_field(&["was_cancelled"]).is_some_and(|(_, v)| *v == true);
        let kept = metadata.text_field("benchmark_phase")? != Some("warmup")
            && !is_cancelled
            && !row.has_field("error");
        if kept {
            let start = metadata.integer_field::<i64>("request_start_ns")?;
            let start =
                start.ok_or_else(|| metadata.missing_field_error("metadata.request_start_ns"))?;
            // Nanoseconds since 1970 exceed the precision of a float.
            let since = start.saturating_sub(*first.get_or_insert(start));
            run.requests
                .push(MeasuredRequest { at_ms: Some(since as f64 / 1e6), ..aiperf_request(row)? });
        }
        Ok(())
    })?;
    run.compute_latency_stats();
    Ok(run)
}

fn aiperf_request(row: &JsonRow<'_>) -> Result<MeasuredRequest, WorkloadError> {
    let metrics = row.required(JsonRow::object_field, "metrics")?;
    let tokens = |names: [&str; 2]| -> Result<u32, WorkloadError> {
        for name in names {
            if let Some(metric) = metrics.object_field(name)? {
                return metric.required_token_count_field(&["value"], 1);
            }
        }
        Err(metrics.missing_field_error(&format!("metrics.{}", names[0])))
    };
    let ms = |name: &str| -> Result<Option<f64>, WorkloadError> {
        let Some(metric) = metrics.object_field(name)? else {
            return Ok(None);
        };
        let scale = match metric.text_field("unit")? {
            Some("ms") | None => 1.0,
            Some("ns") => 1e-6,
            Some("us") => 1e-3,
            Some("s" | "sec") => 1e3,
            Some(unit) => {
                let problem = format!("metrics.{name}.unit is {unit:?}, must be ns, us, ms or s");
                return Err(metric.row_error(problem));
            }
        };
        Ok(metric.positive_number_field(&["value"])?.map(|value| value * scale))
    };
    Ok(MeasuredRequest {
        // Prefers the token counts of the server.
        input: tokens(["usage_prompt_tokens", "input_sequence_length"])?,
        output: tokens(["usage_completion_tokens", "output_sequence_length"])?,
        ttft_ms: ms("time_to_first_token")?,
        e2e_ms: ms("request_latency")?,
        ..MeasuredRequest::default()
    })
}

/// Names of the fields that must be equal in all InferenceX points of one deployment.
const DEPLOYMENT_FIELDS: [&str; 7] =
    ["system", "model", "precision", "vllm", "tp", "pp", "attention_dp"];
/// Number of simulated requests per client of the closed loop. The benchmarks sent ten, but the
/// gaps between tokens settle earlier.
const CLOSED_LOOP_ROUNDS: u32 = 5;
const MAX_CONCURRENCY: u32 = 1 << 16;
/// Minimum length of a prompt or output, as a fraction of the nominal length.
const MIN_LENGTH_FRACTION: f64 = 0.8;

/// Reads benchmark points of InferenceX (InferenceMAX), one per line, all of one deployment.
///
/// Each point is a closed loop of unrelated prompts, with lengths of 0.8 to 1 times the nominal
/// ones.
pub(super) fn read_inferencex_points(path: &Path) -> Result<Vec<BenchRun>, WorkloadError> {
    let mut runs = Vec::new();
    let mut first: Option<Vec<Value>> = None;
    for_each_json_row(&[path.to_owned()], |row, lines| {
        let value = |key: &&str| row.find_field(&[*key]).map(|(_, value)| value.clone());
        let of: Vec<Value> =
            DEPLOYMENT_FIELDS.iter().map(|key| value(key).unwrap_or_default()).collect();
        let first = first.get_or_insert_with(|| of.clone());
        if let Some(i) = (0..of.len()).find(|i| of[*i] != first[*i]) {
            let problem = format!(
                "{} is {}, that of the first point {}: keep the points of one deployment",
                DEPLOYMENT_FIELDS[i], of[i], first[i]
            );
            return Err(row.row_error(problem));
        }
        runs.push(parse_inferencex_point(row, lines.file_and_line())?);
        Ok(())
    })?;
    Ok(runs)
}

fn parse_inferencex_point(row: &JsonRow<'_>, name: String) -> Result<BenchRun, WorkloadError> {
    let (input, output) = (
        row.required_token_count_field(&["isl"], 1)?,
        row.required_token_count_field(&["osl"], 1)?,
    );
    let places = row.required_token_count_field(&["concurrency"], 1)?;
    if places > MAX_CONCURRENCY {
        let problem = format!("concurrency is {places}, must be at most {MAX_CONCURRENCY}");
        return Err(row.row_error(problem));
    }
    let mut run = BenchRun::new(name);
    run.load = OfferedLoad::Closed(places);
    let drawn = |nominal: u32, share: f64| {
        let share = MIN_LENGTH_FRACTION + (1.0 - MIN_LENGTH_FRACTION) * share;
        (f64::from(nominal) * share).round().max(1.0) as u32
    };
    run.requests = (0..places * CLOSED_LOOP_ROUNDS)
        .map(|i| {
            let mut rng = request_rng(0, i.into(), RandomStreamPurpose::Workload);
            MeasuredRequest {
                input: drawn(input, rng.draw_unit_f64()),
                output: drawn(output, rng.draw_unit_f64()),
                ..MeasuredRequest::default()
            }
        })
        .collect();
    run.stats = LatencyStats {
        // TTFT may be a mean or a median, and a shorter run has a higher fraction of the initial
        // burst.
        itl_mean: row.positive_number_field(&["tpot_ms"])?,
        ..LatencyStats::default()
    };
    Ok(run)
}
