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
use vllm_sim_python::{PythonValue, python_repr_of_float, write_python_repr_of_str};

pub(super) type PythonDictFields = IndexMap<Cow<'static, str>, Value, foldhash::fast::RandomState>;

#[derive(Debug, Default)]
pub(super) struct PythonDict(pub(super) PythonDictFields);

/// Python list, or a tuple as in `dict.items()`.
#[derive(Debug)]
struct PythonSequence {
    items: Vec<Value>,
    is_tuple: bool,
}

impl Object for PythonSequence {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.items.iter().cloned();
        if !self.is_tuple {
            return write_python_list(f, items);
        }
        f.write_char('(')?;
        write_comma_separated(f, items)?;
        f.write_str(if self.items.len() == 1 { ",)" } else { ")" })
    }
}

impl Object for PythonDict {
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
            Box::new(this.0.iter().map(|(key, value)| (Value::from(key.as_ref()), value.clone())))
        })
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_python_dict(
            f,
            self.0.iter().map(|(key, value)| (Value::from(key.as_ref()), value.clone())),
        )
    }
}

pub(super) fn python_list(items: Vec<Value>) -> Value {
    Value::from_object(PythonSequence { items, is_tuple: false })
}

/// Returns a Python tuple of two template values, as in `dict.items()`.
pub(super) fn python_tuple_pair(first: Value, second: Value) -> Value {
    Value::from_object(PythonSequence { items: vec![first, second], is_tuple: true })
}

pub(super) fn python_dict(fields: PythonDictFields) -> Value {
    Value::from_object(PythonDict(fields))
}

pub(super) fn python_dict_fields(object: &serde_json::Map<String, Json>) -> PythonDictFields {
    object.iter().map(|(key, value)| (Cow::Owned(key.clone()), value_from_json(value))).collect()
}

/// Converts JSON to the template value that Python's `json.loads` returns.
pub(super) fn value_from_json(json: &Json) -> Value {
    match PythonValue::from_json_value(json) {
        PythonValue::None => Value::from(()),
        PythonValue::Bool(flag) => Value::from(flag),
        PythonValue::Int(int) => match (i64::try_from(int), u64::try_from(int)) {
            (Ok(int), _) => Value::from(int),
            (Err(_), Ok(int)) => Value::from(int),
            (Err(_), Err(_)) => Value::from(int),
        },
        // Templates support no number of this size; its digits print alike.
        PythonValue::BigInt(digits) => Value::from(digits),
        PythonValue::Float(number) => Value::from(number),
        PythonValue::Str(text) => Value::from(text),
        PythonValue::List(items) => python_list(items.iter().map(value_from_json).collect()),
        PythonValue::Dict(object) => python_dict(python_dict_fields(object)),
    }
}

pub(super) fn python_str_of(value: &Value) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_python_str(&mut text, value);
    text
}

pub(super) fn write_python_str(out: &mut impl fmt::Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_python_repr(out, value),
    }
}

pub(super) fn write_python_repr(out: &mut impl fmt::Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&python_repr_of_float(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::String => write_python_repr_of_str(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq
            if value
                .downcast_object_ref::<PythonSequence>()
                .is_some_and(|sequence| sequence.is_tuple) =>
        {
            write!(out, "{value}")
        }
        ValueKind::Seq | ValueKind::Iterable => match value.try_iter() {
            Ok(items) => write_python_list(out, items),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::Map => match value.as_object().and_then(|object| object.try_iter_pairs()) {
            Some(pairs) => write_python_dict(out, pairs),
            None => write!(out, "{value}"),
        },
        _ => write!(out, "{value}"),
    }
}

fn write_python_list(out: &mut impl fmt::Write, items: impl Iterator<Item = Value>) -> fmt::Result {
    out.write_char('[')?;
    write_comma_separated(out, items)?;
    out.write_char(']')
}

fn write_comma_separated(
    out: &mut impl fmt::Write,
    items: impl Iterator<Item = Value>,
) -> fmt::Result {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.write_str(", ")?;
        }
        write_python_repr(out, &item)?;
    }
    Ok(())
}

fn write_python_dict(
    out: &mut impl fmt::Write,
    pairs: impl Iterator<Item = (Value, Value)>,
) -> fmt::Result {
    out.write_char('{')?;
    for (index, (key, value)) in pairs.enumerate() {
        if index > 0 {
            out.write_str(", ")?;
        }
        write_python_repr(out, &key)?;
        out.write_str(": ")?;
        write_python_repr(out, &value)?;
    }
    out.write_char('}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn python_containers_print_like_python() {
        let value = value_from_json(&json!({
            "a": [1, 2.0, true, null, "x'y", "q\"'", "tab\t\u{7f}\u{a0}é😀\u{200b}"],
            "b": {}, "c": 1e20, "d": 1e-7, "e": 123456789012345.6, "f": 0.0001
        }));
        assert_eq!(
            python_str_of(&value),
            "{'a': [1, 2.0, True, None, \"x'y\", 'q\"\\'', 'tab\\t\\x7f\\xa0é😀\\u200b'], \
             'b': {}, 'c': 1e+20, 'd': 1e-07, 'e': 123456789012345.6, 'f': 0.0001}"
        );
        assert_eq!(format!("{value}"), python_str_of(&value));
    }
}
