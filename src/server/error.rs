use std::io;

use crate::tls::TlsError;
use vllm_sim_config::ConfigError;
use vllm_sim_dataset::DatasetError;
use vllm_sim_tokenizer::TokenizerError;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Address and port, or path.
        address: String,
        /// What the system says.
        why: io::Error,
    },
    /// TLS files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The dataset.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A setting that only start-up can check.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file of `--scenario`.
    #[error("--scenario {path}: {why}")]
    Scenario {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file of `--replies`.
    #[error("--replies {path}: {why}")]
    Replies {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The weights leave no room for a KV cache.
    #[error("engine: {0}")]
    DoesNotFit(String),
    /// The engine cannot be built.
    #[error("engine: {0}")]
    Engine(String),
    /// The program was built without a part that the configuration needs.
    #[error("{flags}: {}", without(feature))]
    MissingFeature {
        /// What asks for it.
        flags: &'static str,
        /// What to build it with.
        feature: &'static str,
    },
    /// Where spans go.
    #[error("otlp-traces-endpoint {0:?}: {1}")]
    Spans(String, String),
    /// An engine cannot join, or not stay with, the API server of vLLM that it is for.
    #[cfg(feature = "zmq")]
    #[error("engine core: {0}")]
    Core(#[from] vllm_sim_engine_core::CoreError),
    /// A thread could not be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(io::Error),
}

/// What a program says that was built without a feature.
pub(crate) fn without(feature: &str) -> String {
    format!("this program was built without the feature `{feature}`")
}

/// What an engine cannot be built for.
pub(super) fn wrong(problem: impl ToString) -> StartError {
    StartError::Engine(problem.to_string())
}
