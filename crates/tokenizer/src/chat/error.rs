//! Why a conversation could not be rendered.

/// Why a conversation could not be rendered. All of these are the client's to know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template refused (`raise_exception`, word for word), failed, or does not compile.
    #[error("{0}")]
    Rejected(String),
    /// A message is not of a form that vLLM takes.
    #[error("{message} (parameter={parameter}{})", tail(value.as_deref()))]
    Message {
        /// What is wrong.
        message: String,
        /// The member that is wrong.
        parameter: &'static str,
        /// Its value, where the message shows it.
        value: Option<String>,
    },
}

impl TemplateError {
    /// The member of the request that is wrong, if it is one.
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
