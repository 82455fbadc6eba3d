//! Reading lists in JSON that was not checked.

use serde_json::Value;

/// The items of a member that is a list; none for what is no list.
pub(super) fn list<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}
