//! Zipf's law over a vocabulary: the token of rank r has a probability proportional to r^-s.

use vllm_sim_random::mix_u64_pair;

/// Number of ranks whose probabilities are summed exactly; an integral approximates the others.
const EXACTLY_SUMMED_RANKS: u32 = 64;
/// Minimum of the Zipf exponent s, and size of the range above it; the hash of the preceding tokens
/// selects s in the range.
const EXPONENT_MIN_AND_RANGE: (f64, f64) = (1.2, 1.3);

#[derive(Debug, Clone, Copy)]
pub(super) struct ZipfDistribution {
    context: u64,
    vocabulary: u32,
    exponent: f64,
    /// Sum of r^-s over all ranks r of the Zipf distribution with exponent s.
    total: f64,
    norm: f64,
    /// Distance between the ids of the tokens of consecutive ranks, coprime with the vocabulary
    /// size.
    stride: u64,
}

impl ZipfDistribution {
    pub(super) fn new(context: u64, vocabulary: u32) -> Self {
        let exponent = EXPONENT_MIN_AND_RANGE.0
            + EXPONENT_MIN_AND_RANGE.1 * to_unit_interval(mix_u64_pair(context, 1));
        let mut stride = 1 + mix_u64_pair(context, 2) % u64::from(vocabulary);
        while gcd(stride, vocabulary.into()) != 1 {
            stride += 1;
        }
        let total = normalizing_sum(exponent, vocabulary);
        Self { context, vocabulary, exponent, total, norm: total.ln(), stride }
    }

    pub(super) fn logprob_of_rank(&self, rank: u32) -> f64 {
        -self.exponent * f64::from(rank).ln() - self.norm
    }

    pub(super) fn token_of_rank(&self, rank: u32) -> u32 {
        let start = self.context % u64::from(self.vocabulary);
        let steps = self.stride * u64::from(rank) % u64::from(self.vocabulary);
        ((start + steps) % u64::from(self.vocabulary)) as u32
    }

    /// Draws the rank of a token at a temperature from the random word `chance`.
    pub(super) fn draw_rank(&self, chance: u64, temperature: f64) -> u32 {
        // Below a temperature of 0.01, only the first rank has any weight.
        let exponent = self.exponent / temperature.max(0.01);
        let total = match temperature {
            1.0 => self.total,
            _ => normalizing_sum(exponent, self.vocabulary),
        };
        let mut left = to_unit_interval(chance) * total;
        for rank in 1..=self.vocabulary.min(EXACTLY_SUMMED_RANKS) {
            left -= f64::from(rank).powf(-exponent);
            if left < 0.0 {
                return rank;
            }
        }
        let start = f64::from(EXACTLY_SUMMED_RANKS) + 0.5;
        let rest = 1.0 - exponent;
        let rank = if rest.abs() < 1e-9 {
            start * left.exp()
        } else {
            let base = start.powf(rest) + rest * left;
            base.max(f64::MIN_POSITIVE).powf(1.0 / rest)
        };
        (rank.round() as u32).clamp(1, self.vocabulary)
    }
}

fn normalizing_sum(exponent: f64, vocabulary: u32) -> f64 {
    let summed = vocabulary.min(EXACTLY_SUMMED_RANKS);
    let first: f64 = (1..=summed).map(|rank| f64::from(rank).powf(-exponent)).sum();
    let (from, to) = (f64::from(summed) + 0.5, f64::from(vocabulary) + 0.5);
    let rest = 1.0 - exponent;
    if rest.abs() < 1e-9 {
        return first + (to / from).ln();
    }
    first + (to.powf(rest) - from.powf(rest)) / rest
}

/// Maps a random 64-bit word to a number in `[0, 1)`.
fn to_unit_interval(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one_and_each_token_has_one_rank() {
        for (context, vocabulary) in [(1, 2), (2, 50), (3, 4096), (4, 128_256)] {
            let law = ZipfDistribution::new(context, vocabulary);
            let sum: f64 = (1..=vocabulary).map(|rank| law.logprob_of_rank(rank).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-4, "{vocabulary}: {sum}");
            let mut tokens: Vec<u32> =
                (1..=vocabulary).map(|rank| law.token_of_rank(rank)).collect();
            tokens.sort_unstable();
            assert!(tokens.into_iter().eq(0..vocabulary));
        }
    }

    #[test]
    fn ranks_are_drawn_by_their_probability_and_the_temperature() {
        let law = ZipfDistribution::new(7, 1000);
        let firsts = |temperature: f64| {
            let drawn = (0..10_000).map(|n| law.draw_rank(mix_u64_pair(n, 9), temperature));
            drawn.filter(|rank| *rank == 1).count() as f64 / 10_000.0
        };
        assert!((firsts(1.0) - law.logprob_of_rank(1).exp()).abs() < 0.02);
        assert_eq!(firsts(0.0), 1.0);
        assert!(firsts(2.0) < firsts(1.0) && firsts(1.0) < firsts(0.5));
        let ranks = (0..10_000).map(|n| law.draw_rank(mix_u64_pair(n, 3), 100.0));
        assert!(ranks.max().unwrap() > 900);
    }
}
