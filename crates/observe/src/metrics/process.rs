//! The families `python_*` and `process_*` of a vLLM API server.
//!
//! Values describe the simulator's process, from `/proc/self`; on other systems the families are
//! missing, as in prometheus_client. The Python version is that of vLLM's images, and garbage is
//! never collected. The servers of a process share what they read.
//!
//! **Source:** prometheus_client `gc_collector.py`, `platform_collector.py`,
//! `process_collector.py`.

use std::fs;
use std::sync::LazyLock;

use parking_lot::Mutex;
use rustix::{param, process};

use super::families::Id;
use super::series::MetricCells;

/// Last value read, and the Unix time of reading it, in seconds.
type LastRead<T> = Mutex<Option<(f64, T)>>;

/// Boot time of the system, in Unix seconds.
static BOOT_TIME: LazyLock<Option<f64>> = LazyLock::new(|| {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()
});
/// CPU time and start time of the process, in seconds, and its virtual and resident memory, in bytes.
static STAT: LastRead<[f64; 4]> = Mutex::new(None);
static OPEN_FILES: LastRead<f64> = Mutex::new(None);

/// Cache time of [`STAT`], in seconds: a clock tick, the unit of CPU time.
const STAT_CACHE_S: f64 = 0.01;
/// Cache time of the number of open files, in seconds: counting lists a directory.
const OPEN_FILES_CACHE_S: f64 = 1.0;

#[derive(Default)]
pub(super) struct ProcessMetrics {
    /// Unix time and CPU time of the last simulated restart, in seconds.
    restarted_at: Mutex<Option<(f64, f64)>>,
}

impl ProcessMetrics {
    /// Records a simulated restart of the server process at this Unix time.
    pub(super) fn record_restart(&self, now_unix: f64) {
        *self.restarted_at.lock() = Some((now_unix, read_stat().map_or(0.0, |[cpu, ..]| cpu)));
    }

    /// Sets the metric families `process_*` to the values at this Unix time.
    pub(super) fn refresh_process_metrics(&self, cells: &MetricCells, now_unix: f64) {
        let set = |id: Id, value: f64| cells.set_and_show_gauges(id, &[value]);
        let stat = read_cached(&STAT, STAT_CACHE_S, now_unix, read_stat);
        let Some([cpu, start, size, resident]) = stat else { return };
        let (start, before) = self.restarted_at.lock().unwrap_or((start, 0.0));
        set(Id::VirtualMemory, size);
        set(Id::ResidentMemory, resident);
        set(Id::StartTime, start);
        set(Id::CpuSeconds, (cpu - before).max(0.0));
        let count = || Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64);
        if let Some(n) = read_cached(&OPEN_FILES, OPEN_FILES_CACHE_S, now_unix, count) {
            set(Id::OpenFds, n);
        }
        if let Some(n) = process::getrlimit(process::Resource::Nofile).current {
            set(Id::MaxFds, n as f64);
        }
    }
}

fn read_stat() -> Option<[f64; 4]> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may contain spaces; it ends at the last parenthesis.
    let fields: Vec<_> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse::<f64>().ok();
    let seconds = |i: usize| Some(number(i)? / param::clock_ticks_per_second() as f64);
    let start = seconds(19)? + (*BOOT_TIME)?;
    Some([seconds(11)? + seconds(12)?, start, number(20)?, number(21)? * param::page_size() as f64])
}

/// Returns the last value unless it is older than `max_age_s`; else reads it again.
fn read_cached<T: Copy>(
    last: &LastRead<T>,
    max_age_s: f64,
    now_unix: f64,
    read: impl FnOnce() -> Option<T>,
) -> Option<T> {
    let mut last = last.lock();
    if last.is_none_or(|(at, _)| !(at..at + max_age_s).contains(&now_unix)) {
        *last = read().map(|value| (now_unix, value));
    }
    last.map(|(_, value)| value)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_described() {
        let [_, start, size, resident] = read_stat().unwrap();
        assert!(resident > 100_000.0 && size >= resident);
        assert!(start > 1.5e9, "{start}");
    }

    #[test]
    fn a_value_is_read_again_when_its_cache_time_is_over() {
        let last = LastRead::default();
        let read = |now, value| read_cached(&last, 1.0, now, || value);
        assert_eq!(read(10.0, None), None);
        assert_eq!(read(10.0, Some(1)), Some(1));
        assert_eq!(read(10.9, Some(2)), Some(1));
        assert_eq!(read(11.0, Some(3)), Some(3));
        assert_eq!(read(9.0, Some(4)), Some(4));
    }
}
