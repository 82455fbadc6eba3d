use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use serde_json::Value;

use vllm_sim_replay::load::{self, AgentRunOrder, WorkloadFormat};
use vllm_sim_replay::synth::{ArrivalProcess, SyntheticWorkload, TokenLengthDistribution};
use vllm_sim_replay::workload::{
    ClientSession, MAX_PROMPT_OR_OUTPUT_TOKENS, WorkloadError, WorkloadSource,
};

use super::error::DynamoRunError;
use super::json_args::{DynamoJsonArgs, invalid_field_error};

const MAX_REQUESTS: u64 = 10_000_000;

/// Builds a workload of requests with equal lengths, as Dynamo's `run_synthetic_trace_replay` does.
///
/// `block` is the engine's block size, `concurrency` that of a closed loop. A fourth positional
/// argument, which only AISimulate's sessions have, is the number of tokens that each turn adds.
pub(super) fn synthetic_workload(
    positional: &[Value],
    kwargs: &mut DynamoJsonArgs,
    block: u32,
    concurrency: Option<usize>,
) -> Result<Box<dyn WorkloadSource>, DynamoRunError> {
    let mut length = |i: usize, key: &str, least: u64, most: u64| -> Result<u32, DynamoRunError> {
        let value = positional.get(i).cloned().or_else(|| kwargs.take_value(key));
        let n = value.as_ref().and_then(Value::as_u64);
        let n = n.filter(|n| (least..=most).contains(n));
        n.map(|n| n as u32)
            .ok_or_else(|| invalid_field_error(key, format!("must be between {least} and {most}")))
    };
    let input = length(0, "input_tokens", 1, MAX_PROMPT_OR_OUTPUT_TOKENS)?;
    let output = length(1, "output_tokens", 1, MAX_PROMPT_OR_OUTPUT_TOKENS)?;
    let count = length(2, "request_count", 1, MAX_REQUESTS)?;
    let added = match positional.len() {
        0..4 => 0,
        _ => length(3, "new_input_tokens_per_turn", 1, MAX_PROMPT_OR_OUTPUT_TOKENS)?,
    };
    let turns = kwargs.take_count("turns_per_session", 1)?.max(1);
    if u64::from(turns) * u64::from(count) > MAX_REQUESTS {
        let problem = format!("has more than {MAX_REQUESTS} requests");
        return Err(invalid_field_error("kwargs.turns_per_session", problem));
    }
    let made = SyntheticWorkload {
        sessions: count.into(),
        input: TokenLengthDistribution::Constant(input),
        output: TokenLengthDistribution::Constant(output),
        turns: TokenLengthDistribution::Constant(turns),
        grows_by: positional.get(3).map(|_| TokenLengthDistribution::Constant(added)),
        shared_prefix_ratio: kwargs.take_number("shared_prefix_ratio", 0.0)?,
        prefix_groups: kwargs.take_count("num_prefix_groups", 0)?,
        think_ms: kwargs.take_number("inter_turn_delay_ms", 0.0)?,
        arrivals: parse_arrivals(kwargs, concurrency)?,
        arrival_seed: kwargs.take_count("arrival_seed", 42)?.into(),
        block,
        ..SyntheticWorkload::default()
    };
    Ok(Box::new(made.into_source()?))
}

fn parse_arrivals(
    kwargs: &mut DynamoJsonArgs,
    concurrency: Option<usize>,
) -> Result<ArrivalProcess, DynamoRunError> {
    let rate = kwargs.take_optional_number("request_rate")?;
    let interval = kwargs.take_optional_number("arrival_interval_ms")?;
    match (rate, interval, concurrency.is_some()) {
        (None, None, true) => Ok(ArrivalProcess::Burst),
        (Some(rate), None, false) if rate > 0.0 => Ok(ArrivalProcess::Poisson(rate)),
        (None, Some(0.0), false) => Ok(ArrivalProcess::Burst),
        (None, Some(interval), false) => Ok(ArrivalProcess::Interval(interval)),
        _ => {
            let problem = "give one of replay_concurrency, request_rate (more than 0), \
                           arrival_interval_ms";
            Err(invalid_field_error("kwargs", problem))
        }
    }
}

pub(super) fn trace_workload(
    positional: &[Value],
    kwargs: &mut DynamoJsonArgs,
    dir: &Path,
    (closed, agent_order): (bool, AgentRunOrder),
) -> Result<Box<dyn WorkloadSource>, DynamoRunError> {
    let files = positional.first().cloned().or_else(|| kwargs.take_value("trace_files"));
    let files: Vec<PathBuf> = match files {
        Some(Value::String(file)) => vec![dir.join(file)],
        Some(Value::Array(files)) => {
            files.iter().filter_map(Value::as_str).map(|file| dir.join(file)).collect()
        }
        _ => {
            let problem = "must be a file name or a list of them";
            return Err(invalid_field_error("trace_files", problem));
        }
    };
    let format = match kwargs.take_optional_text("trace_format")? {
        None => WorkloadFormat::Mooncake,
        Some(name) => name
            .parse()
            .map_err(|problem: String| invalid_field_error("kwargs.trace_format", problem))?,
    };
    // The model of an agent graph has no further effect.
    let model = kwargs.take_optional_text("execution_model")?;
    if format == WorkloadFormat::AgenticMooncake && model.is_none() {
        let problem = "trace_format agentic_mooncake requires it";
        return Err(invalid_field_error("kwargs.execution_model", problem));
    }
    let has_runs = matches!(
        format,
        WorkloadFormat::AgenticMooncake | WorkloadFormat::Weka | WorkloadFormat::WekaSplit
    );
    if agent_order == AgentRunOrder::ByRequestId && !has_runs {
        let problem = "requires trace_format agentic_mooncake or weka";
        return Err(invalid_field_error("kwargs.agentic_lanes", problem));
    }
    let options = load::WorkloadReadOptions {
        format,
        trace_block_size: kwargs.take_count("trace_block_size", 512)?,
        shared_prefix_ratio: kwargs.take_number("trace_shared_prefix_ratio", 0.0)?,
        prefix_groups: kwargs.take_count("trace_num_prefix_groups", 0)?,
        session_order: match closed {
            true => load::SessionOrder::AsListed,
            false => load::SessionOrder::ByStart,
        },
        name_rows: true,
        agent_order,
        ..load::WorkloadReadOptions::default()
    };
    let mut source = load::open_workload_files(&files, &options)?;
    if source.facts().has_no_start_times && !closed {
        let problem = "the trace has no start times, so give replay_concurrency";
        return Err(invalid_field_error("kwargs.trace_format", problem));
    }
    let plain =
        matches!(format, WorkloadFormat::Mooncake | WorkloadFormat::MooncakeDelta) && !closed;
    if !plain {
        return Ok(source);
    }
    let mut sessions = VecDeque::new();
    while let Some(session) = source.next_session()? {
        sessions.push_back(session);
    }
    // An open loop of single requests has no sessions.
    if sessions.iter().all(|session| session.turns.len() == 1) {
        sessions.iter_mut().for_each(|session| session.id = None);
    }
    Ok(Box::new(QueuedSessions(sessions)))
}

struct QueuedSessions(VecDeque<ClientSession>);

impl WorkloadSource for QueuedSessions {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        Ok(self.0.pop_front())
    }
}
