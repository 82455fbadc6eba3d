//! Injected error responses: status and message.
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/failures.go`.

use vllm_sim_wire::fault::{ErrorType, Fault};

/// An error response that llm-d-inference-sim injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFailure {
    /// Injected error response: rate limit reached, status 429.
    RateLimit,
    /// Injected error response: invalid API key, status 401.
    InvalidApiKey,
    /// Injected error response: prompt longer than the context, status 400.
    ContextLength,
    /// Injected error response: overloaded server, status 503.
    ServerError,
    /// Injected error response: missing required parameter, status 400.
    InvalidRequest,
    /// Injected error response: unknown model, status 404.
    ModelNotFound,
}

impl InjectedFailure {
    /// All injected error responses, in llm-d's order.
    pub const ALL_INJECTED_FAILURES: [Self; 6] = [
        Self::RateLimit,
        Self::InvalidApiKey,
        Self::ContextLength,
        Self::ServerError,
        Self::InvalidRequest,
        Self::ModelNotFound,
    ];

    /// Returns the name of the injected error response, as in flags, files, headers and metrics.
    pub fn injected_failure_name(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::InvalidApiKey => "invalid_api_key",
            Self::ContextLength => "context_length",
            Self::ServerError => "server_error",
            Self::InvalidRequest => "invalid_request",
            Self::ModelNotFound => "model_not_found",
        }
    }

    /// Returns the injected error response with the given name.
    pub fn from_injected_failure_name(name: &str) -> Option<Self> {
        Self::ALL_INJECTED_FAILURES
            .into_iter()
            .find(|failure| failure.injected_failure_name() == name)
    }

    /// Returns the injected error response to a request for `model`.
    pub fn to_fault(self, model: &str) -> Fault {
        let status = self.http_status();
        Fault {
            param: self.error_param().map(str::to_owned),
            ..Fault::new(status, ErrorType::from_http_status(status), self.error_message(model))
        }
    }

    fn http_status(self) -> u16 {
        match self {
            Self::RateLimit => 429,
            Self::InvalidApiKey => 401,
            Self::ContextLength | Self::InvalidRequest => 400,
            Self::ServerError => 503,
            Self::ModelNotFound => 404,
        }
    }

    /// Returns the request field that the error body names (`param`).
    fn error_param(self) -> Option<&'static str> {
        match self {
            Self::ContextLength => Some("messages"),
            Self::InvalidRequest | Self::ModelNotFound => Some("model"),
            Self::RateLimit | Self::InvalidApiKey | Self::ServerError => None,
        }
    }

    fn error_message(self, model: &str) -> String {
        match self {
            Self::RateLimit => format!(
                "Rate limit reached for {model} in organization org-xxx on requests per min (RPM): Limit 3, Used 3, Requested 1."
            ),
            Self::InvalidApiKey => "Incorrect API key provided.".to_owned(),
            Self::ContextLength => "This model's maximum context length is 4096 tokens. However, your messages resulted in 4500 tokens.".to_owned(),
            Self::ServerError => "The server is overloaded or not ready yet.".to_owned(),
            Self::InvalidRequest => {
                "Invalid request: missing required parameter 'model'.".to_owned()
            }
            Self::ModelNotFound => format!("The model '{model}-nonexistent' does not exist"),
        }
    }
}
