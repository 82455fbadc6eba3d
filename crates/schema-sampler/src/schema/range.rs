//! Where a number may lie: exact bounds and multiples, and a pick within both.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use serde_json::Number;

use super::number::{Decimal, JsonNumber};
use vllm_sim_random::Draw;

/// Beyond this a double has no fraction and its neighbours are more than 1 apart.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// How wide an interval may be before the usual range is preferred within it.
const WIDE: i128 = 10_000;

/// What a number must satisfy, from all parts of a schema together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NumberRange {
    low: Option<(JsonNumber, bool)>,
    high: Option<(JsonNumber, bool)>,
    step: Option<Decimal>,
}

impl NumberRange {
    pub(crate) fn at_least(&mut self, bound: JsonNumber, open: bool) {
        let tighter = self.low.is_none_or(|(low, was_open)| match bound.cmp(low) {
            Ordering::Greater => true,
            Ordering::Equal => open && !was_open,
            Ordering::Less => false,
        });
        if tighter {
            self.low = Some((bound, open));
        }
    }

    pub(crate) fn at_most(&mut self, bound: JsonNumber, open: bool) {
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

    pub(crate) fn multiple_of(&mut self, step: Decimal) {
        self.step = Some(match self.step {
            // An overflow leaves one of the steps to chance and the final check.
            Some(old) => old.lcm(step).unwrap_or(step),
            None => step,
        });
    }

    /// Keeps to another range as well.
    pub(crate) fn narrow(&mut self, other: &Self) {
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
    pub(crate) fn conflict(&self) -> Option<String> {
        let ((low, _), (high, _)) = self.low.zip(self.high)?;
        let text = |n: JsonNumber| match n {
            JsonNumber::Int(i) => i.to_string(),
            JsonNumber::Float(f) => f.to_string(),
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
            let order = JsonNumber::Float(f).cmp(low);
            order == Ordering::Greater || (order == Ordering::Equal && !open)
        });
        let high = self.high.is_none_or(|(high, open)| {
            let order = JsonNumber::Float(f).cmp(high);
            order == Ordering::Less || (order == Ordering::Equal && !open)
        });
        low && high && f.is_finite()
    }

    /// An integer within; `usual` is where it lies when the schema leaves room, or whenever
    /// it can if `is_meant`.
    pub(crate) fn integer(
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
        self.step.is_none_or(|step| {
            Decimal::of(JsonNumber::Float(f)).is_some_and(|d| d.is_multiple_of(step))
        })
    }

    /// A number within, with few decimals when the bounds leave room.
    pub(crate) fn number(
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
        Decimal::of(JsonNumber::of(&number)).expect("a decimal")
    }

    #[test]
    fn a_pick_lies_within_its_range() {
        let mut rng = stream(7, 0, Purpose::Structured);
        for _ in 0..200 {
            let mut range = NumberRange::default();
            range.at_least(JsonNumber::Float(0.1), true);
            range.at_most(JsonNumber::Float(0.2), true);
            let f = range
                .number((0.0, 100.0), false, &mut rng)
                .expect("a number");
            assert!(f.as_f64().is_some_and(|f| f > 0.1 && f < 0.2));

            range.multiple_of(dec("0.01"));
            let f = range
                .number((0.0, 100.0), false, &mut rng)
                .expect("a multiple");
            assert!(Decimal::of(JsonNumber::of(&f)).is_some_and(|d| d.is_multiple_of(dec("0.01"))));

            let mut range = NumberRange::default();
            range.at_least(JsonNumber::Int(1001), false);
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
            let i = NumberRange::default()
                .integer((3, 5), false, &mut rng)
                .expect("an integer");
            assert!(i.as_i64().is_some_and(|i| (3..=5).contains(&i)));
        }
    }

    #[test]
    fn empty_and_huge_ranges_do_not_overflow() {
        let mut rng = stream(7, 0, Purpose::Structured);
        let mut range = NumberRange::default();
        range.at_least(JsonNumber::Int(5), true);
        range.at_most(JsonNumber::Int(6), true);
        assert!(range.integer((0, 100), false, &mut rng).is_none());
        let mut range = NumberRange::default();
        range.at_least(JsonNumber::Float(1e300), true);
        assert!(
            range
                .integer((0, 100), false, &mut rng)
                .is_some_and(|n| n.as_f64() > Some(1e300))
        );
        let mut range = NumberRange::default();
        range.at_least(JsonNumber::Float(-f64::MAX), false);
        range.at_most(JsonNumber::Float(f64::MAX), false);
        assert!(range.number((0.0, 1.0), false, &mut rng).is_some());
        assert!(range.integer((0, 1), false, &mut rng).is_some());
    }
}
