//! Applies fake metrics to the cells that `/metrics` shows.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::fake::{FakeGauge, FakeMetrics};
use super::families::{FAMILIES, FINISH_REASONS, Id};
use super::lora::LoraRequestsInfo;
use super::series::{MetricCellVec, MetricCells};
use super::settings::{MetricsCompat, MetricsSettings, UnixClock};

/// Keys of fake metrics, each with the family whose values are replaced, and whether that family
/// still counts requests under llm-d's rules. Gauges are first. Totals follow histograms, because a
/// total replaces the sum of its histogram.
const KEYS: [(&str, Id, bool); 20] = [
    ("running-requests", Id::Running, false),
    ("waiting-requests", Id::Waiting, false),
    ("kv-cache-usage", Id::KvUsage, false),
    ("request-prompt-tokens", Id::RequestPromptTokens, true),
    ("total-prompt-tokens", Id::PromptTokens, true),
    ("request-generation-tokens", Id::RequestGenerationTokens, true),
    ("total-generation-tokens", Id::GenerationTokens, true),
    ("request-params-max-tokens", Id::ParamsMaxTokens, true),
    ("request-max-generation-tokens", Id::MaxGenerationTokens, true),
    ("request-success-total", Id::Success, true),
    ("prefix-cache-queries", Id::PrefixQueries, false),
    ("prefix-cache-hits", Id::PrefixHits, false),
    ("ttft-buckets-values", Id::Ttft, false),
    ("tpot-buckets-values", Id::Itl, false),
    ("request-tpot-buckets-values", Id::Tpot, false),
    ("e2erl-buckets-values", Id::E2e, false),
    ("queue-time-buckets-values", Id::QueueTime, false),
    ("inf-time-buckets-values", Id::InferenceTime, false),
    ("prefill-time-buckets-values", Id::PrefillTime, false),
    ("decode-time-buckets-values", Id::DecodeTime, false),
];

pub(super) struct FakeMetricsState {
    /// Values of the metrics on `/metrics`, one set per engine.
    engines: Vec<MetricCells>,
    lora: LoraRequestsInfo,
    refresh: Duration,
    clock: UnixClock,
    /// Fake gauges, one for each of the first entries of [`KEYS`], in the same order; each has the
    /// Unix time at which it was set, in seconds.
    gauges: Mutex<[Option<(FakeGauge, f64)>; 3]>,
}

impl FakeMetricsState {
    /// Applies the configured fake metrics to the families on `/metrics`.
    pub(super) fn new(
        (fake, refresh): &(FakeMetrics, Duration),
        settings: &MetricsSettings,
        exposed: &[Arc<MetricCellVec>],
    ) -> Self {
        let engines = (0..settings.engines.len()).map(|rank| MetricCells::of_engine(exposed, rank));
        let state = Self {
            engines: engines.collect(),
            lora: LoraRequestsInfo::new(settings, exposed),
            refresh: *refresh,
            clock: settings.clock,
            gauges: Mutex::default(),
        };
        let stepped = FAMILIES.iter().enumerate().filter(|(_, family)| family.hidden_until_step);
        for (id, _) in stepped {
            let cells = state.engines.iter().flat_map(|cells| cells.series_cells(id));
            cells.for_each(|cell| cell.expose_metric_series(1.0));
        }
        let mut initial = fake.clone();
        initial.loras.get_or_insert_default();
        state.update_fake_metrics(&initial);
        state
    }

    /// Returns the metric families with their real values: those on `/metrics`, with hidden
    /// families in place of those that may have fake values.
    pub(super) fn families_of_real_values(
        settings: &MetricsSettings,
        mut vecs: Vec<Arc<MetricCellVec>>,
    ) -> Vec<Arc<MetricCellVec>> {
        let hidden = MetricCellVec::from_family_list(FAMILIES, settings);
        let is_llmd = settings.compat != MetricsCompat::Vllm;
        let faked =
            KEYS.iter().filter(|(_, _, counts)| !(is_llmd && *counts)).map(|(_, id, _)| *id);
        for id in faked.chain([Id::WaitingByReason, Id::LoraRequests]) {
            vecs[id as usize] = hidden[id as usize].clone();
        }
        vecs
    }

    pub(super) fn update_fake_metrics(&self, update: &FakeMetrics) {
        let at = (self.clock)();
        let mut gauges = self.gauges.lock();
        for ((key, _, _), gauge) in KEYS.iter().zip(&mut *gauges) {
            if let Some(new) = update.values.get(*key).and_then(FakeGauge::from_json) {
                *gauge = Some((new, at));
            }
        }
        self.move_gauges(&gauges, at);
        for cells in &self.engines {
            for (key, id, _) in &KEYS[gauges.len()..] {
                update.values.get(*key).inspect(|value| replace_values(cells, *id, value, at));
            }
        }
        if let Some(loras) = &update.loras {
            let series =
                loras.iter().map(|lora| ([&*lora.running, &*lora.waiting], lora.timestamp));
            let mut series: Vec<_> = series.collect();
            if series.is_empty() {
                series.push((["", ""], at.trunc()));
            }
            self.lora.replace_lora_series(&series);
        }
    }

    pub(super) fn update_fake_gauges(&self, now_unix: f64) {
        self.move_gauges(&self.gauges.lock(), now_unix);
    }

    fn move_gauges(&self, gauges: &[Option<(FakeGauge, f64)>; 3], now_unix: f64) {
        for ((_, id, _), gauge) in KEYS.iter().zip(gauges) {
            let Some((gauge, since)) = gauge else {
                continue;
            };
            let t = Duration::try_from_secs_f64(now_unix - since).unwrap_or_default();
            let value = gauge.fake_gauge_value(t, self.refresh, *id != Id::KvUsage);
            for cells in &self.engines {
                cells[*id].set(value);
                if *id == Id::Waiting {
                    cells[Id::WaitingByReason].set(value);
                }
            }
        }
    }
}

/// Replaces the values of an engine's metric family by a number, by the number of observations in
/// each bucket, or by the counts of finish reasons.
fn replace_values(cells: &MetricCells, id: Id, value: &Value, at: f64) {
    match value {
        Value::Number(number) => cells[id].set(number.as_f64().unwrap_or_default()),
        Value::Array(counts) => {
            let counts: Vec<_> = counts.iter().filter_map(Value::as_u64).collect();
            let sum = cells[id].replace_bucket_counts(&counts) as f64;
            match id {
                Id::RequestPromptTokens => cells[Id::PromptTokens].set(sum),
                Id::RequestGenerationTokens => cells[Id::GenerationTokens].set(sum),
                _ => {}
            }
        }
        Value::Object(counts) => {
            for (reason, cell) in FINISH_REASONS.iter().zip(cells.series_cells(id)) {
                cell.set(counts.get(*reason).and_then(Value::as_f64).unwrap_or_default());
                cell.expose_metric_series(at);
            }
        }
        _ => {}
    }
}
