//! Generates JSON numbers that satisfy a schema.

use serde_json::Value;

use super::plan::ValuePlan;
use super::sampler::{SampleFailure, ValueContext, ValueSampler};
use crate::schema::{JsonTypes, PreferredNumberRange};

/// Extension of the default range of integers at its upper end, if array items must be unique.
const DEFAULT_NUMBER_SPREAD: i64 = 10_000;

impl ValueSampler<'_> {
    pub(super) fn sample_number(
        &mut self,
        kind: JsonTypes,
        plan: &ValuePlan,
        context: ValueContext,
    ) -> Result<Value, SampleFailure> {
        let schema = self.schema;
        let mut range = plan.bounds.range;
        let mut at_fault = plan.facets.first().copied();
        for &facet in &plan.facets {
            if let Some(rules) = &schema.schema_node(facet).number {
                at_fault = Some(facet);
                for bound in &rules.low {
                    range.add_lower_bound(*bound);
                }
                for bound in &rules.high {
                    range.add_upper_bound(*bound);
                }
                if let Some(step) = rules.step {
                    range.add_multiple_of(step);
                }
            }
        }
        let natural = context.semantic_type.or_else(|| self.semantic_type(plan));
        let natural = natural.and_then(|semantic_type| semantic_type.range);
        let number = if kind == JsonTypes::INTEGER {
            let usual = natural.map_or((0, 100), |(low, high)| (low.ceil() as i64, high as i64));
            let (low, high) = self.limits.integer.unwrap_or(usual);
            let more = if self.spread { DEFAULT_NUMBER_SPREAD } else { 0 };
            let usual = (low, high.saturating_add(more));
            match natural.is_some() && self.limits.integer.is_none() {
                true => range.random_integer(PreferredNumberRange::Suggested(usual), self.rng),
                false => range.random_integer(PreferredNumberRange::Default(usual), self.rng),
            }
        } else {
            let usual = self.limits.number.or(natural).unwrap_or((0.0, 100.0));
            match natural.is_some() && self.limits.number.is_none() {
                true => range.random_number(PreferredNumberRange::Suggested(usual), self.rng),
                false => range.random_number(PreferredNumberRange::Default(usual), self.rng),
            }
        };
        match number {
            Some(number) => Ok(Value::Number(number)),
            None => {
                let reason = range.conflict_message();
                let reason =
                    reason.unwrap_or_else(|| "no number lies within the bounds".to_owned());
                self.record_sample_failure(at_fault, reason)
            }
        }
    }
}
