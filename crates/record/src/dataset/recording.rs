//! Reads recordings of `vllm-sim record`, and converts them to the tokens of another tokenizer.

use std::fs::File;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::{RecordedApi, prompt_token_ids};
use vllm_sim_dataset::{SQLITE_MAGIC, schema, token_ids_and_texts};
use vllm_sim_tokenizer::Tokenizer;

pub(super) fn is_sqlite_file(path: &Path) -> bool {
    let mut start = [0; 16];
    File::open(path)
        .is_ok_and(|mut file| file.read_exact(&mut start).is_ok() && &start == SQLITE_MAGIC)
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RecordedRequest {
    pub(super) api: String,
    pub(super) model: Option<String>,
    pub(super) request: Value,
    pub(super) prompt: Vec<u32>,
    pub(super) ids: Vec<u32>,
    pub(super) texts: Vec<String>,
    /// Time of each reply token since the start of the request, in µs.
    pub(super) micros: Vec<u64>,
    pub(super) reasoning: u32,
    pub(super) finish: Option<String>,
    pub(super) streamed: bool,
}

impl RecordedRequest {
    /// Converts the recording to the tokens of `tokenizer`.
    ///
    /// A token has the time of the recorded token in which it ends. Returns `None` if the prompt
    /// cannot be rendered.
    pub(super) fn retokenize_recording(mut self, tokenizer: &Tokenizer) -> Option<Self> {
        let api = RecordedApi::from_name(&self.api)?;
        let prompt = prompt_token_ids(api, &self.request, tokenizer).ok()?.into_iter().next()?;
        if prompt == self.prompt {
            return Some(self);
        }
        self.prompt = prompt;
        let fragments = tokenizer.tokenize_with_text(&self.texts.concat());
        let mut ends = Vec::with_capacity(self.texts.len());
        let mut end = 0;
        for text in &self.texts {
            end += text.len();
            ends.push(end);
        }
        let thought = (self.reasoning as usize).checked_sub(1);
        let thought = thought.and_then(|last| ends.get(last)).copied().unwrap_or(0);
        let at = |end: u32| ends.partition_point(|known| *known < end as usize);
        let last = self.micros.last().copied().unwrap_or_default();
        let micros = fragments
            .ends
            .iter()
            .map(|end| self.micros.get(at(*end)).copied().unwrap_or(last))
            .collect();
        self.reasoning = fragments.ends.partition_point(|end| *end as usize <= thought) as u32;
        self.texts = (0..fragments.ids.len())
            .map(|index| fragments.fragment_text(index).to_owned())
            .collect();
        self.micros = micros;
        self.ids = fragments.ids;
        Some(self)
    }

    /// Returns role and text of each message of the recorded request; a completion prompt is a user
    /// message.
    pub(super) fn prompt_messages(&self) -> Vec<(String, String)> {
        if let Some(prompt) = self.request["prompt"].as_str() {
            return vec![("user".to_owned(), prompt.to_owned())];
        }
        let messages = self.request["messages"].as_array().into_iter().flatten();
        let text = |content: &Value| match content {
            Value::Array(parts) => {
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            other => other.as_str().unwrap_or_default().to_owned(),
        };
        messages
            .map(|m| {
                let role = m["role"].as_str().unwrap_or_default().to_owned();
                (role, text(&m["content"]))
            })
            .collect()
    }
}

/// Returns the number of recordings in the dataset file `path`.
///
/// # Errors
/// Returns an error if the file is unreadable or has no recordings.
pub(super) fn count_recordings(path: &Path, table: &str) -> Result<u64> {
    let file = open_read_only(path)?;
    let sql = format!("SELECT count(*) FROM ({})", schema::select_recordings_sql(table));
    let count: i64 = file
        .query_row(&sql, [], |row| row.get(0))
        .context("it is a database, but not one of `vllm-sim record`")?;
    Ok(count.unsigned_abs())
}

fn open_read_only(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    Connection::open_with_flags(path, flags)
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Calls `each` for every recording in the dataset file `path`, until `each` returns `Break`.
///
/// # Errors
/// Returns an error if the file is unreadable or has no recordings, and the errors of `each`.
pub(super) fn for_each_recording(
    path: &Path,
    table: &str,
    mut each: impl FnMut(RecordedRequest) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let file = open_read_only(path)?;
    let mut query = file.prepare(&schema::select_recordings_sql(table))?;
    let mut rows = query.query([])?;
    let mut number = 0;
    while let Some(row) = rows.next()? {
        number += 1;
        let text = |column| row.get::<_, String>(column);
        let reply = text(0)?;
        let (ids, texts) = token_ids_and_texts(&reply)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("recording {number}"))?;
        let recording = RecordedRequest {
            api: text(1)?,
            model: row.get(2)?,
            request: serde_json::from_str(&text(3)?)?,
            prompt: serde_json::from_str(&text(4)?)?,
            reasoning: row.get(5)?,
            finish: row.get(6)?,
            streamed: row.get(7)?,
            micros: serde_json::from_str(&text(8)?)?,
            ids,
            texts,
        };
        if each(recording)?.is_break() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn retokenizing_keeps_token_times() {
        let recording = RecordedRequest {
            api: "completions".to_owned(),
            request: json!({"prompt": "p"}),
            ids: vec![1, 2, 3],
            texts: ["One t", "wo thr", "ee"].map(str::to_owned).to_vec(),
            micros: vec![5, 7, 9],
            reasoning: 2,
            ..RecordedRequest::default()
        };
        let cut = recording.retokenize_recording(&Tokenizer::new_simulated()).expect("a prompt");
        assert_eq!(cut.texts, ["One ", "two ", "three"]);
        assert_eq!(cut.micros, [5, 7, 9]);
        assert_eq!((cut.reasoning, cut.ids.len()), (2, 3));
    }
}
