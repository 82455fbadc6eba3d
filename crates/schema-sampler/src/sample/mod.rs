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
mod object;
mod plan;
mod string;
mod violate;

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::schema::{Exhausted, Judge, NodeId, Schema, Types, kind_of};
use super::words::Concept;
use super::{ConstraintError, Limits};
use plan::Plan;
use vllm_sim_random::Draw;

/// Work units of one call.
const FUEL: u32 = 40_000;

/// Work units of one attempt at a whole value.
const RATION: u32 = 16_000;

/// Work units of the check of a whole value.
const CHECK: u32 = 50_000;

/// Values beyond which optional parts are left out.
const CROWD: u32 = 80;

/// Attempts after which types are tried that the keywords do not suggest.
const OTHER_KINDS: u32 = 3;

/// How far beyond its usual range an integer goes to differ from others.
const SPREAD: i64 = 10_000;

/// Rounds of a recursion after which optional parts are left out.
const MAX_ROUNDS: u32 = 2;

/// Levels of nesting that no value exceeds.
const MAX_DEPTH: u32 = 64;

/// Attempts at a whole value: natural ones, and lean ones with required parts only.
const STRATEGIES: [Strategy; 5] = [
    Strategy::Natural,
    Strategy::Natural,
    Strategy::Lean,
    Strategy::Natural,
    Strategy::Lean,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Natural,
    Lean,
}

/// Why no value was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fail {
    /// The choices made leave no value; [`Sampler::failure`] says where.
    NoValue,
    /// The budget is used up.
    Exhausted,
}

impl From<Exhausted> for Fail {
    fn from(Exhausted: Exhausted) -> Self {
        Self::Exhausted
    }
}

/// Where a value goes.
#[derive(Debug, Clone, Copy)]
struct Place {
    depth: u32,
    /// How often the schema of this value is at work around it already.
    rounds: u32,
    concept: Option<&'static Concept>,
    /// Types to prefer.
    want: Types,
    /// Types that its own parts should prefer.
    parts: Types,
}

impl Place {
    /// The place of a part of the value here.
    fn inner(self, concept: Option<&'static Concept>) -> Self {
        Self {
            depth: self.depth + 1,
            rounds: 0,
            concept,
            want: self.parts,
            parts: Types::NONE,
        }
    }
}

struct Sampler<'a> {
    schema: &'a Schema,
    judge: Judge<'a>,
    limits: &'a Limits,
    rng: &'a mut ChaCha8Rng,
    strategy: Strategy,
    values: u32,
    /// Values must differ: go beyond the usual ones.
    spread: bool,
    /// The first node of each goal at work, outermost first.
    open: Vec<NodeId>,
    /// Path and reason of the first failure that was not worked around.
    failure: Option<(String, String)>,
}

/// A value that `schema` accepts, of one of the types `want` if possible.
///
/// # Errors
/// [`ConstraintError::Unsatisfiable`] when none was found.
pub(super) fn sample(
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

impl Sampler<'_> {
    /// Notes why there is no value; the first note counts.
    fn fail<T>(&mut self, node: Option<NodeId>, reason: impl Into<String>) -> Result<T, Fail> {
        if self.failure.is_none() {
            let path = node.map_or(String::new(), |id| self.schema.node(id).path.clone());
            self.failure = Some((path, reason.into()));
        }
        Err(Fail::NoValue)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.percent(percent)
    }

    /// Uniform in `0..n`; 0 when `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        self.rng.between(0, n.saturating_sub(1) as u64) as usize
    }

    /// Whether only what is required should be made here.
    fn is_lean(&self, place: Place) -> bool {
        self.strategy == Strategy::Lean
            || self.values > CROWD
            || place.depth >= self.limits.max_depth
            || place.rounds >= MAX_ROUNDS
    }

    /// A value that satisfies every node of `goal`.
    fn value(&mut self, goal: &[NodeId], place: Place) -> Result<Value, Fail> {
        self.judge.spend(4)?;
        self.values += 1;
        if place.depth > MAX_DEPTH {
            return self.fail(goal.first().copied(), "every value nests too deep");
        }
        let first = goal.first().copied();
        let rounds = self.open.iter().filter(|&&id| Some(id) == first).count();
        self.open.extend(first);
        let place = Place {
            rounds: rounds as u32,
            ..place
        };
        let made = self.tries(goal, place);
        if first.is_some() {
            self.open.pop();
        }
        made
    }

    /// Makes choices until one works out.
    fn tries(&mut self, goal: &[NodeId], place: Place) -> Result<Value, Fail> {
        let noted = self.failure.take();
        let mut tries = 1;
        let mut attempt = 0;
        while attempt < tries {
            let plan = self.plan(goal, place, attempt)?;
            tries = match plan.choices {
                0 if !plan.is_hard => 1,
                choices => (8 + 3 * choices).min(40),
            };
            let kinds = plan.types.count();
            if plan.dead.is_none() && plan.allowed.is_none() && kinds > 1 {
                tries = tries.max(OTHER_KINDS + 2 * kinds);
            }
            match self.attempt(goal, &plan, place, attempt) {
                Err(Fail::NoValue) => {}
                Ok(value) => {
                    self.failure = noted;
                    return Ok(value);
                }
                Err(Fail::Exhausted) => return Err(Fail::Exhausted),
            }
            attempt += 1;
        }
        self.failure = noted.or(self.failure.take());
        self.fail(goal.first().copied(), "no value satisfies the schema")
    }

    fn attempt(
        &mut self,
        goal: &[NodeId],
        plan: &Plan,
        place: Place,
        attempt: u32,
    ) -> Result<Value, Fail> {
        if let Some((node, reason)) = plan.dead {
            return self.fail(Some(node), reason);
        }
        if let Some(source) = plan.allowed {
            return self.allowed(goal, source);
        }
        // The schema's own examples: sometimes, and when all else has failed.
        if (attempt % 8 == 6 || (attempt == 0 && self.chance(20)))
            && let Some(value) = self.example(goal, plan)?
        {
            return Ok(value);
        }
        let kind = self.kind(plan, place, attempt);
        let value = self.build(kind, plan, place, attempt)?;
        if plan.is_hard && !self.judge.all(goal, &value)? {
            return self.fail(goal.first().copied(), "no value satisfies the schema");
        }
        Ok(value)
    }

    /// One of the values that `enum` or `const` of the node `source` allows.
    fn allowed(&mut self, goal: &[NodeId], source: NodeId) -> Result<Value, Fail> {
        let schema = self.schema;
        let values = schema.node(source).allowed.as_deref().unwrap_or_default();
        let first = self.below(values.len());
        for i in 0..values.len() {
            let value = &values[(first + i) % values.len()];
            if self.judge.all(goal, value)? {
                return Ok(value.clone());
            }
        }
        self.fail(Some(source), "no value of the enum satisfies the schema")
    }

    /// A valid `default` or one of the `examples`.
    fn example(&mut self, goal: &[NodeId], plan: &Plan) -> Result<Option<Value>, Fail> {
        let schema = self.schema;
        for &facet in &plan.facets {
            let Some(hints) = &schema.node(facet).hints else {
                continue;
            };
            let first = self.below(hints.values.len());
            for i in 0..hints.values.len() {
                let value = &hints.values[(first + i) % hints.values.len()];
                // An empty default («null», «[]») makes a dull answer.
                let dull = match value {
                    Value::Null => true,
                    Value::String(text) => text.is_empty(),
                    Value::Array(items) => items.is_empty(),
                    Value::Object(map) => map.is_empty(),
                    _ => false,
                };
                if !dull && self.judge.all(goal, value)? {
                    return Ok(Some(value.clone()));
                }
            }
        }
        Ok(None)
    }

    /// The type to build.
    fn kind(&mut self, plan: &Plan, place: Place, attempt: u32) -> Types {
        let mut types = plan.types;
        if attempt >= OTHER_KINDS && attempt % 2 == 1 {
            // The likely types failed: any may do.
        } else if types.meets(place.want) {
            types = types.and(place.want);
        } else if !plan.is_typed {
            // Nothing says `type`: the keywords do.
            let meant = plan.meant.and(types);
            if meant != Types::NONE {
                types = meant;
            } else if types.has(Types::STRING) {
                return Types::STRING;
            }
        }
        let mut kinds = [Types::NONE; 7];
        let mut count = 0;
        for kind in [
            Types::STRING,
            Types::INTEGER,
            Types::FRACTION,
            Types::BOOLEAN,
            Types::ARRAY,
            Types::OBJECT,
            Types::NULL,
        ] {
            // A `number` is an integer only by choice of the schema.
            if kind == Types::INTEGER && types.has(Types::NUMBER) && attempt % 3 != 2 {
                continue;
            }
            if kind == Types::FRACTION && types.has(Types::NUMBER) && attempt % 3 == 2 {
                continue;
            }
            if types.has(kind) {
                kinds[count] = kind;
                count += 1;
            }
        }
        if count > 1 && kinds[count - 1] == Types::NULL && !self.chance(12) {
            count -= 1;
        }
        let index = if attempt >= OTHER_KINDS {
            attempt as usize / 2 % count.max(1)
        } else {
            self.below(count)
        };
        kinds[index]
    }

    fn build(
        &mut self,
        kind: Types,
        plan: &Plan,
        place: Place,
        attempt: u32,
    ) -> Result<Value, Fail> {
        match kind {
            Types::NULL => Ok(Value::Null),
            Types::BOOLEAN => Ok(Value::Bool(self.chance(50))),
            Types::INTEGER | Types::FRACTION => self.number(kind, plan, place),
            Types::STRING => self.string(plan, place).map(Value::String),
            Types::ARRAY => self.array(plan, place),
            Types::OBJECT => self.object(plan, place, attempt),
            _ => self.fail(plan.facets.first().copied(), "no type is allowed"),
        }
    }

    fn number(&mut self, kind: Types, plan: &Plan, place: Place) -> Result<Value, Fail> {
        let schema = self.schema;
        let mut range = plan.bounds.range;
        let mut blame = plan.facets.first().copied();
        for &facet in &plan.facets {
            if let Some(rules) = &schema.node(facet).number {
                blame = Some(facet);
                for &(bound, open) in &rules.low {
                    range.at_least(bound, open);
                }
                for &(bound, open) in &rules.high {
                    range.at_most(bound, open);
                }
                if let Some(step) = rules.step {
                    range.multiple_of(step);
                }
            }
        }
        let natural = place.concept.or_else(|| self.concept(plan));
        let natural = natural.and_then(|concept| concept.range);
        let number = if kind == Types::INTEGER {
            let usual = natural.map_or((0, 100), |(low, high)| (low.ceil() as i64, high as i64));
            let (low, high) = self.limits.integer.unwrap_or(usual);
            let more = if self.spread { SPREAD } else { 0 };
            let is_meant = natural.is_some() && self.limits.integer.is_none();
            range.integer((low, high.saturating_add(more)), is_meant, self.rng)
        } else {
            let usual = self.limits.number.or(natural).unwrap_or((0.0, 100.0));
            let is_meant = natural.is_some() && self.limits.number.is_none();
            range.number(usual, is_meant, self.rng)
        };
        match number {
            Some(number) => Ok(Value::Number(number)),
            None => {
                let reason = range.conflict();
                let reason =
                    reason.unwrap_or_else(|| "no number lies within the bounds".to_owned());
                self.fail(blame, reason)
            }
        }
    }

    /// What the title or description of a facet says the value is about.
    fn concept(&self, plan: &Plan) -> Option<&'static Concept> {
        plan.facets
            .iter()
            .find_map(|&id| self.schema.node(id).hints.as_ref()?.concept)
    }

    /// Whether a value of `goal` could still be of a type that `value` is.
    fn may_be(&self, goal: &[NodeId], value: &Value) -> bool {
        goal.iter()
            .all(|&id| self.schema.node(id).possible.has(kind_of(value)))
    }
}
