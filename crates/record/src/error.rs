use std::io;
use std::path::PathBuf;

use vllm_sim_http_client::TlsSetupError;

/// Reports why `vllm-sim record` failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The URL of the upstream endpoint is invalid.
    #[error("--upstream {url:?} is not like http://HOST:PORT or https://HOST: {why}")]
    Upstream {
        /// URL of the upstream endpoint, as given.
        url: String,
        /// Description of the problem with the upstream URL.
        why: String,
    },
    /// The upstream endpoint does not list a model.
    #[error("cannot read the model name from {url}: {why} (set --model)")]
    Model {
        /// URL of the upstream endpoint whose list of models is empty or unreadable.
        url: String,
        /// Reason why the upstream's model list has no model.
        why: String,
    },
    /// The proxy's listen address is in use or not available.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Listen address of the proxy that is not available.
        address: String,
        /// Error of the operating system while binding the listen address.
        why: io::Error,
    },
    /// The dataset file cannot be created or written.
    #[error("cannot record into {}: {why}", path.display())]
    File {
        /// Path of the dataset file that cannot be created or written.
        path: PathBuf,
        /// Reason why the dataset file cannot be created or written.
        why: String,
    },
    /// The CA certificates to verify the upstream are unreadable.
    #[error(transparent)]
    CertificateVerification(#[from] TlsSetupError),
}
