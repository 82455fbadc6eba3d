use std::time::Duration;

use serde_json::Value;

use super::error::ConfigError;
use super::fake;
use super::values::Values;

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
    /// How often a line about each engine is logged behind `serve` [10 s]; zero: never.
    pub log_interval: Duration,
    /// FLOP counters (`--enable-mfu-metrics`).
    pub mfu: bool,
    /// llm-d's fake metrics, checked; shown instead of real ones.
    pub fake: Option<Value>,
    /// How often functions in them are evaluated [100 ms]; more than 0.
    pub fake_refresh_interval: Duration,
}

impl Metrics {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let fake = v.object("fake-metrics")?;
        let fake = fake.map(|object| fake::check(object, v)).transpose()?;
        let words = "fake metrics refresh interval must be positive";
        let interval = v.signed("fake-metrics-refresh-interval")?;
        let interval = match interval.positive().filter(|d| !d.is_zero()) {
            Some(interval) => interval,
            None if fake.is_some() => {
                return Err(v.wrong(words, "fake-metrics-refresh-interval"));
            }
            None => Duration::from_millis(100),
        };
        Ok(Self {
            legacy: v.switch("legacy-metrics")?,
            disable_log_stats: v.switch("disable-log-stats")?,
            kv_cache: v.switch("kv-cache-metrics")?,
            kv_cache_sample: v.ranged_float(
                "kv-cache-metrics-sample",
                f64::MIN_POSITIVE..=1.0,
                "kv-cache-metrics-sample must be more than 0 and at most 1",
            )?,
            log_interval: v.duration(
                "log-stats-interval",
                "log-stats-interval cannot be negative",
            )?,
            mfu: v.switch("enable-mfu-metrics")?,
            fake,
            fake_refresh_interval: interval,
        })
    }
}
