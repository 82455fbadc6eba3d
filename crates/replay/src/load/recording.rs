//! Reads datasets of `vllm-sim record`: prompt tokens, arrival times and the times of the output
//! tokens.
//!
//! Requests with one session id are turns of a session. Without an id, a request continues the
//! session whose last prompt its own prompt extends. Files of earlier builds have no arrival times;
//! each of their requests is a session.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, Row};
use serde_json::Value;

use super::loaded::{LoadedSessions, nanos_from_ms};
use super::options::WorkloadReadOptions;
use crate::workload::{
    ClientSession, MAX_PROMPT_OR_OUTPUT_TOKENS, PromptTokenRun, SessionTurn, TurnPrompt,
    WorkloadError,
};
use vllm_sim_dataset::schema::{quote_sql_name, recording_table_name};
use vllm_sim_random::mix_u64_pair;

/// Number of tokens per run of consecutive prompt tokens; prompts with a common prefix share runs
/// up to the first difference.
const TOKENS_PER_RUN: usize = 16;

struct RecordedRequest {
    /// Start time of the request since 1970, in milliseconds.
    start_ms: Option<f64>,
    session: Option<String>,
    prompt: Vec<u64>,
    output: u32,
    /// Ids of the output tokens; empty if they are unknown.
    output_ids: Vec<u64>,
    /// Times of the output tokens since the start of the request, in microseconds.
    times: Vec<u64>,
}

impl RecordedRequest {
    fn end_ms(&self) -> f64 {
        let took = self.times.last().copied().unwrap_or(0) as f64 / 1e3;
        self.start_ms.unwrap_or(0.0) + took
    }
}

pub(super) fn open_recorded_datasets(
    paths: &[PathBuf],
    options: &WorkloadReadOptions,
) -> Result<LoadedSessions, WorkloadError> {
    let (mut requests, mut left_out) = (Vec::new(), 0);
    for path in paths {
        let all = read_requests(path)?;
        let read = all.len();
        requests.extend(all.into_iter().filter(|r| !r.prompt.is_empty() && r.output > 0));
        left_out += read;
    }
    left_out -= requests.len();
    let is_undated = requests.iter().any(|request| request.start_ms.is_none());
    let mut sessions = if is_undated {
        let sessions = requests.iter().map(|request| new_session(request, None));
        LoadedSessions::from_ordered_sessions(sessions.collect())
    } else {
        let start = |request: &RecordedRequest| request.start_ms.unwrap_or(0.0);
        requests.sort_by(|a, b| start(a).total_cmp(&start(b)));
        let sessions = SessionBuilder::default().build(&requests);
        LoadedSessions::new(sessions, options.session_order)
    };
    sessions.facts.has_no_start_times = is_undated;
    sessions.facts.left_out_rows = left_out as u64;
    Ok(sessions)
}

fn read_requests(path: &Path) -> Result<Vec<RecordedRequest>, WorkloadError> {
    let bad = |problem: String| WorkloadError::Bad { place: path.display().to_string(), problem };
    let sql = |error: rusqlite::Error| bad(format!("is not a readable dataset: {error}"));
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let file = file.map_err(sql)?;
    let table = find_recorded_table(&file, path)?;
    let recording = recording_table_name(&table);
    let columns = "SELECT count(*) FROM pragma_table_info(?1) \
                   WHERE name IN ('started_us', 'session_id')";
    let dated: i64 = file.query_row(columns, [&recording], |row| row.get(0)).map_err(sql)?;
    let (dates, order) = match dated {
        2 => ("r.started_us, r.session_id", "r.started_us, r.id"),
        _ => ("NULL, NULL", "r.id"),
    };
    let query = format!(
        "SELECT CAST(r.prompt_tokens AS TEXT), CAST(r.token_us AS TEXT), {dates}, \
         t.n_gen_tokens, CAST(t.gen_tokens AS TEXT) FROM {} r LEFT JOIN {} t ON t.rowid = r.id \
         ORDER BY {order}",
        quote_sql_name(&recording),
        quote_sql_name(&table)
    );
    let mut query = file.prepare(&query).map_err(sql)?;
    let mut rows = query.query([]).map_err(sql)?;
    let mut requests = Vec::new();
    while let Some(row) = rows.next().map_err(sql)? {
        let number = requests.len() + 1;
        let read = read_request(row).map_err(|problem| bad(format!("row {number}: {problem}")))?;
        requests.push(read);
    }
    Ok(requests)
}

fn read_request(row: &Row<'_>) -> Result<RecordedRequest, String> {
    let unreadable = |error: rusqlite::Error| format!("is not readable: {error}");
    let list = |name: &str, column: usize| -> Result<Vec<u64>, String> {
        let text: String = row.get(column).map_err(unreadable)?;
        serde_json::from_str(&text)
            .map_err(|error| format!("{name} is not a list of numbers: {error}"))
    };
    let (prompt, times) = (list("prompt_tokens", 0)?, list("token_us", 1)?);
    let start: Option<i64> = row.get(2).map_err(unreadable)?;
    // A response with tool calls has no row in the table of replies.
    let output: Option<u32> = row.get(4).map_err(unreadable)?;
    let output = output.map_or(times.len() as u64, u64::from);
    let reply: Option<String> = row.get(5).map_err(unreadable)?;
    let reply: Value = reply.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let ids = reply["Tokens"].as_array().map_or(&[][..], Vec::as_slice);
    if prompt.len() as u64 > MAX_PROMPT_OR_OUTPUT_TOKENS || output > MAX_PROMPT_OR_OUTPUT_TOKENS {
        return Err(format!("has more than {MAX_PROMPT_OR_OUTPUT_TOKENS} tokens"));
    }
    Ok(RecordedRequest {
        start_ms: start.map(|micros| micros as f64 / 1e3),
        session: row.get(3).map_err(unreadable)?,
        output: output as u32,
        output_ids: ids.iter().filter_map(Value::as_u64).collect(),
        prompt,
        times,
    })
}

/// Returns the name of the dataset's SQLite table that has a companion table named `…_recording`.
fn find_recorded_table(file: &Connection, path: &Path) -> Result<String, WorkloadError> {
    let names = "SELECT substr(name, 1, length(name) - 10) FROM sqlite_master \
                 WHERE type = 'table' AND name LIKE '%\\_recording' ESCAPE '\\' LIMIT 1";
    file.query_row(names, [], |row| row.get(0)).map_err(|error| WorkloadError::Bad {
        place: path.display().to_string(),
        problem: match error {
            rusqlite::Error::QueryReturnedNoRows => "has replies but no recordings: only \
                     hashes of their prompts are known"
                .to_owned(),
            error => format!("is not a readable dataset: {error}"),
        },
    })
}

/// Builder of client sessions from recorded requests.
#[derive(Default)]
struct SessionBuilder {
    /// Sessions built so far, each with its start time and the index of its last recorded request.
    sessions: Vec<(f64, ClientSession, usize)>,
    by_id: HashMap<String, usize>,
    /// Index of the session by the hash of its last prompt, for requests without a session id.
    by_prompt: HashMap<u64, usize>,
}

impl SessionBuilder {
    /// Builds the sessions of requests that are sorted by their start.
    fn build(mut self, requests: &[RecordedRequest]) -> Vec<(f64, ClientSession)> {
        for (index, request) in requests.iter().enumerate() {
            let continued = match &request.session {
                Some(id) => self.by_id.get(id).copied(),
                None => self.session_before(requests, request),
            };
            let start_ms = request.start_ms.unwrap_or(0.0);
            let at = continued.unwrap_or(self.sessions.len());
            match continued {
                Some(at) => {
                    let (_, session, last) = &mut self.sessions[at];
                    let last = &requests[std::mem::replace(last, index)];
                    let mut turn = new_turn(request, Some(last));
                    turn.delay_ns = nanos_from_ms((start_ms - last.end_ms()).max(0.0));
                    session.turns.push(turn);
                    session.id.get_or_insert_with(|| format!("session_{at}").into());
                }
                None => {
                    let session = new_session(request, request.session.clone());
                    self.sessions.push((start_ms, session, index));
                }
            }
            match &request.session {
                Some(id) => drop(self.by_id.insert(id.clone(), at)),
                None => {
                    let hash = request.prompt.iter().fold(0, |hash, id| mix_u64_pair(hash, *id));
                    self.by_prompt.insert(hash, at);
                }
            }
        }
        self.sessions.into_iter().map(|(start, session, _)| (start, session)).collect()
    }

    /// Returns the session with the longest last prompt that a request's prompt extends.
    fn session_before(
        &self,
        requests: &[RecordedRequest],
        request: &RecordedRequest,
    ) -> Option<usize> {
        let shorter = request.prompt.split_last()?.1;
        let hashes = shorter.iter().scan(0, |hash, id| {
            *hash = mix_u64_pair(*hash, *id);
            Some(*hash)
        });
        let sessions = hashes.filter_map(|hash| self.by_prompt.get(&hash).copied());
        let ended = sessions.filter(|at| {
            let last = &requests[self.sessions[*at].2];
            request.prompt.starts_with(&last.prompt) && Some(last.end_ms()) <= request.start_ms
        });
        ended.last()
    }
}

fn new_session(request: &RecordedRequest, id: Option<String>) -> ClientSession {
    ClientSession::new(id.map(Into::into), vec![new_turn(request, None)])
}

/// Builds a turn. If the prompt begins with prompt and output of the request `last`, the turn has
/// only the tokens that follow them.
fn new_turn(request: &RecordedRequest, last: Option<&RecordedRequest>) -> SessionTurn {
    let runs = |tokens: &[u64]| {
        let runs = tokens.chunks(TOKENS_PER_RUN).map(|piece| PromptTokenRun {
            id: piece.iter().fold(10, |id, token| mix_u64_pair(id, *token)),
            len: piece.len() as u32,
            same: false,
        });
        runs.collect()
    };
    let added = last.and_then(|last| {
        let is_known = last.output_ids.len() == last.output as usize;
        let rest = request.prompt.strip_prefix(last.prompt.as_slice()).filter(|_| is_known)?;
        rest.strip_prefix(last.output_ids.as_slice())
    });
    let prompt = match added {
        Some(added) => TurnPrompt::Grown(runs(added)),
        None => TurnPrompt::Whole(runs(&request.prompt)),
    };
    let mut turn = SessionTurn::new(prompt, request.output);
    if request.times.len() == request.output as usize {
        turn.recorded = Some(request.times.iter().map(|us| us.saturating_mul(1000)).collect());
    }
    turn
}
