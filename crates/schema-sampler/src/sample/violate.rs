//! Values that a node refuses: for `not`, `else` and the other branches of a `oneOf`.

use super::plan::Plan;
use super::sampler::Sampler;
use crate::schema::{Node, NodeId, Range, Types};

/// How deep a refusal is looked for in combinators.
const DEPTH: u32 = 4;

/// One way to be refused.
enum Way {
    Types(Types),
    Longer(u64),
    Shorter(u64),
    MoreItems(u64),
    FewerItems(u64),
    MoreMembers(u64),
    FewerMembers(u64),
    Without(String),
    With(String, Types),
    Items(Types),
    Numbers(Range),
    Part(NodeId),
    Meet(NodeId),
}

impl Way {
    /// The types whose values can go this way: a keyword says nothing about others.
    fn types(&self) -> Types {
        match self {
            Self::Longer(_) | Self::Shorter(_) => Types::STRING,
            Self::MoreItems(_) | Self::FewerItems(_) | Self::Items(_) => Types::ARRAY,
            Self::MoreMembers(_) | Self::FewerMembers(_) => Types::OBJECT,
            Self::Without(_) | Self::With(..) => Types::OBJECT,
            Self::Numbers(_) => Types::NUMBER,
            Self::Types(_) | Self::Part(_) | Self::Meet(_) => Types::ALL,
        }
    }
}

impl Sampler<'_> {
    /// Narrows `plan` so that its values are likely refused by `id`, in one way of several;
    /// whatever cannot be narrowed is left to judgement. Nodes that must hold for it are
    /// added to `certain`.
    pub(super) fn violate(&mut self, plan: &mut Plan, id: NodeId, certain: &mut Vec<NodeId>) {
        self.violate_at(plan, id, certain, 0);
        if plan.types == Types::NONE && plan.dead.is_none() {
            plan.dead = Some((id, "`not` excludes every type that is allowed here"));
        }
    }

    fn violate_at(&mut self, plan: &mut Plan, id: NodeId, certain: &mut Vec<NodeId>, depth: u32) {
        let schema = self.schema;
        let node = schema.node(id);
        if let Some(logic) = node.logic.as_ref().filter(|_| depth < DEPTH) {
            let bare = !node.typed && own_keywords(node) == 0;
            if bare && logic.not.is_none() && logic.when.is_none() && !logic.any.is_empty() {
                // Refused by an `anyOf` is refused by all of it.
                for &branch in &logic.any {
                    self.violate_at(plan, branch, certain, depth + 1);
                }
                return;
            }
        }
        let mut ways = own_ways(node, plan);
        ways.extend(self.parts(node, plan));
        if let Some(logic) = node.logic.as_ref().filter(|_| depth < DEPTH) {
            ways.extend(logic.refs.iter().chain(&logic.all).map(|&id| Way::Part(id)));
            ways.extend(logic.not.map(Way::Meet));
        }
        if ways.is_empty() {
            return;
        }
        let pick = self.below(ways.len());
        let way = ways.swap_remove(pick);
        plan.types = plan.types.and(way.types());
        let bounds = &mut plan.bounds;
        match way {
            Way::Types(types) => plan.types = plan.types.without(types),
            Way::Longer(n) => bounds.length.0 = bounds.length.0.max(n),
            Way::Shorter(n) => bounds.length.1 = bounds.length.1.min(n),
            Way::MoreItems(n) => bounds.items.0 = bounds.items.0.max(n),
            Way::FewerItems(n) => bounds.items.1 = bounds.items.1.min(n),
            Way::MoreMembers(n) => bounds.members.0 = bounds.members.0.max(n),
            Way::FewerMembers(n) => bounds.members.1 = bounds.members.1.min(n),
            Way::Without(name) => plan.without.push(name),
            Way::With(name, types) => {
                plan.with.push(name);
                plan.parts = types;
            }
            Way::Items(types) => plan.parts = types,
            Way::Numbers(range) => bounds.range.narrow(&range),
            Way::Part(id) => self.violate_at(plan, id, certain, depth + 1),
            Way::Meet(id) => certain.push(id),
        }
    }

    /// How parts of a value can be what the node does not want of them: of another type.
    fn parts(&self, node: &Node, plan: &Plan) -> Vec<Way> {
        let other = |id: NodeId| {
            let types = Types::ALL.without(self.schema.node(id).possible);
            Some(types).filter(|types| *types != Types::NONE)
        };
        let both = plan.types.and(node.types);
        let mut ways = Vec::new();
        if let Some(rules) = node.object.as_ref().filter(|_| both.has(Types::OBJECT)) {
            let members = rules.properties.iter();
            ways.extend(
                members.filter_map(|(name, p)| Some(Way::With(name.clone(), other(p.node)?))),
            );
        }
        if let Some(rules) = node.array.as_ref().filter(|_| both.has(Types::ARRAY)) {
            ways.extend(rules.rest.and_then(other).map(Way::Items));
            if let Some(contains) = rules.contains.filter(|contains| contains.min > 0) {
                ways.push(Way::FewerItems(0));
                ways.extend(other(contains.node).map(Way::Items));
            }
        }
        ways
    }
}

/// How many kinds of keywords a node has beside `type` and combinators.
fn own_keywords(node: &Node) -> usize {
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

/// How the keywords of the node itself can be violated by values that `plan` allows.
fn own_ways(node: &Node, plan: &Plan) -> Vec<Way> {
    let mut ways = Vec::new();
    let left = plan.types.without(node.types);
    // A `type` alone can be violated in no other way, even if that leaves no value.
    let only_typed = node.typed && node.logic.is_none() && own_keywords(node) == 0;
    if only_typed || (node.typed && left != Types::NONE) {
        ways.push(Way::Types(node.types));
    }
    let both = plan.types.and(node.types);
    if let Some(rules) = node.string.as_ref().filter(|_| both.has(Types::STRING)) {
        ways.extend(rules.max.map(|max| Way::Longer(max.saturating_add(1))));
        ways.extend(rules.min.checked_sub(1).map(Way::Shorter));
    }
    if let Some(rules) = node.array.as_ref().filter(|_| both.has(Types::ARRAY)) {
        ways.extend(rules.max.map(|max| Way::MoreItems(max.saturating_add(1))));
        ways.extend(rules.min.checked_sub(1).map(Way::FewerItems));
    }
    if let Some(rules) = node.object.as_ref().filter(|_| both.has(Types::OBJECT)) {
        ways.extend(rules.max.map(|max| Way::MoreMembers(max.saturating_add(1))));
        ways.extend(rules.min.checked_sub(1).map(Way::FewerMembers));
        ways.extend(rules.required.iter().cloned().map(Way::Without));
    }
    if let Some(rules) = node.number.as_ref().filter(|_| both.meets(Types::NUMBER)) {
        for &(bound, open) in &rules.low {
            let mut range = Range::default();
            range.at_most(bound, !open);
            ways.push(Way::Numbers(range));
        }
        for &(bound, open) in &rules.high {
            let mut range = Range::default();
            range.at_least(bound, !open);
            ways.push(Way::Numbers(range));
        }
    }
    ways
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
