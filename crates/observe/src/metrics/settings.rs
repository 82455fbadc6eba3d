//! Settings of the exposed metric series.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::fake::FakeMetrics;
pub use crate::compat::MetricsCompat;
use vllm_sim_wire::VllmVersion;

/// Source of the Unix time, in seconds.
pub type UnixClock = fn() -> f64;

/// Returns the system time, in Unix seconds.
#[expect(clippy::disallowed_methods, reason = "an edge: wall-clock times are part of the text")]
pub fn unix_time_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Selection of the exposed metric series, and their labels.
#[derive(Debug, Clone)]
pub struct MetricsSettings {
    /// First served model name; also a label of the series of requests for adapters.
    pub model_name: String,
    /// Values of the label `engine`, one per data-parallel rank.
    pub engines: Vec<String>,
    /// Context length, in tokens; limits the bucket bounds of length histograms.
    pub max_model_len: u32,
    /// Metric families of open pull requests of vLLM to expose (`--preview`).
    pub previews: MetricPreviewFeatures,
    /// Value of `--max-loras`; `None`: no adapters are enabled.
    pub lora: Option<u32>,
    /// Project to imitate where vLLM and llm-d-inference-sim differ.
    pub compat: MetricsCompat,
    /// vLLM release whose metric families are exposed.
    pub version: VllmVersion,
    /// Whether deprecated names of metrics are exposed too.
    pub legacy: bool,
    /// Whether the label `finish_reason` is added to `finished_reason`.
    pub finish_reason_label: bool,
    /// Whether a tool-call parser is configured, so that its metrics exist.
    pub tool_parser: bool,
    /// Whether engine metrics are exposed (not with `--disable-log-stats`).
    pub engine_stats: bool,
    /// Whether the residency of KV blocks is exposed (`--kv-cache-metrics`).
    pub kv_cache_metrics: bool,
    /// Whether WebSocket metrics are exposed, for realtime speech.
    pub sockets: bool,
    /// Number of draft tokens per step; zero: no speculative decoding.
    pub spec_positions: u32,
    /// Whether NIXL transfers prompts from other servers.
    pub nixl: bool,
    /// Whether KV blocks of prompts may come through a KV connector.
    pub kv_consumer: bool,
    /// CPU memory tier for KV blocks, if offloading is configured.
    pub offload: Option<CpuOffloadInfo>,
    /// Labels of `cache_config_info` per engine, without `engine`
    /// ([`cache_config_labels`](super::cache_config_labels)).
    pub cache_config: Vec<Vec<(String, String)>>,
    /// Whether `python_*` and `process_*` are exposed; never with several processes.
    pub runtime_series: bool,
    /// Number of API server processes that the text of `/metrics` describes.
    pub api_servers: ApiServerCount,
    /// Route templates under which HTTP requests are counted, including those that redirect
    /// (`/v1/models/`).
    pub routes: Vec<String>,
    /// Fake metrics, and the interval at which fake gauges that are functions of time are updated.
    pub fake: Option<(FakeMetrics, Duration)>,
    /// Source of the Unix time, in seconds.
    pub clock: UnixClock,
}

impl Default for MetricsSettings {
    fn default() -> Self {
        Self {
            model_name: String::new(),
            engines: vec!["0".to_owned()],
            max_model_len: 1024,
            previews: MetricPreviewFeatures::default(),
            lora: None,
            compat: MetricsCompat::Vllm,
            version: VllmVersion::default(),
            legacy: false,
            finish_reason_label: false,
            tool_parser: false,
            engine_stats: true,
            kv_cache_metrics: false,
            sockets: false,
            spec_positions: 0,
            nixl: false,
            kv_consumer: false,
            offload: None,
            cache_config: Vec::new(),
            runtime_series: true,
            api_servers: ApiServerCount::One,
            routes: Vec::new(),
            fake: None,
            clock: unix_time_seconds,
        }
    }
}

/// Metric families of open pull requests of vLLM (`--preview`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetricPreviewFeatures {
    /// Whether `/metrics` exposes the used fraction of the KV cache's token slots.
    pub token_usage: bool,
    /// Whether `/metrics` exposes the LoRA adapters in memory.
    pub resident_adapters: bool,
}

/// Number of vLLM API server processes that the text of `/metrics` describes.
///
/// With several, there are no `_created`, `python_*` and `process_*` series and no families without
/// series. Families are grouped by type, and sums come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApiServerCount {
    /// `/metrics` describes one API server process.
    #[default]
    One,
    /// `/metrics` describes more than one API server process.
    Several,
}

/// Description of a CPU memory tier for KV blocks, on `/metrics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuOffloadInfo {
    /// Whether the CPU memory tier belongs to a `SimpleCPUOffloadConnector`.
    pub simple: bool,
    /// Number of GPUs of one engine, each of which copies its part of the blocks.
    pub workers: u32,
    /// Capacity of the CPU memory tier, in chunks.
    pub chunks: u32,
    /// Number of KV blocks per chunk of the CPU memory tier.
    pub blocks_per_chunk: u32,
    /// Configured size of the CPU memory tier, in bytes.
    pub bytes: u64,
    /// Capacity of the CPU memory tier, in tokens.
    pub tokens: u64,
}
