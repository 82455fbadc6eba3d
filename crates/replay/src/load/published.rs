//! Reads benchmark records of aiperf and published points of InferenceX.

use std::path::Path;

use serde_json::Value;

use super::bench::{BenchRun, LatencyStats, MeasuredRequest, OfferedLoad};
use super::lines::Lines;
use super::row::Row;
use crate::workload::WorkloadError;
use vllm_sim_random::{Draw, Purpose, stream};

pub(super) fn is_aiperf(row: &serde_json::Map<String, Value>) -> bool {
    row.contains_key("metrics") && row["metrics"].is_object() && row.contains_key("metadata")
}

pub(super) fn is_point(row: &serde_json::Map<String, Value>) -> bool {
    ["isl", "osl", "concurrency", "tpot_ms"]
        .iter()
        .all(|key| row.contains_key(*key))
}

/// Reads aiperf's `profile_export.jsonl`, one request per line.
///
/// Skips warm-up, cancelled and failed requests. Source: aiperf 0.13
/// `common/models/record_models.py`, `MetricRecordInfo`.
pub(super) fn aiperf(path: &Path) -> Result<BenchRun, WorkloadError> {
    let mut run = BenchRun::new(path.display().to_string());
    let mut first = None;
    for_each(path, |value, place| {
        let row = Row::new(value, place)?;
        let metadata = row.object("metadata")?;
        let metadata = metadata.ok_or_else(|| row.missing("metadata"))?;
        let kept = metadata.text("benchmark_phase")? != Some("warmup")
            && value["metadata"]["was_cancelled"].as_bool() != Some(true)
            && value["error"].is_null();
        if kept {
            let start = metadata.integer::<i64>("request_start_ns")?;
            let start = start.ok_or_else(|| metadata.missing("metadata.request_start_ns"))?;
            // Nanoseconds since 1970 exceed the precision of a float.
            let since = start.saturating_sub(*first.get_or_insert(start));
            run.requests.push(MeasuredRequest {
                at_ms: Some(since as f64 / 1e6),
                ..aiperf_request(&row)?
            });
        }
        Ok(())
    })?;
    run.measure();
    Ok(run)
}

fn aiperf_request(row: &Row<'_>) -> Result<MeasuredRequest, WorkloadError> {
    let metrics = row.object("metrics")?;
    let metrics = metrics.ok_or_else(|| row.missing("metrics"))?;
    let tokens = |names: [&str; 2]| -> Result<u32, WorkloadError> {
        for name in names {
            if let Some(metric) = metrics.object(name)? {
                return metric.needed_tokens(&["value"], 1);
            }
        }
        Err(metrics.missing(&format!("metrics.{}", names[0])))
    };
    let ms = |name: &str| -> Result<Option<f64>, WorkloadError> {
        let Some(metric) = metrics.object(name)? else {
            return Ok(None);
        };
        let scale = match metric.text("unit")? {
            Some("ms") | None => 1.0,
            Some("ns") => 1e-6,
            Some("us") => 1e-3,
            Some("s" | "sec") => 1e3,
            Some(unit) => {
                let problem = format!("metrics.{name}.unit is {unit:?}, must be ns, us, ms or s");
                return Err(metric.bad(problem));
            }
        };
        Ok(metric.positive(&["value"])?.map(|value| value * scale))
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

/// Names of the InferenceX fields that must be equal in all points of one deployment.
const DEPLOYMENT: [&str; 7] = [
    "system",
    "model",
    "precision",
    "vllm",
    "tp",
    "pp",
    "attention_dp",
];
/// Number of simulated requests per slot of the closed loop; ten were measured, but gaps settle
/// earlier.
const ROUNDS: u32 = 5;
const MAX_PLACES: u32 = 1 << 16;
/// Minimum prompt or output length, as a fraction of the nominal length.
const SHORTEST: f64 = 0.8;

/// Reads benchmark points of InferenceX (InferenceMAX), one per line, all of one deployment.
///
/// Each point is a closed loop of unrelated prompts, with lengths of 0.8 to 1 times the nominal
/// ones.
pub(super) fn inferencex(path: &Path) -> Result<Vec<BenchRun>, WorkloadError> {
    let mut runs = Vec::new();
    let mut first: Option<Vec<Value>> = None;
    for_each(path, |value, place| {
        let row = Row::new(value, place)?;
        let of: Vec<Value> = DEPLOYMENT.iter().map(|key| value[*key].clone()).collect();
        let first = first.get_or_insert_with(|| of.clone());
        if let Some(i) = (0..of.len()).find(|i| of[*i] != first[*i]) {
            let problem = format!(
                "{} is {}, that of the first point {}: keep the points of one deployment",
                DEPLOYMENT[i], of[i], first[i]
            );
            return Err(row.bad(problem));
        }
        runs.push(point(&row, place())?);
        Ok(())
    })?;
    Ok(runs)
}

fn point(row: &Row<'_>, name: String) -> Result<BenchRun, WorkloadError> {
    let (input, output) = (
        row.needed_tokens(&["isl"], 1)?,
        row.needed_tokens(&["osl"], 1)?,
    );
    let places = row.needed_tokens(&["concurrency"], 1)?;
    if places > MAX_PLACES {
        let problem = format!("concurrency is {places}, must be at most {MAX_PLACES}");
        return Err(row.bad(problem));
    }
    let mut run = BenchRun::new(name);
    run.load = OfferedLoad::Closed(places);
    let drawn = |nominal: u32, share: f64| {
        let share = SHORTEST + (1.0 - SHORTEST) * share;
        (f64::from(nominal) * share).round().max(1.0) as u32
    };
    run.requests = (0..places * ROUNDS)
        .map(|i| {
            let mut rng = stream(0, i.into(), Purpose::Workload);
            MeasuredRequest {
                input: drawn(input, rng.unit()),
                output: drawn(output, rng.unit()),
                ..MeasuredRequest::default()
            }
        })
        .collect();
    run.stats = LatencyStats {
        // TTFT may be a mean or a median, and a shorter run has a higher fraction of the initial
        // burst.
        itl_mean: row.positive(&["tpot_ms"])?,
        ..LatencyStats::default()
    };
    Ok(run)
}

fn for_each(
    path: &Path,
    mut each: impl FnMut(&Value, &dyn Fn() -> String) -> Result<(), WorkloadError>,
) -> Result<(), WorkloadError> {
    let mut lines = Lines::open(path)?;
    while lines.step()? {
        let value: Value = serde_json::from_str(lines.line())
            .map_err(|error| lines.bad(format!("is not JSON: {error}")))?;
        each(&value, &|| lines.place())?;
    }
    Ok(())
}
