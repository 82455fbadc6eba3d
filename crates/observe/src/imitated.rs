//! Metrics and KV events of the imitated servers that have their own.
//!
//! A further server is a folder like `sglang`, and a line in each function of this file.

mod sglang;

use crate::compat::{KvEventFormat, MetricsCompat};
use crate::metrics::own_metrics::OwnMetrics;
use crate::metrics::settings::MetricsSettings;
use sglang::metrics::SglangMetrics;
use vllm_sim_engine::SchedulerEvent;

/// Creates the metrics of an imitated server whose metric families replace vLLM's, and adapts
/// `settings` to that server; `None` for other servers.
pub(crate) fn create_own_metrics(settings: &mut MetricsSettings) -> Option<Box<dyn OwnMetrics>> {
    match settings.compat {
        MetricsCompat::Vllm | MetricsCompat::Llmd => None,
        MetricsCompat::Sglang => Some(Box::new(SglangMetrics::new(settings))),
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
