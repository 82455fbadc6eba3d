//! Applies fake metrics to the cells that `/metrics` shows.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::cell::{Counter, Histogram};
use super::cells::{EngineCells, FINISH_REASONS};
use super::fake::{FakeGauge, FakeMetrics};
use super::lora::LoraInfo;
use super::settings::Clock;

const FAKE_REASONS: [&str; 5] =
    ["stop", "length", "tool_calls", "remote_decode", "cache_threshold"];

pub(super) struct FakeState {
    /// Metric cells on `/metrics`, one set per engine; only fake metrics write them.
    engines: Vec<EngineCells>,
    lora: Arc<LoraInfo>,
    refresh: Duration,
    clock: Clock,
    /// Fake gauges of running requests, waiting requests and KV cache usage, each with the time at
    /// which it was set, in Unix seconds.
    gauges: Mutex<[Option<(FakeGauge, f64)>; 3]>,
}

impl FakeState {
    pub(super) fn new(
        fake: &FakeMetrics,
        refresh: Duration,
        engines: Vec<EngineCells>,
        lora: Arc<LoraInfo>,
        clock: Clock,
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
            cells.stepped.show(1.0);
            apply(update, cells, at);
        }
        self.move_gauges(&gauges, at);
        if let Some(loras) = &update.loras {
            let mut series: Vec<_> =
                loras.iter().map(|l| (l.running.clone(), l.waiting.clone(), l.timestamp)).collect();
            if series.is_empty() {
                series.push((String::new(), String::new(), at.trunc()));
            }
            self.lora.replace(&series);
        }
    }

    pub(super) fn tick(&self, now_unix: f64) {
        self.move_gauges(&self.gauges.lock(), now_unix);
    }

    fn move_gauges(&self, gauges: &[Option<(FakeGauge, f64)>; 3], now_unix: f64) {
        let value = |i: usize, whole| {
            let (gauge, since) = gauges[i].as_ref()?;
            let t = Duration::try_from_secs_f64(now_unix - since).unwrap_or_default();
            Some(gauge.shown(t, self.refresh, whole))
        };
        let (running, waiting, usage) = (value(0, true), value(1, true), value(2, false));
        for cells in &self.engines {
            if let Some(v) = running {
                cells.running.set(v);
            }
            if let Some(v) = waiting {
                cells.waiting.set(v);
                cells.waiting_by_reason[0].set(v);
            }
            if let Some(v) = usage {
                cells.kv_usage.set(v);
            }
        }
    }
}

/// Applies an update of fake metrics to the cells of an engine, except for the gauges.
fn apply(u: &FakeMetrics, cells: &EngineCells, at: f64) {
    for (counts, cell) in [
        (&u.ttft_buckets_values, &cells.times.ttft),
        (&u.tpot_buckets_values, &cells.times.itl),
        (&u.request_params_max_tokens, &cells.sizes.params_max_tokens),
        (&u.request_max_generation_tokens, &cells.sizes.max_generation_tokens),
        (&u.e2erl_buckets_values, &cells.times.e2e),
        (&u.queue_time_buckets_values, &cells.times.queue),
        (&u.inf_time_buckets_values, &cells.times.inference),
        (&u.prefill_time_buckets_values, &cells.times.prefill),
        (&u.decode_time_buckets_values, &cells.times.decode),
        (&u.request_tpot_buckets_values, &cells.times.tpot),
    ] {
        replace(cell, counts.as_deref());
    }
    apply_tokens(
        (&cells.sizes.prompt_tokens, u.request_prompt_tokens.as_deref()),
        (&cells.prompt_tokens, u.total_prompt_tokens),
    );
    apply_tokens(
        (&cells.sizes.generation_tokens, u.request_generation_tokens.as_deref()),
        (&cells.generation_tokens, u.total_generation_tokens),
    );
    if let Some(n) = u.prefix_cache_queries {
        cells.lookups.prefix_queries.set(n);
    }
    if let Some(n) = u.prefix_cache_hits {
        cells.lookups.prefix_hits.set(n);
    }
    if let Some(success) = &u.request_success_total {
        for (i, reason) in FINISH_REASONS.into_iter().enumerate() {
            let n = success.get(reason).copied().unwrap_or(0);
            cells.success[i].set(n);
            if FAKE_REASONS.contains(&reason) {
                cells.success_shown[i].show(at);
            }
        }
    }
}

/// Sets a token counter to `given`, or to the sum of the observations in the fake histogram.
fn apply_tokens(
    (histogram, counts): (&Histogram, Option<&[u64]>),
    (total, given): (&Counter, Option<u64>),
) {
    let derived = replace(histogram, counts);
    if let Some(n) = given.or(derived) {
        total.set(n);
    }
}

fn replace(cell: &Histogram, counts: Option<&[u64]>) -> Option<u64> {
    counts.map(|counts| cell.replace(counts))
}
