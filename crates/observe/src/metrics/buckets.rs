//! Upper bounds of histogram buckets, each without `+Inf`.
//!
//! **Source:** vLLM `vllm/v1/metrics/buckets.py`.

/// Bucket bounds of NIXL post times, in seconds; transfer times use all but the first.
pub(super) const NIXL_TIME: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0];
pub(super) const NIXL_DESCRIPTORS: &[f64] = &[
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0,
    50000.0,
];
pub(super) const OFFLOAD_SIZE: &[f64] = &[1e6, 5e6, 1e7, 2e7, 4e7, 6e7, 8e7, 1e8, 1.5e8, 2e8];
/// Bucket bounds of the time until an offloading lookup has its result, in seconds.
pub(super) const OFFLOAD_DELAY: &[f64] =
    &[0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];
pub(super) const OPERATION: &[f64] = &[0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
pub(super) const SOCKET: &[f64] =
    &[0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
pub(super) const HTTP_HIGHR: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
];
pub(super) const HTTP: &[f64] = &[0.1, 0.5, 1.0];

pub(super) fn nixl_bytes() -> Vec<f64> {
    (11..=33).step_by(2).map(|e| (1u64 << e) as f64).collect()
}

pub(super) fn offload_chunks() -> Vec<f64> {
    (0..10).map(|e| (1u64 << (2 * e)) as f64).collect()
}

/// Returns the bucket bounds of token counts: 1, 2 and 5 times the powers of ten, up to
/// `max_model_len`.
pub(super) fn tokens(max_model_len: u32) -> Vec<f64> {
    let decades = std::iter::successors(Some(1u64), |d| Some(d * 10));
    decades
        .flat_map(|d| [d, 2 * d, 5 * d])
        .take_while(|bound| *bound <= u64::from(max_model_len))
        .map(|bound| bound as f64)
        .collect()
}

pub(super) const REQUEST_LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
pub(super) const TIME_TO_FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
pub(super) const INTER_TOKEN_LATENCY: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
pub(super) const ITERATION_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
pub(super) const REQUEST_PARAMS_N: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
pub(super) const REQUEST_NUM_PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
pub(super) const KV_CACHE_RESIDENCY: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bounds_end_at_the_context_length() {
        assert_eq!(tokens(10), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(tokens(1024).last(), Some(&1000.0));
        assert_eq!(tokens(u32::MAX).last(), Some(&2e9));
        assert!(tokens(0).is_empty());
    }
}
