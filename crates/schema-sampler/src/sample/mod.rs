//! A value for a schema.
//!
//! A *goal* is a list of nodes that one value must satisfy together. It is flattened into
//! *facets* (references followed, `allOf` joined, one branch of each `anyOf` / `oneOf` / `if`
//! chosen), a type is chosen that all facets allow, and the value is built from the keywords
//! of all facets at once. What cannot be built by construction (`not`, `oneOf`, `if`,
//! `contains`, `unevaluated…`) is judged afterwards and tried again with other choices,
//! close to where it failed. All work is paid from one budget.

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
use crate::limits::Limits;
use crate::print;
use crate::schema::{Exhausted, Judge, Schema, Types};
use sampler::{Fail, Place, Sampler, Strategy};

/// Work units of one call.
const FUEL: u32 = 40_000;

/// Work units of one attempt at a whole value.
const RATION: u32 = 16_000;

/// Work units of the check of a whole value.
const CHECK: u32 = 50_000;

/// Attempts at a whole value: natural ones, and lean ones with required parts only.
const STRATEGIES: [Strategy; 5] = [
    Strategy::Natural,
    Strategy::Natural,
    Strategy::Lean,
    Strategy::Natural,
    Strategy::Lean,
];

/// The text of a value that `schema` accepts.
pub(crate) fn json(
    schema: &Schema,
    limits: &Limits,
    want: Types,
    rng: &mut ChaCha8Rng,
) -> Result<String, ConstraintError> {
    let value = sample(schema, limits, want, rng)?;
    Ok(print::print(&value))
}

/// A value that `schema` accepts, of one of the types `want` if possible.
///
/// # Errors
/// [`ConstraintError::Unsatisfiable`] when none was found.
pub(crate) fn sample(
    schema: &Schema,
    limits: &Limits,
    want: Types,
    rng: &mut ChaCha8Rng,
) -> Result<Value, ConstraintError> {
    if schema.is_endless() {
        return Err(ConstraintError::Unsatisfiable {
            path: "#".to_owned(),
            reason: "every value would nest without end".to_owned(),
        });
    }
    let mut failure = None;
    let mut fuel = FUEL;
    for strategy in STRATEGIES {
        let ration = fuel.min(RATION);
        let mut sampler = Sampler {
            schema,
            judge: Judge::new(schema, ration),
            limits,
            rng: &mut *rng,
            strategy,
            values: 0,
            spread: false,
            open: Vec::new(),
            failure: None,
        };
        let place = Place {
            depth: 0,
            rounds: 0,
            concept: None,
            want,
            parts: Types::NONE,
        };
        let made = sampler.value(&[schema.root], place);
        fuel -= ration - sampler.judge.fuel();
        match made {
            Ok(value) => {
                if accepts(schema, &value) {
                    return Ok(value);
                }
            }
            Err(Fail::NoValue) => failure = sampler.failure.or(failure),
            Err(Fail::Exhausted) => {}
        }
    }
    let (path, reason) = failure.unwrap_or_else(|| {
        let reason = "no valid value was found within the work budget";
        (String::new(), reason.to_owned())
    });
    Err(ConstraintError::Unsatisfiable {
        path: format!("#{path}"),
        reason,
    })
}

/// Whether a finished value keeps the schema: `jsonschema` has the last word, unless it cannot
/// read the document or would take exponential time for it.
fn accepts(schema: &Schema, value: &Value) -> bool {
    match Judge::plain(schema, CHECK).valid(schema.root, value) {
        Ok(true) => !schema.is_checkable() || schema.accepts(value).unwrap_or(true),
        Ok(false) => false,
        Err(Exhausted) => Judge::new(schema, CHECK).valid(schema.root, value) == Ok(true),
    }
}
