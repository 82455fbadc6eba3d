//! Reads benchmark reports of inference-perf.
//!
//! Source: inference-perf 0.7.0 `reportgen/base.py`. Earlier reports have `prompt_len` for
//! `prompt_tokens`, and no `output_tokens`.

use std::path::Path;

use serde_json::Value;

use super::bench::{BenchRun, LatencyStats, MeasuredRequest, OfferedLoad};
use super::results::read_json_file;
use super::row::JsonRow;
use crate::synth::ArrivalProcess;
use crate::workload::WorkloadError;
use vllm_sim_random::mix_u64_pair;

/// Reads a report of inference-perf: `per_request_lifecycle_metrics.json` (a list) or
/// `stage_N_lifecycle_metrics.json` (statistics).
pub(super) fn read_inference_perf_report(path: &Path) -> Result<BenchRun, WorkloadError> {
    let value = read_json_file(path)?;
    if let Value::Array(requests) = &value {
        let mut run = BenchRun::new(path.display().to_string());
        for (i, request) in requests.iter().enumerate() {
            let place = || format!("{}: [{i}]", path.display());
            run.requests
                .extend(parse_lifecycle_request(&JsonRow::json_row_from_value(request, &place)?)?);
        }
        run.compute_latency_stats();
        return Ok(run);
    }
    let place = || path.display().to_string();
    parse_stage_summary(&JsonRow::json_row_from_value(&value, &place)?, place())
}

fn parse_lifecycle_request(row: &JsonRow<'_>) -> Result<Option<MeasuredRequest>, WorkloadError> {
    if row.has_field("error") {
        return Ok(None);
    }
    let start = row.number_field(&["start_time"])?;
    let start = start.ok_or_else(|| row.missing_field_error("start_time"))?;
    let end =
        row.number_field(&["end_time"])?.ok_or_else(|| row.missing_field_error("end_time"))?;
    let info = row.required(JsonRow::object_field, "info")?;
    let response = info.object_field("response_metrics")?;
    let asked = info.object_field_or_empty("request_metrics")?.object_field("text")?;
    let input = asked.as_ref().unwrap_or(&info).token_count_field(&["input_tokens"], 1)?;
    let response = response.as_ref().unwrap_or(&info);
    let usage = response.object_field_or_empty("server_usage")?;
    let counted = response.token_count_field(&["output_tokens"], 0)?.unwrap_or(0);
    let details = usage.object_field_or_empty("prompt_tokens_details")?;
    let cached = details.token_count_field(&["cached_tokens"], 0)?;
    let made = usage.token_count_field(&["completion_tokens"], 0)?;
    // Client counts come from re-tokenised text, up to 30 % too low, or too high with a start token
    // per chunk. The requested length is exact.
    let output = made.or(exact_output(row)).unwrap_or(counted);
    if output == 0 {
        return Ok(None);
    }
    let first = response.array_field("output_token_times")?;
    let first = first.and_then(|times| times.first()?.as_f64());
    Ok(Some(MeasuredRequest {
        at_ms: Some(start * 1e3),
        input: input.ok_or_else(|| row.missing_field_error("info.input_tokens"))?,
        output,
        cached,
        prefix: None,
        ttft_ms: first.map(|first| (first - start) * 1e3),
        e2e_ms: Some((end - start) * 1e3),
    }))
}

/// Returns the `max_tokens` of a request that sets `ignore_eos`, and so has exactly this output
/// length.
fn exact_output(row: &JsonRow<'_>) -> Option<u32> {
    let (_, request) = row.find_field(&["request"])?;
    let parsed: Option<Value> = request.as_str().and_then(|text| serde_json::from_str(text).ok());
    let request = parsed.as_ref().unwrap_or(request);
    let exact = request["ignore_eos"].as_bool() == Some(true);
    let most =
        ["max_tokens", "max_completion_tokens"].iter().find_map(|key| request[*key].as_u64());
    most.filter(|_| exact).and_then(|n| u32::try_from(n).ok())
}

fn parse_stage_summary(row: &JsonRow<'_>, name: String) -> Result<BenchRun, WorkloadError> {
    let mut run = BenchRun::new(name);
    let load = row.required(JsonRow::object_field, "load_summary")?;
    let done = row.required(JsonRow::object_field, "successes")?;
    let count = done.required_token_count_field(&["count"], 1)?;
    let asked = load.positive_number_field(&["requested_rate", "rate"])?.filter(|rate| *rate > 0.0);
    if asked.is_none() && !load.has_field("send_duration") {
        return Err(load.row_error(
            "load_summary has neither requested_rate nor send_duration: this is the summary of \
             all stages; name the stage_N_lifecycle_metrics.json or the per_request_… instead",
        ));
    }
    run.rates = asked.zip(load.positive_number_field(&["achieved_rate"])?);
    run.load = match asked {
        Some(rate) => OfferedLoad::Drawn(ArrivalProcess::Interval(1e3 / rate)),
        None => OfferedLoad::AtOnce,
    };
    let inputs = lengths_from_percentiles(&done, &["prompt_tokens", "prompt_len"], count, 1)?;
    // Prefers the server's count: the client's comes from re-tokenised text.
    let outputs = lengths_from_percentiles(&done, &["output_tokens", "output_len"], count, 2)?;
    let pairs = inputs.iter().zip(&outputs);
    run.requests = pairs
        .map(|(input, output)| MeasuredRequest {
            input: *input,
            output: *output,
            ..MeasuredRequest::default()
        })
        .collect();
    let latency = done.required(JsonRow::object_field, "latency")?;
    let ms = |name: &str, of: &[&str]| -> Result<Option<f64>, WorkloadError> {
        let values = latency.object_field_or_empty(name)?;
        Ok(values.positive_number_field(of)?.map(|s| s * 1e3))
    };
    let (ttft, e2e) = ("time_to_first_token", "request_latency");
    run.stats = LatencyStats {
        ttft_mean: ms(ttft, &["mean"])?,
        ttft_p50: ms(ttft, &["median", "p50"])?,
        ttft_p90: ms(ttft, &["p90"])?,
        ttft_p99: ms(ttft, &["p99"])?,
        itl_mean: ms("time_per_output_token", &["mean"])?,
        e2e_mean: ms(e2e, &["mean"])?,
        e2e_p90: ms(e2e, &["p90"])?,
        e2e_p99: ms(e2e, &["p99"])?,
    };
    // The client's time per token divides by re-tokenised counts, in some versions with two entries
    // per token. The mean latencies and lengths are more reliable.
    let gaps: f64 = outputs.iter().map(|n| f64::from(n - 1)).sum();
    let gaps = gaps / f64::from(count);
    if let (Some(ttft), Some(e2e)) = (run.stats.ttft_mean, run.stats.e2e_mean)
        && gaps > 0.0
        && e2e > ttft
    {
        run.stats.itl_mean = Some((e2e - ttft) / gaps);
    }
    Ok(run)
}

/// Returns `count` token lengths that have the percentiles and the mean reported for a benchmark
/// stage, shuffled with the seed `order`.
fn lengths_from_percentiles(
    done: &JsonRow<'_>,
    names: &[&str],
    count: u32,
    order: u64,
) -> Result<Vec<u32>, WorkloadError> {
    let known = names.iter().find(|name| done.has_field(name)).unwrap_or(&names[0]);
    let row = done.object_field(known)?.ok_or_else(|| done.missing_field_error(names[0]))?;
    let mean = row.positive_number_field(&["mean"])?.ok_or_else(|| {
        let name = format!("{known}.mean");
        done.missing_field_error(&name)
    })?;
    let mut points = Vec::new();
    for (name, share) in REPORTED_QUANTILES {
        if let Some(value) = row.positive_number_field(&[name])? {
            points.push((share, value));
        }
    }
    let spread = |share: f64| {
        let after = points.partition_point(|(at, _)| *at < share);
        match (after.checked_sub(1).and_then(|i| points.get(i)), points.get(after)) {
            (Some((a, low)), Some((b, high))) => low + (high - low) * (share - a) / (b - a),
            (Some((_, end)), None) | (None, Some((_, end))) => *end,
            (None, None) => mean,
        }
    };
    let n = f64::from(count);
    let mut values: Vec<f64> = (0..count).map(|i| spread((f64::from(i) + 0.5) / n)).collect();
    let off = mean - values.iter().sum::<f64>() / n;
    for value in &mut values {
        *value += off;
    }
    let mut places: Vec<u32> = (0..count).collect();
    places.sort_by_key(|i| mix_u64_pair(order, u64::from(*i)));
    let whole = |value: f64| value.round().clamp(1.0, f64::from(u32::MAX)) as u32;
    Ok(places.iter().map(|i| whole(values[*i as usize])).collect())
}

const REPORTED_QUANTILES: [(&str, f64); 12] = [
    ("min", 0.0),
    ("p0.1", 0.001),
    ("p1", 0.01),
    ("p5", 0.05),
    ("p10", 0.1),
    ("p25", 0.25),
    ("median", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("max", 1.0),
];
