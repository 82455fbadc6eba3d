//! Generates JSON arrays that satisfy a schema.

use serde_json::Value;

use super::plan::ValuePlan;
use super::sampler::{SampleFailure, ValueContext, ValueSampler};
use crate::schema::{ArrayRules, ContainsRule, SchemaNodeId, json_equal};
use vllm_sim_random::DrawRandom;

const MAX_ARRAY_ITEMS: u64 = 3_000;

const MAX_UNIQUE_ITEM_TRIES: u32 = 24;

struct ArrayShape<'a> {
    rules: Vec<&'a ArrayRules>,
    contains: Vec<ContainsRule>,
    min: u64,
    max: u64,
    unique: bool,
}

impl ValueSampler<'_> {
    pub(super) fn sample_array(
        &mut self,
        plan: &ValuePlan,
        context: ValueContext,
    ) -> Result<Value, SampleFailure> {
        let schema = self.schema;
        let context = ValueContext { parts: plan.parts, ..context };
        let rules: Vec<&ArrayRules> =
            plan.facets.iter().filter_map(|&id| schema.schema_node(id).array.as_deref()).collect();
        let at_fault =
            plan.facets.iter().copied().find(|&id| schema.schema_node(id).array.is_some());
        let shape = self.array_shape(rules, plan.bounds.items);
        if shape.min > shape.max {
            let (min, max) = (shape.min, shape.max);
            return self.record_sample_failure(
                at_fault,
                format!("minItems ({min}) is greater than maxItems ({max})"),
            );
        }
        if shape.min > MAX_ARRAY_ITEMS {
            let min = shape.min;
            return self.record_sample_failure(
                at_fault,
                format!("minItems ({min}) is more than a reply can hold"),
            );
        }
        let count = self.choose_array_length(&shape, context);
        let needed = self.assign_contains_items(&shape, count)?;
        let mut items: Vec<Value> = Vec::new();
        let mut held = vec![0; shape.contains.len()];
        while (items.len() as u64) < count {
            let also: Vec<SchemaNodeId> = needed
                .iter()
                .filter(|(index, _)| *index == items.len() as u64)
                .map(|(_, id)| *id)
                .collect();
            match self.sample_item(&shape, &items, &also, &mut held, context) {
                Ok(item) => items.push(item),
                Err(SampleFailure::NoValue)
                    if items.len() as u64 >= shape.min && also.is_empty() =>
                {
                    self.failure = None;
                    break;
                }
                Err(fail) => return Err(fail),
            }
        }
        Ok(Value::Array(items))
    }

    /// Assigns array items to each `contains` schema that they must satisfy, distinct items as far
    /// as possible.
    fn assign_contains_items(
        &mut self,
        shape: &ArrayShape<'_>,
        count: u64,
    ) -> Result<Vec<(u64, SchemaNodeId)>, SampleFailure> {
        let mut needed: Vec<(u64, SchemaNodeId)> = Vec::new();
        for contains in &shape.contains {
            self.validator.spend_validation_fuel(count as u32 / 8)?;
            let types = self.schema.schema_node(contains.node).possible;
            let (mut free, mut taken) = (Vec::new(), Vec::new());
            for index in 0..count {
                let goal = self.item_goal(shape, index as usize, false);
                let fits =
                    |id: &SchemaNodeId| self.schema.schema_node(*id).possible.intersects(types);
                if !goal.iter().all(fits) {
                    continue;
                }
                if needed.iter().any(|(other, _)| *other == index) {
                    taken.push(index);
                } else {
                    free.push(index);
                }
            }
            for _ in 0..contains.min {
                let pool = if free.is_empty() { &mut taken } else { &mut free };
                if pool.is_empty() {
                    return self.record_sample_failure(
                        Some(contains.node),
                        "too few items of the array can be what `contains` asks for",
                    );
                }
                let pick = self.rng.draw_u64_between(0, pool.len() as u64 - 1) as usize;
                needed.push((pool.swap_remove(pick), contains.node));
            }
        }
        Ok(needed)
    }

    fn array_shape<'r>(
        &self,
        rules: Vec<&'r ArrayRules>,
        (least, longest_allowed): (u64, u64),
    ) -> ArrayShape<'r> {
        let never =
            |id: Option<SchemaNodeId>| id.is_some_and(|id| self.schema.schema_node(id).never);
        let contains: Vec<ContainsRule> = rules.iter().filter_map(|r| r.contains).collect();
        let longest = rules.iter().map(|r| r.prefix.len() as u64).max().unwrap_or(0);
        let rest_known = rules.iter().any(|r| r.rest.is_some());
        let mut max = longest_allowed;
        for r in &rules {
            max = max.min(r.max.unwrap_or(u64::MAX));
            if never(r.rest) {
                max = max.min(r.prefix.len() as u64);
            }
            if never(r.unevaluated) && !rest_known && contains.is_empty() {
                max = max.min(longest);
            }
        }
        // Different `contains` share items only if `maxItems` requires it.
        let needed: u64 = contains.iter().fold(0, |n, c| n.saturating_add(c.min));
        let most = contains.iter().map(|c| c.min).max().unwrap_or(0);
        let min = rules.iter().map(|r| r.min).max().unwrap_or(0).max(least);
        ArrayShape {
            min: min.max(most).max(needed.min(max)),
            max,
            unique: rules.iter().any(|r| r.unique),
            rules,
            contains,
        }
    }

    fn choose_array_length(&mut self, shape: &ArrayShape<'_>, context: ValueContext) -> u64 {
        if self.requires_minimal_value(context) {
            return shape.min;
        }
        let longest = shape.rules.iter().map(|r| r.prefix.len() as u64).max();
        if let Some(longest) = longest.filter(|&n| n > 0) {
            // The items for `contains` may have to follow the tuple.
            let needed: u64 = shape.contains.iter().map(|c| c.min.min(MAX_ARRAY_ITEMS)).sum();
            let more = if self.random_chance(50) { needed } else { 0 };
            return (longest + more).clamp(shape.min, shape.max);
        }
        let (low, high) = self.limits.array;
        let said = shape.rules.iter().any(|r| r.min > 0 || r.max.is_some());
        let (low, high) = match (said, shape.max) {
            (false, _) => (low, high),
            (true, u64::MAX) => (shape.min, high.max(shape.min)),
            // A generous `maxItems` does not mean that many items are wanted.
            (true, max) => (shape.min.max(low.min(max)), max.min(high.max(shape.min + 3))),
        };
        let high = high.min(shape.max);
        self.rng.draw_u64_between(low.min(high), high).max(shape.min)
    }

    fn sample_item(
        &mut self,
        shape: &ArrayShape<'_>,
        before: &[Value],
        also: &[SchemaNodeId],
        held: &mut [u64],
        context: ValueContext,
    ) -> Result<Value, SampleFailure> {
        let mut goal = self.item_goal(shape, before.len(), also.is_empty());
        goal.extend(also);
        let inner = context.nested_context(context.semantic_type);
        let capped = shape.contains.iter().any(|c| c.max.is_some());
        let tries = if shape.unique || capped { MAX_UNIQUE_ITEM_TRIES } else { 1 };
        let spread = self.spread;
        for attempt in 0..tries {
            self.spread = spread || attempt >= MAX_UNIQUE_ITEM_TRIES / 3;
            let item = self.sample_value(&goal, inner);
            self.spread = spread;
            let item = item?;
            if shape.unique {
                self.validator.spend_validation_fuel(before.len() as u32 / 8)?;
                if before.iter().any(|other| json_equal(other, &item)) {
                    continue;
                }
            }
            if capped && self.exceeds_max_contains(shape, held, &item)? {
                continue;
            }
            return Ok(item);
        }
        if let Some(item) = self.unused_enum_value(&goal, before, inner)? {
            return Ok(item);
        }
        self.record_sample_failure(goal.first().copied(), "there are not enough different items")
    }

    /// Returns the schemas that an array item must satisfy; `is_plain` means that no `contains`
    /// evaluates the item.
    fn item_goal(&self, shape: &ArrayShape<'_>, index: usize, is_plain: bool) -> Vec<SchemaNodeId> {
        let mut goal = Vec::new();
        let known = shape.rules.iter().any(|r| r.rest.is_some() || index < r.prefix.len());
        for rules in &shape.rules {
            goal.extend(rules.prefix.get(index).or(rules.rest.as_ref()));
            if is_plain && !known {
                let open = rules.unevaluated.filter(|&id| !self.schema.schema_node(id).never);
                goal.extend(open);
            }
        }
        goal
    }

    /// Counts `item` for each `contains` schema that it satisfies; returns true if a count exceeds
    /// its `maxContains`.
    fn exceeds_max_contains(
        &mut self,
        shape: &ArrayShape<'_>,
        held: &mut [u64],
        item: &Value,
    ) -> Result<bool, SampleFailure> {
        let mut counts = held.to_vec();
        for (count, contains) in counts.iter_mut().zip(&shape.contains) {
            if self.validator.is_valid(contains.node, item)? {
                *count += 1;
                if contains.max.is_some_and(|max| *count > max) {
                    return Ok(true);
                }
            }
        }
        held.copy_from_slice(&counts);
        Ok(false)
    }

    /// Returns a valid item that the array does not contain yet, from the item schema's `enum`,
    /// else true, false or null.
    fn unused_enum_value(
        &mut self,
        goal: &[SchemaNodeId],
        used: &[Value],
        context: ValueContext,
    ) -> Result<Option<Value>, SampleFailure> {
        let schema = self.schema;
        for _ in 0..4 {
            let plan = self.plan_sampled_value(goal, context, 0)?;
            let listed = plan.allowed.and_then(|id| schema.schema_node(id).allowed.as_deref());
            let constants = [Value::Bool(false), Value::Bool(true), Value::Null];
            for value in listed.unwrap_or(&constants) {
                self.validator.spend_validation_fuel(used.len() as u32 / 8)?;
                let fresh = !used.iter().any(|other| json_equal(other, value));
                if fresh
                    && self.allows_type_of_value(goal, value)
                    && self.validator.is_valid_for_all(goal, value)?
                {
                    return Ok(Some(value.clone()));
                }
            }
        }
        Ok(None)
    }
}
