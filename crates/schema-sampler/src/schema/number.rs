//! Numbers as JSON writes them: exact bounds, exact multiples, a pick within both.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use serde_json::Number;

use vllm_sim_random::Draw;

/// Beyond this a double has no fraction and its neighbours are more than 1 apart.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// How wide an interval may be before the usual range is preferred within it.
const WIDE: i128 = 10_000;

/// A number of a schema or a value.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Num {
    Int(i128),
    Float(f64),
}

impl Num {
    pub(in super::super) fn of(number: &Number) -> Self {
        number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from))
            .map_or_else(|| Self::Float(number.as_f64().unwrap_or(0.0)), Self::Int)
    }

    pub(in super::super) fn as_f64(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }

    pub(in super::super) fn cmp(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(&b),
            (a, b) => a
                .as_f64()
                .partial_cmp(&b.as_f64())
                .unwrap_or(Ordering::Equal),
        }
    }

    pub(in super::super) fn is_integral(self) -> bool {
        match self {
            Self::Int(_) => true,
            Self::Float(f) => f.fract() == 0.0,
        }
    }

    /// The least integer at or above (above, when `open`).
    fn ceil(self, open: bool) -> i128 {
        match self {
            Self::Int(i) => i.saturating_add(i128::from(open)),
            Self::Float(f) if f.fract() == 0.0 => (f as i128).saturating_add(i128::from(open)),
            Self::Float(f) => f.ceil() as i128,
        }
    }

    fn floor(self, open: bool) -> i128 {
        match self {
            Self::Int(i) => i.saturating_sub(i128::from(open)),
            Self::Float(f) if f.fract() == 0.0 => (f as i128).saturating_sub(i128::from(open)),
            Self::Float(f) => f.floor() as i128,
        }
    }
}

/// `digits × 10^exp`, the exact value of a number as printed; no trailing zero digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Decimal {
    digits: i128,
    exp: i32,
}

impl Decimal {
    pub(in super::super) fn of(num: Num) -> Option<Self> {
        let (digits, exp) = match num {
            Num::Int(i) => (i, 0),
            Num::Float(f) => {
                let text = format!("{f:e}");
                let (mantissa, exp) = text.split_once('e')?;
                let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
                let digits = format!("{whole}{fraction}").parse().ok()?;
                let places = i32::try_from(fraction.len()).ok()?;
                (digits, exp.parse::<i32>().ok()? - places)
            }
        };
        Some(Self::trimmed(digits, exp))
    }

    fn trimmed(mut digits: i128, mut exp: i32) -> Self {
        if digits == 0 {
            return Self { digits, exp: 0 };
        }
        while digits % 10 == 0 {
            digits /= 10;
            exp += 1;
        }
        Self { digits, exp }
    }

    /// `digits` at a smaller exponent; `None` on overflow.
    fn at(self, exp: i32) -> Option<i128> {
        let shift = u32::try_from(self.exp.checked_sub(exp)?).ok()?;
        self.digits.checked_mul(10i128.checked_pow(shift)?)
    }

    /// Whether this is a whole multiple of `step`.
    pub(in super::super) fn is_multiple_of(self, step: Self) -> bool {
        if step.digits == 0 || self.digits == 0 {
            return self.digits == 0;
        }
        let exp = self.exp.min(step.exp);
        match (self.at(exp), step.at(exp)) {
            (Some(a), Some(b)) => a % b == 0,
            // Too far apart for exact integers: a huge value modulo a small step.
            (None, Some(b)) => {
                let m = b.unsigned_abs();
                let shift = u32::try_from(self.exp - exp).unwrap_or(0);
                u64::try_from(m).is_ok_and(|m| {
                    let m = u128::from(m);
                    let digits = self.digits.unsigned_abs() % m;
                    (digits * power_mod(10, shift, m)).is_multiple_of(m)
                })
            }
            _ => false,
        }
    }

    /// The least number that is a multiple of both.
    pub(in super::super) fn lcm(self, other: Self) -> Option<Self> {
        let exp = self.exp.min(other.exp);
        let (a, b) = (self.at(exp)?.abs(), other.at(exp)?.abs());
        Some(Self::trimmed((a / gcd(a, b)).checked_mul(b)?, exp))
    }

    /// The least positive integer that is a multiple of this.
    fn integer_step(self) -> Option<i128> {
        if self.exp >= 0 {
            return self.at(0).map(i128::abs);
        }
        let scale = 10i128.checked_pow(self.exp.unsigned_abs())?;
        Some(self.digits.abs() / gcd(self.digits.abs(), scale))
    }

    /// `count` times this, as the nearest double.
    fn times(self, count: i128) -> Option<f64> {
        format!("{}e{}", self.digits.checked_mul(count)?, self.exp)
            .parse()
            .ok()
            .filter(|f: &f64| f.is_finite())
    }

    fn as_f64(self) -> f64 {
        self.times(1).unwrap_or(0.0)
    }
}

fn power_mod(base: u128, mut exp: u32, modulus: u128) -> u128 {
    let (mut base, mut result) = (base % modulus, 1 % modulus);
    while exp > 0 {
        if exp & 1 == 1 {
            result = result * base % modulus;
        }
        base = base * base % modulus;
        exp >>= 1;
    }
    result
}

fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs().max(1)
}

/// What a number must satisfy, from all parts of a schema together.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct Range {
    low: Option<(Num, bool)>,
    high: Option<(Num, bool)>,
    step: Option<Decimal>,
}

impl Range {
    pub(in super::super) fn at_least(&mut self, bound: Num, open: bool) {
        let tighter = self.low.is_none_or(|(low, was_open)| match bound.cmp(low) {
            Ordering::Greater => true,
            Ordering::Equal => open && !was_open,
            Ordering::Less => false,
        });
        if tighter {
            self.low = Some((bound, open));
        }
    }

    pub(in super::super) fn at_most(&mut self, bound: Num, open: bool) {
        let tighter = self
            .high
            .is_none_or(|(high, was_open)| match bound.cmp(high) {
                Ordering::Less => true,
                Ordering::Equal => open && !was_open,
                Ordering::Greater => false,
            });
        if tighter {
            self.high = Some((bound, open));
        }
    }

    pub(in super::super) fn multiple_of(&mut self, step: Decimal) {
        self.step = Some(match self.step {
            // An overflow leaves one of the steps to chance and the final check.
            Some(old) => old.lcm(step).unwrap_or(step),
            None => step,
        });
    }

    /// Keeps to another range as well.
    pub(in super::super) fn narrow(&mut self, other: &Self) {
        if let Some((bound, open)) = other.low {
            self.at_least(bound, open);
        }
        if let Some((bound, open)) = other.high {
            self.at_most(bound, open);
        }
        if let Some(step) = other.step {
            self.multiple_of(step);
        }
    }

    /// Why nothing lies within, when the bounds alone say so.
    pub(in super::super) fn conflict(&self) -> Option<String> {
        let ((low, _), (high, _)) = self.low.zip(self.high)?;
        let text = |n: Num| match n {
            Num::Int(i) => i.to_string(),
            Num::Float(f) => f.to_string(),
        };
        (low.cmp(high) == Ordering::Greater).then(|| {
            format!(
                "minimum ({}) is greater than maximum ({})",
                text(low),
                text(high)
            )
        })
    }

    fn holds(&self, f: f64) -> bool {
        let low = self.low.is_none_or(|(low, open)| {
            let order = Num::Float(f).cmp(low);
            order == Ordering::Greater || (order == Ordering::Equal && !open)
        });
        let high = self.high.is_none_or(|(high, open)| {
            let order = Num::Float(f).cmp(high);
            order == Ordering::Less || (order == Ordering::Equal && !open)
        });
        low && high && f.is_finite()
    }

    /// An integer within; `usual` is where it lies when the schema leaves room, or whenever
    /// it can if `is_meant`.
    pub(in super::super) fn integer(
        &self,
        usual: (i64, i64),
        is_meant: bool,
        rng: &mut ChaCha8Rng,
    ) -> Option<Number> {
        let low = self.low.map(|(n, open)| n.ceil(open));
        let high = self.high.map(|(n, open)| n.floor(open));
        if low.zip(high).is_some_and(|(low, high)| low > high) {
            return None;
        }
        let step = match self.step {
            Some(step) => step.integer_step()?.max(1),
            None => 1,
        };
        let usual = (i128::from(usual.0), i128::from(usual.1));
        let (a, mut b) = window(low, high, usual, is_meant);
        if a <= i128::from(u64::MAX) {
            // Beyond that only a double holds it.
            b = b.min(i128::from(u64::MAX));
        }
        let (first, last) = (ceil_div(a, step), a.max(b).div_euclid(step));
        let value = if first <= last {
            let span = u64::try_from(last - first).unwrap_or(u64::MAX);
            (first + i128::from(rng.between(0, span))).checked_mul(step)?
        } else {
            let within = |v: &i128| low.is_none_or(|l| *v >= l) && high.is_none_or(|h| *v <= h);
            [first.checked_mul(step)?, last.checked_mul(step)?]
                .into_iter()
                .find(within)?
        };
        i64::try_from(value)
            .map(Number::from)
            .or_else(|_| u64::try_from(value).map(Number::from))
            .ok()
            .or_else(|| self.huge(value))
    }

    /// An integer that only a double can hold.
    fn huge(&self, value: i128) -> Option<Number> {
        let near = value as f64;
        [near, near.next_up(), near.next_down()]
            .into_iter()
            .chain(self.low.map(|(n, _)| n.as_f64()))
            .chain(self.low.map(|(n, _)| n.as_f64().next_up()))
            .find(|&f| self.holds(f) && self.steps(f))
            .and_then(Number::from_f64)
    }

    fn steps(&self, f: f64) -> bool {
        self.step
            .is_none_or(|step| Decimal::of(Num::Float(f)).is_some_and(|d| d.is_multiple_of(step)))
    }

    /// A number within, with few decimals when the bounds leave room.
    pub(in super::super) fn number(
        &self,
        usual: (f64, f64),
        is_meant: bool,
        rng: &mut ChaCha8Rng,
    ) -> Option<Number> {
        let low = self.low.map(|(n, _)| n.as_f64());
        let high = self.high.map(|(n, _)| n.as_f64());
        let (a, b) = match (low, high) {
            (None, None) => usual,
            (Some(l), None) if l <= usual.1 => (l.max(usual.0), usual.1),
            (Some(l), None) => (l, (l + 100.0).max(l + l.abs() * 0.01).min(f64::MAX)),
            (None, Some(h)) if h >= usual.0 => (usual.0, h.min(usual.1)),
            (None, Some(h)) => ((h - 100.0).min(h - h.abs() * 0.01).max(f64::MIN), h),
            (Some(l), Some(h))
                if (is_meant || h / 2.0 - l / 2.0 > 5e8) && l < usual.1 && h > usual.0 =>
            {
                (l.max(usual.0), h.min(usual.1))
            }
            (Some(l), Some(h)) => (l, h),
        };
        if let Some(step) = self.step {
            return self.stepped(step, a, b, rng);
        }
        let raw = a + (b / 2.0 - a / 2.0) * 2.0 * rng.unit();
        let rounded = [10.0, 100.0, 1e4].map(|scale| (raw * scale).round() / scale);
        let nice = rounded
            .into_iter()
            .filter(|f| raw.abs() < 1e12 && f.fract() != 0.0);
        let edges = [raw, raw.round(), a.next_up(), b.next_down(), a, b];
        nice.chain(edges)
            .find(|&f| self.holds(f))
            .and_then(Number::from_f64)
    }

    fn stepped(&self, step: Decimal, a: f64, b: f64, rng: &mut ChaCha8Rng) -> Option<Number> {
        let size = step.as_f64();
        if size == 0.0 {
            return None;
        }
        let first = (a / size).ceil();
        let last = (b / size).floor();
        let mut fallback = None;
        for attempt in 0..40 {
            let count = if last < first {
                // None in the preferred window: the nearest ones outside it.
                if attempt % 2 == 0 { first } else { last }
            } else if last - first < 1e15 {
                first + rng.between(0, (last - first) as u64) as f64
            } else {
                first + ((last - first) * rng.unit()).floor()
            };
            if count.abs() >= EXACT {
                // Only a float multiple can be named: 1e300 of 0.5 is one.
                let f = (count * size).clamp(f64::MIN, f64::MAX);
                if self.holds(f) && self.steps(f) {
                    return Number::from_f64(f);
                }
                continue;
            }
            let Some(f) = step.times(count as i128).filter(|&f| self.holds(f)) else {
                continue;
            };
            // Python's jsonschema divides doubles: prefer multiples that survive that.
            if (f / size).fract() == 0.0 {
                return tidy(f);
            }
            fallback = tidy(f);
        }
        fallback
    }
}

/// A whole double prints as an integer.
fn tidy(f: f64) -> Option<Number> {
    if f.fract() == 0.0 && f.abs() < EXACT {
        return Some(Number::from(f as i64));
    }
    Number::from_f64(f)
}

fn ceil_div(a: i128, b: i128) -> i128 {
    a.div_euclid(b) + i128::from(a.rem_euclid(b) != 0)
}

fn window(
    low: Option<i128>,
    high: Option<i128>,
    usual: (i128, i128),
    is_meant: bool,
) -> (i128, i128) {
    match (low, high) {
        (None, None) => usual,
        (Some(l), None) if l <= usual.1 => (l.max(usual.0), usual.1),
        (Some(l), None) => (l, l.saturating_add(100)),
        (None, Some(h)) if h >= usual.0 => (usual.0, h.min(usual.1)),
        (None, Some(h)) => (h.saturating_sub(100), h),
        (Some(l), Some(h)) => {
            let wide = is_meant || h.saturating_sub(l) > WIDE;
            if wide && l <= usual.1 && h >= usual.0 {
                (l.max(usual.0), h.min(usual.1))
            } else {
                (l, h)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_random::{Purpose, stream};

    fn dec(text: &str) -> Decimal {
        let number: Number = serde_json::from_str(text).expect("a number");
        Decimal::of(Num::of(&number)).expect("a decimal")
    }

    #[test]
    fn multiples_are_exact_in_decimal() {
        for (value, step, yes) in [
            ("19.99", "0.01", true),
            ("0.3", "0.1", true),
            ("0.35", "0.1", false),
            ("1e300", "0.5", true),
            ("7", "3", false),
            ("9", "3", true),
            ("1e308", "0.123456789", false),
            ("0", "5", true),
            ("5e-324", "1", false),
            ("-4.5", "1.5", true),
        ] {
            assert_eq!(dec(value).is_multiple_of(dec(step)), yes, "{value} {step}");
        }
    }

    #[test]
    fn a_pick_lies_within_its_range() {
        let mut rng = stream(7, 0, Purpose::Structured);
        for _ in 0..200 {
            let mut range = Range::default();
            range.at_least(Num::Float(0.1), true);
            range.at_most(Num::Float(0.2), true);
            let f = range
                .number((0.0, 100.0), false, &mut rng)
                .expect("a number");
            assert!(f.as_f64().is_some_and(|f| f > 0.1 && f < 0.2));

            range.multiple_of(dec("0.01"));
            let f = range
                .number((0.0, 100.0), false, &mut rng)
                .expect("a multiple");
            assert!(Decimal::of(Num::of(&f)).is_some_and(|d| d.is_multiple_of(dec("0.01"))));

            let mut range = Range::default();
            range.at_least(Num::Int(1001), false);
            range.multiple_of(dec("7"));
            let i = range
                .integer((0, 100), false, &mut rng)
                .expect("an integer");
            assert!(i.as_i64().is_some_and(|i| i > 1000 && i % 7 == 0));
        }
    }

    #[test]
    fn the_usual_range_holds_where_the_schema_is_silent() {
        let mut rng = stream(7, 0, Purpose::Structured);
        for _ in 0..200 {
            let i = Range::default()
                .integer((3, 5), false, &mut rng)
                .expect("an integer");
            assert!(i.as_i64().is_some_and(|i| (3..=5).contains(&i)));
        }
    }

    #[test]
    fn empty_and_huge_ranges_do_not_overflow() {
        let mut rng = stream(7, 0, Purpose::Structured);
        let mut range = Range::default();
        range.at_least(Num::Int(5), true);
        range.at_most(Num::Int(6), true);
        assert!(range.integer((0, 100), false, &mut rng).is_none());
        let mut range = Range::default();
        range.at_least(Num::Float(1e300), true);
        assert!(
            range
                .integer((0, 100), false, &mut rng)
                .is_some_and(|n| n.as_f64() > Some(1e300))
        );
        let mut range = Range::default();
        range.at_least(Num::Float(-f64::MAX), false);
        range.at_most(Num::Float(f64::MAX), false);
        assert!(range.number((0.0, 1.0), false, &mut rng).is_some());
        assert!(range.integer((0, 1), false, &mut rng).is_some());
    }
}
