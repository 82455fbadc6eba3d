//! Errors of rendering a conversation.

/// Error of rendering a conversation, to be returned to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template raised an exception (`raise_exception`, message unchanged), failed, or does not
    /// compile.
    #[error("{0}")]
    Rejected(String),
    /// A message that vLLM rejects.
    #[error("{message} (parameter={parameter}{})", tail(value.as_deref()))]
    Message {
        /// Error message.
        message: String,
        /// Name of the invalid field.
        parameter: &'static str,
        /// Value of the field, if the message shows it.
        value: Option<String>,
    },
}

impl TemplateError {
    /// Returns the name of the invalid request field, if there is one.
    pub fn parameter(&self) -> Option<&'static str> {
        match self {
            Self::Message { parameter, .. } => Some(parameter),
            Self::Rejected(_) => None,
        }
    }
}

fn tail(value: Option<&str>) -> String {
    value
        .map(|value| format!(", value={value}"))
        .unwrap_or_default()
}
