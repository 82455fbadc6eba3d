use std::path::PathBuf;

use super::error::ConfigError;
use super::values::Values;

/// Failures on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults {
    /// Percentage of requests that fail [0].
    pub rate: u8,
    /// Which failures; empty: all of them.
    pub types: Vec<FailureType>,
    /// Failures over time, from a file.
    pub scenario: Option<PathBuf>,
}

/// One failure of llm-d's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureType {
    /// 429.
    RateLimit,
    /// 401.
    InvalidApiKey,
    /// 400.
    ContextLength,
    /// 503.
    ServerError,
    /// 400.
    InvalidRequest,
    /// 404.
    ModelNotFound,
}

impl FailureType {
    /// All of them, in llm-d's order.
    pub const ALL: [Self; 6] = [
        Self::RateLimit,
        Self::InvalidApiKey,
        Self::ContextLength,
        Self::ServerError,
        Self::InvalidRequest,
        Self::ModelNotFound,
    ];

    /// The word that flags and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::InvalidApiKey => "invalid_api_key",
            Self::ContextLength => "context_length",
            Self::ServerError => "server_error",
            Self::InvalidRequest => "invalid_request",
            Self::ModelNotFound => "model_not_found",
        }
    }
}

impl Faults {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let words = "failure injection rate should be between 0 and 100";
        let mut types = Vec::new();
        for typed in v.comma_list("failure-types") {
            let found = FailureType::ALL.into_iter().find(|t| t.name() == typed);
            types.push(found.ok_or_else(|| unknown(&typed))?);
        }
        Ok(Self {
            rate: v.ranged("failure-injection-rate", 0..=100, words)?,
            types,
            scenario: v.path("scenario"),
        })
    }
}

fn unknown(typed: &str) -> ConfigError {
    let allowed = FailureType::ALL.map(FailureType::name).join(", ");
    ConfigError::Invalid(format!(
        "invalid failure type '{typed}', valid types are: {allowed}"
    ))
}
