//! Errors of opening a tokenizer.

use std::path::PathBuf;

/// Error of opening a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The folder has no `tokenizer.json`.
    #[error("no tokenizer.json in {}", folder.display())]
    NoFile {
        /// Folder without a `tokenizer.json`.
        folder: PathBuf,
    },
    /// A tokenizer file cannot be read or parsed.
    #[error("{}: {reason}", file.display())]
    Broken {
        /// Path of the invalid tokenizer file.
        file: PathBuf,
        /// Reason why the tokenizer file cannot be read or parsed.
        reason: String,
    },
    /// The name of a model on the Hugging Face Hub is invalid.
    #[error(
        "{repo:?} is neither a folder nor the name of a model: expected \"name\" or \
         \"organisation/name\""
    )]
    BadName {
        /// The invalid model name.
        repo: String,
    },
    /// The model is not on disk and must not be downloaded.
    #[error(
        "{repo} has no tokenizer.json in the cache at {}{}",
        cache.display(),
        if *offline { ", and downloads are off (HF_HUB_OFFLINE)" } else { "" }
    )]
    NotCached {
        /// Name of the model on the Hugging Face Hub.
        repo: String,
        /// Folder of the Hugging Face cache in which the model was not found.
        cache: PathBuf,
        /// Whether only `HF_HUB_OFFLINE` prevents the download.
        offline: bool,
    },
    /// The tokenizer files cannot be downloaded.
    #[error("cannot download the tokenizer of {repo}: {reason}")]
    Download {
        /// Name of the model on the Hugging Face Hub.
        repo: String,
        /// Reason why the tokenizer files cannot be downloaded.
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
pub struct TextEncodingTooExpensive;
