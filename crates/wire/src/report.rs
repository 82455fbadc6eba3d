//! Error messages that vLLM builds from schema errors.
//!
//! Source: `vllm/entrypoints/serve/exception_handling/handlers/validation.py`; pydantic-core
//! `src/errors/validation_exception.rs` for [`printed`].

use std::fmt::Write as _;

use serde_json::Value;
use vllm_sim_python::{self as python, Py};

use super::fault::{ErrorType, Fault};
use super::lax::KnownError;

/// Maximum number of schema errors in a response; further ones are counted.
const MAX_REPORTED: usize = 10;
/// Maximum number of schema errors kept in memory; further ones are counted.
const MAX_KEPT: usize = 100;
/// Maximum number of schema errors counted (ours; vLLM counts all).
const MAX_COUNTED: usize = 10_000;
/// Maximum length of an input string shown in an error, in characters.
const MAX_INPUT: usize = 200;
/// Maximum length of one schema error or of its location, in characters.
const MAX_LINE: usize = 1000;

/// Schema errors of a value: the first errors, and the total number.
#[derive(Debug, Default)]
pub(super) struct SchemaErrors {
    kept: Vec<SchemaError>,
    count: usize,
}

impl From<SchemaError> for SchemaErrors {
    fn from(error: SchemaError) -> Self {
        Self {
            kept: vec![error],
            count: 1,
        }
    }
}

impl SchemaErrors {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns a placeholder for a schema error whose text is not needed.
    pub(super) fn unread() -> Self {
        Self {
            kept: Vec::new(),
            count: 1,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= MAX_COUNTED
    }

    /// Returns the number of schema errors beyond the `shown` ones, as text.
    fn counted(&self, shown: usize) -> String {
        let least = if self.is_full() { "at least " } else { "" };
        format!("{least}{}", self.count - shown)
    }

    pub(super) fn append(&mut self, more: Self) {
        self.count = (self.count + more.count).min(MAX_COUNTED);
        let room = MAX_KEPT.saturating_sub(self.kept.len());
        self.kept.extend(more.kept.into_iter().take(room));
    }
}

/// Returns Python's `str()` of a pydantic `ValidationError`.
pub(super) fn printed(title: &str, errors: &SchemaErrors) -> String {
    let s = if errors.count == 1 { "" } else { "s" };
    let count = errors.counted(0);
    let mut text = format!("{count} validation error{s} for {title}");
    for error in &errors.kept {
        let kind = error.error.kind;
        let _ = write!(
            text,
            "\n{}\n  {} [type={kind}, {}]\n    For further information visit {HELP}{kind}",
            error.loc, error.error.message, error.input
        );
    }
    text
}

const HELP: &str = "https://errors.pydantic.dev/2.14/v/";

/// Returns vLLM's error response for a list of schema errors.
pub(super) fn fault(errors: &SchemaErrors) -> Fault {
    let s = if errors.count == 1 { "" } else { "s" };
    let mut message = format!("{} validation error{s}:\n", errors.counted(0));
    for error in errors.kept.iter().take(MAX_REPORTED) {
        let _ = writeln!(message, "  {}", error.text());
    }
    if errors.count > MAX_REPORTED {
        let _ = writeln!(
            message,
            "  ...and {} more error{s}",
            errors.counted(MAX_REPORTED)
        );
    }
    message.truncate(message.trim_end().len());
    Fault {
        param: errors.kept.first().map(|error| error.loc.clone()),
        ..Fault::new(400, ErrorType::BadRequestPhrase, message)
    }
}

/// One element of a schema error's location: a name or an index.
#[derive(Debug, Clone, Copy)]
pub(super) enum LocItem<'a> {
    Key(&'a str),
    Index(usize),
}

impl LocItem<'_> {
    fn text(&self) -> String {
        match self {
            Self::Key(key) => (*key).to_owned(),
            Self::Index(i) => i.to_string(),
        }
    }
}

#[derive(Debug)]
pub(super) struct SchemaError {
    error: KnownError,
    loc: String,
    input: String,
}

impl SchemaError {
    pub(super) fn new(error: KnownError, path: &[LocItem<'_>], input: &Value) -> Self {
        Self {
            error,
            loc: truncated(clean(path), MAX_LINE),
            input: summary(input),
        }
    }

    pub(super) fn verbose(error: KnownError, path: &[LocItem<'_>], input: &Value) -> Self {
        let loc = path.iter().map(LocItem::text).collect::<Vec<_>>().join(".");
        let loc = truncated(loc, MAX_LINE);
        let kind = Py::of(input).type_name();
        let shown = shortened(&python::repr(input));
        let input = format!("input_value={shown}, input_type={kind}");
        Self { error, loc, input }
    }

    /// Returns Python's `str()` of the schema error's dict.
    fn text(&self) -> String {
        let mut text = format!(
            "{{'type': '{}', 'loc': {}, 'msg': {}, 'input': {}",
            self.error.kind,
            python::repr_str(&self.loc),
            python::repr_str(&self.error.message),
            python::repr_str(&self.input)
        );
        if !self.error.context.is_empty() {
            let _ = write!(text, ", 'ctx': {{{}}}", self.error.context);
        }
        text.push('}');
        truncated(text, MAX_LINE)
    }
}

/// Shortens a long Python `repr` to its start and end, as pydantic does.
fn shortened(text: &str) -> String {
    const LIMIT: usize = 50;
    if text.len() <= LIMIT {
        return text.to_owned();
    }
    let boundary = |at: usize| text.is_char_boundary(at);
    let head = (0..=LIMIT / 2).rev().find(|at| boundary(*at)).unwrap_or(0);
    let end = text.len();
    let tail = (end - (LIMIT / 2 - 1)..end)
        .find(|at| boundary(*at))
        .unwrap_or(end);
    format!("{}...{}", &text[..head], &text[tail..])
}

fn truncated(mut text: String, limit: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(limit) {
        text.truncate(end);
        text.push_str("...[truncated]");
    }
    text
}

/// Mirrors vLLM's `_summarize_error_input`.
fn summary(input: &Value) -> String {
    let text = match Py::of(input) {
        Py::Str(text) => text.chars().take(MAX_INPUT + 1).collect(),
        Py::List(items) => return format!("<list of {} items>", items.len()),
        Py::Dict(map) => return format!("<dict of {} items>", map.len()),
        _ => python::repr(input),
    };
    truncated(text, MAX_INPUT)
}

/// Joins the location of a schema error with dots and omits elements that look like pydantic's
/// internal names, as vLLM's `clean_loc_for_param` does, even if the client chose them.
fn clean(path: &[LocItem<'_>]) -> String {
    let text = |step: &LocItem<'_>| match step {
        LocItem::Key(key) => (*key).to_owned(),
        LocItem::Index(i) => i.to_string(),
    };
    let kept: Vec<String> = path
        .iter()
        .map(text)
        .filter(|step| !is_internal(step))
        .collect();
    if kept.is_empty() {
        return path.iter().map(text).collect::<Vec<_>>().join(".");
    }
    kept.join(".")
}

fn is_internal(step: &str) -> bool {
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
