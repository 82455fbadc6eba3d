//! State of one attempt to generate a JSON value, with its retries.

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::plan::ValuePlan;
use crate::limits::Limits;
use crate::schema::{BoundedValidator, FuelExhausted, JsonTypes, NodeId, Schema, type_of};
use crate::semantic_type::SemanticType;
use vllm_sim_random::Draw;

/// Number of generated values from which optional parts are omitted.
const NATURAL_VALUES: u32 = 80;

/// Number of the attempt from which types other than those of the keywords are tried.
const OTHER_KINDS: u32 = 3;

/// Number of enclosing values with the same schema from which optional parts are omitted.
const MAX_ROUNDS: u32 = 2;

const MAX_DEPTH: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    Natural,
    Minimal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleFailure {
    /// The chosen schema branches exclude every value; [`Sampler::failure`] has the reason.
    NoValue,
    FuelExhausted,
}

impl From<FuelExhausted> for SampleFailure {
    fn from(FuelExhausted: FuelExhausted) -> Self {
        Self::FuelExhausted
    }
}

/// Position of a generated value in the document, with its preferred types and meaning.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueContext {
    pub(super) depth: u32,
    /// Number of enclosing values with the same schema (recursion depth).
    pub(super) rounds: u32,
    pub(super) semantic_type: Option<&'static SemanticType>,
    pub(super) want: JsonTypes,
    /// Preferred JSON types of the value's items or members.
    pub(super) parts: JsonTypes,
}

impl ValueContext {
    pub(super) fn inner(self, semantic_type: Option<&'static SemanticType>) -> Self {
        Self {
            depth: self.depth + 1,
            rounds: 0,
            semantic_type,
            want: self.parts,
            parts: JsonTypes::NONE,
        }
    }
}

pub(super) struct Sampler<'a> {
    pub(super) schema: &'a Schema,
    pub(super) validator: BoundedValidator<'a>,
    pub(super) limits: &'a Limits,
    pub(super) rng: &'a mut ChaCha8Rng,
    pub(super) strategy: Strategy,
    pub(super) values: u32,
    /// Whether generated values must differ, so that unusual ones are allowed.
    pub(super) spread: bool,
    /// First schema node of each value being generated, outermost first.
    pub(super) open: Vec<NodeId>,
    /// Schema path and reason of the first unresolved failure.
    pub(super) failure: Option<(String, String)>,
}

impl Sampler<'_> {
    /// Records why no value can be generated; the first record is kept.
    pub(super) fn fail<T>(
        &mut self,
        node: Option<NodeId>,
        reason: impl Into<String>,
    ) -> Result<T, SampleFailure> {
        if self.failure.is_none() {
            let path = node.map_or(String::new(), |id| self.schema.node(id).path.clone());
            self.failure = Some((path, reason.into()));
        }
        Err(SampleFailure::NoValue)
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.percent(percent)
    }

    /// Returns a random number in `0..n`; 0 if `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.rng.between(0, n.saturating_sub(1) as u64) as usize
    }

    /// Returns whether only required parts of the value should be generated.
    pub(super) fn is_minimal(&self, context: ValueContext) -> bool {
        self.strategy == Strategy::Minimal
            || self.values > NATURAL_VALUES
            || context.depth >= self.limits.max_depth
            || context.rounds >= MAX_ROUNDS
    }

    /// Generates a JSON value that satisfies every schema node of `goal`.
    pub(super) fn value(
        &mut self,
        goal: &[NodeId],
        context: ValueContext,
    ) -> Result<Value, SampleFailure> {
        self.validator.spend(4)?;
        self.values += 1;
        if context.depth > MAX_DEPTH {
            return self.fail(goal.first().copied(), "every value nests too deep");
        }
        let first = goal.first().copied();
        let rounds = self.open.iter().filter(|&&id| Some(id) == first).count();
        self.open.extend(first);
        let context = ValueContext {
            rounds: rounds as u32,
            ..context
        };
        let made = self.tries(goal, context);
        if first.is_some() {
            self.open.pop();
        }
        made
    }

    fn tries(&mut self, goal: &[NodeId], context: ValueContext) -> Result<Value, SampleFailure> {
        let earlier = self.failure.take();
        let mut tries = 1;
        let mut attempt = 0;
        while attempt < tries {
            let plan = self.plan(goal, context, attempt)?;
            tries = match plan.choices {
                0 if !plan.is_hard => 1,
                choices => (8 + 3 * choices).min(40),
            };
            let kinds = plan.types.count();
            if plan.impossible.is_none() && plan.allowed.is_none() && kinds > 1 {
                tries = tries.max(OTHER_KINDS + 2 * kinds);
            }
            match self.attempt(goal, &plan, context, attempt) {
                Err(SampleFailure::NoValue) => {}
                Ok(value) => {
                    self.failure = earlier;
                    return Ok(value);
                }
                Err(SampleFailure::FuelExhausted) => return Err(SampleFailure::FuelExhausted),
            }
            attempt += 1;
        }
        self.failure = earlier.or(self.failure.take());
        self.fail(goal.first().copied(), "no value satisfies the schema")
    }

    fn attempt(
        &mut self,
        goal: &[NodeId],
        plan: &ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> Result<Value, SampleFailure> {
        if let Some((node, reason)) = plan.impossible {
            return self.fail(Some(node), reason);
        }
        if let Some(source) = plan.allowed {
            return self.allowed(goal, source);
        }
        // Uses the schema's own examples sometimes, and after failures.
        if (attempt % 8 == 6 || (attempt == 0 && self.chance(20)))
            && let Some(value) = self.example(goal, plan)?
        {
            return Ok(value);
        }
        let kind = self.kind(plan, context, attempt);
        let value = self.build(kind, plan, context, attempt)?;
        if plan.is_hard && !self.validator.all(goal, &value)? {
            return self.fail(goal.first().copied(), "no value satisfies the schema");
        }
        Ok(value)
    }

    /// Returns a value of the `enum` or `const` of the node `source` that is valid for the goal.
    fn allowed(&mut self, goal: &[NodeId], source: NodeId) -> Result<Value, SampleFailure> {
        let schema = self.schema;
        let values = schema.node(source).allowed.as_deref().unwrap_or_default();
        let first = self.below(values.len());
        for i in 0..values.len() {
            let value = &values[(first + i) % values.len()];
            if self.validator.all(goal, value)? {
                return Ok(value.clone());
            }
        }
        self.fail(Some(source), "no value of the enum satisfies the schema")
    }

    /// Returns the schema's `default` or one of its `examples`, if valid.
    fn example(
        &mut self,
        goal: &[NodeId],
        plan: &ValuePlan,
    ) -> Result<Option<Value>, SampleFailure> {
        let schema = self.schema;
        for &facet in &plan.facets {
            let Some(hints) = &schema.node(facet).hints else {
                continue;
            };
            let first = self.below(hints.examples.len());
            for i in 0..hints.examples.len() {
                let value = &hints.examples[(first + i) % hints.examples.len()];
                // Empty defaults (null, `[]`) are skipped.
                let dull = match value {
                    Value::Null => true,
                    Value::String(text) => text.is_empty(),
                    Value::Array(items) => items.is_empty(),
                    Value::Object(map) => map.is_empty(),
                    _ => false,
                };
                if !dull && self.validator.all(goal, value)? {
                    return Ok(Some(value.clone()));
                }
            }
        }
        Ok(None)
    }

    fn kind(&mut self, plan: &ValuePlan, context: ValueContext, attempt: u32) -> JsonTypes {
        let mut types = plan.types;
        if attempt >= OTHER_KINDS && attempt % 2 == 1 {
            // The likely types failed, so any type is tried.
        } else if types.meets(context.want) {
            types = types.and(context.want);
        } else if !plan.is_typed {
            // Without `type`, the keywords suggest the types.
            let meant = plan.meant.and(types);
            if meant != JsonTypes::NONE {
                types = meant;
            } else if types.has(JsonTypes::STRING) {
                return JsonTypes::STRING;
            }
        }
        let mut kinds = [JsonTypes::NONE; 7];
        let mut count = 0;
        for kind in [
            JsonTypes::STRING,
            JsonTypes::INTEGER,
            JsonTypes::FRACTION,
            JsonTypes::BOOLEAN,
            JsonTypes::ARRAY,
            JsonTypes::OBJECT,
            JsonTypes::NULL,
        ] {
            // A `number` becomes an integer only in every third attempt.
            if kind == JsonTypes::INTEGER && types.has(JsonTypes::NUMBER) && attempt % 3 != 2 {
                continue;
            }
            if kind == JsonTypes::FRACTION && types.has(JsonTypes::NUMBER) && attempt % 3 == 2 {
                continue;
            }
            if types.has(kind) {
                kinds[count] = kind;
                count += 1;
            }
        }
        if count > 1 && kinds[count - 1] == JsonTypes::NULL && !self.chance(12) {
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
        kind: JsonTypes,
        plan: &ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> Result<Value, SampleFailure> {
        match kind {
            JsonTypes::NULL => Ok(Value::Null),
            JsonTypes::BOOLEAN => Ok(Value::Bool(self.chance(50))),
            JsonTypes::INTEGER | JsonTypes::FRACTION => self.number(kind, plan, context),
            JsonTypes::STRING => self.string(plan, context).map(Value::String),
            JsonTypes::ARRAY => self.array(plan, context),
            JsonTypes::OBJECT => self.object(plan, context, attempt),
            _ => self.fail(plan.facets.first().copied(), "no type is allowed"),
        }
    }

    /// Returns the meaning of a field, recognised in the `title` or `description` of its schema.
    pub(super) fn semantic_type(&self, plan: &ValuePlan) -> Option<&'static SemanticType> {
        plan.facets
            .iter()
            .find_map(|&id| self.schema.node(id).hints.as_ref()?.semantic_type)
    }

    /// Returns whether the schema nodes of `goal` allow the type of `value`.
    pub(super) fn may_be(&self, goal: &[NodeId], value: &Value) -> bool {
        goal.iter()
            .all(|&id| self.schema.node(id).possible.has(type_of(value)))
    }
}
