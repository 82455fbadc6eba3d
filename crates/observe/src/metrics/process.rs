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

use super::families::Id;
use super::series::Cells;

/// Cache time of the number of open files, in seconds: counting lists a directory.
const OPEN_FILES_CACHE_S: f64 = 1.0;

pub(super) struct ProcessInfo {
    ticks: f64,
    page_size: f64,
    boot: Option<f64>,
    max_fds: Option<f64>,
    fds: Mutex<Option<(f64, f64)>>,
    /// Unix time and CPU time of the last simulated restart, in seconds.
    restarted_at: Mutex<Option<(f64, f64)>>,
}

struct ProcStat {
    cpu_s: f64,
    start_s: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl ProcessInfo {
    pub(super) fn new() -> Self {
        let aux = |key, default| auxiliary(key).unwrap_or(default) as f64;
        Self {
            ticks: aux(AT_CLKTCK, 100),
            page_size: aux(AT_PAGESZ, 4096),
            boot: word_after("/proc/stat", "btime"),
            max_fds: word_after("/proc/self/limits", "Max open files"),
            fds: Mutex::default(),
            restarted_at: Mutex::default(),
        }
    }

    fn stat(&self) -> Option<ProcStat> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        // The name of the program may contain spaces; it ends at the last parenthesis.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let mut number = |skip: usize| fields.nth(skip)?.parse::<f64>().ok();
        let user = number(11)?;
        let system = number(0)?;
        let start = number(6)?;
        let virtual_bytes = number(0)?;
        let resident_pages = number(0)?;
        Some(ProcStat {
            cpu_s: (user + system) / self.ticks,
            start_s: start / self.ticks + self.boot?,
            virtual_bytes,
            resident_bytes: resident_pages * self.page_size,
        })
    }

    /// Records a simulated restart at this Unix time.
    pub(super) fn restart(&self, now_unix: f64) {
        let cpu_s = self.stat().map_or(0.0, |stat| stat.cpu_s);
        *self.restarted_at.lock() = Some((now_unix, cpu_s));
    }

    /// Sets the families `process_*` to the values of this Unix time.
    pub(super) fn refresh(&self, cells: &Cells, now_unix: f64) {
        let set = |id: Id, value: f64| {
            cells[id].set(value);
            cells[id].show(now_unix);
        };
        if let Some(stat) = self.stat() {
            let (start_s, before) = self.restarted_at.lock().unwrap_or((stat.start_s, 0.0));
            set(Id::VirtualMemory, stat.virtual_bytes);
            set(Id::ResidentMemory, stat.resident_bytes);
            set(Id::StartTime, start_s);
            set(Id::CpuSeconds, (stat.cpu_s - before).max(0.0));
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

const AT_PAGESZ: usize = 6;
const AT_CLKTCK: usize = 17;

fn auxiliary(key: usize) -> Option<usize> {
    const WORD: usize = size_of::<usize>();
    let bytes = fs::read("/proc/self/auxv").ok()?;
    let mut words = bytes
        .chunks_exact(WORD)
        .filter_map(|word| Some(usize::from_ne_bytes(word.try_into().ok()?)));
    while let (Some(k), Some(value)) = (words.next(), words.next()) {
        if k == key {
            return Some(value);
        }
    }
    None
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
        let process = ProcessInfo::new();
        let stat = process.stat().unwrap();
        assert!(stat.resident_bytes > 100_000.0 && stat.virtual_bytes >= stat.resident_bytes);
        assert!(stat.start_s > 1.5e9, "{}", stat.start_s);
        assert!(process.max_fds.unwrap() >= 3.0);
    }

    #[test]
    fn open_files_are_counted_once_a_second() {
        let process = ProcessInfo::new();
        let before = process.open_fds(10.0).unwrap();
        *process.fds.lock() = Some((10.0, before + 1000.0));
        assert_eq!(process.open_fds(10.9), Some(before + 1000.0));
        assert!(process.open_fds(11.0).unwrap() < before + 1000.0);
    }
}
