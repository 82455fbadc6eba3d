//! Interface to the metrics of an imitated server whose families replace those of vLLM.

use std::sync::Arc;

use super::series::MetricCellVec;
use vllm_sim_engine::driver::EngineObserver;

/// Metrics of an imitated server whose families replace those of vLLM.
pub(crate) trait OwnMetrics: Send + Sync {
    /// Returns the metric families of the imitated server, in the order of its `/metrics` page.
    fn vecs(&self) -> &[Arc<MetricCellVec>];

    /// Returns the observer of the engine of a data-parallel rank.
    fn observer(&self, rank: usize) -> Box<dyn EngineObserver>;

    /// Counts a request whose response has ended.
    fn on_finished(&self, request: &FinishedRequest);

    /// Returns the current value of a gauge of a rank, by its name without prefix; 0 for an unknown
    /// name.
    fn gauge(&self, name: &str, rank: usize) -> f64;
}

/// Lengths and times of a request whose response has ended.
#[derive(Debug, Clone, Copy)]
pub struct FinishedRequest {
    /// Whether the response was streamed.
    pub streaming: bool,
    /// Whether the output was constrained by a grammar.
    pub structured: bool,
    /// Number of prompt tokens of the request.
    pub prompt_tokens: u32,
    /// Number of the request's prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
    /// Number of output tokens of the request.
    pub output_tokens: u32,
    /// Time from the request's arrival to its first token, in seconds; `None` without a token.
    pub ttft_s: Option<f64>,
    /// Time from the request's arrival to its end, in seconds.
    pub e2e_s: f64,
}
