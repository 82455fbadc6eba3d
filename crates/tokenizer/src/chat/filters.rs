//! Filters, tests and functions of Jinja2 and transformers that minijinja lacks or implements
//! differently.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use time::OffsetDateTime;
use vllm_sim_python::is_python_whitespace;

use super::args::TemplateFilterArgs;
use super::bounds;
use super::error::invalid_operation;
use super::json::tojson_filter;
use super::methods::{self, python_splitlines};
use super::python::{python_list, python_str_of, python_tuple_pair};
use super::strftime::strftime;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TemplateException(pub(super) String);

pub(super) type LocalTimeFn = fn() -> OffsetDateTime;

/// Returns the local time, or the UTC time if the local time zone is unknown.
pub(super) fn local_time() -> OffsetDateTime {
    OffsetDateTime::now_local().unwrap_or_else(|_| OffsetDateTime::now_utc())
}

pub(super) fn add_python_filters(env: &mut Environment<'_>, clock: LocalTimeFn) {
    bounds::add_work_counting_filters(env);
    env.set_unknown_method_callback(methods::call_python_method);
    env.add_filter("tojson", tojson_filter);
    env.add_filter("string", text_of);
    env.add_filter("trim", trim_filter);
    env.add_filter("join", join_filter);
    env.add_filter("length", length_filter);
    env.add_filter("count", length_filter);
    env.add_filter("items", items_filter);
    env.add_filter("dictsort", dictsort_filter);
    env.add_filter("first", first_filter);
    env.add_filter("last", last_filter);
    env.add_filter("int", int_filter);
    env.add_filter("float", float_filter);
    env.add_filter("round", round_filter);
    env.add_filter("indent", indent_filter);
    env.add_filter("wordcount", |value: &Value| -> Result<usize, Error> {
        let text = text_of(value)?;
        bounds::charge_render_work(4 * text.len() as u64)?;
        let words =
            text.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|w| !w.is_empty());
        Ok(words.count())
    });
    env.add_filter("center", |state: &State<'_, '_>, value: &Value, width: Option<Value>| {
        let width = width.unwrap_or(Value::from(80));
        methods::call_python_method(state, &Value::from(python_str_of(value)), "center", &[width])
    });
    env.add_filter("filesizeformat", minijinja_contrib::filters::filesizeformat);
    env.add_filter("striptags", |value: &Value| -> Result<String, Error> {
        let text = text_of(value)?;
        bounds::charge_render_work(16 * text.len() as u64)?;
        Ok(minijinja_contrib::filters::striptags(text))
    });
    env.add_filter("truncate", truncate_filter);
    env.add_filter("replace", replace_filter);

    // In Python, text and dicts are sequences, and Jinja2's undefined value has the methods of a
    // sequence.
    for name in ["sequence", "iterable"] {
        env.add_test(name, |value: &Value| {
            !matches!(
                value.kind(),
                ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain
            )
        });
    }
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Bool | ValueKind::Number)
    });
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);

    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = python_str_of(message);
        Err(Error::new(ErrorKind::InvalidOperation, message.clone())
            .with_source(TemplateException(message)))
    });
    env.add_function("strftime_now", move |format: &str| {
        bounds::charge_render_work(16 * format.len() as u64).map(|()| strftime(clock(), format))
    });
}

fn text_of(value: &Value) -> Result<String, Error> {
    bounds::charge_nested_value_work(value)?;
    Ok(python_str_of(value))
}

fn trim_filter(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    // Each character is searched for in `chars`.
    let each = chars.map_or(1, |chars| 1 + chars.len() as u64);
    let text = text_of(value)?;
    bounds::charge_render_work(each.saturating_mul(text.len() as u64))?;
    let cut = text
        .trim_matches(|c| chars.map_or_else(|| is_python_whitespace(c), |chars| chars.contains(c)));
    Ok(cut.to_owned())
}

fn join_filter(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let args = TemplateFilterArgs::new(&args)?;
    let separator =
        args.value_arg(0, "d")?.map(|separator| python_str_of(&separator)).unwrap_or_default();
    let attribute = args.value_arg(1, "attribute")?.map(|attribute| python_str_of(&attribute));
    args.reject_unknown_args()?;
    let mut parts = Vec::new();
    if !value.is_undefined() {
        for item in value.try_iter()? {
            let item = match &attribute {
                Some(attribute) => attribute_at_path(&item, attribute)?,
                None => item,
            };
            bounds::charge_element_work()?;
            bounds::charge_render_work(separator.len() as u64)?;
            parts.push(text_of(&item)?);
        }
    }
    Ok(parts.join(&separator))
}

/// Returns the member of a template value at a dotted path of attributes or indices.
fn attribute_at_path(value: &Value, path: &str) -> Result<Value, Error> {
    path.split('.').try_fold(value.clone(), |value, step| match step.parse::<usize>() {
        Ok(index) => value.get_item(&Value::from(index)),
        Err(_) => value.get_attr(step),
    })
}

fn length_filter(value: &Value) -> Result<usize, Error> {
    // Counting the characters of a text is cheap.
    bounds::charge_render_work(value.as_str().map_or(0, |text| text.len() as u64 / 16))?;
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None if value.kind() == ValueKind::Iterable => {
            bounds::charge_nested_value_work(value)?;
            Ok(value.try_iter()?.count())
        }
        None => Err(invalid_operation(format!("object of type '{}' has no len()", value.kind()))),
    }
}

fn items_filter(value: &Value) -> Result<Value, Error> {
    bounds::charge_value_work(value)?;
    if value.is_undefined() {
        return Ok(python_list(Vec::new()));
    }
    let object = value.as_object().filter(|_| value.kind() == ValueKind::Map);
    match object.and_then(|object| object.try_iter_pairs()) {
        Some(pairs) => {
            Ok(python_list(pairs.map(|(key, value)| python_tuple_pair(key, value)).collect()))
        }
        None => Err(invalid_operation("Can only get item pairs from a mapping.")),
    }
}

fn replace_filter(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let args = TemplateFilterArgs::new(&args)?;
    let missing = || invalid_operation("replace needs an old and a new text");
    let (old, new) = (args.value_arg(0, "old")?, args.value_arg(1, "new")?);
    let (old, new) =
        (python_str_of(&old.ok_or_else(missing)?), python_str_of(&new.ok_or_else(missing)?));
    let count = args.int_arg(2, "count")?.and_then(|count| usize::try_from(count).ok());
    args.reject_unknown_args()?;
    let text = text_of(value)?;
    bounds::charge_text_replacement_work(&text, &old, &new)?;
    Ok(match count {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    })
}

/// Implements the filter `truncate` of Jinja2.
///
/// **Source:** `jinja2/filters.py`, `do_truncate`.
fn truncate_filter(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let args = TemplateFilterArgs::new(&args)?;
    let size = |n: Option<i64>, default| n.map_or(default, |n| usize::try_from(n).unwrap_or(0));
    let length = size(args.int_arg(0, "length")?, 255);
    let kill_words = args.flag_arg(1, "killwords")?;
    let end = args.value_arg(2, "end")?.map_or("...".to_owned(), |end| python_str_of(&end));
    let leeway = size(args.int_arg(3, "leeway")?, 5);
    args.reject_unknown_args()?;
    let text = text_of(value)?;
    bounds::charge_render_work(text.len() as u64)?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((words, _)) if !kill_words => words,
        _ => &kept,
    };
    Ok(kept.to_owned() + &end)
}

fn dictsort_filter(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = TemplateFilterArgs::new(&args)?;
    let case_sensitive = args.flag_arg(0, "case_sensitive")?;
    let by_value = args.value_arg(1, "by")?.is_some_and(|by| by.as_str() == Some("value"));
    let reverse = args.flag_arg(2, "reverse")?;
    args.reject_unknown_args()?;
    bounds::charge_nested_value_work(value)?;
    let object = value.as_object().filter(|_| value.kind() == ValueKind::Map);
    let Some(pairs) = object.and_then(|object| object.try_iter_pairs()) else {
        return Err(invalid_operation("Can only sort a mapping."));
    };
    let mut pairs: Vec<(Value, Value)> = pairs.collect();
    pairs.sort_by_cached_key(|(key, value)| {
        let by = if by_value { value } else { key };
        match by.as_str() {
            Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
            _ => by.clone(),
        }
    });
    if reverse {
        pairs.reverse();
    }
    Ok(python_list(pairs.into_iter().map(|(key, value)| python_tuple_pair(key, value)).collect()))
}

fn first_filter(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::UNDEFINED);
    }
    match value.as_str() {
        Some(text) => Ok(text.chars().next().map_or(Value::UNDEFINED, Value::from)),
        None => Ok(value.try_iter()?.next().unwrap_or(Value::UNDEFINED)),
    }
}

fn last_filter(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::UNDEFINED);
    }
    match value.as_str() {
        Some(text) => Ok(text.chars().next_back().map_or(Value::UNDEFINED, Value::from)),
        None if value.len().is_some_and(|length| length > 0) => {
            value.get_item_by_index(value.len().unwrap_or(1) - 1)
        }
        None => Ok(value.try_iter()?.last().unwrap_or(Value::UNDEFINED)),
    }
}

/// Parses a number from a template value as Python's `int()` and `float()` do.
fn parse_python_number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim().replace('_', "").parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "as Python's int(), within i64")]
fn int_filter(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    bounds::charge_value_work(value)?;
    let args = TemplateFilterArgs::new(&args)?;
    let default = args.value_arg(0, "default")?.unwrap_or(Value::from(0));
    let base = args.int_arg(1, "base")?.and_then(|base| u32::try_from(base).ok());
    args.reject_unknown_args()?;
    if value.is_integer() {
        return Ok(value.clone());
    }
    if let Some(text) = value.as_str() {
        let base = base.filter(|base| (2..=36).contains(base)).unwrap_or(10);
        let text = text.trim().replace('_', "").to_lowercase();
        let prefix = match base {
            16 => "0x",
            8 => "0o",
            2 => "0b",
            _ => "",
        };
        if let Ok(number) = i128::from_str_radix(&text.replacen(prefix, "", 1), base) {
            return Ok(Value::from(number));
        }
    }
    Ok(match parse_python_number(value) {
        Some(number) if number.is_finite() => Value::from(number as i64),
        _ => default,
    })
}

fn float_filter(value: &Value, default: Option<Value>) -> Result<Value, Error> {
    bounds::charge_value_work(value)?;
    let number = parse_python_number(value).map(Value::from).or(default);
    Ok(number.unwrap_or(Value::from(0.0)))
}

fn round_filter(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = TemplateFilterArgs::new(&args)?;
    let precision = args.int_arg(0, "precision")?.unwrap_or(0).clamp(-300, 300);
    let precision = i32::try_from(precision).unwrap_or(0);
    let method =
        args.value_arg(1, "method")?.map_or("common".to_owned(), |method| python_str_of(&method));
    args.reject_unknown_args()?;
    let Some(number) = parse_python_number(value).filter(|_| value.as_str().is_none()) else {
        return Err(invalid_operation(format!("cannot round a {}", value.kind())));
    };
    let scale = 10f64.powi(precision);
    Ok(match method.as_str() {
        "common" if value.is_integer() && precision >= 0 => value.clone(),
        // Formatting rounds the exact decimal value half to even, as Python does.
        "common" if precision >= 0 => {
            let digits = usize::try_from(precision).unwrap_or(0);
            Value::from(format!("{number:.digits$}").parse().unwrap_or(number))
        }
        "common" => Value::from((number * scale).round_ties_even() / scale),
        "ceil" => Value::from((number * scale).ceil() / scale),
        "floor" => Value::from((number * scale).floor() / scale),
        _ => return Err(invalid_operation("method must be common, ceil or floor")),
    })
}

/// Implements the filter `indent` of Jinja2.
///
/// **Source:** `jinja2/filters.py`, `do_indent`.
fn indent_filter(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let args = TemplateFilterArgs::new(&args)?;
    let width = args.value_arg(0, "width")?.unwrap_or(Value::from(4));
    let (first, blank) = (args.flag_arg(1, "first")?, args.flag_arg(2, "blank")?);
    args.reject_unknown_args()?;
    let margin = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(i64::try_from(width)?).unwrap_or(0).min(1 << 16)),
    };
    let text = text_of(value)? + "\n";
    bounds::charge_render_work((python_splitlines(&text).count() * margin.len()) as u64)?;
    let mut out = if first { margin.clone() } else { String::new() };
    for (index, (line, _)) in python_splitlines(&text).enumerate() {
        if index > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&margin);
            }
        }
        out.push_str(line);
    }
    Ok(out)
}
