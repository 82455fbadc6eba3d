//! A whole JSON schema document.

use std::sync::OnceLock;

use jsonschema::{Draft, Validator};
use serde_json::Value;

use super::node::{INFINITE_NODE_HEIGHT, SchemaNode, SchemaNodeId};
use super::{analysis, read};
use crate::constraint::{ConstraintError, InvalidSchema};

/// Maximum number of `unevaluated…` keywords in a schema for which `jsonschema` still checks
/// values.
const MAX_UNEVALUATED_KEYWORDS: usize = 8;

pub(crate) struct Schema {
    pub(crate) nodes: Vec<SchemaNode>,
    pub(crate) root: SchemaNodeId,
    /// The schema document as it is passed to the crate `jsonschema`.
    checked: Value,
    draft: Draft,
    /// Whether the schema has `unevaluatedItems` or `unevaluatedProperties`, so that the validator
    /// must track evaluated parts.
    pub(super) tracks: bool,
    jsonschema: OnceLock<Option<Validator>>,
}

impl Schema {
    /// Parses a JSON schema document.
    ///
    /// # Errors
    /// [`InvalidSchema`] for a keyword with an invalid value, an invalid pattern or an unresolved
    /// reference.
    pub(crate) fn parse(source: &Value) -> Result<Self, InvalidSchema> {
        let mut read = read::parse_schema(source)?;
        analysis::compute_types_and_heights(&mut read.nodes);
        let mut checked = source.clone();
        if let Value::Object(map) = &mut checked {
            // The draft is already determined, and `jsonschema` rejects unknown dialects.
            map.shift_remove("$schema");
        }
        Ok(Self {
            nodes: read.nodes,
            root: read.root,
            checked,
            draft: read.draft,
            tracks: read.tracks,
            jsonschema: OnceLock::new(),
        })
    }

    /// Parses a JSON schema document, also one that is given as text.
    ///
    /// # Errors
    /// [`ConstraintError`] for a text that is not JSON, and the errors of [`Self::parse`].
    pub(crate) fn parse_value_or_text(source: &Value) -> Result<Self, ConstraintError> {
        Ok(match source {
            Value::String(text) => {
                let value = serde_json::from_str(text).map_err(|_| ConstraintError::InvalidJson)?;
                Self::parse(&value)?
            }
            value => Self::parse(value)?,
        })
    }

    pub(crate) fn schema_node(&self, id: SchemaNodeId) -> &SchemaNode {
        // `read` creates ids together with the nodes, and they stay within their schema.
        &self.nodes[id as usize]
    }

    /// Returns whether every value that satisfies the schema would be infinitely nested.
    pub(crate) fn is_infinitely_nested(&self) -> bool {
        self.schema_node(self.root).height == INFINITE_NODE_HEIGHT
    }

    /// Returns whether the crate `jsonschema` can compile the document in reasonable time.
    ///
    /// The time is exponential in the nesting of `unevaluated…` keywords.
    pub(crate) fn is_checkable_by_jsonschema(&self) -> bool {
        self.nodes.iter().filter(|node| node.has_unevaluated_keyword()).count()
            <= MAX_UNEVALUATED_KEYWORDS
    }

    /// Returns whether the crate `jsonschema` accepts `value`, including formats.
    ///
    /// `None` if `jsonschema` rejects the schema document, for a pattern in another syntax or an
    /// unreadable URI.
    pub(crate) fn jsonschema_accepts(&self, value: &Value) -> Option<bool> {
        self.jsonschema
            .get_or_init(|| {
                jsonschema::options()
                    .with_draft(self.draft)
                    .should_validate_formats(true)
                    .with_pattern_options(crate::regex::pattern_engine_options())
                    .offline()
                    .build(&self.checked)
                    .ok()
            })
            .as_ref()
            .map(|validator| validator.is_valid(value))
    }
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schema")
            .field("nodes", &self.nodes.len())
            .field("draft", &self.draft)
            .finish_non_exhaustive()
    }
}
