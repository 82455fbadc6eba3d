//! Constraints on generated texts, and their errors.

use serde_json::Value;

use crate::limits::MAX_CONSTRAINT_SOURCE_BYTES;

/// A constraint on a generated text: vLLM's `structured_outputs` or `response_format`.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// Constraint to any JSON object.
    JsonObject,
    /// Constraint to a JSON value that the given JSON schema accepts; a string contains the schema
    /// as JSON text.
    Json(Value),
    /// Constraint to a text that the given regular expression matches as a whole.
    Regex(String),
    /// Constraint to one text of the given list of choices.
    Choice(Vec<String>),
    /// Constraint to a text of the given grammar, in EBNF (`root ::= …`) or Lark (`start: …`).
    Grammar(String),
    /// Constraint to free text with tagged parts, as an xgrammar structural tag describes it.
    StructuralTag(Value),
}

impl Constraint {
    /// Returns the approximate size of the constraint's source, in bytes.
    pub(crate) fn source_bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::Json(value) | Self::StructuralTag(value) => json_source_bytes(value),
            Self::Regex(text) | Self::Grammar(text) => text.len(),
            // A list of choices needs no compilation.
            Self::Choice(_) => 0,
        }
    }
}

fn json_source_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => {
            items.iter().map(|item| json_source_bytes(item) + 1).sum::<usize>() + 2
        }
        Value::Object(members) => {
            let members = members.iter();
            let sizes = members.map(|(name, value)| name.len() + json_source_bytes(value) + 4);
            sizes.sum::<usize>() + 2
        }
        _ => 4,
    }
}

/// Error for a constraint that cannot be used, with vLLM's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// No JSON value satisfies the schema.
    #[error("Grammar error: Unsatisfiable schema: {reason}{}", schema_error_location(path))]
    Unsatisfiable {
        /// JSON pointer to the conflicting part of the schema, with a leading `#`.
        path: String,
        /// Description of the conflict in the schema.
        reason: String,
    },
    /// The JSON document is not a valid JSON schema.
    #[error("Grammar error: {reason}{}", schema_error_location(path))]
    InvalidSchema {
        /// JSON pointer to the invalid part of the schema, with a leading `#`.
        path: String,
        /// Description of the invalid keyword of the schema.
        reason: String,
    },
    /// The schema text is not valid JSON.
    #[error("Invalid JSON grammar specification.")]
    InvalidJson,
    /// The regular expression is invalid, or uses look-around or back-references.
    #[error("{0}")]
    BadRegex(String),
    /// The grammar is invalid, or all its texts are infinite.
    #[error("{0}")]
    BadGrammar(String),
    /// The structural tag is invalid.
    #[error("Invalid grammar specification: {0}")]
    BadTag(String),
    /// The list of a choice constraint is empty.
    #[error("Choice '' cannot be empty")]
    EmptyChoice,
    /// The constraint's source exceeds the size limit; the value is the source's size in bytes.
    #[error(
        "Grammar error: the constraint has {0} bytes; at most {MAX_CONSTRAINT_SOURCE_BYTES} are allowed"
    )]
    TooLarge(usize),
    /// All texts that satisfy the constraint are longer than this number of characters.
    #[error("Grammar error: every match is longer than {0} characters")]
    TooLong(u32),
}

/// Formats the location of a schema error; the root of the schema is not mentioned, as in vLLM.
fn schema_error_location(path: &str) -> String {
    match path {
        "#" => String::new(),
        path => format!(" (at {path})"),
    }
}

impl From<InvalidSchema> for ConstraintError {
    fn from(bad: InvalidSchema) -> Self {
        Self::InvalidSchema { path: bad.path, reason: bad.reason }
    }
}

/// Error for a JSON document that is not a supported JSON schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidSchema {
    pub(crate) path: String,
    pub(crate) reason: String,
}
