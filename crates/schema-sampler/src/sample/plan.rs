//! The combined constraints on one generated value.

use crate::schema::{JsonTypes, NumberRange, SchemaNodeId};

/// The combined constraints on one generated value, after all choices between schema branches.
#[derive(Debug, Default)]
pub(super) struct ValuePlan {
    /// Schema nodes with constraints on the value, after references and choices are resolved.
    pub(super) facets: Vec<SchemaNodeId>,
    pub(super) types: JsonTypes,
    /// Whether a schema node of this plan has the keyword `type`.
    pub(super) is_typed: bool,
    /// JSON types suggested by the keywords of this plan's nodes, such as object by `properties`.
    pub(super) meant: JsonTypes,
    /// Schema node of this plan with the shortest `enum`.
    pub(super) allowed: Option<SchemaNodeId>,
    /// Number of alternatives not chosen, summed over all choices between schema branches.
    pub(super) choices: u32,
    /// Whether the generated value must be validated, because the generator does not guarantee all
    /// keywords of the value's schemas.
    pub(super) is_hard: bool,
    pub(super) without: Vec<String>,
    pub(super) with: Vec<String>,
    /// Preferred JSON types of the value's items or members; an empty set means any.
    pub(super) parts: JsonTypes,
    pub(super) bounds: ValueBounds,
    /// Schema node and reason of an unsatisfiable constraint; `None` if a value may exist.
    pub(super) impossible: Option<(SchemaNodeId, &'static str)>,
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
