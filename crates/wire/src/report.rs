//! Error messages that vLLM builds from schema errors.
//!
//! Source: `vllm/entrypoints/serve/exception_handling/handlers/validation.py`; pydantic-core
//! `src/errors/validation_exception.rs` for [`pydantic_error_text`].

use std::fmt::Write as _;

use serde_json::Value;
use vllm_sim_python::{self as python, PythonValue};

use super::fault::{ErrorType, Fault};
use super::lax::PydanticError;

/// Maximum number of schema errors in a response; further ones are counted.
const MAX_REPORTED_ERRORS: usize = 10;
/// Maximum number of schema errors kept in memory; further ones are counted.
const MAX_KEPT_ERRORS: usize = 100;
/// Maximum number of schema errors counted (ours; vLLM counts all).
const MAX_COUNTED_ERRORS: usize = 10_000;
/// Maximum length of an input string shown in an error, in characters.
const MAX_INPUT_CHARS: usize = 200;
/// Maximum length of one schema error or of its location, in characters.
const MAX_ERROR_CHARS: usize = 1000;

/// Schema errors of a value: the first errors, and the total number.
#[derive(Debug, Default)]
pub(super) struct SchemaErrors {
    pub(super) kept: Vec<SchemaError>,
    count: usize,
}

impl From<SchemaError> for SchemaErrors {
    fn from(error: SchemaError) -> Self {
        Self { kept: vec![error], count: 1 }
    }
}

impl SchemaErrors {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns a placeholder for one schema error, used when only the number of errors matters.
    pub(super) fn one_error_without_details() -> Self {
        Self { kept: Vec::new(), count: 1 }
    }

    pub(super) fn is_error_list_full(&self) -> bool {
        self.count >= MAX_COUNTED_ERRORS
    }

    /// Returns the number of schema errors beyond the `shown` ones, as text.
    pub(super) fn further_errors_text(&self, shown: usize) -> String {
        let least = if self.is_error_list_full() { "at least " } else { "" };
        format!("{least}{}", self.count - shown)
    }

    /// Appends schema errors; errors without details are only counted.
    #[inline]
    pub(super) fn append_errors(&mut self, more: Self) {
        self.count = (self.count + more.count).min(MAX_COUNTED_ERRORS);
        if !more.kept.is_empty() {
            let room = MAX_KEPT_ERRORS.saturating_sub(self.kept.len());
            self.kept.extend(more.kept.into_iter().take(room));
        }
    }
}

/// Returns Python's `str()` of a pydantic `ValidationError`.
pub(super) fn pydantic_error_text(title: &str, errors: &SchemaErrors) -> String {
    let s = if errors.count == 1 { "" } else { "s" };
    let count = errors.further_errors_text(0);
    let mut text = format!("{count} validation error{s} for {title}");
    for error in &errors.kept {
        let kind = error.error.kind;
        let _ = write!(
            text,
            "\n{}\n  {} [type={kind}, {}]\n    For further information visit {HELP_URL_PREFIX}{kind}",
            error.loc, error.error.message, error.input
        );
    }
    text
}

const HELP_URL_PREFIX: &str = "https://errors.pydantic.dev/2.14/v/";

/// Returns vLLM's error response for a list of schema errors.
pub(super) fn schema_errors_fault(errors: &SchemaErrors) -> Fault {
    let s = if errors.count == 1 { "" } else { "s" };
    let mut message = format!("{} validation error{s}:\n", errors.further_errors_text(0));
    for error in errors.kept.iter().take(MAX_REPORTED_ERRORS) {
        let _ = writeln!(message, "  {}", error.python_text());
    }
    if errors.count > MAX_REPORTED_ERRORS {
        let _ = writeln!(
            message,
            "  ...and {} more error{s}",
            errors.further_errors_text(MAX_REPORTED_ERRORS)
        );
    }
    message.truncate(message.trim_end().len());
    Fault {
        param: errors.kept.first().map(|error| error.loc.clone()),
        ..Fault::new(400, ErrorType::BadRequestPhrase, message)
    }
}

/// Style of the error texts that a schema validator builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SchemaErrorStyle {
    /// Style: location and input of each error, shortened as in vLLM's error responses.
    #[default]
    Summarized,
    /// Style: errors as Python shows them, the text of pydantic's `ValidationError`.
    Verbose,
    /// Style: the text of pydantic's `ValidationError`, with the names of all branches of unions.
    Labelled,
    /// Style: pydantic's error dicts, as FastAPI lists them.
    Listed,
    /// Errors as JSON, as FastAPI's default response lists them, without input.
    Detailed,
}

/// One element of a schema error's location: a name, an index or the branch of a union.
#[derive(Debug, Clone)]
pub(super) enum ErrorLocationItem<'a> {
    Key(&'a str),
    Index(usize),
    Branch(String),
}

impl ErrorLocationItem<'_> {
    pub(super) fn location_item_text(&self) -> String {
        match self {
            Self::Key(key) => (*key).to_owned(),
            Self::Index(i) => i.to_string(),
            Self::Branch(label) => label.clone(),
        }
    }
}

#[derive(Debug)]
pub(super) struct SchemaError {
    pub(super) error: PydanticError,
    pub(super) loc: String,
    pub(super) input: String,
}

impl SchemaError {
    /// Creates a schema error with the texts of a style.
    pub(super) fn new_in_style(
        style: SchemaErrorStyle,
        error: PydanticError,
        path: &[ErrorLocationItem<'_>],
        input: &Value,
    ) -> Self {
        match style {
            SchemaErrorStyle::Summarized => Self::new(error, path, input),
            SchemaErrorStyle::Verbose | SchemaErrorStyle::Labelled => {
                Self::new_verbose_error(error, path, input)
            }
            SchemaErrorStyle::Listed => Self::new_fastapi_error(error, path, input),
            SchemaErrorStyle::Detailed => Self::new_detail_error(error, path),
        }
    }

    pub(super) fn new(error: PydanticError, path: &[ErrorLocationItem<'_>], input: &Value) -> Self {
        Self {
            error,
            loc: truncate_chars(clean_loc_for_param(path), MAX_ERROR_CHARS),
            input: summarize_error_input(input),
        }
    }

    pub(super) fn new_verbose_error(
        error: PydanticError,
        path: &[ErrorLocationItem<'_>],
        input: &Value,
    ) -> Self {
        let loc =
            path.iter().map(ErrorLocationItem::location_item_text).collect::<Vec<_>>().join(".");
        let loc = truncate_chars(loc, MAX_ERROR_CHARS);
        let kind = PythonValue::from_json_value(input).python_type_name();
        let shown = shorten_repr(&python::python_repr(input));
        let input = format!("input_value={shown}, input_type={kind}");
        Self { error, loc, input }
    }

    /// Returns Python's `str()` of the schema error's dict.
    fn python_text(&self) -> String {
        let mut text = format!(
            "{{'type': '{}', 'loc': {}, 'msg': {}, 'input': {}",
            self.error.kind,
            python::python_repr_of_str(&self.loc),
            python::python_repr_of_str(&self.error.message),
            python::python_repr_of_str(&self.input)
        );
        if !self.error.context.is_empty() {
            let _ = write!(text, ", 'ctx': {{{}}}", self.error.context);
        }
        text.push('}');
        truncate_chars(text, MAX_ERROR_CHARS)
    }
}

/// Shortens a long Python `repr` to its start and end, as pydantic does.
fn shorten_repr(text: &str) -> String {
    const LIMIT: usize = 50;
    if text.len() <= LIMIT {
        return text.to_owned();
    }
    let boundary = |at: usize| text.is_char_boundary(at);
    let head = (0..=LIMIT / 2).rev().find(|at| boundary(*at)).unwrap_or(0);
    let end = text.len();
    let tail = (end - (LIMIT / 2 - 1)..end).find(|at| boundary(*at)).unwrap_or(end);
    format!("{}...{}", &text[..head], &text[tail..])
}

fn truncate_chars(mut text: String, limit: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(limit) {
        text.truncate(end);
        text.push_str("...[truncated]");
    }
    text
}

/// Shortens the input that a schema error repeats.
///
/// Source: vLLM's `_summarize_error_input`.
fn summarize_error_input(input: &Value) -> String {
    let text = match PythonValue::from_json_value(input) {
        PythonValue::Str(text) => text.chars().take(MAX_INPUT_CHARS + 1).collect(),
        PythonValue::List(items) => return format!("<list of {} items>", items.len()),
        PythonValue::Dict(map) => return format!("<dict of {} items>", map.len()),
        _ => python::python_repr(input),
    };
    truncate_chars(text, MAX_INPUT_CHARS)
}

/// Joins the location of a schema error with dots, as vLLM's `clean_loc_for_param` does. Omits
/// elements that look like pydantic's internal names, even if the client chose them.
fn clean_loc_for_param(path: &[ErrorLocationItem<'_>]) -> String {
    let text = ErrorLocationItem::location_item_text;
    let kept: Vec<String> = path.iter().map(text).filter(|step| !is_internal_step(step)).collect();
    if kept.is_empty() {
        return path.iter().map(text).collect::<Vec<_>>().join(".");
    }
    kept.join(".")
}

fn is_internal_step(step: &str) -> bool {
    const MARKERS: [&str; 29] = [
        "function-wrap",
        "function-after",
        "function-before",
        "function-plain",
        "json-or-python",
        "lax-or-strict",
        "chain",
        "default",
        "nullable",
        "tagged-union",
        "union",
        "call",
        "arguments",
        "is-instance",
        "is-subclass",
        "callable",
        "str",
        "int",
        "float",
        "bool",
        "bytes",
        "bytearray",
        "list",
        "tuple",
        "dict",
        "set",
        "frozenset",
        "complex",
        "none",
    ];
    let lower = step.to_lowercase();
    step.contains(['[', ']', '{', '}', '(', ')'])
        || lower == "nonetype"
        || MARKERS.contains(&lower.as_str())
}
