//! Fake metrics, as in llm-d-inference-sim's `fake-metrics`.
//!
//! A server with fake metrics exposes them instead of real values, for every series that they can
//! set; those without a value are zero. With llm-d's rules, requests are still added to token
//! histograms, totals and finish reasons. Other series (steps, preemptions, HTTP) stay real, and
//! the simulator itself never reads a fake value.
//!
//! An update is partial: absent or `null` keys keep their value, `[]` and `{}` clear. A function of
//! time starts its period when it is set. Values are not validated here: unknown keys are ignored
//! and surplus buckets are merged.
//!
//! **Source:** llm-d-inference-sim `pkg/common/config_fake_metrics.go`,
//! `pkg/llm-d-inference-sim/fake_metrics.go`.

mod gauge;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Deserialize;

pub(super) use gauge::FakeGauge;

/// Fake metrics as configured, or a partial update of them, by the keys of llm-d-inference-sim.
///
/// Histograms have numbers of observations per bucket. A total that is absent is derived from its
/// histogram. `tpot_buckets_values` are the inter-token latencies, `request_tpot_buckets_values` the
/// means of requests.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct FakeMetrics {
    pub(super) loras: Option<Vec<FakeLoraRequests>>,
    pub(super) running_requests: Option<FakeGauge>,
    pub(super) waiting_requests: Option<FakeGauge>,
    pub(super) kv_cache_usage: Option<FakeGauge>,
    pub(super) ttft_buckets_values: Option<Vec<u64>>,
    pub(super) tpot_buckets_values: Option<Vec<u64>>,
    pub(super) request_prompt_tokens: Option<Vec<u64>>,
    pub(super) request_generation_tokens: Option<Vec<u64>>,
    pub(super) request_params_max_tokens: Option<Vec<u64>>,
    pub(super) request_max_generation_tokens: Option<Vec<u64>>,
    pub(super) request_success_total: Option<BTreeMap<String, u64>>,
    pub(super) total_prompt_tokens: Option<u64>,
    pub(super) total_generation_tokens: Option<u64>,
    pub(super) e2erl_buckets_values: Option<Vec<u64>>,
    pub(super) queue_time_buckets_values: Option<Vec<u64>>,
    pub(super) inf_time_buckets_values: Option<Vec<u64>>,
    pub(super) prefill_time_buckets_values: Option<Vec<u64>>,
    pub(super) decode_time_buckets_values: Option<Vec<u64>>,
    pub(super) request_tpot_buckets_values: Option<Vec<u64>>,
    pub(super) prefix_cache_hits: Option<u64>,
    pub(super) prefix_cache_queries: Option<u64>,
}

/// One fake series of `vllm:lora_requests_info`; names of adapters are separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct FakeLoraRequests {
    pub(super) running: String,
    pub(super) waiting: String,
    pub(super) timestamp: f64,
}

/// Error for an update of fake metrics on a server with real metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator is reporting real metrics; fake metrics cannot be updated")]
pub struct FakeMetricsDisabled;
