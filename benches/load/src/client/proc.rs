//! Figures the kernel keeps of a process and all its descendants.
use std::collections::HashMap;
use std::fs;

/// The process and everything below it (a server may fork workers).
pub fn tree(root: i32) -> Vec<i32> {
    let mut kids: HashMap<i32, Vec<i32>> = HashMap::new();
    for e in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Ok(pid) = e.file_name().to_string_lossy().parse::<i32>() {
            if let Some(ppid) = stat_fields(pid).and_then(|f| f.get(1)?.parse().ok()) {
                kids.entry(ppid).or_default().push(pid);
            }
        }
    }
    let (mut out, mut i) = (vec![root], 0);
    while i < out.len() {
        if let Some(k) = kids.get(&out[i]) {
            out.extend(k);
        }
        i += 1;
    }
    out
}

/// Fields of /proc/PID/stat after the command name: [0] state, [1] ppid, [11] utime, [12] stime.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let s = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(
        s[s.rfind(')')? + 2..]
            .split(' ')
            .map(str::to_string)
            .collect(),
    )
}

/// user + system seconds. Uses the nanosecond run time of each thread (schedstat) and falls back
/// to the 10 ms ticks of /proc/PID/stat.
pub fn cpu_seconds(pids: &[i32]) -> f64 {
    pids.iter()
        .map(|p| sched_ns(*p).unwrap_or_else(|| ticks(*p)))
        .sum()
}

fn ticks(pid: i32) -> f64 {
    let t = |f: &Vec<String>, i: usize| f.get(i).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
    stat_fields(pid).map_or(0.0, |f| (t(&f, 11) + t(&f, 12)) / 100.0)
}

fn sched_ns(pid: i32) -> Option<f64> {
    let mut ns = 0.0;
    for e in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let s = fs::read_to_string(e.path().join("schedstat")).ok()?;
        ns += s.split(' ').next()?.parse::<f64>().ok()?;
    }
    // Threads that already ended are missing from the task list but kept in the ticks.
    Some((ns / 1e9).max(ticks(pid) - 0.02))
}

/// (user, system) seconds in 10 ms ticks.
pub fn user_sys(pids: &[i32]) -> (f64, f64) {
    pids.iter()
        .filter_map(|p| stat_fields(*p))
        .fold((0.0, 0.0), |a, f| {
            let t = |i: usize| f.get(i).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
            (a.0 + t(11), a.1 + t(12))
        })
}

fn status_kib(pid: i32, key: &str) -> u64 {
    let s = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    s.lines()
        .find(|l| l.starts_with(key))
        .and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
pub fn rss_kib(pids: &[i32]) -> u64 {
    pids.iter().map(|p| status_kib(*p, "VmRSS:")).sum()
}
pub fn peak_kib(pids: &[i32]) -> u64 {
    pids.iter().map(|p| status_kib(*p, "VmHWM:")).sum()
}
pub fn threads(pids: &[i32]) -> u64 {
    pids.iter().map(|p| status_kib(*p, "Threads:")).sum()
}
