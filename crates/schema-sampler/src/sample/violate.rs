//! Finds values that a schema node rejects: for `not`, `else` and the other branches of a `oneOf`.

use super::plan::ValuePlan;
use super::sampler::ValueSampler;
use crate::schema::{JsonTypes, NumberRange, SchemaNode, SchemaNodeId};

/// Maximum nesting of combinators (`allOf`, `anyOf`, …) in which a violation is searched for.
const MAX_VIOLATION_DEPTH: u32 = 4;

/// One way in which a value can violate a schema node.
enum SchemaViolation {
    JsonTypes(JsonTypes),
    Longer(u64),
    Shorter(u64),
    MoreItems(u64),
    FewerItems(u64),
    MoreMembers(u64),
    FewerMembers(u64),
    Without(String),
    With(String, JsonTypes),
    Items(JsonTypes),
    Numbers(NumberRange),
    Part(SchemaNodeId),
    Meet(SchemaNodeId),
}

impl SchemaViolation {
    /// Returns the JSON types of the values in which this violation of a schema node is possible.
    fn violating_types(&self) -> JsonTypes {
        match self {
            Self::Longer(_) | Self::Shorter(_) => JsonTypes::STRING,
            Self::MoreItems(_) | Self::FewerItems(_) | Self::Items(_) => JsonTypes::ARRAY,
            Self::MoreMembers(_) | Self::FewerMembers(_) => JsonTypes::OBJECT,
            Self::Without(_) | Self::With(..) => JsonTypes::OBJECT,
            Self::Numbers(_) => JsonTypes::NUMBER,
            Self::JsonTypes(_) | Self::Part(_) | Self::Meet(_) => JsonTypes::ALL_TYPES,
        }
    }
}

impl ValueSampler<'_> {
    /// Narrows `plan` so that the schema node `id` probably rejects its values, in one randomly
    /// chosen way.
    ///
    /// The validator detects values that `id` accepts after all. Nodes that must hold for the
    /// violation are added to `certain`.
    pub(super) fn plan_schema_violation(
        &mut self,
        plan: &mut ValuePlan,
        id: SchemaNodeId,
        certain: &mut Vec<SchemaNodeId>,
    ) {
        self.plan_violation_at_depth(plan, id, certain, 0);
        if plan.types == JsonTypes::NO_TYPES && plan.impossible.is_none() {
            plan.impossible = Some((id, "`not` excludes every type that is allowed here"));
        }
    }

    fn plan_violation_at_depth(
        &mut self,
        plan: &mut ValuePlan,
        id: SchemaNodeId,
        certain: &mut Vec<SchemaNodeId>,
        depth: u32,
    ) {
        let schema = self.schema;
        let node = schema.schema_node(id);
        if let Some(applicators) = node.applicators.as_ref().filter(|_| depth < MAX_VIOLATION_DEPTH)
        {
            let bare = !node.typed && keyword_group_count(node) == 0;
            if bare
                && applicators.not.is_none()
                && applicators.when.is_none()
                && !applicators.any.is_empty()
            {
                // Violating an `anyOf` means violating every branch.
                for &branch in &applicators.any {
                    self.plan_violation_at_depth(plan, branch, certain, depth + 1);
                }
                return;
            }
        }
        let mut violations = keyword_violations(node, plan);
        violations.extend(self.member_type_violations(node, plan));
        if let Some(applicators) = node.applicators.as_ref().filter(|_| depth < MAX_VIOLATION_DEPTH)
        {
            violations.extend(
                applicators
                    .refs
                    .iter()
                    .chain(&applicators.all)
                    .map(|&id| SchemaViolation::Part(id)),
            );
            violations.extend(applicators.not.map(SchemaViolation::Meet));
        }
        if violations.is_empty() {
            return;
        }
        let pick = self.random_below(violations.len());
        let violation = violations.swap_remove(pick);
        plan.types = plan.types.intersection(violation.violating_types());
        let bounds = &mut plan.bounds;
        match violation {
            SchemaViolation::JsonTypes(types) => plan.types = plan.types.difference(types),
            SchemaViolation::Longer(n) => bounds.length.0 = bounds.length.0.max(n),
            SchemaViolation::Shorter(n) => bounds.length.1 = bounds.length.1.min(n),
            SchemaViolation::MoreItems(n) => bounds.items.0 = bounds.items.0.max(n),
            SchemaViolation::FewerItems(n) => bounds.items.1 = bounds.items.1.min(n),
            SchemaViolation::MoreMembers(n) => bounds.members.0 = bounds.members.0.max(n),
            SchemaViolation::FewerMembers(n) => bounds.members.1 = bounds.members.1.min(n),
            SchemaViolation::Without(name) => plan.without.push(name),
            SchemaViolation::With(name, types) => {
                plan.with.push(name);
                plan.parts = types;
            }
            SchemaViolation::Items(types) => plan.parts = types,
            SchemaViolation::Numbers(range) => bounds.range.intersect_range(&range),
            SchemaViolation::Part(id) => self.plan_violation_at_depth(plan, id, certain, depth + 1),
            SchemaViolation::Meet(id) => certain.push(id),
        }
    }

    /// Returns the violations of a schema node in which an item or member of the value has a type
    /// that its own schema excludes.
    fn member_type_violations(&self, node: &SchemaNode, plan: &ValuePlan) -> Vec<SchemaViolation> {
        let other = |id: SchemaNodeId| {
            let types = JsonTypes::ALL_TYPES.difference(self.schema.schema_node(id).possible);
            Some(types).filter(|types| *types != JsonTypes::NO_TYPES)
        };
        let both = plan.types.intersection(node.types);
        let mut violations = Vec::new();
        if let Some(rules) = node.object.as_ref().filter(|_| both.contains_all(JsonTypes::OBJECT)) {
            let members = rules.properties.iter();
            violations.extend(
                members.filter_map(|(name, p)| {
                    Some(SchemaViolation::With(name.clone(), other(p.node)?))
                }),
            );
        }
        if let Some(rules) = node.array.as_ref().filter(|_| both.contains_all(JsonTypes::ARRAY)) {
            violations.extend(rules.rest.and_then(other).map(SchemaViolation::Items));
            if let Some(contains) = rules.contains.filter(|contains| contains.min > 0) {
                violations.push(SchemaViolation::FewerItems(0));
                violations.extend(other(contains.node).map(SchemaViolation::Items));
            }
        }
        violations
    }
}

/// Counts the kinds of constraints of a schema node: allowed values, number, string, array and
/// object keywords.
fn keyword_group_count(node: &SchemaNode) -> usize {
    [
        node.allowed.is_some(),
        node.number.is_some(),
        node.string.is_some(),
        node.array.is_some(),
        node.object.is_some(),
    ]
    .into_iter()
    .filter(|has| *has)
    .count()
}

/// Returns the ways in which a value of the planned types and bounds (`plan`) can violate the schema
/// node's own keywords.
fn keyword_violations(node: &SchemaNode, plan: &ValuePlan) -> Vec<SchemaViolation> {
    let mut violations = Vec::new();
    let left = plan.types.difference(node.types);
    // A node with only a `type` has no other violation, even if no value remains.
    let only_typed = node.typed && node.applicators.is_none() && keyword_group_count(node) == 0;
    if only_typed || (node.typed && left != JsonTypes::NO_TYPES) {
        violations.push(SchemaViolation::JsonTypes(node.types));
    }
    let both = plan.types.intersection(node.types);
    if let Some(rules) = node.string.as_ref().filter(|_| both.contains_all(JsonTypes::STRING)) {
        violations.extend(rules.max.map(|max| SchemaViolation::Longer(max.saturating_add(1))));
        violations.extend(rules.min.checked_sub(1).map(SchemaViolation::Shorter));
    }
    if let Some(rules) = node.array.as_ref().filter(|_| both.contains_all(JsonTypes::ARRAY)) {
        violations.extend(rules.max.map(|max| SchemaViolation::MoreItems(max.saturating_add(1))));
        violations.extend(rules.min.checked_sub(1).map(SchemaViolation::FewerItems));
    }
    if let Some(rules) = node.object.as_ref().filter(|_| both.contains_all(JsonTypes::OBJECT)) {
        violations.extend(rules.max.map(|max| SchemaViolation::MoreMembers(max.saturating_add(1))));
        violations.extend(rules.min.checked_sub(1).map(SchemaViolation::FewerMembers));
        violations.extend(rules.required.iter().cloned().map(SchemaViolation::Without));
    }
    if let Some(rules) = node.number.as_ref().filter(|_| both.intersects(JsonTypes::NUMBER)) {
        for bound in &rules.low {
            let mut range = NumberRange::default();
            range.add_upper_bound(bound.with_inverted_inclusiveness());
            violations.push(SchemaViolation::Numbers(range));
        }
        for bound in &rules.high {
            let mut range = NumberRange::default();
            range.add_lower_bound(bound.with_inverted_inclusiveness());
            violations.push(SchemaViolation::Numbers(range));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use crate::{Constraint, SampleLimits, compile_constraint};
    use serde_json::{Value, json};
    use vllm_sim_random::{RandomStreamPurpose, request_rng};

    #[test]
    fn values_rejected_by_not_are_found() {
        for schema in [
            json!({"oneOf": [{"type": "string", "maxLength": 20}, {"type": "string"}]}),
            json!({"type": "integer", "not": {"minimum": -5}}),
            json!({"type": "number", "not": {"exclusiveMaximum": 1e6}}),
            json!({"type": "array", "not": {"maxItems": 7}}),
            json!({"type": "object", "not": {"required": ["a", "b"]},
                "properties": {"a": {}, "b": {}}}),
            json!({"type": "object", "not": {"maxProperties": 3}}),
            json!({"not": {"not": {"not": {"type": ["object", "array", "string"]}}}}),
            json!({"not": {"allOf": [{"type": "string"}, {"minLength": 3}]}}),
            json!({"oneOf": [{"maxProperties": 0}, {}]}),
            json!({"oneOf": [{"minimum": 3}, {"maximum": 8}], "type": "integer"}),
            json!({"type": "object", "not": {"properties": {"a": {"type": "integer"}}}}),
            json!({"type": "array", "minItems": 2, "not": {"contains": {"type": "string"}}}),
            json!({"type": "array", "not": {"items": {"type": "string"}}}),
        ] {
            let compiled = compile_constraint(&Constraint::Json(schema.clone())).expect("a schema");
            for seed in 0..20 {
                let mut rng = request_rng(seed, 0, RandomStreamPurpose::Structured);
                let text = compiled.sample_text(&mut rng, &SampleLimits::default());
                let text = text.unwrap_or_else(|error| panic!("{schema}: {error}"));
                let value: Value = serde_json::from_str(&text).expect("JSON");
                assert!(jsonschema::is_valid(&schema, &value), "{schema}: {text}");
            }
        }
    }
}
