//! Translates the `guided_*` request fields of vLLM before 0.12, if the server is configured to
//! accept them.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::app::App;

/// Deprecated `guided_*` fields and their names within `structured_outputs`.
const GUIDED_FIELDS: [(&str, &str); 6] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("guided_json_object", "json_object"),
    ("guided_whitespace_pattern", "whitespace_pattern"),
];

/// Returns a request body with its `guided_*` fields moved to `structured_outputs`.
///
/// A body that already has `structured_outputs` is unchanged.
pub(crate) fn move_guided_fields<'b>(app: &App, value: &'b Value) -> Cow<'b, Value> {
    if app.settings.answers.legacy_guided {
        with_structured_outputs(value)
    } else {
        Cow::Borrowed(value)
    }
}

fn with_structured_outputs(value: &Value) -> Cow<'_, Value> {
    let given = |key: &str| value.get(key).filter(|given| !given.is_null());
    let pairs = GUIDED_FIELDS.iter().filter_map(|(old, new)| {
        let value = given(old).filter(|v| **v != Value::Bool(false))?;
        Some(((*new).to_owned(), value.clone()))
    });
    let outputs: Map<String, Value> = pairs.collect();
    if outputs.is_empty() || given("structured_outputs").is_some() {
        return Cow::Borrowed(value);
    }
    let mut body = value.clone();
    body["structured_outputs"] = outputs.into();
    Cow::Owned(body)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn guided_fields_become_structured_outputs() {
        let old = json!({"guided_choice": ["a", "b"], "guided_json_object": false});
        let new = with_structured_outputs(&old);
        assert_eq!(new["structured_outputs"], json!({"choice": ["a", "b"]}));
        let both = json!({"guided_choice": ["a"], "structured_outputs": {"regex": "b"}});
        assert_eq!(*with_structured_outputs(&both), both);
        let none = json!({"guided_regex": null});
        assert_eq!(*with_structured_outputs(&none), none);
    }
}
