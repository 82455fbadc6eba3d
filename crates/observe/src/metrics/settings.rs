//! Settings of the exposed metric series.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

pub use crate::compat::MetricsCompat;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_wire::VllmVersion;

/// Source of the Unix time, in seconds; the default is the clock of the system.
#[derive(Debug, Clone, Copy)]
pub struct UnixClock(pub fn() -> f64);

impl Default for UnixClock {
    fn default() -> Self {
        Self(unix_now_secs)
    }
}

/// Selection of the exposed metric series, and their labels; the default has no engines.
#[derive(Debug, Clone, Default)]
pub struct MetricsSettings {
    /// First served model name; also a label of the series of requests for adapters.
    pub model_name: String,
    /// Values of the label `engine`, one per data-parallel rank.
    pub engines: Vec<String>,
    /// Context length, in tokens; limits the bucket bounds of length histograms.
    pub max_model_len: u32,
    /// Metric families of open pull requests of vLLM to expose (`--preview`).
    pub previews: PreviewedMetricFamilies,
    /// Value of `--max-loras`; `None`: no adapters are enabled.
    pub lora: Option<u32>,
    /// Project to imitate where vLLM and llm-d-inference-sim differ.
    pub compat: MetricsCompat,
    /// vLLM release whose metric families are exposed.
    pub version: VllmVersion,
    /// Whether deprecated names of metrics are exposed too.
    pub legacy: bool,
    /// Whether a tool-call parser is configured, so that metrics of it exist.
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
    /// Labels of `cache_config_info`, without `engine` ([`cache_config_labels`](super::cache_config_labels)).
    pub cache_config: Vec<(String, String)>,
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

/// Fake metrics as configured, or a partial update of them: a JSON object with the keys of
/// llm-d-inference-sim.
///
/// Histograms have numbers of observations per bucket. A total that is absent is derived from its
/// histogram. `tpot-buckets-values` are the inter-token latencies, `request-tpot-buckets-values` the
/// means of requests. `loras` are series of `vllm:lora_requests_info`, with names of adapters
/// separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct FakeMetrics(pub(super) Map<String, Value>);

/// Metric families of open pull requests of vLLM (`--preview`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreviewedMetricFamilies {
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
