//! Keeps recent latencies of an engine, for exact percentiles.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::Serialize;

const FIRST_TOKENS: usize = 4_096;
const GAPS: usize = 16_384;
const LOOKUPS: usize = 1_000;

/// Percentiles of recent latencies, in seconds, by nearest rank: each is an observed value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of latencies that the percentiles cover.
    pub count: u64,
    /// Median latency, in seconds.
    pub p50: f64,
    /// 95th percentile of the latencies, in seconds.
    pub p95: f64,
    /// 99th percentile of the latencies, in seconds.
    pub p99: f64,
}

/// Percentiles of recent latencies of all engines; `None` without observations since the start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RecentLatencies {
    /// Percentiles of the time to first token, of the newest 4,096 per engine.
    pub ttft: Option<Percentiles>,
    /// Percentiles of the inter-token latency, of the newest 16,384 per engine.
    pub itl: Option<Percentiles>,
}

/// Recent latencies and cache lookups of one engine. One thread at a time adds latencies, without a
/// lock.
pub(super) struct Recent {
    pub(super) ttft: Ring<FIRST_TOKENS>,
    pub(super) itl: Ring<GAPS>,
    pub(super) prefix: HitRing,
    pub(super) external: HitRing,
    pub(super) media: HitRing,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self {
            ttft: Ring::new(),
            itl: Ring::new(),
            prefix: HitRing::default(),
            external: HitRing::default(),
            media: HitRing::default(),
        }
    }

    pub(super) fn clear(&self) {
        self.ttft.clear();
        self.itl.clear();
        for ring in [&self.prefix, &self.external, &self.media] {
            ring.clear();
        }
    }
}

/// Cache queries and hits of the newest requests, as vLLM's log counts them.
///
/// **Source:** vLLM 0.33 `vllm/v1/metrics/stats.py`, `CachingMetrics`.
#[derive(Default)]
pub(super) struct HitRing {
    next: AtomicUsize,
    /// Lookups of the newest requests, allocated at the first request; queries in the high half of
    /// a word, hits in the low half.
    entries: OnceLock<Box<[AtomicU64]>>,
}

impl HitRing {
    pub(super) fn add(&self, queries: u32, hits: u32) {
        let entries =
            self.entries.get_or_init(|| (0..LOOKUPS).map(|_| AtomicU64::new(0)).collect());
        let at = self.next.fetch_add(1, Ordering::Relaxed) % LOOKUPS;
        let word = u64::from(queries) << 32 | u64::from(hits);
        entries[at].store(word, Ordering::Relaxed);
    }

    pub(super) fn sums(&self) -> (u64, u64) {
        let entries = self.entries.get().into_iter().flatten();
        entries.fold((0, 0), |(hits, queries), entry| {
            let word = entry.load(Ordering::Relaxed);
            (hits + (word & u64::from(u32::MAX)), queries + (word >> 32))
        })
    }

    pub(super) fn clear(&self) {
        for entry in self.entries.get().into_iter().flatten() {
            entry.store(0, Ordering::Relaxed);
        }
    }
}

/// Ring buffer of the newest `N` latencies.
///
/// An entry is one word: the latency in seconds (`f32`, high half) and its count (low half; 0: no
/// entry). Readers therefore never see half of an entry.
pub(super) struct Ring<const N: usize> {
    next: AtomicUsize,
    /// Entries of the ring, allocated at the first latency, because most engines in tests have
    /// none.
    entries: OnceLock<Box<[AtomicU64]>>,
}

impl<const N: usize> Ring<N> {
    fn new() -> Self {
        Self { next: AtomicUsize::new(0), entries: OnceLock::new() }
    }

    pub(super) fn add(&self, seconds: f64, times: u32) {
        let entries = self.entries.get_or_init(|| (0..N).map(|_| AtomicU64::new(0)).collect());
        let at = self.next.load(Ordering::Relaxed) % N;
        self.next.store(at + 1, Ordering::Relaxed);
        let word = u64::from((seconds as f32).to_bits()) << 32 | u64::from(times);
        entries[at].store(word, Ordering::Relaxed);
    }

    fn clear(&self) {
        for entry in self.entries.get().into_iter().flatten() {
            entry.store(0, Ordering::Relaxed);
        }
    }

    fn read(&self) -> impl Iterator<Item = (f32, u64)> + '_ {
        let entries = self.entries.get().into_iter().flatten();
        entries.filter_map(|entry| {
            let word = entry.load(Ordering::Relaxed);
            let times = word & u64::from(u32::MAX);
            (times > 0).then(|| (f32::from_bits((word >> 32) as u32), times))
        })
    }
}

pub(super) fn percentiles<'a, const N: usize>(
    rings: impl Iterator<Item = &'a Ring<N>>,
) -> Option<Percentiles> {
    let mut entries: Vec<(f32, u64)> = rings.flat_map(Ring::read).collect();
    entries.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let count: u64 = entries.iter().map(|(_, times)| times).sum();
    let nearest_rank = |percent: u64| {
        let rank = (count * percent).div_ceil(100);
        let mut seen = 0;
        let found = entries.iter().find(|(_, times)| {
            seen += times;
            seen >= rank
        });
        found.map(|(seconds, _)| f64::from(*seconds))
    };
    Some(Percentiles {
        count,
        p50: nearest_rank(50)?,
        p95: nearest_rank(95)?,
        p99: nearest_rank(99)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<const N: usize>(rings: &[&Ring<N>]) -> Option<Percentiles> {
        percentiles(rings.iter().copied())
    }

    #[test]
    fn percentiles_are_values_that_were_observed() {
        let (first, second) = (Ring::<100>::new(), Ring::<100>::new());
        assert_eq!(of(&[&first, &second]), None);
        for i in 0..50 {
            first.add(f64::from(2 * i + 1), 1);
            second.add(f64::from(2 * i + 2), 1);
        }
        let Some(found) = of(&[&first, &second]) else {
            panic!("no percentiles of 100 values");
        };
        assert_eq!((found.count, found.p50, found.p95, found.p99), (100, 50.0, 95.0, 99.0));
    }

    #[test]
    fn hits_are_those_of_the_newest_requests() {
        let ring = HitRing::default();
        assert_eq!(ring.sums(), (0, 0));
        (0..1000).for_each(|_| ring.add(10, 0));
        (0..400).for_each(|_| ring.add(10, 5));
        assert_eq!(ring.sums(), (2_000, 10_000));
        ring.clear();
        assert_eq!(ring.sums(), (0, 0));
    }

    #[test]
    fn repeated_values_are_weighted_and_old_ones_dropped() {
        let ring = Ring::<3>::new();
        for (seconds, times) in [(9.0, 1), (1.0, 98), (2.0, 1), (3.0, 1)] {
            ring.add(seconds, times);
        }
        let found = of(&[&ring]).map(|p| (p.count, p.p50, p.p95, p.p99));
        assert_eq!(found, Some((100, 1.0, 1.0, 2.0)));
        ring.clear();
        assert_eq!(of(&[&ring]), None);
    }
}
