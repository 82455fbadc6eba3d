//! JSON text, written straight into a buffer: compact, non-ASCII as it is, the escapes of
//! Python's `json` and pydantic.

pub(super) use vllm_sim_python::json::{dumps, escape};

/// Tells whether members that are null are written: streams leave them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nulls {
    Shown,
    LeftOut,
}

/// Appends `text` as a JSON string.
pub(super) fn string(out: &mut String, text: &str) {
    out.push('"');
    escape(out, text);
    out.push('"');
}

/// Appends a JSON string or `null`.
pub(super) fn optional(out: &mut String, text: Option<&str>) {
    match text {
        Some(text) => string(out, text),
        None => out.push_str("null"),
    }
}

/// Appends a number.
pub(super) fn int(out: &mut String, number: impl itoa::Integer) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// Appends numbers as a list.
pub(super) fn ints(out: &mut String, numbers: impl IntoIterator<Item = u32>) {
    out.push('[');
    for (index, number) in numbers.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        int(out, number);
    }
    out.push(']');
}

/// Appends a float the way Python prints it: the shortest text that reads back, `1.0` not `1`.
pub(super) fn float(out: &mut String, number: f64) {
    if number.is_finite() {
        let mut buffer = ryu::Buffer::new();
        let text = buffer.format_finite(number);
        out.push_str(text);
    } else {
        out.push_str("null");
    }
}

/// Appends a 32-bit float as numpy prints it: the shortest text that reads back as one.
pub(super) fn float32(out: &mut String, number: f32) {
    if number.is_finite() {
        out.push_str(ryu::Buffer::new().format_finite(number));
    } else {
        out.push_str("null");
    }
}

/// Appends any JSON value.
pub(super) fn value(out: &mut String, value: &serde_json::Value) {
    // A Value always serialises.
    out.push_str(&serde_json::to_string(value).unwrap_or_default());
}
