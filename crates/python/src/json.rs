//! Python's `json.dumps`, for JSON values and for strings.

use std::fmt::Write;

use serde_json::Value;

use crate::repr::repr_float;

/// Formats a JSON value like `json.dumps` with `ensure_ascii=True`, the default: a space after each
/// comma and colon.
///
/// Numbers are formatted by serde_json.
pub fn dumps(value: &Value) -> String {
    let mut out = String::with_capacity(128);
    push_json(&mut out, value);
    out
}

fn push_json(out: &mut String, value: &Value) {
    let string = |out: &mut String, text: &str| {
        out.push('"');
        push_escaped_ascii(out, text);
        out.push('"');
    };
    match value {
        Value::String(text) => string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                push_json(out, item);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (key, item)) in members.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                string(out, key);
                out.push_str(": ");
                push_json(out, item);
            }
            out.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            // Writing to a String cannot fail.
            let _ = write!(out, "{value}");
        }
    }
}

fn needs_escape(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// Returns whether [`push_escaped_unicode`] changes the text; most texts contain no special character.
pub fn needs_json_escape(text: &str) -> bool {
    // Without an early exit the loop is vectorized.
    text.bytes().fold(false, |any, b| any | needs_escape(b))
}

/// Appends `text` as the content of a JSON string with `ensure_ascii=False`.
pub fn push_escaped_unicode(out: &mut String, text: &str) {
    if !needs_json_escape(text) {
        return out.push_str(text);
    }
    let mut rest = text;
    while let Some(at) = rest.bytes().position(needs_escape) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            control => push_u_escape(out, control.into()),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// Appends `text` as the content of a JSON string with `ensure_ascii=True`.
pub fn push_escaped_ascii(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| *c >= '\x7f') {
        push_escaped_unicode(out, &rest[..at]);
        for unit in c.encode_utf16(&mut [0; 2]) {
            push_u_escape(out, *unit);
        }
        rest = &rest[at + c.len_utf8()..];
    }
    push_escaped_unicode(out, rest);
}

fn push_u_escape(out: &mut String, unit: u16) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\\u{unit:04x}");
}

/// Formats a float like `json.dumps`, including NaN and infinities.
pub fn format_json_float(value: f64) -> String {
    if value.is_finite() {
        repr_float(value)
    } else if value.is_nan() {
        "NaN".to_owned()
    } else {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}Infinity")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dumps_formats_as_python() {
        let value = json!({"a": [1, 2.5, "é\"😀\u{7f}\u{1}\n"], "b": {}, "c": null, "d": [true]});
        assert_eq!(
            dumps(&value),
            r#"{"a": [1, 2.5, "\u00e9\"\ud83d\ude00\u007f\u0001\n"], "b": {}, "c": null, "d": [true]}"#
        );
    }

    #[test]
    fn dumps_formats_nan_and_infinity() {
        let values = [1.0, 1e22, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        assert_eq!(values.map(format_json_float), ["1.0", "1e+22", "NaN", "Infinity", "-Infinity"]);
    }
}
