//! A whole document.

use std::sync::OnceLock;

use jsonschema::{Draft, Validator};
use serde_json::Value;

use super::node::{ENDLESS, NodeId, SchemaNode};
use super::{analysis, read};
use crate::constraint::InvalidSchema;

/// How many `unevaluated…` keywords a document may have for `jsonschema` to be asked.
const MAX_CLOSING: usize = 8;

/// A schema document, ready.
pub(crate) struct Schema {
    pub(crate) nodes: Vec<SchemaNode>,
    pub(crate) root: NodeId,
    /// The document as `jsonschema` gets it.
    checked: Value,
    draft: Draft,
    /// `unevaluatedItems` or `unevaluatedProperties` occur: the validator must note which parts are evaluated.
    pub(super) tracks: bool,
    jsonschema: OnceLock<Option<Validator>>,
}

impl Schema {
    /// Reads a document.
    ///
    /// # Errors
    /// [`InvalidSchema`] where a keyword has a value that it cannot have, a pattern cannot be
    /// read or a reference leads nowhere.
    pub(crate) fn read(source: &Value) -> Result<Self, InvalidSchema> {
        let mut read = read::read(source)?;
        analysis::analyse(&mut read.nodes);
        let mut checked = source.clone();
        if let Value::Object(map) = &mut checked {
            // The draft is settled; an unknown dialect would be refused, not ignored.
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

    pub(crate) fn node(&self, id: NodeId) -> &SchemaNode {
        // Ids are made by `read` together with the nodes and never leave their schema.
        &self.nodes[id as usize]
    }

    /// Whether even the least value would nest without end.
    pub(crate) fn is_endless(&self) -> bool {
        self.node(self.root).height == ENDLESS
    }

    /// Whether `jsonschema` can compile the document in reasonable time: it takes a time
    /// exponential in how deep `unevaluated…` keywords nest.
    pub(crate) fn is_checkable(&self) -> bool {
        self.nodes.iter().filter(|node| node.is_closing()).count() <= MAX_CLOSING
    }

    /// Whether `jsonschema` accepts `value`, formats included; `None` when it refuses the
    /// document itself, for a pattern of another dialect or an address it cannot read.
    pub(crate) fn accepts(&self, value: &Value) -> Option<bool> {
        self.jsonschema
            .get_or_init(|| {
                jsonschema::options()
                    .with_draft(self.draft)
                    .should_validate_formats(true)
                    .with_pattern_options(crate::regex::engine())
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
