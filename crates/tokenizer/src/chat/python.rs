//! Template values that print like Python's dicts and lists.
//!
//! minijinja prints maps as JSON-like debug text. Templates are written for Jinja2, where `{{ tool
//! }}` prints `{'name': 'f'}` and `{{ none }}` prints `None`.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, ValueKind};
use serde_json::Value as Json;
use vllm_sim_python::{Py, repr_float, write_repr_str};

pub(super) type Fields = IndexMap<Cow<'static, str>, Value, foldhash::fast::RandomState>;

#[derive(Debug, Default)]
pub(super) struct Dict(pub(super) Fields);

#[derive(Debug)]
pub(super) struct List(pub(super) Vec<Value>);

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
                    .map(|(key, value)| (Value::from(key.as_ref()), value.clone())),
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
                .map(|(key, value)| (Value::from(key.as_ref()), value.clone())),
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

pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(items))
}

/// Returns a Python tuple of two template values, as in `dict.items()`.
pub(super) fn pair(first: Value, second: Value) -> Value {
    Value::from_object(Tuple(vec![first, second]))
}

pub(super) fn dict(fields: Fields) -> Value {
    Value::from_object(Dict(fields))
}

pub(super) fn fields(object: &serde_json::Map<String, Json>) -> Fields {
    object
        .iter()
        .map(|(key, value)| (Cow::Owned(key.clone()), from_json(value)))
        .collect()
}

/// Converts JSON to the template value that Python's `json.loads` returns.
pub(super) fn from_json(json: &Json) -> Value {
    match Py::of(json) {
        Py::None => Value::from(()),
        Py::Bool(flag) => Value::from(flag),
        Py::Int(int) => match (i64::try_from(int), u64::try_from(int)) {
            (Ok(int), _) => Value::from(int),
            (Err(_), Ok(int)) => Value::from(int),
            (Err(_), Err(_)) => Value::from(int),
        },
        // Templates support no number of this size; its digits print alike.
        Py::BigInt(digits) => Value::from(digits),
        Py::Float(number) => Value::from(number),
        Py::Str(text) => Value::from(text),
        Py::List(items) => list(items.iter().map(from_json).collect()),
        Py::Dict(object) => dict(fields(object)),
    }
}

pub(super) fn str_of(value: &Value) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_str(&mut text, value);
    text
}

pub(super) fn write_str(out: &mut impl fmt::Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

pub(super) fn write_repr(out: &mut impl fmt::Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&repr_float(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::String => write_repr_str(out, value.as_str().unwrap_or_default()),
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
}
