//! Prints JSON as models do: with a space after each comma and colon, like Python's
//! `json.dumps(value, ensure_ascii=False)`.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

struct SpacedJsonFormatter;

impl Formatter for SpacedJsonFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

pub(crate) fn json_to_spaced_text(value: &Value) -> String {
    let mut text = Vec::with_capacity(128);
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, SpacedJsonFormatter));
    // Writing to a vector cannot fail, and a `Value` has only string keys.
    debug_assert!(written.is_ok());
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_commas_and_colons_are_followed_by_a_space() {
        let value = json!({"a": 1, "b": [1, 2.5, "é"], "c": {}, "d": {"e": null}});
        assert_eq!(
            json_to_spaced_text(&value),
            r#"{"a": 1, "b": [1, 2.5, "é"], "c": {}, "d": {"e": null}}"#
        );
    }
}
