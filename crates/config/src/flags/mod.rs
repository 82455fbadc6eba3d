//! The flags, one file per theme.

use super::flag::{FlagSpec, Scope};

/// Constants of flags, and the table of them.
macro_rules! flags {
    ($($name:ident: $value:ty = $flag:expr;)*) => {
        $(pub(crate) const $name: Flag<$value> = $flag;)*

        pub(super) const TABLE: &[crate::flag::FlagSpec] = &[$($name.spec),*];
    };
}

/// The words of a choice, each with what it means.
macro_rules! words {
    [$(($name:literal, $meaning:expr)),+] => {
        crate::flag::ChoiceWords { names: &[$($name),+], meanings: &[$($meaning),+] }
    };
}

pub(super) mod api;
pub(super) mod content;
pub(super) mod engine;
pub(super) mod faults;
pub(super) mod kv;
pub(super) mod model;
pub(super) mod server;

const TABLES: [&[FlagSpec]; 7] = [
    model::TABLE,
    server::TABLE,
    api::TABLE,
    content::TABLE,
    engine::TABLE,
    faults::TABLE,
    kv::TABLE,
];

/// Every flag that does something, group by group.
pub fn flags() -> impl Iterator<Item = &'static FlagSpec> {
    TABLES.into_iter().flatten()
}

/// The flag of this long name or alias.
pub(super) fn long(name: &str) -> Option<&'static FlagSpec> {
    flags().find(|f| f.name == name || f.aliases.contains(&name))
}

/// The flag of this name after one dash.
pub(super) fn short(name: &str) -> Option<&'static FlagSpec> {
    flags().find(|f| f.shorts.contains(&name))
}

/// The flag of this field of the admin API, when it may be changed while running, and for whom.
pub fn live(field: &str) -> Option<(&'static FlagSpec, Scope)> {
    let name = field.replace('_', "-");
    let flag = flags().find(|flag| flag.name == name)?;
    Some((flag, flag.live?))
}
