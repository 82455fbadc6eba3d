//! What one value must satisfy.

use crate::schema::{JsonTypes, NodeId, NumberRange};

/// What one value must satisfy, all choices made.
#[derive(Debug, Default)]
pub(super) struct ValuePlan {
    /// Nodes whose own keywords apply.
    pub(super) facets: Vec<NodeId>,
    /// Types that all facets allow.
    pub(super) types: JsonTypes,
    /// A facet names its `type`.
    pub(super) is_typed: bool,
    /// Types that the keywords are about.
    pub(super) meant: JsonTypes,
    /// The facet with the shortest `enum`.
    pub(super) allowed: Option<NodeId>,
    /// How many branches there were to choose from.
    pub(super) choices: u32,
    /// The value must be validated when it is made.
    pub(super) is_hard: bool,
    /// Properties that must be left out.
    pub(super) without: Vec<String>,
    /// Properties that must be there.
    pub(super) with: Vec<String>,
    /// Types that items and members should rather have; none: any.
    pub(super) parts: JsonTypes,
    /// Bounds that no facet states.
    pub(super) bounds: ValueBounds,
    /// No value is possible, and why.
    pub(super) impossible: Option<(NodeId, &'static str)>,
}

/// Bounds beside those of the facets.
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
