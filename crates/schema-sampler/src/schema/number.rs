//! JSON numbers with exact comparison and division.

use std::cmp::Ordering;

use serde_json::Number;

#[derive(Debug, Clone, Copy)]
pub(crate) enum JsonNumber {
    Int(i128),
    Float(f64),
}

impl JsonNumber {
    pub(crate) fn from_json_number(number: &Number) -> Self {
        number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from))
            .map_or_else(|| Self::Float(number.as_f64().unwrap_or(0.0)), Self::Int)
    }

    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }

    pub(crate) fn cmp(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(&b),
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        }
    }

    pub(crate) fn is_integral(self) -> bool {
        match self {
            Self::Int(_) => true,
            Self::Float(f) => f.fract() == 0.0,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberBound {
    pub(crate) number: JsonNumber,
    /// Whether the bound excludes its number from the allowed ones, as `exclusiveMinimum` does.
    pub(crate) open: bool,
}

impl NumberBound {
    /// Returns whether this bound, as a minimum, allows `number`.
    pub(crate) fn allows_as_minimum(self, number: JsonNumber) -> bool {
        match number.cmp(self.number) {
            Ordering::Greater => true,
            Ordering::Equal => !self.open,
            Ordering::Less => false,
        }
    }

    /// Returns whether this bound, as a maximum, allows `number`.
    pub(crate) fn allows_as_maximum(self, number: JsonNumber) -> bool {
        match number.cmp(self.number) {
            Ordering::Less => true,
            Ordering::Equal => !self.open,
            Ordering::Greater => false,
        }
    }

    /// Returns this numeric bound with its number excluded if it was included, and vice versa.
    pub(crate) fn with_inverted_inclusiveness(self) -> Self {
        Self { open: !self.open, ..self }
    }

    /// Returns the smallest integer that this lower bound allows.
    pub(crate) fn min_integer(self) -> i128 {
        let beyond = i128::from(self.open);
        match self.number {
            JsonNumber::Int(i) => i.saturating_add(beyond),
            JsonNumber::Float(f) if f.fract() == 0.0 => (f as i128).saturating_add(beyond),
            JsonNumber::Float(f) => f.ceil() as i128,
        }
    }

    /// Returns the largest integer that this upper bound allows.
    pub(crate) fn max_integer(self) -> i128 {
        let beyond = i128::from(self.open);
        match self.number {
            JsonNumber::Int(i) => i.saturating_sub(beyond),
            JsonNumber::Float(f) if f.fract() == 0.0 => (f as i128).saturating_sub(beyond),
            JsonNumber::Float(f) => f.floor() as i128,
        }
    }
}

/// A number `digits × 10^exp`, the exact value of a printed number; without trailing zero digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExactDecimal {
    digits: i128,
    exp: i32,
}

impl ExactDecimal {
    pub(crate) fn from_json_number(num: JsonNumber) -> Option<Self> {
        let (digits, exp) = match num {
            JsonNumber::Int(i) => (i, 0),
            JsonNumber::Float(f) => {
                let text = format!("{f:e}");
                let (mantissa, exp) = text.split_once('e')?;
                let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
                let digits = format!("{whole}{fraction}").parse().ok()?;
                let places = i32::try_from(fraction.len()).ok()?;
                (digits, exp.parse::<i32>().ok()? - places)
            }
        };
        Some(Self::without_trailing_zeros(digits, exp))
    }

    fn without_trailing_zeros(mut digits: i128, mut exp: i32) -> Self {
        if digits == 0 {
            return Self { digits, exp: 0 };
        }
        while digits % 10 == 0 {
            digits /= 10;
            exp += 1;
        }
        Self { digits, exp }
    }

    /// Returns the digits of this decimal number at the smaller exponent `exp`; `None` on overflow.
    fn digits_at_exponent(self, exp: i32) -> Option<i128> {
        let shift = u32::try_from(self.exp.checked_sub(exp)?).ok()?;
        self.digits.checked_mul(10i128.checked_pow(shift)?)
    }

    pub(crate) fn is_multiple_of(self, step: Self) -> bool {
        if step.digits == 0 || self.digits == 0 {
            return self.digits == 0;
        }
        let exp = self.exp.min(step.exp);
        match (self.digits_at_exponent(exp), step.digits_at_exponent(exp)) {
            (Some(a), Some(b)) => a % b == 0,
            // The exponents are too far apart for exact integers: uses modular arithmetic.
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

    pub(crate) fn least_common_multiple(self, other: Self) -> Option<Self> {
        let exp = self.exp.min(other.exp);
        let (a, b) = (self.digits_at_exponent(exp)?.abs(), other.digits_at_exponent(exp)?.abs());
        Some(Self::without_trailing_zeros((a / gcd(a, b)).checked_mul(b)?, exp))
    }

    /// Returns the minimum positive integer that is a multiple of this decimal number.
    pub(crate) fn smallest_integer_multiple(self) -> Option<i128> {
        if self.exp >= 0 {
            return self.digits_at_exponent(0).map(i128::abs);
        }
        let scale = 10i128.checked_pow(self.exp.unsigned_abs())?;
        Some(self.digits.abs() / gcd(self.digits.abs(), scale))
    }

    /// Returns `count` times this number as the nearest 64-bit float.
    pub(crate) fn multiple_as_f64(self, count: i128) -> Option<f64> {
        format!("{}e{}", self.digits.checked_mul(count)?, self.exp)
            .parse()
            .ok()
            .filter(|f: &f64| f.is_finite())
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.multiple_as_f64(1).unwrap_or(0.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn dec(text: &str) -> ExactDecimal {
        let number: Number = serde_json::from_str(text).expect("a number");
        ExactDecimal::from_json_number(JsonNumber::from_json_number(&number)).expect("a decimal")
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
}
