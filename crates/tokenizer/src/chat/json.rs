//! The `tojson` filter of transformers: Python's `json.dumps` without HTML escaping.
//!
//! **Source:** `transformers/utils/chat_template_utils.py`, `tojson`; CPython `json/encoder.py`.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use vllm_sim_python::json;

use super::args::Args;
use super::bounds;

/// Maximum nesting depth of a value for `tojson`; JSON from requests is limited to less.
const MAX_DEPTH: usize = 500;
/// Maximum length of the indent and separators of `tojson`, in bytes.
const MAX_SEPARATOR_BYTES: usize = 256;

#[derive(Debug)]
struct Style {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// Implements the template filter `tojson(ensure_ascii=False, indent=None, separators=None,
/// sort_keys=False)`.
pub(super) fn tojson(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    bounds::spend_all(value)?;
    let args = Args::new(&args)?;
    let style = Style::read(&args)?;
    args.finish()?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

impl Style {
    fn read(args: &Args<'_>) -> Result<Self, Error> {
        let ascii = args.flag(0, "ensure_ascii")?;
        let (indent, separators) = (args.get(1, "indent")?, args.get(2, "separators")?);
        let sort_keys = args.flag(3, "sort_keys")?;
        let indent = match indent {
            Some(indent) => Some(match indent.as_str() {
                Some(text) if text.len() > MAX_SEPARATOR_BYTES => {
                    return Err(invalid("indent is too long"));
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
                    return Err(invalid("separators are too long"));
                }
                match <[String; 2]>::try_from(parts) {
                    Ok([item, key]) => (item, key),
                    Err(_) => return Err(invalid("separators must be a pair of strings")),
                }
            }
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        Ok(Self {
            ascii,
            indent,
            item_separator,
            key_separator,
            sort_keys,
        })
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("the value nests too deeply for JSON"));
        }
        match value.kind() {
            ValueKind::Undefined => {
                return Err(invalid("Object of type Undefined is not JSON serializable"));
            }
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(out, value, depth)?,
            ValueKind::Map => self.object(out, value, depth)?,
            kind => {
                return Err(invalid(format!(
                    "Object of type {kind} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn list(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let mut empty = true;
        out.push('[');
        for item in value.try_iter()? {
            if !empty {
                out.push_str(&self.item_separator);
            }
            empty = false;
            self.line(out, depth + 1);
            self.write(out, &item, depth + 1)?;
        }
        if !empty {
            self.line(out, depth);
        }
        out.push(']');
        Ok(())
    }

    fn object(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
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
            self.line(out, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(out, key.as_str().unwrap_or_default()),
                ValueKind::None => out.push_str("\"null\""),
                ValueKind::Bool if key.is_true() => out.push_str("\"true\""),
                ValueKind::Bool => out.push_str("\"false\""),
                ValueKind::Number => self.string(out, &number(key)),
                kind => {
                    return Err(invalid(format!(
                        "keys must be str, int, float, bool or None, not {kind}"
                    )));
                }
            }
            out.push_str(&self.key_separator);
            self.write(out, item, depth + 1)?;
        }
        if !pairs.is_empty() {
            self.line(out, depth);
        }
        out.push('}');
        Ok(())
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        if self.ascii {
            json::escape_ascii(out, text);
        } else {
            json::escape(out, text);
        }
        out.push('"');
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), json::float)
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
