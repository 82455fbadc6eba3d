use super::BatchWork;

/// Default step-time curves of Dynamo's mocker. Prefill time is quadratic in the number of prompt
/// tokens; decode time depends on the used fraction of the KV cache.
///
/// **Source:** aisimulate-core 0.13 `common/perf_model.rs`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolynomialStepTime {
    /// Capacity of the KV cache, in tokens.
    pub capacity_tokens: u64,
}

impl PolynomialStepTime {
    /// Creates the step-time curves for a KV cache of `capacity_tokens` tokens.
    pub fn for_kv_cache_capacity(capacity_tokens: u64) -> Self {
        Self { capacity_tokens }
    }

    /// Returns the time of a batch's prefill work in ms; 0 without prompt tokens.
    pub fn prefill_ms(&self, batch: &BatchWork) -> f64 {
        let tokens = prompt_tokens_from_rounded_means(batch) as f64;
        if tokens == 0.0 {
            return 0.0;
        }
        4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142
    }

    /// Returns the time of a batch's decode work in ms, at least 1; 0 without decodes.
    pub fn decode_ms(&self, batch: &BatchWork) -> f64 {
        if batch.decodes == 0 {
            return 0.0;
        }
        let used = match self.capacity_tokens {
            0 => 1.0,
            cap => (batch.context as f64 / cap as f64).min(1.0),
        };
        (-25.74 * used * used + 54.01 * used + 5.74).max(1.0)
    }
}

/// Returns the number of prompt tokens that a step computes, as Dynamo's mocker counts them: chunks
/// x (mean length - mean prefix), both means rounded down.
pub(super) fn prompt_tokens_from_rounded_means(batch: &BatchWork) -> u64 {
    let n = u64::from(batch.chunks);
    if n == 0 {
        return 0;
    }
    let length = (batch.chunk_past + batch.chunk_tokens) / n;
    n * (length - batch.chunk_past / n)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::latency::{LatencyModel, SimulationSpeedFactors};

    use super::*;

    #[test]
    fn polynomial_equals_recorded_mocker_pass_times() {
        let model = LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(16384 * 64));
        let mut prefill = BatchWork::default();
        let mut decode = BatchWork::default();
        for _ in 0..4 {
            prefill.add_prompt_chunk(512, 0, None);
            decode.add_decoding_sequence(513, 1, None);
        }
        let step = |b| model.step_time(b, SimulationSpeedFactors::default());
        assert_eq!(step(&prefill), Duration::from_nanos(49_362_902));
        assert_eq!(step(&decode), Duration::from_nanos(5_845_596));
    }
}
