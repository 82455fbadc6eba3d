//! The log line of vLLM about each engine, printed at regular intervals.
//!
//! Source: vLLM 0.33 `vllm/v1/metrics/loggers.py`, `LoggingStatLogger`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use vllm_sim_config::{CliMode, Config};
use vllm_sim_engine::EngineStats;
use vllm_sim_engine::driver::LiveEngine;
use vllm_sim_observe::metrics::{EngineMetrics, Metrics};

pub(super) struct StatsLogEngine {
    number: u32,
    live: LiveEngine,
    metrics: Arc<EngineMetrics>,
}

/// Totals of one engine's tokens and preemptions since its start, and its recent cache lookups.
#[derive(Debug, Clone, Copy, Default)]
struct EngineTotals {
    /// Number of prompt tokens that the engine has computed.
    computed: u64,
    generated: u64,
    preemptions: u64,
    /// Prefix-cache hits and queries of the newest requests, in tokens.
    prefix: (u64, u64),
    external: (u64, u64),
    media: (u64, u64),
}

impl EngineTotals {
    fn of_engine(metrics: &EngineMetrics) -> Self {
        let [prefix, external, media] = metrics.recent_cache_lookups();
        Self {
            computed: total(metrics, "vllm:prompt_tokens_by_source_total"),
            generated: total(metrics, "vllm:generation_tokens_total"),
            preemptions: total(metrics, "vllm:num_preemptions_total"),
            prefix,
            external,
            media,
        }
    }
}

/// Returns the value of the engine's first series of a metric family.
fn total(metrics: &EngineMetrics, family: &str) -> u64 {
    metrics.series_values(family).first().map_or(0, |value| *value as u64)
}

#[derive(Debug, Clone, Copy, Default)]
struct PreviousStats {
    totals: EngineTotals,
    /// Rates of prompt tokens and output tokens, per second.
    rates: (f64, f64),
}

/// Returns the engines to log and the log interval; `None` without a periodic log line, as in
/// llm-d.
pub(super) fn engines_with_stats_log(
    config: &Config,
    metrics: &Arc<Metrics>,
    live: &[LiveEngine],
) -> Option<(Vec<StatsLogEngine>, Duration)> {
    let log_interval = config.metrics.log_interval;
    if config.metrics.disable_log_stats
        || config.api.scale_out.render_only
        || log_interval.is_zero()
        || config.model.cli_mode == CliMode::Llmd
    {
        return None;
    }
    let (first, _) = config.engine.parallel.local_ranks;
    let engines = (first..).zip(live).enumerate();
    let engines = engines.map(|(index, (number, live))| StatsLogEngine {
        number,
        live: live.clone(),
        metrics: metrics.engine_metrics(index),
    });
    Some((engines.collect(), log_interval))
}

pub(super) async fn log_engine_stats_periodically(engines: Vec<StatsLogEngine>, every: Duration) {
    let mut last = vec![PreviousStats::default(); engines.len()];
    let mut drafts = vec![PreviousDraftCounts::default(); engines.len()];
    let mut copies = vec![LastCopies::default(); engines.len()];
    let mut before = Instant::now();
    loop {
        tokio::time::sleep(every).await;
        let seconds = before.elapsed().as_secs_f64();
        before = Instant::now();
        let before = last.iter_mut().zip(&mut drafts).zip(&mut copies);
        for (engine, ((last, drafts), copies)) in engines.iter().zip(before) {
            let totals = EngineTotals::of_engine(&engine.metrics);
            let stats = engine.live.stats();
            let (text, is_idle) =
                engine_stats_log_line(engine.number, &stats, totals, last, seconds);
            if is_idle {
                tracing::debug!("{text}");
            } else {
                tracing::info!("{text}");
            }
            drafts.seconds += seconds;
            if let Some(text) =
                drafts.speculation_log_line(DraftTokenTotals::of_engine(&engine.metrics))
            {
                tracing::info!("{text}");
            }
            let copied = KV_COPY_FAMILIES.map(|name| (name, engine.metrics.series_values(name)[0]));
            if let Some(text) = copies.kv_copy_log_line(copied.to_vec()) {
                tracing::info!("{text}");
            }
        }
    }
}

/// Metric families of KV copies between GPU and host memory.
const KV_COPY_FAMILIES: [&str; 5] = [
    "vllm:kv_offload_store_bytes_total",
    "vllm:kv_offload_store_time_total",
    "vllm:kv_offload_load_bytes_total",
    "vllm:kv_offload_load_time_total",
    "vllm:kv_offload_allocation_failure_total",
];

/// Counters of KV block copies between GPU and host memory, as of the previous log line.
#[derive(Debug, Clone, Default)]
struct LastCopies(Vec<f64>);

impl LastCopies {
    /// Returns the log line about KV copies since the previous log line, if there were any.
    ///
    /// Source: vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/metrics.py`,
    /// `KVConnectorLogging`.
    fn kv_copy_log_line(&mut self, now: Vec<(&'static str, f64)>) -> Option<String> {
        let before = std::mem::take(&mut self.0);
        let before = before.into_iter().chain(std::iter::repeat(0.0));
        let grown = now.iter().zip(before);
        let grown: Vec<String> = grown
            .filter(|((_, now), before)| now > before)
            .map(|((name, now), before)| {
                let name = name.strip_suffix("_total").unwrap_or(name);
                format!("{name}={}", now - before)
            })
            .collect();
        self.0 = now.into_iter().map(|(_, now)| now).collect();
        (!grown.is_empty()).then(|| format!("KV Transfer metrics: {}", grown.join(", ")))
    }
}

/// Totals of an engine's speculative decoding since its start.
#[derive(Debug, Clone, Default)]
struct DraftTokenTotals {
    /// Number of verifications of draft tokens, one per sequence and step.
    drafts: u64,
    proposed: u64,
    accepted: u64,
    /// Number of accepted draft tokens by position in the draft.
    accepted_at: Vec<u64>,
}

impl DraftTokenTotals {
    fn of_engine(metrics: &EngineMetrics) -> Self {
        let accepted_at =
            metrics.series_values("vllm:spec_decode_num_accepted_tokens_per_pos_total");
        Self {
            drafts: total(metrics, "vllm:spec_decode_num_drafts_total"),
            proposed: total(metrics, "vllm:spec_decode_num_draft_tokens_total"),
            accepted: total(metrics, "vllm:spec_decode_num_accepted_tokens_total"),
            accepted_at: accepted_at.into_iter().map(|n| n as u64).collect(),
        }
    }
}

/// Counters of draft tokens as of the previous log line, and the time since then, in seconds.
#[derive(Debug, Clone, Default)]
struct PreviousDraftCounts {
    totals: DraftTokenTotals,
    seconds: f64,
}

impl PreviousDraftCounts {
    /// Returns the log line about speculative decoding since the previous log line, if there was
    /// any.
    ///
    /// Source: vLLM 0.33 `vllm/v1/spec_decode/metrics.py`, `SpecDecodingLogging`.
    fn speculation_log_line(&mut self, now: DraftTokenTotals) -> Option<String> {
        let before = std::mem::replace(&mut self.totals, now);
        let now = &self.totals;
        let drafts = now.drafts.saturating_sub(before.drafts);
        if drafts == 0 {
            return None;
        }
        let seconds = std::mem::take(&mut self.seconds).max(1e-9);
        let proposed = now.proposed.saturating_sub(before.proposed);
        let accepted = now.accepted.saturating_sub(before.accepted);
        let share = |n: u64, of: u64| n as f64 / of.max(1) as f64;
        let earlier = before.accepted_at.iter().copied().chain(std::iter::repeat(0));
        let at = now.accepted_at.iter().zip(earlier);
        let at =
            at.map(|(now, before)| format!("{:.3}", share(now.saturating_sub(before), drafts)));
        Some(format!(
            "SpecDecoding metrics: Mean acceptance length: {:.2}, Accepted throughput: {:.2} \
             tokens/s, Drafted throughput: {:.2} tokens/s, Accepted: {accepted} tokens, Drafted: \
             {proposed} tokens, Per-position acceptance rate: {}, Avg Draft acceptance rate: \
             {:.1}%",
            1.0 + share(accepted, drafts),
            accepted as f64 / seconds,
            proposed as f64 / seconds,
            at.collect::<Vec<_>>().join(", "),
            share(accepted, proposed) * 100.0,
        ))
    }
}

/// Returns the periodic log line of an engine, and whether the engine was idle for this and the
/// previous interval.
fn engine_stats_log_line(
    number: u32,
    stats: &EngineStats,
    now: EngineTotals,
    last: &mut PreviousStats,
    seconds: f64,
) -> (String, bool) {
    let rate = |now: u64, before: u64| (now.saturating_sub(before)) as f64 / seconds.max(1e-9);
    let rates =
        (rate(now.computed, last.totals.computed), rate(now.generated, last.totals.generated));
    let preempted = now.preemptions.saturating_sub(last.totals.preemptions);
    let busy = [rates.0, rates.1, last.rates.0, last.rates.1];
    let is_idle = busy.iter().all(|rate| *rate == 0.0);
    *last = PreviousStats { totals: now, rates };
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
    if let [expected, begun, done] = stats.fetches
        && stats.fetches != [0; 3]
    {
        text.push_str(&format!(
            ", KV fetch: {expected} waiting to start, {begun} in progress, {done} completed waiting"
        ));
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
    fn the_line_about_drafts_is_vllms() {
        let totals = |drafts, proposed, accepted, accepted_at: &[u64]| DraftTokenTotals {
            drafts,
            proposed,
            accepted,
            accepted_at: accepted_at.to_vec(),
        };
        let mut last = PreviousDraftCounts::default();
        assert_eq!(last.speculation_log_line(totals(0, 0, 0, &[0, 0])), None);
        last.seconds = 10.0;
        assert_eq!(
            last.speculation_log_line(totals(100, 200, 120, &[80, 40])).as_deref(),
            Some(
                "SpecDecoding metrics: Mean acceptance length: 2.20, Accepted throughput: 12.00 \
                 tokens/s, Drafted throughput: 20.00 tokens/s, Accepted: 120 tokens, Drafted: 200 \
                 tokens, Per-position acceptance rate: 0.800, 0.400, Avg Draft acceptance rate: \
                 60.0%"
            )
        );
        last.seconds = 5.0;
        let next = last.speculation_log_line(totals(150, 300, 120, &[80, 40])).unwrap_or_default();
        assert!(next.contains("length: 1.00") && next.contains("rate: 0.000, 0.000"), "{next}");
    }

    #[test]
    fn a_log_line_reports_copies_since_the_last_line() {
        let mut last = LastCopies::default();
        let totals = |bytes, time| vec![("vllm:b_total", bytes), ("vllm:t", time)];
        assert_eq!(last.kv_copy_log_line(totals(0.0, 0.0)), None);
        let text = last.kv_copy_log_line(totals(100.0, 0.5));
        assert_eq!(text.as_deref(), Some("KV Transfer metrics: vllm:b=100, vllm:t=0.5"));
        let text = last.kv_copy_log_line(totals(130.0, 0.5));
        assert_eq!(text.as_deref(), Some("KV Transfer metrics: vllm:b=30"));
    }

    #[test]
    fn stats_log_line_matches_vllm() {
        let stats = EngineStats {
            running: 3,
            waiting: 1,
            deferred: 1,
            fetches: [0, 2, 1],
            used_blocks: 1,
            total_blocks: 8,
            ..EngineStats::default()
        };
        let totals = EngineTotals {
            computed: 100,
            generated: 50,
            prefix: (1, 4),
            ..EngineTotals::default()
        };
        let mut last = PreviousStats::default();
        let (text, is_idle) = engine_stats_log_line(0, &stats, totals, &mut last, 10.0);
        assert_eq!(
            text,
            "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 \
             tokens/s, Running: 3 reqs, Waiting: 2 reqs, Deferred: 1 reqs, KV fetch: 0 \
             waiting to start, 2 in progress, 1 completed waiting, GPU KV cache usage: 12.5%, Prefix cache hit rate: 25.0%"
        );
        assert!(!is_idle);
        assert!(!engine_stats_log_line(0, &stats, totals, &mut last, 10.0).1, "once more");
        assert!(engine_stats_log_line(0, &stats, totals, &mut last, 10.0).1);
    }
}
