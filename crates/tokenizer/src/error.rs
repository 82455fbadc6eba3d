//! What can go wrong when a tokenizer is opened.

use std::path::PathBuf;

/// Why a tokenizer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// There is no `tokenizer.json`.
    #[error("no tokenizer.json in {}", folder.display())]
    NoFile {
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// A file is there and cannot be read.
    #[error("{}: {reason}", file.display())]
    Broken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Not a name that the hub could know.
    #[error("{repo:?} is not the name of a model: expected \"name\" or \"organisation/name\"")]
    BadName {
        /// The name.
        repo: String,
    },
    /// The model is not on disk and may not be downloaded.
    #[error(
        "{repo} has no tokenizer.json in the cache at {}{}",
        cache.display(),
        if *offline { ", and downloads are off (HF_HUB_OFFLINE)" } else { "" }
    )]
    NotCached {
        /// The model.
        repo: String,
        /// The cache's folder.
        cache: PathBuf,
        /// Whether only the environment forbids the download.
        offline: bool,
    },
    /// The hub did not give the files.
    #[error("cannot download the tokenizer of {repo}: {reason}")]
    Download {
        /// The model.
        repo: String,
        /// What went wrong.
        reason: String,
    },
}

/// Payload of a panic: the model's tokenizer gave up on a text, as its pattern takes too long on it. Texts
/// are encoded in many places and nearly always can be, so an edge answers it where it catches panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tokenizer of this model gave up on this text: its tokenizer.json splits it by a pattern that takes too long"
)]
pub struct EncodingGivenUp;
