//! The flags as data, one file per theme.

mod api;
mod content;
mod engine;
mod faults;
mod kv;
mod model;
mod server;

use super::registry::{Flag, Group, Kind};

/// All tables.
pub(super) const ALL: &[&[Flag]] = &[
    model::FLAGS,
    server::FLAGS,
    api::FLAGS,
    content::FLAGS,
    engine::FLAGS,
    faults::FLAGS,
    kv::FLAGS,
];
