#![doc = include_str!("../README.md")]
//!
//! # Why a separate crate
//!
//! The crates `wire` (error messages) and `tokenizer` (chat templates) need these rules, and
//! neither depends on the other.

pub mod json;
mod loads;
mod repr;
mod value;

pub use loads::{JsonError, has_plain_numbers, loads};
pub use repr::{is_python_whitespace, repr, repr_float, repr_str, str, write_repr_str};
pub use value::{Py, beyond_json, float, int};
