//! Metrics that are made up: llm-d-inference-sim's `fake-metrics`.
//!
//! A server started with them shows them instead of what happens to it, for every series that
//! they can name; series it does not name are zero. With llm-d's rules requests are added to token
//! histograms, totals and finish reasons all the same. Other series (steps, preemptions, HTTP)
//! stay true, and the simulator itself never reads a fake value.
//!
//! An update is partial: what is absent or `null` stays, `[]` and `{}` clear. A moving value
//! starts its period when it is set. Whoever reads them from a user checks them: a key that is
//! not known here, a bound that is too high or a surplus of buckets is shown as well as it goes.
//!
//! Source: llm-d-inference-sim `pkg/common/config_fake_metrics.go`,
//! `pkg/llm-d-inference-sim/fake_metrics.go`, HEAD of 2026-08.

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
    /// Series of `lora_requests_info`.
    pub loras: Option<Vec<FakeLora>>,
    /// Gauge.
    pub running_requests: Option<FakeGauge>,
    /// Gauge.
    pub waiting_requests: Option<FakeGauge>,
    /// Gauge, 0..=1.
    pub kv_cache_usage: Option<FakeGauge>,
    /// Observations per bucket of the time to first token.
    pub ttft_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of the inter-token latency, and of its retired name.
    pub tpot_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket.
    pub request_prompt_tokens: Option<Vec<u64>>,
    /// Observations per bucket.
    pub request_generation_tokens: Option<Vec<u64>>,
    /// Observations per bucket.
    pub request_params_max_tokens: Option<Vec<u64>>,
    /// Observations per bucket.
    pub request_max_generation_tokens: Option<Vec<u64>>,
    /// Requests per finish reason.
    pub request_success_total: Option<BTreeMap<String, u64>>,
    /// Counter; otherwise what the histogram of prompts comes to.
    pub total_prompt_tokens: Option<u64>,
    /// Counter; otherwise what the histogram of outputs comes to.
    pub total_generation_tokens: Option<u64>,
    /// Observations per bucket of the end-to-end latency.
    pub e2erl_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket.
    pub queue_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket.
    pub inf_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket.
    pub prefill_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket.
    pub decode_time_buckets_values: Option<Vec<u64>>,
    /// Observations per bucket of a request's mean time per output token.
    pub request_tpot_buckets_values: Option<Vec<u64>>,
    /// Counter, tokens.
    pub prefix_cache_hits: Option<u64>,
    /// Counter, tokens.
    pub prefix_cache_queries: Option<u64>,
}

/// One series of `lora_requests_info`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FakeLora {
    /// Adapters that run, comma-separated.
    pub running: String,
    /// Adapters that wait, comma-separated.
    pub waiting: String,
    /// Value of the series.
    pub timestamp: f64,
}

/// The server shows real metrics, which cannot be updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator is reporting real metrics; fake metrics cannot be updated")]
pub struct RealMetrics;
