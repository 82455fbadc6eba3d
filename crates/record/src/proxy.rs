//! Forwards client requests to the upstream endpoint.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::captured::CapturedHttpExchange;
use super::exchange::{RecordedApi, RecordedResponseDelivery};
use super::store::CapturedExchangeQueue;
use super::tee::RecordingResponseBody;
use vllm_sim_http_client::{PooledHttpClient, ResponseBody};

type Error = Box<dyn std::error::Error + Send + Sync>;
pub(super) type ProxyBody = UnsyncBoxBody<Bytes, Error>;

/// Maximum size of a request body on a recorded route, in bytes; vLLM has no limit.
const MAX_REQUEST_BODY_BYTES: usize = 64 << 20;

/// Hop-by-hop headers, which a proxy must not forward (RFC 9110, 7.6.1).
const HOP_BY_HOP_HEADERS: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

pub(super) struct RecordingProxy {
    pub(super) client: PooledHttpClient<ProxyBody>,
    pub(super) host: HeaderValue,
    /// Path prefix of the upstream URL, without a trailing slash.
    pub(super) prefix: String,
    pub(super) queue: CapturedExchangeQueue,
    pub(super) clock: WallClock,
}

/// Wall clock, which converts instants to times since 1970.
pub(super) struct WallClock {
    start: Instant,
    unix: Duration,
}

impl WallClock {
    #[expect(clippy::disallowed_methods, reason = "requests of real clients are dated")]
    pub(super) fn start_wall_clock() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self { start: Instant::now(), unix: unix.unwrap_or_default() }
    }

    fn unix_micros(&self, at: Instant) -> u64 {
        let since = self.unix + at.saturating_duration_since(self.start);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

impl RecordingProxy {
    pub(super) async fn forward_request(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let recorded = RecordedApi::from_request_path(request.uri().path())
            .filter(|_| request.method() == Method::POST);
        let passed = match recorded {
            Some(api) => self.forward_and_record(api, request).await,
            None => self.forward_unrecorded(request).await,
        };
        passed.unwrap_or_else(|error| {
            let message = format!("the upstream cannot be reached: {error}");
            error_response(StatusCode::BAD_GATEWAY, &message)
        })
    }

    fn upstream_uri(&self, asked: &Uri) -> Result<Uri, Error> {
        let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        Ok(format!("{}{path}", self.prefix).parse()?)
    }

    /// Sends a request to the upstream, without its hop-by-hop headers.
    async fn send_upstream(
        &self,
        parts: http::request::Parts,
        body: ProxyBody,
    ) -> Result<Response<ResponseBody<ProxyBody>>, Error> {
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = self.upstream_uri(&parts.uri)?;
        *request.headers_mut() = parts.headers;
        remove_hop_by_hop_headers(request.headers_mut());
        let host = self.host.clone();
        request.headers_mut().insert(header::HOST, host);
        let mut response = self.client.send_request(request).await.map_err(|error| error.why)?;
        remove_hop_by_hop_headers(response.headers_mut());
        Ok(response)
    }

    async fn forward_unrecorded(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ProxyBody>, Error> {
        let (parts, body) = request.into_parts();
        let body = body.map_err(Error::from).boxed_unsync();
        let response = self.send_upstream(parts, body).await?;
        Ok(response.map(|body| body.map_err(Error::from).boxed_unsync()))
    }

    async fn forward_and_record(
        &self,
        api: RecordedApi,
        request: Request<Incoming>,
    ) -> Result<Response<ProxyBody>, Error> {
        let (mut parts, body) = request.into_parts();
        // A compressed response could not be parsed.
        parts.headers.remove(header::ACCEPT_ENCODING);
        let session = parts.headers.get("x-session-id").and_then(|id| id.to_str().ok());
        let session = session.map(str::to_owned);
        let body = match Limited::new(body, MAX_REQUEST_BODY_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                return Ok(error_response(status, &format!("cannot read the request: {error}")));
            }
        };
        let asked: Option<Value> = serde_json::from_slice(&body).ok();
        let body = Full::new(body).map_err(|never| match never {});
        let response = self.send_upstream(parts, body.boxed_unsync()).await?;
        let Some(request) = asked.filter(|_| response.status() == StatusCode::OK) else {
            self.queue.count_skipped_response("the response is an HTTP error");
            return Ok(response.map(|body| body.map_err(Error::from).boxed_unsync()));
        };
        let kind = response.headers().get(header::CONTENT_TYPE);
        let delivery = match kind {
            Some(kind) if kind.as_bytes().starts_with(b"text/event-stream") => {
                RecordedResponseDelivery::Streamed
            }
            _ => RecordedResponseDelivery::Whole,
        };
        let session = session.or_else(|| request["session_id"].as_str().map(str::to_owned));
        let started_us = self.clock.unix_micros(response.body().request_sent_at());
        let chunks = Vec::new();
        let captured = CapturedHttpExchange { api, request, delivery, started_us, session, chunks };
        let queue = self.queue.clone();
        Ok(response.map(|body| {
            RecordingResponseBody::new(body, captured, queue).map_err(Error::from).boxed_unsync()
        }))
    }
}

fn remove_hop_by_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP_HEADERS) {
        headers.remove(name);
    }
}

/// Builds an error response in the JSON format of vLLM's errors.
fn error_response(status: StatusCode, message: &str) -> Response<ProxyBody> {
    let kind = match status {
        StatusCode::BAD_GATEWAY => "BadGatewayError",
        _ => "BadRequestError",
    };
    let code = status.as_u16();
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    let body = Full::new(Bytes::from(body.to_string()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
