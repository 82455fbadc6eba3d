//! Collects millions of values in bounded memory and computes their statistics.

use std::collections::HashMap;

const MAX_EXACT_SAMPLES: usize = 1 << 20;
/// Number of mantissa bits kept in rounded samples: a relative error of at most 2^-13, 0.013 %.
const KEPT_BITS: u32 = 12;
const DROPPED_BITS: u32 = f64::MANTISSA_DIGITS - 1 - KEPT_BITS;

/// Distribution of numeric samples: values with their counts.
#[derive(Debug, Clone, Default)]
pub struct SampleDistribution {
    seen: Vec<(f64, u64)>,
    /// Number of samples at the start of `seen` that are already sorted and have no duplicates.
    sorted: usize,
    /// Number of samples by their [`kept_bits`], if there are too many distinct values.
    rounded: Option<HashMap<u64, u64>>,
    count: u64,
    mean: f64,
    spread: f64,
    min: f64,
    max: f64,
}

impl SampleDistribution {
    /// Adds `value` to the distribution `times` times; ignores values that are not finite.
    pub fn add_sample(&mut self, value: f64, times: u64) {
        if times == 0 || !value.is_finite() {
            return;
        }
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
        self.count += times;
        let delta = value - self.mean;
        let weight = times as f64;
        self.mean += delta * weight / self.count as f64;
        self.spread += delta * (value - self.mean) * weight;
        if let Some(counts) = &mut self.rounded {
            *counts.entry(kept_bits(value)).or_insert(0) += times;
            return;
        }
        match self.seen.last_mut() {
            Some((last, n)) if *last == value => *n += times,
            _ => self.seen.push((value, times)),
        }
        if self.seen.len() >= 2 * MAX_EXACT_SAMPLES {
            self.merge_equal_samples();
        }
    }

    /// Sorts samples and merges equal values; rounds values when there are too many distinct ones.
    fn merge_equal_samples(&mut self) {
        self.sort_by_value();
        if self.seen.len() > MAX_EXACT_SAMPLES {
            let counts = self.rounded.insert(HashMap::new());
            for (value, times) in std::mem::take(&mut self.seen) {
                *counts.entry(kept_bits(value)).or_insert(0) += times;
            }
        }
    }

    fn sort_by_value(&mut self) {
        if let Some(counts) = &self.rounded {
            let value = |kept: u64| f64::from_bits(kept << DROPPED_BITS);
            self.seen = counts.iter().map(|(kept, times)| (value(*kept), *times)).collect();
            self.seen.sort_by(|a, b| a.0.total_cmp(&b.0));
            return;
        }
        if self.sorted == self.seen.len() {
            return;
        }
        self.seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.seen.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0 };
            same
        });
        self.sorted = self.seen.len();
    }

    /// Returns the number of samples in the distribution.
    pub const fn sample_count(&self) -> u64 {
        self.count
    }

    /// Returns the mean of the samples; 0 for an empty distribution.
    pub const fn mean(&self) -> f64 {
        self.mean
    }

    /// Returns the population standard deviation of the samples.
    pub fn std_dev(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        (self.spread.max(0.0) / self.count as f64).sqrt()
    }

    /// Returns the smallest sample of the distribution; 0 without samples.
    pub const fn smallest_sample(&self) -> f64 {
        self.min
    }

    /// Returns the largest sample of the distribution; 0 without samples.
    pub const fn largest_sample(&self) -> f64 {
        self.max
    }

    /// Returns `N` evenly spaced quantiles, from the smallest to the largest sample; empty without
    /// samples.
    pub fn quantile_curve<const N: usize>(&mut self) -> Vec<f64> {
        match self.count {
            0 => Vec::new(),
            _ => {
                let percents = std::array::from_fn(|i| i as f64 * 100.0 / (N - 1) as f64);
                self.percentiles::<N>(percents).to_vec()
            }
        }
    }

    /// Returns the percentiles of the samples for the given ascending percentages, without
    /// interpolation.
    ///
    /// Of `n` sorted values, `p` percent is the one with index `round((n - 1) × p / 100)`.
    pub fn percentiles<const N: usize>(&mut self, percents: [f64; N]) -> [f64; N] {
        self.sort_by_value();
        let last = self.count.saturating_sub(1);
        let (mut at, mut passed) = (0, 0);
        percents.map(|p| {
            let rank = ((last as f64 * p / 100.0).round() as u64).min(last);
            while let Some(&(_, n)) = self.seen.get(at).filter(|(_, n)| passed + n <= rank) {
                passed += n;
                at += 1;
            }
            let value = self.seen.get(at).map_or(0.0, |seen| seen.0);
            value.clamp(self.min, self.max)
        })
    }
}

/// Returns the bits of a float without the dropped ones, rounded.
fn kept_bits(value: f64) -> u64 {
    let half = 1 << (DROPPED_BITS - 1);
    value.to_bits().wrapping_add(half) >> DROPPED_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weighted_values_equal_repeated_values() {
        let list = [5.0, 1.0, 5.0, 2.0, 9.0, 5.0, 2.0];
        let mut samples = SampleDistribution::default();
        for (value, times) in [(5.0, 2), (9.0, 1), (2.0, 2), (1.0, 1), (5.0, 1)] {
            samples.add_sample(value, times);
        }
        let mean = list.iter().sum::<f64>() / 7.0;
        let variance = list.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 7.0;
        assert_eq!(samples.sample_count(), 7);
        assert!((samples.mean() - mean).abs() < 1e-12);
        assert!((samples.std_dev() - variance.sqrt()).abs() < 1e-12);
        assert_eq!((samples.smallest_sample(), samples.largest_sample()), (1.0, 9.0));
        let found = samples.percentiles([0.0, 25.0, 50.0, 90.0, 100.0]);
        assert_eq!(found, [1.0, 2.0, 5.0, 5.0, 9.0]);
    }

    #[test]
    fn empty_distribution_statistics_are_zero() {
        let mut samples = SampleDistribution::default();
        assert_eq!(samples.percentiles([50.0]), [0.0]);
        assert_eq!((samples.mean(), samples.std_dev()), (0.0, 0.0));
    }

    #[test]
    fn many_distinct_values_are_rounded() {
        let mut samples = SampleDistribution::default();
        let n = 5 * MAX_EXACT_SAMPLES as u64;
        for i in 0..n {
            samples.add_sample(1.0 + (i * 7919 % n) as f64 / n as f64, 1);
        }
        assert!(samples.seen.len() < 2 * MAX_EXACT_SAMPLES);
        for p in [1.0, 50.0, 99.0] {
            let exact = 1.0 + p / 100.0;
            let [found] = samples.percentiles([p]);
            assert!((found / exact - 1.0).abs() < 2e-4, "p{p}: {found}");
        }
    }
}
