//! Keeps recent latencies and cache lookups of an engine, for the log and the dashboard.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::Serialize;

/// Percentiles of recent latencies, in seconds, by nearest rank: each is an observed value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyPercentiles {
    /// Number of latencies that the percentiles cover.
    pub count: u64,
    /// Median latency, in seconds.
    pub p50: f64,
    /// 95th percentile of the latencies, in seconds.
    pub p95: f64,
    /// 99th percentile of the latencies, in seconds.
    pub p99: f64,
}

/// Percentiles of recent latencies of all engines; each is `None` if nothing was observed since the
/// start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RecentLatencies {
    /// Percentiles of the newest 4,096 times to first token per engine.
    pub ttft: Option<LatencyPercentiles>,
    /// Percentiles of the newest 16,384 inter-token latencies per engine.
    pub itl: Option<LatencyPercentiles>,
}

impl RecentLatencies {
    pub(crate) fn of_engines(engines: &[&RecentEngineSamples]) -> Self {
        Self {
            ttft: latency_percentiles(engines.iter().map(|engine| &engine.ttft)),
            itl: latency_percentiles(engines.iter().map(|engine| &engine.itl)),
        }
    }
}

/// Newest latencies and cache lookups of one engine.
///
/// Lookups are those of the newest requests, as vLLM's log counts them.
///
/// **Source:** vLLM 0.33 `vllm/v1/metrics/stats.py`, `CachingMetrics`.
#[derive(Default)]
pub(crate) struct RecentEngineSamples {
    pub(crate) ttft: LatencyRingBuffer<4_096>,
    pub(crate) itl: LatencyRingBuffer<16_384>,
    pub(crate) prefix: LatencyRingBuffer<1_000>,
    pub(crate) external: LatencyRingBuffer<1_000>,
    pub(crate) media: LatencyRingBuffer<1_000>,
}

impl RecentEngineSamples {
    pub(crate) fn clear_engine_samples(&self) {
        self.ttft.clear_ring_buffer();
        self.itl.clear_ring_buffer();
        for lookups in [&self.prefix, &self.external, &self.media] {
            lookups.clear_ring_buffer();
        }
    }
}

/// Ring buffer of the newest `N` entries, each a value of 32 bits and its count.
///
/// An entry is one word, so readers never see half of one. Entries are allocated at the first one,
/// because most engines in tests have none.
#[derive(Default)]
pub(crate) struct LatencyRingBuffer<const N: usize> {
    next: AtomicUsize,
    entries: OnceLock<Box<[AtomicU64]>>,
}

impl<const N: usize> LatencyRingBuffer<N> {
    /// Adds a latency that was observed a number of times; only one thread at a time may call this
    /// function.
    pub(crate) fn add_latency_as_only_writer(&self, seconds: f64, times: u32) {
        let next = self.next.load(Ordering::Relaxed);
        self.next.store(next + 1, Ordering::Relaxed);
        self.put(next, (seconds as f32).to_bits(), times);
    }

    /// Adds the numbers of queries and hits of a cache lookup.
    pub(crate) fn add_cache_lookup(&self, queries: u32, hits: u32) {
        self.put(self.next.fetch_add(1, Ordering::Relaxed), queries, hits);
    }

    fn put(&self, at: usize, high: u32, low: u32) {
        let entries = self.entries.get_or_init(|| (0..N).map(|_| AtomicU64::new(0)).collect());
        entries[at % N].store(u64::from(high) << 32 | u64::from(low), Ordering::Relaxed);
    }

    pub(crate) fn clear_ring_buffer(&self) {
        let entries = self.entries.get().into_iter().flatten();
        entries.for_each(|entry| entry.store(0, Ordering::Relaxed));
    }

    /// Returns the value and the count of each entry of the ring; both are zero for an empty entry.
    fn read(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let entries = self.entries.get().into_iter().flatten();
        let words = entries.map(|entry| entry.load(Ordering::Relaxed));
        words.map(|word| ((word >> 32) as u32, word & u64::from(u32::MAX)))
    }

    /// Returns the sums of hits and queries of the newest cache lookups.
    pub(crate) fn cache_hits_and_queries(&self) -> (u64, u64) {
        let sum = |sums: (u64, u64), (queries, hits)| (sums.0 + hits, sums.1 + u64::from(queries));
        self.read().fold((0, 0), sum)
    }
}

fn latency_percentiles<'a, const N: usize>(
    rings: impl Iterator<Item = &'a LatencyRingBuffer<N>>,
) -> Option<LatencyPercentiles> {
    let entries = rings.flat_map(LatencyRingBuffer::read).filter(|(_, times)| *times > 0);
    let mut entries: Vec<_> = entries.map(|(bits, times)| (f32::from_bits(bits), times)).collect();
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
    Some(LatencyPercentiles {
        count,
        p50: nearest_rank(50)?,
        p95: nearest_rank(95)?,
        p99: nearest_rank(99)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<const N: usize>(rings: &[&LatencyRingBuffer<N>]) -> Option<LatencyPercentiles> {
        latency_percentiles(rings.iter().copied())
    }

    #[test]
    fn percentiles_are_values_that_were_observed() {
        let (first, second) =
            (LatencyRingBuffer::<100>::default(), LatencyRingBuffer::<100>::default());
        assert_eq!(of(&[&first, &second]), None);
        for i in 0..50 {
            first.add_latency_as_only_writer(f64::from(2 * i + 1), 1);
            second.add_latency_as_only_writer(f64::from(2 * i + 2), 1);
        }
        let Some(found) = of(&[&first, &second]) else {
            panic!("no percentiles of 100 values");
        };
        assert_eq!((found.count, found.p50, found.p95, found.p99), (100, 50.0, 95.0, 99.0));
    }

    #[test]
    fn hits_are_those_of_the_newest_requests() {
        let ring = LatencyRingBuffer::<1_000>::default();
        assert_eq!(ring.cache_hits_and_queries(), (0, 0));
        (0..1000).for_each(|_| ring.add_cache_lookup(10, 0));
        (0..400).for_each(|_| ring.add_cache_lookup(10, 5));
        assert_eq!(ring.cache_hits_and_queries(), (2_000, 10_000));
        ring.clear_ring_buffer();
        assert_eq!(ring.cache_hits_and_queries(), (0, 0));
    }

    #[test]
    fn repeated_values_are_weighted_and_old_ones_dropped() {
        let ring = LatencyRingBuffer::<3>::default();
        for (seconds, times) in [(9.0, 1), (1.0, 98), (2.0, 1), (3.0, 1)] {
            ring.add_latency_as_only_writer(seconds, times);
        }
        let found = of(&[&ring]).map(|p| (p.count, p.p50, p.p95, p.p99));
        assert_eq!(found, Some((100, 1.0, 1.0, 2.0)));
        ring.clear_ring_buffer();
        assert_eq!(of(&[&ring]), None);
    }
}
