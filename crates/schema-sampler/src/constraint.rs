//! What is asked for, and why it cannot be had.

use serde_json::Value;

use crate::limits::MAX_SOURCE;

/// What an answer must look like: vLLM's `structured_outputs` and `response_format`.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that the schema accepts; a string holds the schema as text.
    Json(Value),
    /// A text that the pattern matches as a whole.
    Regex(String),
    /// One of the texts.
    Choice(Vec<String>),
    /// A text of the grammar: EBNF (`root ::= …`) or Lark (`start: …`).
    Grammar(String),
    /// Free text and tagged parts, as xgrammar's structural tags say.
    StructuralTag(Value),
}

impl Constraint {
    /// Bytes that spell it, about.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::Json(value) | Self::StructuralTag(value) => size(value),
            Self::Regex(text) | Self::Grammar(text) => text.len(),
            // Nothing is made of it.
            Self::Choice(_) => 0,
        }
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(members) => {
            let members = members.iter();
            let sizes = members.map(|(name, value)| name.len() + size(value) + 4);
            sizes.sum::<usize>() + 2
        }
        _ => 4,
    }
}

/// Why a constraint cannot be used, in the words that vLLM answers with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// No value was found; the path leads to the part of the schema that stands in the way.
    #[error("Grammar error: Unsatisfiable schema: {reason}{}", location(path))]
    Unsatisfiable {
        /// JSON pointer into the schema, with a leading `#`.
        path: String,
        /// What cannot be had together.
        reason: String,
    },
    /// A document that is no schema.
    #[error("Grammar error: {reason}{}", location(path))]
    InvalidSchema {
        /// JSON pointer into the schema, with a leading `#`.
        path: String,
        /// The keyword at fault.
        reason: String,
    },
    /// A schema given as text that is no JSON.
    #[error("Invalid JSON grammar specification.")]
    InvalidJson,
    /// A pattern that cannot be read, or asks for look-around or back-references.
    #[error("{0}")]
    BadRegex(String),
    /// A grammar that cannot be read or never ends.
    #[error("{0}")]
    BadGrammar(String),
    /// A structural tag that cannot be read.
    #[error("Invalid grammar specification: {0}")]
    BadTag(String),
    /// A choice of nothing.
    #[error("Choice '' cannot be empty")]
    EmptyChoice,
    /// More bytes than are read.
    #[error("Grammar error: the constraint has {0} bytes, the most is {MAX_SOURCE}")]
    TooLarge(usize),
    /// No text of the constraint is short enough.
    #[error("Grammar error: every match is longer than {0} characters")]
    TooLong(u32),
}

/// Where a schema is at fault, unless it is the schema as a whole: as much as vLLM says.
fn location(path: &str) -> String {
    match path {
        "#" => String::new(),
        path => format!(" (at {path})"),
    }
}

impl From<InvalidSchema> for ConstraintError {
    fn from(bad: InvalidSchema) -> Self {
        Self::InvalidSchema {
            path: bad.path,
            reason: bad.reason,
        }
    }
}

/// Why a document is no schema that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidSchema {
    pub(crate) path: String,
    pub(crate) reason: String,
}
