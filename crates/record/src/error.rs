use std::io;
use std::path::PathBuf;

use vllm_sim_http_client::TrustError;

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The address is none.
    #[error("--upstream {url:?} is not like http://HOST:PORT or https://HOST: {why}")]
    Upstream {
        /// What was given.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The upstream did not say which model it has.
    #[error("cannot ask {url} for its model: {why} (--model names it)")]
    Model {
        /// Where.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Where.
        address: String,
        /// What the system says.
        why: io::Error,
    },
    /// The file cannot be made or written.
    #[error("cannot record into {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The upstream's certificate cannot be checked.
    #[error(transparent)]
    Trust(#[from] TrustError),
}
