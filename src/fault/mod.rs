//! Failures on purpose: whether a request fails, and what its client is told.
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/failures.go`.

use crate::sim::{Draw, Purpose, mix, stream};

/// One failure of llm-d's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// 429.
    RateLimit,
    /// 401.
    InvalidApiKey,
    /// 400.
    ContextLength,
    /// 503.
    ServerError,
    /// 400.
    InvalidRequest,
    /// 404.
    ModelNotFound,
}

/// Which share of requests fails, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Percentage of requests that fail.
    pub rate: u8,
    /// Which failures, equally often; empty: none.
    pub failures: Vec<Failure>,
}

impl Plan {
    /// Whether the request with this number fails, and how.
    pub fn decide(&self, seed: u64, request: u64) -> Option<Failure> {
        if self.rate == 0 || self.failures.is_empty() {
            return None;
        }
        let mut rng = stream(seed, mix(request, 0xfa), Purpose::Fault);
        if rng.between(1, 100) > u64::from(self.rate) {
            return None;
        }
        let last = self.failures.len() as u64 - 1;
        self.failures.get(rng.between(0, last) as usize).copied()
    }
}

impl Failure {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::RateLimit => 429,
            Self::InvalidApiKey => 401,
            Self::ContextLength | Self::InvalidRequest => 400,
            Self::ServerError => 503,
            Self::ModelNotFound => 404,
        }
    }

    /// The request field that the error blames.
    pub fn param(self) -> Option<&'static str> {
        match self {
            Self::ContextLength => Some("messages"),
            Self::InvalidRequest | Self::ModelNotFound => Some("model"),
            Self::RateLimit | Self::InvalidApiKey | Self::ServerError => None,
        }
    }

    /// What the client of `model` reads.
    pub fn message(self, model: &str) -> String {
        match self {
            Self::RateLimit => format!(
                "Rate limit reached for {model} in organization org-xxx on requests per min (RPM): Limit 3, Used 3, Requested 1."
            ),
            Self::InvalidApiKey => "Incorrect API key provided.".to_owned(),
            Self::ContextLength => "This model's maximum context length is 4096 tokens. However, your messages resulted in 4500 tokens.".to_owned(),
            Self::ServerError => "The server is overloaded or not ready yet.".to_owned(),
            Self::InvalidRequest => {
                "Invalid request: missing required parameter 'model'.".to_owned()
            }
            Self::ModelNotFound => format!("The model '{model}-nonexistent' does not exist"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rate: u8) -> Plan {
        Plan {
            rate,
            failures: vec![Failure::RateLimit, Failure::ServerError],
        }
    }

    #[test]
    fn the_rate_is_a_percentage_of_requests() {
        let failed = |rate| {
            (0..2000)
                .filter(|n| plan(rate).decide(1, *n).is_some())
                .count()
        };
        assert_eq!((failed(0), failed(100)), (0, 2000));
        assert!((400..600).contains(&failed(25)), "{}", failed(25));
    }

    #[test]
    fn the_same_request_fails_the_same_way() {
        let all = |_: u8| (0..100).map(|n| plan(50).decide(7, n)).collect::<Vec<_>>();
        assert_eq!(all(0), all(1));
    }
}
