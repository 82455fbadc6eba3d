//! Functions of time for gauges: `func:start:end:period`, such as `ramp:0:10:1m30s`.
//!
//! **Source:** llm-d-inference-sim `config_fake_metrics.go`, `fake_metrics.go`.

use std::f64::consts::TAU;
use std::str::FromStr;
use std::time::Duration;

use vllm_sim_engine::duration::parse_signed_duration;

/// Computes a value from the start value, the end value, and the elapsed periods in total and in the
/// current period.
type Curve = fn(f64, f64, f64, f64) -> f64;

const CURVES: [(&str, Curve); 4] = [
    ("oscillate", |start, end, total, _| {
        (start + end) / 2.0 + (end - start) / 2.0 * (TAU * total).sin()
    }),
    ("ramp", |start, end, total, _| if total < 1.0 { start + total * (end - start) } else { end }),
    ("rampreset", |start, end, _, within| start + within * (end - start)),
    ("squarewave", |start, end, _, within| if within < 0.5 { start } else { end }),
];

/// Function of time for a gauge, whose values are between two bounds.
#[derive(Debug, Clone, Copy)]
pub struct Waveform {
    curve: Curve,
    /// Start value of the waveform.
    pub start: f64,
    /// End value of the waveform.
    pub end: f64,
    period: Duration,
}

impl Waveform {
    /// Returns the value of the waveform after `elapsed`, which is rounded down to a multiple of
    /// `step`.
    pub(crate) fn value_after(&self, elapsed: Duration, step: Duration) -> f64 {
        let step = step.as_nanos();
        let (elapsed, period) = (elapsed.as_nanos() / step.max(1) * step, self.period.as_nanos());
        let periods = |nanos: u128| nanos as f64 / period as f64;
        (self.curve)(self.start, self.end, periods(elapsed), periods(elapsed % period))
    }
}

impl FromStr for Waveform {
    /// Message of llm-d-inference-sim.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unreadable =
            |why: String| format!("unknown format in fake metric generation function: {why}");
        let parts: Vec<&str> = text.split(':').collect();
        let &[name, start, end, period] = parts.as_slice() else {
            return Err(unreadable(format!(
                "need func:start:end:period in fake metric generation function, not {text:?}"
            )));
        };
        let Some((_, curve)) = CURVES.iter().find(|(known, _)| *known == name) else {
            return Err(format!(
                "invalid fake metrics generation function {name}, valid functions are: {}",
                CURVES.map(|(known, _)| known).join(", ")
            ));
        };
        let number = |text: &str| {
            let number = text.parse::<f64>().ok().filter(|n| n.is_finite());
            number.ok_or_else(|| unreadable(format!("{text:?} is not a number")))
        };
        let (start, end) = (number(start)?, number(end)?);
        // Go's message: a duration needs a unit here.
        let typed = parse_signed_duration(period, 1)
            .map_err(|why| unreadable(format!("time: invalid duration {period:?}: {why}")))?;
        if typed.bare {
            return Err(unreadable(format!("time: missing unit in duration {period:?}")));
        }
        let parameter = |what: &str| format!("invalid fake metrics generation parameter: {what}");
        let period = typed.to_non_negative_duration().filter(|period| !period.is_zero());
        let period = period.ok_or_else(|| parameter("period must be positive"))?;
        if start < 0.0 || end < 0.0 {
            return Err(parameter("start and end must not be negative"));
        }
        Ok(Self { curve: *curve, start, end, period })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    fn waveform(text: &str) -> Waveform {
        text.parse().unwrap()
    }

    fn values(text: &str, at_ms: &[u64]) -> Vec<f64> {
        let value = |t: &u64| waveform(text).value_after(Duration::from_millis(*t), NANOSECOND);
        at_ms.iter().map(|t| (value(t) * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn each_function_has_its_curve() {
        let at = [0, 250, 500, 750, 1000, 1500];
        assert_eq!(values("oscillate:0:10:1s", &at), [5.0, 10.0, 5.0, 0.0, 5.0, 5.0]);
        assert_eq!(values("ramp:10:0:1s", &at), [10.0, 7.5, 5.0, 2.5, 0.0, 0.0]);
        assert_eq!(values("rampreset:0:8:1s", &at), [0.0, 2.0, 4.0, 6.0, 0.0, 4.0]);
        assert_eq!(values("squarewave:1:2:1s", &at), [1.0, 1.0, 2.0, 2.0, 1.0, 2.0]);
    }

    #[test]
    fn a_value_changes_at_multiples_of_the_step() {
        let (elapsed, step) = (Duration::from_millis(399), Duration::from_millis(150));
        assert_eq!(waveform("ramp:0:10:1s").value_after(elapsed, step), 3.0);
    }

    #[test]
    fn periods_are_written_as_in_go() {
        let period = |text: &str| {
            let ramp: Waveform = format!("ramp:0:1:{text}").parse().ok()?;
            let value = ramp.value_after(Duration::from_micros(1), NANOSECOND);
            Some((1.0 / value).round() as u64)
        };
        assert_eq!(period("1m30s"), Some(90_000_000));
        assert_eq!(period("1.5s"), Some(1_500_000));
        assert_eq!(period("250\u{b5}s"), Some(250));
        for wrong in ["", "5", "0", "0s", "-1s", "5x", "abc"] {
            assert_eq!(period(wrong), None, "{wrong}");
        }
    }
}
