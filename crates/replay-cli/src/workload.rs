use std::sync::Once;

use anyhow::Result;

use vllm_sim_engine::SimTime;
use vllm_sim_replay::ArrivalPacing;
use vllm_sim_replay::load;
use vllm_sim_replay::report::ReplayReport;
use vllm_sim_replay::synth::{
    ArrivalProcess, ArrivalRateCurveSource, LoraAdapterSource, RescheduledSource,
    SyntheticWorkload, TokenLengthDistribution,
};
use vllm_sim_replay::workload::WorkloadSource;

use super::options::{SyntheticArgs, WorkloadArgs};
use super::without_effect;
use vllm_sim_command_line::{UsageError, refuse};

/// Opens the workload that the command-line arguments describe, with the pacing of its arrivals.
pub fn open_workload(
    args: &WorkloadArgs,
    block_size: u32,
) -> Result<(Box<dyn WorkloadSource>, ArrivalPacing)> {
    let worded = match &args.workload {
        Some(words) => Some(parse_workload_text(words, args)?),
        None => None,
    };
    let args = worded.as_ref().unwrap_or(args);
    let (mut source, pace) = open_timed_workload(args, block_size)?;
    if let Some(curve) = &args.rate_curve {
        if pace.concurrency_limit().is_some() {
            refuse!(
                "--rate-curve cannot be used with a closed loop, whose requests have no arrival \
                 times"
            );
        }
        source = Box::new(ArrivalRateCurveSource::new(source, curve.clone()));
    }
    if !(0.0..=1.0).contains(&args.adapters.lora_share) {
        refuse!("--lora-share is {}, must be from 0 to 1", args.adapters.lora_share);
    }
    if args.adapters.lora.is_empty() && args.adapters.lora_share != 1.0 {
        refuse!("--lora-share: no effect without --lora");
    }
    if args.adapters.lora.iter().any(String::is_empty) {
        refuse!("--lora has an empty name");
    }
    without_effect::warn_of_unread_workload_flags(args);
    if !args.adapters.lora.is_empty() {
        let (names, share) = (&args.adapters.lora, args.adapters.lora_share);
        source = Box::new(LoraAdapterSource::new(source, names, share, args.workload_seed));
    }
    Ok((source, pace))
}

/// Duration of a `--workload` text without `--request-count`, in seconds.
const TEXT_WORKLOAD_DEFAULT_SECONDS: f64 = 60.0;

/// Converts a workload text such as `20 req/s of 2k/300` to the flags of a synthetic workload.
pub fn parse_workload_text(workload_text: &str, args: &WorkloadArgs) -> Result<WorkloadArgs> {
    let tokens = |text: &str| {
        let text = text.trim();
        let (number, times) = match text.strip_suffix(['k', 'K']) {
            Some(number) => (number, 1000.0),
            None => (text, 1.0),
        };
        let tokens = number.parse::<f64>().ok()? * times;
        (tokens >= 1.0 && tokens <= f64::from(u32::MAX)).then_some(tokens.round() as u32)
    };
    let read = || {
        let (rate, shape) = workload_text.split_once(" of ")?;
        let rate =
            rate.trim().split_once(' ').map_or(rate.trim(), |(rate, unit)| match unit.trim() {
                "req/s" | "requests/s" | "rps" | "requests per second" => rate,
                _ => "",
            });
        let (input, output) = shape.split_once('/')?;
        let rate = rate.parse::<f64>().ok()?;
        let is_rate = rate.is_finite() && rate > 0.0;
        is_rate.then_some((rate, tokens(input)?, tokens(output)?))
    };
    let Some((rate, input, output)) = read() else {
        refuse!("--workload {workload_text:?} must be like \"20 req/s of 2k/300\"");
    };
    let count = (rate * TEXT_WORKLOAD_DEFAULT_SECONDS).ceil() as u64;
    Ok(WorkloadArgs {
        workload: None,
        request_rate: Some(rate),
        synthetic: SyntheticArgs {
            input_tokens: Some(TokenLengthDistribution::Constant(input)),
            output_tokens: Some(TokenLengthDistribution::Constant(output)),
            ..args.synthetic.clone()
        },
        request_count: args.request_count.or(Some(count.max(300))),
        ..args.clone()
    })
}

fn open_timed_workload(
    args: &WorkloadArgs,
    block_size: u32,
) -> Result<(Box<dyn WorkloadSource>, ArrivalPacing)> {
    let arrivals = parse_arrivals(args)?;
    if !(args.arrival_speedup_ratio.is_finite() && args.arrival_speedup_ratio > 0.0) {
        let ratio = args.arrival_speedup_ratio;
        refuse!("--arrival-speedup-ratio is {ratio}, must be a number above 0");
    }
    let mut pace = ArrivalPacing {
        concurrency: args.replay_concurrency,
        plays: None,
        speedup: args.arrival_speedup_ratio,
    };
    if pace.concurrency == Some(0) {
        refuse!("--replay-concurrency is 0, must be at least 1");
    }
    if pace.concurrency.is_some() && args.request_rate.is_some() {
        refuse!("--replay-concurrency cannot be used with --request-rate");
    }
    // Dynamo's examples also give an interval, which a closed loop ignores.
    let arrivals = arrivals.filter(|_| pace.concurrency.is_none());
    if args.files.is_empty() {
        let source = open_synthetic_workload(args, block_size, arrivals)?;
        return Ok((source, pace));
    }
    let options = load::WorkloadReadOptions {
        format: args.format,
        trace_block_size: args.trace_block_size,
        shared_prefix_ratio: args.trace_shared_prefix_ratio,
        prefix_groups: args.trace_num_prefix_groups,
        limit: args.request_count,
        session_order: match args.replay_concurrency {
            None => load::SessionOrder::ByStart,
            Some(_) => load::SessionOrder::AsListed,
        },
        seed: args.workload_seed,
        ..load::WorkloadReadOptions::default()
    };
    let source = load::open_workload_files(&args.files, &options)?;
    let facts = source.facts();
    warn_of_left_out_rows(facts.left_out_rows);
    if let Some(arrivals) = arrivals {
        let source = RescheduledSource::new(source, arrivals, args.arrival_seed);
        return Ok((Box::new(source), pace));
    }
    if facts.has_agent_runs {
        pace.plays = pace.concurrency.take();
    }
    if pace.concurrency.is_none() && facts.has_no_start_times {
        pace.concurrency = facts.recorded_concurrency.map(|n| n as usize);
        if pace.concurrency.is_none() {
            refuse!(
                "the trace has no times: give --request-rate, --arrival-interval-ms or \
                 --replay-concurrency"
            );
        }
    }
    Ok((source, pace))
}

/// Adds the number of rows that the trace reader left out to a report, if there are any such rows.
pub(super) fn add_left_out_row_count(report: &mut ReplayReport, source: &dyn WorkloadSource) {
    let rows = source.facts().left_out_rows;
    if rows > 0 {
        report.summary.insert("left_out_rows".to_owned(), rows.into());
    }
}

/// Logs a warning that the trace reader left out rows: only once per process, because a search
/// opens the trace for every run.
fn warn_of_left_out_rows(rows: u64) {
    static WARNED: Once = Once::new();
    if rows > 0 {
        WARNED.call_once(|| {
            tracing::warn!(
                "{rows} rows of the trace have no prompt or no output, as failed requests have: \
                 they are left out"
            );
        });
    }
}

fn parse_arrivals(args: &WorkloadArgs) -> Result<Option<ArrivalProcess>> {
    let arrivals = match (args.request_rate, args.arrival_interval_ms) {
        (None, None) if args.burstiness.is_some() => refuse!("--burstiness needs --request-rate"),
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => refuse!("give one of --request-rate and --arrival-interval-ms"),
        // The rate with which `vllm bench serve` sends all requests immediately.
        (Some(rate), None) if rate == f64::INFINITY => ArrivalProcess::Burst,
        (Some(rate), None) => match args.burstiness {
            Some(burstiness) => ArrivalProcess::Gamma { rate, burstiness },
            None => ArrivalProcess::Poisson(rate),
        },
        (None, Some(0.0)) => ArrivalProcess::Burst,
        (None, Some(ms)) => ArrivalProcess::Interval(ms),
    };
    let checked =
        arrivals.check_arrival_parameters().map_err(|text| UsageError(text.to_string()))?;
    Ok(Some(checked))
}

fn open_synthetic_workload(
    args: &WorkloadArgs,
    block: u32,
    arrivals: Option<ArrivalProcess>,
) -> Result<Box<dyn WorkloadSource>> {
    let synthetic = &args.synthetic;
    let Some(input) = synthetic.input_tokens.clone() else {
        refuse!("no workload: give trace files, or --input-tokens and --request-count");
    };
    let Some(count) = args.request_count else {
        refuse!("--request-count is needed with --input-tokens");
    };
    let arrivals = match arrivals {
        Some(arrivals) => arrivals,
        None if args.replay_concurrency.is_some() => ArrivalProcess::Burst,
        None => refuse!(
            "give one of --replay-concurrency, --request-rate, --arrival-interval-ms (0: all \
             requests immediately)"
        ),
    };
    let turns = synthetic.turns_per_session.clone().unwrap_or(TokenLengthDistribution::Constant(1));
    if turns == TokenLengthDistribution::Constant(0) {
        refuse!("--turns-per-session is 0, must be at least 1");
    }
    if matches!(
        input,
        TokenLengthDistribution::Constant(0) | TokenLengthDistribution::Uniform(_, 0)
    ) {
        refuse!("--input-tokens is 0, must be at least 1");
    }
    let shared_prefix_ratio = synthetic.shared_prefix_ratio.unwrap_or(0.0);
    let prefix_groups = synthetic.num_prefix_groups.unwrap_or(0);
    let made = SyntheticWorkload {
        sessions: count,
        input,
        output: synthetic.output_tokens.clone().unwrap_or(TokenLengthDistribution::Constant(128)),
        arrivals,
        arrival_seed: args.arrival_seed,
        seed: args.workload_seed,
        shared_prefix_ratio,
        prefix_groups: prefix_groups.max(u32::from(shared_prefix_ratio > 0.0)),
        turns,
        grows_by: synthetic.turn_tokens.clone(),
        think_ms: synthetic.inter_turn_delay_ms,
        think_varies: synthetic.inter_turn_delay_varies,
        block: block.max(1),
    };
    Ok(Box::new(made.into_source()?))
}

/// Returns the virtual time at which the replay ends, if `--max-sim-time-seconds` is given.
pub fn simulated_time_limit(args: &WorkloadArgs) -> Result<Option<SimTime>> {
    let Some(seconds) = args.max_sim_time_seconds else {
        return Ok(None);
    };
    let duration = std::time::Duration::try_from_secs_f64(seconds);
    let duration = duration.ok().filter(|duration| !duration.is_zero());
    let Some(duration) = duration else {
        refuse!("--max-sim-time-seconds is {seconds}, must be above 0");
    };
    Ok(Some(SimTime::ZERO + duration))
}
