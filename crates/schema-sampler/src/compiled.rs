//! Constraints compiled for the generation of texts.

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::constraint::{Constraint, ConstraintError};
use crate::grammar::Grammar;
use crate::limits::{Limits, MAX_SOURCE};
use crate::regex::WholeRegex;
use crate::sample;
use crate::schema::{JsonTypes, Schema};
use crate::structural_tag::StructuralTag;
use crate::work::WorkBudget;
use vllm_sim_random::Draw;

/// JSON schema of the objects that [`Constraint::JsonObject`] generates.
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

/// A validated constraint, from which any number of texts can be generated.
#[derive(Debug)]
pub struct Compiled(CompiledKind);

#[derive(Debug)]
enum CompiledKind {
    Json(Box<Schema>),
    Regex(Box<WholeRegex>),
    Choice(Vec<String>),
    Grammar(Grammar),
    StructuralTag(StructuralTag),
}

/// Validates `constraint` and prepares it for the generation of texts.
///
/// # Errors
/// [`ConstraintError`] if the constraint cannot be read. Some unsatisfiable schemas are detected
/// only by [`Compiled::sample`].
pub fn compile(constraint: &Constraint) -> Result<Compiled, ConstraintError> {
    let size = constraint.size();
    if size > MAX_SOURCE {
        return Err(ConstraintError::TooLarge(size));
    }
    let kind = match constraint {
        Constraint::JsonObject => {
            let schema = serde_json::from_str(ANY_OBJECT).unwrap_or(Value::Bool(true));
            CompiledKind::Json(Box::new(Schema::read(&schema)?))
        }
        Constraint::Json(Value::String(text)) => {
            let schema = serde_json::from_str(text).map_err(|_| ConstraintError::InvalidJson)?;
            CompiledKind::Json(Box::new(Schema::read(&schema)?))
        }
        Constraint::Json(schema) => CompiledKind::Json(Box::new(Schema::read(schema)?)),
        Constraint::Regex(source) => CompiledKind::Regex(Box::new(WholeRegex::new(source)?)),
        Constraint::Choice(choices) if choices.is_empty() => {
            return Err(ConstraintError::EmptyChoice);
        }
        Constraint::Choice(choices) => CompiledKind::Choice(choices.clone()),
        Constraint::Grammar(source) => CompiledKind::Grammar(Grammar::read(source)?),
        Constraint::StructuralTag(value) => {
            CompiledKind::StructuralTag(StructuralTag::read(value)?)
        }
    };
    Ok(Compiled(kind))
}

impl Compiled {
    /// Generates a text that satisfies the constraint.
    ///
    /// # Errors
    /// [`ConstraintError::Unsatisfiable`] if a bounded search finds no value that satisfies the
    /// constraint, [`ConstraintError::TooLong`] if no value is short enough.
    pub fn sample(&self, rng: &mut ChaCha8Rng, limits: &Limits) -> Result<String, ConstraintError> {
        let work = &mut WorkBudget::default();
        match &self.0 {
            CompiledKind::Json(schema) => sample::json(schema, limits, JsonTypes::NONE, rng, work),
            CompiledKind::Regex(regex) => regex
                .sample(limits.max_chars, rng, work)
                .ok_or(ConstraintError::TooLong(limits.max_chars)),
            CompiledKind::Choice(choices) => {
                let index = rng.between(0, choices.len() as u64 - 1) as usize;
                Ok(choices[index].clone())
            }
            CompiledKind::Grammar(grammar) => grammar.sample(limits, rng, work),
            CompiledKind::StructuralTag(tag) => tag.sample(limits, rng, work),
        }
    }

    /// Generates a text like [`Self::sample`], preferably a JSON object; for tool arguments.
    ///
    /// # Errors
    /// The same errors as [`Self::sample`].
    pub fn sample_object(
        &self,
        rng: &mut ChaCha8Rng,
        limits: &Limits,
    ) -> Result<String, ConstraintError> {
        match &self.0 {
            CompiledKind::Json(schema) => {
                let work = &mut WorkBudget::default();
                sample::json(schema, limits, JsonTypes::OBJECT, rng, work)
            }
            _ => self.sample(rng, limits),
        }
    }
}
