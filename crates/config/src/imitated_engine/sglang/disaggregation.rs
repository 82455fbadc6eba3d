use std::time::Duration;

use crate::error::{ConfigError, bail};
use crate::flags::engine;
use crate::values::FlagValues;
use vllm_sim_observe::metrics::MetricsCompat;
use vllm_sim_service::ServingRole;

/// Settings of a prefill/decode pair of SGLang servers (`vllm-sim sglang --disaggregation-mode`).
#[derive(Debug, Clone, PartialEq)]
pub struct DisaggregationConfig {
    /// Port of the bootstrap server of a prefill server (default 8998). On a decode server, the
    /// bootstrap port of requests that name none.
    pub bootstrap_port: u16,
    /// Whether the KV cache of prompts is simulated locally, without a second server (transfer
    /// backend `fake`).
    pub is_fake: bool,
    /// Maximum time for which a prefill server waits until the decode server announces the same
    /// request (default 300 s).
    pub bootstrap_timeout: Duration,
    /// Maximum time in which a prompt must be computed and its KV cache transferred (default 300
    /// s).
    pub waiting_timeout: Duration,
    /// Time between two checks of whether a prefill server is alive (default 5 s).
    pub heartbeat_interval: Duration,
    /// Number of failed checks after which a prefill server counts as lost (default 2).
    pub heartbeat_max_failures: u32,
}

impl DisaggregationConfig {
    /// Returns the settings of an SGLang prefill or decode server; `None` for any other server.
    ///
    /// **Source:** SGLang 0.5.23 `srt/environ.py`, and the minima in
    /// `srt/disaggregation/common/conn.py`.
    pub(crate) fn from_flag_values(
        v: &FlagValues,
        compat: MetricsCompat,
        role: ServingRole,
    ) -> Result<Option<Self>, ConfigError> {
        let backend = v.get_text(&engine::DISAGGREGATION_TRANSFER_BACKEND).unwrap_or_default();
        let is_fake = backend == "fake";
        let seconds = |flag| Ok::<_, ConfigError>(Duration::from_secs(u64::from(v.get(flag)?)));
        let interval: f64 = v.get(&engine::DISAGGREGATION_HEARTBEAT_INTERVAL)?;
        // Wrong values are errors of every server.
        let config = Self {
            bootstrap_port: v.get(&engine::DISAGGREGATION_BOOTSTRAP_PORT)?,
            is_fake,
            bootstrap_timeout: seconds(&engine::DISAGGREGATION_BOOTSTRAP_TIMEOUT)?,
            waiting_timeout: seconds(&engine::DISAGGREGATION_WAITING_TIMEOUT)?,
            heartbeat_interval: Duration::from_secs_f64(interval.max(2.0)),
            heartbeat_max_failures: v.get(&engine::DISAGGREGATION_HEARTBEAT_MAX_FAILURE)?,
        };
        if compat != MetricsCompat::Sglang || role == ServingRole::Whole {
            return Ok(None);
        }
        if is_fake && role == ServingRole::Prefill {
            // SGLang's words.
            bail!("Prefill server does not support 'fake' as the transfer backend");
        }
        Ok(Some(config))
    }
}
