//! Reads datasets of `vllm-sim record`: prompt tokens and the times of the output tokens.
//!
//! Recordings have no arrival times.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::loaded::{LoadedSessions, sim_time_from_ms};
use crate::workload::{
    ClientSession, MAX_TOKENS_PER_LENGTH, PromptTokenRun, SessionTurn, TurnPrompt, WorkloadError,
};
use vllm_sim_random::mix_u64_pair;

/// Number of tokens per token run; prompts with a common prefix share runs up to the first
/// difference.
const TOKENS_PER_RUN: usize = 16;

pub(super) fn open_recordings(paths: &[PathBuf]) -> Result<LoadedSessions, WorkloadError> {
    let mut sessions = VecDeque::new();
    for path in paths {
        let bad =
            |problem: String| WorkloadError::Bad { place: path.display().to_string(), problem };
        let sql = |error: rusqlite::Error| bad(format!("is not a readable dataset: {error}"));
        let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let file = file.map_err(sql)?;
        let table = find_recorded_table(&file, path)?;
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let mut rows = file
            .prepare(&format!(
                "SELECT t.n_gen_tokens, CAST(r.prompt_tokens AS TEXT), CAST(r.token_us AS TEXT) \
                 FROM {} t JOIN {} r ON r.id = t.rowid ORDER BY t.rowid",
                quoted(&table),
                quoted(&format!("{table}_recording"))
            ))
            .map_err(sql)?;
        let mut rows = rows.query([]).map_err(sql)?;
        let mut number = 0;
        while let Some(row) = rows.next().map_err(sql)? {
            number += 1;
            let cell = |i| -> Result<String, WorkloadError> { row.get(i).map_err(sql) };
            let list = |name: &str, text: String| -> Result<Vec<u64>, WorkloadError> {
                serde_json::from_str(&text).map_err(|error| {
                    bad(format!("row {number}: {name} is not a list of numbers: {error}"))
                })
            };
            let output: u32 = row.get(0).map_err(sql)?;
            let prompt = list("prompt_tokens", cell(1)?)?;
            let times = list("token_us", cell(2)?)?;
            if prompt.len() as u64 > MAX_TOKENS_PER_LENGTH
                || u64::from(output) > MAX_TOKENS_PER_LENGTH
            {
                return Err(bad(format!(
                    "row {number}: has more than {MAX_TOKENS_PER_LENGTH} tokens"
                )));
            }
            if !prompt.is_empty() && output > 0 {
                sessions.push_back(build_session(&prompt, output, &times));
            }
        }
    }
    Ok(LoadedSessions::in_order(sessions).untimed())
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

fn build_session(prompt: &[u64], output: u32, times: &[u64]) -> ClientSession {
    let runs = prompt.chunks(TOKENS_PER_RUN).map(|piece| PromptTokenRun {
        id: piece.iter().fold(10, |id, token| mix_u64_pair(id, *token)),
        len: piece.len() as u32,
        same: false,
    });
    let mut turn = SessionTurn::new(TurnPrompt::Whole(runs.collect()), output);
    if times.len() == output as usize {
        turn.recorded = Some(times.iter().map(|us| us.saturating_mul(1000)).collect());
    }
    ClientSession {
        id: None,
        start: sim_time_from_ms(0.0),
        turns: vec![turn],
        after: Vec::new(),
        play: None,
    }
}
