use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use serde_json::Value;

use vllm_sim_replay::load::{self, AgentOrder, Format};
use vllm_sim_replay::synth::{Arrivals, Lengths, SyntheticWorkload};
use vllm_sim_replay::workload::{MAX_TOKENS, Session, WorkloadError, WorkloadSource};

use super::error::DynamoError;
use super::json_args::{Args, wrong};

const MAX_REQUESTS: u64 = 10_000_000;

/// Builds a workload of requests with equal lengths, as Dynamo's `run_synthetic_trace_replay` does.
///
/// `block` is the engine's block size, `concurrency` that of a closed loop.
pub(super) fn synthetic(
    positional: &[Value],
    kwargs: &mut Args,
    block: u32,
    concurrency: Option<usize>,
) -> Result<Box<dyn WorkloadSource>, DynamoError> {
    let mut length = |i: usize, key: &str, least: u64, most: u64| -> Result<u32, DynamoError> {
        let value = positional.get(i).cloned().or_else(|| kwargs.take(key));
        let n = value.as_ref().and_then(Value::as_u64);
        let n = n.filter(|n| (least..=most).contains(n));
        n.map(|n| n as u32)
            .ok_or_else(|| wrong(key, format!("must be between {least} and {most}")))
    };
    let input = length(0, "input_tokens", 1, MAX_TOKENS)?;
    let output = length(1, "output_tokens", 1, MAX_TOKENS)?;
    let count = length(2, "request_count", 1, MAX_REQUESTS)?;
    let turns = kwargs.count("turns_per_session")?.unwrap_or(1).max(1);
    if u64::from(turns) * u64::from(count) > MAX_REQUESTS {
        let problem = format!("has more than {MAX_REQUESTS} requests");
        return Err(wrong("kwargs.turns_per_session", problem));
    }
    let made = SyntheticWorkload {
        sessions: count.into(),
        input: Lengths::Constant(input),
        output: Lengths::Constant(output),
        turns: Lengths::Constant(turns),
        shared_prefix_ratio: kwargs.number("shared_prefix_ratio")?.unwrap_or(0.0),
        prefix_groups: kwargs.count("num_prefix_groups")?.unwrap_or(0),
        think_ms: kwargs.number("inter_turn_delay_ms")?.unwrap_or(0.0),
        arrivals: arrivals(kwargs, concurrency)?,
        arrival_seed: kwargs.count("arrival_seed")?.unwrap_or(42).into(),
        block,
        ..SyntheticWorkload::default()
    };
    Ok(Box::new(made.source()?))
}

fn arrivals(kwargs: &mut Args, concurrency: Option<usize>) -> Result<Arrivals, DynamoError> {
    let rate = kwargs.number("request_rate")?;
    let interval = kwargs.number("arrival_interval_ms")?;
    match (rate, interval, concurrency.is_some()) {
        (None, None, true) => Ok(Arrivals::Burst),
        (Some(rate), None, false) if rate > 0.0 => Ok(Arrivals::Poisson(rate)),
        (None, Some(0.0), false) => Ok(Arrivals::Burst),
        (None, Some(interval), false) => Ok(Arrivals::Interval(interval)),
        _ => {
            let problem = "give one of replay_concurrency, request_rate (more than 0), \
                           arrival_interval_ms";
            Err(wrong("kwargs", problem))
        }
    }
}

pub(super) fn trace(
    positional: &[Value],
    kwargs: &mut Args,
    dir: &Path,
    (closed, agent_order): (bool, AgentOrder),
) -> Result<Box<dyn WorkloadSource>, DynamoError> {
    let files = positional
        .first()
        .cloned()
        .or_else(|| kwargs.take("trace_files"));
    let files: Vec<PathBuf> = match files {
        Some(Value::String(file)) => vec![dir.join(file)],
        Some(Value::Array(files)) => files
            .iter()
            .filter_map(Value::as_str)
            .map(|file| dir.join(file))
            .collect(),
        _ => {
            let problem = "must be a file name or a list of them";
            return Err(wrong("trace_files", problem));
        }
    };
    let format = match kwargs.text("trace_format")? {
        None => Format::Mooncake,
        Some(name) => name
            .parse()
            .map_err(|problem: String| wrong("kwargs.trace_format", problem))?,
    };
    // The model of an agent graph has no further effect.
    let model = kwargs.text("execution_model")?;
    if format == Format::AgenticMooncake && model.is_none() {
        let problem = "trace_format agentic_mooncake requires it";
        return Err(wrong("kwargs.execution_model", problem));
    }
    if agent_order == AgentOrder::ByRequestId && format != Format::AgenticMooncake {
        let problem = "requires trace_format agentic_mooncake";
        return Err(wrong("kwargs.agentic_lanes", problem));
    }
    let options = load::LoadOptions {
        format,
        trace_block_size: kwargs.count("trace_block_size")?.unwrap_or(512),
        shared_prefix_ratio: kwargs.number("trace_shared_prefix_ratio")?.unwrap_or(0.0),
        prefix_groups: kwargs.count("trace_num_prefix_groups")?.unwrap_or(0),
        session_order: match closed {
            true => load::SessionOrder::AsListed,
            false => load::SessionOrder::ByStart,
        },
        name_rows: true,
        agent_order,
        ..load::LoadOptions::default()
    };
    let mut source = load::open(&files, &options)?;
    if source.untimed() && !closed {
        let problem = "the trace has no start times, so give replay_concurrency";
        return Err(wrong("kwargs.trace_format", problem));
    }
    let plain = matches!(format, Format::Mooncake | Format::MooncakeDelta) && !closed;
    if !plain {
        return Ok(source);
    }
    let mut sessions = VecDeque::new();
    while let Some(session) = source.next()? {
        sessions.push_back(session);
    }
    // An open loop of single requests has no sessions.
    if sessions.iter().all(|session| session.turns.len() == 1) {
        sessions.iter_mut().for_each(|session| session.id = None);
    }
    Ok(Box::new(Sessions(sessions)))
}

struct Sessions(VecDeque<Session>);

impl WorkloadSource for Sessions {
    fn next(&mut self) -> Result<Option<Session>, WorkloadError> {
        Ok(self.0.pop_front())
    }
}
