//! The families `python_*` and `process_*` of a vLLM API server.
//!
//! Values describe the simulator's process, from `/proc/self`; on other systems the families are
//! missing, as in prometheus_client. The Python version is that of vLLM's images, and garbage is
//! never collected.
//!
//! **Source:** prometheus_client `gc_collector.py`, `platform_collector.py`,
//! `process_collector.py`.

use std::fs;

use parking_lot::Mutex;
use rustix::param;

use super::families::Id;
use super::series::MetricCells;

/// Cache time of the number of open files, in seconds; counting them lists a directory.
const OPEN_FILES_CACHE_S: f64 = 1.0;

pub(super) struct ProcessMetrics {
    boot: Option<f64>,
    max_fds: Option<f64>,
    /// Unix time of the last count of open files, and their number.
    fds: Mutex<Option<(f64, f64)>>,
    /// Unix time and CPU time of the last simulated restart, in seconds.
    restarted_at: Mutex<Option<(f64, f64)>>,
}

impl ProcessMetrics {
    pub(super) fn new() -> Self {
        Self {
            boot: word_after("/proc/stat", "btime"),
            max_fds: word_after("/proc/self/limits", "Max open files"),
            fds: Mutex::default(),
            restarted_at: Mutex::default(),
        }
    }

    /// Returns the CPU time and start time of the process, in seconds, and its virtual and resident
    /// memory, in bytes.
    fn stat(&self) -> Option<[f64; 4]> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        // The name of the program may contain spaces; it ends at the last parenthesis.
        let fields: Vec<_> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |i: usize| fields.get(i)?.parse::<f64>().ok();
        let seconds = |i: usize| Some(number(i)? / param::clock_ticks_per_second() as f64);
        let cpu = seconds(11)? + seconds(12)?;
        let start = seconds(19)? + self.boot?;
        Some([cpu, start, number(20)?, number(21)? * param::page_size() as f64])
    }

    /// Records a simulated restart of the server process at this Unix time.
    pub(super) fn record_restart(&self, now_unix: f64) {
        let cpu = self.stat().map_or(0.0, |[cpu, ..]| cpu);
        *self.restarted_at.lock() = Some((now_unix, cpu));
    }

    /// Sets the metric families `process_*` to the values at this Unix time.
    pub(super) fn refresh_process_metrics(&self, cells: &MetricCells, now_unix: f64) {
        let set = |id: Id, value: f64| {
            cells[id].set(value);
            cells[id].expose_metric_series(now_unix);
        };
        if let Some([cpu, start, size, resident]) = self.stat() {
            let (start, before) = self.restarted_at.lock().unwrap_or((start, 0.0));
            set(Id::VirtualMemory, size);
            set(Id::ResidentMemory, resident);
            set(Id::StartTime, start);
            set(Id::CpuSeconds, (cpu - before).max(0.0));
        }
        if let Some(n) = self.open_fds(now_unix) {
            set(Id::OpenFds, n);
        }
        if let Some(n) = self.max_fds {
            set(Id::MaxFds, n);
        }
    }

    fn open_fds(&self, now_unix: f64) -> Option<f64> {
        let mut fds = self.fds.lock();
        if let Some((at, n)) = *fds
            && (at..at + OPEN_FILES_CACHE_S).contains(&now_unix)
        {
            return Some(n);
        }
        let n = fs::read_dir("/proc/self/fd").ok()?.count() as f64;
        *fds = Some((now_unix, n));
        Some(n)
    }
}

fn word_after(path: &str, label: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_described() {
        let process = ProcessMetrics::new();
        let [_, start, size, resident] = process.stat().unwrap();
        assert!(resident > 100_000.0 && size >= resident);
        assert!(start > 1.5e9, "{start}");
        assert!(process.max_fds.unwrap() >= 3.0);
    }

    #[test]
    fn open_files_are_counted_once_a_second() {
        let process = ProcessMetrics::new();
        let before = process.open_fds(10.0).unwrap();
        *process.fds.lock() = Some((10.0, before + 1000.0));
        assert_eq!(process.open_fds(10.9), Some(before + 1000.0));
        assert!(process.open_fds(11.0).unwrap() < before + 1000.0);
    }
}
