//! A JSON Schema, read once into a table of nodes that can be sampled and checked.
//!
//! Every schema object of the document is one [`Node`], known by its index, so references
//! and recursion cost nothing and no keyword is looked up by name while a value is made.
//! Drafts 4 to 2020-12 are read into the same table; what differs is settled when reading.

mod extent;
mod judge;
mod number;
mod read;
mod refs;

use std::sync::OnceLock;

use indexmap::IndexMap;
use jsonschema::{Draft, Validator};
use serde_json::Value;

pub(super) use judge::{Exhausted, Judge, kind_of, same};
pub(super) use number::{Decimal, Num, Range};

use super::regex::Pattern;
use super::words::Concept;

/// How many `unevaluated…` keywords a document may have for `jsonschema` to be asked.
const MAX_CLOSING: usize = 8;

/// Index of a [`Node`].
pub(super) type NodeId = u32;

/// A set of JSON types; an integer is a number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NONE: Self = Self(0);
    pub(super) const NULL: Self = Self(1);
    pub(super) const BOOLEAN: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    /// Numbers that are no integers.
    pub(super) const FRACTION: Self = Self(8);
    pub(super) const NUMBER: Self = Self(12);
    pub(super) const STRING: Self = Self(16);
    pub(super) const ARRAY: Self = Self(32);
    pub(super) const OBJECT: Self = Self(64);
    pub(super) const ALL: Self = Self(127);

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn count(self) -> u32 {
        self.0.count_ones()
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }
}

/// One schema object (or boolean) of the document.
#[derive(Debug)]
pub(super) struct Node {
    /// JSON pointer, for errors.
    pub(super) path: String,
    /// The `type` keyword; all when absent.
    pub(super) types: Types,
    pub(super) typed: bool,
    /// The types a value can have, seen through references and combinators.
    pub(super) possible: Types,
    /// A lower bound of how deep the least value nests; [`extent::ENDLESS`] when no finite
    /// value exists.
    pub(super) height: u16,
    /// The schema `false`.
    pub(super) never: bool,
    /// `enum` and `const`.
    pub(super) allowed: Option<Vec<Value>>,
    pub(super) number: Option<Box<NumberRules>>,
    pub(super) string: Option<Box<StringRules>>,
    pub(super) array: Option<Box<ArrayRules>>,
    pub(super) object: Option<Box<ObjectRules>>,
    pub(super) logic: Option<Box<Logic>>,
    pub(super) hints: Option<Box<Hints>>,
}

impl Node {
    fn new(path: String) -> Self {
        Self {
            path,
            types: Types::ALL,
            typed: false,
            possible: Types::ALL,
            height: 0,
            never: false,
            allowed: None,
            number: None,
            string: None,
            array: None,
            object: None,
            logic: None,
            hints: None,
        }
    }

    /// Whether this node has an `unevaluated…` keyword.
    fn is_closing(&self) -> bool {
        let array = self.array.as_ref().and_then(|rules| rules.unevaluated);
        let object = self.object.as_ref().and_then(|rules| rules.unevaluated);
        array.or(object).is_some()
    }
}

#[derive(Debug, Default)]
pub(super) struct NumberRules {
    /// Bound, and whether it is excluded.
    pub(super) low: Vec<(Num, bool)>,
    pub(super) high: Vec<(Num, bool)>,
    pub(super) step: Option<Decimal>,
}

#[derive(Debug, Default)]
pub(super) struct StringRules {
    pub(super) min: u64,
    pub(super) max: Option<u64>,
    pub(super) pattern: Option<Pattern>,
    pub(super) format: Option<Format>,
    pub(super) base64: bool,
    pub(super) json: bool,
}

/// A `format`, with the check that `jsonschema` makes of it.
pub(super) struct Format {
    pub(super) name: String,
    draft: Draft,
    matcher: OnceLock<Option<Validator>>,
}

impl Format {
    fn new(name: &str, draft: Draft) -> Self {
        Self {
            name: name.to_owned(),
            draft,
            matcher: OnceLock::new(),
        }
    }

    /// Whether `text` has the format; unknown formats have any.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.matcher
            .get_or_init(|| {
                jsonschema::options()
                    .with_draft(self.draft)
                    .should_validate_formats(true)
                    .build(&serde_json::json!({"format": self.name}))
                    .ok()
            })
            .as_ref()
            .is_none_or(|m| m.is_valid(&Value::String(text.to_owned())))
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

#[derive(Debug, Default)]
pub(super) struct ArrayRules {
    pub(super) prefix: Vec<NodeId>,
    /// Schema of the items after the prefix.
    pub(super) rest: Option<NodeId>,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
    pub(super) unique: bool,
    pub(super) contains: Option<Contains>,
    pub(super) unevaluated: Option<NodeId>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Contains {
    pub(super) node: NodeId,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct ObjectRules {
    pub(super) properties: IndexMap<String, Property>,
    pub(super) patterns: Vec<(Pattern, NodeId)>,
    pub(super) additional: Option<NodeId>,
    pub(super) names: Option<NodeId>,
    pub(super) required: Vec<String>,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
    pub(super) needs: Vec<(String, Vec<String>)>,
    pub(super) dependent: Vec<(String, NodeId)>,
    pub(super) unevaluated: Option<NodeId>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Property {
    pub(super) node: NodeId,
    pub(super) concept: Option<&'static Concept>,
}

/// Keywords that apply other schemas to the same value.
#[derive(Debug, Default)]
pub(super) struct Logic {
    pub(super) refs: Vec<NodeId>,
    pub(super) all: Vec<NodeId>,
    pub(super) any: Vec<NodeId>,
    pub(super) one: Vec<NodeId>,
    pub(super) not: Option<NodeId>,
    pub(super) when: Option<Conditional>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Conditional {
    pub(super) test: NodeId,
    pub(super) then: Option<NodeId>,
    pub(super) otherwise: Option<NodeId>,
}

/// What helps to choose a sensible value.
#[derive(Debug, Default)]
pub(super) struct Hints {
    pub(super) concept: Option<&'static Concept>,
    /// The example that the description gives.
    pub(super) said: Option<String>,
    /// `default`, `examples`, `example`.
    pub(super) values: Vec<Value>,
}

/// Why a document is no schema that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadSchema {
    pub(super) path: String,
    pub(super) reason: String,
}

/// A schema document, ready.
pub(super) struct Schema {
    pub(super) nodes: Vec<Node>,
    pub(super) root: NodeId,
    source: Value,
    /// The document as `jsonschema` gets it.
    checked: Value,
    draft: Draft,
    /// `unevaluatedItems` or `unevaluatedProperties` occur: the judge must keep marks.
    tracks: bool,
    validator: OnceLock<Option<Validator>>,
}

impl Schema {
    /// Reads a document.
    ///
    /// # Errors
    /// [`BadSchema`] where a keyword has a value that it cannot have, a pattern cannot be
    /// read or a reference leads nowhere.
    pub(super) fn read(source: &Value) -> Result<Self, BadSchema> {
        let mut schema = read::read(source)?;
        extent::measure(&mut schema.nodes);
        Ok(schema)
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        // Ids are made by `read` together with the nodes and never leave their schema.
        &self.nodes[id as usize]
    }

    pub(super) fn source(&self) -> &Value {
        &self.source
    }

    /// Whether even the least value would nest without end.
    pub(super) fn is_endless(&self) -> bool {
        self.node(self.root).height == extent::ENDLESS
    }

    /// Whether `jsonschema` can compile the document in reasonable time: it takes a time
    /// exponential in how deep `unevaluated…` keywords nest.
    pub(super) fn is_checkable(&self) -> bool {
        self.nodes.iter().filter(|node| node.is_closing()).count() <= MAX_CLOSING
    }

    /// Whether `jsonschema` accepts `value`, formats included; `None` when it refuses the
    /// document itself, for a pattern of another dialect or an address it cannot read.
    pub(super) fn accepts(&self, value: &Value) -> Option<bool> {
        self.validator
            .get_or_init(|| {
                jsonschema::options()
                    .with_draft(self.draft)
                    .should_validate_formats(true)
                    .with_pattern_options(super::regex::engine())
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
