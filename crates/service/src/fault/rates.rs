use super::{FaultSpec, InjectedFailure};
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, mix_u64_pair, request_rng};

/// Percentages of requests that get an injected fault, and the faults to choose from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FaultRates {
    /// Percentage of requests that get an error response, 0 to 100.
    pub rate: u8,
    /// Error responses to choose from with equal probability; empty means none.
    pub failures: Vec<InjectedFailure>,
    /// Percentage of requests without an error response whose reply gets a stream fault, 0 to 100.
    pub stream_rate: f64,
    /// Stream faults to choose from with equal probability; empty means none.
    pub specs: Vec<FaultSpec>,
}

/// The faults drawn at random for one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrawnFaults {
    /// Error response in place of the reply; `None` serves the request.
    pub failure: Option<InjectedFailure>,
    /// Faults injected into the reply; set only without `failure`.
    pub spec: Option<FaultSpec>,
}

impl FaultRates {
    /// Returns whether the rates inject no faults at all.
    pub fn injects_no_faults(&self) -> bool {
        (self.rate == 0 || self.failures.is_empty())
            && (self.stream_rate <= 0.0 || self.specs.is_empty())
    }

    /// Draws the faults of the request with number `request`; the same `seed` and number give the
    /// same faults.
    pub fn draw_faults(&self, seed: u64, request: u64) -> DrawnFaults {
        let failure = self.draw_failure(seed, request);
        DrawnFaults {
            failure,
            spec: match failure {
                Some(_) => None,
                None => self.draw_spec(seed, request),
            },
        }
    }

    fn draw_failure(&self, seed: u64, request: u64) -> Option<InjectedFailure> {
        if self.rate == 0 || self.failures.is_empty() {
            return None;
        }
        let mut rng = request_rng(seed, mix_u64_pair(request, 0xfa), RandomStreamPurpose::Fault);
        if rng.draw_u64_between(1, 100) > u64::from(self.rate) {
            return None;
        }
        let last = self.failures.len() as u64 - 1;
        self.failures.get(rng.draw_u64_between(0, last) as usize).copied()
    }

    fn draw_spec(&self, seed: u64, request: u64) -> Option<FaultSpec> {
        if self.stream_rate <= 0.0 || self.specs.is_empty() {
            return None;
        }
        let mut rng = request_rng(seed, mix_u64_pair(request, 0xfb), RandomStreamPurpose::Fault);
        if rng.draw_unit_f64() * 100.0 >= self.stream_rate {
            return None;
        }
        let last = self.specs.len() as u64 - 1;
        self.specs.get(rng.draw_u64_between(0, last) as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rate: u8) -> FaultRates {
        FaultRates {
            rate,
            failures: vec![InjectedFailure::RateLimit, InjectedFailure::ServerError],
            stream_rate: f64::from(rate),
            specs: vec!["cut_after=3".parse().unwrap(), "reset_after=1".parse().unwrap()],
        }
    }

    #[test]
    fn rates_are_percentages_of_requests() {
        let count = |rate, hit: fn(&DrawnFaults) -> bool| {
            let drawn = (0..2000).map(|n| plan(rate).draw_faults(1, n));
            drawn.filter(hit).count()
        };
        let failed: fn(&DrawnFaults) -> bool = |drawn| drawn.failure.is_some();
        let spoilt: fn(&DrawnFaults) -> bool = |drawn| drawn.spec.is_some();
        assert_eq!((count(0, failed), count(100, failed)), (0, 2000));
        assert!((400..600).contains(&count(25, failed)));
        // A quarter of the three quarters that did not fail.
        assert!((300..450).contains(&count(25, spoilt)));
        assert_eq!((count(0, spoilt), count(100, spoilt)), (0, 0));
        assert!(plan(0).injects_no_faults() && !plan(1).injects_no_faults());
    }

    #[test]
    fn the_same_request_fails_the_same_way() {
        let all = || (0..100).map(|n| plan(50).draw_faults(7, n)).collect::<Vec<_>>();
        assert_eq!(all(), all());
    }
}
