use std::sync::Arc;
use std::time::{Duration, Instant};

use vllm_sim_service::{RequestRules, Service};

/// Holds what the calls need.
#[derive(Clone)]
pub struct Parts {
    /// The use cases.
    pub service: Arc<Service>,
    /// The settings of the server.
    pub settings: Arc<Settings>,
    /// The instant at which the process started.
    pub started: Instant,
}

/// Holds the settings of the gRPC server.
pub struct Settings {
    /// The bounds and defaults of requests.
    pub rules: RequestRules,
    /// The path or name of the model.
    pub model: String,
    /// Records whether the model takes images.
    pub supports_vision: bool,
    /// The numbers of a vector that `Embed` returns.
    pub embedding_dim: u32,
    /// Bytes of the largest message that is read.
    pub max_message_bytes: usize,
    /// Records whether messages are logged (`--log-http`).
    pub logs_messages: bool,
    /// The time after the start during which no request is taken.
    pub startup_duration: Duration,
}

impl Parts {
    pub(crate) fn uptime(&self) -> f64 {
        self.since_start().as_secs_f64()
    }

    /// Whether requests are taken, or why not.
    pub(crate) fn health(&self) -> Result<(), &'static str> {
        if self.service.is_draining() {
            return Err("server is shutting down");
        }
        if self.since_start() < self.settings.startup_duration {
            return Err("server is starting");
        }
        Ok(())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "start-up and uptime are real time"
    )]
    fn since_start(&self) -> Duration {
        Instant::now().duration_since(self.started)
    }
}
