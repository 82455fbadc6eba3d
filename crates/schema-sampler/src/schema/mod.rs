//! A JSON Schema, read once into a table of nodes that can be sampled and checked.
//!
//! Every schema object of the document is one [`SchemaNode`], known by its index, so references
//! and recursion cost nothing and no keyword is looked up by name while a value is made.
//! Drafts 4 to 2020-12 are read into the same table; what differs is settled when reading.

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
pub(crate) use node::{ArrayRules, Contains, NodeId, ObjectRules, SchemaNode, StringRules};
pub(crate) use range::{NumberRange, UsualRange};
pub(crate) use types::{JsonTypes, json_equal, type_of};
pub(crate) use validator::{BoundedValidator, FuelExhausted};
