//! Logs requests: one line each at debug level; parameters, bodies and headers only if enabled.
//!
//! `--log-http`, from llm-d, logs bodies up to 512 KiB and gRPC calls. It logs streams at their end;
//! llm-d omits them. `--enable-log-requests` and `--enable-log-outputs` are from vLLM: they log
//! parameters at info level, and the prompt only at debug level.
//!
//! Source: llm-d-inference-sim `pkg/communication/http.go`; vLLM `vllm/entrypoints/logger.py`.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use regex::Regex;
use serde_json::Value;

use super::body_prefix_recorder::{BodyPrefixRecorder, RecordedBodyPrefix};
use super::request_head::masked_header_value;
use super::{body, error};
use vllm_sim_config::{LogConfig, LogLevel};
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::RequestContext;
use vllm_sim_wire::fault::Fault;

/// Maximum size of a logged request or response body, in bytes.
const MAX_BODY_BYTES: usize = 512 * 1024;
/// Request fields that contain the prompt.
const PROMPT_FIELDS: [&str; 8] =
    ["prompt", "messages", "input", "system", "instructions", "token_ids", "documents", "suffix"];

#[derive(Debug)]
pub(super) struct RequestLog {
    log: LogConfig,
}

/// Middleware that logs each HTTP request and its response, as configured.
pub(super) async fn log_http_request(
    State(log): State<Arc<RequestLog>>,
    request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let context = request.extensions().get::<RequestContext>();
    let started = context.map_or_else(unix_now_secs, |context| context.started);
    let request = match log.log_request(request).await {
        Ok(request) => request,
        Err(fault) => return error::fault_response(&fault),
    };
    let response = next.run(request).await;
    let status = response.status().as_u16();
    log.log_answered(method.as_str(), &path, status, unix_now_secs() - started);
    log.log_response(&path, response).await
}

/// Middleware that logs each gRPC call and its response, as configured.
pub(super) async fn log_grpc_request(
    State(log): State<Arc<RequestLog>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    log.log_grpc_call(&path, request.headers());
    let response = next.run(request).await;
    log.log_grpc_answer(path, response)
}

impl RequestLog {
    pub(super) fn new(log: &LogConfig) -> Self {
        Self { log: log.clone() }
    }

    pub(super) fn is_request_log_enabled(&self) -> bool {
        let lines = matches!(self.log.level, LogLevel::Debug | LogLevel::Trace);
        lines || self.log.http || self.log.requests || self.log.outputs
    }

    fn log_answered(&self, method: &str, path: &str, status: u16, seconds: f64) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        // The access log already has a line for these paths.
        if !self.log.access && !self.log.access_excluded.iter().any(|p| p == path) {
            let ms = (seconds * 1e6).round() / 1e3;
            tracing::debug!(method, path, status, ms, "request");
        }
    }

    /// Logs a request; reads a short body first.
    ///
    /// # Errors
    /// [`body::read_limited_body`]'s error for a body that cannot be read or arrives too slowly.
    async fn log_request(&self, request: Request) -> Result<Request, Fault> {
        if !(self.log.http || self.log.requests) {
            return Ok(request);
        }
        if !has_short_body(request.headers()) {
            return Ok(self.log_long_request(request));
        }
        let (parts, body) = request.into_parts();
        let bytes = body::read_limited_body(body, MAX_BODY_BYTES).await?;
        let path = parts.uri.path();
        if self.log.http {
            let headers = header_lines(&parts.headers);
            let body = mask_secrets(&bytes);
            tracing::info!(method = %parts.method, path, headers, body = %body, "HTTP request");
        }
        if self.log.requests
            && let Ok(Value::Object(mut fields)) = serde_json::from_slice(&bytes)
        {
            let mut prompt = serde_json::Map::new();
            for name in PROMPT_FIELDS {
                if let Some((name, value)) = fields.shift_remove_entry(name) {
                    prompt.insert(name, value);
                }
            }
            let params = Value::Object(fields).to_string();
            tracing::info!(path, params = %mask_secrets(params.as_bytes()), "request received");
            let prompt = self.cut_to_max_len(Value::Object(prompt).to_string());
            tracing::debug!(path, prompt, "request's prompt");
        }
        Ok(Request::from_parts(parts, Body::from(bytes)))
    }

    /// Logs a request whose body is long or of unknown length, after the body was read.
    fn log_long_request(&self, request: Request) -> Request {
        if !self.log.http {
            return request;
        }
        let (parts, body) = request.into_parts();
        let method = parts.method.clone();
        let path = parts.uri.path().to_owned();
        let headers = header_lines(&parts.headers);
        let body =
            BodyPrefixRecorder::wrap_with_prefix_recorder(body, MAX_BODY_BYTES, move |tapped| {
                let (bytes, body) = (tapped.length, logged_body_text(&tapped));
                tracing::info!(%method, path, headers, bytes, body = %body, "HTTP request");
            });
        Request::from_parts(parts, body)
    }

    /// Logs the start of a gRPC call with its metadata; messages are logged where they are decoded.
    fn log_grpc_call(&self, path: &str, headers: &HeaderMap) {
        if self.log.http {
            tracing::info!(path, headers = header_lines(headers), "gRPC call");
        }
    }

    fn log_grpc_answer(&self, path: String, response: Response) -> Response {
        if !self.log.http {
            return response;
        }
        let (parts, body) = response.into_parts();
        let early = parts.headers.get("grpc-status");
        let early = early.and_then(|s| s.to_str().ok()).map(str::to_owned);
        let body = BodyPrefixRecorder::wrap_with_prefix_recorder(body, 0, move |tapped| {
            let status = tapped.grpc_status.or(early);
            let status = status.as_deref().unwrap_or("none: cut off");
            let (bytes, frames) = (tapped.length, tapped.frames);
            tracing::info!(path, status, bytes, frames, "gRPC response");
        });
        Response::from_parts(parts, body)
    }

    /// Logs a stream or a long response at its end.
    fn log_long_response(&self, path: &str, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        let (status, path) = (parts.status.as_u16(), path.to_owned());
        let request_log = Self { log: self.log.clone() };
        let body =
            BodyPrefixRecorder::wrap_with_prefix_recorder(body, MAX_BODY_BYTES, move |tapped| {
                let (bytes, whole, body) = (tapped.length, tapped.whole, logged_body_text(&tapped));
                if request_log.log.http {
                    tracing::info!(path, status, bytes, whole, body = %body, "HTTP response");
                }
                if request_log.log.outputs {
                    let output = request_log.cut_to_max_len(body);
                    tracing::info!(path, status, whole, output, "request completed");
                }
            });
        Response::from_parts(parts, body)
    }

    async fn log_response(&self, path: &str, response: Response) -> Response {
        if !(self.log.http || self.log.outputs) {
            return response;
        }
        let length = http_body::Body::size_hint(response.body()).exact();
        if length.is_none_or(|length| length > MAX_BODY_BYTES as u64) {
            return self.log_long_response(path, response);
        }
        let (parts, body) = response.into_parts();
        let Ok(whole) = body.collect().await else {
            return Response::from_parts(parts, Body::empty());
        };
        let bytes = whole.to_bytes();
        let status = parts.status.as_u16();
        let body = mask_secrets(&bytes);
        if self.log.http {
            tracing::info!(path, status, body = %body, "HTTP response");
        }
        if self.log.outputs {
            let output = self.cut_to_max_len(body.into_owned());
            tracing::info!(path, status, output, "request completed");
        }
        Response::from_parts(parts, Body::from(bytes))
    }

    fn cut_to_max_len(&self, mut text: String) -> String {
        let most = self.log.max_len.unwrap_or(usize::MAX);
        if let Some((at, _)) = text.char_indices().nth(most) {
            text.truncate(at);
        }
        text
    }
}

fn logged_body_text(tapped: &RecordedBodyPrefix) -> String {
    let mut text = mask_secrets(&tapped.head).into_owned();
    let cut = tapped.length - tapped.head.len() as u64;
    if cut > 0 {
        text.push_str(&format!("… ({cut} more bytes)"));
    }
    text
}

/// Returns whether the `Content-Length` of a body is small enough to log the body.
fn has_short_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    length.is_some_and(|length| length <= MAX_BODY_BYTES)
}

fn header_lines(headers: &HeaderMap) -> String {
    let lines =
        headers.iter().map(|(name, value)| format!("{name}: {}", masked_header_value(name, value)));
    lines.collect::<Vec<_>>().join("; ")
}

/// Returns a request or response body as text for the log, with the values of secret fields masked.
fn mask_secrets(bytes: &[u8]) -> Cow<'_, str> {
    static SECRET_FIELD: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?i)("[^"]*(?:api[_-]?key|authorization|password|secret|access[_-]?token|hf[_-]?token)"\s*:\s*)"(?:[^"\\]|\\.)*""#)
            .expect("a constant pattern")
    });
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => SECRET_FIELD.replace_all(text, "${1}\"***\""),
        Cow::Owned(text) => Cow::Owned(SECRET_FIELD.replace_all(&text, "${1}\"***\"").into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Bytes;
    use vllm_sim_config::LogFormat;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_short_body_that_is_logged_has_the_time_limit_of_bodies() {
        let log = RequestLog::new(&LogConfig {
            level: LogLevel::Info,
            format: LogFormat::Text,
            http: true,
            access: false,
            access_excluded: Vec::new(),
            requests: false,
            outputs: false,
            max_len: None,
        });
        let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
        let request = axum::http::Request::post("/v1/completions").header("content-length", "9");
        let read = log.log_request(request.body(never).unwrap()).await;
        assert_eq!(read.map(drop).map_err(|fault| fault.status), Err(408));
    }

    #[test]
    fn secrets_are_masked_in_bodies_and_headers() {
        let body =
            br#"{"api_key": "sk-1\"2", "n": 1, "X-API-Key":"a", "prompt": "my \"secret\" is: x"}"#;
        let expected =
            r#"{"api_key": "***", "n": 1, "X-API-Key":"***", "prompt": "my \"secret\" is: x"}"#;
        assert_eq!(mask_secrets(body), expected);
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer sk-1".parse().unwrap());
        headers.insert("accept", "*/*".parse().unwrap());
        assert_eq!(header_lines(&headers), "authorization: ***; accept: */*");
    }
}
