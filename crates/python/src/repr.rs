//! Python's `repr` and `str` of JSON values.

use std::fmt::{self, Write};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::json::PythonValue;

/// Formats a JSON value like Python's `str(value)`: a string unchanged, other values like [`python_repr`].
pub fn python_str(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => python_repr(other),
    }
}

/// Formats a JSON value like Python's `repr(value)`.
pub fn python_repr(value: &Value) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_repr(&mut out, value);
    out
}

/// Formats a JSON value like [`python_repr`], cut after `max_bytes` bytes and marked as truncated.
pub fn bounded_python_repr(value: &Value, max_bytes: usize) -> String {
    let mut out = BoundedText { text: String::new(), limit: max_bytes };
    let complete = write_repr(&mut out, value).is_ok();
    if !complete {
        out.text.push_str("...[truncated]");
    }
    out.text
}

/// Text buffer for the `repr` of a JSON value, with a limit in bytes beyond which writes fail.
struct BoundedText {
    text: String,
    limit: usize,
}

impl Write for BoundedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.limit.saturating_sub(self.text.len());
        if part.len() <= room {
            self.text.push_str(part);
            return Ok(());
        }
        let end = (0..=room).rev().find(|at| part.is_char_boundary(*at)).unwrap_or(0);
        self.text.push_str(&part[..end]);
        Err(fmt::Error)
    }
}

fn write_repr(out: &mut impl Write, value: &Value) -> fmt::Result {
    match PythonValue::from_json_value(value) {
        PythonValue::None => out.write_str("None"),
        PythonValue::Bool(true) => out.write_str("True"),
        PythonValue::Bool(false) => out.write_str("False"),
        PythonValue::Int(i) => write!(out, "{i}"),
        PythonValue::BigInt(text) => out.write_str(text),
        PythonValue::Float(f) => out.write_str(&python_repr_of_float(f)),
        PythonValue::Str(s) => write_python_repr_of_str(out, s),
        PythonValue::List(items) => {
            out.write_char('[')?;
            for (i, item) in items.iter().enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                write_repr(out, item)?;
            }
            out.write_char(']')
        }
        PythonValue::Dict(map) => {
            out.write_char('{')?;
            for (i, (key, item)) in map.iter().enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                write_python_repr_of_str(out, key)?;
                out.write_str(": ")?;
                write_repr(out, item)?;
            }
            out.write_char('}')
        }
    }
}

/// Formats a string like Python's `repr`.
pub fn python_repr_of_str(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    // Writing to a String cannot fail.
    let _ = write_python_repr_of_str(&mut out, text);
    out
}

/// Writes Python's `repr` of a string to `out`.
///
/// Quotes are single, unless the text contains single and no double quotes. Escapes use a
/// backslash, and characters that Unicode calls unprintable become `\x`, `\u` or `\U`.
///
/// # Errors
/// An error of writing to `out`.
pub fn write_python_repr_of_str(out: &mut impl Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            ' '..='~' => out.write_char(c)?,
            c => write_unprintable_escaped(out, c)?,
        }
    }
    out.write_char(quote)
}

fn write_unprintable_escaped(out: &mut impl Write, c: char) -> fmt::Result {
    /// Pattern of a non-ASCII character that is unprintable by Python's `str.isprintable`.
    static UNPRINTABLE_CHAR: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").expect("a constant pattern"));
    let mut buffer = [0; 4];
    if c > '\u{7f}' && !UNPRINTABLE_CHAR.is_match(c.encode_utf8(&mut buffer)) {
        return out.write_char(c);
    }
    match u32::from(c) {
        n @ 0..=0xff => write!(out, "\\x{n:02x}"),
        n @ 0x100..=0xffff => write!(out, "\\u{n:04x}"),
        n => write!(out, "\\U{n:08x}"),
    }
}

/// Formats a float like Python's `repr`: the shortest digits that parse to the same value.
///
/// Outside 1 e-4..1 e16 the text has an exponent, such as `1 e+16` and `1 e-05`. The text always has a
/// point or an exponent.
pub fn python_repr_of_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Returns whether Python's `str.strip()` removes the character.
pub fn is_python_whitespace(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_are_formatted_as_in_python_repr() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (2.5, "2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (5e-324, "5e-324"),
            (9.9e-5, "9.9e-05"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(python_repr_of_float(value), text);
        }
    }

    #[test]
    fn strings_choose_quotes_and_escapes_as_python_does() {
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\nb\\", "'a\\nb\\\\'"),
            ("é\u{a0}\u{200b}\u{1f600}\u{7f}", "'é\\xa0\\u200b\u{1f600}\\x7f'"),
        ];
        for (text, repr) in cases {
            assert_eq!(python_repr_of_str(text), repr);
        }
    }

    #[test]
    fn nested_containers_match_python_repr() {
        let value = json!({"a": [1, 2.0, null, true], "b": {"c": "d"}});
        assert_eq!(python_repr(&value), "{'a': [1, 2.0, None, True], 'b': {'c': 'd'}}");
    }
}
