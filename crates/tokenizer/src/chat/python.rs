//! Values as a Python template sees them: dicts and lists that print like Python's.
//!
//! minijinja prints its own maps as JSON-like debug text. Templates were written for Jinja2,
//! where `{{ tool }}` gives `{'name': 'f'}` and `{{ none }}` gives `None`.

use std::fmt::{self, Write as _};
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, ValueKind};
use regex::Regex;
use serde_json::Value as Json;

/// The members of a dict, in order.
pub(super) type Fields = IndexMap<Arc<str>, Value>;

/// A dict with string keys.
#[derive(Debug, Default)]
pub(super) struct Dict(pub(super) Fields);

/// A list.
#[derive(Debug)]
pub(super) struct List(pub(super) Vec<Value>);

/// A tuple: a list that prints with parentheses.
#[derive(Debug)]
struct Tuple(Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.0.len() == 1 { ",)" } else { ")" };
        f.write_char('(')?;
        write_items(f, self.0.iter().cloned())?;
        f.write_str(comma)
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_str()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_key_value_enumerator(|this| {
            Box::new(
                this.0
                    .iter()
                    .map(|(key, value)| (Value::from(key.clone()), value.clone())),
            )
        })
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_dict(
            f,
            self.0
                .iter()
                .map(|(key, value)| (Value::from(key.clone()), value.clone())),
        )
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0.iter().cloned())
    }
}

/// A list value.
pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(items))
}

/// A pair, as `dict.items()` gives them.
pub(super) fn pair(first: Value, second: Value) -> Value {
    Value::from_object(Tuple(vec![first, second]))
}

/// A dict value.
pub(super) fn dict(fields: Fields) -> Value {
    Value::from_object(Dict(fields))
}

/// The members of a JSON object as template values.
pub(super) fn fields(object: &serde_json::Map<String, Json>) -> Fields {
    object
        .iter()
        .map(|(key, value)| (Arc::from(key.as_str()), from_json(value)))
        .collect()
}

/// A JSON value as the template value that Python's `json.loads` would have given.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Value::from(int),
            (None, Some(int)) => Value::from(int),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => list(items.iter().map(from_json).collect()),
        Json::Object(object) => dict(fields(object)),
    }
}

/// Python's `str(value)`.
pub(super) fn str_of(value: &Value) -> String {
    let mut text = String::new();
    // A String takes whatever is written to it.
    let _ = write_str(&mut text, value);
    text
}

/// Writes Python's `str(value)`.
pub(super) fn write_str(out: &mut impl fmt::Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

/// Writes Python's `repr(value)`.
pub(super) fn write_repr(out: &mut impl fmt::Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&float_repr(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => write!(out, "{value}"),
        ValueKind::Seq | ValueKind::Iterable => match value.try_iter() {
            Ok(items) => write_list(out, items),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::Map => match value.as_object().and_then(|object| object.try_iter_pairs()) {
            Some(pairs) => write_dict(out, pairs),
            None => write!(out, "{value}"),
        },
        _ => write!(out, "{value}"),
    }
}

/// Python's `repr` of a string.
pub(super) fn repr(text: &str) -> String {
    let mut out = String::new();
    // A String takes whatever is written to it.
    let _ = write_str_repr(&mut out, text);
    out
}

fn write_list(out: &mut impl fmt::Write, items: impl Iterator<Item = Value>) -> fmt::Result {
    out.write_char('[')?;
    write_items(out, items)?;
    out.write_char(']')
}

fn write_items(out: &mut impl fmt::Write, items: impl Iterator<Item = Value>) -> fmt::Result {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &item)?;
    }
    Ok(())
}

fn write_dict(
    out: &mut impl fmt::Write,
    pairs: impl Iterator<Item = (Value, Value)>,
) -> fmt::Result {
    out.write_char('{')?;
    for (index, (key, value)) in pairs.enumerate() {
        if index > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &key)?;
        out.write_str(": ")?;
        write_repr(out, &value)?;
    }
    out.write_char('}')
}

/// `repr` of a string: single quotes unless only a double-quoted form avoids escaping.
fn write_str_repr(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            _ if c == quote => write!(out, "\\{c}")?,
            ' '..='~' => out.write_char(c)?,
            _ if is_printable(c) => out.write_char(c)?,
            _ => match u32::from(c) {
                code @ 0..=0xff => write!(out, "\\x{code:02x}")?,
                code @ 0..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.write_char(quote)
}

/// `str.isprintable` of one character beyond ASCII: neither «other» nor a separator.
fn is_printable(c: char) -> bool {
    static HIDDEN: OnceLock<Option<Regex>> = OnceLock::new();
    let hidden = HIDDEN.get_or_init(|| Regex::new(r"^[\p{C}\p{Z}]$").ok());
    let mut buffer = [0; 4];
    !hidden
        .as_ref()
        .is_some_and(|hidden| hidden.is_match(c.encode_utf8(&mut buffer)))
}

/// `repr` of a float: the shortest digits that read back, an exponent from 1e16 and below 1e-4.
pub(super) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let mut text = String::new();
    // A String takes whatever is written to it.
    let _ = write!(text, "{digits}e{sign}{:02}", exponent.abs());
    text
}

/// Whether Python's `str.strip()` takes this character for a blank.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_print_like_python() {
        let value = from_json(&json!({
            "a": [1, 2.0, true, null, "x'y", "q\"'", "tab\t\u{7f}\u{a0}é😀\u{200b}"],
            "b": {}, "c": 1e20, "d": 1e-7, "e": 123456789012345.6, "f": 0.0001
        }));
        assert_eq!(
            str_of(&value),
            "{'a': [1, 2.0, True, None, \"x'y\", 'q\"\\'', 'tab\\t\\x7f\\xa0é😀\\u200b'], \
             'b': {}, 'c': 1e+20, 'd': 1e-07, 'e': 123456789012345.6, 'f': 0.0001}"
        );
        assert_eq!(format!("{value}"), str_of(&value));
    }

    #[test]
    fn floats_switch_to_exponents_where_python_does() {
        let reprs: Vec<String> = [1e15, 1e16, 1.5e16, 1e-4, 9.9e-5, -0.0, 5e-324, 0.1, 1e22]
            .map(float_repr)
            .into();
        assert_eq!(
            reprs,
            [
                "1000000000000000.0",
                "1e+16",
                "1.5e+16",
                "0.0001",
                "9.9e-05",
                "-0.0",
                "5e-324",
                "0.1",
                "1e+22"
            ]
        );
    }
}
