//! State of one attempt to generate a JSON value, with its retries.

use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::plan::ValuePlan;
use crate::limits::SampleLimits;
use crate::schema::{
    BoundedValidator, JsonTypes, Schema, SchemaNodeId, ValidationFuelExhausted, json_type_of,
};
use crate::semantic_type::SemanticType;
use vllm_sim_random::DrawRandom;

/// Maximum number of JSON values, nested ones included, that an attempt generates with optional
/// parts.
const MAX_NATURAL_VALUES: u32 = 80;

/// Index of the first generation attempt that also tries JSON types other than those suggested by
/// the schema's keywords.
const OTHER_TYPES_FROM_ATTEMPT: u32 = 3;

/// Nesting depth of values with the same schema at which their optional parts are omitted.
const MAX_RECURSION_ROUNDS: u32 = 2;

const MAX_VALUE_DEPTH: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleStrategy {
    Natural,
    Minimal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleFailure {
    /// No value can be generated, since the chosen schema branches exclude every value;
    /// [`ValueSampler::failure`] holds the reason.
    NoValue,
    FuelExhausted,
}

impl From<ValidationFuelExhausted> for SampleFailure {
    fn from(ValidationFuelExhausted: ValidationFuelExhausted) -> Self {
        Self::FuelExhausted
    }
}

/// Position of a generated value in the JSON document, with the value's preferred types and
/// recognised meaning.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueContext {
    pub(super) depth: u32,
    /// Number of enclosing values with the same schema (recursion depth).
    pub(super) rounds: u32,
    pub(super) semantic_type: Option<&'static SemanticType>,
    pub(super) want: JsonTypes,
    /// Preferred JSON types of the generated value's items or members.
    pub(super) parts: JsonTypes,
}

impl ValueContext {
    pub(super) fn nested_context(self, semantic_type: Option<&'static SemanticType>) -> Self {
        Self {
            depth: self.depth + 1,
            rounds: 0,
            semantic_type,
            want: self.parts,
            parts: JsonTypes::NO_TYPES,
        }
    }
}

pub(super) struct ValueSampler<'a> {
    pub(super) schema: &'a Schema,
    pub(super) validator: BoundedValidator<'a>,
    pub(super) limits: &'a SampleLimits,
    pub(super) rng: &'a mut ChaCha8Rng,
    pub(super) strategy: SampleStrategy,
    pub(super) values: u32,
    /// Whether the generated values must differ from earlier ones, as unique array items do; then
    /// unusual values are allowed.
    pub(super) spread: bool,
    /// Schema node of each value being generated, outermost first, before the node's `$ref` is
    /// followed.
    pub(super) open: Vec<SchemaNodeId>,
    /// Schema path and reason of the first unresolved failure to generate a value.
    pub(super) failure: Option<(String, String)>,
}

impl ValueSampler<'_> {
    /// Records why no JSON value can be generated, unless an earlier reason is recorded.
    pub(super) fn record_sample_failure<T>(
        &mut self,
        node: Option<SchemaNodeId>,
        reason: impl Into<String>,
    ) -> Result<T, SampleFailure> {
        if self.failure.is_none() {
            let path = node.map_or(String::new(), |id| self.schema.schema_node(id).path.clone());
            self.failure = Some((path, reason.into()));
        }
        Err(SampleFailure::NoValue)
    }

    pub(super) fn random_chance(&mut self, percent: u32) -> bool {
        self.rng.draw_percent_chance(percent)
    }

    /// Returns a random number in `0..n`; 0 if `n` is 0.
    pub(super) fn random_below(&mut self, n: usize) -> usize {
        self.rng.draw_u64_between(0, n.saturating_sub(1) as u64) as usize
    }

    /// Returns whether a JSON value should be generated with only its required parts.
    pub(super) fn requires_minimal_value(&self, context: ValueContext) -> bool {
        self.strategy == SampleStrategy::Minimal
            || self.values > MAX_NATURAL_VALUES
            || context.depth >= self.limits.max_depth
            || context.rounds >= MAX_RECURSION_ROUNDS
    }

    /// Generates a JSON value that satisfies every schema node of `goal`.
    pub(super) fn sample_value(
        &mut self,
        goal: &[SchemaNodeId],
        context: ValueContext,
    ) -> Result<Value, SampleFailure> {
        self.validator.spend_validation_fuel(4)?;
        self.values += 1;
        if context.depth > MAX_VALUE_DEPTH {
            return self.record_sample_failure(goal.first().copied(), "every value nests too deep");
        }
        let first = goal.first().copied();
        let rounds = self.open.iter().filter(|&&id| Some(id) == first).count();
        self.open.extend(first);
        let context = ValueContext { rounds: rounds as u32, ..context };
        let made = self.try_attempts(goal, context);
        if first.is_some() {
            self.open.pop();
        }
        made
    }

    fn try_attempts(
        &mut self,
        goal: &[SchemaNodeId],
        context: ValueContext,
    ) -> Result<Value, SampleFailure> {
        let earlier = self.failure.take();
        let mut tries = 1;
        let mut attempt = 0;
        while attempt < tries {
            let plan = self.plan_sampled_value(goal, context, attempt)?;
            tries = match plan.choices {
                0 if !plan.is_hard => 1,
                choices => (8 + 3 * choices).min(40),
            };
            let kinds = plan.types.type_count();
            if plan.impossible.is_none() && plan.allowed.is_none() && kinds > 1 {
                tries = tries.max(OTHER_TYPES_FROM_ATTEMPT + 2 * kinds);
            }
            match self.attempt_value(goal, &plan, context, attempt) {
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
        self.record_sample_failure(goal.first().copied(), "no value satisfies the schema")
    }

    fn attempt_value(
        &mut self,
        goal: &[SchemaNodeId],
        plan: &ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> Result<Value, SampleFailure> {
        if let Some((node, reason)) = plan.impossible {
            return self.record_sample_failure(Some(node), reason);
        }
        if let Some(source) = plan.allowed {
            return self.sample_enum_value(goal, source);
        }
        // Uses the schema's own examples sometimes, and after failures.
        if (attempt % 8 == 6 || (attempt == 0 && self.random_chance(20)))
            && let Some(value) = self.sample_example(goal, plan)?
        {
            return Ok(value);
        }
        let kind = self.choose_json_type(plan, context, attempt);
        let value = self.build_value(kind, plan, context, attempt)?;
        if plan.is_hard && !self.validator.is_valid_for_all(goal, &value)? {
            return self
                .record_sample_failure(goal.first().copied(), "no value satisfies the schema");
        }
        Ok(value)
    }

    /// Returns a value of the node's `enum` or `const` that satisfies all schema nodes of `goal`.
    fn sample_enum_value(
        &mut self,
        goal: &[SchemaNodeId],
        source: SchemaNodeId,
    ) -> Result<Value, SampleFailure> {
        let schema = self.schema;
        let values = schema.schema_node(source).allowed.as_deref().unwrap_or_default();
        let first = self.random_below(values.len());
        for i in 0..values.len() {
            let value = &values[(first + i) % values.len()];
            if self.validator.is_valid_for_all(goal, value)? {
                return Ok(value.clone());
            }
        }
        self.record_sample_failure(Some(source), "no value of the enum satisfies the schema")
    }

    /// Returns the `default` or one of the `examples` of a schema, if one of these values is valid.
    fn sample_example(
        &mut self,
        goal: &[SchemaNodeId],
        plan: &ValuePlan,
    ) -> Result<Option<Value>, SampleFailure> {
        let schema = self.schema;
        for &facet in &plan.facets {
            let Some(hints) = &schema.schema_node(facet).hints else {
                continue;
            };
            let first = self.random_below(hints.examples.len());
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
                if !dull && self.validator.is_valid_for_all(goal, value)? {
                    return Ok(Some(value.clone()));
                }
            }
        }
        Ok(None)
    }

    fn choose_json_type(
        &mut self,
        plan: &ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> JsonTypes {
        let mut types = plan.types;
        if attempt >= OTHER_TYPES_FROM_ATTEMPT && attempt % 2 == 1 {
            // The likely types failed, so any type is tried.
        } else if types.intersects(context.want) {
            types = types.intersection(context.want);
        } else if !plan.is_typed {
            // Without `type`, the keywords suggest the types.
            let meant = plan.meant.intersection(types);
            if meant != JsonTypes::NO_TYPES {
                types = meant;
            } else if types.contains_all(JsonTypes::STRING) {
                return JsonTypes::STRING;
            }
        }
        let mut kinds = [JsonTypes::NO_TYPES; 7];
        let mut count = 0;
        for kind in [
            JsonTypes::STRING,
            JsonTypes::INTEGER,
            JsonTypes::FRACTIONAL_NUMBER,
            JsonTypes::BOOLEAN,
            JsonTypes::ARRAY,
            JsonTypes::OBJECT,
            JsonTypes::NULL,
        ] {
            // A `number` becomes an integer only in every third attempt.
            if kind == JsonTypes::INTEGER
                && types.contains_all(JsonTypes::NUMBER)
                && attempt % 3 != 2
            {
                continue;
            }
            if kind == JsonTypes::FRACTIONAL_NUMBER
                && types.contains_all(JsonTypes::NUMBER)
                && attempt % 3 == 2
            {
                continue;
            }
            if types.contains_all(kind) {
                kinds[count] = kind;
                count += 1;
            }
        }
        if count > 1 && kinds[count - 1] == JsonTypes::NULL && !self.random_chance(12) {
            count -= 1;
        }
        let index = if attempt >= OTHER_TYPES_FROM_ATTEMPT {
            attempt as usize / 2 % count.max(1)
        } else {
            self.random_below(count)
        };
        kinds[index]
    }

    fn build_value(
        &mut self,
        kind: JsonTypes,
        plan: &ValuePlan,
        context: ValueContext,
        attempt: u32,
    ) -> Result<Value, SampleFailure> {
        match kind {
            JsonTypes::NULL => Ok(Value::Null),
            JsonTypes::BOOLEAN => Ok(Value::Bool(self.random_chance(50))),
            JsonTypes::INTEGER | JsonTypes::FRACTIONAL_NUMBER => {
                self.sample_number(kind, plan, context)
            }
            JsonTypes::STRING => self.sample_string(plan, context).map(Value::String),
            JsonTypes::ARRAY => self.sample_array(plan, context),
            JsonTypes::OBJECT => self.sample_object(plan, context, attempt),
            _ => self.record_sample_failure(plan.facets.first().copied(), "no type is allowed"),
        }
    }

    /// Returns the meaning of a JSON field, recognised in the `title` or `description` of its
    /// schema.
    pub(super) fn semantic_type(&self, plan: &ValuePlan) -> Option<&'static SemanticType> {
        plan.facets.iter().find_map(|&id| self.schema.schema_node(id).hints.as_ref()?.semantic_type)
    }

    /// Returns whether the schema nodes of `goal` allow the type of `value`.
    pub(super) fn allows_type_of_value(&self, goal: &[SchemaNodeId], value: &Value) -> bool {
        goal.iter()
            .all(|&id| self.schema.schema_node(id).possible.contains_all(json_type_of(value)))
    }
}
