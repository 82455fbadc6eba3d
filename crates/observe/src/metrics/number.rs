//! Formats numbers as Python's prometheus_client does.
//!
//! **Source:** `prometheus_client/utils.py`, `floatToGoString`: Python's `repr` of a float, except
//! that positive values from a million up have Go's exponent form.

use std::fmt::Write as _;

pub(super) fn push_prometheus_float(out: &mut String, v: f64) {
    let size = v.abs();
    let exponential = v >= 1e6 || size >= 1e16 || (size < 1e-4 && size > 0.0);
    if v.is_infinite() {
        out.push_str(if v > 0.0 { "+Inf" } else { "-Inf" });
    } else if exponential {
        // Python writes the exponent with a sign and at least two digits.
        let text = format!("{v:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, ""));
        let _ = write!(out, "{digits}e{:+03}", exponent.parse::<i32>().unwrap_or_default());
    } else {
        let _ = write!(out, "{v:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Output of prometheus_client 0.26.0.
    const PYTHON: &[(f64, &str)] = &[
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.1, "0.1"),
        (2560.0, "2560.0"),
        (99999.5, "99999.5"),
        (999999.0, "999999.0"),
        (999999.5, "999999.5"),
        (1000000.0, "1e+06"),
        (1000000.5, "1.0000005e+06"),
        (1795215615.8455126, "1.7952156158455126e+09"),
        (4590764032.0, "4.590764032e+09"),
        (123456789012345.0, "1.23456789012345e+14"),
        (1234567890123456.0, "1.234567890123456e+15"),
        (9007199254740991.0, "9.007199254740991e+15"),
        (9007199254740992.0, "9.007199254740992e+15"),
        (1e15, "1e+15"),
        (1e16, "1e+16"),
        (1.5e16, "1.5e+16"),
        (1.2345678901234566e17, "1.2345678901234566e+17"),
        (1e22, "1e+22"),
        (f64::MAX, "1.7976931348623157e+308"),
        (1e-4, "0.0001"),
        (0.00012345, "0.00012345"),
        (1e-5, "1e-05"),
        (4.218000003675115e-05, "4.218000003675115e-05"),
        (1.234e-07, "1.234e-07"),
        (5e-324, "5e-324"),
        (-2133.1431579929995, "-2133.1431579929995"),
        (-12345678.0, "-12345678.0"),
        (-1e-5, "-1e-05"),
        (3590433282.4226975, "3.5904332824226975e+09"),
        (1e100, "1e+100"),
        (0.30000000000000004, "0.30000000000000004"),
        (2e6, "2e+06"),
        (1.2e6, "1.2e+06"),
        (1073741824.0, "1.073741824e+09"),
        (f64::INFINITY, "+Inf"),
        (f64::NEG_INFINITY, "-Inf"),
        (f64::NAN, "NaN"),
    ];

    fn text(v: f64) -> String {
        let mut out = String::new();
        push_prometheus_float(&mut out, v);
        out
    }

    #[test]
    fn floats_are_formatted_as_in_python() {
        for (v, expected) in PYTHON {
            assert_eq!(text(*v), *expected);
        }
    }

    proptest! {
        #[test]
        fn every_float_reads_back(bits: u64) {
            let v = f64::from_bits(bits);
            prop_assume!(!v.is_nan());
            prop_assert_eq!(text(v).replace("Inf", "inf").parse::<f64>().unwrap(), v);
        }
    }
}
