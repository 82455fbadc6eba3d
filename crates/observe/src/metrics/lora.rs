//! The family `vllm:lora_requests_info`: running and waiting adapters as labels, the time as value.
//!
//! A new combination of adapters adds a series, and old ones stay: readers take the series with the
//! largest value. vLLM lists an adapter with requests in both lists; llm-d's simulator lists it
//! only where it has requests.
//!
//! With several API servers vLLM adds up the times of their processes, which misleads readers; here
//! the value is always a time. vLLM exposes no series before its first step, and readers then
//! assume that there is no room for adapters. Here, as in llm-d's simulator, empty lists are
//! exposed from the start.
//!
//! **Source:** vLLM `vllm/v1/metrics/{loggers,stats}.py`; llm-d-inference-sim `metrics.go`.

use std::{ptr, sync::Arc};

use super::families::Id;
use super::resident_adapters::ResidentLoraAdapters;
use super::series::MetricCellVec;
use super::settings::{MetricsCompat, MetricsSettings};
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};
use vllm_sim_engine::{EngineStats, SchedulerEvent};

/// Maximum number of `vllm:lora_requests_info` series; beyond it the least recently set one is
/// removed.
const MAX_SERIES: usize = 4096;

/// Series of `vllm:lora_requests_info` of all engines; they have no engine label.
pub(super) struct LoraRequestsInfo {
    cell_vec: Arc<MetricCellVec>,
    settings: Arc<MetricsSettings>,
}

impl LoraRequestsInfo {
    /// Exposes the series of a server without requests for adapters.
    pub(super) fn new(settings: Arc<MetricsSettings>, vecs: &[Arc<MetricCellVec>]) -> Self {
        let info = Self { cell_vec: vecs[Id::LoraRequests as usize].clone(), settings };
        info.replace_lora_series(&[]);
        info
    }

    /// Returns the current Unix time as the value of a series; for llm-d's simulator, and with fake
    /// metrics, in whole seconds.
    fn current_unix_seconds(&self) -> f64 {
        let MetricsSettings { clock, compat, fake, .. } = &*self.settings;
        let unix = (clock.0)();
        if *compat == MetricsCompat::Llmd || fake.is_some() { unix.trunc() } else { unix }
    }

    /// Sets the value of the series that has the given lists of running and waiting adapters as
    /// labels; adds the series if there is none.
    fn set_lora_series_value(&self, [running, waiting]: [&str; 2], value: f64) {
        let max_lora = self.settings.lora.unwrap_or(1).to_string();
        let series = self.cell_vec.with_label_values(&[&max_lora, running, waiting], 0.0);
        series.set(value);
        let all = self.cell_vec.series.load();
        if all.len() > MAX_SERIES {
            let others = all.iter().filter(|other| !Arc::ptr_eq(other, &series));
            let oldest =
                others.min_by(|a, b| a.get().total_cmp(&b.get()).then(a.position.cmp(&b.position)));
            self.cell_vec.retain_series(|one| oldest.is_none_or(|other| !ptr::eq(one, &**other)));
        }
    }

    /// Replaces all series of `vllm:lora_requests_info` by the given ones: running adapters,
    /// waiting adapters, value. Without any, the single series is that of a server without requests
    /// for adapters.
    pub(super) fn replace_lora_series(&self, series: &[([&str; 2], f64)]) {
        self.cell_vec.retain_series(|_| false);
        for (lists, value) in series {
            self.set_lora_series_value(*lists, *value);
        }
        if series.is_empty() {
            self.set_lora_series_value(["", ""], self.current_unix_seconds());
        }
    }
}

/// Exposes the adapters of one engine: those with sequences, and those in memory.
pub(super) struct LoraObserver {
    info: Arc<LoraRequestsInfo>,
    /// LoRA adapters with their numbers of running and waiting sequences, ordered by their first
    /// sequence.
    adapters: Vec<(Arc<str>, [u32; 2])>,
    /// Whether a queued sequence has an adapter that the lists do not show yet.
    queued: bool,
    resident: Option<ResidentLoraAdapters>,
}

impl LoraObserver {
    pub(super) fn new(info: Arc<LoraRequestsInfo>, resident: Option<ResidentLoraAdapters>) -> Self {
        Self { info, adapters: Vec::new(), queued: false, resident }
    }

    /// Changes the numbers of running and waiting sequences of an adapter.
    fn change_adapter_sequence_counts(&mut self, name: &Arc<str>, change: [i32; 2]) {
        let known = self.adapters.iter().position(|(adapter, _)| adapter == name);
        let index = known.unwrap_or_else(|| {
            self.adapters.push((name.clone(), [0, 0]));
            self.adapters.len() - 1
        });
        let counts = &mut self.adapters[index].1;
        counts.iter_mut().zip(change).for_each(|(n, by)| *n = n.saturating_add_signed(by));
        if *counts == [0, 0] {
            self.adapters.remove(index);
        }
    }

    /// Changes the numbers of sequences of an adapter, and exposes the lists of the adapters that
    /// have running or waiting ones.
    fn show_sequences(&mut self, name: &Arc<str>, change: [i32; 2]) {
        self.change_adapter_sequence_counts(name, change);
        self.update_exposed_adapter_lists();
    }

    fn update_exposed_adapter_lists(&mut self) {
        self.queued = false;
        let both = self.info.settings.compat != MetricsCompat::Llmd;
        let [running, waiting] = &[0, 1].map(|list| {
            let listed = self.adapters.iter().filter(|(_, counts)| both || counts[list] > 0);
            listed.map(|(name, _)| &**name).collect::<Vec<_>>().join(",")
        });
        self.info.set_lora_series_value([running, waiting], self.info.current_unix_seconds());
    }

    /// Records the use of an adapter in memory: it was loaded, or a sequence with it starts or ends.
    fn use_in_memory(&mut self, name: &Arc<str>) {
        if let Some(resident) = &mut self.resident {
            let is_running =
                |other: &str| self.adapters.iter().any(|(name, [n, _])| **name == *other && *n > 0);
            resident.use_lora_adapter(name, is_running);
        }
    }
}

impl EngineObserver for LoraObserver {
    fn on_adapter_queued(&mut self, adapter: &Arc<str>) {
        // Not exposed yet: a sequence that starts immediately never waits, and readers of equal
        // times take the first series.
        self.change_adapter_sequence_counts(adapter, [0, 1]);
        self.queued = true;
    }

    fn on_adapter_event(
        &mut self,
        adapter: &Arc<str>,
        event: &SchedulerEvent,
        record: &SequenceRecord,
    ) {
        let change = match event {
            SchedulerEvent::Scheduled { .. } | SchedulerEvent::Resumed { .. } => [1, -1],
            SchedulerEvent::Preempted { .. } => [-1, 1],
            SchedulerEvent::Ended { .. } if record.running => [-1, 0],
            SchedulerEvent::Ended { .. } => [0, -1],
            _ => return,
        };
        if change[0] != 0 {
            self.use_in_memory(adapter);
        }
        self.show_sequences(adapter, change);
    }

    fn on_engine_stats(&mut self, _: &EngineStats) {
        if self.queued {
            self.update_exposed_adapter_lists();
        }
    }

    /// Lists the adapter of a rejected request briefly as running, because llm-d's simulator checks
    /// the context length only when a request runs.
    fn on_lora_refused(&mut self, lora: &Arc<str>) {
        self.show_sequences(lora, [1, 0]);
        self.show_sequences(lora, [-1, 0]);
    }

    fn on_lora_loaded(&mut self, lora: &Arc<str>) {
        self.use_in_memory(lora);
    }

    fn on_loras_cleared(&mut self) {
        if let Some(resident) = &mut self.resident {
            resident.clear_resident_adapters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::UnixClock;
    use super::super::families::FAMILIES;
    use super::*;

    fn info(max_lora: u32, compat: MetricsCompat) -> Arc<LoraRequestsInfo> {
        let lora = Some(max_lora);
        let settings = MetricsSettings {
            lora,
            compat,
            clock: UnixClock(|| 10.5),
            ..MetricsSettings::default()
        };
        let vecs = MetricCellVec::from_family_list(FAMILIES, &settings);
        Arc::new(LoraRequestsInfo::new(Arc::new(settings), &vecs))
    }

    /// Returns the label values and the value of each series.
    fn text(info: &LoraRequestsInfo) -> Vec<String> {
        let mut series = info.cell_vec.series.load().to_vec();
        series.sort_by_key(|series| series.position);
        let lines = series.iter().map(|series| {
            let labels: Vec<_> = series.label_values().collect();
            format!("{} {:?}", labels.join(" | "), series.get())
        });
        lines.collect()
    }

    fn count(observer: &mut LoraObserver, name: &str, running: i32, waiting: i32) {
        observer.show_sequences(&name.into(), [running, waiting]);
    }

    #[test]
    fn vllm_lists_an_adapter_with_a_request_twice_and_keeps_old_series() {
        let info = info(2, MetricsCompat::Vllm);
        let mut observer = LoraObserver::new(info.clone(), None);
        assert_eq!(text(&info), ["2 |  |  10.5"]);
        count(&mut observer, "sql-lora", 1, 0);
        count(&mut observer, "sql-lora", -1, 0);
        count(&mut observer, "sql-lora", 0, 1);
        assert_eq!(text(&info), ["2 |  |  10.5", "2 | sql-lora | sql-lora 10.5"]);
    }

    #[test]
    fn llm_d_lists_an_adapter_where_it_is_in_whole_seconds() {
        let info = info(1, MetricsCompat::Llmd);
        let mut observer = LoraObserver::new(info.clone(), None);
        observer.change_adapter_sequence_counts(&"a".into(), [2, 0]);
        count(&mut observer, "b", 1, 3);
        assert_eq!(text(&info), ["1 |  |  10.0", "1 | a,b | b 10.0"]);
    }

    #[test]
    fn engines_share_a_series_and_the_list_is_bounded() {
        let info = info(1, MetricsCompat::Vllm);
        let (mut one, mut two) =
            (LoraObserver::new(info.clone(), None), LoraObserver::new(info.clone(), None));
        one.update_exposed_adapter_lists();
        two.update_exposed_adapter_lists();
        assert_eq!(text(&info).len(), 1);
        for i in 0..MAX_SERIES {
            info.set_lora_series_value([&i.to_string(), ""], 13.0 + i as f64);
        }
        let all = text(&info);
        assert_eq!(all.len(), MAX_SERIES);
        assert!(all[0].starts_with("1 | 0 | "), "{}", all[0]);
        one.update_exposed_adapter_lists();
        assert!(text(&info)[MAX_SERIES - 1].starts_with("1 |  |  "));
    }

    #[test]
    fn engines_that_add_series_at_the_same_time_hide_none_of_the_list() {
        let info = info(1, MetricsCompat::Vllm);
        std::thread::scope(|scope| {
            for engine in ["a", "b"] {
                let info = &info;
                scope.spawn(move || {
                    for i in 0..=MAX_SERIES / 2 {
                        info.set_lora_series_value([engine, &i.to_string()], i as f64);
                    }
                });
            }
        });
        info.set_lora_series_value(["a", "last"], 1e9);
        let series = info.cell_vec.series.load();
        assert!((MAX_SERIES - 2..=MAX_SERIES + 1).contains(&series.len()), "{}", series.len());
        assert!(series.iter().all(|series| series.created_unix_seconds().is_some()));
        assert!(series.iter().any(|series| series.get() == 1e9));
    }
}
