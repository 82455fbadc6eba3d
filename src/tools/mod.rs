//! What runs offline: no server, no wall clock in any result.

pub mod validate;
