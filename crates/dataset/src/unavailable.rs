//! Datasets in a build without SQLite: there are none.

use std::path::Path;

use rand_chacha::rand_core::Rng;

use super::error::DatasetError;
use super::hash::Hash;
use super::reply::{RecordedReply, ReplyLength, RowStorage};
use super::row::Generation;

/// An open dataset, which a build without the feature `sqlite` cannot have.
#[derive(Debug)]
pub enum Dataset {}

impl Dataset {
    /// Refuses to open a file.
    ///
    /// # Errors
    /// [`DatasetError::NotBuilt`].
    pub fn open(path: &Path, _table: &str, _rows: RowStorage) -> Result<Self, DatasetError> {
        Err(DatasetError::NotBuilt { path: path.into() })
    }

    /// Which writer the file is from.
    pub fn generation(&self) -> Generation {
        match *self {}
    }

    /// Whether `vllm-sim record` wrote the file.
    pub fn is_recorded(&self) -> bool {
        match *self {}
    }

    /// Rows in the table.
    pub fn len(&self) -> usize {
        match *self {}
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    /// Whether a reply to this prompt was recorded.
    pub fn has(&self, _hash: &Hash) -> bool {
        match *self {}
    }

    /// A recorded reply.
    pub fn reply(
        &self,
        _hashes: &[Hash],
        _length: ReplyLength,
        _rng: &mut impl Rng,
    ) -> Option<RecordedReply> {
        match *self {}
    }
}
