//! Atomic cell of one metric series, read when `/metrics` is scraped.
//!
//! All series of vLLM are cells and not counters, gauges or histograms of `prometheus`, because
//! those lack four abilities. prometheus_client exposes the creation time of each series. A
//! simulated restart zeroes series whose cells are in use. Fake metrics replace the observations of
//! a histogram. The only writer of an engine's series adds without an atomic read-modify-write.
//!
//! Any thread may call the methods, but the `_exclusive` ones require that only one thread writes,
//! and cost no more than a plain addition. A scrape never blocks a writer.

use std::sync::Arc;

use prometheus::core::{Atomic, AtomicF64, AtomicU64};
use prometheus::proto::MetricType;

/// Value of one metric series, on a separate cache line, which prevents false sharing between
/// engines.
///
/// The number of observations is the sum of the buckets, so a scrape during an observation is
/// consistent.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct MetricCell {
    /// Value of a counter or gauge, or sum of the observations of a histogram or summary.
    value: AtomicF64,
    /// Creation time of the metric series, in Unix seconds; zero hides the series.
    created: AtomicF64,
    /// Upper bounds of the histogram's buckets, ascending; the last bucket has no bound.
    bounds: Arc<[f64]>,
    /// Number of observations in each bucket; a summary has one bucket, a counter or gauge none.
    buckets: Box<[AtomicU64]>,
}

impl MetricCell {
    /// Creates the value cell of a hidden metric series, for a family of the given type.
    pub(crate) fn new(kind: MetricType, bucket_bounds: &Arc<[f64]>) -> Self {
        let buckets = match kind {
            MetricType::HISTOGRAM | MetricType::SUMMARY => bucket_bounds.len() + 1,
            _ => 0,
        };
        Self {
            value: AtomicF64::new(0.0),
            created: AtomicF64::new(0.0),
            bounds: bucket_bounds.clone(),
            buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(crate) fn get(&self) -> f64 {
        self.value.get()
    }

    pub(crate) fn set(&self, v: f64) {
        self.value.set(v);
    }

    pub(crate) fn add(&self, n: f64) {
        // Cached tokens are often zero, and an atomic addition is slow.
        if n != 0.0 {
            self.value.inc_by(n);
        }
    }

    pub(crate) fn add_as_sole_metric_writer(&self, n: u32) {
        self.value.set(self.value.get() + f64::from(n));
    }

    pub(crate) fn observe(&self, v: f64) {
        self.bucket(v).inc_by(1);
        self.add(v);
    }

    pub(crate) fn observe_as_sole_metric_writer(&self, v: f64, times: u32) {
        let bucket = self.bucket(v);
        bucket.set(bucket.get().wrapping_add(u64::from(times)));
        if v != 0.0 {
            self.value.set(self.value.get() + v * f64::from(times));
        }
    }

    fn bucket(&self, v: f64) -> &AtomicU64 {
        let bucket = match self.bounds.first() {
            // The usual case of a server without delays.
            Some(first) if v <= *first => 0,
            _ => self.bounds.partition_point(|bound| *bound < v),
        };
        &self.buckets[bucket]
    }

    /// Returns the number of observations in each bucket, not cumulative.
    pub(crate) fn bucket_counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().map(Atomic::get)
    }

    /// Returns the creation time of the series, in Unix seconds; `None`: the series is hidden.
    pub(crate) fn created_unix_seconds(&self) -> Option<f64> {
        let at = self.created.get();
        (at != 0.0).then_some(at)
    }

    /// Shows the metric series if it is hidden, with the given Unix time as its creation time.
    pub(crate) fn expose_metric_series(&self, now_unix: f64) {
        if self.created.get() == 0.0 {
            self.created.set(now_unix);
        }
    }

    /// Sets the creation time of the metric series, in Unix seconds; zero hides the series.
    pub(crate) fn set_creation_time(&self, created_unix: f64) {
        self.created.set(created_unix);
    }

    /// Replaces all observations of a histogram by the given counts per bucket; surplus counts are
    /// added to the last bucket.
    ///
    /// Each observation counts as the upper bound of its bucket; in the last bucket, as the highest
    /// bound plus one. Returns the sum with each bound truncated to an integer.
    ///
    /// **Source:** llm-d-inference-sim `fake_metrics.go`, `initFakeHistogram`.
    pub(crate) fn replace_bucket_counts(&self, counts: &[u64]) -> u64 {
        let last = self.bounds.last().copied().unwrap_or(0.0) + 1.0;
        let bounds = self.bounds.iter().copied().chain([last]);
        let (mut sum, mut whole, mut counts) = (0.0, 0u64, counts.iter().copied());
        for (i, (bucket, bound)) in self.buckets.iter().zip(bounds).enumerate() {
            let count = match i < self.bounds.len() {
                true => counts.next().unwrap_or_default(),
                false => counts.by_ref().fold(0, u64::saturating_add),
            };
            sum += count as f64 * bound;
            whole = whole.saturating_add(count.saturating_mul(bound as u64));
            bucket.set(count);
        }
        self.set(sum);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(bounds: &[f64]) -> MetricCell {
        MetricCell::new(MetricType::HISTOGRAM, &bounds.into())
    }

    #[test]
    fn a_value_on_a_bound_counts_in_its_bucket() {
        let h = histogram(&[1.0, 2.0]);
        for v in [0.0, 1.0, 1.5, 2.0, 2.5] {
            h.observe(v);
        }
        assert_eq!(h.bucket_counts().collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(h.get(), 7.0);
    }

    #[test]
    fn replaced_counts_stand_for_their_bounds() {
        let h = histogram(&[0.5, 2.0]);
        h.observe(1.0);
        assert_eq!(h.replace_bucket_counts(&[2, 3, 1, 4]), 3 * 2 + 5 * 3);
        assert_eq!(h.bucket_counts().collect::<Vec<_>>(), [2, 3, 5]);
        assert_eq!(h.get(), 1.0 + 6.0 + 15.0);
        assert_eq!(h.replace_bucket_counts(&[]), 0);
        assert_eq!((h.bucket_counts().sum::<u64>(), h.get()), (0, 0.0));
    }
}
