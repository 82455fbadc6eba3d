//! Value of a fake gauge: a number, or a function of time `func:start:end:period`.
//!
//! **Source:** llm-d-inference-sim `config_fake_metrics.go`, `fake_metrics.go`.

use std::f64::consts::TAU;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use vllm_sim_engine::duration;

/// Shape of a fake gauge as a function of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FakeGaugeWaveform {
    /// The gauge is a sine around the mean of its start and end value.
    Oscillate,
    /// The gauge is linear from start to end value in one period, then constant.
    Ramp,
    /// The gauge is linear from start to end value, repeated every period.
    RampReset,
    /// The gauge has its start value for half a period, its end value for the other half.
    SquareWave,
}

/// Value of a fake gauge: constant or a function of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FakeGauge {
    Fixed(f64),
    Moving { waveform: FakeGaugeWaveform, start: f64, end: f64, period: Duration },
}

impl FakeGauge {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let [name, start, end, period] = parts[..] else {
            return None;
        };
        Some(Self::Moving {
            waveform: match name {
                "oscillate" => FakeGaugeWaveform::Oscillate,
                "ramp" => FakeGaugeWaveform::Ramp,
                "rampreset" => FakeGaugeWaveform::RampReset,
                "squarewave" => FakeGaugeWaveform::SquareWave,
                _ => return None,
            },
            start: start.parse().ok()?,
            end: end.parse().ok()?,
            // In Go a number without unit is only valid if it is zero, which is not a valid period.
            period: duration::parse_signed_duration(period, 1)
                .ok()
                .filter(|typed| !typed.bare && typed.nanos > 0)?
                .to_non_negative_duration()?,
        })
    }

    /// Returns the value of the fake gauge at time `t` after it was set.
    fn at(&self, t: Duration) -> f64 {
        let (waveform, start, end, period) = match *self {
            Self::Fixed(value) => return value,
            Self::Moving { waveform, start, end, period } => {
                (waveform, start, end, period.max(Duration::from_nanos(1)))
            }
        };
        let within = Duration::from_nanos((t.as_nanos() % period.as_nanos()) as u64);
        let share = |t: Duration| t.as_secs_f64() / period.as_secs_f64();
        match waveform {
            FakeGaugeWaveform::Oscillate => {
                let (middle, swing) = ((start + end) / 2.0, (end - start) / 2.0);
                middle + swing * (TAU * share(t)).sin()
            }
            FakeGaugeWaveform::Ramp if share(t) >= 1.0 => end,
            FakeGaugeWaveform::Ramp => start + share(t) * (end - start),
            FakeGaugeWaveform::RampReset => start + share(within) * (end - start),
            FakeGaugeWaveform::SquareWave if within < period / 2 => start,
            FakeGaugeWaveform::SquareWave => end,
        }
    }

    /// Returns the value of the fake gauge at time `t` after it was set, updated at multiples of
    /// `refresh`.
    ///
    /// With `whole`, the value of a function of time is truncated to an integer.
    pub(crate) fn shown_value(&self, t: Duration, refresh: Duration, whole: bool) -> f64 {
        let Self::Moving { .. } = self else {
            return self.at(t);
        };
        let steps = t.as_nanos() / refresh.as_nanos().max(1);
        let stepped = Duration::from_nanos((steps * refresh.as_nanos()) as u64);
        let value = self.at(stepped);
        if whole { value.trunc() } else { value }
    }
}

impl<'de> Deserialize<'de> for FakeGauge {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number or func:start:end:period")]
        enum Written {
            Number(f64),
            Text(String),
        }
        match Written::deserialize(d)? {
            Written::Number(value) => Ok(Self::Fixed(value)),
            Written::Text(text) => {
                let wrong = || de::Error::custom(format!("{text:?} is no function of time"));
                Self::parse(&text).ok_or_else(wrong)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(json: &str) -> FakeGauge {
        serde_json::from_str(json).unwrap()
    }

    fn values(json: &str, at_ms: &[u64]) -> Vec<f64> {
        let gauge = gauge(json);
        let rounded = |t: &u64| (gauge.at(Duration::from_millis(*t)) * 1e6).round() / 1e6;
        at_ms.iter().map(rounded).collect()
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
        assert_eq!(ramp.shown_value(t, refresh, false), 3.0);
        assert_eq!(ramp.shown_value(Duration::from_millis(160), refresh, true), 1.0);
        assert_eq!(gauge("2.5").shown_value(t, refresh, true), 2.5);
    }

    #[test]
    fn periods_are_written_as_in_go() {
        let period = |text: &str| {
            let json = format!("\"ramp:0:1:{text}\"");
            match serde_json::from_str(&json) {
                Ok(FakeGauge::Moving { period, .. }) => Some(period.as_micros()),
                _ => None,
            }
        };
        assert_eq!(period("1m30s"), Some(90_000_000));
        assert_eq!(period("1.5s"), Some(1_500_000));
        assert_eq!(period("250\u{b5}s"), Some(250));
        for wrong in ["", "5", "0", "0s", "-1s", "5x", "abc"] {
            assert_eq!(period(wrong), None, "{wrong}");
        }
    }
}
