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

use parking_lot::Mutex;
use std::sync::Arc;

use super::series::{MetricCellVec, MetricSeries};
use super::settings::{MetricsCompat, MetricsSettings, UnixClock};

/// Maximum number of `vllm:lora_requests_info` series; beyond it the least recently set one is
/// removed.
const MAX_SERIES: usize = 4096;

/// Series of `vllm:lora_requests_info` of all engines; they have no engine label.
pub(super) struct LoraRequestsInfo {
    max_lora: String,
    vec: Arc<MetricCellVec>,
    compat: MetricsCompat,
    clock: UnixClock,
    /// Lock held while series of `vllm:lora_requests_info` are added or removed; a scrape never
    /// takes it.
    changing_series: Mutex<()>,
}

impl LoraRequestsInfo {
    pub(super) fn new(settings: &MetricsSettings, vec: Arc<MetricCellVec>) -> Self {
        Self {
            max_lora: settings.lora.unwrap_or(1).to_string(),
            vec,
            compat: settings.compat,
            clock: settings.clock,
            changing_series: Mutex::new(()),
        }
    }

    /// Returns the current Unix time, which is the value of a series; llm-d's simulator has whole
    /// seconds.
    pub(super) fn current_value(&self) -> f64 {
        let unix = (self.clock)();
        if self.compat == MetricsCompat::Llmd { unix.trunc() } else { unix }
    }

    /// Returns whether a metric series is exposed and has these lists of running and waiting LoRA
    /// adapters.
    fn is_current(&self, series: &MetricSeries, [running, waiting]: [&str; 2]) -> bool {
        let labels = [self.max_lora.as_str(), running, waiting];
        series.label_values().eq(labels) && series.created_unix_seconds().is_some()
    }

    /// Sets the value of the series with these lists of running and waiting adapters, and adds the
    /// series if there is none.
    pub(super) fn set_series_value(
        &self,
        [running, waiting]: [&str; 2],
        value: f64,
    ) -> Arc<MetricSeries> {
        let _changing = self.changing_series.lock();
        let series = self.vec.with_label_values(&[&self.max_lora, running, waiting], 0.0);
        series.set(value);
        series.show_series(1.0);
        let all = self.vec.series();
        if all.len() > MAX_SERIES {
            let others = all.iter().filter(|other| !Arc::ptr_eq(other, &series));
            let oldest = others.min_by(|a, b| a.get().total_cmp(&b.get()));
            self.vec.retain_series(|series| {
                oldest.is_none_or(|oldest| !std::ptr::eq(series, &**oldest))
            });
        }
        series
    }

    /// Replaces all series of `vllm:lora_requests_info` by the given ones: running adapters,
    /// waiting adapters, value.
    pub(super) fn replace_series(&self, series: &[([&str; 2], f64)]) {
        let changing = self.changing_series.lock();
        self.vec.retain_series(|_| false);
        drop(changing);
        for (lists, value) in series {
            self.set_series_value(*lists, *value);
        }
    }

    /// Replaces all series of `vllm:lora_requests_info` by the one of a server without requests for
    /// adapters.
    pub(super) fn reset_for_restart(&self) {
        self.replace_series(&[(["", ""], self.current_value())]);
    }
}

#[derive(Debug)]
struct AdapterRequests {
    name: Arc<str>,
    waiting: u32,
    running: u32,
}

/// Counts the sequences of each adapter of one engine, and sets the adapter lists.
pub(super) struct LoraRequestsWriter {
    info: Arc<LoraRequestsInfo>,
    /// LoRA adapters with sequences, ordered by their first sequence.
    adapters: Vec<AdapterRequests>,
    /// Most recently set series of `vllm:lora_requests_info`; while its adapter lists stay the
    /// same, only its time is updated.
    last: Option<Arc<MetricSeries>>,
    /// Label values of the most recently set series: lists of the running and of the waiting LoRA
    /// adapters.
    lists: [String; 2],
}

impl LoraRequestsWriter {
    pub(super) fn new(info: Arc<LoraRequestsInfo>) -> Self {
        Self { info, adapters: Vec::new(), last: None, lists: Default::default() }
    }

    /// Changes the numbers of running and waiting sequences of an adapter.
    pub(super) fn count_sequences(&mut self, name: &Arc<str>, [running, waiting]: [i32; 2]) {
        let known = self.adapters.iter().position(|adapter| adapter.name == *name);
        let index = known.unwrap_or_else(|| {
            self.adapters.push(AdapterRequests { name: name.clone(), waiting: 0, running: 0 });
            self.adapters.len() - 1
        });
        let adapter = &mut self.adapters[index];
        adapter.running = adapter.running.saturating_add_signed(running);
        adapter.waiting = adapter.waiting.saturating_add_signed(waiting);
        if adapter.running + adapter.waiting == 0 {
            self.adapters.remove(index);
        }
    }

    /// Returns whether a LoRA adapter has running sequences.
    pub(super) fn has_running_sequences(&self, name: &str) -> bool {
        self.adapters.iter().any(|adapter| *adapter.name == *name && adapter.running > 0)
    }

    /// Updates the exposed lists of LoRA adapters that have running or waiting sequences.
    pub(super) fn show_adapter_lists(&mut self) {
        self.lists.iter_mut().for_each(String::clear);
        let both = self.info.compat != MetricsCompat::Llmd;
        for AdapterRequests { name, running, waiting } in &self.adapters {
            for (list, n) in self.lists.iter_mut().zip([*running, *waiting]) {
                if both || n > 0 {
                    let comma = if list.is_empty() { "" } else { "," };
                    list.extend([comma, name]);
                }
            }
        }
        let lists = self.lists.each_ref().map(String::as_str);
        match self.last.as_ref().filter(|series| self.info.is_current(series, lists)) {
            Some(series) => series.set(self.info.current_value()),
            None => self.last = Some(self.info.set_series_value(lists, self.info.current_value())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::Id;
    use super::*;

    fn info(max_lora: u32, compat: MetricsCompat) -> Arc<LoraRequestsInfo> {
        let lora = Some(max_lora);
        let settings =
            MetricsSettings { lora, compat, clock: || 10.5, ..MetricsSettings::default() };
        let vec = MetricCellVec::new(Id::LoraRequests.family(), &settings);
        Arc::new(LoraRequestsInfo::new(&settings, vec))
    }

    /// Returns the label values and the value of each series.
    fn text(info: &LoraRequestsInfo) -> Vec<String> {
        let series = info.vec.series();
        let lines = series.iter().map(|series| {
            let labels: Vec<_> = series.label_values().collect();
            format!("{} {:?}", labels.join(" | "), series.get())
        });
        lines.collect()
    }

    fn count(writer: &mut LoraRequestsWriter, name: &str, running: i32, waiting: i32) {
        writer.count_sequences(&name.into(), [running, waiting]);
        writer.show_adapter_lists();
    }

    #[test]
    fn vllm_lists_an_adapter_with_a_request_twice_and_keeps_old_series() {
        let info = info(2, MetricsCompat::Vllm);
        let mut writer = LoraRequestsWriter::new(info.clone());
        assert!(text(&info).is_empty());
        count(&mut writer, "sql-lora", 1, 0);
        count(&mut writer, "sql-lora", -1, 0);
        count(&mut writer, "sql-lora", 0, 1);
        assert_eq!(text(&info), ["2 | sql-lora | sql-lora 10.5", "2 |  |  10.5"]);
    }

    #[test]
    fn llm_d_lists_an_adapter_where_it_is_in_whole_seconds() {
        let info = info(1, MetricsCompat::Llmd);
        let mut writer = LoraRequestsWriter::new(info.clone());
        writer.count_sequences(&"a".into(), [2, 0]);
        count(&mut writer, "b", 1, 3);
        assert_eq!(text(&info), ["1 | a,b | b 10.0"]);
    }

    #[test]
    fn engines_share_a_series_and_the_list_is_bounded() {
        let info = info(1, MetricsCompat::Vllm);
        let (mut one, mut two) =
            (LoraRequestsWriter::new(info.clone()), LoraRequestsWriter::new(info.clone()));
        one.show_adapter_lists();
        two.show_adapter_lists();
        assert_eq!(text(&info).len(), 1);
        for i in 0..MAX_SERIES {
            info.set_series_value([&i.to_string(), ""], 13.0 + i as f64);
        }
        let all = text(&info);
        assert_eq!(all.len(), MAX_SERIES);
        assert!(all[0].starts_with("1 | 0 | "), "{}", all[0]);
        one.show_adapter_lists();
        assert!(text(&info)[MAX_SERIES - 1].starts_with("1 |  |  "));
    }
}
