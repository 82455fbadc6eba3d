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

use super::families::Id;
use super::series::{CellVec, Series};
use super::settings::{Compat, Settings};

/// Maximum number of `vllm:lora_requests_info` series; beyond it the least recently set one is
/// removed.
const MAX_SERIES: usize = 4096;

/// Number of requests of one LoRA adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraLoad<'a> {
    /// Name of the LoRA adapter.
    pub name: &'a str,
    /// Number of running requests of the LoRA adapter.
    pub running: u32,
    /// Number of waiting requests of the LoRA adapter.
    pub waiting: u32,
}

/// Series of `vllm:lora_requests_info` of all engines; they have no engine label.
pub(super) struct LoraInfo {
    max_lora: String,
    vec: Arc<CellVec>,
    /// Lock held to add a series; a scrape never takes it.
    adding: Mutex<()>,
}

impl LoraInfo {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            max_lora: settings.lora.unwrap_or(1).to_string(),
            vec: CellVec::new(Id::LoraRequests, settings),
            adding: Mutex::new(()),
        }
    }

    pub(super) fn vec(&self) -> &Arc<CellVec> {
        &self.vec
    }

    pub(super) fn set_idle(&self, compat: Compat, now_unix: f64) {
        self.touch("", "", shown_time(compat, now_unix));
    }

    fn touch(&self, running: &str, waiting: &str, value: f64) -> Arc<Series> {
        let _adding = self.adding.lock();
        let labels = [self.max_lora.as_str(), running, waiting];
        let all = self.vec.series();
        let known = all.iter().find(|series| series.has_values(&labels));
        if let Some(series) = known {
            series.cell().set(value);
            return series.clone();
        }
        let mut all = all.to_vec();
        if all.len() >= MAX_SERIES {
            let value = |i: &usize| all[*i].cell().get();
            let oldest = (0..all.len()).min_by(|a, b| value(a).total_cmp(&value(b)));
            if let Some(oldest) = oldest {
                all.remove(oldest).cell().hide();
            }
        }
        let series = self.vec.detached(&labels, 1.0);
        series.cell().set(value);
        all.push(series.clone());
        self.vec.replace(all);
        series
    }

    /// Replaces all series by the given ones: running adapters, waiting adapters, value.
    ///
    /// Writers that still hold a hidden series must look it up again.
    pub(super) fn replace(&self, series: &[(String, String, f64)]) {
        let before = self.adding.lock();
        let all = self.vec.series();
        self.vec.replace(Vec::new());
        all.iter().for_each(|gone| gone.cell().hide());
        drop(before);
        for (running, waiting, value) in series {
            self.touch(running, waiting, *value);
        }
    }
}

/// Sets the adapter lists of one engine; while the lists are unchanged, it only sets the time.
pub(super) struct LoraWriter {
    info: Arc<LoraInfo>,
    last: Mutex<LastWritten>,
}

#[derive(Default)]
struct LastWritten {
    series: Option<Arc<Series>>,
    running: String,
    waiting: String,
}

impl LoraWriter {
    pub(super) fn new(info: Arc<LoraInfo>) -> Self {
        Self { info, last: Mutex::default() }
    }

    pub(super) fn set(&self, adapters: &[LoraLoad<'_>], compat: Compat, now_unix: f64) {
        let now = shown_time(compat, now_unix);
        let last = &mut *self.last.lock();
        last.running.clear();
        last.waiting.clear();
        for a in adapters {
            let (runs, waits) = match compat {
                Compat::Vllm | Compat::Sglang => (true, true),
                Compat::Llmd => (a.running > 0, a.waiting > 0),
            };
            list(&mut last.running, a.name, runs);
            list(&mut last.waiting, a.name, waits);
        }
        let labels = [self.info.max_lora.as_str(), &last.running, &last.waiting];
        match &last.series {
            Some(series) if series.has_values(&labels) && series.cell().created().is_some() => {
                series.cell().set(now);
            }
            _ => last.series = Some(self.info.touch(&last.running, &last.waiting, now)),
        }
    }
}

fn shown_time(compat: Compat, unix: f64) -> f64 {
    match compat {
        Compat::Vllm | Compat::Sglang => unix,
        Compat::Llmd => unix.trunc(),
    }
}

fn list(out: &mut String, name: &str, listed: bool) {
    if !listed {
        return;
    }
    if !out.is_empty() {
        out.push(',');
    }
    out.push_str(name);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(max_lora: u32) -> Arc<LoraInfo> {
        Arc::new(LoraInfo::new(&Settings { lora: Some(max_lora), ..Settings::default() }))
    }

    /// Returns the label values and the value of each series.
    fn text(info: &LoraInfo) -> Vec<String> {
        let series = info.vec.series();
        let lines = series.iter().map(|series| {
            let labels: Vec<_> = series.labels().iter().map(|pair| pair.value()).collect();
            format!("{} {:?}", labels.join(" | "), series.cell().get())
        });
        lines.collect()
    }

    fn load(name: &str, running: u32, waiting: u32) -> LoraLoad<'_> {
        LoraLoad { name, running, waiting }
    }

    #[test]
    fn vllm_lists_an_adapter_with_a_request_twice_and_keeps_old_series() {
        let info = info(2);
        let writer = LoraWriter::new(info.clone());
        assert!(text(&info).is_empty());
        writer.set(&[load("sql-lora", 1, 0)], Compat::Vllm, 10.5);
        writer.set(&[], Compat::Vllm, 11.5);
        writer.set(&[load("sql-lora", 0, 1)], Compat::Vllm, 12.5);
        assert_eq!(text(&info), ["2 | sql-lora | sql-lora 12.5", "2 |  |  11.5"]);
    }

    #[test]
    fn llm_d_lists_an_adapter_where_it_is_in_whole_seconds() {
        let info = info(1);
        let writer = LoraWriter::new(info.clone());
        writer.set(&[load("a", 2, 0), load("b", 1, 3)], Compat::Llmd, 10.5);
        assert_eq!(text(&info), ["1 | a,b | b 10.0"]);
    }

    #[test]
    fn engines_share_a_series_and_the_list_is_bounded() {
        let info = info(1);
        let (one, two) = (LoraWriter::new(info.clone()), LoraWriter::new(info.clone()));
        one.set(&[], Compat::Vllm, 1.0);
        two.set(&[], Compat::Vllm, 2.0);
        assert_eq!(text(&info).len(), 1);
        for i in 0..MAX_SERIES {
            info.touch(&i.to_string(), "", 3.0 + i as f64);
        }
        let all = text(&info);
        assert_eq!(all.len(), MAX_SERIES);
        assert!(all[0].starts_with("1 | 0 | "), "{}", all[0]);
    }
}
