//! Fake metrics, as in llm-d-inference-sim's `fake-metrics`.
//!
//! A server with fake metrics exposes them instead of real values, for every series that they can
//! set; those without a value are zero. With llm-d's rules, requests are still added to token
//! histograms, totals and finish reasons. Other series (steps, preemptions, HTTP) stay real, and
//! the simulator itself never reads a fake value.
//!
//! An update is partial: absent or `null` keys keep their value, `[]` and `{}` clear. A function of
//! time starts its period when it is set. The configuration validates values: here unknown keys are
//! ignored and surplus buckets are merged.
//!
//! **Source:** llm-d-inference-sim `pkg/common/config_fake_metrics.go`,
//! `pkg/llm-d-inference-sim/fake_metrics.go`.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::families::{FAMILIES, FINISH_REASONS, Id};
use super::lora::LoraRequestsInfo;
use super::series::{MetricCellVec, MetricCells};
use super::settings::{FakeMetrics, MetricsCompat, MetricsSettings};
use crate::waveform::Waveform;

/// Error for an update of fake metrics on a server with real metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulator is reporting real metrics; fake metrics cannot be updated")]
pub struct FakeMetricsDisabled;

/// Keys of fake metrics, each with the family whose values are replaced, and whether that family
/// still counts requests under llm-d's rules. Totals follow histograms, because a total replaces the
/// sum of its histogram.
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
    /// Functions of time of the [`KEYS`], each with the Unix time at which it was set, in seconds.
    waveforms: Mutex<[Option<(Waveform, f64)>; KEYS.len()]>,
    settings: Arc<MetricsSettings>,
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
            waveforms: Mutex::default(),
            settings: settings.clone(),
        };
        state.update_fake_metrics(fake);
        let hidden = MetricCellVec::from_family_list(FAMILIES, settings);
        let is_llmd = settings.compat != MetricsCompat::Vllm;
        let faked = KEYS.iter().filter(|(_, _, counts)| !(is_llmd && *counts));
        for id in faked.map(|(_, id, _)| *id).chain([Id::WaitingByReason, Id::LoraRequests]) {
            vecs[id as usize] = hidden[id as usize].clone();
        }
        state
    }

    pub(super) fn update_fake_metrics(&self, FakeMetrics(update): &FakeMetrics) {
        let at = (self.settings.clock.0)();
        for ((key, ..), waveform) in KEYS.iter().zip(&mut *self.waveforms.lock()) {
            match update.get(*key) {
                Some(Value::String(text)) => *waveform = text.parse().ok().zip(Some(at)),
                Some(Value::Number(_)) => *waveform = None,
                _ => {}
            }
        }
        for cells in &self.engines {
            for (key, id, _) in &KEYS {
                update.get(*key).inspect(|value| replace_values(cells, *id, value, at));
            }
        }
        self.update_fake_gauges(at);
        if let Some(Value::Array(loras)) = update.get("loras") {
            let series = loras.iter().map(|lora| {
                let lists =
                    ["running", "waiting"].map(|key| lora[key].as_str().unwrap_or_default());
                (lists, lora["timestamp"].as_f64().unwrap_or_default())
            });
            self.lora.replace_lora_series(&series.collect::<Vec<_>>());
        }
    }

    /// Sets the gauges that are functions of time to their values at this Unix time, in seconds.
    pub(super) fn update_fake_gauges(&self, now_unix: f64) {
        for ((_, id, _), waveform) in KEYS.iter().zip(&*self.waveforms.lock()) {
            let Some((waveform, since)) = waveform else { continue };
            let elapsed = Duration::try_from_secs_f64(now_unix - since).unwrap_or_default();
            let value = waveform.value_after(elapsed, self.refresh);
            let value = if *id == Id::KvUsage { value } else { value.trunc() };
            self.engines.iter().for_each(|cells| replace_number(cells, *id, value));
        }
    }
}

fn replace_number(cells: &MetricCells, id: Id, value: f64) {
    cells[id].set(value);
    if id == Id::Waiting {
        cells[Id::WaitingByReason].set(value);
    }
}

/// Replaces the values of an engine's metric family by a number, by the number of observations in
/// each bucket, or by the counts of finish reasons.
fn replace_values(cells: &MetricCells, id: Id, value: &Value, at: f64) {
    match value {
        Value::Number(number) => replace_number(cells, id, number.as_f64().unwrap_or_default()),
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
