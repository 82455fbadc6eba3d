//! Ranges of JSON numbers with exact bounds and multiples.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use serde_json::Number;

use super::number::{ExactDecimal, JsonNumber, NumberBound};
use vllm_sim_random::DrawRandom;

/// Smallest magnitude of 64-bit floats without a fraction, 2^53.
const MAX_EXACT_INTEGER_F64: f64 = 9_007_199_254_740_992.0;

/// Maximum width of a schema's integer range in which every integer may be generated. In a wider
/// range, integers come from the default range, such as 0 to 100, if the two overlap.
const WIDE_RANGE_WIDTH: i128 = 10_000;

/// The preferred range of a generated number: the default range, or one that the field name
/// suggests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PreferredNumberRange<T> {
    Default((T, T)),
    /// Range of numbers that the field name suggests, applied wherever the schema allows it.
    Suggested((T, T)),
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NumberRange {
    low: Option<NumberBound>,
    high: Option<NumberBound>,
    step: Option<ExactDecimal>,
}

impl NumberRange {
    pub(crate) fn add_lower_bound(&mut self, bound: NumberBound) {
        // A tighter bound excludes the number of the bound so far.
        if self.low.is_none_or(|low| !bound.allows_as_minimum(low.number)) {
            self.low = Some(bound);
        }
    }

    pub(crate) fn add_upper_bound(&mut self, bound: NumberBound) {
        if self.high.is_none_or(|high| !bound.allows_as_maximum(high.number)) {
            self.high = Some(bound);
        }
    }

    pub(crate) fn add_multiple_of(&mut self, step: ExactDecimal) {
        self.step = Some(match self.step {
            // On overflow, one of the steps is left to the final check.
            Some(old) => old.least_common_multiple(step).unwrap_or(step),
            None => step,
        });
    }

    pub(crate) fn intersect_range(&mut self, other: &Self) {
        if let Some(bound) = other.low {
            self.add_lower_bound(bound);
        }
        if let Some(bound) = other.high {
            self.add_upper_bound(bound);
        }
        if let Some(step) = other.step {
            self.add_multiple_of(step);
        }
    }

    pub(crate) fn conflict_message(&self) -> Option<String> {
        let (low, high) = self.low.zip(self.high)?;
        let (low, high) = (low.number, high.number);
        let text = |n: JsonNumber| match n {
            JsonNumber::Int(i) => i.to_string(),
            JsonNumber::Float(f) => f.to_string(),
        };
        (low.cmp(high) == Ordering::Greater)
            .then(|| format!("minimum ({}) is greater than maximum ({})", text(low), text(high)))
    }

    fn contains_f64(&self, f: f64) -> bool {
        let number = JsonNumber::Float(f);
        let low = self.low.is_none_or(|low| low.allows_as_minimum(number));
        let high = self.high.is_none_or(|high| high.allows_as_maximum(number));
        low && high && f.is_finite()
    }

    pub(crate) fn random_integer(
        &self,
        usual: PreferredNumberRange<i64>,
        rng: &mut ChaCha8Rng,
    ) -> Option<Number> {
        let low = self.low.map(NumberBound::min_integer);
        let high = self.high.map(NumberBound::max_integer);
        if low.zip(high).is_some_and(|(low, high)| low > high) {
            return None;
        }
        let step = match self.step {
            Some(step) => step.smallest_integer_multiple()?.max(1),
            None => 1,
        };
        let (a, mut b) = preferred_window(low, high, usual);
        if a <= i128::from(u64::MAX) {
            // Larger integers need a double.
            b = b.min(i128::from(u64::MAX));
        }
        let (first, last) = (ceil_div(a, step), a.max(b).div_euclid(step));
        let value = if first <= last {
            let span = u64::try_from(last - first).unwrap_or(u64::MAX);
            (first + i128::from(rng.draw_u64_between(0, span))).checked_mul(step)?
        } else {
            let within = |v: &i128| low.is_none_or(|l| *v >= l) && high.is_none_or(|h| *v <= h);
            [first.checked_mul(step)?, last.checked_mul(step)?].into_iter().find(within)?
        };
        i64::try_from(value)
            .map(Number::from)
            .or_else(|_| u64::try_from(value).map(Number::from))
            .ok()
            .or_else(|| self.huge_integer_as_f64(value))
    }

    /// Returns an integer beyond 64 bits as a nearby 64-bit float in this number range; `None` if
    /// the range contains no such float.
    fn huge_integer_as_f64(&self, value: i128) -> Option<Number> {
        let near = value as f64;
        [near, near.next_up(), near.next_down()]
            .into_iter()
            .chain(self.low.map(|low| low.number.as_f64()))
            .chain(self.low.map(|low| low.number.as_f64().next_up()))
            .find(|&f| self.contains_f64(f) && self.is_multiple_of_steps(f))
            .and_then(Number::from_f64)
    }

    fn is_multiple_of_steps(&self, f: f64) -> bool {
        self.step.is_none_or(|step| {
            ExactDecimal::from_json_number(JsonNumber::Float(f))
                .is_some_and(|d| d.is_multiple_of(step))
        })
    }

    /// Returns a random number in the range, with few decimals if possible.
    pub(crate) fn random_number(
        &self,
        usual: PreferredNumberRange<f64>,
        rng: &mut ChaCha8Rng,
    ) -> Option<Number> {
        let is_meant = matches!(usual, PreferredNumberRange::Suggested(_));
        let (PreferredNumberRange::Suggested(usual) | PreferredNumberRange::Default(usual)) = usual;
        let low = self.low.map(|low| low.number.as_f64());
        let high = self.high.map(|high| high.number.as_f64());
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
            return self.random_stepped_number(step, a, b, rng);
        }
        let raw = a + (b / 2.0 - a / 2.0) * 2.0 * rng.draw_unit_f64();
        let rounded = [10.0, 100.0, 1e4].map(|scale| (raw * scale).round() / scale);
        let nice = rounded.into_iter().filter(|f| raw.abs() < 1e12 && f.fract() != 0.0);
        let edges = [raw, raw.round(), a.next_up(), b.next_down(), a, b];
        nice.chain(edges).find(|&f| self.contains_f64(f)).and_then(Number::from_f64)
    }

    fn random_stepped_number(
        &self,
        step: ExactDecimal,
        a: f64,
        b: f64,
        rng: &mut ChaCha8Rng,
    ) -> Option<Number> {
        let size = step.as_f64();
        if size == 0.0 {
            return None;
        }
        let first = (a / size).ceil();
        let last = (b / size).floor();
        let mut fallback = None;
        for attempt in 0..40 {
            let count = if last < first {
                // The preferred range contains no multiple: tries the nearest ones outside.
                if attempt % 2 == 0 { first } else { last }
            } else if last - first < 1e15 {
                first + rng.draw_u64_between(0, (last - first) as u64) as f64
            } else {
                first + ((last - first) * rng.draw_unit_f64()).floor()
            };
            if count.abs() >= MAX_EXACT_INTEGER_F64 {
                // Only a double can represent the multiple, such as 1e300 for step 0.5.
                let f = (count * size).clamp(f64::MIN, f64::MAX);
                if self.contains_f64(f) && self.is_multiple_of_steps(f) {
                    return Number::from_f64(f);
                }
                continue;
            }
            let Some(f) = step.multiple_as_f64(count as i128).filter(|&f| self.contains_f64(f))
            else {
                continue;
            };
            // Python's jsonschema divides doubles: prefers multiples that survive this.
            if (f / size).fract() == 0.0 {
                return json_number_from_f64(f);
            }
            fallback = json_number_from_f64(f);
        }
        // The division of doubles may miss the first or last multiple by one.
        fallback.or_else(|| {
            let near = [last + 1.0, first - 1.0];
            let near = near.into_iter().filter(|count| count.abs() < MAX_EXACT_INTEGER_F64);
            let mut near = near.filter_map(|count| step.multiple_as_f64(count as i128));
            near.find(|&f| self.contains_f64(f)).and_then(json_number_from_f64)
        })
    }
}

/// Returns a 64-bit float without a fraction as a JSON integer.
fn json_number_from_f64(f: f64) -> Option<Number> {
    if f.fract() == 0.0 && f.abs() < MAX_EXACT_INTEGER_F64 {
        return Some(Number::from(f as i64));
    }
    Number::from_f64(f)
}

fn ceil_div(a: i128, b: i128) -> i128 {
    a.div_euclid(b) + i128::from(a.rem_euclid(b) != 0)
}

fn preferred_window(
    low: Option<i128>,
    high: Option<i128>,
    usual: PreferredNumberRange<i64>,
) -> (i128, i128) {
    let is_meant = matches!(usual, PreferredNumberRange::Suggested(_));
    let (PreferredNumberRange::Suggested(usual) | PreferredNumberRange::Default(usual)) = usual;
    let usual = (i128::from(usual.0), i128::from(usual.1));
    match (low, high) {
        (None, None) => usual,
        (Some(l), None) if l <= usual.1 => (l.max(usual.0), usual.1),
        (Some(l), None) => (l, l.saturating_add(100)),
        (None, Some(h)) if h >= usual.0 => (usual.0, h.min(usual.1)),
        (None, Some(h)) => (h.saturating_sub(100), h),
        (Some(l), Some(h)) => {
            let wide = is_meant || h.saturating_sub(l) > WIDE_RANGE_WIDTH;
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
    use vllm_sim_random::{RandomStreamPurpose, request_rng};

    fn number_bound(number: JsonNumber, open: bool) -> NumberBound {
        NumberBound { number, open }
    }

    fn exact_decimal(text: &str) -> ExactDecimal {
        let number: Number = serde_json::from_str(text).expect("a number");
        ExactDecimal::from_json_number(JsonNumber::from_json_number(&number)).expect("a decimal")
    }

    #[test]
    fn random_number_lies_in_its_range() {
        let mut rng = request_rng(7, 0, RandomStreamPurpose::Structured);
        for _ in 0..200 {
            let mut range = NumberRange::default();
            range.add_lower_bound(number_bound(JsonNumber::Float(0.1), true));
            range.add_upper_bound(number_bound(JsonNumber::Float(0.2), true));
            let f = range
                .random_number(PreferredNumberRange::Default((0.0, 100.0)), &mut rng)
                .expect("a number");
            assert!(f.as_f64().is_some_and(|f| f > 0.1 && f < 0.2));

            range.add_multiple_of(exact_decimal("0.01"));
            let f = range
                .random_number(PreferredNumberRange::Default((0.0, 100.0)), &mut rng)
                .expect("a multiple");
            assert!(
                ExactDecimal::from_json_number(JsonNumber::from_json_number(&f))
                    .is_some_and(|d| d.is_multiple_of(exact_decimal("0.01")))
            );

            let mut range = NumberRange::default();
            range.add_lower_bound(number_bound(JsonNumber::Int(1001), false));
            range.add_multiple_of(exact_decimal("7"));
            let i = range
                .random_integer(PreferredNumberRange::Default((0, 100)), &mut rng)
                .expect("an integer");
            assert!(i.as_i64().is_some_and(|i| i > 1000 && i % 7 == 0));
        }
    }

    #[test]
    fn the_last_multiple_is_found_despite_rounding() {
        let mut rng = request_rng(7, 0, RandomStreamPurpose::Structured);
        let mut range = NumberRange::default();
        range.add_lower_bound(number_bound(JsonNumber::Float(0.5), true));
        range.add_upper_bound(number_bound(JsonNumber::Float(0.6), false));
        range.add_multiple_of(exact_decimal("0.1"));
        let usual = PreferredNumberRange::Default((0.0, 100.0));
        assert_eq!(range.random_number(usual, &mut rng), Number::from_f64(0.6));
    }

    #[test]
    fn preferred_range_applies_without_schema_bounds() {
        let mut rng = request_rng(7, 0, RandomStreamPurpose::Structured);
        for _ in 0..200 {
            let i = NumberRange::default()
                .random_integer(PreferredNumberRange::Default((3, 5)), &mut rng)
                .expect("an integer");
            assert!(i.as_i64().is_some_and(|i| (3..=5).contains(&i)));
        }
    }

    #[test]
    fn empty_and_huge_ranges_do_not_overflow() {
        let mut rng = request_rng(7, 0, RandomStreamPurpose::Structured);
        let mut range = NumberRange::default();
        range.add_lower_bound(number_bound(JsonNumber::Int(5), true));
        range.add_upper_bound(number_bound(JsonNumber::Int(6), true));
        assert!(range.random_integer(PreferredNumberRange::Default((0, 100)), &mut rng).is_none());
        let mut range = NumberRange::default();
        range.add_lower_bound(number_bound(JsonNumber::Float(1e300), true));
        assert!(
            range
                .random_integer(PreferredNumberRange::Default((0, 100)), &mut rng)
                .is_some_and(|n| n.as_f64() > Some(1e300))
        );
        let mut range = NumberRange::default();
        range.add_lower_bound(number_bound(JsonNumber::Float(-f64::MAX), false));
        range.add_upper_bound(number_bound(JsonNumber::Float(f64::MAX), false));
        assert!(range.random_number(PreferredNumberRange::Default((0.0, 1.0)), &mut rng).is_some());
        assert!(range.random_integer(PreferredNumberRange::Default((0, 1)), &mut rng).is_some());
    }
}
