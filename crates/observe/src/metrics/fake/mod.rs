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

pub use gauge::{FakeGauge, Waveform};

/// Fake metrics as configured, or a partial update of them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct FakeMetrics {
    /// Series of `vllm:lora_requests_info`.
    pub loras: Option<Vec<FakeLora>>,
    /// Gauge of running requests.
    pub running_requests: Option<FakeGauge>,
    /// Gauge of waiting requests.
    pub waiting_requests: Option<FakeGauge>,
    /// Gauge of the used fraction of KV blocks, 0 to 1.
    pub kv_cache_usage: Option<FakeGauge>,
    /// Observations per bucket of the time to first token.
    pub ttft_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of the inter-token latency, and of its deprecated name.
    pub tpot_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of the prompt length.
    pub request_prompt_tokens: Option<Vec<u64>>,
    /// Observations per bucket of the output length.
    pub request_generation_tokens: Option<Vec<u64>>,
    /// Observations per bucket of `max_tokens`.
    pub request_params_max_tokens: Option<Vec<u64>>,
    /// Observations per bucket of the maximum output length of a request.
    pub request_max_generation_tokens: Option<Vec<u64>>,
    /// Requests per finish reason.
    pub request_success_total: Option<BTreeMap<String, u64>>,
    /// Counter of prompt tokens; if absent, derived from the histogram.
    pub total_prompt_tokens: Option<u64>,
    /// Counter of output tokens; if absent, derived from the histogram.
    pub total_generation_tokens: Option<u64>,
    /// Observations per bucket of the end-to-end latency.
    pub e2erl_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of the queue time.
    pub queue_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of the inference time.
    pub inf_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of the prefill time.
    pub prefill_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of the decode time.
    pub decode_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of a request's mean time per output token.
    pub request_tpot_buckets_values: Option<Vec<u64>>,
    /// Counter of prefix-cache hits, in tokens.
    pub prefix_cache_hits: Option<u64>,
    /// Counter of prefix-cache queries, in tokens.
    pub prefix_cache_queries: Option<u64>,
}

/// One fake series of `vllm:lora_requests_info`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FakeLora {
    /// Adapters with running requests, separated by commas.
    pub running: String,
    /// Adapters with waiting requests, separated by commas.
    pub waiting: String,
    /// Value of the series, in Unix seconds.
    pub timestamp: f64,
}

/// Error for an update of fake metrics on a server with real metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator is reporting real metrics; fake metrics cannot be updated")]
pub struct RealMetrics;
