use std::str::FromStr;

use crate::workload::{ClientSession, WorkloadError, WorkloadFacts, WorkloadSource};
use vllm_sim_engine::SimTime;

/// Factor of the request rate over time, linear between points.
///
/// The first and last factors also apply before and after all points.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrivalRateCurve {
    points: Vec<(f64, f64)>,
}

impl ArrivalRateCurve {
    /// Returns the time in seconds of an event that would occur after `unscaled_seconds` if the
    /// rate factor were always 1.
    pub fn rate_scaled_event_time(&self, unscaled_seconds: f64) -> f64 {
        let mut left = unscaled_seconds;
        let (mut from, mut factor) = (0.0, self.points.first().map_or(1.0, |point| point.1));
        for &(at, next) in &self.points {
            if left <= 0.0 {
                return from;
            }
            let (length, rise) = (at - from, next - factor);
            let area = (factor + next) / 2.0 * length;
            if left < area {
                let slope = rise / length;
                let root = (factor * factor + 2.0 * slope * left).max(0.0).sqrt();
                return from + 2.0 * left / (factor + root);
            }
            left -= area;
            (from, factor) = (at, next);
        }
        from + left / factor
    }
}

/// Parses a rate curve such as `0=0,60=1,600=1,601=5`: times in seconds, each with a rate factor.
impl FromStr for ArrivalRateCurve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = |point: &str| {
            let (at, factor) = point.split_once('=')?;
            let number = |text: &str| text.trim().parse::<f64>().ok();
            let (at, factor) = (number(at)?, number(factor)?);
            let is_right = |n: f64| n.is_finite() && n >= 0.0;
            (is_right(at) && is_right(factor)).then_some((at, factor))
        };
        let points: Option<Vec<(f64, f64)>> = text.split(',').map(read).collect();
        let Some(points) = points else {
            return Err(format!("{text:?} must be SECONDS=FACTOR,… of numbers from 0 on"));
        };
        if points.windows(2).any(|pair| pair[1].0 < pair[0].0) {
            return Err(format!("{text:?}: seconds must not decrease"));
        }
        match points.last() {
            Some((_, factor)) if *factor > 0.0 => Ok(Self { points }),
            _ => Err(format!("{text:?}: the last factor applies forever, so it must be above 0")),
        }
    }
}

/// Reschedules the sessions of another workload along a rate curve.
#[derive(Debug)]
pub struct ArrivalRateCurveSource<S> {
    source: S,
    curve: ArrivalRateCurve,
    last: SimTime,
}

impl<S: WorkloadSource> ArrivalRateCurveSource<S> {
    /// Reschedules the sessions of `source` along `curve`.
    pub fn new(source: S, curve: ArrivalRateCurve) -> Self {
        Self { source, curve, last: SimTime::ZERO }
    }
}

impl<S: WorkloadSource> WorkloadSource for ArrivalRateCurveSource<S> {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        let Some(mut session) = self.source.next_session()? else {
            return Ok(None);
        };
        let start = self.curve.rate_scaled_event_time(session.start.as_nanos() as f64 / 1e9);
        // Rounding must not change the order.
        let start = SimTime::from_nanos((start * 1e9).round() as u64);
        self.last = self.last.max(start);
        session.start = self.last;
        Ok(Some(session))
    }

    fn facts(&self) -> WorkloadFacts {
        self.source.facts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_curve_moves_session_starts() {
        // Ten seconds from zero to the full rate equal five seconds at the full rate.
        let ramp: ArrivalRateCurve = "0=0,10=1".parse().expect("is a curve");
        assert_eq!(ramp.rate_scaled_event_time(0.0), 0.0);
        assert!((ramp.rate_scaled_event_time(1.25) - 5.0).abs() < 1e-9);
        assert!((ramp.rate_scaled_event_time(5.0) - 10.0).abs() < 1e-9);
        assert!((ramp.rate_scaled_event_time(8.0) - 13.0).abs() < 1e-9);
        // Four times the rate in the third second.
        let burst: ArrivalRateCurve = "2=1,2=4,3=4,3=1".parse().expect("is a curve");
        let at = [1.0, 2.0, 4.0, 6.0, 7.0].map(|at| burst.rate_scaled_event_time(at));
        assert_eq!(at, [1.0, 2.0, 2.5, 3.0, 4.0]);
        for text in ["", "1", "2=1,1=1", "0=1,9=0", "0=-1"] {
            assert!(text.parse::<ArrivalRateCurve>().is_err(), "{text:?}");
        }
    }
}
