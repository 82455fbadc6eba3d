//! Readers of what `vllm bench serve`, guidellm and inference-perf write.

use std::path::Path;

use serde_json::Value;

use super::bench::{BenchRun, Load, Measured, Stats};
use super::lines;
use super::row::Row;
use crate::replay::synth::Arrivals;
use crate::replay::workload::WorkloadError;

/// Longest result file: a gigabyte.
const MAX_FILE: u64 = 1 << 30;

fn json(path: &Path) -> Result<Value, WorkloadError> {
    let text = lines::text(path, MAX_FILE)?;
    serde_json::from_str(&text).map_err(|error| WorkloadError::Bad {
        place: format!("{}:{}", path.display(), error.line()),
        problem: format!("is not JSON: {error}"),
    })
}

/// A `vllm bench serve` result (`--save-result`), with lists per request where `--save-detailed`
/// wrote them. Source: vLLM `vllm/benchmarks/serve.py`.
pub(super) fn vllm_bench(path: &Path) -> Result<BenchRun, WorkloadError> {
    let value = json(path)?;
    let place = || path.display().to_string();
    let row = Row::new(&value, &place)?;
    let mut run = BenchRun::new(place());
    let rate = match row.find(&["request_rate"]) {
        Some((_, Value::String(text))) if text == "inf" => None,
        _ => row.positive(&["request_rate"])?.filter(|rate| *rate > 0.0),
    };
    let burstiness = row.positive(&["burstiness"])?.filter(|b| *b > 0.0);
    run.cap = row.tokens(&["max_concurrency"], 1)?;
    run.load = match (rate, run.cap) {
        (Some(rate), _) => Load::Drawn(Arrivals::at_rate(rate, burstiness.unwrap_or(1.0))),
        (None, Some(n)) => Load::Closed(n),
        (None, None) => Load::AtOnce,
    };
    let reached = row.positive(&["request_throughput"])?;
    run.rates = rate.zip(reached);
    let ms = |name: &str| row.positive(&[name]);
    run.stats = Stats {
        ttft_mean: ms("mean_ttft_ms")?,
        ttft_p50: ms("median_ttft_ms")?,
        ttft_p90: ms("p90_ttft_ms")?,
        ttft_p99: ms("p99_ttft_ms")?,
        itl_mean: row.positive(&["mean_tpot_ms", "mean_itl_ms"])?,
        e2e_mean: ms("mean_e2el_ms")?,
        e2e_p90: ms("p90_e2el_ms")?,
        e2e_p99: ms("p99_e2el_ms")?,
    };
    if row.has("input_lens") && row.has("output_lens") {
        vllm_details(&row, &mut run)?;
    } else {
        let count = row.needed_tokens(&["completed", "num_prompts"], 1)?;
        let share = |name: &str, least: f64| -> Result<u32, WorkloadError> {
            let total = row.positive(&[name])?.ok_or_else(|| row.missing(name))?;
            Ok((total / f64::from(count)).round().max(least) as u32)
        };
        let request = Measured {
            input: share("total_input_tokens", 1.0)?,
            output: share("total_output_tokens", 1.0)?,
            ..Measured::default()
        };
        run.requests = vec![request; count as usize];
    }
    run.measure();
    Ok(run)
}

fn vllm_details(row: &Row<'_>, run: &mut BenchRun) -> Result<(), WorkloadError> {
    let inputs = row.numbers("input_lens")?.unwrap_or_default();
    let outputs = row.numbers("output_lens")?.unwrap_or_default();
    let ttfts = row.numbers("ttfts")?.unwrap_or_default();
    let starts = row.numbers("start_times")?.unwrap_or_default();
    let itls = row.list("itls")?.unwrap_or_default();
    if inputs.len() != outputs.len() {
        return Err(row.bad(format!(
            "input_lens has {} entries, output_lens {}: they must be as many",
            inputs.len(),
            outputs.len()
        )));
    }
    for (i, (input, output)) in inputs.iter().zip(&outputs).enumerate() {
        if *output < 1.0 {
            // It failed.
            continue;
        }
        let ttft = ttfts.get(i).map(|s| s * 1e3);
        let gaps = itls.get(i).and_then(Value::as_array);
        let rest = gaps.map(|gaps| gaps.iter().filter_map(Value::as_f64).sum::<f64>() * 1e3);
        run.requests.push(Measured {
            at_ms: starts.get(i).map(|s| s * 1e3),
            input: input.max(1.0) as u32,
            output: *output as u32,
            ttft_ms: ttft,
            e2e_ms: ttft.zip(rest).map(|(ttft, rest)| ttft + rest),
            ..Measured::default()
        });
    }
    let open = matches!(run.load, Load::Drawn(_)) && run.cap.is_none();
    if open && starts.len() == inputs.len() {
        run.load = Load::Times;
    }
    Ok(())
}

/// A guidellm report: one run per benchmark in it. Source: guidellm 0.8.1
/// `schemas/base/request_stats.py`; earlier reports have the times on the request itself.
pub(super) fn guidellm(path: &Path) -> Result<Vec<BenchRun>, WorkloadError> {
    let value = json(path)?;
    let place = || path.display().to_string();
    let row = Row::new(&value, &place)?;
    let benchmarks = row.list("benchmarks")?;
    let benchmarks = benchmarks.ok_or_else(|| row.missing("benchmarks"))?;
    let mut runs = Vec::new();
    for (i, benchmark) in benchmarks.iter().enumerate() {
        let place = || format!("{}: benchmarks[{i}]", path.display());
        let row = Row::new(benchmark, &place)?;
        let mut run = BenchRun::new(place());
        let requests = row.object("requests")?;
        let requests = requests.ok_or_else(|| row.missing("requests"))?;
        let done = requests.list("successful")?;
        for (n, request) in done.unwrap_or_default().iter().enumerate() {
            let place = || {
                format!(
                    "{}: benchmarks[{i}].requests.successful[{n}]",
                    path.display()
                )
            };
            run.requests
                .push(guidellm_request(&Row::new(request, &place)?)?);
        }
        let strategy = ["config", "args"].iter().find_map(|key| {
            let strategy = &benchmark[*key]["strategy"];
            strategy.is_object().then_some(strategy)
        });
        if let Some(strategy) = strategy {
            let kinds = [
                &strategy["kind"],
                &strategy["type_"],
                &strategy["strategy_type"],
            ];
            let kind = kinds
                .iter()
                .find_map(|kind| kind.as_str().filter(|k| *k != "strategy"));
            let streams = ["streams", "max_concurrency"]
                .iter()
                .find_map(|key| strategy[*key].as_u64());
            run.load = match (kind, streams) {
                (Some("synchronous"), _) => Load::Closed(1),
                (Some("concurrent"), Some(n)) => Load::Closed(u32::try_from(n).unwrap_or(u32::MAX)),
                _ => Load::Times,
            };
        }
        run.measure();
        runs.push(run);
    }
    Ok(runs)
}

fn guidellm_request(row: &Row<'_>) -> Result<Measured, WorkloadError> {
    let timings = match row.object("info")? {
        Some(info) => info.object("timings")?,
        None => None,
    };
    let timings = timings.as_ref();
    let time = |inner: &str, outer: &[&str]| -> Result<Option<f64>, WorkloadError> {
        let found = match timings {
            Some(timings) => timings.number(&[inner])?,
            None => None,
        };
        let found = match found {
            Some(found) => Some(found),
            None => row.number(outer)?,
        };
        Ok(found.map(|s| s * 1e3))
    };
    let start = time("request_start", &["request_start_time", "start_time"])?;
    let end = time("request_end", &["request_end_time", "end_time"])?;
    let first = time("first_token_iteration", &["first_token_time"])?;
    let ttft = match row.positive(&["time_to_first_token_ms"])? {
        Some(ms) => Some(ms),
        None => first.zip(start).map(|(first, start)| first - start),
    };
    Ok(Measured {
        at_ms: start,
        input: row.needed_tokens(&["prompt_tokens"], 1)?,
        output: row.needed_tokens(&["output_tokens"], 1)?,
        cached: row.tokens(&["cached_tokens"], 0)?,
        prefix: None,
        ttft_ms: ttft,
        e2e_ms: end.zip(start).map(|(end, start)| end - start),
    })
}

/// What inference-perf reports: `per_request_lifecycle_metrics.json` (a list), or
/// `stage_N_lifecycle_metrics.json` (statistics of a stage).
pub(super) fn inference_perf(path: &Path) -> Result<BenchRun, WorkloadError> {
    let value = json(path)?;
    if let Value::Array(requests) = &value {
        let mut run = BenchRun::new(path.display().to_string());
        for (i, request) in requests.iter().enumerate() {
            let place = || format!("{}: [{i}]", path.display());
            run.requests.extend(lifecycle(&Row::new(request, &place)?)?);
        }
        run.measure();
        return Ok(run);
    }
    let place = || path.display().to_string();
    stage(&Row::new(&value, &place)?, place())
}

/// One request of inference-perf; `None` when it failed.
fn lifecycle(row: &Row<'_>) -> Result<Option<Measured>, WorkloadError> {
    if row.has("error") {
        return Ok(None);
    }
    let start = row.number(&["start_time"])?;
    let start = start.ok_or_else(|| row.missing("start_time"))?;
    let end = row
        .number(&["end_time"])?
        .ok_or_else(|| row.missing("end_time"))?;
    let info = row.object("info")?.ok_or_else(|| row.missing("info"))?;
    let response = info.object("response_metrics")?;
    let asked = match info.object("request_metrics")? {
        Some(metrics) => metrics.object("text")?,
        None => None,
    };
    let input = match &asked {
        Some(text) => text.tokens(&["input_tokens"], 1)?,
        None => info.tokens(&["input_tokens"], 1)?,
    };
    let response = response.as_ref().unwrap_or(&info);
    let usage = response.object("server_usage")?;
    let counted = response.tokens(&["output_tokens"], 0)?.unwrap_or(0);
    let made = match &usage {
        Some(usage) => usage.tokens(&["completion_tokens"], 0)?,
        None => None,
    };
    // Re-tokenised texts come out up to 30 % short; what was asked for is exact.
    let output = made.or(exact_output(row)).unwrap_or(counted);
    if output == 0 {
        return Ok(None);
    }
    let first = response.list("output_token_times")?;
    let first = first.and_then(|times| times.first()?.as_f64());
    Ok(Some(Measured {
        at_ms: Some(start * 1e3),
        input: input.ok_or_else(|| row.missing("info.input_tokens"))?,
        output,
        ttft_ms: first.map(|first| (first - start) * 1e3),
        e2e_ms: Some((end - start) * 1e3),
        ..Measured::default()
    }))
}

/// `max_tokens` of a request that ignores the end of sequence.
fn exact_output(row: &Row<'_>) -> Option<u32> {
    let (_, request) = row.find(&["request"])?;
    let parsed: Option<Value> = request
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok());
    let request = parsed.as_ref().unwrap_or(request);
    let exact = request["ignore_eos"].as_bool() == Some(true);
    let most = ["max_tokens", "max_completion_tokens"]
        .iter()
        .find_map(|key| request[*key].as_u64());
    most.filter(|_| exact).and_then(|n| u32::try_from(n).ok())
}

fn stage(row: &Row<'_>, name: String) -> Result<BenchRun, WorkloadError> {
    let mut run = BenchRun::new(name);
    let load = row.object("load_summary")?;
    let load = load.ok_or_else(|| row.missing("load_summary"))?;
    let done = row
        .object("successes")?
        .ok_or_else(|| row.missing("successes"))?;
    let count = done.needed_tokens(&["count"], 1)?;
    let asked = load
        .positive(&["requested_rate", "rate"])?
        .filter(|rate| *rate > 0.0);
    run.rates = asked.zip(load.positive(&["achieved_rate"])?);
    run.load = match asked {
        Some(rate) => Load::Drawn(Arrivals::Interval(1e3 / rate)),
        None => Load::AtOnce,
    };
    let length = |name: &str| -> Result<u32, WorkloadError> {
        let lengths = done.object(name)?.ok_or_else(|| done.missing(name))?;
        let mean = lengths
            .positive(&["mean"])?
            .ok_or_else(|| done.missing(name))?;
        Ok(mean.round().max(1.0) as u32)
    };
    let request = Measured {
        input: length("prompt_len")?,
        output: length("output_len")?,
        ..Measured::default()
    };
    run.requests = vec![request; count as usize];
    let latency = done.object("latency")?;
    let latency = latency.ok_or_else(|| done.missing("latency"))?;
    let ms = |name: &str, of: &[&str]| -> Result<Option<f64>, WorkloadError> {
        match latency.object(name)? {
            Some(values) => Ok(values.positive(of)?.map(|s| s * 1e3)),
            None => Ok(None),
        }
    };
    let (ttft, e2e) = ("time_to_first_token", "request_latency");
    run.stats = Stats {
        ttft_mean: ms(ttft, &["mean"])?,
        ttft_p50: ms(ttft, &["median", "p50"])?,
        ttft_p90: ms(ttft, &["p90"])?,
        ttft_p99: ms(ttft, &["p99"])?,
        itl_mean: ms("time_per_output_token", &["mean"])?,
        e2e_mean: ms(e2e, &["mean"])?,
        e2e_p90: ms(e2e, &["p90"])?,
        e2e_p99: ms(e2e, &["p99"])?,
    };
    // The gap per token of the client counts re-tokenised texts: prefer the ends.
    if let (Some(ttft), Some(e2e)) = (run.stats.ttft_mean, run.stats.e2e_mean)
        && run.requests[0].output > 1
    {
        let gaps = f64::from(run.requests[0].output - 1);
        run.stats.itl_mean = run.stats.itl_mean.or(Some((e2e - ttft) / gaps));
    }
    Ok(run)
}

/// A report of ours or of Dynamo's: its requests at their arrivals.
pub(super) fn report(path: &Path) -> Result<BenchRun, WorkloadError> {
    let value = json(path)?;
    let place = || path.display().to_string();
    let row = Row::new(&value, &place)?;
    let records = row.list("per_request")?;
    let records = records.ok_or_else(|| row.missing("per_request"))?;
    let mut run = BenchRun::new(place());
    for (i, record) in records.iter().enumerate() {
        let place = || format!("{}: per_request[{i}]", path.display());
        let row = Row::new(record, &place)?;
        if row.text("terminal_status")? != Some("completed") {
            continue;
        }
        run.requests.push(Measured {
            at_ms: row.number(&["arrival_time_ms"])?,
            input: row.needed_tokens(&["input_length"], 1)?,
            output: row.needed_tokens(&["output_length"], 0)?,
            cached: row.tokens(&["reused_input_tokens"], 0)?,
            prefix: None,
            ttft_ms: row.positive(&["ttft_ms"])?,
            e2e_ms: row.positive(&["e2e_latency_ms"])?,
        });
    }
    run.measure();
    Ok(run)
}
