//! Generates the start times of sessions.

use vllm_sim_random::std_rng::StdRng;
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, request_rng};

/// Maximum constant gap between session arrivals, in milliseconds: over eleven days.
const MAX_INTERVAL_MS: f64 = 1e9;

/// Random process of the start times of sessions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArrivalProcess {
    /// All sessions arrive at time 0; in a closed loop each session starts as soon as the number in
    /// flight allows it.
    Burst,
    /// Constant gap between session arrivals, in milliseconds.
    Interval(f64),
    /// Poisson process with this mean number of session arrivals per second.
    Poisson(f64),
    /// Gamma-distributed gaps between sessions, as in `vllm bench serve`.
    ///
    /// A `burstiness` below 1 makes clusters, above 1 a more even flow. All gaps are scaled so that
    /// the last arrival matches the rate.
    Gamma {
        /// Mean number of session arrivals per second.
        rate: f64,
        /// Shape parameter of the gamma distribution; 1 is Poisson.
        burstiness: f64,
    },
}

impl ArrivalProcess {
    /// Checks that the arrival parameters are in range, and returns `self`.
    ///
    /// # Errors
    /// Returns a message that names the invalid parameter.
    pub fn check_arrival_parameters(self) -> Result<Self, String> {
        let positive = |what: &str, value: f64| {
            if value.is_finite() && value > 0.0 {
                return Ok(());
            }
            Err(format!("{what} is {value}, must be a number above 0"))
        };
        match self {
            Self::Burst => {}
            Self::Interval(ms) if (0.0..=MAX_INTERVAL_MS).contains(&ms) => {}
            Self::Interval(ms) => {
                return Err(format!(
                    "arrival interval is {ms} ms, must be a number from 0 to {MAX_INTERVAL_MS}"
                ));
            }
            Self::Poisson(rate) => positive("request rate", rate)?,
            Self::Gamma { rate, burstiness } => {
                positive("request rate", rate)?;
                positive("burstiness", burstiness)?;
            }
        }
        Ok(self)
    }

    /// Returns the start times of `session_count` sessions.
    ///
    /// If `session_count` is 0 (unknown), gamma-distributed gaps are not scaled.
    pub fn session_start_times(self, seed: u64, session_count: u64) -> SessionStartTimes {
        let scale = match self {
            Self::Gamma { rate, burstiness } => {
                let mut rng = request_rng(seed, 0, RandomStreamPurpose::Workload);
                let total: f64 = (0..session_count).map(|_| draw_gamma(&mut rng, burstiness)).sum();
                if total > 0.0 {
                    session_count as f64 / rate * 1e3 / total
                } else {
                    1e3 / (rate * burstiness)
                }
            }
            _ => 1.0,
        };
        let first_gap = matches!(self, Self::Gamma { .. });
        SessionStartTimes {
            arrivals: self,
            peer: StdRng::new(seed),
            rng: request_rng(seed, 0, RandomStreamPurpose::Workload),
            scale,
            at_ms: 0.0,
            first: !first_gap,
        }
    }
}

/// Endless sequence of session start times, in milliseconds.
#[derive(Debug, Clone)]
pub struct SessionStartTimes {
    arrivals: ArrivalProcess,
    peer: StdRng,
    rng: rand_chacha::ChaCha8Rng,
    scale: f64,
    at_ms: f64,
    first: bool,
}

impl SessionStartTimes {
    /// Returns the next session's start time, in ms.
    ///
    /// The first is 0, or one gap after 0 for gamma arrivals, like `vllm bench serve`.
    pub(crate) fn next_session_start_ms(&mut self) -> f64 {
        if std::mem::take(&mut self.first) {
            return self.at_ms;
        }
        self.at_ms += match self.arrivals {
            ArrivalProcess::Burst => 0.0,
            ArrivalProcess::Interval(ms) => ms,
            ArrivalProcess::Poisson(rate) => self.peer.draw_exponential(1000.0 / rate),
            ArrivalProcess::Gamma { burstiness, .. } => {
                draw_gamma(&mut self.rng, burstiness) * self.scale
            }
        };
        self.at_ms
    }
}

/// Draws a gamma variate of scale 1 (Marsaglia and Tsang, 2000).
fn draw_gamma(rng: &mut impl DrawRandom, shape: f64) -> f64 {
    let boost = if shape < 1.0 { (1.0 - rng.draw_unit_f64()).powf(1.0 / shape) } else { 1.0 };
    let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = rng.draw_standard_normal();
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - rng.draw_unit_f64();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return boost * d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_gaps_have_their_mean_and_spread() {
        for burstiness in [0.25, 1.0, 4.0] {
            let n = 20_000;
            let mut starts =
                ArrivalProcess::Gamma { rate: 10.0, burstiness }.session_start_times(7, n);
            let at: Vec<f64> = (0..n).map(|_| starts.next_session_start_ms()).collect();
            let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let spread = variance / mean.powi(2) * burstiness;
            assert!((at[at.len() - 1] - 2e6).abs() < 1e-3, "the last is at n / rate");
            assert!((mean - 100.0).abs() < 0.1, "{mean}");
            assert!((spread - 1.0).abs() < 0.1, "{burstiness}: {spread}");
        }
    }
}
