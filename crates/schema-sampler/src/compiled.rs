//! Constraints compiled for the generation of texts.

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::constraint::{Constraint, ConstraintError};
use crate::grammar::Grammar;
use crate::limits::{MAX_CONSTRAINT_SOURCE_BYTES, SampleLimits};
use crate::regex::WholeTextRegex;
use crate::sample;
use crate::schema::{JsonTypes, Schema};
use crate::structural_tag::StructuralTag;
use crate::work::WorkBudget;
use vllm_sim_random::DrawRandom;

/// JSON schema of the objects that [`Constraint::JsonObject`] generates.
const ANY_OBJECT_SCHEMA: &str = r#"{
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

/// A validated constraint on generated texts, prepared so that any number of texts can be generated
/// from it.
#[derive(Debug)]
pub struct CompiledConstraint(CompiledConstraintKind);

#[derive(Debug)]
enum CompiledConstraintKind {
    Json(Box<Schema>),
    Regex(Box<WholeTextRegex>),
    Choice(Vec<String>),
    Grammar(Grammar),
    StructuralTag(StructuralTag),
}

/// Validates `constraint` and prepares it for the generation of texts.
///
/// # Errors
/// [`ConstraintError`] if the constraint cannot be read. Some unsatisfiable schemas are detected
/// only by [`CompiledConstraint::sample_text`].
pub fn compile_constraint(constraint: &Constraint) -> Result<CompiledConstraint, ConstraintError> {
    let size = constraint.source_bytes();
    if size > MAX_CONSTRAINT_SOURCE_BYTES {
        return Err(ConstraintError::TooLarge(size));
    }
    let kind = match constraint {
        Constraint::JsonObject => {
            let schema = serde_json::from_str(ANY_OBJECT_SCHEMA).unwrap_or(Value::Bool(true));
            CompiledConstraintKind::Json(Box::new(Schema::parse(&schema)?))
        }
        Constraint::Json(schema) => {
            CompiledConstraintKind::Json(Box::new(Schema::parse_value_or_text(schema)?))
        }
        Constraint::Regex(source) => {
            CompiledConstraintKind::Regex(Box::new(WholeTextRegex::new(source)?))
        }
        Constraint::Choice(choices) if choices.is_empty() => {
            return Err(ConstraintError::EmptyChoice);
        }
        Constraint::Choice(choices) => CompiledConstraintKind::Choice(choices.clone()),
        Constraint::Grammar(source) => {
            CompiledConstraintKind::Grammar(Grammar::parse_grammar(source)?)
        }
        Constraint::StructuralTag(value) => {
            CompiledConstraintKind::StructuralTag(StructuralTag::parse_structural_tag(value)?)
        }
    };
    Ok(CompiledConstraint(kind))
}

impl CompiledConstraint {
    /// Generates a text that satisfies the constraint.
    ///
    /// # Errors
    /// [`ConstraintError::Unsatisfiable`] if a bounded search finds no value that satisfies the
    /// constraint, [`ConstraintError::TooLong`] if no value is short enough.
    pub fn sample_text(
        &self,
        rng: &mut ChaCha8Rng,
        limits: &SampleLimits,
    ) -> Result<String, ConstraintError> {
        let work = &mut WorkBudget::default();
        match &self.0 {
            CompiledConstraintKind::Json(schema) => {
                sample::sample_json_text(schema, limits, JsonTypes::NO_TYPES, rng, work)
            }
            CompiledConstraintKind::Regex(regex) => regex
                .sample_fully_matching_text(limits.max_chars, rng, work)
                .ok_or(ConstraintError::TooLong(limits.max_chars)),
            CompiledConstraintKind::Choice(choices) => {
                let index = rng.draw_u64_between(0, choices.len() as u64 - 1) as usize;
                Ok(choices[index].clone())
            }
            CompiledConstraintKind::Grammar(grammar) => {
                grammar.sample_grammar_text(limits, rng, work)
            }
            CompiledConstraintKind::StructuralTag(tag) => {
                tag.sample_structural_tag_text(limits, rng, work)
            }
        }
    }

    /// Generates a text like [`Self::sample_text`], preferably a JSON object, for a tool call's
    /// arguments.
    ///
    /// # Errors
    /// The same errors as [`Self::sample_text`].
    pub fn sample_object(
        &self,
        rng: &mut ChaCha8Rng,
        limits: &SampleLimits,
    ) -> Result<String, ConstraintError> {
        match &self.0 {
            CompiledConstraintKind::Json(schema) => {
                let work = &mut WorkBudget::default();
                sample::sample_json_text(schema, limits, JsonTypes::OBJECT, rng, work)
            }
            _ => self.sample_text(rng, limits),
        }
    }
}
