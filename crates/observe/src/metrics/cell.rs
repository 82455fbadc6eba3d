//! Where numbers live between scrapes: atomics that no reader blocks. Any thread may add to them; what only
//! one does at a time (`_exclusive`) costs no more than to add to a number that nobody else knows.

use prometheus::core::{Atomic, AtomicF64, AtomicU64};

/// A count that only grows; on a cache line of its own, so that engines do not slow each other.
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
        // What is cached adds nothing most times, and an atomic addition costs ten others.
        if n > 0 {
            self.0.inc_by(n);
        }
    }

    /// Adds, while nobody else writes.
    pub(super) fn add_exclusive(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    pub(super) fn get(&self) -> u64 {
        self.0.get()
    }

    /// Fake metrics, and a process that forgets.
    pub(super) fn set(&self, n: u64) {
        self.0.set(n);
    }
}

/// A value that goes up and down, or a counter of something that is not whole.
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

/// Observations counted per bucket, and their sum.
///
/// There is no count beside the buckets: it is their total, so a scrape in the middle of an
/// observation still adds up.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Histogram {
    sum: AtomicF64,
    /// Upper bounds, ascending; one bucket more than bounds, the last without a bound.
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

    /// Counts one value in the first bucket whose bound is not below it.
    pub(super) fn observe(&self, v: f64) {
        self.observe_times(v, 1);
    }

    /// Counts a value so many times, at least once.
    pub(super) fn observe_times(&self, v: f64, times: u64) {
        self.bucket(v).inc_by(times);
        if v != 0.0 {
            self.sum.inc_by(v * times as f64);
        }
    }

    /// Counts a value, while nobody else writes.
    pub(super) fn observe_exclusive(&self, v: f64) {
        self.observe_times_exclusive(v, 1);
    }

    /// Counts a value so many times, at least once, while nobody else writes.
    pub(super) fn observe_times_exclusive(&self, v: f64, times: u64) {
        let bucket = self.bucket(v);
        bucket.set(bucket.get().wrapping_add(times));
        if v != 0.0 {
            self.sum.set(self.sum.get() + v * times as f64);
        }
    }

    fn bucket(&self, v: f64) -> &AtomicU64 {
        let bucket = match self.bounds.first() {
            // Most times of a server without delays.
            Some(first) if v <= *first => 0,
            _ => self.bounds.partition_point(|bound| *bound < v),
        };
        &self.buckets[bucket]
    }

    pub(super) fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// Observations per bucket, not cumulated.
    pub(super) fn buckets(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().map(Atomic::get)
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum.get()
    }

    /// Replaces all observations by so many per bucket; missing counts are zero, surplus ones
    /// join the last bucket. Each counts as its bucket's bound, in the last as the bound before
    /// plus one. Returns the sum with each bound cut to a whole number.
    /// Source: llm-d-inference-sim `fake_metrics.go`, `initFakeHistogram`.
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

/// Unix time at which a series came to be (any time, where nobody shows it); until then the
/// series is not shown.
#[derive(Debug, Default)]
pub(super) struct CreatedAt(Gauge);

impl CreatedAt {
    /// Shows the series from `now_unix` on; later calls change nothing that matters.
    pub(super) fn show(&self, now_unix: f64) {
        if self.0.get() == 0.0 {
            self.0.set(now_unix);
        }
    }

    /// Hides the series until it is shown again.
    pub(super) fn hide(&self) {
        self.0.set(0.0);
    }

    /// When it came to be, if it did.
    pub(super) fn at(&self) -> Option<f64> {
        let at = self.0.get();
        (at != 0.0).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_falls_below_it() {
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
