//! Replaces datasets in a build without SQLite.

use std::path::Path;

use rand_chacha::rand_core::Rng;

use super::error::DatasetError;
use super::hash::Hash;
use super::reply::{RecordedReply, ReplyLength, RowStorage};
use super::row::Generation;

/// Placeholder type without values, for a build without the feature `sqlite`.
#[derive(Debug)]
pub enum Dataset {}

impl Dataset {
    /// Always fails.
    ///
    /// # Errors
    /// Returns [`DatasetError::NotBuilt`].
    pub fn open(path: &Path, _table: &str, _rows: RowStorage) -> Result<Self, DatasetError> {
        Err(DatasetError::NotBuilt { path: path.into() })
    }

    /// Returns the format version.
    pub fn generation(&self) -> Generation {
        match *self {}
    }

    /// Whether `vllm-sim record` wrote the file.
    pub fn is_recorded(&self) -> bool {
        match *self {}
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        match *self {}
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    /// Whether the dataset has a reply to this prompt.
    pub fn has(&self, _hash: &Hash) -> bool {
        match *self {}
    }

    /// Returns a recorded reply.
    pub fn reply(
        &self,
        _hashes: &[Hash],
        _length: ReplyLength,
        _rng: &mut impl Rng,
    ) -> Option<RecordedReply> {
        match *self {}
    }
}
