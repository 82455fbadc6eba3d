//! JSON Schemas, parsed once into a table of nodes for sampling and validation.
//!
//! Every schema object is one [`SchemaNode`] with an index, so references and recursion are cheap.
//! Drafts 4 to 2020-12 share the table; their differences are resolved while parsing.

mod analysis;
mod document;
mod format;
mod keywords;
mod node;
mod number;
mod range;
mod read;
mod references;
mod types;
mod validator;

pub(crate) use document::Schema;
pub(crate) use format::StringFormat;
pub(crate) use node::{
    ArrayRules, ContainsRule, ObjectRules, SchemaNode, SchemaNodeId, StringRules,
};
pub(crate) use range::{NumberRange, PreferredNumberRange};
pub(crate) use types::{JsonTypes, json_equal, json_type_of};
pub(crate) use validator::{BoundedValidator, ValidationFuelExhausted};
