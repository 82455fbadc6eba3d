//! Sends a workload over HTTP to any OpenAI-compatible server.
//!
//! The number of requests in flight is bounded, and every request has a timeout. The latency clock
//! of a request starts at its scheduled time, so delays of the sender count as latency.

mod drive;
mod exchange;
mod options;
mod pacer;
mod prompt;
mod target;

use super::outcome::ReplaySink;
use super::workload::WorkloadSource;

pub use options::{
    GenerationApi, OnlineReplayError, OnlineReplayOptions, OnlineReplaySummary, RequestHeaderNames,
};
pub use target::TargetServer;

/// Sends a workload over HTTP and reports every request to `sink`.
///
/// Calls `progress` with the number of finished requests.
///
/// # Errors
/// Returns [`OnlineReplayError`] if no request can be sent. A failed request is an outcome, not an error.
pub fn replay_over_http(
    source: &mut dyn WorkloadSource,
    options: &OnlineReplayOptions,
    sink: &mut dyn ReplaySink,
    progress: &mut dyn FnMut(u64),
) -> Result<OnlineReplaySummary, OnlineReplayError> {
    if !(options.speedup.is_finite() && options.speedup > 0.0) {
        let problem = format!("arrival speed-up is {}, must be above 0", options.speedup);
        return Err(OnlineReplayError::Option(problem));
    }
    if options.concurrency == Some(0) || options.max_in_flight == 0 {
        return Err(OnlineReplayError::Option("concurrency is 0, must be at least 1".to_owned()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(OnlineReplayError::Runtime)?;
    let sent = runtime.block_on(drive::send_workload(source, options, sink, progress));
    runtime.shutdown_background();
    sent
}
