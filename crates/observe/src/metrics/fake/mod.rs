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
    /// Fake series of `vllm:lora_requests_info`.
    pub loras: Option<Vec<FakeLora>>,
    /// Fake gauge of running requests.
    pub running_requests: Option<FakeGauge>,
    /// Fake gauge of waiting requests.
    pub waiting_requests: Option<FakeGauge>,
    /// Fake gauge of the used fraction of KV blocks, 0 to 1.
    pub kv_cache_usage: Option<FakeGauge>,
    /// Fake histogram of the time to first token: observations per bucket.
    pub ttft_buckets_values: Option<Vec<u64>>,
    /// Fake histogram of the inter-token latency, also under its deprecated name: observations per
    /// bucket.
    pub tpot_buckets_values: Option<Vec<u64>>,
    /// Fake histogram of the prompt length: observations per bucket.
    pub request_prompt_tokens: Option<Vec<u64>>,
    /// Fake histogram of the output length: observations per bucket.
    pub request_generation_tokens: Option<Vec<u64>>,
    /// Fake histogram of `max_tokens`: observations per bucket.
    pub request_params_max_tokens: Option<Vec<u64>>,
    /// Fake histogram of the maximum output length of a request: observations per bucket.
    pub request_max_generation_tokens: Option<Vec<u64>>,
    /// Fake counters of requests, by finish reason.
    pub request_success_total: Option<BTreeMap<String, u64>>,
    /// Fake counter of prompt tokens; if absent, derived from the fake histogram.
    pub total_prompt_tokens: Option<u64>,
    /// Fake counter of output tokens; if absent, derived from the fake histogram.
    pub total_generation_tokens: Option<u64>,
    /// Fake histogram of the end-to-end latency: observations per bucket.
    pub e2erl_buckets_values: Option<Vec<u64>>,
    /// Fake histogram of the queue time: observations per bucket.
    pub queue_time_buckets_values: Option<Vec<u64>>,
    /// Fake histogram of the inference time: observations per bucket.
    pub inf_time_buckets_values: Option<Vec<u64>>,
    /// Fake histogram of the prefill time: observations per bucket.
    pub prefill_time_buckets_values: Option<Vec<u64>>,
    /// Fake histogram of the decode time: observations per bucket.
    pub decode_time_buckets_values: Option<Vec<u64>>,
    /// Fake histogram of a request's mean time per output token: observations per bucket.
    pub request_tpot_buckets_values: Option<Vec<u64>>,
    /// Fake counter of prefix-cache hits, in tokens.
    pub prefix_cache_hits: Option<u64>,
    /// Fake counter of prefix-cache queries, in tokens.
    pub prefix_cache_queries: Option<u64>,
}

/// One fake series of `vllm:lora_requests_info`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FakeLora {
    /// LoRA adapters with running requests, separated by commas.
    pub running: String,
    /// LoRA adapters with waiting requests, separated by commas.
    pub waiting: String,
    /// Value of the fake LoRA series, in Unix seconds.
    pub timestamp: f64,
}

/// Error for an update of fake metrics on a server with real metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator is reporting real metrics; fake metrics cannot be updated")]
pub struct RealMetrics;
