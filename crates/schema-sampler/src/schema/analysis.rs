//! Computes the possible types and the minimum nesting of every schema node before sampling.

use super::node::{INFINITE_NODE_HEIGHT, SchemaNode, SchemaNodeId};
use super::types::{JsonTypes, json_type_of};

/// Maximum number of rounds in which types and heights of schema nodes are computed; longer chains
/// of references get a weaker but still correct result.
const MAX_FIXPOINT_ROUNDS: usize = 64;

/// Computes [`SchemaNode::possible`] and [`SchemaNode::height`] of all nodes.
pub(super) fn compute_types_and_heights(nodes: &mut [SchemaNode]) {
    compute_possible_types(nodes);
    compute_heights(nodes);
}

/// Computes the possible types of all nodes as the greatest fixpoint: starts with all types and
/// removes the impossible ones.
fn compute_possible_types(nodes: &mut [SchemaNode]) {
    for _ in 0..MAX_FIXPOINT_ROUNDS {
        let mut changed = false;
        for i in (0..nodes.len()).rev() {
            let types = possible_types_of(&nodes[i], nodes);
            if types != nodes[i].possible {
                nodes[i].possible = types;
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

fn possible_types_of(node: &SchemaNode, nodes: &[SchemaNode]) -> JsonTypes {
    if node.never {
        return JsonTypes::NO_TYPES;
    }
    let of = |id: &SchemaNodeId| nodes[*id as usize].possible;
    let mut types = node.types;
    if let Some(values) = &node.allowed {
        let kinds =
            values.iter().fold(JsonTypes::NO_TYPES, |all, value| all.union(json_type_of(value)));
        types = types.intersection(kinds);
    }
    if let Some(applicators) = &node.applicators {
        for part in applicators.refs.iter().chain(&applicators.all) {
            types = types.intersection(of(part));
        }
        for branches in [&applicators.any, &applicators.one] {
            if !branches.is_empty() {
                let any = branches.iter().fold(JsonTypes::NO_TYPES, |all, id| all.union(of(id)));
                types = types.intersection(any);
            }
        }
    }
    types
}

/// Computes the heights of all nodes as the least fixpoint: starts with no finite value, and lowers
/// heights.
fn compute_heights(nodes: &mut [SchemaNode]) {
    for node in nodes.iter_mut() {
        node.height = INFINITE_NODE_HEIGHT;
    }
    let mut settled = false;
    for _ in 0..MAX_FIXPOINT_ROUNDS {
        let mut changed = false;
        for i in (0..nodes.len()).rev() {
            let height = node_height(&nodes[i], nodes);
            if height < nodes[i].height {
                nodes[i].height = height;
                changed = true;
            }
        }
        if !changed {
            settled = true;
            break;
        }
    }
    if !settled {
        // The chain is too long to prove that any node is infinite.
        for node in nodes.iter_mut().filter(|n| n.height == INFINITE_NODE_HEIGHT) {
            node.height = INFINITE_NODE_HEIGHT - 1;
        }
    }
}

/// Returns a lower bound of the minimum nesting of a node's values, from some of the keywords. If
/// the bound is infinite, no finite value exists.
fn node_height(node: &SchemaNode, nodes: &[SchemaNode]) -> u16 {
    if node.never {
        // The sampler reports a better reason for this node.
        return 0;
    }
    let of = |id: &SchemaNodeId| nodes[*id as usize].height;
    let mut height = 0;
    if node.allowed.is_none() {
        height = height_by_keywords(node, &of);
    }
    if let Some(applicators) = &node.applicators {
        for part in applicators.refs.iter().chain(&applicators.all) {
            height = height.max(of(part));
        }
        for branches in [&applicators.any, &applicators.one] {
            let least = branches.iter().map(&of).min();
            height = height.max(least.unwrap_or(0));
        }
    }
    height
}

fn height_by_keywords(node: &SchemaNode, of: &impl Fn(&SchemaNodeId) -> u16) -> u16 {
    let scalars = JsonTypes::ALL_TYPES.difference(JsonTypes::ARRAY.union(JsonTypes::OBJECT));
    if node.possible.intersects(scalars) {
        return 0;
    }
    let above = |inner: u16| {
        if inner >= INFINITE_NODE_HEIGHT - 1 { inner } else { inner + 1 }
    };
    let array = node.array.as_ref().map_or(0, |rules| {
        let prefix = rules.prefix.iter().take(rules.min as usize);
        let rest = rules.rest.iter().filter(|_| rules.min > rules.prefix.len() as u64);
        prefix.chain(rest).map(|id| above(of(id))).max().unwrap_or(0)
    });
    let object = node.object.as_ref().map_or(0, |rules| {
        rules
            .required
            .iter()
            .filter_map(|name| rules.properties.get(name))
            .map(|property| above(of(&property.node)))
            .max()
            .unwrap_or(0)
    });
    match (node.possible.intersects(JsonTypes::ARRAY), node.possible.intersects(JsonTypes::OBJECT))
    {
        (true, true) => array.min(object),
        (true, false) => array,
        (false, true) => object,
        (false, false) => 0,
    }
}
