//! Reports the progress of a long job on standard error, and lets signal handlers stop jobs.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Delay of the first progress report of a job.
const FIRST_REPORT_DELAY: Duration = Duration::from_secs(2);
const BAR_REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// Requests all jobs to stop and keep their partial results.
pub fn request_stop_of_all_jobs() {
    STOP_REQUESTED.store(true, Ordering::Relaxed);
}

/// Returns whether jobs are requested to stop.
pub fn is_job_stop_requested() -> bool {
    STOP_REQUESTED.load(Ordering::Relaxed)
}

/// Progress report of a job, shown until this value is dropped: a bar on a terminal, otherwise a
/// line after 2, 4, 8, … seconds.
pub struct JobProgress {
    shared: Arc<ProgressCounter>,
    reporter: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct ProgressCounter {
    done: AtomicU64,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl JobProgress {
    /// Starts the progress report of `job`, whose size is `total` in `units`; `None` if the size is
    /// unknown.
    pub fn begin_job(job: &'static str, units: &'static str, total: Option<u64>) -> Self {
        let shared = Arc::new(ProgressCounter::default());
        let told = shared.clone();
        let thread = std::thread::Builder::new().name("progress".to_owned());
        Self {
            shared,
            // Without a thread there are no reports.
            reporter: thread.spawn(move || told.report_until_ended(job, units, total)).ok(),
        }
    }

    /// Adds `more` finished units to the progress.
    pub fn add_finished_work_units(&self, more: u64) {
        self.shared.done.fetch_add(more, Ordering::Relaxed);
    }
}

impl Drop for JobProgress {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        if let Some(reporter) = self.reporter.take() {
            let _ = reporter.join();
        }
    }
}

impl ProgressCounter {
    fn report_until_ended(&self, job: &str, units: &str, total: Option<u64>) {
        let bar = std::io::stderr().is_terminal().then(|| create_progress_bar(job, units, total));
        let (mut pause, mut told) = (FIRST_REPORT_DELAY, Duration::ZERO);
        while !self.ends_within(pause) {
            let done = self.done.load(Ordering::Relaxed);
            if let Some(bar) = &bar {
                bar.set_position(done);
                pause = BAR_REFRESH_INTERVAL;
                continue;
            }
            let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
            // A write error is ignored: the report has no reader then.
            let _ = writeln!(std::io::stderr().lock(), "{job}: {done}{of} {units}");
            told += pause;
            pause = told;
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    }

    fn ends_within(&self, time: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wake.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn create_progress_bar(job: &str, units: &str, total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{wide_bar} {pos}/{len}"),
        None => (ProgressBar::no_length(), "{spinner} {pos}"),
    };
    match ProgressStyle::with_template(&format!("{job} {template} {units} {{elapsed}}")) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
