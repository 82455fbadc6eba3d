//! What decides which series there are.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::fake::FakeMetrics;
use super::offload::OffloadInfo;
use super::page::ApiServers;

/// The unix time, in seconds.
pub type Clock = fn() -> f64;

/// The time of this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "an edge: wall-clock times are part of the text"
)]
pub fn wall_clock() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Which project decides where the two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// vLLM: an adapter with requests is listed as running and waiting; tool calls and remote
    /// decodes count as `stop` and `length`.
    #[default]
    Vllm,
    /// llm-d's simulator: an adapter is listed where it is; those reasons count by name.
    Llmd,
}

/// What decides which series there are.
#[derive(Debug, Clone)]
pub struct Settings {
    /// First served model name; requests to adapters count under it too.
    pub model_name: String,
    /// One per data-parallel rank, as the label `engine` shows it.
    pub engines: Vec<String>,
    /// Context length: bounds the histograms of lengths.
    pub max_model_len: u32,
    /// `--max-loras`; `None`: no adapters are enabled.
    pub lora: Option<u32>,
    /// Which project's rules.
    pub compat: Compat,
    /// Retired names beside the new ones.
    pub legacy: bool,
    /// The label `finish_reason` beside `finished_reason`.
    pub finish_reason_label: bool,
    /// A tool-call parser is configured.
    pub tool_parser: bool,
    /// Whether engines are shown at all (not with `--disable-log-stats`).
    pub engine_stats: bool,
    /// `--kv-cache-metrics`.
    pub kv_cache_metrics: bool,
    /// Whether speech comes over WebSockets.
    pub sockets: bool,
    /// Draft tokens per step; zero: no speculation.
    pub spec_positions: u32,
    /// Prompts come from other servers, by NIXL.
    pub nixl: bool,
    /// Prompts may come through a connector.
    pub kv_consumer: bool,
    /// A second prefix cache in the memory of the host.
    pub offload: Option<OffloadInfo>,
    /// Per engine, the labels of `cache_config_info` without `engine`
    /// ([`CacheConfig::labels`](super::CacheConfig::labels)).
    pub cache_config: Vec<Vec<(String, String)>>,
    /// `python_*` and `process_*`; never with several processes.
    pub runtime_series: bool,
    /// The number of API servers that the text describes.
    pub api_servers: ApiServers,
    /// Route templates that requests are counted under; one that redirects to another
    /// (`/v1/models/`) is one too.
    pub routes: Vec<String>,
    /// Shown instead of the truth, and how often moving values move.
    pub fake: Option<(FakeMetrics, Duration)>,
    /// The time.
    pub clock: Clock,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model_name: String::new(),
            engines: vec!["0".to_owned()],
            max_model_len: 1024,
            lora: None,
            compat: Compat::Vllm,
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
            api_servers: ApiServers::One,
            routes: Vec::new(),
            fake: None,
            clock: wall_clock,
        }
    }
}
