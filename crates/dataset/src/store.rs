//! Looks up replies in an open dataset.

use parking_lot::Mutex;
use rand_chacha::rand_core::Rng;
use rusqlite::Connection;

use super::hash::PromptHash;
use super::index::{self, ReplyIndex};
use super::reply::{RecordedReply, ReplyStats, RequestedReplyLength};
use super::row::{self, DatasetFormat, StoredReply};

/// Open dataset file. A lookup holds a lock while SQLite reads one row.
#[derive(Debug)]
pub struct Dataset {
    pub(super) rows: Mutex<Connection>,
    /// SQL query of one row of the dataset: `gen_tokens`, token times and number of reasoning
    /// tokens.
    pub(super) query: String,
    pub(super) index: ReplyIndex,
    pub(super) generation: DatasetFormat,
    pub(super) recorded: bool,
}

impl Dataset {
    /// Returns the version of the dataset format, from the first row; an empty table counts as
    /// current.
    pub fn format_version(&self) -> DatasetFormat {
        self.generation
    }

    /// Returns whether `vllm-sim record` wrote the dataset file, with token times.
    pub fn has_token_times(&self) -> bool {
        self.recorded
    }

    /// Returns the number of rows in the dataset.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns whether the dataset has no rows.
    pub fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    /// Returns whether the dataset has a reply to the prompt with this hash.
    pub fn has_reply_to(&self, hash: &PromptHash) -> bool {
        !self.index.replies_with_prompt_hashes(&[*hash]).is_empty()
    }

    /// Returns a reply to a prompt that hashes to one of `hashes`.
    ///
    /// - Chooses a random reply that fits, else truncates a longer one.
    /// - For an exact length, prefers an equal reply, then a longer one, then a shorter one, which
    ///   the caller extends.
    /// - Without a reply to this prompt, chooses a random row by the same rules; a v0.6 file
    ///   returns `None`, because that version falls back to its built-in sentences.
    ///
    /// Also returns `None` if the row cannot be read.
    pub fn find_reply(
        &self,
        hashes: &[PromptHash],
        length: RequestedReplyLength,
        rng: &mut impl Rng,
    ) -> Option<RecordedReply> {
        let most = length.max_reply_tokens();
        let same = self.index.replies_with_prompt_hashes(hashes);
        let (row, matched) = match index::choose_reply_to_prompt(&same, length, rng) {
            Some(row) => (row, true),
            None if self.generation == DatasetFormat::Texts => return None,
            None => (self.index.choose_reply_to_any_prompt(length, rng)?, false),
        };
        let StoredReply { mut tokens, mut texts, mut times, reasoning } = match self.load_row(row) {
            Ok(recorded) => recorded,
            Err(error) => {
                tracing::warn!(row, error, "a row of the dataset cannot be read");
                return None;
            }
        };
        let cut = texts.len() > most as usize;
        tokens.truncate(most as usize);
        texts.truncate(most as usize);
        times.truncate(most as usize);
        Some(RecordedReply {
            reasoning: reasoning.min(texts.len() as u32),
            tokens,
            texts,
            cut,
            matched,
            times,
        })
    }

    /// Returns the statistics of the dataset's replies.
    pub fn reply_stats(&self) -> ReplyStats {
        self.index.reply_stats()
    }

    /// Reads every row and returns the row id of the first invalid one, with the reason.
    pub fn first_invalid_dataset_row(&self) -> Option<(i64, String)> {
        self.index.row_ids_and_reply_lengths().find_map(|(row, n)| match self.load_row(row) {
            Err(why) => Some((row, why)),
            Ok(recorded) if recorded.texts.len() != n as usize => {
                let found = recorded.texts.len();
                Some((row, format!("n_gen_tokens is {n}, gen_tokens has {found}")))
            }
            Ok(_) => None,
        })
    }

    fn load_row(&self, row: i64) -> Result<StoredReply, String> {
        let rows = self.rows.lock();
        let found: rusqlite::Result<(String, Option<String>, Option<u32>)> =
            rows.prepare_cached(&self.query).and_then(|mut query| {
                query.query_row([row], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            });
        drop(rows);
        let (json, times, reasoning) = found.map_err(|error| error.to_string())?;
        let (_, mut recorded) = row::parse_gen_tokens(&json)?;
        if let Some(times) = times {
            recorded.times = row::parse_token_times(&times, recorded.texts.len())?;
        }
        recorded.reasoning = reasoning.unwrap_or(0);
        Ok(recorded)
    }
}
