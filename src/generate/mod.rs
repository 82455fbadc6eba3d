//! What is said: content made up, echoed, taken from a dataset or bound by a constraint.

pub mod structured;
pub mod tools;
