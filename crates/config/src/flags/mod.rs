//! Tables of all flags, one file per subject.

use super::flag::{FlagSpec, RuntimeChangeScope};

macro_rules! flags {
    ($($name:ident: $value:ty = $flag:expr;)*) => {
        $(pub(crate) const $name: Flag<$value> = $flag;)*

        pub(super) const TABLE: &[crate::flag::FlagSpec] = &[$($name.spec),*];
    };
}

macro_rules! words {
    [$(($name:literal, $meaning:expr)),+] => {
        crate::flag::FlagChoices { names: &[$($name),+], meanings: &[$($meaning),+] }
    };
}

pub(super) mod api;
pub(super) mod content;
pub(super) mod engine;
pub(super) mod faults;
pub(super) mod kv;
pub(super) mod model;
pub(super) mod server;

const FLAG_TABLES: [&[FlagSpec]; 7] = [
    model::TABLE,
    server::TABLE,
    api::TABLE,
    content::TABLE,
    engine::TABLE,
    faults::TABLE,
    kv::TABLE,
];

/// Returns every flag with an effect in the simulator, in the order of the flag tables.
pub fn all_effective_flags() -> impl Iterator<Item = &'static FlagSpec> {
    FLAG_TABLES.into_iter().flatten()
}

pub(super) fn find_long_flag(name: &str) -> Option<&'static FlagSpec> {
    all_effective_flags().find(|f| f.name == name || f.aliases.contains(&name))
}

pub(super) fn find_short_flag(name: &str) -> Option<&'static FlagSpec> {
    all_effective_flags().find(|f| f.shorts.contains(&name))
}

/// Returns the flag of an admin API field and its scope, if it can be changed at run time.
pub fn find_runtime_changeable_flag(
    field: &str,
) -> Option<(&'static FlagSpec, RuntimeChangeScope)> {
    let name = field.replace('_', "-");
    let flag = all_effective_flags().find(|flag| flag.name == name)?;
    Some((flag, flag.live?))
}
