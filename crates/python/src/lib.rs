//! Values as Python reads and prints them: `json.loads`, `json.dumps`, `repr` and `str`.
//!
//! vLLM's error texts quote Python's `repr` of what a client sent, its chat templates print dicts
//! and dump JSON, and its bodies are read by `json.loads`; the texts can only be right when
//! numbers, strings and containers are spelled as Python spells them.
//!
//! A crate of its own, and a small one, because two that must not know each other need it: the
//! wire for its refusals, the tokenizer for its chat templates.
//!
//! ```
//! use vllm_sim_python as python;
//!
//! let value = python::loads(br#"{"a": [1, 2.0, NaN, true], "b": "it's"}"#)?;
//! assert_eq!(python::repr(&value), r#"{'a': [1, 2.0, nan, True], 'b': "it's"}"#);
//! # Ok::<(), python::JsonError>(())
//! ```

pub mod json;
mod loads;
mod repr;
mod value;

pub use loads::{JsonError, loads};
pub use repr::{is_blank, repr, repr_float, repr_str, str, write_repr_str};
pub use value::{Py, beyond_json, float, int};
