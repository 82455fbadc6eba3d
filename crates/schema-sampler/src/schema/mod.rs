//! A JSON Schema, read once into a table of nodes that can be sampled and checked.
//!
//! Every schema object of the document is one [`Node`], known by its index, so references
//! and recursion cost nothing and no keyword is looked up by name while a value is made.
//! Drafts 4 to 2020-12 are read into the same table; what differs is settled when reading.

mod document;
mod extent;
mod format;
mod judge;
mod keywords;
mod node;
mod number;
mod range;
mod read;
mod refs;
mod types;

pub(crate) use document::Schema;
pub(crate) use format::Format;
pub(crate) use judge::{Exhausted, Judge};
pub(crate) use node::{ArrayRules, Contains, Node, NodeId, ObjectRules, StringRules};
pub(crate) use range::Range;
pub(crate) use types::{Types, kind_of, same};
