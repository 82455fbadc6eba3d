//! Reads Mooncake's JSONL: one request per line, with block ids as the prompt.
//!
//! Field names and rules are those of Dynamo's replay 1.6.1 (`aisimulate-core`,
//! `src/replay/loader`): see docs/trace-formats.md.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::lines::WorkloadLines;
use super::loaded::{LoadedSessions, SessionOrder, nanos_from_ms, sim_time_from_ms};
use super::row::JsonRow;
use crate::workload::{
    ClientSession, MAX_PROMPT_OR_OUTPUT_TOKENS, PromptTokenRun, SessionTurn, TurnPrompt,
    WorkloadError, WorkloadFacts, WorkloadSource,
};
use vllm_sim_random::mix_u64_pair;

/// Number of prompt tokens per hash id in Alibaba Bailian's traces.
///
/// **Source:** README of alibaba-edu/qwen-bailian-usagetraces-anon.
pub(super) const BAILIAN_BLOCK_TOKENS: u32 = 16;

/// Content of the rows of a Mooncake trace: either whole prompts or their additions to the previous
/// prompt, and the unit of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MooncakeRowContent {
    /// Mooncake trace with the whole prompt in each row, and times in milliseconds.
    Whole,
    /// Mooncake trace in which later rows of a session have only the tokens that they add to the
    /// previous prompt.
    Added,
    /// Alibaba Bailian's trace format: each row has the whole prompt, and times are in seconds.
    Bailian,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct MooncakeParseRules {
    /// Number of prompt tokens that one hash id stands for.
    pub(super) block: u32,
    pub(super) content: MooncakeRowContent,
    pub(super) order: SessionOrder,
    /// Whether each row without a session id becomes a session named after its line, as in Dynamo's
    /// report.
    pub(super) name_rows: bool,
}

struct MooncakeRow {
    session: Option<Arc<str>>,
    stamp_ms: Option<f64>,
    delay_ms: Option<f64>,
    runs: Vec<PromptTokenRun>,
    turn: SessionTurn,
}

/// Opens Mooncake trace files as one workload.
///
/// Reads them once to check every line. Requests sorted by time and without sessions are then
/// streamed, others are loaded into memory.
pub(super) fn open_mooncake_traces(
    paths: &[PathBuf],
    rules: MooncakeParseRules,
) -> Result<Box<dyn WorkloadSource>, WorkloadError> {
    let (mut rows, mut has_sessions, mut is_sorted) = (0, false, true);
    let (mut first_ms, mut last_ms) = (f64::INFINITY, f64::NEG_INFINITY);
    for_each_row(paths, rules, &mut |parsed, _| {
        let at_ms = parsed.stamp_ms.unwrap_or(0.0);
        rows += 1;
        has_sessions |= parsed.session.is_some();
        is_sorted &= at_ms >= last_ms;
        (first_ms, last_ms) = (first_ms.min(at_ms), at_ms);
        Ok(())
    })?;
    if has_sessions || (rules.order == SessionOrder::ByStart && !is_sorted) {
        return Ok(Box::new(load_sessions(paths, rules)?));
    }
    Ok(Box::new(MooncakeStream {
        paths: Vec::from(paths).into_iter(),
        lines: None,
        rules,
        first_ms,
        facts: WorkloadFacts {
            is_single_turn: is_sorted,
            max_requests: Some(rows),
            ..WorkloadFacts::default()
        },
    }))
}

fn for_each_row(
    paths: &[PathBuf],
    rules: MooncakeParseRules,
    then: &mut dyn FnMut(MooncakeRow, &WorkloadLines) -> Result<(), WorkloadError>,
) -> Result<(), WorkloadError> {
    for path in paths {
        let mut lines = WorkloadLines::open_workload_file(path)?;
        while lines.read_next_line()? {
            then(parse_row(&lines, rules)?, &lines)?;
        }
    }
    Ok(())
}

fn parse_row(
    lines: &WorkloadLines,
    rules: MooncakeParseRules,
) -> Result<MooncakeRow, WorkloadError> {
    let value = lines.parse_json_line()?;
    let place = || lines.file_and_line();
    let row = JsonRow::json_row_from_value(&value, &place)?;
    let ids = row.required(JsonRow::integer_array_field, "hash_ids")?;
    let input = row.prompt_length_field()?;
    let runs = hash_ids_to_token_runs(&row, &ids, input, rules.block, 0)?;
    let output = row.required_token_count_field(&["output_length", "output_tokens"], 0)?;
    if let Some(tokens) = row.array_field("output_token_ids")?
        && tokens.len() != output as usize
    {
        return Err(row.row_error(format!(
            "output_token_ids has {} entries, must have output_length = {output}",
            tokens.len()
        )));
    }
    let mut turn = SessionTurn::new(TurnPrompt::Whole(Vec::new()), output);
    turn.request_id = row.text_field("request_id")?.map(Arc::from);
    turn.priority = row.integer_field("priority")?.unwrap_or(0);
    turn.strict_priority = row.integer_field("strict_priority")?.unwrap_or(0);
    let session = match row.text_field("session_id")? {
        None if rules.name_rows => Some(format!("request_{}", lines.line_number()).into()),
        named => named.map(Arc::from),
    };
    Ok(MooncakeRow {
        session,
        stamp_ms: match rules.content {
            MooncakeRowContent::Bailian => row.seconds_field_as_ms(&["timestamp"])?,
            _ => row.time_field_ms(&["timestamp", "created_time"])?,
        },
        delay_ms: row.positive_millis_field(&["delay", "delay_ms"])?,
        runs,
        turn,
    })
}

/// Converts the hash ids of a trace row to runs of prompt tokens: one repeated token per id.
/// Together the runs have `input` tokens.
pub(super) fn hash_ids_to_token_runs(
    row: &JsonRow<'_>,
    ids: &[u64],
    input: Option<u32>,
    block: u32,
    scope: u64,
) -> Result<Vec<PromptTokenRun>, WorkloadError> {
    let most = ids.len() as u64 * u64::from(block);
    let input = input.map_or(most, u64::from);
    if input == 0 || input > most.min(MAX_PROMPT_OR_OUTPUT_TOKENS) {
        return Err(row.row_error(format!(
            "input_length is {input}, must be from 1 to {} ({} hash_ids of {block} tokens)",
            most.min(MAX_PROMPT_OR_OUTPUT_TOKENS),
            ids.len()
        )));
    }
    let mut left = input;
    let mut runs = Vec::with_capacity(input.div_ceil(block.into()) as usize);
    for id in ids {
        let len = left.min(block.into()) as u32;
        if len == 0 {
            break;
        }
        left -= u64::from(len);
        runs.push(PromptTokenRun {
            id: mix_u64_pair(mix_u64_pair(2, scope), *id),
            len,
            same: true,
        });
    }
    Ok(runs)
}

struct MooncakeStream {
    paths: std::vec::IntoIter<PathBuf>,
    lines: Option<WorkloadLines>,
    rules: MooncakeParseRules,
    first_ms: f64,
    facts: WorkloadFacts,
}

impl WorkloadSource for MooncakeStream {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        loop {
            let lines = match &mut self.lines {
                Some(lines) => lines,
                None => match self.paths.next() {
                    Some(path) => self.lines.insert(WorkloadLines::open_workload_file(&path)?),
                    None => return Ok(None),
                },
            };
            if !lines.read_next_line()? {
                self.lines = None;
                continue;
            }
            let parsed = parse_row(lines, self.rules)?;
            let at_ms = parsed.stamp_ms.unwrap_or(0.0) - self.first_ms;
            let turn = SessionTurn { prompt: TurnPrompt::Whole(parsed.runs), ..parsed.turn };
            let session = ClientSession::new(None, vec![turn]);
            return Ok(Some(ClientSession { start: sim_time_from_ms(at_ms), ..session }));
        }
    }

    fn facts(&self) -> WorkloadFacts {
        self.facts
    }
}

fn load_sessions(
    paths: &[PathBuf],
    rules: MooncakeParseRules,
) -> Result<LoadedSessions, WorkloadError> {
    let mut sessions: Vec<(f64, ClientSession)> = Vec::new();
    let mut known: HashMap<Arc<str>, (usize, f64)> = HashMap::new();
    for_each_row(paths, rules, &mut |mut parsed, lines| {
        let found = parsed.session.as_ref().and_then(|id| known.get_mut(id));
        let Some((at, last_ms)) = found else {
            if parsed.delay_ms.is_some_and(|ms| ms > 0.0) {
                let problem = "delay is not 0, which it must be in the first row of a session";
                return Err(lines.error_at_line(problem));
            }
            let start_ms = parsed.stamp_ms.unwrap_or(0.0);
            if let Some(id) = &parsed.session {
                known.insert(Arc::clone(id), (sessions.len(), start_ms));
            }
            parsed.turn.prompt = TurnPrompt::Whole(parsed.runs);
            sessions.push((start_ms, ClientSession::new(parsed.session, vec![parsed.turn])));
            return Ok(());
        };
        let between = parsed.stamp_ms.map_or(0.0, |ms| (ms - *last_ms).max(0.0));
        *last_ms = parsed.stamp_ms.unwrap_or(*last_ms);
        parsed.turn.delay_ns = nanos_from_ms(parsed.delay_ms.unwrap_or(between));
        parsed.turn.prompt = if rules.content == MooncakeRowContent::Added {
            TurnPrompt::Grown(parsed.runs)
        } else {
            TurnPrompt::Whole(parsed.runs)
        };
        sessions[*at].1.turns.push(parsed.turn);
        Ok(())
    })?;
    Ok(LoadedSessions::new(sessions, rules.order))
}
