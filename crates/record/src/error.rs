use std::io;
use std::path::PathBuf;

use vllm_sim_http_client::TlsSetupError;

/// Reports why recording failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The upstream URL is invalid.
    #[error("--upstream {url:?} is not like http://HOST:PORT or https://HOST: {why}")]
    Upstream {
        /// URL as given.
        url: String,
        /// Description of the problem.
        why: String,
    },
    /// The upstream does not list a model.
    #[error("cannot ask {url} for its model: {why} (--model names it)")]
    Model {
        /// URL of the upstream.
        url: String,
        /// Reason of the failure.
        why: String,
    },
    /// The listen address is in use or not available.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Listen address.
        address: String,
        /// Error of the operating system.
        why: io::Error,
    },
    /// The file cannot be created or written.
    #[error("cannot record into {}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Reason of the failure.
        why: String,
    },
    /// The certificates to verify the upstream are unreadable.
    #[error(transparent)]
    CertificateVerification(#[from] TlsSetupError),
}
