//! Durations as Go reads and writes them: `1.5s`, `250us`, `1h2m`.
//!
//! Source: Go `time/format.go`.

use std::time::Duration;

const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("μs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];

/// Reads a duration; a negative one becomes zero.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let numeric = |c: char| c.is_ascii_digit() || c == '.';
        let digits = rest.find(|c| !numeric(c)).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let unit_len = tail.find(numeric).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let Some((_, scale)) = UNITS.iter().find(|(u, _)| *u == unit) else {
            return Err(format!("time: unknown unit {unit:?} in duration {text:?}"));
        };
        nanos += number * scale;
        rest = tail;
    }
    if nanos > i64::MAX as f64 {
        return Err(invalid());
    }
    let nanos = if negative { 0 } else { nanos.round() as u64 };
    Ok(Duration::from_nanos(nanos))
}

/// Writes a duration: `1m30s`, `250ms`, `1.5µs`, `0s`.
pub(super) fn text(d: Duration) -> String {
    let nanos = d.as_nanos() as u64;
    let below_second = match nanos {
        0 => Some("0s".to_owned()),
        1..1_000 => Some(format!("{nanos}ns")),
        1_000..1_000_000 => Some(format!("{}µs", nanos as f64 / 1e3)),
        1_000_000..1_000_000_000 => Some(format!("{}ms", nanos as f64 / 1e6)),
        _ => None,
    };
    below_second.unwrap_or_else(|| {
        let (hours, minutes) = (d.as_secs() / 3600, d.as_secs() / 60 % 60);
        let seconds = (nanos % 60_000_000_000) as f64 / 1e9;
        match (hours, minutes) {
            (0, 0) => format!("{seconds}s"),
            (0, m) => format!("{m}m{seconds}s"),
            (h, m) => format!("{h}h{m}m{seconds}s"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_in_go() {
        for (given, written) in [
            ("1.5s", "1.5s"),
            ("250us", "250µs"),
            ("1h2m", "1h2m0s"),
            ("90s", "1m30s"),
            ("0", "0s"),
            ("-5s", "0s"),
            ("1500ms", "1.5s"),
            ("17ns", "17ns"),
        ] {
            assert_eq!(text(parse(given).unwrap()), written, "{given}");
        }
    }

    #[test]
    fn what_is_no_duration_is_said_as_in_go() {
        let errors = ["", "5", "5x", "abc", ".s", "1e300h"].map(|t| parse(t).unwrap_err());
        assert_eq!(
            errors,
            [
                "time: invalid duration \"\"",
                "time: missing unit in duration \"5\"",
                "time: unknown unit \"x\" in duration \"5x\"",
                "time: invalid duration \"abc\"",
                "time: invalid duration \".s\"",
                "time: unknown unit \"e\" in duration \"1e300h\"",
            ]
        );
    }
}
