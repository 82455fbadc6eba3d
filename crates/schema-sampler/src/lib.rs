//! Content bound by a constraint: JSON for a schema, text for a pattern or a grammar.
//!
//! [`compile`] checks a constraint once, [`Compiled::sample`] makes a text that keeps it.
//! Work is bounded by counters, never by time, so the same seed gives the same text on any
//! machine, and no constraint, however hostile, holds a thread.

mod cache;
mod grammar;
mod print;
mod regex;
mod sample;
mod schema;
mod tag;
mod words;

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

pub use cache::Cache;

use grammar::Grammar;
use regex::WholeRegex;
use schema::{BadSchema, Schema, Types};
use tag::Tag;
use vllm_sim_random::Draw;

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

/// Why a constraint cannot be used, in the words that vLLM answers with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// No value was found; the path leads to the part of the schema that stands in the way.
    #[error("Grammar error: Unsatisfiable schema: {reason}{}", place(path))]
    Unsatisfiable {
        /// JSON pointer into the schema, with a leading `#`.
        path: String,
        /// What cannot be had together.
        reason: String,
    },
    /// A document that is no schema.
    #[error("Grammar error: {reason}{}", place(path))]
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
    /// No text of the constraint is short enough.
    #[error("Grammar error: every match is longer than {0} characters")]
    TooLong(u32),
}

/// Where a schema is at fault, unless it is the schema as a whole: as much as vLLM says.
fn place(path: &str) -> String {
    match path {
        "#" => String::new(),
        path => format!(" (at {path})"),
    }
}

impl From<BadSchema> for ConstraintError {
    fn from(bad: BadSchema) -> Self {
        Self::InvalidSchema {
            path: bad.path,
            reason: bad.reason,
        }
    }
}

/// What a made-up value is like where the constraint leaves it open.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Integers, both ends included; `None`: by what the field is about, else 0 to 100.
    pub integer: Option<(i64, i64)>,
    /// Other numbers; `None` as for integers.
    pub number: Option<(f64, f64)>,
    /// Lengths of arrays.
    pub array: (u64, u64),
    /// Chance of an optional property of the outermost object, in percent.
    pub optional_percent: u32,
    /// Chance of an optional property of an inner object, in percent.
    pub nested_optional_percent: u32,
    /// Levels of nesting beyond which optional parts are left out.
    pub max_depth: u32,
    /// The longest text, in characters.
    pub max_chars: u32,
}

impl Default for Limits {
    /// Structured answers of real models fill nearly every field.
    fn default() -> Self {
        Self {
            integer: None,
            number: None,
            array: (1, 3),
            optional_percent: 85,
            nested_optional_percent: 70,
            max_depth: 12,
            max_chars: 64 * 1024,
        }
    }
}

/// What `json_object` answers look like.
const ANY_OBJECT: &str = r#"{
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "summary": {"type": "string"},
        "category": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer"},
        "score": {"type": "number"},
        "active": {"type": "boolean"},
        "author": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "email": {"type": "string"}},
            "required": ["name"]
        }
    },
    "required": ["title"],
    "additionalProperties": false
}"#;

/// A constraint that has been checked and can be sampled any number of times.
#[derive(Debug)]
pub struct Compiled(Kind);

#[derive(Debug)]
enum Kind {
    Json(Box<Schema>),
    Regex(Box<WholeRegex>),
    Choice(Vec<String>),
    Grammar(Grammar),
    Tag(Tag),
}

/// Checks `constraint`.
///
/// # Errors
/// [`ConstraintError`] when it cannot be read; a schema that no value satisfies may be
/// found out only by [`Compiled::sample`].
pub fn compile(constraint: &Constraint) -> Result<Compiled, ConstraintError> {
    let kind = match constraint {
        Constraint::JsonObject => {
            let schema = serde_json::from_str(ANY_OBJECT).unwrap_or(Value::Bool(true));
            Kind::Json(Box::new(Schema::read(&schema)?))
        }
        Constraint::Json(Value::String(text)) => {
            let schema = serde_json::from_str(text).map_err(|_| ConstraintError::InvalidJson)?;
            Kind::Json(Box::new(Schema::read(&schema)?))
        }
        Constraint::Json(schema) => Kind::Json(Box::new(Schema::read(schema)?)),
        Constraint::Regex(source) => Kind::Regex(Box::new(WholeRegex::new(source)?)),
        Constraint::Choice(choices) if choices.is_empty() => {
            return Err(ConstraintError::EmptyChoice);
        }
        Constraint::Choice(choices) => Kind::Choice(choices.clone()),
        Constraint::Grammar(source) => Kind::Grammar(Grammar::read(source)?),
        Constraint::StructuralTag(value) => Kind::Tag(Tag::read(value)?),
    };
    Ok(Compiled(kind))
}

impl Compiled {
    /// A text that keeps the constraint.
    ///
    /// # Errors
    /// [`ConstraintError::Unsatisfiable`] when no value was found within a bounded search,
    /// [`ConstraintError::TooLong`] when none is short enough.
    pub fn sample(&self, rng: &mut ChaCha8Rng, limits: &Limits) -> Result<String, ConstraintError> {
        match &self.0 {
            Kind::Json(schema) => json(schema, limits, Types::NONE, rng),
            Kind::Regex(regex) => regex
                .sample(limits.max_chars, rng)
                .ok_or(ConstraintError::TooLong(limits.max_chars)),
            Kind::Choice(choices) => {
                let index = rng.between(0, choices.len() as u64 - 1) as usize;
                Ok(choices[index].clone())
            }
            Kind::Grammar(grammar) => grammar.sample(limits, rng),
            Kind::Tag(tag) => tag.sample(limits, rng),
        }
    }

    /// As [`Self::sample`], but an object wherever the schema allows one: tool arguments.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub fn sample_object(
        &self,
        rng: &mut ChaCha8Rng,
        limits: &Limits,
    ) -> Result<String, ConstraintError> {
        match &self.0 {
            Kind::Json(schema) => json(schema, limits, Types::OBJECT, rng),
            _ => self.sample(rng, limits),
        }
    }

    /// The schema this was compiled from, if it is a JSON constraint.
    fn schema(&self) -> Option<&Value> {
        match &self.0 {
            Kind::Json(schema) => Some(schema.source()),
            _ => None,
        }
    }
}

/// The text of a value that `schema` accepts.
fn json(
    schema: &Schema,
    limits: &Limits,
    want: Types,
    rng: &mut ChaCha8Rng,
) -> Result<String, ConstraintError> {
    let value = sample::sample(schema, limits, want, rng)?;
    Ok(print::print(&value))
}

#[cfg(test)]
mod tests;
