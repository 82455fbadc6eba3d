use std::sync::Arc;
use std::time::Instant;

use vllm_sim_config::Config;
use vllm_sim_service::Service;

/// What the calls need.
#[derive(Clone)]
pub struct Parts {
    /// What was chosen at start.
    pub config: Arc<Config>,
    /// The use cases.
    pub service: Arc<Service>,
    /// When the process started.
    pub started: Instant,
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
        if self.since_start() < self.config.server.startup_duration {
            return Err("server is starting");
        }
        Ok(())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "start-up and uptime are real time"
    )]
    fn since_start(&self) -> std::time::Duration {
        Instant::now().duration_since(self.started)
    }
}
