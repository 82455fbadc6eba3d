//! Sends HTTP requests to one server and counts those in flight.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response};
use serde_json::Value;

use super::exchange::{GenerationResponse, SseReader};
use super::options::{GenerationApi, OnlineReplayError, OnlineReplayOptions, RequestHeaderNames};
use vllm_sim_http_client::{HttpConnector, HttpServerEndpoint, PooledHttpClient};

/// Maximum size of a response that is not streamed, in bytes.
const MAX_JSON_RESPONSE_BYTES: usize = 16 << 20;
/// Maximum size of a response to [`TargetServer::request_accepting_any_status`], in bytes.
const MAX_CALL_RESPONSE_BYTES: usize = 256 << 20;
const MAX_ERROR_TEXT_BYTES: usize = 2048;

type Body = Full<Bytes>;

/// HTTP headers to identify one turn of a session.
#[derive(Clone, Copy, Default)]
pub(super) struct TurnIdentityHeaders<'a> {
    /// Names of the headers behind a gateway, number of the session, and index of the turn.
    pub(super) gateway: Option<(&'a RequestHeaderNames, u64, u32)>,
    /// Session id from the trace, sent as `x-session-id` unless gateway headers are sent.
    pub(super) session_id: Option<&'a str>,
}

/// HTTP client for one target server.
pub struct TargetServer {
    name: String,
    authority: String,
    client: PooledHttpClient<Body>,
    base: String,
    path: &'static str,
    api_key: Option<String>,
    /// Number of requests in flight to the target server that have no first token yet.
    waiting: AtomicU32,
    running: AtomicU32,
}

impl TargetServer {
    /// Parses the URL of a server; errors name its command-line `flag`.
    ///
    /// # Errors
    /// Returns [`OnlineReplayError::Option`] if `url` is not the URL of a server.
    pub fn parse_server_url(
        flag: &str,
        url: &str,
        options: &OnlineReplayOptions,
    ) -> Result<Self, OnlineReplayError> {
        let wrong = |problem: &str| {
            OnlineReplayError::Option(format!(
                "{flag} {url:?} {problem}, such as http://127.0.0.1:8000"
            ))
        };
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let secure = match scheme {
            "http" => false,
            "https" => true,
            _ => {
                let problem = format!("has the scheme {scheme:?}, which must be http or https");
                return Err(wrong(&problem));
            }
        };
        let (authority, base) = rest.split_once('/').unwrap_or((rest, ""));
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix("v1").unwrap_or(base).trim_end_matches('/');
        let parsed: Result<http::uri::Authority, _> = authority.parse();
        let parsed = parsed.map_err(|_| wrong("has no host"))?;
        let endpoint =
            HttpServerEndpoint::new(secure, &parsed).ok_or_else(|| wrong("has no host"))?;
        let connector = HttpConnector::new(endpoint, &options.trust)
            .map_err(|error| OnlineReplayError::Option(error.to_string()))?;
        Ok(Self {
            name: url.to_owned(),
            authority: authority.to_owned(),
            client: PooledHttpClient::new(connector),
            base: if base.is_empty() { String::new() } else { format!("/{base}") },
            path: match options.api {
                GenerationApi::Completions => "/v1/completions",
                GenerationApi::Chat => "/v1/chat/completions",
            },
            api_key: options.api_key.clone(),
            waiting: AtomicU32::new(0),
            running: AtomicU32::new(0),
        })
    }

    pub(super) fn running_and_waiting_requests(&self) -> (u32, u32) {
        let running = self.running.load(Ordering::Relaxed);
        (running, self.waiting.load(Ordering::Relaxed))
    }

    fn target_error(&self, problem: impl ToString) -> OnlineReplayError {
        OnlineReplayError::Target { target: self.name.clone(), problem: problem.to_string() }
    }

    pub(super) async fn first_model_name(
        &self,
        timeout: Duration,
    ) -> Result<String, OnlineReplayError> {
        let answer = self.request_json(Method::GET, "/v1/models", Bytes::new(), timeout).await;
        let answer = answer.map_err(|problem| self.target_error(problem))?;
        let model = answer["data"][0]["id"].as_str();
        let model = model
            .ok_or_else(|| self.target_error("/v1/models lists no model: set --target-model"))?;
        Ok(model.to_owned())
    }

    pub(super) async fn request_json(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Value, String> {
        let asked = async {
            let request = self.build_request(method, path, body, TurnIdentityHeaders::default())?;
            let answer = self.client.fetch_response_body(request, MAX_JSON_RESPONSE_BYTES).await?;
            let (status, body) = (answer.status(), answer.into_body());
            if !status.is_success() {
                return Err(format!("{path} returned {status}: {}", shorten_error_body(&body)));
            }
            serde_json::from_slice(&body).map_err(|error| format!("{path} is not JSON: {error}"))
        };
        match tokio::time::timeout(timeout, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("{path} did not answer within {timeout:?}")),
        }
    }

    /// Sends an HTTP request and returns its response, whatever the status.
    ///
    /// The request must be idempotent: it is sent again on a fresh connection if the server closed
    /// or reset an idle one.
    ///
    /// # Errors
    /// Returns a message if the connection fails or times out.
    pub async fn request_accepting_any_status(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response<Bytes>, String> {
        let called = async {
            let request = self.build_request(method, path, body, TurnIdentityHeaders::default())?;
            let again = request.clone();
            match self.client.fetch_response_body(request, MAX_CALL_RESPONSE_BYTES).await {
                Ok(answer) => Ok(answer),
                Err(_) => {
                    self.client.close_idle_connections();
                    self.client.fetch_response_body(again, MAX_CALL_RESPONSE_BYTES).await
                }
            }
        };
        let called = tokio::time::timeout(timeout, called).await;
        called.unwrap_or_else(|_| Err(format!("{path} did not answer within {timeout:?}")))
    }

    /// Returns the host and port of the server's URL.
    pub fn host_and_port(&self) -> &str {
        &self.authority
    }

    pub(super) async fn send_generation_request(
        &self,
        body: &Bytes,
        identity: TurnIdentityHeaders<'_>,
        output: u32,
        timeout: Duration,
    ) -> GenerationResponse {
        let mut exchange = GenerationResponse::new(output);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let streamed = self.read_generation_stream(body, identity, &mut exchange);
        let streamed = tokio::time::timeout(timeout, streamed).await;
        let counter = match exchange.tokens.is_empty() {
            true => &self.waiting,
            false => &self.running,
        };
        counter.fetch_sub(1, Ordering::Relaxed);
        exchange.error = match streamed {
            // A gateway must neither shorten answers nor change the requested number of tokens.
            Ok(Ok(())) => exchange.check_response_completeness().or_else(|| {
                let is_judged = identity.gateway.is_some();
                is_judged.then(|| exchange.missing_tokens_error()).flatten()
            }),
            Ok(Err(problem)) => Some(problem.into()),
            Err(_) => Some(format!("no complete response within {timeout:?}").into()),
        };
        exchange
    }

    async fn read_generation_stream(
        &self,
        body: &Bytes,
        identity: TurnIdentityHeaders<'_>,
        exchange: &mut GenerationResponse,
    ) -> Result<(), String> {
        let request = self.build_request(Method::POST, self.path, body.clone(), identity)?;
        let response = self.client.send_with_retry(request).await;
        let response = response.map_err(|error| error.why)?;
        exchange.reply.status = Some(response.status().as_u16());
        exchange.reply.pod =
            identity.gateway.and_then(|(names, ..)| names.pod_from_headers(response.headers()));
        // Opens the connection of the next request in the meantime.
        let client = self.client.clone();
        tokio::spawn(async move { client.open_idle_connection().await });
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let body = Limited::new(body, MAX_JSON_RESPONSE_BYTES).collect().await;
            let text = body.map(|body| shorten_error_body(&body.to_bytes())).unwrap_or_default();
            return Err(format!("status {}: {text}", status.as_u16()));
        }
        let mut reader = SseReader::default();
        while let Some(frame) = body.frame().await {
            let at = body.last_frame_arrived_at();
            let frame = frame.map_err(|error| format!("the stream ended early: {error}"))?;
            let first = exchange.tokens.is_empty();
            if let Some(data) = frame.data_ref() {
                reader.feed_sse_bytes(data, at, exchange)?;
            }
            if first && !exchange.tokens.is_empty() {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.running.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn build_request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        identity: TurnIdentityHeaders<'_>,
    ) -> Result<Request<Body>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("host", &self.authority)
            .header("content-type", "application/json");
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some((names, session, turn)) = identity.gateway {
            request = request.header("x-request-id", names.request_id_of_turn(session, turn));
            if let Some(header) = &names.session_header {
                request = request.header(header, format!("{}-{session}", names.run));
            }
        } else if let Some(id) = identity.session_id {
            // vLLM 0.33 names this session in its KV events.
            let id = HeaderValue::from_bytes(id.as_bytes());
            request = request.header("x-session-id", id.map_err(|error| error.to_string())?);
        }
        let request = request.body(Full::new(body));
        request.map_err(|error| error.to_string())
    }
}

fn shorten_error_body(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(MAX_ERROR_TEXT_BYTES)]);
    text.trim().to_owned()
}
