//! JSON text, written straight into a buffer: compact, non-ASCII as it is, the escapes of
//! Python's `json` and pydantic.

use std::fmt::Write;

/// Appends `text` as the inside of a JSON string.
pub(super) fn escape(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest
        .bytes()
        .position(|b| b < 0x20 || b == b'"' || b == b'\\')
    {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            control => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{control:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
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

/// Appends any JSON value.
pub(super) fn value(out: &mut String, value: &serde_json::Value) {
    // A Value always serialises.
    out.push_str(&serde_json::to_string(value).unwrap_or_default());
}

/// The text that Python's `json.dumps` makes of a value: blanks after `,` and `:`, ASCII only.
pub(super) fn dumps(value: &serde_json::Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    // A Value always serialises, and what the formatter writes is ASCII.
    let _ = serde::Serialize::serialize(value, &mut serializer);
    String::from_utf8(bytes).unwrap_or_default()
}

struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
    ) -> std::io::Result<()> {
        out.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> std::io::Result<()> {
        let mut units = [0; 2];
        for c in fragment.chars() {
            if c.is_ascii() {
                out.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut units) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn dumps_spells_as_python_does() {
        let value = serde_json::json!({"a": [1, "é\"😀"], "b": {}});
        let text = r#"{"a": [1, "\u00e9\"\ud83d\ude00"], "b": {}}"#;
        assert_eq!(super::dumps(&value), text);
    }
}
