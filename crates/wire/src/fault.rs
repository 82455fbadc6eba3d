//! Error responses of a vLLM server, and their JSON.
//!
//! Source: `vllm/entrypoints/serve/exception_handling/`, `vllm/entrypoints/serve/engine/
//! protocol.py` (`ErrorInfo`), `vllm/entrypoints/anthropic/`.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::LazyLock;

use regex::Regex;

use super::version::VllmVersion;

/// Value of the `type` member of an error response; also selects the JSON around the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorType {
    /// Error of semantic validation: `BadRequestError`.
    BadRequest,
    /// Error of schema validation, broken JSON or a wrong media type: `Bad Request`, with a space.
    BadRequestPhrase,
    /// Python's `ValueError` in a handler of a route: `BadRequest`.
    BadRequestName,
    /// Unknown model or LoRA adapter: `NotFoundError`.
    NotFound,
    /// Errors of the Responses API: `invalid_request_error`.
    InvalidRequest,
    /// Errors in arguments of the LoRA routes: `InvalidUserInput`.
    InvalidUserInput,
    /// Failure to fetch or decode an image, audio or video: `UnprocessableEntityError`.
    UnprocessableEntity,
    /// Request to a disabled scale-out route: `PermissionDeniedError`.
    PermissionDenied,
    /// Request to an API that the model does not support: `NotImplementedError`.
    NotImplemented,
    /// Request that is too large: `RequestEntityTooLarge` (ours; vLLM has no limit).
    TooLarge,
    /// Simulated invalid API key of llm-d: `AuthenticationError`.
    Authentication,
    /// Error with any other HTTP status in llm-d: `APIConnectionError`.
    ApiConnection,
    /// Full queue of llm-d: `RateLimitError`.
    RateLimit,
    /// Failure of the engine: `InternalServerError`.
    InternalServer,
    /// Engine error after which the client may retry: `ServiceUnavailableError`.
    ServiceUnavailable,
    /// Rejection by admission limits: `Service Unavailable`, the phrase of HTTP status 503.
    ServiceUnavailablePhrase,
    /// The phrase of HTTP status 408, `Request Timeout`.
    RequestTimeoutPhrase,
    /// The phrase of HTTP status 500, `Internal Server Error`.
    InternalServerPhrase,
    /// The phrase of HTTP status 409, `Conflict`.
    ConflictPhrase,
    /// The phrase of HTTP status 501, `Not Implemented`.
    NotImplementedPhrase,
    /// The phrase of HTTP status 422, `Unprocessable Entity`, or the phrase that the release of
    /// Python has for 422.
    UnprocessablePhrase,
    /// Starlette's error body `{"detail": message}` instead of vLLM's.
    Detail,
    /// Error body of middleware: `{"error": message}`.
    Bare,
}

impl ErrorType {
    /// Returns llm-d's error `type` for an HTTP status.
    ///
    /// Source: llm-d-inference-sim `failures.go`.
    pub fn from_http_status(status: u16) -> Self {
        match status {
            400 => Self::BadRequest,
            401 => Self::Authentication,
            403 => Self::PermissionDenied,
            404 => Self::NotFound,
            422 => Self::UnprocessableEntity,
            429 => Self::RateLimit,
            500.. => Self::InternalServer,
            _ => Self::ApiConnection,
        }
    }

    /// Returns the text of the error's `type` member.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequestError",
            Self::BadRequestPhrase => "Bad Request",
            Self::BadRequestName => "BadRequest",
            Self::NotFound => "NotFoundError",
            Self::InvalidRequest => "invalid_request_error",
            Self::InvalidUserInput => "InvalidUserInput",
            Self::UnprocessableEntity => "UnprocessableEntityError",
            Self::PermissionDenied => "PermissionDeniedError",
            Self::NotImplemented => "NotImplementedError",
            Self::TooLarge => "RequestEntityTooLarge",
            Self::Authentication => "AuthenticationError",
            Self::ApiConnection => "APIConnectionError",
            Self::RateLimit => "RateLimitError",
            Self::InternalServer => "InternalServerError",
            Self::ServiceUnavailable => "ServiceUnavailableError",
            Self::ServiceUnavailablePhrase => "Service Unavailable",
            Self::RequestTimeoutPhrase => "Request Timeout",
            Self::InternalServerPhrase => "Internal Server Error",
            Self::ConflictPhrase => "Conflict",
            Self::NotImplementedPhrase => "Not Implemented",
            Self::UnprocessablePhrase => "Unprocessable Entity",
            Self::Detail | Self::Bare => "",
        }
    }
}

/// One error response of the server, before rendering as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// HTTP status of the response, also the error's `code` member.
    pub status: u16,
    /// The error's `type` member.
    pub error_type: ErrorType,
    /// The error message, before its clean-up by [`sanitize_error_message`].
    pub message: String,
    /// The error's `param` member: the name of the invalid parameter.
    pub param: Option<String>,
    /// The response header `Retry-After`, in seconds; `None`: no header.
    pub retry_after_seconds: Option<u32>,
}

impl Fault {
    /// Creates an error response without the name of a parameter.
    pub fn new(status: u16, error_type: ErrorType, message: impl Into<String>) -> Self {
        Self { status, error_type, message: message.into(), param: None, retry_after_seconds: None }
    }

    /// Creates a 400 `BadRequestError` with this message, unchanged.
    ///
    /// In vLLM this is a `VLLMValidationError` without details, or a plain `ValueError`.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, ErrorType::BadRequest, message)
    }

    /// Creates a 400 `BadRequestError` with `(parameter=P)` appended to the message.
    pub fn bad_parameter(message: impl fmt::Display, param: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::bad_request(format!("{message} (parameter={param})"))
        }
    }

    /// Creates a 400 `BadRequestError` with `(parameter=P, value=V)` appended to the message;
    /// `value` is Python's `repr`.
    pub fn invalid_value_fault(
        message: impl fmt::Display,
        param: &str,
        value: impl fmt::Display,
    ) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::bad_request(format!("{message} (parameter={param}, value={value})"))
        }
    }

    /// Creates the 404 of generation routes and `/tokenize` for a model name that is not served.
    pub fn unknown_model<S: AsRef<str>>(model: &str, served: &[S]) -> Self {
        let aliases: Vec<&str> = served.iter().map(AsRef::as_ref).collect();
        Self {
            param: Some("model".to_owned()),
            ..Self::new(
                404,
                ErrorType::NotFound,
                format!(
                    "The model `{model}` does not exist. Valid aliases: {}.",
                    aliases.join(", ")
                ),
            )
        }
    }

    /// Creates the 404 of the pooling routes for a model name that is not served.
    pub fn unknown_pooling_model_fault(model: &str) -> Self {
        Self::new(404, ErrorType::NotFound, format!("The model `{model}` does not exist."))
    }

    /// Creates the 403 of the scale-out routes of a server without `--enable-scale-out`.
    pub fn scale_out_disabled_fault() -> Self {
        Self::new(
            403,
            ErrorType::PermissionDenied,
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to \
             enable them.",
        )
    }

    /// Returns the JSON body of the error response: compact, non-ASCII characters unescaped, keys
    /// in vLLM's order.
    pub fn to_json(&self) -> String {
        self.render_json(",", ":")
    }

    /// Returns the JSON body of the error with Python's default separators, as completion and
    /// generate streams send it.
    pub fn to_json_with_spaces(&self) -> String {
        self.render_json(", ", ": ")
    }

    /// Returns the JSON body of an error from the `/v1/messages` handler.
    ///
    /// vLLM up to 0.32 passes its own error `type` through; 0.33 translates the HTTP status.
    pub fn to_anthropic_json(&self, version: VllmVersion) -> String {
        let error_type = match version < VllmVersion::V033 {
            true => self.error_type.as_str(),
            false => anthropic_error_type(self.status),
        };
        format!(
            r#"{{"type":"error","error":{{"type":{},"message":{}}}}}"#,
            json_quoted(error_type),
            json_quoted(&sanitize_error_message(&self.message))
        )
    }

    fn render_json(&self, comma: &str, colon: &str) -> String {
        let message = json_quoted(&sanitize_error_message(&self.message));
        match self.error_type {
            ErrorType::Detail => return format!(r#"{{"detail"{colon}{message}}}"#),
            ErrorType::Bare => return format!(r#"{{"error"{colon}{message}}}"#),
            _ => {}
        }
        let mut out = String::with_capacity(message.len() + 80);
        let _ = write!(out, r#"{{"error"{colon}{{"message"{colon}{message}{comma}"#);
        let _ = write!(out, r#""type"{colon}{}{comma}"#, json_quoted(self.error_type.as_str()));
        let param = self.param.as_deref().map_or_else(|| "null".to_owned(), json_quoted);
        let _ = write!(out, r#""param"{colon}{param}{comma}"code"{colon}{}}}}}"#, self.status);
        out
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for Fault {
    /// Returns the HTTP response of the error: its status, and OpenAI's error body as JSON.
    fn into_response(self) -> axum_core::response::Response {
        let mut response = axum_core::response::Response::new(self.to_json().into());
        // An invalid status code is a bug of ours.
        *response.status_mut() = http::StatusCode::from_u16(self.status)
            .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        response
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds {
            let headers = response.headers_mut();
            headers.insert(http::header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Returns Anthropic's error `type` for an HTTP status.
///
/// Source: `vllm/entrypoints/anthropic/protocol.py`.
fn anthropic_error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

fn json_quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Removes memory addresses, traceback lines and file paths from an error message, and trims
/// whitespace.
///
/// Source: `vllm/entrypoints/serve/exception_handling/utils.py`, `sanitize_message`.
pub fn sanitize_error_message(message: &str) -> Cow<'_, str> {
    static MEMORY_ADDRESS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r" at 0x[0-9a-fA-F]+>").expect("a constant pattern"));
    static TRACEBACK_LINE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"\n?\s*File "[^"]+", line \d+, in \S+(\n\s+.*)?"#).expect("a constant pattern")
    });
    static ABSOLUTE_PATH: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+")
            .expect("a constant pattern")
    });
    static FILE_PATH: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?:/[\w\-]+)+/[\w\-]+\.\w+").expect("a constant pattern"));

    let mut text = Cow::Borrowed(message);
    let mut replace = |marker: &str, pattern: &Regex, by: &str| {
        if text.contains(marker)
            && let Cow::Owned(new) = pattern.replace_all(&text, by)
        {
            text = Cow::Owned(new);
        }
    };
    replace(" at 0x", &MEMORY_ADDRESS, ">");
    replace("File \"", &TRACEBACK_LINE, "");
    replace("/", &ABSOLUTE_PATH, "<path>");
    replace("/", &FILE_PATH, "<path>");
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
        Cow::Owned(text) => Cow::Owned(text.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_has_four_keys_in_order() {
        let fault = Fault::invalid_value_fault("too é", "max_tokens", -1);
        assert_eq!(
            fault.to_json(),
            r#"{"error":{"message":"too é (parameter=max_tokens, value=-1)","type":"BadRequestError","param":"max_tokens","code":400}}"#
        );
        assert_eq!(
            Fault::new(500, ErrorType::InternalServer, "x").to_json_with_spaces(),
            r#"{"error": {"message": "x", "type": "InternalServerError", "param": null, "code": 500}}"#
        );
    }

    #[test]
    fn anthropic_errors_depend_on_the_version() {
        let fault = Fault::new(503, ErrorType::ServiceUnavailablePhrase, "busy");
        assert_eq!(
            fault.to_anthropic_json(VllmVersion::V032),
            r#"{"type":"error","error":{"type":"Service Unavailable","message":"busy"}}"#
        );
        assert_eq!(
            fault.to_anthropic_json(VllmVersion::V033),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#
        );
    }

    #[test]
    fn paths_and_addresses_are_removed() {
        assert_eq!(
            sanitize_error_message(" <f at 0x7fab>: /tmp/a/b.c or a/b/c.py "),
            "<f>: <path> or a<path>"
        );
        assert_eq!(sanitize_error_message("adapters/nope"), "adapters/nope");
    }
}
