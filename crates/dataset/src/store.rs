//! Looks up replies in an open dataset.

use parking_lot::Mutex;
use rand_chacha::rand_core::Rng;
use rusqlite::Connection;

use super::hash::Hash;
use super::index::{self, Index};
use super::reply::{RecordedReply, ReplyLength, Summary};
use super::row::{self, Generation, Recorded};

/// Open dataset file. A lookup holds a lock while SQLite reads one row.
#[derive(Debug)]
pub struct Dataset {
    pub(super) rows: Mutex<Connection>,
    /// SQL query of one row: `gen_tokens`, token times and number of reasoning tokens.
    pub(super) query: String,
    pub(super) index: Index,
    pub(super) generation: Generation,
    pub(super) recorded: bool,
}

impl Dataset {
    /// Returns the version of the dataset format, from the first row; an empty table counts as
    /// current.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns whether `vllm-sim record` wrote the dataset file, with token times.
    pub fn is_recorded(&self) -> bool {
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
    pub fn has(&self, hash: &Hash) -> bool {
        !self.index.same(&[*hash]).is_empty()
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
    pub fn reply(
        &self,
        hashes: &[Hash],
        length: ReplyLength,
        rng: &mut impl Rng,
    ) -> Option<RecordedReply> {
        let most = length.most();
        let same = self.index.same(hashes);
        let (row, matched) = match index::choose(&same, length, rng) {
            Some(row) => (row, true),
            None if self.generation == Generation::Texts => return None,
            None => (self.index.any(length, rng)?, false),
        };
        let Recorded {
            mut tokens,
            mut texts,
            mut times,
            reasoning,
        } = match self.load(row) {
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
    pub fn summary(&self) -> Summary {
        self.index.summary()
    }

    /// Reads every row and returns the row id of the first invalid one, with the reason.
    pub fn first_bad_row(&self) -> Option<(i64, String)> {
        self.index.rows().find_map(|(row, n)| match self.load(row) {
            Err(why) => Some((row, why)),
            Ok(recorded) if recorded.texts.len() != n as usize => {
                let found = recorded.texts.len();
                Some((row, format!("n_gen_tokens is {n}, gen_tokens has {found}")))
            }
            Ok(_) => None,
        })
    }

    fn load(&self, row: i64) -> Result<Recorded, String> {
        let rows = self.rows.lock();
        let found: rusqlite::Result<(String, Option<String>, Option<u32>)> =
            rows.prepare_cached(&self.query).and_then(|mut query| {
                query.query_row([row], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            });
        drop(rows);
        let (json, times, reasoning) = found.map_err(|error| error.to_string())?;
        let (_, mut recorded) = row::parse(&json)?;
        if let Some(times) = times {
            recorded.times = row::parse_times(&times, recorded.texts.len())?;
        }
        recorded.reasoning = reasoning.unwrap_or(0);
        Ok(recorded)
    }
}
