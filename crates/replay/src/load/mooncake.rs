//! Reads Mooncake's JSONL: one request per line, with block ids as the prompt.
//!
//! Field names and rules are those of Dynamo's replay 1.6.1 (`aisimulate-core`,
//! `src/replay/loader`): see docs/trace-formats.md.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::lines::Lines;
use super::loaded::{LoadedSessions, SessionOrder, millis, nanos};
use super::row::Row;
use crate::workload::{MAX_TOKENS, Prompt, Session, TokenRun, Turn, WorkloadError, WorkloadSource};
use vllm_sim_random::mix;

/// Tokens per hash id in Bailian's traces.
///
/// **Source:** README of alibaba-edu/qwen-bailian-usagetraces-anon.
pub(super) const BAILIAN_BLOCK: u32 = 16;

/// Content of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowContent {
    /// The whole prompt; times are in milliseconds.
    Whole,
    /// In later rows of a session, only the added content.
    Added,
    /// The whole prompt, in Bailian's form: times are in seconds.
    Bailian,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct MooncakeRules {
    /// Number of tokens per hash id.
    pub(super) block: u32,
    pub(super) content: RowContent,
    pub(super) order: SessionOrder,
    /// Whether rows without a session become sessions named after their line, as in Dynamo's
    /// report.
    pub(super) name_rows: bool,
}

struct MooncakeRow {
    session: Option<Arc<str>>,
    stamp_ms: Option<f64>,
    delay_ms: Option<f64>,
    runs: Vec<TokenRun>,
    turn: Turn,
}

/// Opens Mooncake trace files as one workload.
///
/// Reads them once to check every line. Requests sorted by time and without sessions are then
/// streamed, others are loaded into memory.
pub(super) fn open(
    paths: &[PathBuf],
    rules: MooncakeRules,
) -> Result<Box<dyn WorkloadSource>, WorkloadError> {
    let mut facts = TraceFacts::new();
    each(paths, rules, &mut |parsed, _| {
        facts.see(&parsed);
        Ok(())
    })?;
    if facts.sessions || (rules.order == SessionOrder::ByStart && !facts.sorted) {
        return Ok(Box::new(gather(paths, rules)?));
    }
    Ok(Box::new(MooncakeStream {
        paths: Vec::from(paths).into_iter(),
        lines: None,
        rules,
        first_ms: facts.first_ms,
        sorted: facts.sorted,
        requests: facts.rows,
    }))
}

struct TraceFacts {
    rows: u64,
    sessions: bool,
    sorted: bool,
    first_ms: f64,
    last_ms: f64,
}

impl TraceFacts {
    fn new() -> Self {
        Self {
            rows: 0,
            sessions: false,
            sorted: true,
            first_ms: f64::INFINITY,
            last_ms: f64::NEG_INFINITY,
        }
    }

    fn see(&mut self, parsed: &MooncakeRow) {
        let at = parsed.stamp_ms.unwrap_or(0.0);
        self.rows += 1;
        self.sessions |= parsed.session.is_some();
        self.sorted &= at >= self.last_ms;
        self.last_ms = at;
        self.first_ms = self.first_ms.min(at);
    }
}

fn each(
    paths: &[PathBuf],
    rules: MooncakeRules,
    then: &mut dyn FnMut(MooncakeRow, &Lines) -> Result<(), WorkloadError>,
) -> Result<(), WorkloadError> {
    for path in paths {
        let mut lines = Lines::open(path)?;
        while lines.step()? {
            then(parse(&lines, rules)?, &lines)?;
        }
    }
    Ok(())
}

fn parse(lines: &Lines, rules: MooncakeRules) -> Result<MooncakeRow, WorkloadError> {
    let value: Value = serde_json::from_str(lines.line())
        .map_err(|error| lines.bad(format!("is not JSON: {error}")))?;
    let place = || lines.place();
    let row = Row::new(&value, &place)?;
    let ids = row
        .ids("hash_ids")?
        .ok_or_else(|| row.missing("hash_ids"))?;
    let input = row.tokens(&["input_length", "input_tokens"], 1)?;
    let runs = runs(&row, &ids, input, rules.block, 0)?;
    let output = row.needed_tokens(&["output_length", "output_tokens"], 0)?;
    if let Some(tokens) = row.list("output_token_ids")?
        && tokens.len() != output as usize
    {
        return Err(row.bad(format!(
            "output_token_ids has {} entries, must have output_length = {output}",
            tokens.len()
        )));
    }
    let mut turn = Turn::new(Prompt::Whole(Vec::new()), output);
    turn.request_id = row.text("request_id")?.map(Arc::from);
    turn.priority = row.integer("priority")?.unwrap_or(0);
    turn.strict_priority = row.integer("strict_priority")?.unwrap_or(0);
    let session = match row.text("session_id")? {
        None if rules.name_rows => Some(format!("request_{}", lines.number()).into()),
        named => named.map(Arc::from),
    };
    Ok(MooncakeRow {
        session,
        stamp_ms: match rules.content {
            RowContent::Bailian => row.seconds(&["timestamp"])?,
            _ => row.millis(&["timestamp", "created_time"])?,
        },
        delay_ms: row.positive_millis(&["delay", "delay_ms"])?,
        runs,
        turn,
    })
}

/// Converts hash ids to token runs of the prompt: one repeated token per id, the last cut to
/// `input`.
pub(super) fn runs(
    row: &Row<'_>,
    ids: &[u64],
    input: Option<u32>,
    block: u32,
    scope: u64,
) -> Result<Vec<TokenRun>, WorkloadError> {
    let most = ids.len() as u64 * u64::from(block);
    let input = input.map_or(most, u64::from);
    if input == 0 || input > most.min(MAX_TOKENS) {
        return Err(row.bad(format!(
            "input_length is {input}, must be from 1 to {} ({} hash_ids of {block} tokens)",
            most.min(MAX_TOKENS),
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
        runs.push(TokenRun {
            id: mix(mix(2, scope), *id),
            len,
            same: true,
        });
    }
    Ok(runs)
}

struct MooncakeStream {
    paths: std::vec::IntoIter<PathBuf>,
    lines: Option<Lines>,
    rules: MooncakeRules,
    first_ms: f64,
    sorted: bool,
    requests: u64,
}

impl WorkloadSource for MooncakeStream {
    fn next(&mut self) -> Result<Option<Session>, WorkloadError> {
        loop {
            let lines = match &mut self.lines {
                Some(lines) => lines,
                None => match self.paths.next() {
                    Some(path) => self.lines.insert(Lines::open(&path)?),
                    None => return Ok(None),
                },
            };
            if !lines.step()? {
                self.lines = None;
                continue;
            }
            let parsed = parse(lines, self.rules)?;
            let at_ms = parsed.stamp_ms.unwrap_or(0.0) - self.first_ms;
            return Ok(Some(Session {
                id: None,
                start: millis(at_ms),
                turns: vec![Turn {
                    prompt: Prompt::Whole(parsed.runs),
                    ..parsed.turn
                }],
                after: Vec::new(),
                play: None,
            }));
        }
    }

    fn is_single_turn(&self) -> bool {
        self.sorted
    }

    fn requests(&self) -> Option<u64> {
        Some(self.requests)
    }
}

fn gather(paths: &[PathBuf], rules: MooncakeRules) -> Result<LoadedSessions, WorkloadError> {
    let mut sessions: Vec<(f64, Session)> = Vec::new();
    let mut known: HashMap<Arc<str>, (usize, f64)> = HashMap::new();
    each(paths, rules, &mut |mut parsed, lines| {
        let found = parsed.session.as_ref().and_then(|id| known.get_mut(id));
        let Some((at, last_ms)) = found else {
            if parsed.delay_ms.is_some_and(|ms| ms > 0.0) {
                let problem = "delay is not 0, which it must be in the first row of a session";
                return Err(lines.bad(problem));
            }
            let start_ms = parsed.stamp_ms.unwrap_or(0.0);
            if let Some(id) = &parsed.session {
                known.insert(Arc::clone(id), (sessions.len(), start_ms));
            }
            parsed.turn.prompt = Prompt::Whole(parsed.runs);
            let session = Session {
                id: parsed.session,
                start: millis(0.0),
                turns: vec![parsed.turn],
                after: Vec::new(),
                play: None,
            };
            sessions.push((start_ms, session));
            return Ok(());
        };
        let between = parsed.stamp_ms.map_or(0.0, |ms| (ms - *last_ms).max(0.0));
        *last_ms = parsed.stamp_ms.unwrap_or(*last_ms);
        parsed.turn.delay_ns = nanos(parsed.delay_ms.unwrap_or(between));
        parsed.turn.prompt = if rules.content == RowContent::Added {
            Prompt::Grown(parsed.runs)
        } else {
            Prompt::Whole(parsed.runs)
        };
        sessions[*at].1.turns.push(parsed.turn);
        Ok(())
    })?;
    Ok(LoadedSessions::new(sessions, rules.order))
}

pub(super) fn is_bailian(row: &serde_json::Map<String, Value>) -> bool {
    ["chat_id", "parent_chat_id", "hash_ids"]
        .iter()
        .all(|key| row.contains_key(*key))
}

pub(super) fn fits(row: &serde_json::Map<String, Value>) -> bool {
    row.contains_key("hash_ids")
}
