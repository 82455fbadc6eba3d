//! Errors of request bodies in the form of SGLang's handlers.
//!
//! Source: SGLang 0.5.23 `http_server.py` (`validation_exception_handler`,
//! `_anthropic_validation_message`).

use serde_json::Value;

use crate::body::unreadable_value_fault;
use crate::bounds::RequestBounds;
use crate::checker::{CheckError, SchemaChecker};
use crate::fastapi::{BodyReadError, BodySchemaErrors, RouteFunction};
use crate::fault::{ErrorType, Fault};
use crate::report::{SchemaErrorStyle, pydantic_error_text};
use crate::schema::RequestField;

/// Maximum length of the text with all errors of a request body for Anthropic's API, in characters.
const MAX_DIGEST_CHARS: usize = 500;

impl BodySchemaErrors {
    /// Returns the short error text that SGLang sends for Anthropic's API: location and message of
    /// each error.
    pub fn anthropic_error_text(&self) -> String {
        let parts = self.0.kept.iter().map(|error| match error.loc.as_str() {
            "" => error.error.message.clone().into_owned(),
            loc => format!("{loc}: {}", error.error.message),
        });
        let text = parts.collect::<Vec<_>>().join("; ");
        match text.char_indices().nth(MAX_DIGEST_CHARS) {
            Some((end, _)) => format!("{}\u{2026}", &text[..end]),
            None => text,
        }
    }

    /// Returns SGLang's error response, with status 400, for a request body with these schema
    /// errors.
    pub fn to_sglang_fault(&self, endpoint: &RouteFunction) -> Fault {
        Fault::new(400, ErrorType::BadRequestPhrase, self.error_message(endpoint))
    }
}

impl BodyReadError {
    /// Returns SGLang's error response for a request body that cannot be read.
    pub fn to_sglang_fault(self, endpoint: &RouteFunction) -> Fault {
        match self {
            Self::Errors(errors) => errors.to_sglang_fault(endpoint),
            Self::Fault(fault) => fault,
        }
    }
}

/// Reads an object that SGLang's code builds from a request, as the constructor of the object's
/// class does.
///
/// # Errors
/// A 400 with the text of pydantic's exception, and of its absent cause.
pub fn construct_python_object<T: RequestField>(
    value: &Value,
    class: &str,
    bounds: &RequestBounds,
) -> Result<T, Fault> {
    let mut checker =
        SchemaChecker::default().with_bounds(*bounds).with_error_style(SchemaErrorStyle::Labelled);
    let changed = checker.check_value(&T::SCHEMA, value).map_err(|error| match error {
        CheckError::Schema(errors) => {
            Fault::bad_request(format!("{} None", pydantic_error_text(class, &errors)))
        }
        CheckError::Raised(fault) => fault,
    })?;
    let read = T::read(changed.as_ref().unwrap_or(value));
    read.ok_or_else(unreadable_value_fault)
}
