//! Value of a fake gauge: a number, or a function of time `func:start:end:period`.
//!
//! **Source:** llm-d-inference-sim `config_fake_metrics.go`, `fake_metrics.go`.

use std::f64::consts::TAU;
use std::time::Duration;

use serde_json::Value;
use vllm_sim_engine::duration;

/// Value of a fake gauge by the time since it was set.
pub(crate) type FakeGauge = Box<dyn Fn(Duration) -> f64 + Send>;

/// Computes a gauge's value from the start value, the end value, and the elapsed periods in total
/// and in the current period.
type Waveform = fn(f64, f64, f64, f64) -> f64;

/// Reads a number, or a function of time, which is updated at multiples of `refresh` and rounded;
/// `None` for other values.
pub(crate) fn parse_fake_gauge(
    value: &Value,
    refresh: Duration,
    round: fn(f64) -> f64,
) -> Option<FakeGauge> {
    let Some(text) = value.as_str() else {
        let fixed = value.as_f64()?;
        return Some(Box::new(move |_| fixed));
    };
    let parts: Vec<&str> = text.split(':').collect();
    let [name, start, end, period] = parts[..] else { return None };
    let waveform: Waveform = match name {
        "oscillate" => {
            |start, end, total, _| (start + end) / 2.0 + (end - start) / 2.0 * (TAU * total).sin()
        }
        "ramp" => {
            |start, end, total, _| if total < 1.0 { start + total * (end - start) } else { end }
        }
        "rampreset" => |start, end, _, within| start + within * (end - start),
        "squarewave" => |start, end, _, within| if within < 0.5 { start } else { end },
        _ => return None,
    };
    // In Go a number without unit is only valid if it is zero, which is not a valid period.
    let period = duration::parse_signed_duration(period, 1).ok()?;
    let is_valid = !period.bare && period.nanos > 0;
    let period = period.to_non_negative_duration().filter(|_| is_valid)?.as_nanos();
    let (start, end): (f64, f64) = (start.parse().ok()?, end.parse().ok()?);
    Some(Box::new(move |elapsed| {
        let elapsed = elapsed.as_nanos() / refresh.as_nanos().max(1) * refresh.as_nanos();
        let periods = |nanos: u128| nanos as f64 / period as f64;
        round(waveform(start, end, periods(elapsed), periods(elapsed % period)))
    }))
}

#[cfg(test)]
mod tests {
    use std::convert::identity;

    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    fn gauge(json: &str, refresh: Duration, round: fn(f64) -> f64) -> FakeGauge {
        parse_fake_gauge(&serde_json::from_str(json).unwrap(), refresh, round).unwrap()
    }

    fn values(json: &str, at_ms: &[u64]) -> Vec<f64> {
        let gauge = gauge(json, NANOSECOND, identity);
        let value = |t: &u64| gauge(Duration::from_millis(*t));
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
        let (t, refresh) = (Duration::from_millis(399), Duration::from_millis(150));
        assert_eq!(gauge(r#""ramp:0:10:1s""#, refresh, identity)(t), 3.0);
        let early = Duration::from_millis(160);
        assert_eq!(gauge(r#""ramp:0:10:1s""#, refresh, f64::trunc)(early), 1.0);
        assert_eq!(gauge("2.5", refresh, f64::trunc)(t), 2.5);
    }

    #[test]
    fn periods_are_written_as_in_go() {
        let period = |text: &str| {
            let text = format!("ramp:0:1:{text}").into();
            let ramp = parse_fake_gauge(&text, NANOSECOND, identity)?;
            Some((1.0 / ramp(Duration::from_micros(1))).round() as u64)
        };
        assert_eq!(period("1m30s"), Some(90_000_000));
        assert_eq!(period("1.5s"), Some(1_500_000));
        assert_eq!(period("250\u{b5}s"), Some(250));
        for wrong in ["", "5", "0", "0s", "-1s", "5x", "abc"] {
            assert_eq!(period(wrong), None, "{wrong}");
        }
    }
}
