#![doc = include_str!("../README.md")]

pub mod std_rng;

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Purpose of a stream of random numbers; streams for different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum RandomStreamPurpose {
    /// Random text of replies.
    Content = 1,
    /// Random delays of the engine.
    Latency = 2,
    /// Random failures injected into requests.
    Fault = 3,
    /// Random tool calls and structured text.
    Structured = 4,
    /// Random log probabilities of tokens.
    Logprobs = 5,
    /// Random requests of a synthetic workload.
    Workload = 6,
    /// Random choice between servers that a request router scores equally.
    Routing = 7,
    /// Random ids of requests and other objects, reproducible with a fixed seed.
    Id = 8,
    /// Random length of replies.
    Length = 9,
}

/// Creates the random number generator of (seed, request, purpose): ChaCha8, the same on every
/// platform.
pub fn request_rng(seed: u64, request: u64, purpose: RandomStreamPurpose) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&request.to_le_bytes());
    key[16..24].copy_from_slice(&(purpose as u64).to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Mixes two 64-bit words into one (SplitMix64 finalizer): fast and well distributed, but not
/// secret.
pub const fn mix_u64_pair(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(b.rotate_left(32));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draws random values by fixed algorithms, so that streams are stable across versions.
pub trait DrawRandom {
    /// Draws a number uniformly from `[0, 1)`, with 53 bits.
    fn draw_unit_f64(&mut self) -> f64;
    /// Draws an integer uniformly from `low..=high`.
    fn draw_u64_between(&mut self, low: u64, high: u64) -> u64;
    /// Returns true with a probability of `percent` percent.
    fn draw_percent_chance(&mut self, percent: u32) -> bool;
    /// Draws the time between two events of a Poisson process in which this time is `mean` on
    /// average.
    fn draw_exponential(&mut self, mean: f64) -> f64;
    /// Draws a standard normal variate by Box-Muller, which takes two uniform draws.
    fn draw_standard_normal(&mut self) -> f64;
    /// Draws a delay from a normal distribution, clamped to 0.3..=1.7 times `mean`
    /// (llm-d-inference-sim `latencies.go`).
    fn draw_clamped_delay(&mut self, mean: Duration, std_dev: Duration) -> Duration;
}

impl<R: Rng> DrawRandom for R {
    fn draw_unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    fn draw_u64_between(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        if span == u64::MAX {
            return self.next_u64();
        }
        // Multiply and shift; the bias is below 2^-64 x span.
        low + ((u128::from(self.next_u64()) * (u128::from(span) + 1)) >> 64) as u64
    }

    fn draw_percent_chance(&mut self, percent: u32) -> bool {
        percent > 0 && self.draw_u64_between(1, 100) <= u64::from(percent)
    }

    fn draw_exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.draw_unit_f64()).ln()
    }

    fn draw_standard_normal(&mut self) -> f64 {
        let u = 1.0 - self.draw_unit_f64();
        let v = self.draw_unit_f64();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    fn draw_clamped_delay(&mut self, mean: Duration, std_dev: Duration) -> Duration {
        if std_dev.is_zero() {
            return mean;
        }
        let mean = mean.as_nanos() as f64;
        let drawn = mean + std_dev.as_nanos() as f64 * self.draw_standard_normal();
        Duration::from_nanos(drawn.clamp(0.3 * mean, 1.7 * mean) as u64)
    }
}
