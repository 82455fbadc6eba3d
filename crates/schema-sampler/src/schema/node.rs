//! The constraints of one JSON schema object.

use indexmap::IndexMap;
use serde_json::Value;

use super::format::StringFormat;
use super::number::{ExactDecimal, NumberBound};
use super::types::JsonTypes;
use crate::regex::SchemaPattern;
use crate::semantic_type::SemanticType;

/// Height (minimum nesting) of a schema node that no finite value satisfies.
pub(crate) const INFINITE_NODE_HEIGHT: u16 = u16::MAX;

pub(crate) type SchemaNodeId = u32;

/// One schema object (or boolean) of the schema document.
#[derive(Debug)]
pub(crate) struct SchemaNode {
    /// JSON pointer to the schema object, for error messages.
    pub(crate) path: String,
    /// JSON types of the `type` keyword; all types without it.
    pub(crate) types: JsonTypes,
    pub(crate) typed: bool,
    /// Possible JSON types of a value, with references and combinators resolved.
    pub(crate) possible: JsonTypes,
    /// Lower bound of a value's minimum nesting; [`INFINITE_NODE_HEIGHT`] if no finite value exists.
    pub(crate) height: u16,
    /// Whether the schema is the boolean `false`, which no value satisfies.
    pub(crate) never: bool,
    /// Values of the keyword `enum` or `const`.
    pub(crate) allowed: Option<Vec<Value>>,
    pub(crate) number: Option<Box<NumberRules>>,
    pub(crate) string: Option<Box<StringRules>>,
    pub(crate) array: Option<Box<ArrayRules>>,
    pub(crate) object: Option<Box<ObjectRules>>,
    pub(crate) applicators: Option<Box<ApplicatorKeywords>>,
    pub(crate) hints: Option<Box<ValueHints>>,
}

impl SchemaNode {
    pub(crate) fn new(schema_path: String) -> Self {
        Self {
            path: schema_path,
            types: JsonTypes::ALL_TYPES,
            typed: false,
            possible: JsonTypes::ALL_TYPES,
            height: 0,
            never: false,
            allowed: None,
            number: None,
            string: None,
            array: None,
            object: None,
            applicators: None,
            hints: None,
        }
    }

    /// Returns whether this schema object has an `unevaluated…` keyword.
    pub(crate) fn has_unevaluated_keyword(&self) -> bool {
        let array = self.array.as_ref().and_then(|rules| rules.unevaluated);
        let object = self.object.as_ref().and_then(|rules| rules.unevaluated);
        array.or(object).is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct NumberRules {
    pub(crate) low: Vec<NumberBound>,
    pub(crate) high: Vec<NumberBound>,
    pub(crate) step: Option<ExactDecimal>,
}

#[derive(Debug, Default)]
pub(crate) struct StringRules {
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
    pub(crate) pattern: Option<SchemaPattern>,
    pub(crate) format: Option<StringFormat>,
    pub(crate) base64: bool,
    pub(crate) json: bool,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct ArrayRules {
    pub(crate) prefix: Vec<SchemaNodeId>,
    /// Schema of the array items that follow the `prefixItems`.
    pub(crate) rest: Option<SchemaNodeId>,
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
    pub(crate) unique: bool,
    pub(crate) contains: Option<ContainsRule>,
    pub(crate) unevaluated: Option<SchemaNodeId>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ContainsRule {
    pub(crate) node: SchemaNodeId,
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct ObjectRules {
    pub(crate) properties: IndexMap<String, PropertyRule>,
    pub(crate) patterns: Vec<(SchemaPattern, SchemaNodeId)>,
    pub(crate) additional: Option<SchemaNodeId>,
    pub(crate) names: Option<SchemaNodeId>,
    pub(crate) required: Vec<String>,
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
    pub(crate) needs: Vec<(String, Vec<String>)>,
    pub(crate) dependent: Vec<(String, SchemaNodeId)>,
    pub(crate) unevaluated: Option<SchemaNodeId>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PropertyRule {
    pub(crate) node: SchemaNodeId,
    pub(crate) semantic_type: Option<&'static SemanticType>,
}

/// Keywords of a JSON schema with other schemas for the same value, such as `allOf`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ApplicatorKeywords {
    pub(crate) refs: Vec<SchemaNodeId>,
    pub(crate) all: Vec<SchemaNodeId>,
    pub(crate) any: Vec<SchemaNodeId>,
    pub(crate) one: Vec<SchemaNodeId>,
    pub(crate) not: Option<SchemaNodeId>,
    pub(crate) when: Option<ConditionalSchemas>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ConditionalSchemas {
    pub(crate) test: SchemaNodeId,
    pub(crate) then: Option<SchemaNodeId>,
    pub(crate) otherwise: Option<SchemaNodeId>,
}

#[derive(Debug, Default)]
pub(crate) struct ValueHints {
    pub(crate) semantic_type: Option<&'static SemanticType>,
    /// Example value found in the `description` of the schema object.
    pub(crate) example: Option<String>,
    /// Values of the keywords `default`, `examples` and `example`.
    pub(crate) examples: Vec<Value>,
}
