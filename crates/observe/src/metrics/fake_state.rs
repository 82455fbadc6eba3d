//! Applies fake metrics to the cells that `/metrics` shows.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::fake::{FakeGauge, FakeMetrics};
use super::families::{FINISH_REASONS, Id};
use super::lora::LoraRequestsInfo;
use super::series::MetricCells;
use super::settings::UnixClock;

const FAKE_REASONS: [&str; 5] =
    ["stop", "length", "tool_calls", "remote_decode", "cache_threshold"];

pub(super) struct FakeMetricsState {
    /// Metric cells on `/metrics`, one set per engine; only fake metrics write them.
    engines: Vec<MetricCells>,
    lora: Arc<LoraRequestsInfo>,
    refresh: Duration,
    clock: UnixClock,
    /// Fake gauges of running requests, waiting requests and KV cache usage, each with the time at
    /// which it was set, in Unix seconds.
    gauges: Mutex<[Option<(FakeGauge, f64)>; 3]>,
}

impl FakeMetricsState {
    pub(super) fn new(
        fake: &FakeMetrics,
        refresh: Duration,
        engines: Vec<MetricCells>,
        lora: Arc<LoraRequestsInfo>,
        clock: UnixClock,
    ) -> Self {
        let state = Self { engines, lora, refresh, clock, gauges: Mutex::default() };
        let mut initial = fake.clone();
        initial.loras.get_or_insert_default();
        state.update(&initial);
        state
    }

    pub(super) fn update(&self, update: &FakeMetrics) {
        let at = (self.clock)();
        let mut gauges = self.gauges.lock();
        let updated = [update.running_requests, update.waiting_requests, update.kv_cache_usage];
        for (kept, new) in gauges.iter_mut().zip(updated) {
            if let Some(gauge) = new {
                *kept = Some((gauge, at));
            }
        }
        for cells in &self.engines {
            let stepped = cells.iter().filter(|(family, _)| family.hidden_until_step);
            stepped.flat_map(|(_, cells)| cells.iter()).for_each(|cell| cell.show_series(1.0));
            apply(update, cells, at);
        }
        self.move_gauges(&gauges, at);
        if let Some(loras) = &update.loras {
            let series = loras.iter().map(|l| ([&*l.running, &*l.waiting], l.timestamp));
            let mut series: Vec<_> = series.collect();
            if series.is_empty() {
                series.push((["", ""], at.trunc()));
            }
            self.lora.replace_series(&series);
        }
    }

    pub(super) fn update_gauges(&self, now_unix: f64) {
        self.move_gauges(&self.gauges.lock(), now_unix);
    }

    fn move_gauges(&self, gauges: &[Option<(FakeGauge, f64)>; 3], now_unix: f64) {
        let ids = [Id::Running, Id::Waiting, Id::KvUsage];
        for (id, gauge) in ids.into_iter().zip(gauges) {
            let Some((gauge, since)) = gauge else {
                continue;
            };
            let t = Duration::try_from_secs_f64(now_unix - since).unwrap_or_default();
            let value = gauge.shown_value(t, self.refresh, id != Id::KvUsage);
            for cells in &self.engines {
                cells[id].set(value);
                if id == Id::Waiting {
                    cells[Id::WaitingByReason].set(value);
                }
            }
        }
    }
}

/// Applies an update of fake metrics to the cells of an engine, except for the gauges.
fn apply(u: &FakeMetrics, cells: &MetricCells, at: f64) {
    let observe =
        |counts: &Option<Vec<u64>>, id: Id| Some(cells[id].replace_bucket_counts(counts.as_ref()?));
    let count = |n: Option<u64>, id: Id| n.map(|n| cells[id].set(n as f64));
    // A total that is not given is the sum of the observations.
    let prompt = observe(&u.request_prompt_tokens, Id::RequestPromptTokens);
    let output = observe(&u.request_generation_tokens, Id::RequestGenerationTokens);
    count(u.total_prompt_tokens.or(prompt), Id::PromptTokens);
    count(u.total_generation_tokens.or(output), Id::GenerationTokens);
    count(u.prefix_cache_queries, Id::PrefixQueries);
    count(u.prefix_cache_hits, Id::PrefixHits);
    observe(&u.ttft_buckets_values, Id::Ttft);
    observe(&u.tpot_buckets_values, Id::Itl);
    observe(&u.request_params_max_tokens, Id::ParamsMaxTokens);
    observe(&u.request_max_generation_tokens, Id::MaxGenerationTokens);
    observe(&u.e2erl_buckets_values, Id::E2e);
    observe(&u.queue_time_buckets_values, Id::QueueTime);
    observe(&u.inf_time_buckets_values, Id::InferenceTime);
    observe(&u.prefill_time_buckets_values, Id::PrefillTime);
    observe(&u.decode_time_buckets_values, Id::DecodeTime);
    observe(&u.request_tpot_buckets_values, Id::Tpot);
    if let Some(success) = &u.request_success_total {
        for (reason, cell) in FINISH_REASONS.iter().zip(cells.series_cells(Id::Success)) {
            cell.set(success.get(*reason).copied().unwrap_or(0) as f64);
            if FAKE_REASONS.contains(reason) {
                cell.show_series(at);
            }
        }
    }
}
