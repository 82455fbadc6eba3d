//! Strings that match a pattern.

mod ecma;
mod pattern;
mod rx;
mod whole;

pub(crate) use pattern::{Pattern, engine};
pub(crate) use rx::Rx;
pub(crate) use whole::WholeRegex;
