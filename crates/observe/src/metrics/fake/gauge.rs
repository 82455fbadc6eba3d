//! Value of a fake gauge: a number, or a function of time `func:start:end:period`.
//!
//! **Source:** llm-d-inference-sim `config_fake_metrics.go`, `fake_metrics.go`.

use std::f64::consts::TAU;
use std::time::Duration;

use serde_json::Value;
use vllm_sim_engine::duration;

/// Function of time for a fake gauge: returns the value for the start value, the end value, the
/// elapsed periods, and the elapsed part of the current period.
pub(crate) type Waveform = fn(f64, f64, f64, f64) -> f64;

/// Value of a fake gauge: constant or a function of time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FakeGauge {
    Fixed(f64),
    Moving { waveform: Waveform, start: f64, end: f64, period: Duration },
}

impl FakeGauge {
    /// Reads a number or a function of time; `None` for other values.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let Some(text) = value.as_str() else {
            return value.as_f64().map(Self::Fixed);
        };
        let parts: Vec<&str> = text.split(':').collect();
        let [name, start, end, period] = parts[..] else {
            return None;
        };
        let waveform: Waveform = match name {
            "oscillate" => |start, end, total, _| {
                (start + end) / 2.0 + (end - start) / 2.0 * (TAU * total).sin()
            },
            "ramp" => |start, end, total, _| match total < 1.0 {
                true => start + total * (end - start),
                false => end,
            },
            "rampreset" => |start, end, _, within| start + within * (end - start),
            "squarewave" => |start, end, _, within| if within < 0.5 { start } else { end },
            _ => return None,
        };
        // In Go a number without unit is only valid if it is zero, which is not a valid period.
        let period = duration::parse_signed_duration(period, 1).ok()?;
        let period =
            (!period.bare && period.nanos > 0).then(|| period.to_non_negative_duration())?;
        let (start, end) = (start.parse().ok()?, end.parse().ok()?);
        Some(Self::Moving { waveform, start, end, period: period? })
    }

    /// Returns the value of the fake gauge at time `elapsed` after it was set, updated at multiples of
    /// `refresh`.
    ///
    /// With `truncated`, the value of a function of time is truncated to an integer.
    pub(crate) fn fake_gauge_value(
        &self,
        elapsed: Duration,
        refresh: Duration,
        truncated: bool,
    ) -> f64 {
        let (waveform, start, end, period) = match *self {
            Self::Fixed(value) => return value,
            Self::Moving { waveform, start, end, period } => (waveform, start, end, period),
        };
        let elapsed = elapsed.as_nanos() / refresh.as_nanos().max(1) * refresh.as_nanos();
        let periods = |nanos: u128| nanos as f64 / period.as_nanos() as f64;
        let value = waveform(start, end, periods(elapsed), periods(elapsed % period.as_nanos()));
        if truncated { value.trunc() } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(json: &str) -> FakeGauge {
        FakeGauge::from_json(&serde_json::from_str(json).unwrap()).unwrap()
    }

    fn values(json: &str, at_ms: &[u64]) -> Vec<f64> {
        let gauge = gauge(json);
        let value = |t: &u64| {
            gauge.fake_gauge_value(Duration::from_millis(*t), Duration::from_nanos(1), false)
        };
        at_ms.iter().map(|t| (value(t) * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn each_function_has_its_curve() {
        let at = [0, 250, 500, 750, 1000, 1500];
        assert_eq!(values(r#""oscillate:0:10:1s""#, &at), [5.0, 10.0, 5.0, 0.0, 5.0, 5.0]);
        assert_eq!(values(r#""ramp:10:0:1s""#, &at), [10.0, 7.5, 5.0, 2.5, 0.0, 0.0]);
        assert_eq!(values(r#""rampreset:0:8:1s""#, &at), [0.0, 2.0, 4.0, 6.0, 0.0, 4.0]);
        assert_eq!(values(r#""squarewave:1:2:1s""#, &at), [1.0, 1.0, 2.0, 2.0, 1.0, 2.0]);
        assert_eq!(values("3.5", &at[..2]), [3.5, 3.5]);
    }

    #[test]
    fn a_moving_value_steps_with_the_refresh_and_loses_its_fraction() {
        let ramp = gauge(r#""ramp:0:10:1s""#);
        let (t, refresh) = (Duration::from_millis(399), Duration::from_millis(150));
        assert_eq!(ramp.fake_gauge_value(t, refresh, false), 3.0);
        assert_eq!(ramp.fake_gauge_value(Duration::from_millis(160), refresh, true), 1.0);
        assert_eq!(gauge("2.5").fake_gauge_value(t, refresh, true), 2.5);
    }

    #[test]
    fn periods_are_written_as_in_go() {
        let period = |text: &str| match FakeGauge::from_json(&format!("ramp:0:1:{text}").into()) {
            Some(FakeGauge::Moving { period, .. }) => Some(period.as_micros()),
            _ => None,
        };
        assert_eq!(period("1m30s"), Some(90_000_000));
        assert_eq!(period("1.5s"), Some(1_500_000));
        assert_eq!(period("250\u{b5}s"), Some(250));
        for wrong in ["", "5", "0", "0s", "-1s", "5x", "abc"] {
            assert_eq!(period(wrong), None, "{wrong}");
        }
    }
}
