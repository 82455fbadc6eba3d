#![doc = include_str!("../README.md")]

mod cache;
mod compiled;
mod constraint;
mod grammar;
mod limits;
mod print;
mod regex;
mod sample;
mod schema;
mod structural_tag;
mod words;

pub use rand_chacha;

pub use cache::Cache;
pub use compiled::{Compiled, compile};
pub use constraint::{Constraint, ConstraintError};
pub use limits::Limits;

#[cfg(test)]
mod tests;
