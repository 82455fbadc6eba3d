//! Newest samples of the metrics of the dashboard.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum number of samples in the dashboard's metric history: two minutes at one sample per
/// second.
const MAX_SAMPLES: usize = 120;

/// Metrics in each sample of the dashboard's metric history; histograms are left out because of
/// their size.
const KEPT_METRICS: [&str; 7] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:request_success_total",
    "http_requests_total",
];

/// Samples of the dashboard's metrics, each with its Unix time and lines of `/metrics`.
#[derive(Default)]
pub(crate) struct MetricHistory {
    samples: Mutex<VecDeque<(f64, String)>>,
    viewed: Arc<Notify>,
}

impl MetricHistory {
    /// Adds a sample of the metrics from the text of `/metrics`, and drops the oldest one if there
    /// are too many.
    pub(crate) fn push_metrics_sample(&self, unix_time: f64, page: &str) {
        let kept = page.lines().filter(|line| {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            KEPT_METRICS.contains(&name)
        });
        let sample = kept.flat_map(|line| [line, "\n"]).collect();
        let mut samples = self.samples.lock();
        if samples.len() == MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back((unix_time, sample));
    }

    /// Returns the notifier that is triggered by each request for the metric history.
    pub(crate) fn history_request_notifier(&self) -> Arc<Notify> {
        self.viewed.clone()
    }

    /// Returns the samples in the metric history, oldest first.
    pub(crate) fn metrics_samples(&self) -> VecDeque<(f64, String)> {
        self.samples.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minutes_of_the_cards_metrics_are_kept() {
        let history = MetricHistory::default();
        for second in 0..130 {
            let page = format!(
                "# HELP http_requests_total x\nhttp_requests_total{{status=\"2xx\"}} {second}\n\
                 vllm:e2e_request_latency_seconds_bucket{{le=\"1\"}} 4\n"
            );
            history.push_metrics_sample(f64::from(second), &page);
        }
        let samples = history.metrics_samples();
        let line = |second: u32| format!("http_requests_total{{status=\"2xx\"}} {second}\n");
        assert_eq!(samples.len(), 120);
        assert_eq!(samples.front(), Some(&(10.0, line(10))));
        assert_eq!(samples.back(), Some(&(129.0, line(129))));
    }
}
