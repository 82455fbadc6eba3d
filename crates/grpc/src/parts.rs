use std::sync::Arc;
use std::time::{Duration, Instant};

use vllm_sim_service::{InferenceService, RequestRules};

/// State shared by all gRPC calls of a server.
#[derive(Clone)]
pub struct GrpcState {
    /// Service for all requests, which owns the engines.
    pub service: Arc<InferenceService>,
    /// Settings of the gRPC server.
    pub settings: Arc<GrpcSettings>,
    /// Start time of the simulator process.
    pub started: Instant,
}

/// Settings of the gRPC server.
pub struct GrpcSettings {
    /// Limits and defaults of the values in requests.
    pub rules: RequestRules,
    /// Path or name of the served model.
    pub model: String,
    /// Whether the served model accepts images.
    pub supports_vision: bool,
    /// Number of dimensions of the vectors that `Embed` returns.
    pub embedding_dim: u32,
    /// Maximum size of a received gRPC message, in bytes.
    pub max_message_bytes: usize,
    /// Whether gRPC messages are logged (`--log-http`).
    pub logs_messages: bool,
    /// Simulated start-up time, during which gRPC requests are rejected.
    pub startup_duration: Duration,
}

impl GrpcState {
    pub(crate) fn uptime_seconds(&self) -> f64 {
        self.since_start().as_secs_f64()
    }

    /// Checks whether the server accepts gRPC requests; returns the reason as error if it rejects
    /// them.
    pub(crate) fn check_health(&self) -> Result<(), &'static str> {
        if self.service.is_draining() {
            return Err("server is shutting down");
        }
        if self.since_start() < self.settings.startup_duration {
            return Err("server is starting");
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "start-up and uptime are real time")]
    fn since_start(&self) -> Duration {
        Instant::now().duration_since(self.started)
    }
}
