//! Represents the results of load generators: their arrival process, and the measured latencies.

use std::sync::Arc;

use super::csv::single_request_session;
use super::loaded::{LoadedSessions, SessionOrder};
use crate::statistics::{mean, percentile};
use crate::synth::ArrivalProcess;
use crate::workload::{ClientSession, PromptTokenRun, TurnPrompt, UnusedTraceColumns};
use vllm_sim_random::mix_u64_pair;

/// Arrival process of a load generator: open or closed loop, and the times at which requests are
/// sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OfferedLoad {
    /// Requests are sent in an open loop, at the recorded times.
    Times,
    /// All requests are sent at the start of the run.
    AtOnce,
    /// Requests are sent in an open loop, with a random arrival process.
    Drawn(ArrivalProcess),
    /// Requests are sent in a closed loop, with this number of requests in flight.
    Closed(u32),
}

/// Latencies and token counts of one request, as measured by a load generator.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeasuredRequest {
    /// Send time of the request, in milliseconds; `None` if not recorded.
    pub at_ms: Option<f64>,
    /// Prompt length of the request, in tokens.
    pub input: u32,
    /// Output length of the request, in tokens.
    pub output: u32,
    /// Number of the request's prompt tokens found in the prefix cache.
    pub cached: Option<u32>,
    /// Name of a prompt prefix that requests share: requests with equal names share their first
    /// `cached` tokens.
    pub prefix: Option<Arc<str>>,
    /// Time to the first token of the request, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Time to the last token of the request, in milliseconds.
    pub e2e_ms: Option<f64>,
}

/// Measured latency means and percentiles of a benchmark, in milliseconds; values that are `None`
/// are not fitted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LatencyStats {
    /// Mean time to the first token, in ms.
    pub ttft_mean: Option<f64>,
    /// Median time to the first token, in ms.
    pub ttft_p50: Option<f64>,
    /// 90th percentile of the time to the first token, in ms.
    pub ttft_p90: Option<f64>,
    /// 99th percentile of the time to the first token, in ms.
    pub ttft_p99: Option<f64>,
    /// Mean time between output tokens (TPOT) in ms: mean over the requests of each request's mean
    /// gap.
    pub itl_mean: Option<f64>,
    /// Mean time to the last token, in ms.
    pub e2e_mean: Option<f64>,
    /// 90th percentile of the time to the last token, in ms.
    pub e2e_p90: Option<f64>,
    /// 99th percentile of the time to the last token, in ms.
    pub e2e_p99: Option<f64>,
}

/// Results of one benchmark run of a load generator.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchRun {
    /// Name of the result file, with the index of the benchmark run in the file.
    pub name: String,
    /// Arrival process of the benchmark run's requests.
    pub load: OfferedLoad,
    /// Maximum number of requests in flight; excess requests wait before their latency measurement
    /// starts.
    pub cap: Option<u32>,
    /// Successful requests, in the order they were sent.
    pub requests: Vec<MeasuredRequest>,
    /// Measured latency means and percentiles of the benchmark run.
    pub stats: LatencyStats,
    /// Requested and achieved request rates, in requests per second, if both are known.
    pub rates: Option<(f64, f64)>,
    /// Columns of the result file that describe the requests but are not read.
    pub unused_columns: UnusedTraceColumns,
}

impl BenchRun {
    /// Creates a benchmark run without requests.
    pub fn new(bench_run_name: String) -> Self {
        Self {
            name: bench_run_name,
            load: OfferedLoad::Times,
            cap: None,
            requests: Vec::new(),
            stats: LatencyStats::default(),
            rates: None,
            unused_columns: UnusedTraceColumns::default(),
        }
    }

    /// Computes the latency statistics of the benchmark run from its requests, as far as these have
    /// measurements.
    ///
    /// Sorts requests with recorded send times, and makes the first send time 0.
    pub fn compute_latency_stats(&mut self) {
        if self.requests.iter().all(|request| request.at_ms.is_some()) {
            let at = |request: &MeasuredRequest| request.at_ms.unwrap_or(0.0);
            self.requests.sort_by(|a, b| at(a).total_cmp(&at(b)));
            let first = self.requests.first().map_or(0.0, at);
            for request in &mut self.requests {
                request.at_ms = request.at_ms.map(|at| at - first);
            }
        }
        let sorted = |of: &dyn Fn(&MeasuredRequest) -> Option<f64>| {
            let mut values: Vec<f64> = self.requests.iter().filter_map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let ttft = sorted(&|request| request.ttft_ms);
        let e2e = sorted(&|request| request.e2e_ms);
        let itl = sorted(&|request| {
            let gaps = request.output.checked_sub(1).filter(|n| *n > 0)?;
            Some((request.e2e_ms? - request.ttft_ms?) / f64::from(gaps))
        });
        let stats = &mut self.stats;
        stats.ttft_mean = mean(&ttft).or(stats.ttft_mean);
        stats.ttft_p50 = percentile(&ttft, 0.5).or(stats.ttft_p50);
        stats.ttft_p90 = percentile(&ttft, 0.9).or(stats.ttft_p90);
        stats.ttft_p99 = percentile(&ttft, 0.99).or(stats.ttft_p99);
        stats.itl_mean = mean(&itl).or(stats.itl_mean);
        stats.e2e_mean = mean(&e2e).or(stats.e2e_mean);
        stats.e2e_p90 = percentile(&e2e, 0.9).or(stats.e2e_p90);
        stats.e2e_p99 = percentile(&e2e, 0.99).or(stats.e2e_p99);
    }

    /// Returns the send time of each request, in ms from the first; 0 in a closed loop.
    pub fn send_times_ms(&self, seed: u64) -> Vec<f64> {
        let mut drawn = match self.load {
            OfferedLoad::Drawn(arrivals) => {
                Some(arrivals.session_start_times(seed, self.requests.len() as u64))
            }
            OfferedLoad::Times | OfferedLoad::AtOnce | OfferedLoad::Closed(_) => None,
        };
        let starts = self.requests.iter().map(|request| match &mut drawn {
            Some(starts) => starts.next_session_start_ms(),
            None if self.load == OfferedLoad::Times => request.at_ms.unwrap_or(0.0),
            None => 0.0,
        });
        starts.collect()
    }
}

impl MeasuredRequest {
    /// Returns the prompt of request `request_number` as runs of consecutive tokens. All requests
    /// with the same prefix share the run of cached tokens.
    pub fn request_prompt_token_runs(&self, request_number: u64) -> Vec<PromptTokenRun> {
        let shared = match &self.prefix {
            Some(_) => self.cached.unwrap_or(0).min(self.input.saturating_sub(1)),
            None => 0,
        };
        let name = self.prefix.as_deref().unwrap_or_default();
        let id = name.bytes().fold(8, |id, byte| mix_u64_pair(id, byte.into()));
        let mut runs = Vec::with_capacity(2);
        if shared > 0 {
            runs.push(PromptTokenRun { id, len: shared, same: false });
        }
        runs.push(PromptTokenRun {
            id: mix_u64_pair(7, request_number),
            len: self.input - shared,
            same: false,
        });
        runs
    }
}

pub(super) fn benchmark_workload(
    runs: &[BenchRun],
    seed: u64,
    order: SessionOrder,
) -> LoadedSessions {
    let mut sessions: Vec<(f64, ClientSession)> = Vec::new();
    let mut offset = 0.0;
    for run in runs {
        let starts = run.send_times_ms(seed);
        for (request, start) in run.requests.iter().zip(&starts) {
            let number = sessions.len() as u64;
            let mut session = single_request_session(number, request.input, request.output.max(1));
            session.turns[0].prompt = TurnPrompt::Whole(request.request_prompt_token_runs(number));
            sessions.push((offset + start, session));
        }
        offset += starts.last().copied().unwrap_or(0.0);
    }
    let closed = match runs {
        [run] => match run.load {
            OfferedLoad::Closed(n) => Some(n),
            OfferedLoad::AtOnce => run.cap,
            OfferedLoad::Times | OfferedLoad::Drawn(_) => None,
        },
        _ => None,
    };
    let mut sessions = LoadedSessions::new(sessions, order);
    for run in runs {
        run.unused_columns.names().for_each(|name| sessions.facts.unused_columns.add_column(name));
    }
    sessions.facts.recorded_concurrency = closed;
    sessions.facts.has_no_start_times = closed.is_some();
    sessions
}
