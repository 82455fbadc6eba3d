//! Reads results of `vllm bench serve` and guidellm, and reports of `vllm-sim replay`.

use std::path::Path;

use serde_json::Value;

use super::bench::{BenchRun, LatencyStats, MeasuredRequest, OfferedLoad};
use super::lines;
use super::row::JsonRow;
use crate::synth::ArrivalProcess;
use crate::workload::WorkloadError;

const MAX_RESULT_FILE_BYTES: u64 = 1 << 30;

pub(super) fn read_json_file(path: &Path) -> Result<Value, WorkloadError> {
    let text = lines::read_text_up_to(path, MAX_RESULT_FILE_BYTES)?;
    serde_json::from_str(&text).map_err(|error| WorkloadError::Bad {
        place: format!("{}:{}", path.display(), error.line()),
        problem: format!("is not JSON: {error}"),
    })
}

/// Reads a result file of `vllm bench serve --save-result`, with the lists of `--save-detailed` if
/// present.
///
/// Source: vLLM `vllm/benchmarks/serve.py`.
pub(super) fn read_vllm_bench_result(path: &Path) -> Result<BenchRun, WorkloadError> {
    let value = read_json_file(path)?;
    let place = || path.display().to_string();
    let row = JsonRow::json_row_from_value(&value, &place)?;
    let mut run = BenchRun::new(place());
    let rate = match row.find_field(&["request_rate"]) {
        Some((_, Value::String(text))) if text == "inf" => None,
        _ => row.positive_number_field(&["request_rate"])?.filter(|rate| *rate > 0.0),
    };
    let burstiness = row.positive_number_field(&["burstiness"])?.filter(|b| *b > 0.0);
    run.cap = row.token_count_field(&["max_concurrency"], 1)?;
    run.load = match (rate, run.cap) {
        (Some(rate), _) => OfferedLoad::Drawn(ArrivalProcess::Gamma {
            rate,
            burstiness: burstiness.unwrap_or(1.0),
        }),
        (None, Some(n)) => OfferedLoad::Closed(n),
        (None, None) => OfferedLoad::AtOnce,
    };
    let reached = row.positive_number_field(&["request_throughput"])?;
    run.rates = rate.zip(reached);
    let ms = |name: &str| row.positive_number_field(&[name]);
    run.stats = LatencyStats {
        ttft_mean: ms("mean_ttft_ms")?,
        ttft_p50: ms("median_ttft_ms")?,
        ttft_p90: ms("p90_ttft_ms")?,
        ttft_p99: ms("p99_ttft_ms")?,
        itl_mean: row.positive_number_field(&["mean_tpot_ms", "mean_itl_ms"])?,
        e2e_mean: ms("mean_e2el_ms")?,
        e2e_p90: ms("p90_e2el_ms")?,
        e2e_p99: ms("p99_e2el_ms")?,
    };
    if row.has_field("input_lens") && row.has_field("output_lens") {
        vllm_details(&row, &mut run)?;
    } else {
        let count = row.required_token_count_field(&["completed", "num_prompts"], 1)?;
        let share = |name: &str, least: f64| -> Result<u32, WorkloadError> {
            let total =
                row.positive_number_field(&[name])?.ok_or_else(|| row.missing_field_error(name))?;
            Ok((total / f64::from(count)).round().max(least) as u32)
        };
        let request = MeasuredRequest {
            input: share("total_input_tokens", 1.0)?,
            output: share("total_output_tokens", 1.0)?,
            ..MeasuredRequest::default()
        };
        run.requests = vec![request; count as usize];
    }
    run.compute_latency_stats();
    Ok(run)
}

fn vllm_details(row: &JsonRow<'_>, run: &mut BenchRun) -> Result<(), WorkloadError> {
    let inputs = row.number_array_field("input_lens")?.unwrap_or_default();
    let outputs = row.number_array_field("output_lens")?.unwrap_or_default();
    let ttfts = row.number_array_field("ttfts")?.unwrap_or_default();
    let starts = row.number_array_field("start_times")?.unwrap_or_default();
    let itls = row.array_field("itls")?.unwrap_or_default();
    if inputs.len() != outputs.len() {
        return Err(row.row_error(format!(
            "input_lens has {} entries, output_lens {}: the numbers must be equal",
            inputs.len(),
            outputs.len()
        )));
    }
    for (i, (input, output)) in inputs.iter().zip(&outputs).enumerate() {
        if *output < 1.0 {
            // Failed request.
            continue;
        }
        let ttft = ttfts.get(i).map(|s| s * 1e3);
        let gaps = itls.get(i).and_then(Value::as_array);
        let rest = gaps.map(|gaps| gaps.iter().filter_map(Value::as_f64).sum::<f64>() * 1e3);
        run.requests.push(MeasuredRequest {
            at_ms: starts.get(i).map(|s| s * 1e3),
            input: input.max(1.0) as u32,
            output: *output as u32,
            ttft_ms: ttft,
            e2e_ms: ttft.zip(rest).map(|(ttft, rest)| ttft + rest),
            ..MeasuredRequest::default()
        });
    }
    let open = matches!(run.load, OfferedLoad::Drawn(_)) && run.cap.is_none();
    if open && starts.len() == inputs.len() {
        run.load = OfferedLoad::Times;
    }
    Ok(())
}

/// Reads a guidellm report, one [`BenchRun`] per benchmark.
///
/// Source: guidellm 0.8.1 `schemas/base/request_stats.py`; earlier reports have the times on the
/// request itself.
pub(super) fn read_guidellm_report(path: &Path) -> Result<Vec<BenchRun>, WorkloadError> {
    let value = read_json_file(path)?;
    let place = || path.display().to_string();
    let row = JsonRow::json_row_from_value(&value, &place)?;
    let benchmarks = row.required(JsonRow::array_field, "benchmarks")?;
    let mut runs = Vec::new();
    for (i, benchmark) in benchmarks.iter().enumerate() {
        let place = || format!("{}: benchmarks[{i}]", path.display());
        let row = JsonRow::json_row_from_value(benchmark, &place)?;
        let mut run = BenchRun::new(place());
        let requests = row.required(JsonRow::object_field, "requests")?;
        let done = requests.array_field("successful")?;
        let kept = done.map_or(0, <[Value]>::len) as u64;
        let made = benchmark["metrics"]["request_totals"]["successful"].as_u64();
        if let Some(made) = made.filter(|made| *made > kept) {
            return Err(requests.row_error(format!(
                "requests.successful holds {kept} of {made}: the report was written with samples \
                 only; let guidellm keep all requests"
            )));
        }
        for (n, request) in done.unwrap_or_default().iter().enumerate() {
            let place = || format!("{}: benchmarks[{i}].requests.successful[{n}]", path.display());
            run.requests.push(guidellm_request(&JsonRow::json_row_from_value(request, &place)?)?);
        }
        let strategy = ["config", "args"].iter().find_map(|key| {
            let strategy = &benchmark[*key]["strategy"];
            strategy.is_object().then_some(strategy)
        });
        if let Some(strategy) = strategy {
            let kinds = [&strategy["kind"], &strategy["type_"], &strategy["strategy_type"]];
            let kind = kinds.iter().find_map(|kind| kind.as_str().filter(|k| *k != "strategy"));
            let streams =
                ["streams", "max_concurrency"].iter().find_map(|key| strategy[*key].as_u64());
            run.load = match (kind, streams) {
                (Some("synchronous"), _) => OfferedLoad::Closed(1),
                (Some("concurrent"), Some(n)) => {
                    OfferedLoad::Closed(u32::try_from(n).unwrap_or(u32::MAX))
                }
                _ => OfferedLoad::Times,
            };
        }
        run.compute_latency_stats();
        runs.push(run);
    }
    Ok(runs)
}

fn guidellm_request(row: &JsonRow<'_>) -> Result<MeasuredRequest, WorkloadError> {
    let timings = row.object_field_or_empty("info")?.object_field_or_empty("timings")?;
    let time = |inner: &str, outer: &[&str]| -> Result<Option<f64>, WorkloadError> {
        let found = match timings.number_field(&[inner])? {
            Some(found) => Some(found),
            None => row.number_field(outer)?,
        };
        Ok(found.map(|s| s * 1e3))
    };
    let start = time("request_start", &["request_start_time", "start_time"])?;
    let end = time("request_end", &["request_end_time", "end_time"])?;
    let first = time("first_token_iteration", &["first_token_time"])?;
    let ttft = match row.positive_number_field(&["time_to_first_token_ms"])? {
        Some(ms) => Some(ms),
        None => first.zip(start).map(|(first, start)| first - start),
    };
    Ok(MeasuredRequest {
        at_ms: start,
        input: row.required_token_count_field(&["prompt_tokens"], 1)?,
        output: row.required_token_count_field(&["output_tokens"], 1)?,
        cached: row.token_count_field(&["cached_tokens"], 0)?,
        prefix: None,
        ttft_ms: ttft,
        e2e_ms: end.zip(start).map(|(end, start)| end - start),
    })
}

/// Reads a report of `vllm-sim replay` or of Dynamo: its completed requests at their arrival times.
pub(super) fn read_replay_report(path: &Path) -> Result<BenchRun, WorkloadError> {
    let value = read_json_file(path)?;
    let place = || path.display().to_string();
    let row = JsonRow::json_row_from_value(&value, &place)?;
    let records = row.required(JsonRow::array_field, "per_request")?;
    let mut run = BenchRun::new(place());
    for (i, record) in records.iter().enumerate() {
        let place = || format!("{}: per_request[{i}]", path.display());
        let row = JsonRow::json_row_from_value(record, &place)?;
        if row.text_field("terminal_status")? != Some("completed") {
            continue;
        }
        run.requests.push(MeasuredRequest {
            at_ms: row.time_field_ms(&["arrival_time_ms"])?,
            input: row.required_token_count_field(&["input_length"], 1)?,
            output: row.required_token_count_field(&["output_length"], 0)?,
            cached: row.token_count_field(&["reused_input_tokens"], 0)?,
            prefix: None,
            ttft_ms: row.positive_number_field(&["ttft_ms"])?,
            e2e_ms: row.positive_number_field(&["e2e_latency_ms"])?,
        });
    }
    run.compute_latency_stats();
    Ok(run)
}
