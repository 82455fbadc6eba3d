//! The line about each engine that vLLM logs every ten seconds.
//!
//! Source: vLLM 0.33 `vllm/v1/metrics/loggers.py`, `LoggingStatLogger`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use vllm_sim_config::{CliMode, Config};
use vllm_sim_engine::Stats;
use vllm_sim_engine::driver::LiveEngine;
use vllm_sim_observe::metrics::{EngineMetrics, Metrics, Totals};

/// One engine.
pub(super) struct LoggedEngine {
    /// Its rank.
    number: u32,
    live: LiveEngine,
    metrics: Arc<EngineMetrics>,
}

/// What the last line about an engine was made of.
#[derive(Debug, Clone, Copy, Default)]
struct LastLine {
    totals: Totals,
    /// Tokens per second, prompt and output.
    rates: (f64, f64),
}

/// The engines of a server and how often a line is logged; `None`: never, as llm-d.
pub(super) fn engines(
    config: &Config,
    metrics: &Arc<Metrics>,
    live: &[LiveEngine],
) -> Option<(Vec<LoggedEngine>, Duration)> {
    let every = config.metrics.log_interval;
    if config.metrics.disable_log_stats
        || config.api.render_only
        || every.is_zero()
        || config.model.cli_mode == CliMode::Llmd
    {
        return None;
    }
    let (first, _) = config.engine.parallel.local_ranks;
    let engines = (first..).zip(live).enumerate();
    let engines = engines.map(|(index, (number, live))| LoggedEngine {
        number,
        live: live.clone(),
        metrics: metrics.engine(index),
    });
    Some((engines.collect(), every))
}

/// Logs about these engines until it is dropped.
pub(super) async fn run(engines: Vec<LoggedEngine>, every: Duration) {
    let mut last = vec![LastLine::default(); engines.len()];
    let mut before = Instant::now();
    loop {
        tokio::time::sleep(every).await;
        let seconds = before.elapsed().as_secs_f64();
        before = Instant::now();
        for (engine, last) in engines.iter().zip(&mut last) {
            let totals = engine.metrics.totals();
            let stats = engine.live.stats();
            let (text, is_idle) = line(engine.number, &stats, totals, last, seconds);
            if is_idle {
                tracing::debug!("{text}");
            } else {
                tracing::info!("{text}");
            }
        }
    }
}

/// The line, and whether the engine had nothing to do now and the last time.
fn line(
    number: u32,
    stats: &Stats,
    now: Totals,
    last: &mut LastLine,
    seconds: f64,
) -> (String, bool) {
    let rate = |now: u64, before: u64| (now.saturating_sub(before)) as f64 / seconds.max(1e-9);
    let rates = (
        rate(now.computed, last.totals.computed),
        rate(now.generated, last.totals.generated),
    );
    let preempted = now.preemptions.saturating_sub(last.totals.preemptions);
    let busy = [rates.0, rates.1, last.rates.0, last.rates.1];
    let is_idle = busy.iter().all(|rate| *rate == 0.0);
    *last = LastLine { totals: now, rates };
    let mut text = format!(
        "Engine {number:03}: Avg prompt throughput: {:.1} tokens/s, Avg generation throughput: {:.1} \
         tokens/s, Running: {} reqs, Waiting: {} reqs",
        rates.0,
        rates.1,
        stats.running,
        stats.waiting + stats.deferred
    );
    if stats.deferred > 0 {
        text.push_str(&format!(", Deferred: {} reqs", stats.deferred));
    }
    if preempted > 0 {
        text.push_str(&format!(", Preemptions: {preempted}"));
    }
    let usage = f64::from(stats.used_blocks) / f64::from(stats.total_blocks.max(1)) * 100.0;
    text.push_str(&format!(", GPU KV cache usage: {usage:.1}%"));
    let mut share = |name: &str, (hits, queries): (u64, u64)| {
        if queries > 0 {
            let share = hits as f64 / queries as f64 * 100.0;
            text.push_str(&format!(", {name}: {share:.1}%"));
        }
    };
    share("Prefix cache hit rate", now.prefix);
    share("External prefix cache hit rate", now.external);
    share("MM cache hit rate", now.media);
    (text, is_idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_vllms() {
        let stats = Stats {
            running: 3,
            waiting: 1,
            deferred: 1,
            used_blocks: 1,
            total_blocks: 8,
            ..Stats::default()
        };
        let totals = Totals {
            computed: 100,
            generated: 50,
            prefix: (1, 4),
            ..Totals::default()
        };
        let mut last = LastLine::default();
        let (text, is_idle) = line(0, &stats, totals, &mut last, 10.0);
        assert_eq!(
            text,
            "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 \
             tokens/s, Running: 3 reqs, Waiting: 2 reqs, Deferred: 1 reqs, GPU KV cache usage: \
             12.5%, Prefix cache hit rate: 25.0%"
        );
        assert!(!is_idle);
        assert!(!line(0, &stats, totals, &mut last, 10.0).1, "once more");
        assert!(line(0, &stats, totals, &mut last, 10.0).1);
    }
}
