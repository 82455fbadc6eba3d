use std::io;
use std::path::PathBuf;

use crate::tls::ServerTlsError;
use vllm_sim_config::ConfigError;
use vllm_sim_dataset::DatasetError;
use vllm_sim_tokenizer::TokenizerError;

/// An error that prevents the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server's socket address or path cannot be bound.
    #[error("cannot listen on {address}: {why}{}", port_in_use_hint(address, why))]
    Listen {
        /// Socket address or path of the server.
        address: String,
        /// Error of the operating system when the server bound its address.
        why: io::Error,
    },
    /// TLS of the server cannot be set up.
    #[error(transparent)]
    Tls(#[from] ServerTlsError),
    /// The tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The dataset of recorded replies cannot be opened.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A setting that only start-up can check is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The scenario file (`--scenario`) or the file of scripted replies (`--replies`) is invalid.
    #[error("{flag} {path}: {why}")]
    File {
        /// Flag of the invalid file.
        flag: &'static str,
        /// Path of the invalid file.
        path: String,
        /// Reason why the file is invalid.
        why: String,
    },
    /// The model weights leave no GPU memory for a KV cache.
    #[error("engine: {0}")]
    DoesNotFit(String),
    /// The engine cannot be built from the configuration.
    #[error("engine: {0}")]
    Engine(String),
    /// The program was built without a Cargo feature that the configuration needs.
    #[error("{flags}: {}", feature_not_built_message(feature))]
    MissingFeature {
        /// The flags that need the missing Cargo feature.
        flags: &'static str,
        /// Name of the missing Cargo feature.
        feature: &'static str,
    },
    /// The endpoint for OpenTelemetry traces is invalid.
    #[error("otlp-traces-endpoint {0:?}: {1}")]
    Spans(String, String),
    /// An engine cannot join vLLM's API server, or lost the connection to it.
    #[cfg(feature = "zmq")]
    #[error("engine core: {0}")]
    Core(#[from] vllm_sim_engine_core::EngineCoreError),
    /// A thread of the server could not be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(io::Error),
}

/// Returns the error message for a Cargo feature that the program was built without.
pub(crate) fn feature_not_built_message(feature: &str) -> String {
    format!("this program was built without the feature `{feature}`")
}

/// Converts an error to [`StartError::Engine`].
pub(super) fn engine_start_error(problem: impl ToString) -> StartError {
    StartError::Engine(problem.to_string())
}

/// Returns the error for the file that `flag` names.
pub(super) fn invalid_file_error(
    flag: &'static str,
    path: Option<&PathBuf>,
    why: impl ToString,
) -> StartError {
    let path = path.map_or_else(String::new, |path| path.display().to_string());
    StartError::File { flag, path, why: why.to_string() }
}

/// Returns the remedy for an address that cannot be bound because its port is in use.
///
/// An address ends with the flag of its port in parentheses, except that of `--port`.
fn port_in_use_hint(address: &str, why: &io::Error) -> String {
    let flag = address.split_once(" (--").map(|(_, flag)| flag.trim_end_matches(')'));
    match (why.kind(), flag) {
        (io::ErrorKind::AddrInUse, Some(flag)) => format!("; name another --{flag}"),
        (io::ErrorKind::AddrInUse, None) if !address.contains('/') => {
            "; name another --port, or --port 0 for a free one".to_owned()
        }
        _ => String::new(),
    }
}
