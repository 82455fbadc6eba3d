//! Reads and writes durations in Go's syntax, with nanosecond precision.
//!
//! **Source:** Go's `time.ParseDuration` and `Duration.String`.

use std::time::Duration;

/// Names of Go's duration units, each with its length in nanoseconds; microseconds have three
/// spellings.
const DURATION_UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Error text for a duration that does not fit into 64 bits of nanoseconds.
pub const DURATION_OVERFLOW_MESSAGE: &str = "it is too long";

/// Duration parsed from text, possibly negative or without a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsedDuration {
    /// Length of the parsed duration, in nanoseconds; may be negative.
    pub nanos: i64,
    /// Whether the parsed text was a nonzero number without a unit.
    pub bare: bool,
}

impl ParsedDuration {
    /// Returns the parsed duration, or `None` if the duration is negative.
    pub fn to_non_negative_duration(self) -> Option<Duration> {
        u64::try_from(self.nanos).ok().map(Duration::from_nanos)
    }
}

/// Parses a duration that must not be negative; a number without unit is in milliseconds.
///
/// # Errors
/// Returns a sentence to follow «X is not a duration: ».
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let typed = parse_signed_duration(text, 1_000_000)?;
    typed.to_non_negative_duration().ok_or_else(|| "it is negative".to_owned())
}

/// Parses a duration in Go's syntax: `1.5s`, `250us`, `1h2m` or `-3ms`. A number without unit
/// counts in units of `default_unit_nanos` nanoseconds.
///
/// # Errors
/// Returns a sentence to follow «X is not a duration: ».
pub fn parse_signed_duration(
    text: &str,
    default_unit_nanos: u64,
) -> Result<ParsedDuration, String> {
    let text = text.trim();
    let (negative, body) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if body.is_empty() {
        return Err("it is empty".to_owned());
    }
    let alone = body.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let nanos =
        if alone { decimal_times_unit(body, default_unit_nanos)? } else { parse_nanos(body)? };
    let nanos = i64::try_from(nanos).map_err(|_| DURATION_OVERFLOW_MESSAGE.to_owned())?;
    Ok(ParsedDuration { nanos: if negative { -nanos } else { nanos }, bare: alone && nanos != 0 })
}

fn parse_nanos(mut rest: &str) -> Result<u64, String> {
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("missing unit after {rest:?}"))?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let (_, nanos) = DURATION_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| format!("unknown unit {unit:?}"))?;
        total = total
            .checked_add(decimal_times_unit(number, *nanos)?)
            .ok_or_else(|| DURATION_OVERFLOW_MESSAGE.to_owned())?;
        rest = tail;
    }
    Ok(total)
}

/// Returns the decimal `number` times `unit`, a number of nanoseconds, truncated to whole
/// nanoseconds.
fn decimal_times_unit(number: &str, unit: u64) -> Result<u64, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let bad = || format!("{number:?} is not a number");
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(bad());
    }
    let long = || DURATION_OVERFLOW_MESSAGE.to_owned();
    let whole: u64 = match whole {
        "" => 0,
        digits => digits.parse().map_err(|_| long())?,
    };
    // No unit resolves more than eighteen digits.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = match fraction {
        "" => 0,
        digits => {
            let value: u128 = digits.parse().map_err(|_| bad())?;
            let scale = 10u128.pow(u32::try_from(digits.len()).map_err(|_| bad())?);
            value * u128::from(unit) / scale
        }
    };
    whole.checked_mul(unit).and_then(|n| n.checked_add(u64::try_from(part).ok()?)).ok_or_else(long)
}

/// Formats a duration as Go does, with `us` for microseconds: `1.5s`, `250us`, `1h2m0s`, `0s`.
pub fn format_go_duration(d: Duration) -> String {
    let nanos = d.as_nanos();
    let (unit, name) = match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let total_seconds = nanos / 1_000_000_000;
    let mut prefix = String::new();
    let mut rest = nanos;
    if total_seconds >= 60 {
        let (hours, minutes) = (total_seconds / 3600, total_seconds / 60 % 60);
        if hours > 0 {
            prefix = format!("{hours}h");
        }
        prefix.push_str(&format!("{minutes}m"));
        rest = nanos % 60_000_000_000;
    }
    let digits = unit.to_string().len() - 1;
    let fraction = format!("{:0digits$}", rest % unit);
    let fraction = fraction.trim_end_matches('0');
    if unit == 1 || fraction.is_empty() {
        format!("{prefix}{}{name}", rest / unit)
    } else {
        format!("{prefix}{}.{fraction}{name}", rest / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn go_strings_are_exact() {
        for (text, nanos) in [
            ("0", 0),
            ("1.5s", 1_500_000_000),
            ("250us", 250_000),
            ("250\u{b5}s", 250_000),
            ("1h2m", 3_720_000_000_000),
            ("100ms", 100_000_000),
            (".5ms", 500_000),
            ("1m0.000000001s", 60_000_000_001),
            ("-3ms", -3_000_000),
        ] {
            assert_eq!(parse_signed_duration(text, MS).map(|t| t.nanos), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn bare_numbers_count_in_the_given_unit() {
        let half = parse_signed_duration("0.5", MS);
        assert_eq!(half, Ok(ParsedDuration { nanos: 500_000, bare: true }));
        assert_eq!(parse_signed_duration("0", MS).map(|t| t.bare), Ok(false));
        assert_eq!(parse_signed_duration("20", 1_000_000_000).map(|t| t.nanos), Ok(20_000_000_000));
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for text in ["", "-", "ms", "1x", "1.2.3s", "1s2", "99999999999h", "1e3", "1 s"] {
            assert!(parse_signed_duration(text, MS).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_as_in_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (250_000, "250us"),
            (1_500_000, "1.5ms"),
            (100_000_000, "100ms"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (3_720_500_000_000, "1h2m0.5s"),
        ] {
            assert_eq!(format_go_duration(Duration::from_nanos(nanos)), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn formatted_durations_can_be_parsed(nanos in 0..i64::MAX as u64) {
            let text = format_go_duration(Duration::from_nanos(nanos));
            assert_eq!(parse_signed_duration(&text, MS).map(|t| t.nanos), Ok(nanos as i64), "{text}");
        }

        #[test]
        fn no_duration_text_panics(text in ".{0,20}") {
            let _ = parse_signed_duration(&text, MS);
        }
    }
}
