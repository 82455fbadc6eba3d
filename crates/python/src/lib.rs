#![doc = include_str!("../README.md")]
//!
//! # Why a crate of its own
//!
//! Two crates that must not know each other need these rules: the wire for its refusals, the
//! tokenizer for its chat templates.

pub mod json;
mod loads;
mod repr;
mod value;

pub use loads::{JsonError, has_plain_numbers, loads};
pub use repr::{is_blank, repr, repr_float, repr_str, str, write_repr_str};
pub use value::{Py, beyond_json, float, int};
