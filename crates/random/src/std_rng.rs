//! Reproduces the draws of `rand` 0.9's `StdRng` (ChaCha12), which Dynamo's synthetic workloads
//! use.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::DrawRandom;

/// Generates the values of `rand` 0.9's `StdRng` after `seed_from_u64(seed)`.
#[derive(Debug, Clone)]
pub struct StdRng(ChaCha12Rng);

impl StdRng {
    /// Creates the random number generator with the given seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha12Rng::seed_from_u64(seed))
    }

    /// Draws what `random::<f64>()` of `rand` draws: a number from `[0, 1)`.
    pub fn draw_unit_f64(&mut self) -> f64 {
        self.0.draw_unit_f64()
    }

    /// Returns true with probability `rate`, as `random_bool` of `rand` 0.9; a rate of 1 consumes
    /// no random number.
    pub fn draw_bool(&mut self, rate: f64) -> bool {
        if rate >= 1.0 {
            return true;
        }
        // Fraction of all 64-bit words, truncated.
        self.0.next_u64() < (rate * 2.0f64.powi(64)) as u64
    }

    /// Draws an integer from `0..n`, as `random_range` of `rand` 0.9 does (Canon's method over 32
    /// bits).
    pub fn draw_u32_below(&mut self, n: u32) -> u32 {
        let wide = |word: u32| u64::from(word) * u64::from(n);
        let product = wide(self.0.next_u32());
        let (high, low) = ((product >> 32) as u32, product as u32);
        if low > n.wrapping_neg() {
            let more = (wide(self.0.next_u32()) >> 32) as u32;
            return high + u32::from(low.checked_add(more).is_none());
        }
        high
    }

    /// Draws the time between two events of a Poisson process with the given mean.
    pub fn draw_exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.draw_unit_f64()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_equal_recorded_rand_std_rng_draws() {
        let draws = |n| {
            let mut rng = StdRng::new(42);
            (0..12).map(|_| rng.draw_u32_below(n)).collect::<Vec<_>>()
        };
        assert_eq!(draws(8), [1, 4, 1, 4, 6, 5, 7, 3, 7, 0, 4, 3]);
        assert_eq!(draws(4), [0, 2, 0, 2, 3, 2, 3, 1, 3, 0, 2, 1]);
        let mut rng = StdRng::new(42);
        let mut at = 0.0;
        let arrivals = [0; 3].map(|_| {
            at += rng.draw_exponential(1000.0 / 12.0);
            at
        });
        assert_eq!(arrivals, [62.310384803391365, 127.51628293261567, 211.83961403746997]);
    }
}
