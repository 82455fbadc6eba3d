use std::time::Duration;

use vllm_sim_random::DrawRandom;

use super::PromptTransfer;

/// Maximum length of one simulated delay, both as configured and after multiplication with load
/// factors.
pub const MAX_SIMULATED_DELAY: Duration = Duration::from_secs(24 * 3600);

/// Selects the formula of the simulated delay before the first token.
///
/// **Source:** `pkg/llm-d-inference-sim/latencies.go`, llm-d-inference-sim HEAD of 2026-08.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TtftFormula {
    /// The delay is the constant TTFT if one is set, else a delay per uncached prompt token.
    #[default]
    Default,
    /// The delay is always the constant TTFT.
    Constant,
    /// The delay is always a delay per uncached prompt token.
    PerToken,
}

/// Holds the configured token delays of the pool scheduler, and of batching schedulers without a
/// latency model.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenDelays {
    /// Formula of the delay before the first token.
    pub calculator: TtftFormula,
    /// Delay before the first token, and its standard deviation.
    pub ttft: (Duration, Duration),
    /// Delay before each further token, and its standard deviation.
    pub itl: (Duration, Duration),
    /// Time to fetch the KV cache of a remote prompt, and its standard deviation.
    pub kv_transfer: (Duration, Duration),
    /// Fixed part of the prefill time, if the prefill time depends on the prompt length.
    pub prefill_overhead: Duration,
    /// Prefill time per uncached prompt token.
    pub prefill_per_token: Duration,
    /// Standard deviation of the prefill time, if the prefill time depends on the prompt length.
    pub prefill_std_dev: Duration,
    /// Time to fetch the KV cache of one prompt token from another engine.
    pub kv_transfer_per_token: Duration,
    /// Standard deviation of the time to fetch the KV cache of one prompt token.
    pub kv_transfer_per_token_std_dev: Duration,
    /// Factor of all delays when all slots are busy, relative to a single running sequence; at
    /// least 1.
    pub factor_under_load: f64,
    /// Divisor of all delays; above 0.
    pub speedup: f64,
}

impl Default for TokenDelays {
    fn default() -> Self {
        Self {
            calculator: TtftFormula::Default,
            ttft: Default::default(),
            itl: Default::default(),
            kv_transfer: Default::default(),
            prefill_overhead: Duration::ZERO,
            prefill_per_token: Duration::ZERO,
            prefill_std_dev: Duration::ZERO,
            kv_transfer_per_token: Duration::ZERO,
            kv_transfer_per_token_std_dev: Duration::ZERO,
            factor_under_load: 1.0,
            speedup: 1.0,
        }
    }
}

impl TokenDelays {
    /// Returns the factor of delays while `running` of `slots` sequence slots are busy: `1 + (F -
    /// 1) x (running - 1) / (slots - 1)`, where F is `factor_under_load`.
    pub fn load_factor(&self, running: usize, slots: usize) -> f64 {
        if slots <= 1 || self.factor_under_load <= 1.0 {
            return 1.0;
        }
        let share = running.saturating_sub(1) as f64 / (slots - 1) as f64;
        1.0 + (self.factor_under_load - 1.0) * share
    }

    /// Draws the delay before the first token of a prompt, `cached` tokens of which are in the
    /// prefix cache.
    ///
    /// `load` is a factor of prefill times; it does not change the time of a KV transfer.
    pub fn draw_first_token_delay(
        &self,
        prompt: u32,
        cached: u32,
        transfer: PromptTransfer,
        load: f64,
        rng: &mut impl DrawRandom,
    ) -> Duration {
        let constant = match self.calculator {
            TtftFormula::Constant => true,
            TtftFormula::PerToken => false,
            TtftFormula::Default if transfer == PromptTransfer::RemotePrefill => {
                self.kv_transfer != (Duration::ZERO, Duration::ZERO)
            }
            TtftFormula::Default => !self.ttft.0.is_zero(),
        };
        let delay = match (transfer, constant) {
            (PromptTransfer::RemotePrefill, true) => {
                rng.draw_clamped_delay(self.kv_transfer.0, self.kv_transfer.1)
            }
            (PromptTransfer::RemotePrefill, false) => rng.draw_clamped_delay(
                self.kv_transfer_per_token.saturating_mul(prompt),
                self.kv_transfer_per_token_std_dev,
            ),
            (_, true) => rng.draw_clamped_delay(
                scale_duration(self.ttft.0, load),
                scale_duration(self.ttft.1, load),
            ),
            (_, false) => {
                let work = self.prefill_per_token.saturating_mul(prompt.saturating_sub(cached));
                let mean = scale_duration(self.prefill_overhead.saturating_add(work), load);
                rng.draw_clamped_delay(mean, self.prefill_std_dev)
            }
        };
        self.divide_by_speedup(delay)
    }

    /// Returns the mean time of a step that computes `tokens` prompt tokens, before the load factor
    /// and the speedup.
    pub fn mean_prefill_time(&self, tokens: u64) -> Duration {
        let constant = match self.calculator {
            TtftFormula::Constant => true,
            TtftFormula::PerToken => false,
            TtftFormula::Default => !self.ttft.0.is_zero(),
        };
        if constant {
            return self.ttft.0;
        }
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let work = self.prefill_per_token.saturating_mul(tokens);
        self.prefill_overhead.saturating_add(work)
    }

    /// Draws the delay before each token after the first.
    pub fn draw_inter_token_delay(&self, load: f64, rng: &mut impl DrawRandom) -> Duration {
        let delay = rng
            .draw_clamped_delay(scale_duration(self.itl.0, load), scale_duration(self.itl.1, load));
        self.divide_by_speedup(delay)
    }

    pub(crate) fn mean_inter_token_delay(&self, load: f64) -> Duration {
        scale_duration(self.itl.0, load / self.speedup).min(MAX_SIMULATED_DELAY)
    }

    pub(crate) fn divide_by_speedup(&self, delay: Duration) -> Duration {
        scale_duration(delay, 1.0 / self.speedup).min(MAX_SIMULATED_DELAY)
    }

    /// Returns whether all standard deviations are zero, so that delays need no random numbers.
    pub fn is_deterministic(&self) -> bool {
        [
            self.ttft.1,
            self.itl.1,
            self.kv_transfer.1,
            self.prefill_std_dev,
            self.kv_transfer_per_token_std_dev,
        ]
        .iter()
        .all(Duration::is_zero)
    }
}

fn scale_duration(d: Duration, by: f64) -> Duration {
    if by == 1.0 || d.is_zero() {
        return d;
    }
    let nanos = d.as_nanos() as f64 * by;
    if nanos.is_finite() { Duration::from_nanos(nanos.round() as u64) } else { Duration::MAX }
}
