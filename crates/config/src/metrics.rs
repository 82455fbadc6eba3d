use std::time::Duration;

use serde_json::Value;

use super::error::ConfigError;
use super::fake;
use super::flags::server;
use super::values::Values;

/// What `/metrics` shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// Also the names of older releases and of llm-d [yes; with `serve` no].
    pub legacy: bool,
    /// No `vllm:*` series at all (`--disable-log-stats`).
    pub disable_log_stats: bool,
    /// Residency histograms of blocks (`--kv-cache-metrics`).
    pub kv_cache: bool,
    /// Share of blocks those sample (default 0.01).
    pub kv_cache_sample: f64,
    /// How often a line about each engine is logged with `serve` (default 10 s); zero: never.
    pub log_interval: Duration,
    /// FLOP counters (`--enable-mfu-metrics`).
    pub mfu: bool,
    /// llm-d's fake metrics, checked; shown instead of real ones.
    pub fake: Option<Value>,
    /// How often functions in them are evaluated (default 100 ms); more than 0.
    pub fake_refresh_interval: Duration,
}

impl Metrics {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let fake = v.get(&server::FAKE_METRICS)?;
        let fake = fake.map(|object| fake::check(object, v)).transpose()?;
        let words = "fake metrics refresh interval must be positive";
        let flag = &server::FAKE_METRICS_REFRESH_INTERVAL;
        let interval = match v.get(flag)?.filter(|interval| !interval.is_zero()) {
            Some(interval) => interval,
            None if fake.is_some() => return Err(v.wrong(words, flag)),
            None => Duration::from_millis(100),
        };
        Ok(Self {
            legacy: v.get(&server::LEGACY_METRICS)?,
            disable_log_stats: v.get(&server::DISABLE_LOG_STATS)?,
            kv_cache: v.get(&server::KV_CACHE_METRICS)?,
            kv_cache_sample: v.get(&server::KV_CACHE_METRICS_SAMPLE)?,
            log_interval: v.get(&server::LOG_STATS_INTERVAL)?,
            mfu: v.get(&server::ENABLE_MFU_METRICS)?,
            fake,
            fake_refresh_interval: interval,
        })
    }
}
