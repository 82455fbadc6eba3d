//! Finds values that a schema node rejects: for `not`, `else` and the other branches of a `oneOf`.

use super::plan::ValuePlan;
use super::sampler::Sampler;
use crate::schema::{JsonTypes, NodeId, NumberRange, SchemaNode};

/// Maximum nesting of combinators (`allOf`, `anyOf`, …) in which a violation is searched.
const DEPTH: u32 = 4;

/// One way in which a value can violate a schema node.
enum Violation {
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
    Part(NodeId),
    Meet(NodeId),
}

impl Violation {
    /// Returns the JSON types whose values can violate the node this way.
    fn types(&self) -> JsonTypes {
        match self {
            Self::Longer(_) | Self::Shorter(_) => JsonTypes::STRING,
            Self::MoreItems(_) | Self::FewerItems(_) | Self::Items(_) => JsonTypes::ARRAY,
            Self::MoreMembers(_) | Self::FewerMembers(_) => JsonTypes::OBJECT,
            Self::Without(_) | Self::With(..) => JsonTypes::OBJECT,
            Self::Numbers(_) => JsonTypes::NUMBER,
            Self::JsonTypes(_) | Self::Part(_) | Self::Meet(_) => JsonTypes::ALL,
        }
    }
}

impl Sampler<'_> {
    /// Narrows `plan` so that the schema node `id` probably rejects its values, in one randomly
    /// chosen way.
    ///
    /// The validator detects values that `id` accepts after all. Nodes that must hold for the
    /// violation are added to `certain`.
    pub(super) fn violate(&mut self, plan: &mut ValuePlan, id: NodeId, certain: &mut Vec<NodeId>) {
        self.violate_at(plan, id, certain, 0);
        if plan.types == JsonTypes::NONE && plan.impossible.is_none() {
            plan.impossible = Some((id, "`not` excludes every type that is allowed here"));
        }
    }

    fn violate_at(
        &mut self,
        plan: &mut ValuePlan,
        id: NodeId,
        certain: &mut Vec<NodeId>,
        depth: u32,
    ) {
        let schema = self.schema;
        let node = schema.node(id);
        if let Some(applicators) = node.applicators.as_ref().filter(|_| depth < DEPTH) {
            let bare = !node.typed && own_keywords(node) == 0;
            if bare
                && applicators.not.is_none()
                && applicators.when.is_none()
                && !applicators.any.is_empty()
            {
                // Violating an `anyOf` means violating every branch.
                for &branch in &applicators.any {
                    self.violate_at(plan, branch, certain, depth + 1);
                }
                return;
            }
        }
        let mut violations = own_violations(node, plan);
        violations.extend(self.parts(node, plan));
        if let Some(applicators) = node.applicators.as_ref().filter(|_| depth < DEPTH) {
            violations.extend(
                applicators
                    .refs
                    .iter()
                    .chain(&applicators.all)
                    .map(|&id| Violation::Part(id)),
            );
            violations.extend(applicators.not.map(Violation::Meet));
        }
        if violations.is_empty() {
            return;
        }
        let pick = self.below(violations.len());
        let violation = violations.swap_remove(pick);
        plan.types = plan.types.and(violation.types());
        let bounds = &mut plan.bounds;
        match violation {
            Violation::JsonTypes(types) => plan.types = plan.types.without(types),
            Violation::Longer(n) => bounds.length.0 = bounds.length.0.max(n),
            Violation::Shorter(n) => bounds.length.1 = bounds.length.1.min(n),
            Violation::MoreItems(n) => bounds.items.0 = bounds.items.0.max(n),
            Violation::FewerItems(n) => bounds.items.1 = bounds.items.1.min(n),
            Violation::MoreMembers(n) => bounds.members.0 = bounds.members.0.max(n),
            Violation::FewerMembers(n) => bounds.members.1 = bounds.members.1.min(n),
            Violation::Without(name) => plan.without.push(name),
            Violation::With(name, types) => {
                plan.with.push(name);
                plan.parts = types;
            }
            Violation::Items(types) => plan.parts = types,
            Violation::Numbers(range) => bounds.range.narrow(&range),
            Violation::Part(id) => self.violate_at(plan, id, certain, depth + 1),
            Violation::Meet(id) => certain.push(id),
        }
    }

    /// Returns the violations in which an item or member of the value has another type.
    fn parts(&self, node: &SchemaNode, plan: &ValuePlan) -> Vec<Violation> {
        let other = |id: NodeId| {
            let types = JsonTypes::ALL.without(self.schema.node(id).possible);
            Some(types).filter(|types| *types != JsonTypes::NONE)
        };
        let both = plan.types.and(node.types);
        let mut violations = Vec::new();
        if let Some(rules) = node.object.as_ref().filter(|_| both.has(JsonTypes::OBJECT)) {
            let members = rules.properties.iter();
            violations.extend(
                members.filter_map(|(name, p)| Some(Violation::With(name.clone(), other(p.node)?))),
            );
        }
        if let Some(rules) = node.array.as_ref().filter(|_| both.has(JsonTypes::ARRAY)) {
            violations.extend(rules.rest.and_then(other).map(Violation::Items));
            if let Some(contains) = rules.contains.filter(|contains| contains.min > 0) {
                violations.push(Violation::FewerItems(0));
                violations.extend(other(contains.node).map(Violation::Items));
            }
        }
        violations
    }
}

/// Counts the groups of keywords of a schema node other than `type` and combinators.
fn own_keywords(node: &SchemaNode) -> usize {
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

/// Returns the violations of the schema node's own keywords that `plan` allows.
fn own_violations(node: &SchemaNode, plan: &ValuePlan) -> Vec<Violation> {
    let mut violations = Vec::new();
    let left = plan.types.without(node.types);
    // A node with only a `type` has no other violation, even if no value remains.
    let only_typed = node.typed && node.applicators.is_none() && own_keywords(node) == 0;
    if only_typed || (node.typed && left != JsonTypes::NONE) {
        violations.push(Violation::JsonTypes(node.types));
    }
    let both = plan.types.and(node.types);
    if let Some(rules) = node.string.as_ref().filter(|_| both.has(JsonTypes::STRING)) {
        violations.extend(
            rules
                .max
                .map(|max| Violation::Longer(max.saturating_add(1))),
        );
        violations.extend(rules.min.checked_sub(1).map(Violation::Shorter));
    }
    if let Some(rules) = node.array.as_ref().filter(|_| both.has(JsonTypes::ARRAY)) {
        violations.extend(
            rules
                .max
                .map(|max| Violation::MoreItems(max.saturating_add(1))),
        );
        violations.extend(rules.min.checked_sub(1).map(Violation::FewerItems));
    }
    if let Some(rules) = node.object.as_ref().filter(|_| both.has(JsonTypes::OBJECT)) {
        violations.extend(
            rules
                .max
                .map(|max| Violation::MoreMembers(max.saturating_add(1))),
        );
        violations.extend(rules.min.checked_sub(1).map(Violation::FewerMembers));
        violations.extend(rules.required.iter().cloned().map(Violation::Without));
    }
    if let Some(rules) = node
        .number
        .as_ref()
        .filter(|_| both.meets(JsonTypes::NUMBER))
    {
        for bound in &rules.low {
            let mut range = NumberRange::default();
            range.at_most(bound.flipped());
            violations.push(Violation::Numbers(range));
        }
        for bound in &rules.high {
            let mut range = NumberRange::default();
            range.at_least(bound.flipped());
            violations.push(Violation::Numbers(range));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use crate::{Constraint, Limits, compile};
    use serde_json::{Value, json};
    use vllm_sim_random::{Purpose, stream};

    #[test]
    fn refused_values_are_found() {
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
            let compiled = compile(&Constraint::Json(schema.clone())).expect("a schema");
            for seed in 0..20 {
                let mut rng = stream(seed, 0, Purpose::Structured);
                let text = compiled.sample(&mut rng, &Limits::default());
                let text = text.unwrap_or_else(|error| panic!("{schema}: {error}"));
                let value: Value = serde_json::from_str(&text).expect("JSON");
                assert!(jsonschema::is_valid(&schema, &value), "{schema}: {text}");
            }
        }
    }
}
