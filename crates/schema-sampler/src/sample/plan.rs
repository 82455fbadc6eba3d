//! The combined constraints on one value.

use crate::schema::{JsonTypes, NodeId, NumberRange};

/// The combined constraints on one value, after all choices.
#[derive(Debug, Default)]
pub(super) struct ValuePlan {
    /// Nodes of the goal, with references and choices resolved.
    pub(super) facets: Vec<NodeId>,
    pub(super) types: JsonTypes,
    /// Whether any facet has a `type`.
    pub(super) is_typed: bool,
    /// Types suggested by the keywords.
    pub(super) meant: JsonTypes,
    /// Facet with the shortest `enum`.
    pub(super) allowed: Option<NodeId>,
    /// Number of branches beyond the first of each choice.
    pub(super) choices: u32,
    /// Whether the finished value must be validated.
    pub(super) is_hard: bool,
    pub(super) without: Vec<String>,
    pub(super) with: Vec<String>,
    /// Preferred types of items and members; none means any.
    pub(super) parts: JsonTypes,
    pub(super) bounds: ValueBounds,
    /// Reason why no value is possible, if so.
    pub(super) impossible: Option<(NodeId, &'static str)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ValueBounds {
    pub(super) length: (u64, u64),
    pub(super) items: (u64, u64),
    pub(super) members: (u64, u64),
    pub(super) range: NumberRange,
}

impl Default for ValueBounds {
    fn default() -> Self {
        Self {
            length: (0, u64::MAX),
            items: (0, u64::MAX),
            members: (0, u64::MAX),
            range: NumberRange::default(),
        }
    }
}
