//! A value that stands still or moves with time: a number, or `func:start:end:period`.
//!
//! Source: llm-d-inference-sim `config_fake_metrics.go`, `fake_metrics.go`.

use std::f64::consts::TAU;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{FakeError, go_duration};

/// How a value moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A sine about the middle of start and end.
    Oscillate,
    /// Straight from start to end, then it stays.
    Ramp,
    /// Straight from start to end, over and over.
    RampReset,
    /// Start for half a period, end for the other.
    Squarewave,
}

const SHAPES: [(&str, Shape); 4] = [
    ("oscillate", Shape::Oscillate),
    ("ramp", Shape::Ramp),
    ("rampreset", Shape::RampReset),
    ("squarewave", Shape::Squarewave),
];

/// A fake gauge.
#[derive(Debug, Clone, PartialEq)]
pub enum Signal {
    /// Stands still.
    Fixed(f64),
    /// Moves.
    Moving {
        /// As it was written; [`super::Fake::check`] refuses what is no [`Shape`].
        name: String,
        /// Value at the start of a period.
        start: f64,
        /// Value at its end.
        end: f64,
        /// Its length; more than zero once checked. Negative ones read as zero.
        period: Duration,
    },
}

impl Signal {
    /// Reads `func:start:end:period`.
    fn parse_function(text: &str) -> Result<Self, FakeError> {
        let parts: Vec<&str> = text.split(':').collect();
        let [name, start, end, period] = parts[..] else {
            return Err(FakeError::Function(
                "need func:start:end:period in fake metric generation function".to_owned(),
            ));
        };
        Ok(Self::Moving {
            name: name.to_owned(),
            start: number(start)?,
            end: number(end)?,
            period: go_duration::parse(period).map_err(FakeError::Function)?,
        })
    }

    /// Reads a number or `func:start:end:period`, as a YAML file may have it.
    ///
    /// # Errors
    /// [`FakeError::Function`].
    pub fn parse(text: &str) -> Result<Self, FakeError> {
        match number(text) {
            Ok(n) => Ok(Self::Fixed(n)),
            Err(_) => Self::parse_function(text),
        }
    }

    /// Whether it can be shown at all.
    pub(super) fn check(&self) -> Result<(), FakeError> {
        let Self::Moving {
            name,
            start,
            end,
            period,
        } = self
        else {
            return Ok(());
        };
        if shape(name).is_none() {
            return Err(FakeError::UnknownFunction(name.clone()));
        }
        if *start < 0.0 || *end < 0.0 {
            return Err(FakeError::NegativeFunction);
        }
        if period.is_zero() {
            return Err(FakeError::Period);
        }
        Ok(())
    }

    /// Its value `t` after it was set.
    pub fn at(&self, t: Duration) -> f64 {
        let (name, start, end, period) = match self {
            Self::Fixed(v) => return *v,
            Self::Moving {
                name,
                start,
                end,
                period,
            } => (name, *start, *end, (*period).max(Duration::from_nanos(1))),
        };
        let within = Duration::from_nanos((t.as_nanos() % period.as_nanos()) as u64);
        let share = |t: Duration| t.as_secs_f64() / period.as_secs_f64();
        match shape(name) {
            Some(Shape::Oscillate) => {
                let (middle, swing) = ((start + end) / 2.0, (end - start) / 2.0);
                middle + swing * (TAU * share(t)).sin()
            }
            Some(Shape::Ramp) if share(t) >= 1.0 => end,
            Some(Shape::Ramp) => start + share(t) * (end - start),
            Some(Shape::RampReset) => start + share(within) * (end - start),
            Some(Shape::Squarewave) if within < period / 2 => start,
            Some(Shape::Squarewave) => end,
            None => start,
        }
    }

    /// Its value `t` after it was set, moved in whole steps of `refresh`; a moving one without
    /// its fraction when it counts something.
    pub(super) fn shown(&self, t: Duration, refresh: Duration, whole: bool) -> f64 {
        let Self::Moving { .. } = self else {
            return self.at(t);
        };
        let steps = t.as_nanos() / refresh.as_nanos().max(1);
        let stepped = Duration::from_nanos((steps * refresh.as_nanos()) as u64);
        let value = self.at(stepped);
        if whole { value.trunc() } else { value }
    }
}

fn shape(name: &str) -> Option<Shape> {
    SHAPES.iter().find(|(n, _)| *n == name).map(|(_, s)| *s)
}

/// Names of the functions, as messages list them.
pub(super) fn shape_names() -> String {
    SHAPES.map(|(name, _)| name).join(", ")
}

fn number(text: &str) -> Result<f64, FakeError> {
    let parsed = text.parse::<f64>().ok().filter(|n| n.is_finite());
    parsed.ok_or_else(|| {
        FakeError::Function(format!(
            "strconv.ParseFloat: parsing {text:?}: invalid syntax"
        ))
    })
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(v) => write!(f, "{v}"),
            Self::Moving {
                name,
                start,
                end,
                period,
            } => write!(f, "{name}:{start}:{end}:{}", go_duration::text(*period)),
        }
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            // Go writes a whole float without its point.
            Self::Fixed(v) if v.fract() == 0.0 && v.abs() < 1e15 => s.serialize_i64(*v as i64),
            Self::Fixed(v) => s.serialize_f64(*v),
            Self::Moving { .. } => s.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number or func:start:end:period")]
        enum Wire {
            Number(f64),
            Text(String),
        }
        match Wire::deserialize(d)? {
            Wire::Number(n) => Ok(Self::Fixed(n)),
            Wire::Text(text) => Self::parse(&text).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str, at_ms: &[u64]) -> Vec<f64> {
        let signal = Signal::parse(text).unwrap();
        signal.check().unwrap();
        let rounded = |t: &u64| (signal.at(Duration::from_millis(*t)) * 1e6).round() / 1e6;
        at_ms.iter().map(rounded).collect()
    }

    #[test]
    fn each_function_moves_its_way() {
        let at = [0, 250, 500, 750, 1000, 1500];
        assert_eq!(
            values("oscillate:0:10:1s", &at),
            [5.0, 10.0, 5.0, 0.0, 5.0, 5.0]
        );
        assert_eq!(values("ramp:10:0:1s", &at), [10.0, 7.5, 5.0, 2.5, 0.0, 0.0]);
        assert_eq!(
            values("rampreset:0:8:1s", &at),
            [0.0, 2.0, 4.0, 6.0, 0.0, 4.0]
        );
        assert_eq!(
            values("squarewave:1:2:1s", &at),
            [1.0, 1.0, 2.0, 2.0, 1.0, 2.0]
        );
        assert_eq!(values("3.5", &at[..2]), [3.5, 3.5]);
    }

    #[test]
    fn a_moving_value_steps_with_the_refresh_and_loses_its_fraction() {
        let signal = Signal::parse("ramp:0:10:1s").unwrap();
        let (t, refresh) = (Duration::from_millis(399), Duration::from_millis(150));
        assert_eq!(signal.shown(t, refresh, false), 3.0);
        assert_eq!(signal.shown(Duration::from_millis(160), refresh, true), 1.0);
        let fixed = Signal::Fixed(2.5);
        assert_eq!(fixed.shown(t, refresh, true), 2.5);
    }

    #[test]
    fn it_writes_itself_as_it_was_read() {
        for text in ["oscillate:0:10:1m30s", "ramp:0.5:1:250ms", "0.25"] {
            assert_eq!(Signal::parse(text).unwrap().to_string(), text);
        }
        let json = serde_json::to_string(&[Signal::Fixed(3.0), Signal::Fixed(0.5)]).unwrap();
        assert_eq!(json, "[3,0.5]");
    }
}
