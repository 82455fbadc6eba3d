//! Atomic cells that hold the values of metrics; a scrape never blocks a writer.
//!
//! Any thread may add to a cell. The `_exclusive` methods require that only one thread writes, and
//! cost no more than a plain addition.

use prometheus::core::{Atomic, AtomicF64, AtomicU64};

/// Monotonic counter on a cache line of its own, which prevents false sharing between engines.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Counter(AtomicU64);

impl Default for Counter {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Counter {
    pub(super) fn add(&self, n: u64) {
        // Cached tokens are often zero, and an atomic addition is slow.
        if n > 0 {
            self.0.inc_by(n);
        }
    }

    /// Adds `n` to the counter; requires that no other thread writes.
    pub(super) fn add_exclusive(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    pub(super) fn get(&self) -> u64 {
        self.0.get()
    }

    /// Replaces the count of the counter, for fake metrics and restarts.
    pub(super) fn set(&self, n: u64) {
        self.0.set(n);
    }
}

#[derive(Debug)]
pub(super) struct Gauge(AtomicF64);

impl Gauge {
    pub(super) fn new(v: f64) -> Self {
        Self(AtomicF64::new(v))
    }

    pub(super) fn set(&self, v: f64) {
        self.0.set(v);
    }

    pub(super) fn add(&self, v: f64) {
        self.0.inc_by(v);
    }

    pub(super) fn get(&self) -> f64 {
        self.0.get()
    }
}

impl Default for Gauge {
    fn default() -> Self {
        Self::new(0.0)
    }
}

/// Histogram of a metric: observations counted per bucket, and their sum.
///
/// The total count is the sum of the bucket counts, so a scrape during an observation is
/// consistent.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Histogram {
    sum: AtomicF64,
    /// Upper bounds of the buckets, ascending; the last bucket has no bound.
    bounds: Box<[f64]>,
    buckets: Box<[AtomicU64]>,
}

impl Histogram {
    pub(super) fn new(bounds: &[f64]) -> Self {
        Self {
            sum: AtomicF64::new(0.0),
            bounds: bounds.into(),
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(super) fn observe(&self, v: f64) {
        self.observe_times(v, 1);
    }

    pub(super) fn observe_times(&self, v: f64, times: u64) {
        self.bucket(v).inc_by(times);
        if v != 0.0 {
            self.sum.inc_by(v * times as f64);
        }
    }

    pub(super) fn observe_exclusive(&self, v: f64) {
        self.observe_times_exclusive(v, 1);
    }

    pub(super) fn observe_times_exclusive(&self, v: f64, times: u64) {
        let bucket = self.bucket(v);
        bucket.set(bucket.get().wrapping_add(times));
        if v != 0.0 {
            self.sum.set(self.sum.get() + v * times as f64);
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

    pub(super) fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// Returns the number of observations in each bucket, not cumulative.
    pub(super) fn buckets(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().map(Atomic::get)
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum.get()
    }

    /// Replaces all observations by the given counts per bucket; surplus counts are added to the
    /// last bucket.
    ///
    /// Each observation counts as the upper bound of its bucket; in the last bucket, as the highest
    /// bound plus one. Returns the sum with each bound truncated to an integer.
    ///
    /// **Source:** llm-d-inference-sim `fake_metrics.go`, `initFakeHistogram`.
    pub(super) fn replace(&self, counts: &[u64]) -> u64 {
        let last = self.bounds.last().copied().unwrap_or(0.0) + 1.0;
        let (mut sum, mut whole) = (0.0, 0u64);
        for (i, count) in counts.iter().enumerate() {
            let value = self.bounds.get(i).copied().unwrap_or(last);
            sum += *count as f64 * value;
            whole = whole.saturating_add(count.saturating_mul(value as u64));
        }
        let tail = self.bounds.len();
        for (i, bucket) in self.buckets.iter().enumerate() {
            bucket.set(match counts.get(i..) {
                Some(rest) if i == tail => rest.iter().fold(0, |a, n| a.saturating_add(*n)),
                Some([first, ..]) => *first,
                _ => 0,
            });
        }
        self.sum.set(sum);
        whole
    }
}

/// Creation time of a metric series, in Unix seconds; zero hides the series.
#[derive(Debug, Default)]
pub(super) struct CreatedAt(Gauge);

impl CreatedAt {
    pub(super) fn show(&self, now_unix: f64) {
        if self.0.get() == 0.0 {
            self.0.set(now_unix);
        }
    }

    pub(super) fn hide(&self) {
        self.0.set(0.0);
    }

    pub(super) fn at(&self) -> Option<f64> {
        let at = self.0.get();
        (at != 0.0).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_counts_in_its_bucket() {
        let h = Histogram::new(&[1.0, 2.0]);
        for v in [0.0, 1.0, 1.5, 2.0, 2.5] {
            h.observe(v);
        }
        assert_eq!(h.buckets().collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(h.sum(), 7.0);
    }

    #[test]
    fn replaced_counts_stand_for_their_bounds() {
        let h = Histogram::new(&[0.5, 2.0]);
        h.observe(1.0);
        assert_eq!(h.replace(&[2, 3, 1, 4]), 3 * 2 + 5 * 3);
        assert_eq!(h.buckets().collect::<Vec<_>>(), [2, 3, 5]);
        assert_eq!(h.sum(), 1.0 + 6.0 + 15.0);
        assert_eq!(h.replace(&[]), 0);
        assert_eq!((h.buckets().sum::<u64>(), h.sum()), (0, 0.0));
    }
}
