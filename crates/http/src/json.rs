//! Appends JSON text to a buffer: compact, non-ASCII unescaped, with the escapes of Python's `json`
//! and pydantic.

pub(super) use vllm_sim_python::json::{dumps, push_escaped_unicode};

/// Selects whether JSON members that are null are written; streams omit them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NullMembers {
    Shown,
    LeftOut,
}

pub(super) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    push_escaped_unicode(out, text);
    out.push('"');
}

pub(super) fn write_optional_string(out: &mut String, text: Option<&str>) {
    match text {
        Some(text) => write_string(out, text),
        None => out.push_str("null"),
    }
}

pub(super) fn write_int(out: &mut String, number: impl itoa::Integer) {
    out.push_str(itoa::Buffer::new().format(number));
}

pub(super) fn write_int_array(out: &mut String, numbers: impl IntoIterator<Item = u32>) {
    out.push('[');
    for (index, number) in numbers.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_int(out, number);
    }
    out.push(']');
}

/// Appends a float as Python's `json` prints it: the shortest round-trip text, `1.0` instead of
/// `1`.
pub(super) fn write_python_float(out: &mut String, number: f64) {
    if number.is_finite() {
        let mut buffer = ryu::Buffer::new();
        let text = buffer.format_finite(number);
        out.push_str(text);
    } else {
        out.push_str("null");
    }
}

/// Appends a 32-bit float as numpy prints it: the shortest round-trip text.
pub(super) fn write_numpy_float32(out: &mut String, number: f32) {
    if number.is_finite() {
        out.push_str(ryu::Buffer::new().format_finite(number));
    } else {
        out.push_str("null");
    }
}

pub(super) fn write_value(out: &mut String, value: &serde_json::Value) {
    // Serializing a `Value` cannot fail.
    out.push_str(&serde_json::to_string(value).unwrap_or_default());
}
