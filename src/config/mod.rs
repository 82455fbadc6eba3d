//! Flags → [`Config`]: what was typed becomes something with which nothing can be wrong.
//!
//! A YAML key is a flag name. File, environment and command line become lists of settings laid
//! over each other (a later layer that names a flag replaces it whole) and are parsed once.
//! [`load`] sees its arguments and reads the files they name, nothing else.

mod api;
mod content;
mod engine;
mod error;
mod faults;
mod kv_events;
mod lora;
mod metrics;
mod model;
mod server;

pub use api::{Api, Fingerprint, Limits, Task};
pub use content::{Content, Dataset, Mode, Tools};
pub use engine::{
    Balance, Engine, HashAlgo, LatencyModel, Parallel, Policy, Preemption, SchedulerKind, Sglang,
    Speculative,
};
pub use error::ConfigError;
pub use faults::{FailureType, Faults};
pub use kv_events::{EventForm, HashForm, KvEvents, KvTransfer};
pub use lora::{Lora, LoraModule};
pub use metrics::Metrics;
pub use model::{Compat, Door, Model, TokenizerSource};
pub use server::{Certificate, ClientCerts, Cors, Log, LogFormat, LogLevel, Pod, Server, Tls};

/// All that can be chosen at start, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Sockets, TLS, headers, logs.
    pub server: Server,
    /// Which model is imitated, and how the program was called.
    pub model: Model,
    /// What the API offers and refuses.
    pub api: Api,
    /// What replies say.
    pub content: Content,
    /// When they say it.
    pub engine: Engine,
    /// Adapters.
    pub lora: Lora,
    /// Events about cached blocks.
    pub kv_events: KvEvents,
    /// Disaggregated prefill, when a connector is configured.
    pub kv_transfer: Option<KvTransfer>,
    /// Failures on purpose.
    pub faults: Faults,
    /// What `/metrics` shows.
    pub metrics: Metrics,
}
