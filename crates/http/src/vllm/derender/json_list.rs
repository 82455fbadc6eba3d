//! Access to lists in unvalidated JSON.

use serde_json::Value;

/// Iterates over the items of the list `key` in a JSON object; empty if the member is not a list.
pub(super) fn iter_array_field<'v>(
    value: &'v Value,
    key: &str,
) -> impl Iterator<Item = &'v Value> + use<'v> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}
