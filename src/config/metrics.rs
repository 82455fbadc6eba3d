use std::time::Duration;

use serde_json::Value;

/// What `/metrics` shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// Also the names of older releases and of llm-d [yes; behind `serve` no].
    pub legacy: bool,
    /// No `vllm:*` series at all (`--disable-log-stats`).
    pub disable_log_stats: bool,
    /// Residency histograms of blocks (`--kv-cache-metrics`).
    pub kv_cache: bool,
    /// Share of blocks those sample [0.01].
    pub kv_cache_sample: f64,
    /// FLOP counters (`--enable-mfu-metrics`).
    pub mfu: bool,
    /// llm-d's fake metrics, checked; shown instead of real ones.
    pub fake: Option<Value>,
    /// How often functions in them are evaluated [100 ms]; more than 0.
    pub fake_refresh_interval: Duration,
}
