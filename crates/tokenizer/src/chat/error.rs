//! Errors of rendering a conversation with a chat template.

use std::borrow::Cow;

/// Error of rendering a conversation to a prompt, to be returned to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatTemplateError {
    /// The chat template raised an exception (`raise_exception`, message unchanged), failed, or
    /// does not compile.
    #[error("{0}")]
    Rejected(String),
    /// vLLM rejects a message of the conversation.
    #[error("{message} (parameter={parameter}{})", field_suffix(value.as_deref()))]
    Message {
        /// Error text of vLLM for the invalid message of the conversation.
        message: String,
        /// Name of the invalid request field.
        parameter: &'static str,
        /// Value of the invalid request field, if the error message contains it.
        value: Option<String>,
    },
}

impl ChatTemplateError {
    /// Returns the name of the invalid request field, if there is one.
    pub fn invalid_request_field_name(&self) -> Option<&'static str> {
        match self {
            Self::Message { parameter, .. } => Some(parameter),
            Self::Rejected(_) => None,
        }
    }
}

fn field_suffix(value: Option<&str>) -> String {
    value.map(|value| format!(", value={value}")).unwrap_or_default()
}

/// Returns the error of a template operation whose operands or limits do not allow it.
pub(super) fn invalid_operation(message: impl Into<Cow<'static, str>>) -> minijinja::Error {
    minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message)
}
