//! `loads` of the Python package `orjson`.
//!
//! It accepts strict JSON only, turns integers beyond 64 bits into floats, and has its own error
//! messages. [`orjson_loads`] uses `serde_json`, and for texts that it refuses a scanner with the
//! messages of `orjson`.
//!
//! **Source:** answers of orjson 3.11 (yyjson) to the texts in the test below.

use serde_json::{Map, Value};

/// Maximum nesting of arrays and objects in a JSON text.
const MAX_DEPTH: usize = 1024;

const END: &str = "unexpected end of data";
const NO_VALUE: &str = "unexpected character, expected a JSON value";

/// A `JSONDecodeError` raised by Python's `orjson`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrjsonLoadsError {
    /// Message of Python's exception, without the position.
    pub message: &'static str,
    /// Position of the error in the JSON text, in characters.
    pub position: usize,
}

/// Parses a JSON text like `orjson.loads`. A repeated key keeps its first position and its last
/// value.
///
/// # Errors
/// [`OrjsonLoadsError`] if `orjson` rejects the text.
pub fn orjson_loads(body: &[u8]) -> Result<Value, OrjsonLoadsError> {
    let error = |message, position| Err(OrjsonLoadsError { message, position });
    let Ok(text) = str::from_utf8(body) else {
        return error("str is not valid UTF-8: surrogates not allowed", 0);
    };
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    if text.is_empty() {
        return error("Input is a zero-length, empty document", 0);
    }
    if text.starts_with('\u{feff}') {
        return error("UTF-8 byte order mark (BOM) is not supported", 0);
    }
    let mut scanner = OrjsonScanner { text, at: 0 };
    scanner.parse_document().map_err(|Refusal(message, at)| {
        let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
        let is_first_byte = |byte: &&u8| !(0x80..0xc0).contains(*byte);
        OrjsonLoadsError { message, position: before.iter().filter(is_first_byte).count() }
    })
}

/// Error message of the JSON scanner, with the error's position in bytes.
struct Refusal(&'static str, usize);

type Scanned<T> = Result<T, Refusal>;

struct OrjsonScanner<'t> {
    text: &'t str,
    /// Position of the scanner in the JSON text, in bytes.
    at: usize,
}

impl OrjsonScanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) -> Option<u8> {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.peek()
    }

    /// Returns the error `message` at the next character of the JSON text, or orjson's end-of-input
    /// error if no character is left.
    fn refuse<T>(&self, message: &'static str) -> Scanned<T> {
        let message = if self.peek().is_none() { END } else { message };
        Err(Refusal(message, self.at))
    }

    fn parse_document(&mut self) -> Scanned<Value> {
        if self.skip_blanks().is_none() {
            return Err(Refusal("input data is empty", 0));
        }
        let value = self.parse_value(0)?;
        match self.skip_blanks() {
            None => Ok(value),
            Some(_) => self.refuse("unexpected content after document"),
        }
    }

    fn parse_value(&mut self, depth: usize) -> Scanned<Value> {
        match self.skip_blanks() {
            Some(b'{' | b'[') if depth == MAX_DEPTH => {
                Err(Refusal("depth limit exceeded", self.at + 1))
            }
            Some(b'{') => self.parse_object(depth + 1),
            Some(b'[') => self.parse_array(depth + 1),
            Some(b'"') => self.parse_string().map(Value::String),
            Some(b't') => self.parse_literal("true", "invalid literal, expected 'true'", true),
            Some(b'f') => self.parse_literal("false", "invalid literal, expected 'false'", false),
            Some(b'n') => self.parse_literal("null", "invalid literal, expected 'null'", ()),
            Some(b'-' | b'+' | b'.' | b'0'..=b'9') => self.parse_number(),
            _ => self.refuse(NO_VALUE),
        }
    }

    fn parse_array(&mut self, depth: usize) -> Scanned<Value> {
        let mut items = Vec::new();
        self.at += 1;
        if self.skip_blanks() == Some(b']') {
            self.at += 1;
            return Ok(items.into());
        }
        loop {
            items.push(self.parse_value(depth)?);
            if !self.parse_comma(b']', "unexpected character, expected ',' or ']'")? {
                return Ok(items.into());
            }
        }
    }

    fn parse_object(&mut self, depth: usize) -> Scanned<Value> {
        let mut members = Map::new();
        self.at += 1;
        if self.skip_blanks() == Some(b'}') {
            self.at += 1;
            return Ok(members.into());
        }
        loop {
            if self.skip_blanks() != Some(b'"') {
                return self.refuse("unexpected character, expected a string key");
            }
            let key = self.parse_string()?;
            if self.skip_blanks() != Some(b':') {
                return self.refuse("unexpected character, expected ':' after key");
            }
            self.at += 1;
            members.insert(key, self.parse_value(depth)?);
            if !self.parse_comma(b'}', "unexpected character, expected ',' or '}'")? {
                return Ok(members.into());
            }
        }
    }

    /// Reads the comma before a further element of a JSON array or object, or the bracket after the
    /// last element.
    fn parse_comma(&mut self, bracket: u8, message: &'static str) -> Scanned<bool> {
        match self.skip_blanks() {
            Some(next) if next == bracket => {
                self.at += 1;
                Ok(false)
            }
            Some(b',') => {
                let comma = self.at;
                self.at += 1;
                match self.skip_blanks() == Some(bracket) {
                    true => Err(Refusal("trailing comma is not allowed", comma)),
                    false => Ok(true),
                }
            }
            _ => self.refuse(message),
        }
    }

    fn parse_literal<T: Into<Value>>(
        &mut self,
        literal: &str,
        message: &'static str,
        value: T,
    ) -> Scanned<Value> {
        let rest = &self.text[self.at..];
        if rest.starts_with(literal) {
            self.at += literal.len();
            return Ok(value.into());
        }
        match literal.starts_with(rest) {
            true => Err(Refusal(END, self.text.len())),
            false => self.refuse(message),
        }
    }

    fn parse_number(&mut self) -> Scanned<Value> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let first = self.at;
        self.parse_digits("no digit after sign")?;
        if self.text[first..].starts_with('0') && self.at > first + 1 {
            return Err(Refusal("number with leading zero is not allowed", first));
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.parse_digits("no digit after decimal point")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.parse_digits("no digit after exponent sign")?;
        }
        serde_json::from_str(&self.text[start..self.at])
            .map_err(|_| Refusal("number is infinity when parsed as double", start))
    }

    fn parse_digits(&mut self, message: &'static str) -> Scanned<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { self.refuse(message) } else { Ok(()) }
    }

    fn parse_string(&mut self) -> Scanned<String> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.check_escape()?,
                Some(0..0x20) => return self.refuse("unexpected control character in string"),
                Some(_) => self.at += 1,
                None => return self.refuse(END),
            }
        }
        self.at += 1;
        // The loop accepts what JSON accepts.
        serde_json::from_str(&self.text[start..self.at]).map_err(|_| Refusal(NO_VALUE, start))
    }

    fn check_escape(&mut self) -> Scanned<()> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                return Ok(());
            }
            Some(b'u') => self.at += 1,
            Some(_) => return Err(Refusal("invalid escaped sequence in string", start)),
            None => return self.refuse(END),
        }
        match self.parse_hex(start)? {
            0xdc00..0xe000 => return Err(Refusal("invalid high surrogate in string", start)),
            0xd800..0xdc00 => {}
            _ => return Ok(()),
        }
        if !self.text[self.at..].starts_with("\\u") {
            return Err(Refusal("no low surrogate in string", start));
        }
        self.at += 2;
        match self.parse_hex(start)? {
            0xdc00..0xe000 => Ok(()),
            _ => Err(Refusal("invalid low surrogate in string", start)),
        }
    }

    /// Reads four hexadecimal digits of the escape that begins at `start`.
    fn parse_hex(&mut self, start: usize) -> Scanned<u32> {
        let mut code = 0;
        for _ in 0..4 {
            let Some(byte) = self.peek() else { return self.refuse(END) };
            let Some(digit) = char::from(byte).to_digit(16) else {
                return Err(Refusal("invalid escaped sequence in string", start));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refusals_have_the_words_and_positions_of_orjson() {
        let deep = "[".repeat(MAX_DEPTH + 1);
        for (text, message, position) in [
            ("", "Input is a zero-length, empty document", 0),
            (" ", "input data is empty", 0),
            ("{", END, 1),
            ("{\"a\":1,", END, 7),
            ("{\"a\":1,}", "trailing comma is not allowed", 6),
            ("[1,]", "trailing comma is not allowed", 2),
            ("[1 2]", "unexpected character, expected ',' or ']'", 3),
            ("{\"é\" 1}", "unexpected character, expected ':' after key", 5),
            ("{'a':1}", "unexpected character, expected a string key", 1),
            ("{\"a\":1 \"b\":2}", "unexpected character, expected ',' or '}'", 7),
            ("{\"a\":1} x", "unexpected content after document", 8),
            ("nul", END, 3),
            ("[nul]", "invalid literal, expected 'null'", 1),
            ("NaN", NO_VALUE, 0),
            ("[,1]", NO_VALUE, 1),
            ("-", END, 1),
            ("-Infinity", "no digit after sign", 1),
            (".5", "no digit after sign", 0),
            ("-01", "number with leading zero is not allowed", 1),
            ("[1.]", "no digit after decimal point", 3),
            ("1e+", END, 3),
            ("1ex", "no digit after exponent sign", 2),
            ("-1e400", "number is infinity when parsed as double", 0),
            ("\"abc", END, 4),
            ("\"a\nb\"", "unexpected control character in string", 2),
            ("\"\\x\"", "invalid escaped sequence in string", 1),
            ("\"\\u12\"", "invalid escaped sequence in string", 1),
            ("\"\\u", END, 3),
            ("\"\\ud800x\"", "no low surrogate in string", 1),
            ("\"\\ud800\\u0041\"", "invalid low surrogate in string", 1),
            ("\"\\udc00\"", "invalid high surrogate in string", 1),
            ("\u{feff}{}", "UTF-8 byte order mark (BOM) is not supported", 0),
            (&deep, "depth limit exceeded", MAX_DEPTH + 1),
        ] {
            let expected = OrjsonLoadsError { message, position };
            assert_eq!(orjson_loads(text.as_bytes()), Err(expected), "{text}");
        }
        let message = "str is not valid UTF-8: surrogates not allowed";
        assert_eq!(orjson_loads(b"\"\xff\""), Err(OrjsonLoadsError { message, position: 0 }));
    }

    #[test]
    fn deep_texts_and_large_integers_are_read() {
        let deep = format!("{}1e5,true,\"\\ud83d\\ude00\"{}", "[".repeat(300), "]".repeat(300));
        let mut value = orjson_loads(deep.as_bytes()).unwrap();
        for _ in 0..299 {
            value = value[0].take();
        }
        assert_eq!(value, json!([1e5, true, "😀"]));
        assert_eq!(orjson_loads(b"18446744073709551616").unwrap(), json!(18446744073709551616.0));
        assert_eq!(
            orjson_loads(b"{\"a\":1,\"b\":2,\"a\":3}").unwrap().to_string(),
            r#"{"a":3,"b":2}"#
        );
    }
}
