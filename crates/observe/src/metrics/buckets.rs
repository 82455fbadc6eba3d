//! Bucket bounds of the histograms, and `--custom-histogram-buckets`.
//!
//! Source: vLLM `vllm/v1/metrics/buckets.py`.

use indexmap::IndexMap;

/// NIXL post times; transfer times have all but the first.
pub(super) const NIXL_TIME: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0,
];
pub(super) const NIXL_DESCRIPTORS: &[f64] = &[
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0,
    50000.0,
];
/// Sleeping, waking, weight updates.
pub(super) const OPERATION: &[f64] = &[0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// Connections of `/v1/realtime`.
pub(super) const SOCKET: &[f64] = &[
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
];
pub(super) const HTTP_HIGHR: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
];
pub(super) const HTTP: &[f64] = &[0.1, 0.5, 1.0];

/// 2^11, 2^13 … 2^33.
pub(super) fn nixl_bytes() -> Vec<f64> {
    (11..=33).step_by(2).map(|e| (1u64 << e) as f64).collect()
}

/// 1, 2 and 5 times the powers of ten, up to `max_model_len`.
pub(super) fn tokens(max_model_len: u32) -> Vec<f64> {
    let decades = std::iter::successors(Some(1u64), |d| Some(d * 10));
    decades
        .flat_map(|d| [d, 2 * d, 5 * d])
        .take_while(|bound| *bound <= u64::from(max_model_len))
        .map(|bound| bound as f64)
        .collect()
}

/// Upper bounds of the histogram families that a user may change, each without `+Inf`.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// `request_latency`: end to end, queue, inference, prefill, decode; seconds.
    pub request_latency: Vec<f64>,
    /// `time_to_first_token`: seconds.
    pub time_to_first_token: Vec<f64>,
    /// `inter_token_latency`: also the mean per request; seconds.
    pub inter_token_latency: Vec<f64>,
    /// `iteration_tokens`: tokens of one step.
    pub iteration_tokens: Vec<f64>,
    /// `request_params_n`: choices asked for.
    pub request_params_n: Vec<f64>,
    /// `request_num_preemptions`.
    pub request_num_preemptions: Vec<f64>,
    /// `request_tokens`: lengths; `None`: 1, 2, 5 … up to the context length.
    pub request_tokens: Option<Vec<f64>>,
    /// `kv_cache_residency`: life of blocks; seconds.
    pub kv_cache_residency: Vec<f64>,
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            request_latency: vec![
                0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
                120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
            ],
            time_to_first_token: vec![
                0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
                7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
            ],
            inter_token_latency: vec![
                0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
                10.0, 20.0, 40.0, 80.0,
            ],
            iteration_tokens: vec![
                1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
                16384.0,
            ],
            request_params_n: vec![1.0, 2.0, 5.0, 10.0, 20.0],
            request_num_preemptions: vec![1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0],
            request_tokens: None,
            kv_cache_residency: vec![
                0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0,
                30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0,
            ],
        }
    }
}

/// What is wrong with `--custom-histogram-buckets`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// Not an object of number lists.
    #[error("custom histogram buckets must be a JSON object of lists of numbers: {0}")]
    Json(String),
    /// No such family.
    #[error(
        "custom histogram buckets: unknown family '{0}', must be one of request_latency, \
         time_to_first_token, inter_token_latency, iteration_tokens, request_params_n, \
         request_num_preemptions, request_tokens, kv_cache_residency"
    )]
    Family(String),
    /// A list that cannot be bounds.
    #[error("custom histogram buckets: {family} must be a non-empty list of ascending numbers")]
    Bounds {
        /// The family.
        family: String,
    },
}

impl Buckets {
    /// Reads the JSON of `--custom-histogram-buckets`; families it does not name keep theirs.
    ///
    /// # Errors
    /// [`BucketError`] names the family that cannot be used.
    pub fn parse(json: &str) -> Result<Self, BucketError> {
        let given: IndexMap<String, Vec<f64>> =
            serde_json::from_str(json).map_err(|e| BucketError::Json(e.to_string()))?;
        let mut buckets = Self::default();
        for (family, bounds) in given {
            if bounds.is_empty() || !bounds.windows(2).all(|w| w[0] < w[1]) || bounds[0] < 0.0 {
                return Err(BucketError::Bounds { family });
            }
            match family.as_str() {
                "request_latency" => buckets.request_latency = bounds,
                "time_to_first_token" => buckets.time_to_first_token = bounds,
                "inter_token_latency" => buckets.inter_token_latency = bounds,
                "iteration_tokens" => buckets.iteration_tokens = bounds,
                "request_params_n" => buckets.request_params_n = bounds,
                "request_num_preemptions" => buckets.request_num_preemptions = bounds,
                "request_tokens" => buckets.request_tokens = Some(bounds),
                "kv_cache_residency" => buckets.kv_cache_residency = bounds,
                _ => return Err(BucketError::Family(family)),
            }
        }
        Ok(buckets)
    }
}

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

    #[test]
    fn only_the_named_family_changes() {
        let buckets = Buckets::parse(r#"{"request_params_n": [1, 2.5]}"#).unwrap();
        let expected = Buckets {
            request_params_n: vec![1.0, 2.5],
            ..Buckets::default()
        };
        assert_eq!(buckets, expected);
    }

    #[test]
    fn bad_bounds_are_refused_by_name() {
        let err = |json| Buckets::parse(json).unwrap_err().to_string();
        assert!(err(r#"{"ttft": [1]}"#).contains("unknown family 'ttft'"));
        assert!(err(r#"{"request_tokens": []}"#).contains("request_tokens must be"));
        assert!(err(r#"{"request_tokens": [2, 1]}"#).contains("ascending"));
        assert!(err("[1]").contains("JSON object"));
    }
}
