#![doc = include_str!("../README.md")]

mod cache;
mod compiled;
mod constraint;
mod grammar;
mod json_text;
mod limits;
mod regex;
mod sample;
mod schema;
mod semantic_type;
mod structural_tag;
mod words;
mod work;

pub use rand_chacha;

pub use cache::SchemaCache;
pub use compiled::{Compiled, compile};
pub use constraint::{Constraint, ConstraintError};
pub use limits::Limits;

#[cfg(test)]
mod tests;
