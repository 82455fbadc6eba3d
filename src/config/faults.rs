use std::path::PathBuf;

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
