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
pub use compiled::{CompiledConstraint, compile_constraint};
pub use constraint::{Constraint, ConstraintError};
pub use limits::SampleLimits;

#[cfg(test)]
mod tests;
