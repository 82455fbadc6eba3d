//! Recorded replies in a SQLite file, found by the hash of their prompt.
//!
//! The file is llm-d-inference-sim's: one table of prompt hashes and replies. Two generations of
//! it exist, which differ in how a prompt is hashed and in what a reply holds; both are read.
//! Hashes and lengths are kept in memory (24 bytes a row), replies stay in the file.
//!
//! Source: llm-d-inference-sim, `pkg/dataset/custom_dataset.go`, `sqlite_helper.go`.

mod download;
mod hash;
mod index;
mod open;
mod row;
pub mod schema;

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use rand_chacha::rand_core::Rng;
use rusqlite::Connection;

pub use download::fetch;
pub use hash::{Hash, hash_conversation, hash_text, hash_tokens};
pub use row::Recorded;

use index::Index;
use schema::recording_table;

/// The table that files of llm-d-inference-sim have.
pub const TABLE: &str = "llmd";

/// Which writer a file is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// v0.6: prompts are hashed as text, replies are strings without token ids.
    Texts,
    /// After v0.6: prompts are hashed as token ids, replies have ids and strings.
    Tokens,
}

/// Why a dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// There is no such file.
    #[error("dataset {} does not exist", path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// It could not be fetched.
    #[error("cannot fetch the dataset from {url}: {why}")]
    Download {
        /// Where from, without secrets.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// Another program writes to it.
    #[error("dataset {} is locked by another program", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Not a database, cut off or damaged.
    #[error("dataset {} is not a readable SQLite database: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        why: String,
    },
    /// No table of that name.
    #[error("dataset {} has no table '{table}'; it has: {}", path.display(), listed(found))]
    NoTable {
        /// The file.
        path: PathBuf,
        /// The name looked for.
        table: String,
        /// The tables there are.
        found: Vec<String>,
    },
    /// A column is missing or of another type.
    #[error(
        "table '{table}' of dataset {} must have the columns prompt_hash BLOB, \
         gen_tokens JSON, n_gen_tokens INTEGER: {why}",
        path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// What is wrong.
        why: String,
    },
    /// A row does not hold what its column promises.
    #[error("table '{table}' of dataset {}, row {row}: {why}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The table.
        table: String,
        /// Its `id`.
        row: i64,
        /// What is wrong.
        why: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// An open dataset. Look-ups take a lock for as long as SQLite needs to read one row.
#[derive(Debug)]
pub struct Dataset {
    rows: Mutex<Connection>,
    /// `SELECT gen_tokens` of one row, and what was recorded with it.
    query: String,
    index: Index,
    generation: Generation,
    recorded: bool,
}

/// A recorded reply, cut to the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Token ids; empty when the file has none ([`Generation::Texts`]): encode the texts.
    pub tokens: Vec<u32>,
    /// The text of each token.
    pub texts: Vec<String>,
    /// Whether the recorded reply was longer.
    pub cut: bool,
    /// Whether it was recorded for this prompt.
    pub matched: bool,
    /// When each token came, from the start of its request; empty when the file does not say.
    pub times: Vec<Duration>,
    /// How many of the first tokens are reasoning.
    pub reasoning: u32,
}

impl Dataset {
    /// Which writer the file is from, by its first row; an empty table counts as new.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether `vllm-sim record` wrote the file, so that it knows when each token came.
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Rows in the table.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    /// Whether a reply to this prompt was recorded.
    pub fn has(&self, hash: &Hash) -> bool {
        !self.index.same(&[*hash]).is_empty()
    }

    /// A recorded reply to a prompt that hashes to one of `hashes`, of at most `limit` tokens.
    ///
    /// A reply to this prompt that fits is taken at random among those, else a longer one is cut.
    /// Under `ignore_eos` one of exactly `limit` tokens is preferred, then a cut one; a shorter
    /// one is the last resort, and the caller fills it up. A prompt without a recorded reply gets
    /// a random row by the same rules, but from a v0.6 file nothing: that version falls back to
    /// its built-in sentences.
    ///
    /// `None` as well when the file cannot be read any more.
    pub fn reply(
        &self,
        hashes: &[Hash],
        limit: Option<u32>,
        ignore_eos: bool,
        rng: &mut impl Rng,
    ) -> Option<Found> {
        let most = limit.unwrap_or(u32::MAX);
        let exact = ignore_eos && limit.is_some();
        let same = self.index.same(hashes);
        let (row, matched) = match index::choose(&same, most, exact, rng) {
            Some(row) => (row, true),
            None if self.generation == Generation::Texts => return None,
            None => (self.index.any(most, exact, rng)?, false),
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
        Some(Found {
            reasoning: reasoning.min(texts.len() as u32),
            tokens,
            texts,
            cut,
            matched,
            times,
        })
    }

    /// What there is, in numbers.
    pub fn summary(&self) -> Summary {
        self.index.summary()
    }

    /// Reads every row: the first one that cannot be given as a reply, and why.
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

/// The token ids and texts of a `gen_tokens`; a v0.6 row has no ids.
///
/// # Errors
/// What is wrong with it, in words.
pub fn tokens_of(gen_tokens: &str) -> Result<(Vec<u32>, Vec<String>), String> {
    row::parse(gen_tokens).map(|(_, recorded)| (recorded.tokens, recorded.texts))
}

/// A dataset in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Rows.
    pub rows: usize,
    /// Different prompts.
    pub prompts: usize,
    /// Tokens of all replies.
    pub tokens: u64,
    /// Tokens of the shortest, the median and the longest reply; 0 when there is none.
    pub lengths: [u32; 3],
}

/// Uniform in `0..n`; `n` is not 0.
fn below(n: usize, rng: &mut impl Rng) -> usize {
    // Multiply-shift; the bias is below 2^-64 x n.
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}
