//! Replaces dataset lookups in a build without SQLite; every call fails.

use std::path::Path;

use rand_chacha::rand_core::Rng;

use super::error::DatasetError;
use super::hash::PromptHash;
use super::reply::{DatasetRowStorage, RecordedReply, RequestedReplyLength};
use super::row::DatasetFormat;

/// Placeholder for a dataset, without values, in a build without the feature `sqlite`.
#[derive(Debug)]
pub enum Dataset {}

impl Dataset {
    /// Returns an error, since this build cannot open datasets.
    ///
    /// # Errors
    /// Returns [`DatasetError::NotBuilt`].
    pub fn open(path: &Path, _table: &str, _rows: DatasetRowStorage) -> Result<Self, DatasetError> {
        Err(DatasetError::NotBuilt { path: path.into() })
    }

    /// Returns the version of the dataset format.
    pub fn format_version(&self) -> DatasetFormat {
        match *self {}
    }

    /// Returns whether `vllm-sim record` wrote the dataset file.
    pub fn has_token_times(&self) -> bool {
        match *self {}
    }

    /// Returns the number of rows in the dataset.
    pub fn len(&self) -> usize {
        match *self {}
    }

    /// Returns whether the dataset has no rows.
    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    /// Returns whether the dataset has a reply to the prompt with this hash.
    pub fn has_reply_to(&self, _hash: &PromptHash) -> bool {
        match *self {}
    }

    /// Returns a recorded reply to a prompt.
    pub fn find_reply(
        &self,
        _hashes: &[PromptHash],
        _length: RequestedReplyLength,
        _rng: &mut impl Rng,
    ) -> Option<RecordedReply> {
        match *self {}
    }
}
