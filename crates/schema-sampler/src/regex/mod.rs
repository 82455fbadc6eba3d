//! Generates strings that match a regular expression.

mod ecma;
mod generator;
mod pattern;
mod states;
mod whole;

pub(crate) use generator::RegexGenerator;
pub(crate) use pattern::{
    MAX_REGEX_TRANSLATION_COST, SchemaPattern, pattern_engine_options, regex_translation_cost,
};
pub(crate) use whole::WholeTextRegex;
