//! The state of one attempt, and how a value is tried for.

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::plan::Plan;
use crate::limits::Limits;
use crate::schema::{Exhausted, Judge, NodeId, Schema, Types, kind_of};
use crate::words::Concept;
use vllm_sim_random::Draw;

/// Values beyond which optional parts are left out.
const CROWD: u32 = 80;

/// Attempts after which types are tried that the keywords do not suggest.
const OTHER_KINDS: u32 = 3;

/// Rounds of a recursion after which optional parts are left out.
const MAX_ROUNDS: u32 = 2;

/// Levels of nesting that no value exceeds.
const MAX_DEPTH: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    Natural,
    Lean,
}

/// Why no value was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fail {
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
pub(super) struct Place {
    pub(super) depth: u32,
    /// How often the schema of this value is at work around it already.
    pub(super) rounds: u32,
    pub(super) concept: Option<&'static Concept>,
    /// Types to prefer.
    pub(super) want: Types,
    /// Types that its own parts should prefer.
    pub(super) parts: Types,
}

impl Place {
    /// The place of a part of the value here.
    pub(super) fn inner(self, concept: Option<&'static Concept>) -> Self {
        Self {
            depth: self.depth + 1,
            rounds: 0,
            concept,
            want: self.parts,
            parts: Types::NONE,
        }
    }
}

pub(super) struct Sampler<'a> {
    pub(super) schema: &'a Schema,
    pub(super) judge: Judge<'a>,
    pub(super) limits: &'a Limits,
    pub(super) rng: &'a mut ChaCha8Rng,
    pub(super) strategy: Strategy,
    pub(super) values: u32,
    /// Values must differ: go beyond the usual ones.
    pub(super) spread: bool,
    /// The first node of each goal at work, outermost first.
    pub(super) open: Vec<NodeId>,
    /// Path and reason of the first failure that was not worked around.
    pub(super) failure: Option<(String, String)>,
}

impl Sampler<'_> {
    /// Notes why there is no value; the first note counts.
    pub(super) fn fail<T>(
        &mut self,
        node: Option<NodeId>,
        reason: impl Into<String>,
    ) -> Result<T, Fail> {
        if self.failure.is_none() {
            let path = node.map_or(String::new(), |id| self.schema.node(id).path.clone());
            self.failure = Some((path, reason.into()));
        }
        Err(Fail::NoValue)
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.percent(percent)
    }

    /// Uniform in `0..n`; 0 when `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.rng.between(0, n.saturating_sub(1) as u64) as usize
    }

    /// Whether only what is required should be made here.
    pub(super) fn is_lean(&self, place: Place) -> bool {
        self.strategy == Strategy::Lean
            || self.values > CROWD
            || place.depth >= self.limits.max_depth
            || place.rounds >= MAX_ROUNDS
    }

    /// A value that satisfies every node of `goal`.
    pub(super) fn value(&mut self, goal: &[NodeId], place: Place) -> Result<Value, Fail> {
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

    /// What the title or description of a facet says the value is about.
    pub(super) fn concept(&self, plan: &Plan) -> Option<&'static Concept> {
        plan.facets
            .iter()
            .find_map(|&id| self.schema.node(id).hints.as_ref()?.concept)
    }

    /// Whether a value of `goal` could still be of a type that `value` is.
    pub(super) fn may_be(&self, goal: &[NodeId], value: &Value) -> bool {
        goal.iter()
            .all(|&id| self.schema.node(id).possible.has(kind_of(value)))
    }
}
