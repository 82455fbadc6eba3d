use super::Batch;

/// Default step-time curves of Dynamo's mocker: prefill time is quadratic in its tokens, decode
/// time in the used fraction of the KV cache.
///
/// **Source:** aisimulate-core 0.13 `common/perf_model.rs`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polynomial {
    /// Capacity of the KV cache, in tokens.
    pub capacity_tokens: u64,
}

impl Polynomial {
    /// Creates the step-time curves for a KV cache of `capacity_tokens` tokens.
    pub fn new(capacity_tokens: u64) -> Self {
        Self { capacity_tokens }
    }

    /// Returns the time of a batch's prefill work in ms; 0 without prompt tokens.
    pub fn prefill(&self, batch: &Batch) -> f64 {
        let tokens = mean_tokens(batch) as f64;
        if tokens == 0.0 {
            return 0.0;
        }
        4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142
    }

    /// Returns the time of a batch's decode work in ms, at least 1; 0 without decodes.
    pub fn decode(&self, batch: &Batch) -> f64 {
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

/// Returns the number of prompt tokens to compute as Dynamo's mocker counts them: chunks x (mean
/// length - mean prefix), both means rounded down.
pub(super) fn mean_tokens(batch: &Batch) -> u64 {
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

    use crate::latency::{LatencyModel, Speed};

    use super::*;

    #[test]
    fn recorded_passes_take_the_recorded_time() {
        let model = LatencyModel::Polynomial(Polynomial::new(16384 * 64));
        let mut prefill = Batch::default();
        let mut decode = Batch::default();
        for _ in 0..4 {
            prefill.add_chunk(512, 0, None);
            decode.add_decode(513, 1, None);
        }
        let step = |b| model.step(b, Speed::default());
        assert_eq!(step(&prefill), Duration::from_nanos(49_362_902));
        assert_eq!(step(&decode), Duration::from_nanos(5_845_596));
    }
}
