//! Applies fake metrics to the cells that `/metrics` shows.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::fake::FakeMetrics;
use super::families::{FAMILIES, FINISH_REASONS, Id};
use super::lora::LoraRequestsInfo;
use super::series::{MetricCellVec, MetricCells};
use super::settings::{MetricsCompat, MetricsSettings, UnixClock};
use crate::waveform::Waveform;

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

/// Number of gauges in [`KEYS`].
const GAUGES: usize = 3;

/// Value of a fake gauge.
enum FakeGauge {
    Fixed(f64),
    Moving(Waveform),
}

pub(super) struct FakeMetricsState {
    /// Values of the metrics on `/metrics`, one set per engine.
    engines: Vec<MetricCells>,
    lora: LoraRequestsInfo,
    refresh: Duration,
    clock: UnixClock,
    /// Fake gauges, one for each of the first entries of [`KEYS`], in the same order; each has the
    /// Unix time at which it was set, in seconds.
    gauges: Mutex<[Option<(FakeGauge, f64)>; GAUGES]>,
}

impl FakeMetricsState {
    /// Applies the configured fake metrics to these families, which `/metrics` exposes. Replaces
    /// those with fake values by hidden ones for the real values.
    pub(super) fn new(
        (fake, refresh): &(FakeMetrics, Duration),
        settings: &Arc<MetricsSettings>,
        vecs: &mut [Arc<MetricCellVec>],
    ) -> Self {
        let engines = (0..settings.engines.len()).map(|rank| MetricCells::of_engine(vecs, rank));
        let state = Self {
            engines: engines.collect(),
            lora: LoraRequestsInfo::new(settings.clone(), vecs),
            refresh: *refresh,
            clock: settings.clock,
            gauges: Mutex::default(),
        };
        state.replace_fake_loras(&[]);
        state.update_fake_metrics(fake);
        let hidden = MetricCellVec::from_family_list(FAMILIES, settings);
        let is_llmd = settings.compat != MetricsCompat::Vllm;
        let faked = KEYS.iter().filter(|(_, _, counts)| !(is_llmd && *counts));
        for id in faked.map(|(_, id, _)| *id).chain([Id::WaitingByReason, Id::LoraRequests]) {
            vecs[id as usize] = hidden[id as usize].clone();
        }
        state
    }

    pub(super) fn update_fake_metrics(&self, update: &FakeMetrics) {
        let at = (self.clock.0)();
        for ((key, ..), gauge) in KEYS.iter().zip(&mut *self.gauges.lock()) {
            let new = match update.0.get(*key) {
                Some(Value::String(text)) => text.parse().ok().map(FakeGauge::Moving),
                value => value.and_then(Value::as_f64).map(FakeGauge::Fixed),
            };
            if let Some(new) = new {
                *gauge = Some((new, at));
            }
        }
        self.update_fake_gauges(at);
        for cells in &self.engines {
            for (key, id, _) in &KEYS[GAUGES..] {
                update.0.get(*key).inspect(|value| replace_values(cells, *id, value, at));
            }
        }
        if let Some(Value::Array(loras)) = update.0.get("loras") {
            self.replace_fake_loras(loras);
        }
    }

    fn replace_fake_loras(&self, loras: &[Value]) {
        let series = loras.iter().map(|lora| {
            let lists = ["running", "waiting"].map(|key| lora[key].as_str().unwrap_or_default());
            (lists, lora["timestamp"].as_f64().unwrap_or_default())
        });
        let mut series: Vec<_> = series.collect();
        if series.is_empty() {
            series.push((["", ""], (self.clock.0)().trunc()));
        }
        self.lora.replace_lora_series(&series);
    }

    pub(super) fn update_fake_gauges(&self, now_unix: f64) {
        for ((_, id, _), gauge) in KEYS.iter().zip(&*self.gauges.lock()) {
            let Some((gauge, since)) = gauge else { continue };
            let value = match gauge {
                FakeGauge::Fixed(value) => *value,
                FakeGauge::Moving(waveform) => {
                    let elapsed = Duration::try_from_secs_f64(now_unix - since).unwrap_or_default();
                    let value = waveform.value_after(elapsed, self.refresh);
                    if *id == Id::KvUsage { value } else { value.trunc() }
                }
            };
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
