//! The JSON Schema keyword `format`, checked by the crate `jsonschema`.

use std::sync::OnceLock;

use jsonschema::{Draft, Validator};
use serde_json::Value;

pub(crate) struct StringFormat {
    pub(crate) name: String,
    draft: Draft,
    matcher: OnceLock<Option<Validator>>,
}

impl StringFormat {
    pub(crate) fn new(format_name: &str, draft: Draft) -> Self {
        Self { name: format_name.to_owned(), draft, matcher: OnceLock::new() }
    }

    /// Returns whether a string has the format; unknown formats accept any text.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.matcher
            .get_or_init(|| {
                jsonschema::options()
                    .with_draft(self.draft)
                    .should_validate_formats(true)
                    .build(&serde_json::json!({"format": self.name}))
                    .ok()
            })
            .as_ref()
            .is_none_or(|m| m.is_valid(&Value::String(text.to_owned())))
    }
}

impl std::fmt::Debug for StringFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
