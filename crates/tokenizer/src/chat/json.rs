//! The `tojson` filter of transformers: Python's `json.dumps` without HTML escaping.
//!
//! **Source:** `transformers/utils/chat_template_utils.py`, `tojson`; CPython `json/encoder.py`.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Error, Value};
use vllm_sim_python::json;

use super::args::TemplateFilterArgs;
use super::bounds;
use super::error::invalid_operation;

/// Maximum nesting depth of a value for `tojson`; the limit for JSON in requests is lower.
const MAX_JSON_DEPTH: usize = 500;
/// Maximum length of the indent, and of each separator, of `tojson`, in bytes.
const MAX_SEPARATOR_BYTES: usize = 256;

#[derive(Debug)]
struct JsonStyle {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// Implements the template filter `tojson(ensure_ascii=False, indent=None, separators=None,
/// sort_keys=False)`.
pub(super) fn tojson_filter(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    bounds::charge_nested_value_work(value)?;
    let args = TemplateFilterArgs::new(&args)?;
    let style = JsonStyle::from_args(&args)?;
    args.reject_unknown_args()?;
    let mut out = String::new();
    style.write_value(&mut out, value, 0)?;
    Ok(out)
}

impl JsonStyle {
    fn from_args(args: &TemplateFilterArgs<'_>) -> Result<Self, Error> {
        let ascii = args.flag_arg(0, "ensure_ascii")?;
        let (indent, separators) = (args.value_arg(1, "indent")?, args.value_arg(2, "separators")?);
        let sort_keys = args.flag_arg(3, "sort_keys")?;
        let indent = match indent {
            Some(indent) => Some(match indent.as_str() {
                Some(text) if text.len() > MAX_SEPARATOR_BYTES => {
                    return Err(invalid_operation("indent is too long"));
                }
                Some(text) => text.to_owned(),
                // Python repeats a space by the number, so a negative one results in none.
                None => " ".repeat(i64::try_from(indent)?.clamp(0, 64).try_into().unwrap_or(0)),
            }),
            None => None,
        };
        let (item_separator, key_separator) = match separators {
            Some(pair) => {
                let parts: Vec<String> = pair.try_iter()?.map(|part| part.to_string()).collect();
                if parts.iter().any(|part| part.len() > MAX_SEPARATOR_BYTES) {
                    return Err(invalid_operation("separators are too long"));
                }
                match <[String; 2]>::try_from(parts) {
                    Ok([item, key]) => (item, key),
                    Err(_) => {
                        return Err(invalid_operation("separators must be a pair of strings"));
                    }
                }
            }
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        Ok(Self { ascii, indent, item_separator, key_separator, sort_keys })
    }

    fn write_value(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_JSON_DEPTH {
            return Err(invalid_operation("the value nests too deeply for JSON"));
        }
        match value.kind() {
            ValueKind::Undefined => {
                return Err(invalid_operation("Object of type Undefined is not JSON serializable"));
            }
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&python_number_text(value)),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(out, value, depth)?,
            ValueKind::Map => self.write_object(out, value, depth)?,
            kind => {
                return Err(invalid_operation(format!(
                    "Object of type {kind} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn write_list(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let mut empty = true;
        out.push('[');
        for item in value.try_iter()? {
            if !empty {
                out.push_str(&self.item_separator);
            }
            empty = false;
            self.write_line_break(out, depth + 1);
            self.write_value(out, &item, depth + 1)?;
        }
        if !empty {
            self.write_line_break(out, depth);
        }
        out.push(']');
        Ok(())
    }

    fn write_object(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let mut pairs: Vec<(Value, Value)> = value
            .as_object()
            .and_then(|object| object.try_iter_pairs())
            .map(Iterator::collect)
            .unwrap_or_default();
        if self.sort_keys {
            pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
        }
        out.push('{');
        for (index, (key, item)) in pairs.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.write_line_break(out, depth + 1);
            match key.kind() {
                ValueKind::String => self.write_string(out, key.as_str().unwrap_or_default()),
                ValueKind::None => out.push_str("\"null\""),
                ValueKind::Bool if key.is_true() => out.push_str("\"true\""),
                ValueKind::Bool => out.push_str("\"false\""),
                ValueKind::Number => self.write_string(out, &python_number_text(key)),
                kind => {
                    return Err(invalid_operation(format!(
                        "keys must be str, int, float, bool or None, not {kind}"
                    )));
                }
            }
            out.push_str(&self.key_separator);
            self.write_value(out, item, depth + 1)?;
        }
        if !pairs.is_empty() {
            self.write_line_break(out, depth);
        }
        out.push('}');
        Ok(())
    }

    fn write_line_break(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        if self.ascii {
            json::push_json_escaped_ascii(out, text);
        } else {
            json::push_json_escaped_unicode(out, text);
        }
        out.push('"');
    }
}

fn python_number_text(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), json::format_json_float)
}
