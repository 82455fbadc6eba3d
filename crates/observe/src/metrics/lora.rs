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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::cell::Gauge;
use super::families::LORA_INFO;
use super::number::push_float;
use super::page::{ApiServers, Labels, LiveFamily, header};
use super::settings::Compat;

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

struct LoraSeries {
    running: String,
    waiting: String,
    text: String,
    at: Gauge,
    /// Whether the series was removed; writers that still hold it must look it up again.
    evicted: AtomicBool,
}

impl LoraSeries {
    fn shows(&self, running: &str, waiting: &str) -> bool {
        self.running == running && self.waiting == waiting && !self.evicted.load(Ordering::Relaxed)
    }
}

/// Series of `vllm:lora_requests_info` of all engines; they have no engine label.
pub(super) struct LoraInfo {
    max_lora: String,
    series: ArcSwap<Vec<Arc<LoraSeries>>>,
    /// Lock held to add a series; a scrape never takes it.
    adding: Mutex<()>,
    header: String,
    hide_empty: bool,
}

impl LoraInfo {
    pub(super) fn new(max_lora: u32, api_servers: ApiServers) -> Self {
        Self {
            max_lora: max_lora.to_string(),
            series: ArcSwap::default(),
            adding: Mutex::new(()),
            header: header(LORA_INFO.name, LORA_INFO.help, "gauge"),
            hide_empty: api_servers == ApiServers::Several,
        }
    }

    pub(super) fn set_idle(&self, compat: Compat, now_unix: f64) {
        self.touch("", "", shown_time(compat, now_unix));
    }

    fn touch(&self, running: &str, waiting: &str, value: f64) -> Arc<LoraSeries> {
        let _adding = self.adding.lock();
        let all = self.series.load();
        let known = all.iter().find(|s| s.shows(running, waiting));
        if let Some(series) = known {
            series.at.set(value);
            return series.clone();
        }
        let series = self.series(running, waiting, value);
        let mut grown = all.to_vec();
        if grown.len() >= MAX_SERIES {
            let oldest =
                (0..grown.len()).min_by(|a, b| grown[*a].at.get().total_cmp(&grown[*b].at.get()));
            if let Some(oldest) = oldest {
                grown.remove(oldest).evicted.store(true, Ordering::Relaxed);
            }
        }
        grown.push(series.clone());
        self.series.store(Arc::new(grown));
        series
    }

    fn series(&self, running: &str, waiting: &str, value: f64) -> Arc<LoraSeries> {
        let labels = Labels::new([
            ("max_lora", self.max_lora.as_str()),
            ("running_lora_adapters", running),
            ("waiting_lora_adapters", waiting),
        ]);
        Arc::new(LoraSeries {
            running: running.to_owned(),
            waiting: waiting.to_owned(),
            text: format!("{}{} ", LORA_INFO.name, labels.render()),
            at: Gauge::new(value),
            evicted: AtomicBool::new(false),
        })
    }

    fn clear(&self) {
        let _adding = self.adding.lock();
        for series in self.series.swap(Arc::default()).iter() {
            series.evicted.store(true, Ordering::Relaxed);
        }
    }

    /// Replaces all series by the given ones: running adapters, waiting adapters, value.
    pub(super) fn replace(&self, series: &[(String, String, f64)]) {
        let _adding = self.adding.lock();
        let mut all: Vec<Arc<LoraSeries>> = Vec::with_capacity(series.len());
        for (running, waiting, value) in series {
            match all.iter().find(|s| s.shows(running, waiting)) {
                Some(same) => same.at.set(*value),
                None => all.push(self.series(running, waiting, *value)),
            }
        }
        self.series.store(Arc::new(all));
    }
}

impl LiveFamily for LoraInfo {
    fn restart(&self, _: f64) {
        self.clear();
    }

    fn write(&self, out: &mut String, _: f64) {
        let all = self.series.load();
        if self.hide_empty && all.is_empty() {
            return;
        }
        out.push_str(&self.header);
        for series in all.iter() {
            out.push_str(&series.text);
            push_float(out, series.at.get());
            out.push('\n');
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
    series: Option<Arc<LoraSeries>>,
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
                Compat::Vllm => (true, true),
                Compat::Llmd => (a.running > 0, a.waiting > 0),
            };
            list(&mut last.running, a.name, runs);
            list(&mut last.waiting, a.name, waits);
        }
        match &last.series {
            Some(s) if s.shows(&last.running, &last.waiting) => s.at.set(now),
            _ => last.series = Some(self.info.touch(&last.running, &last.waiting, now)),
        }
    }
}

fn shown_time(compat: Compat, unix: f64) -> f64 {
    match compat {
        Compat::Vllm => unix,
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

    fn text(info: &LoraInfo) -> Vec<String> {
        let mut out = String::new();
        info.write(&mut out, 0.0);
        out.lines().skip(2).map(str::to_owned).collect()
    }

    fn load(name: &str, running: u32, waiting: u32) -> LoraLoad<'_> {
        LoraLoad { name, running, waiting }
    }

    #[test]
    fn vllm_lists_an_adapter_with_a_request_twice_and_keeps_old_series() {
        let info = Arc::new(LoraInfo::new(2, ApiServers::One));
        let writer = LoraWriter::new(info.clone());
        assert!(text(&info).is_empty());
        writer.set(&[load("sql-lora", 1, 0)], Compat::Vllm, 10.5);
        writer.set(&[], Compat::Vllm, 11.5);
        writer.set(&[load("sql-lora", 0, 1)], Compat::Vllm, 12.5);
        assert_eq!(
            text(&info),
            [
                r#"vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql-lora",waiting_lora_adapters="sql-lora"} 12.5"#,
                r#"vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 11.5"#,
            ]
        );
    }

    #[test]
    fn llm_d_lists_an_adapter_where_it_is_in_whole_seconds() {
        let info = Arc::new(LoraInfo::new(1, ApiServers::One));
        let writer = LoraWriter::new(info.clone());
        writer.set(&[load("a", 2, 0), load("b", 1, 3)], Compat::Llmd, 10.5);
        assert_eq!(
            text(&info),
            [
                r#"vllm:lora_requests_info{max_lora="1",running_lora_adapters="a,b",waiting_lora_adapters="b"} 10.0"#
            ]
        );
    }

    #[test]
    fn engines_share_a_series_and_the_list_is_bounded() {
        let info = Arc::new(LoraInfo::new(1, ApiServers::Several));
        let (one, two) = (LoraWriter::new(info.clone()), LoraWriter::new(info.clone()));
        one.set(&[], Compat::Vllm, 1.0);
        two.set(&[], Compat::Vllm, 2.0);
        assert_eq!(text(&info).len(), 1);
        for i in 0..MAX_SERIES {
            info.touch(&i.to_string(), "", 3.0 + i as f64);
        }
        let all = text(&info);
        assert_eq!(all.len(), MAX_SERIES);
        assert!(all[0].contains(r#"running_lora_adapters="0""#), "{}", all[0]);
    }
}
