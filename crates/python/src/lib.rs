#![doc = include_str!("../README.md")]
//!
//! # Why a separate crate
//!
//! The crates `wire` (error messages) and `tokenizer` (chat templates) need these rules, and
//! neither depends on the other.

pub mod json;
mod loads;
mod orjson;
mod repr;

pub use json::{PythonValue, json_of_number_text, json_of_python_float, json_of_python_int};
pub use loads::{
    JsonLoadsError, loads, loads_replacing_unpaired_surrogates, parses_numbers_like_serde_json,
};
pub use orjson::{OrjsonLoadsError, orjson_loads};
pub use repr::{
    bounded_python_repr, is_python_whitespace, python_repr, python_repr_of_float,
    python_repr_of_str, python_str, write_python_repr_of_str,
};
