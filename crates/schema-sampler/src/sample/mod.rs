//! Generates random JSON values that satisfy a schema.
//!
//! A *goal* is a list of schema nodes that one value must satisfy. The planner flattens it into
//! *facets*: it follows references, joins `allOf`, and chooses one branch of each `anyOf`, `oneOf`
//! and `if`. The sampler then builds a value from the keywords of all facets. Keywords that cannot
//! be constructed (`not`, `oneOf`, `if`, `contains`, `unevaluated…`) are checked afterwards; a
//! failed value is retried with other choices. One budget limits all work.

mod array;
mod format;
mod number;
mod object;
mod plan;
mod planner;
mod sampler;
mod string;
mod violate;

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::constraint::ConstraintError;
use crate::json_text;
use crate::limits::SampleLimits;
use crate::schema::{BoundedValidator, JsonTypes, Schema, ValidationFuelExhausted};
use crate::work::WorkBudget;
use sampler::{SampleFailure, SampleStrategy, ValueContext, ValueSampler};

/// Work budget for one generated value, with all attempts, in steps.
const VALUE_FUEL_STEPS: u32 = 40_000;

/// Work budget of one attempt at a whole value, in steps.
const ATTEMPT_FUEL_STEPS: u32 = 16_000;

/// Work budget for the validation of a finished value, in steps.
const CHECK_FUEL_STEPS: u32 = 50_000;

/// Generation strategies of the attempts at a whole value, in order; minimal attempts generate only
/// required parts.
const ATTEMPT_STRATEGIES: [SampleStrategy; 5] = [
    SampleStrategy::Natural,
    SampleStrategy::Natural,
    SampleStrategy::Minimal,
    SampleStrategy::Natural,
    SampleStrategy::Minimal,
];

/// Generates a JSON value that `schema` accepts, and returns its text.
pub(crate) fn sample_json_text(
    schema: &Schema,
    limits: &SampleLimits,
    want: JsonTypes,
    rng: &mut ChaCha8Rng,
    work: &mut WorkBudget,
) -> Result<String, ConstraintError> {
    let value = sample_value(schema, limits, want, rng, work)?;
    Ok(json_text::json_to_spaced_text(&value))
}

/// Generates a JSON value that `schema` accepts, of one of the types `want` if possible.
///
/// # Errors
/// [`ConstraintError::Unsatisfiable`] if no value was found.
pub(crate) fn sample_value(
    schema: &Schema,
    limits: &SampleLimits,
    want: JsonTypes,
    rng: &mut ChaCha8Rng,
    work: &mut WorkBudget,
) -> Result<Value, ConstraintError> {
    if schema.is_infinitely_nested() {
        return Err(ConstraintError::Unsatisfiable {
            path: "#".to_owned(),
            reason: "every value would nest without end".to_owned(),
        });
    }
    let mut failure = None;
    let mut fuel = VALUE_FUEL_STEPS.min(work.remaining_steps());
    let all = fuel;
    for strategy in ATTEMPT_STRATEGIES {
        let share = fuel.min(ATTEMPT_FUEL_STEPS);
        let mut sampler = ValueSampler {
            schema,
            validator: BoundedValidator::new(schema, share),
            limits,
            rng: &mut *rng,
            strategy,
            values: 0,
            spread: false,
            open: Vec::new(),
            failure: None,
        };
        let context = ValueContext {
            depth: 0,
            rounds: 0,
            semantic_type: None,
            want,
            parts: JsonTypes::NO_TYPES,
        };
        let made = sampler.sample_value(&[schema.root], context);
        fuel -= share - sampler.validator.remaining_validation_fuel();
        match made {
            Ok(value) => {
                let accepted = schema_accepts(schema, &value, work);
                if accepted {
                    // The check may have spent the rest.
                    let _ = work.spend_steps(1 + all - fuel);
                    return Ok(value);
                }
            }
            Err(SampleFailure::NoValue) => failure = sampler.failure.or(failure),
            Err(SampleFailure::FuelExhausted) => {}
        }
    }
    let _ = work.spend_steps(1 + all - fuel);
    let (path, reason) = failure.unwrap_or_else(|| {
        let reason = "no valid value was found within the work budget";
        (String::new(), reason.to_owned())
    });
    Err(ConstraintError::Unsatisfiable { path: format!("#{path}"), reason })
}

/// Returns whether a finished value satisfies the schema.
///
/// `jsonschema` decides, unless it cannot read the schema or would need exponential time.
fn schema_accepts(schema: &Schema, value: &Value, work: &mut WorkBudget) -> bool {
    let plain = BoundedValidator::new_uncached(schema, CHECK_FUEL_STEPS);
    let valid = plain.is_valid(schema.root, value);
    let _ = work.spend_steps(CHECK_FUEL_STEPS - plain.remaining_validation_fuel());
    match valid {
        Ok(true) => {
            !schema.is_checkable_by_jsonschema() || schema.jsonschema_accepts(value).unwrap_or(true)
        }
        Ok(false) => false,
        Err(ValidationFuelExhausted) => {
            BoundedValidator::new(schema, CHECK_FUEL_STEPS).is_valid(schema.root, value) == Ok(true)
        }
    }
}
