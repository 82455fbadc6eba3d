//! Python's `json.loads`.
//!
//! It accepts more than JSON (NaN, infinities, integers of any length, about a thousand levels of
//! nesting) and has its own error messages. [`loads`] uses `serde_json` for the common subset, and
//! else a scanner that follows CPython's `_json.c`.
//!
//! **Source:** CPython 3.11/3.12 `Modules/_json.c`, `Lib/json/decoder.py`, `Lib/json/__init__.py`
//! (`detect_encoding`).

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::json::{json_of_number_text, json_of_python_float, json_of_python_int};

/// Maximum nesting depth of arrays and objects in a JSON text.
///
/// CPython fails at its recursion limit of 1000 frames, of which the vLLM server's own stack uses
/// some.
const MAX_DEPTH: usize = 960;

const MAX_INT_DIGITS: usize = 4300;

/// Number of digits from which an integer in a JSON text may exceed 64 bits.
const MIN_BIGINT_DIGITS: usize = 19;

/// Error of Python's `json.loads`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonLoadsError {
    /// The error is a `json.JSONDecodeError`, with message and position.
    Decode {
        /// Message of Python's exception, without the position.
        message: &'static str,
        /// Position of the error in the JSON text, in characters.
        position: usize,
    },
    /// Any error except `json.JSONDecodeError`: not UTF-8, too deeply nested, or an integer too
    /// long to parse.
    Unreadable,
}

impl JsonLoadsError {
    /// Returns `str()` of Python's exception, with line and column, for routes that quote the
    /// exception.
    pub fn error_message_with_position(&self, body: &[u8]) -> String {
        let Self::Decode { message, position } = self else {
            return String::new();
        };
        let text = decode_json_text(body).unwrap_or_default();
        let before: Vec<char> = text.chars().take(*position).collect();
        let line = before.iter().filter(|c| **c == '\n').count() + 1;
        let column = before.iter().rev().take_while(|c| **c != '\n').count() + 1;
        format!("{message}: line {line} column {column} (char {position})")
    }
}

/// Parses a JSON body like Python's `json.loads`.
///
/// A repeated key keeps its first position and its last value. Numbers that JSON lacks become
/// [`json_of_number_text`], an unpaired surrogate becomes U+FFFD.
///
/// # Errors
/// [`JsonLoadsError`] if Python rejects the body.
pub fn loads(body: &[u8]) -> Result<Value, JsonLoadsError> {
    loads_replacing_unpaired_surrogates(body, char::REPLACEMENT_CHARACTER)
}

/// Parses a JSON body like [`loads`], with another character for unpaired surrogates.
///
/// # Errors
/// [`JsonLoadsError`] if Python rejects the body.
pub fn loads_replacing_unpaired_surrogates(
    body: &[u8],
    replacement: char,
) -> Result<Value, JsonLoadsError> {
    if parses_numbers_like_serde_json(body)
        && let Ok(text) = str::from_utf8(body)
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    let text = decode_json_text(body)?;
    let chars: Vec<char> = text.chars().collect();
    let mut scanner = JsonScanner { chars: &chars, at: 0, unpaired: replacement };
    scanner.skip_blanks();
    let value = scanner.parse_value(0)?;
    scanner.skip_blanks();
    if scanner.at < chars.len() {
        return Err(JsonLoadsError::Decode { message: "Extra data", position: scanner.at });
    }
    Ok(value)
}

/// Returns whether `serde_json` parses all numbers of a body like [`loads`]: none is long enough to
/// be rounded.
pub fn parses_numbers_like_serde_json(body: &[u8]) -> bool {
    // A long run of digits covers one of these positions.
    let places = (MIN_BIGINT_DIGITS - 1..body.len()).step_by(MIN_BIGINT_DIGITS);
    places.into_iter().all(|at| {
        let run = |bytes: &mut dyn Iterator<Item = &u8>| {
            let digits = bytes.take(MIN_BIGINT_DIGITS);
            digits.take_while(|byte| byte.is_ascii_digit()).count()
        };
        !body[at].is_ascii_digit()
            || run(&mut body[..at].iter().rev()) + run(&mut body[at..].iter()) < MIN_BIGINT_DIGITS
    })
}

/// Decodes the text of a JSON body: UTF-8, or UTF-16/32 detected by byte order marks and zeros at
/// its start.
fn decode_json_text(body: &[u8]) -> Result<Cow<'_, str>, JsonLoadsError> {
    match body {
        [0xef, 0xbb, 0xbf, rest @ ..] => decode_utf8(rest),
        [0, 0, 0xfe, 0xff, rest @ ..] => decode_utf32(rest, u32::from_be_bytes),
        [0xff, 0xfe, 0, 0, rest @ ..] => decode_utf32(rest, u32::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => decode_utf16(rest, u16::from_be_bytes),
        [0xff, 0xfe, rest @ ..] => decode_utf16(rest, u16::from_le_bytes),
        [0, 0, _, _, ..] => decode_utf32(body, u32::from_be_bytes),
        [0, _, _, _, ..] => decode_utf16(body, u16::from_be_bytes),
        [_, 0, 0, 0, ..] => decode_utf32(body, u32::from_le_bytes),
        [_, 0, _, _, ..] => decode_utf16(body, u16::from_le_bytes),
        [0, _] => decode_utf16(body, u16::from_be_bytes),
        [_, 0] => decode_utf16(body, u16::from_le_bytes),
        _ => decode_utf8(body),
    }
}

fn decode_utf8(bytes: &[u8]) -> Result<Cow<'_, str>, JsonLoadsError> {
    std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| JsonLoadsError::Unreadable)
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Cow<'_, str>, JsonLoadsError> {
    let (units, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(JsonLoadsError::Unreadable);
    }
    char::decode_utf16(units.iter().map(|u| unit(*u)))
        .collect::<Result<String, _>>()
        .map(Cow::Owned)
        .map_err(|_| JsonLoadsError::Unreadable)
}

fn decode_utf32(bytes: &[u8], unit: fn([u8; 4]) -> u32) -> Result<Cow<'_, str>, JsonLoadsError> {
    let (units, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(JsonLoadsError::Unreadable);
    }
    units
        .iter()
        .map(|u| char::from_u32(unit(*u)))
        .collect::<Option<String>>()
        .map(Cow::Owned)
        .ok_or(JsonLoadsError::Unreadable)
}

/// JSON scanner modelled on CPython's `_json.c`; positions are in characters, as in Python.
struct JsonScanner<'a> {
    chars: &'a [char],
    at: usize,
    /// Replacement character for an unpaired surrogate in JSON strings.
    unpaired: char,
}

impl JsonScanner<'_> {
    fn peek_char(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek_char(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    fn error_here<T>(&self, message: &'static str) -> Result<T, JsonLoadsError> {
        Err(JsonLoadsError::Decode { message, position: self.at })
    }

    fn take_literal(&mut self, word: &str) -> bool {
        let found = word.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if found {
            self.at += word.len();
        }
        found
    }

    /// Parses one JSON value at the current position, like `scan_once`.
    fn parse_value(&mut self, depth: usize) -> Result<Value, JsonLoadsError> {
        match self.peek_char() {
            Some('"') => self.parse_string().map(Value::String),
            Some('{' | '[') if depth >= MAX_DEPTH => Err(JsonLoadsError::Unreadable),
            Some('{') => self.parse_object(depth + 1),
            Some('[') => self.parse_array(depth + 1),
            Some('n') if self.take_literal("null") => Ok(Value::Null),
            Some('t') if self.take_literal("true") => Ok(Value::Bool(true)),
            Some('f') if self.take_literal("false") => Ok(Value::Bool(false)),
            Some('N') if self.take_literal("NaN") => Ok(json_of_number_text("NaN")),
            Some('I') if self.take_literal("Infinity") => Ok(json_of_number_text("Infinity")),
            Some('-') if self.take_literal("-Infinity") => Ok(json_of_number_text("-Infinity")),
            _ => self.parse_number(),
        }
    }

    fn parse_object(&mut self, depth: usize) -> Result<Value, JsonLoadsError> {
        let mut map = Map::new();
        let mut has_more = self.begins_with_item('}');
        while has_more {
            if self.peek_char() != Some('"') {
                return self.error_here("Expecting property name enclosed in double quotes");
            }
            let key = self.parse_string()?;
            self.skip_blanks();
            if self.peek_char() != Some(':') {
                return self.error_here("Expecting ':' delimiter");
            }
            self.at += 1;
            self.skip_blanks();
            let value = self.parse_value(depth)?;
            map.insert(key, value);
            has_more = self.has_further_item('}')?;
        }
        Ok(Value::Object(map))
    }

    fn parse_array(&mut self, depth: usize) -> Result<Value, JsonLoadsError> {
        let mut items = Vec::new();
        let mut has_more = self.begins_with_item(']');
        while has_more {
            items.push(self.parse_value(depth)?);
            has_more = self.has_further_item(']')?;
        }
        Ok(Value::Array(items))
    }

    /// Skips the opening bracket of an array or object, and the `closing` one if it has no items;
    /// returns whether it has any.
    fn begins_with_item(&mut self, closing: char) -> bool {
        self.at += 1;
        self.skip_blanks();
        let is_empty = self.peek_char() == Some(closing);
        self.at += usize::from(is_empty);
        !is_empty
    }

    /// Skips the comma or the `closing` bracket after an item; returns whether another item follows.
    fn has_further_item(&mut self, closing: char) -> Result<bool, JsonLoadsError> {
        self.skip_blanks();
        let next = self.peek_char();
        if next != Some(closing) && next != Some(',') {
            return self.error_here("Expecting ',' delimiter");
        }
        self.at += 1;
        if next == Some(',') {
            self.skip_blanks();
        }
        Ok(next == Some(','))
    }

    /// Parses a JSON string after its opening quote, like `scanstring_unicode`.
    fn parse_string(&mut self) -> Result<String, JsonLoadsError> {
        let begin = self.at;
        let unterminated =
            JsonLoadsError::Decode { message: "Unterminated string starting at", position: begin };
        let mut out = String::new();
        self.at += 1;
        loop {
            match self.peek_char() {
                None => return Err(unterminated),
                Some('"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some('\\') => {
                    self.at += 1;
                    let Some(escape) = self.peek_char() else {
                        return Err(unterminated);
                    };
                    out.push(self.parse_escape(escape)?);
                }
                Some('\0'..='\u{1f}') => return self.error_here("Invalid control character at"),
                Some(c) => {
                    out.push(c);
                    self.at += 1;
                }
            }
        }
    }

    fn parse_escape(&mut self, letter: char) -> Result<char, JsonLoadsError> {
        let plain = match letter {
            '"' | '\\' | '/' => letter,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => return self.unicode_escape(),
            _ => {
                self.at -= 1;
                return self.error_here("Invalid \\escape");
            }
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char, JsonLoadsError> {
        let digits = self.at + 1;
        let end = digits + 4;
        if end >= self.chars.len() {
            return self.error_here("Invalid \\uXXXX escape");
        }
        let invalid = JsonLoadsError::Decode {
            message: "Invalid \\uXXXX escape",
            position: end.saturating_sub(5),
        };
        let first = self.parse_hex4(digits).ok_or(invalid)?;
        self.at = end;
        let pair = (0xd800..0xdc00).contains(&first)
            && end + 6 < self.chars.len()
            && self.chars[end] == '\\'
            && self.chars[end + 1] == 'u';
        if pair {
            let invalid =
                JsonLoadsError::Decode { message: "Invalid \\uXXXX escape", position: end + 1 };
            let second = self.parse_hex4(end + 2).ok_or(invalid)?;
            if (0xdc00..0xe000).contains(&second) {
                self.at = end + 6;
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        Ok(char::from_u32(first).unwrap_or(self.unpaired))
    }

    fn parse_hex4(&self, start: usize) -> Option<u32> {
        self.chars
            .get(start..start + 4)?
            .iter()
            .try_fold(0, |code, c| Some(code * 16 + c.to_digit(16)?))
    }

    /// Parses a JSON integer, or a float if a fraction or an exponent follows, like
    /// `_match_number_unicode`.
    fn parse_number(&mut self) -> Result<Value, JsonLoadsError> {
        let start = self.at;
        let mut at = start;
        let digit = |i: usize| self.chars.get(i).is_some_and(char::is_ascii_digit);
        let after_digits = |i: usize| (i..).find(|&i| !digit(i)).unwrap_or(i);
        if self.chars.get(at) == Some(&'-') {
            at += 1;
        }
        if !digit(at) {
            return self.error_here("Expecting value");
        }
        at = if self.chars[at] == '0' { at + 1 } else { after_digits(at) };
        let whole = at;
        if self.chars.get(at) == Some(&'.') && digit(at + 1) {
            at = after_digits(at + 1);
        }
        if matches!(self.chars.get(at), Some('e' | 'E')) {
            let mut exponent = at + 1;
            if matches!(self.chars.get(exponent), Some('+' | '-')) {
                exponent += 1;
            }
            if digit(exponent) {
                at = after_digits(exponent);
            }
        }
        let text: String = self.chars[start..at].iter().collect();
        self.at = at;
        if at > whole {
            return Ok(json_of_python_float(text.parse().unwrap_or(f64::NAN)));
        }
        if text.trim_start_matches('-').len() > MAX_INT_DIGITS {
            return Err(JsonLoadsError::Unreadable);
        }
        Ok(text.parse().map_or_else(|_| json_of_number_text(&text), json_of_python_int))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn error_text_and_position(body: &str) -> (&'static str, usize) {
        match loads(body.as_bytes()) {
            Err(JsonLoadsError::Decode { message, position }) => (message, position),
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn json_errors_match_python_text_and_position() {
        let name = "Expecting property name enclosed in double quotes";
        let cases = [
            ("", "Expecting value", 0),
            ("  ", "Expecting value", 2),
            ("{", name, 1),
            ("{bad", name, 1),
            ("{\"a\":1,}", name, 7),
            ("{\"a\" 1}", "Expecting ':' delimiter", 5),
            ("{\"a\":}", "Expecting value", 5),
            ("{\"a\":1 \"b\"}", "Expecting ',' delimiter", 7),
            ("[", "Expecting value", 1),
            ("[1,]", "Expecting value", 3),
            ("[1 2]", "Expecting ',' delimiter", 3),
            ("{} x", "Extra data", 3),
            ("01", "Extra data", 1),
            ("1.", "Extra data", 1),
            ("-", "Expecting value", 0),
            ("\"abc", "Unterminated string starting at", 0),
            ("[\"é\", \"a\nb\"]", "Invalid control character at", 8),
            ("\"\\x\"", "Invalid \\escape", 1),
            ("\"\\u12\"", "Invalid \\uXXXX escape", 2),
            ("\"\\u12zz\"", "Invalid \\uXXXX escape", 2),
            ("nul", "Expecting value", 0),
        ];
        for (body, message, position) in cases {
            assert_eq!(error_text_and_position(body), (message, position), "{body}");
        }
    }

    #[test]
    fn accepts_python_extensions_of_json() {
        let value = loads(br#"{"a":NaN,"b":-Infinity,"c":1180591620717411303424,"d":1e999}"#);
        assert_eq!(
            crate::python_repr(&value.expect("accepted")),
            "{'a': nan, 'b': -inf, 'c': 1180591620717411303424, 'd': inf}"
        );
        assert_eq!(loads(b"\"\\ud83d\\ude00 \\ud800\""), Ok(json!("\u{1f600} \u{fffd}")));
        assert_eq!(loads(b"\xef\xbb\xbf{}"), Ok(json!({})));
        assert_eq!(loads(b"[\0]\0"), Ok(json!([])));
        assert_eq!(loads(b"{\"a\":1,\"b\":2,\"a\":3}"), Ok(json!({"a": 3, "b": 2})));
    }

    #[test]
    fn undecodable_input_is_unicode_error() {
        assert_eq!(loads(b"\"\xff\""), Err(JsonLoadsError::Unreadable));
        assert_eq!(loads("9".repeat(5000).as_bytes()), Err(JsonLoadsError::Unreadable));
        assert_eq!(loads("[".repeat(100_000).as_bytes()), Err(JsonLoadsError::Unreadable));
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert!(loads(deep.as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn long_number_is_detected_at_any_offset(text in "[0-9,]{0,90}|[0-9]{15,22}(,[0-9]{15,22}){0,4}") {
            let longest = text.split(',').map(str::len).max().unwrap_or(0);
            prop_assert_eq!(parses_numbers_like_serde_json(text.as_bytes()), longest < MIN_BIGINT_DIGITS);
        }

        #[test]
        fn the_scanner_agrees_with_serde_json(text in r#"[\[\]{}",:0-9a-eE.\\+\- ntruflsNI]{0,24}"#) {
            // Python parses -0 as the integer 0, serde_json as a float.
            prop_assume!(!text.contains("-0"));
            let chars: Vec<char> = text.chars().collect();
            let mut scanner =
                JsonScanner { chars: &chars, at: 0, unpaired: char::REPLACEMENT_CHARACTER };
            scanner.skip_blanks();
            let ours = scanner.parse_value(0).ok().filter(|_| {
                scanner.skip_blanks();
                scanner.at == chars.len()
            });
            if let Ok(theirs) = serde_json::from_str::<Value>(&text) {
                prop_assert_eq!(ours, Some(theirs));
            }
        }
    }
}
