//! Errors of opening a tokenizer.

use std::path::PathBuf;

/// Error of opening a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A missing `tokenizer.json`.
    #[error("no tokenizer.json in {}", folder.display())]
    NoFile {
        /// Searched folder.
        folder: PathBuf,
    },
    /// A file that cannot be read or parsed.
    #[error("{}: {reason}", file.display())]
    Broken {
        /// Path of the file.
        file: PathBuf,
        /// Reason.
        reason: String,
    },
    /// An invalid name of a model on the hub.
    #[error("{repo:?} is not the name of a model: expected \"name\" or \"organisation/name\"")]
    BadName {
        /// Name as given.
        repo: String,
    },
    /// A model that is not on disk and must not be downloaded.
    #[error(
        "{repo} has no tokenizer.json in the cache at {}{}",
        cache.display(),
        if *offline { ", and downloads are off (HF_HUB_OFFLINE)" } else { "" }
    )]
    NotCached {
        /// Name of the model.
        repo: String,
        /// Folder of the cache.
        cache: PathBuf,
        /// Whether only `HF_HUB_OFFLINE` prevents the download.
        offline: bool,
    },
    /// A failed download.
    #[error("cannot download the tokenizer of {repo}: {reason}")]
    Download {
        /// Name of the model.
        repo: String,
        /// Reason.
        reason: String,
    },
}

/// Payload of the panic raised when the split pattern of a tokenizer takes too long on a text.
///
/// Many callers encode texts and failures are rare, so the HTTP layer that catches panics handles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tokenizer of this model gave up on this text: its tokenizer.json splits it by a pattern \
     that takes too long"
)]
pub struct EncodingGivenUp;
