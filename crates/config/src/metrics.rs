use std::time::Duration;

use serde_json::Value;

use super::error::ConfigError;
use super::fake;
use super::flags::server;
use super::preview::{metric_family_previews, read_previewed_pull_requests};
use super::values::FlagValues;
use vllm_sim_observe::metrics::PreviewedMetricFamilies;

/// Settings of `/metrics`.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsConfig {
    /// Whether metrics are also exposed under their names in older vLLM releases and in llm-d
    /// (default yes; with `serve` no).
    pub legacy: bool,
    /// Whether all `vllm:*` metrics are omitted (`--disable-log-stats`).
    pub disable_log_stats: bool,
    /// Whether histograms of KV block lifetimes are exposed (`--kv-cache-metrics`).
    pub kv_cache: bool,
    /// Fraction of KV blocks sampled for the block lifetime histograms (default 0.01).
    pub kv_cache_sample: f64,
    /// Interval of the statistics log line of each engine with `serve` (default 10 s); zero: no
    /// line.
    pub log_interval: Duration,
    /// Metric families from open pull requests of vLLM that are exposed (`--preview`).
    pub previews: PreviewedMetricFamilies,
    /// Whether counters of floating-point operations are exposed (`--enable-mfu-metrics`).
    pub mfu: bool,
    /// Checked fake metrics in llm-d's format, which replace the real metrics; `None`: real
    /// metrics.
    pub fake: Option<Value>,
    /// Interval between evaluations of time functions in fake metrics, more than 0 (default 100
    /// ms).
    pub fake_refresh_interval: Duration,
}

impl MetricsConfig {
    pub(super) fn from_flag_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let fake = v.get(&server::FAKE_METRICS)?;
        let fake = fake.map(|object| fake::check_fake_metrics_flag(object, v)).transpose()?;
        let words = "fake metrics refresh interval must be positive";
        let flag = &server::FAKE_METRICS_REFRESH_INTERVAL;
        let interval = match v.get(flag)?.filter(|interval| !interval.is_zero()) {
            Some(interval) => interval,
            None if fake.is_some() => return Err(v.unsupported_value_error(words, flag)),
            None => Duration::from_millis(100),
        };
        Ok(Self {
            legacy: v.get(&server::LEGACY_METRICS)?,
            disable_log_stats: v.get(&server::DISABLE_LOG_STATS)?,
            kv_cache: v.get(&server::KV_CACHE_METRICS)?,
            kv_cache_sample: v.get(&server::KV_CACHE_METRICS_SAMPLE)?,
            log_interval: v.get(&server::LOG_STATS_INTERVAL)?,
            previews: metric_family_previews(&read_previewed_pull_requests(v)?),
            mfu: v.get(&server::ENABLE_MFU_METRICS)?,
            fake,
            fake_refresh_interval: interval,
        })
    }
}
