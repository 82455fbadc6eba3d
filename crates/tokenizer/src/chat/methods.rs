//! Methods of Python's `str`, `list` and `dict` that chat templates call.

use minijinja::value::{Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use vllm_sim_python::is_python_whitespace;

use super::args::TemplateFilterArgs;
use super::bounds;
use super::error::invalid_operation;
use super::jinja2::{TEMPLATE_SLICE_METHOD, TEMPLATE_SUBSCRIPT_METHOD};
use super::python::{python_list, python_str_of, python_tuple_pair};

/// Calls a Python method of a template value, `value.method(args)`.
///
/// # Errors
/// `UnknownMethod` for an unknown method, other kinds for wrong arguments.
pub(super) fn call_python_method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if method == TEMPLATE_SLICE_METHOD {
        return slice_method(value, args);
    }
    if method == TEMPLATE_SUBSCRIPT_METHOD {
        return get_item_method(value, args);
    }
    // Search text and range.
    args.iter().try_for_each(bounds::charge_value_work)?;
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            bounds::charge_string_method_work(text, method, args)?;
            match call_str_method(text, method, args)? {
                Some(answer) => Ok(answer),
                None => {
                    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
                }
            }
        }
        ValueKind::Map => {
            if method != "get" {
                bounds::charge_value_work(value)?;
            }
            call_dict_method(value, method, args)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            bounds::charge_nested_value_work(value)?;
            call_list_method(value, method, args)
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Returns the template value `value[key]`, and counts the work of the lookup: the characters
/// before the found one, and the hash of the whole key.
fn get_item_method(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (key,): (&Value,) = from_args(args)?;
    bounds::charge_value_work(key)?;
    if let Some(text) = value.as_str() {
        bounds::charge_render_work(text.len() as u64)?;
    }
    value.get_item(key)
}

fn call_str_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let answer = match method {
        "strip" => strip_right(strip_left(text, args)?, args)?.into(),
        "lstrip" => strip_left(text, args)?.into(),
        "rstrip" => strip_right(text, args)?.into(),
        "split" | "rsplit" => split_method(text, method, args)?,
        "splitlines" => {
            let keep_ends = TemplateFilterArgs::new(args)?.flag_arg(0, "keepends")?;
            let shown = |(line, with_end)| Value::from(if keep_ends { with_end } else { line });
            python_list(python_splitlines(text).map(shown).collect())
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(invalid_operation("empty separator"));
            }
            let last = method == "rpartition";
            let at = if last { text.rfind(separator) } else { text.find(separator) };
            let parts = match at {
                Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            python_list(parts.into_iter().map(Value::from).collect())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "find" | "rfind" | "index" | "rindex" | "count" => find_method(text, method, args)?,
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let items: Vec<String> = items.try_iter()?.map(|item| python_str_of(&item)).collect();
            items.join(text).into()
        }
        "center" | "ljust" | "rjust" | "zfill" => pad_method(text, method, args)?,
        "swapcase" => text
            .chars()
            .flat_map(|c| {
                let swapped: Vec<char> = if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                };
                swapped
            })
            .collect::<String>()
            .into(),
        "casefold" => text.to_lowercase().into(),
        _ => return Ok(eval_str_is_method(text, method).map(Value::from)),
    };
    Ok(Some(answer))
}

/// Evaluates Python's `str.is…` methods; all but `isascii` are false for empty text.
fn eval_str_is_method(text: &str, method: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let cased = |wrong: fn(char) -> bool, right: fn(char) -> bool| {
        text.chars().any(right) && !text.chars().any(wrong)
    };
    Some(match method {
        "isascii" => text.is_ascii(),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isspace" => all(is_python_whitespace),
        "islower" => cased(char::is_uppercase, char::is_lowercase),
        "isupper" => cased(char::is_lowercase, char::is_uppercase),
        _ => return None,
    })
}

fn strip_left<'t>(text: &'t str, args: &[Value]) -> Result<&'t str, Error> {
    Ok(text.trim_start_matches(strip_predicate(args)?))
}

fn strip_right<'t>(text: &'t str, args: &[Value]) -> Result<&'t str, Error> {
    Ok(text.trim_end_matches(strip_predicate(args)?))
}

/// Returns a predicate for the characters that `str.strip` removes: the given ones, or whitespace.
fn strip_predicate(args: &[Value]) -> Result<impl Fn(char) -> bool, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(move |c: char| chars.map_or_else(|| is_python_whitespace(c), |chars| chars.contains(c)))
}

fn split_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let from_right = method == "rsplit";
    let args = TemplateFilterArgs::new(args)?;
    let separator = args.value_arg(0, "sep")?;
    let separator = separator.as_ref().map(|separator| match separator.as_str() {
        Some(separator) => Ok(separator),
        None => Err(invalid_operation(format!("must be str or None, not {}", separator.kind()))),
    });
    let separator = separator.transpose()?;
    let most = args.int_arg(1, "maxsplit")?.unwrap_or(-1);
    let most = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
    let parts: Vec<&str> = match separator {
        Some("") => return Err(invalid_operation("empty separator")),
        Some(separator) if from_right => {
            let mut parts: Vec<&str> = text.rsplitn(most, separator).collect();
            parts.reverse();
            parts
        }
        Some(separator) => text.splitn(most, separator).collect(),
        None if from_right => split_whitespace_right(text, most),
        None => split_whitespace_left(text, most),
    };
    Ok(python_list(parts.into_iter().map(Value::from).collect()))
}

/// Splits text at whitespace into at most `most` parts; the last part keeps its inner whitespace.
fn split_whitespace_left(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_python_whitespace);
    while !rest.is_empty() {
        let end = if parts.len() + 1 < most { rest.find(is_python_whitespace) } else { None };
        parts.push(&rest[..end.unwrap_or(rest.len())]);
        rest = rest[end.unwrap_or(rest.len())..].trim_start_matches(is_python_whitespace);
    }
    parts
}

fn split_whitespace_right(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_python_whitespace);
    while !rest.is_empty() {
        let blank = if parts.len() + 1 < most { rest.rfind(is_python_whitespace) } else { None };
        let start = blank.map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
        parts.push(&rest[start..]);
        rest = rest[..blank.unwrap_or(0)].trim_end_matches(is_python_whitespace);
    }
    parts.reverse();
    parts
}

/// Returns the lines of Python's `str.splitlines`, each without and with its line end.
pub(super) fn python_splitlines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let ends = |c: char| {
            matches!(
                c,
                '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'
                    ..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        };
        let end = rest.find(ends).unwrap_or(rest.len());
        let length = match rest[end..].chars().next() {
            Some('\r') if rest[end + 1..].starts_with('\n') => 2,
            Some(c) => c.len_utf8(),
            None => 0,
        };
        let line = (&rest[..end], &rest[..end + length]);
        rest = &rest[end + length..];
        Some(line)
    })
}

/// Evaluates Python's `str.find` and similar methods: positions are in characters, within an
/// optional range.
fn find_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, stop): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let (from, to) = if start.is_none() && stop.is_none() {
        (0, text.len())
    } else {
        let length = text.chars().count();
        let (start, stop) = (
            clamp_slice_bound(start.unwrap_or(0), length),
            clamp_slice_bound(stop.unwrap_or(i64::MAX), length),
        );
        let byte = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
        (byte(start), byte(stop.max(start)))
    };
    let part = &text[from..to];
    if method == "count" {
        return Ok(part.matches(what).count().into());
    }
    let found = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
    match found {
        Some(at) => Ok(text[..from + at].chars().count().into()),
        None if method.ends_with("index") => Err(invalid_operation("substring not found")),
        None => Ok((-1).into()),
    }
}

fn pad_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    /// Maximum padding of `str.center` and similar methods, in characters; larger than any
    /// legitimate use.
    const MAX_PADDING: usize = 1 << 20;
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let length = text.chars().count();
    let missing = width.min(MAX_PADDING).saturating_sub(length);
    if missing == 0 {
        return Ok(text.into());
    }
    let fill = fill.unwrap_or(if method == "zfill" { '0' } else { ' ' });
    let run = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    Ok(match method {
        "ljust" => text.to_owned() + &run(missing),
        "rjust" => run(missing) + text,
        // CPython pads the odd character left if the width is odd.
        "center" => {
            let left = missing / 2 + (missing & width & 1);
            run(left) + text + &run(missing - left)
        }
        _ => match text.strip_prefix(['-', '+']) {
            Some(digits) => text[..1].to_owned() + &run(missing) + digits,
            None => run(missing) + text,
        },
    }
    .into())
}

fn call_dict_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(object) = value.as_object() else {
        return Err(Error::from(ErrorKind::UnknownMethod));
    };
    let pairs = || object.try_iter_pairs().into_iter().flatten();
    let answer = match method {
        "keys" => python_list(pairs().map(|(key, _)| key).collect()),
        "values" => python_list(pairs().map(|(_, value)| value).collect()),
        "items" => python_list(pairs().map(|(key, value)| python_tuple_pair(key, value)).collect()),
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            return Ok(object.get_value(key).or(default).unwrap_or(Value::from(())));
        }
        "copy" => value.clone(),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    let () = from_args(args)?;
    Ok(answer)
}

fn call_list_method(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "count" => {
            let (what,): (&Value,) = from_args(args)?;
            Ok(value.try_iter()?.filter(|item| item == what).count().into())
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            match value.try_iter()?.position(|item| item == *what) {
                Some(at) => Ok(at.into()),
                None => Err(invalid_operation(format!("{} is not in list", python_str_of(what)))),
            }
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Evaluates `value[start:stop:step]`; calls of this method replace slices in templates.
fn slice_method(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (bounds,): (Rest<Option<i64>>,) = from_args(args)?;
    let at = |n: usize| bounds.get(n).copied().flatten();
    let (start, stop, step) = (at(0), at(1), at(2).unwrap_or(1));
    if step == 0 {
        return Err(invalid_operation("slice step cannot be zero"));
    }
    bounds::charge_value_work(value)?;
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            if step == 1 && text.is_ascii() {
                let start = clamp_slice_bound(start.unwrap_or(0), text.len());
                let stop = clamp_slice_bound(stop.unwrap_or(i64::MAX), text.len());
                return Ok(text[start..stop.max(start)].into());
            }
            bounds::charge_render_work(16 * text.len() as u64)?;
            let chars: Vec<char> = text.chars().collect();
            Ok(slice_indices(start, stop, step, chars.len())
                .map(|at| chars[at])
                .collect::<String>()
                .into())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            Ok(python_list(
                slice_indices(start, stop, step, items.len()).map(|at| items[at].clone()).collect(),
            ))
        }
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        // Jinja2 converts Python's TypeError to an undefined value.
        _ => Ok(Value::UNDEFINED),
    }
}

/// Returns the indices that a Python slice selects from `length` elements.
fn slice_indices(
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
    length: usize,
) -> impl Iterator<Item = usize> {
    let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    let (from, count) = if step > 0 {
        let from = clamp_slice_bound(start.unwrap_or(0), length);
        let to = clamp_slice_bound(stop.unwrap_or(i64::MAX), length);
        (from, to.saturating_sub(from).div_ceil(stride))
    } else {
        // One-based, so that the position before the first element is zero.
        let edge = |at: i64| {
            if at < 0 {
                index_from_end(at, length).map_or(0, |at| at + 1)
            } else {
                usize::try_from(at).map_or(length, |at| at.saturating_add(1).min(length))
            }
        };
        let from = start.map_or(length, edge);
        let to = stop.map_or(0, edge);
        (from.wrapping_sub(1), from.saturating_sub(to).div_ceil(stride))
    };
    (0..count).map(move |n| if step > 0 { from + n * stride } else { from - n * stride })
}

fn clamp_slice_bound(at: i64, length: usize) -> usize {
    if at < 0 {
        index_from_end(at, length).unwrap_or(0)
    } else {
        usize::try_from(at).map_or(length, |at| at.min(length))
    }
}

fn index_from_end(at: i64, length: usize) -> Option<usize> {
    length.checked_sub(usize::try_from(at.unsigned_abs()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_method_equals_python() {
        type Bound = Option<i64>;
        let cases: [(Bound, Bound, i64, &[usize]); 12] = [
            (None, None, 1, &[0, 1, 2, 3, 4]),
            (Some(1), Some(-1), 1, &[1, 2, 3]),
            (Some(-2), None, 1, &[3, 4]),
            (None, None, -1, &[4, 3, 2, 1, 0]),
            (None, Some(0), -1, &[4, 3, 2, 1]),
            (Some(3), Some(0), -2, &[3, 1]),
            (Some(1), Some(3), -1, &[]),
            (Some(9), Some(-9), -1, &[4, 3, 2, 1, 0]),
            (Some(-9), Some(9), 2, &[0, 2, 4]),
            (Some(3), Some(1), 1, &[]),
            (Some(-9), None, -1, &[]),
            (None, None, i64::MIN, &[4]),
        ];
        for (start, stop, step, expected) in cases {
            let found: Vec<usize> = slice_indices(start, stop, step, 5).collect();
            assert_eq!(found, expected, "{start:?} {stop:?} {step}");
        }
        for step in [-1, 1, 7] {
            assert_eq!(slice_indices(None, None, step, 0).count(), 0);
        }
    }

    #[test]
    fn str_split_splits_at_whitespace_runs() {
        assert_eq!(split_whitespace_left("  a  b c ", usize::MAX), ["a", "b", "c"]);
        assert_eq!(split_whitespace_left("  a  b c ", 2), ["a", "b c "]);
        assert_eq!(split_whitespace_right("  a  b c ", 2), ["  a  b", "c"]);
        assert_eq!(split_whitespace_right(" ", 2), Vec::<&str>::new());
        assert_eq!(
            python_splitlines("a\r\nb\n\nc\u{2028}").collect::<Vec<_>>(),
            [("a", "a\r\n"), ("b", "b\n"), ("", "\n"), ("c", "c\u{2028}")]
        );
        assert_eq!(python_splitlines("a\r\nb").last(), Some(("b", "b")));
    }
}
