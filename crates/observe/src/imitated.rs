//! Metrics and KV events of the imitated servers that have their own.
//!
//! A further server is a folder like `sglang`, and a line in each function of this file.

mod sglang;

use crate::compat::{KvEventFormat, MetricsCompat};
use crate::metrics::settings::MetricsSettings;
pub use sglang::metrics::SglangMetrics as OwnMetrics;
use vllm_sim_engine::SchedulerEvent;

/// Lengths and times of a request whose response has ended.
#[derive(Debug, Clone, Copy)]
pub struct FinishedRequest {
    /// Whether the response was streamed.
    pub streaming: bool,
    /// Whether the request was aborted.
    pub aborted: bool,
    /// Whether the output was constrained by a grammar.
    pub structured: bool,
    /// Number of prompt tokens of the request.
    pub prompt_tokens: u32,
    /// Number of the request's prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
    /// Number of output tokens of the request.
    pub output_tokens: u32,
    /// Time from the request's arrival to its first token, in seconds; `None` without a token.
    pub ttft_s: Option<f64>,
    /// Time from the request's arrival to its end, in seconds.
    pub e2e_s: f64,
}

/// Creates the metrics of a server whose families replace vLLM's, and adapts the settings; `None` for
/// other servers.
pub(crate) fn create_own_metrics(settings: &mut MetricsSettings) -> Option<OwnMetrics> {
    match settings.compat {
        MetricsCompat::Vllm | MetricsCompat::Llmd => None,
        MetricsCompat::Sglang => Some(OwnMetrics::new(settings)),
    }
}

/// Encodes a KV event message in a format without vLLM's fields; `None` for other formats.
pub(crate) fn encode_own_kv_events(
    format: KvEventFormat,
    events: &[SchedulerEvent],
    ts: f64,
    rank: u32,
) -> Option<Vec<u8>> {
    match format {
        KvEventFormat::Vllm | KvEventFormat::LlmdArray | KvEventFormat::LlmdMap => None,
        KvEventFormat::Sglang => Some(sglang::kv_events::encode_sglang_batch(events, ts, rank)),
    }
}
