//! Bodies of requests and responses: reads request bodies, limited in size and time, with vLLM's
//! errors for invalid JSON, drains those that no handler reads, and sends large responses in parts.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, Method, Version, header};
use axum::response::Response;
use futures_util::FutureExt as _;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::request_head::has_only_common_headers;
use super::{App, error};
use vllm_sim_service::{LargeBodyMemory, LargeBodyReservation, RequestContext};
use vllm_sim_wire::body::estimated_body_memory_bytes;
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Reads a request body up to the server's size limit.
///
/// # Errors
/// 413 above the limit; 408 below the minimum rate; 400 if the client disconnects.
pub(super) async fn read_body(app: &App, body: Body) -> Result<Bytes, Fault> {
    read_limited_body(body, app.settings.server.max_body_bytes).await
}

/// A request as handlers receive it: headers, complete body and [`RequestContext`].
pub(super) struct RawRequest {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    /// Complete body of the request; empty once [`Self::parse_dialect_json`] has parsed it.
    pub(super) bytes: Bytes,
    /// Whether the request has only common headers, which do not change the response.
    plain: bool,
    pub(super) context: RequestContext,
    /// Members of the request's body whose texts no tokenizer can encode.
    unencodable_members: Vec<String>,
    /// Reserved memory of a large body, until the response is complete.
    _memory: Option<LargeBodyReservation>,
}

impl RawRequest {
    pub(super) fn media_type(&self) -> Option<&str> {
        let named = self.headers.get(header::CONTENT_TYPE)?;
        named.to_str().ok()
    }

    /// Parses the request body as JSON, as FastAPI does.
    ///
    /// # Errors
    /// vLLM's 400 for another media type, invalid JSON or an empty body.
    pub(super) fn parse_fastapi_json(&self) -> Result<Value, Fault> {
        vllm_sim_wire::body::read_json_body(self.media_type(), &self.bytes)
    }

    /// Parses the request body as JSON by the rules of the imitated server, vLLM or
    /// llm-d-inference-sim, and frees its bytes.
    ///
    /// # Errors
    /// The errors of [`Self::parse_fastapi_json`], converted to that API.
    pub(super) fn parse_dialect_json(&mut self, app: &App) -> Result<Value, Fault> {
        let media_type = app.dialect.media_type(self.media_type());
        let value = vllm_sim_wire::body::read_json_body(media_type, &self.bytes)
            .map_err(|fault| app.dialect.unreadable_body_fault(fault))?;
        self.bytes = Bytes::new();
        Ok(value)
    }

    /// Returns the raw request body, if the imitated server checks it against the JSON schema
    /// before any other check.
    ///
    /// Returns `None` if the imitated server checks the body before the schema, or rejects its
    /// media type.
    pub(super) fn raw_body_for_schema_check(&self, app: &App) -> Option<&[u8]> {
        let schema_first = app.dialect.checks_schema_first();
        self.body_if_json(app).filter(|_| schema_first)
    }

    /// Returns the raw request body; `None` if the imitated server rejects its media type.
    pub(super) fn body_if_json(&self, app: &App) -> Option<&[u8]> {
        let media_type = app.dialect.media_type(self.media_type());
        let taken = vllm_sim_wire::body::check_json_content_type(media_type).is_ok();
        taken.then_some(&self.bytes)
    }

    /// Rejects a prompt with an unpaired surrogate; `prompt_fields` are those members of the body
    /// that the tokenizer reads.
    ///
    /// # Errors
    /// vLLM's 400.
    pub(super) fn check_prompt_encodable(&self, prompt_fields: &[&str]) -> Result<(), Fault> {
        match self.unencodable_members.iter().any(|member| prompt_fields.contains(&member.as_str()))
        {
            true => Err(vllm_sim_wire::body::unencodable_prompt_fault()),
            false => Ok(()),
        }
    }

    /// Returns the headers of a request that may contain one of
    /// [`names`](super::request_head::names); empty if all headers are common ones.
    ///
    /// This saves the lookups for most requests.
    pub(super) fn headers_unless_all_common(&self) -> &HeaderMap {
        static NO_HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        match self.plain {
            true => &NO_HEADERS,
            false => &self.headers,
        }
    }
}

impl FromRequest<Arc<App>> for RawRequest {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let (mut parts, body) = request.into_parts();
        let context: RequestContext = parts.extensions.remove().unwrap_or_default();
        let bytes = read_body(app, body).await?;
        let memory =
            app.service.large_body_memory().reserve_body_bytes(estimated_body_memory_bytes(&bytes));
        let memory = memory.map_err(|full| error::submission_error_fault(&full.into()))?;
        // llm-d-inference-sim replaces unpaired surrogates.
        let unencodable_members = match app.dialect.checks_schema_first() {
            true => vllm_sim_wire::body::members_with_unpaired_surrogates(&bytes),
            false => Vec::new(),
        };
        Ok(Self {
            method: parts.method,
            plain: has_only_common_headers(&parts.headers),
            headers: parts.headers,
            bytes,
            context,
            unencodable_members,
            _memory: memory,
        })
    }
}

/// Maximum time to read the rest of a request body after the response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a request body to its end, even if the handler does not.
///
/// hyper closes a connection if part of a body is unread. A request that is rejected by its headers
/// would then lose its connection and the next request on it. As in uvicorn, the rest is read and
/// dropped after the response, up to the server's size limit.
pub(super) struct DrainOnDropBody<B: HttpBody<Data = Bytes> + Unpin + Send + 'static> {
    body: Option<B>,
    /// Number of bytes of the request body that may still be read.
    left: usize,
    runtime: Handle,
}

impl<B> DrainOnDropBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    /// Wraps the body of a request so that it is read to its end, up to `max_bytes` bytes.
    pub(super) fn drain_request_body_on_drop(
        request: Request<B>,
        max_bytes: usize,
    ) -> Request<Body> {
        // An HTTP/2 stream ends without its connection. A client that sends `Expect` sends no body
        // after an error response.
        let drains = request.version() != Version::HTTP_2
            && !request.body().is_end_stream()
            && !request.headers().contains_key(header::EXPECT)
            && !announces_longer_body(&request, max_bytes);
        if !drains {
            return request.map(Body::new);
        }
        let runtime = Handle::current();
        request.map(|body| Body::new(Self { body: Some(body), left: max_bytes, runtime }))
    }
}

/// Returns whether a request announces a body of more than `limit` bytes, which is not drained.
pub(super) fn announces_longer_body<B: HttpBody>(request: &Request<B>, limit: usize) -> bool {
    request.body().size_hint().lower() > limit as u64
}

impl<B> HttpBody for DrainOnDropBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let length = frame.data_ref().map_or(0, Bytes::len);
            this.left = this.left.saturating_sub(length);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin + Send + 'static> Drop for DrainOnDropBody<B> {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        let rest = drain_body(body, self.left);
        self.runtime.spawn(async move {
            // A client that sends too slowly loses its connection.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
        });
    }
}

/// Reads and drops the rest of a request body, up to `left` bytes.
async fn drain_body<B: HttpBody<Data = Bytes> + Unpin>(mut body: B, mut left: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length > left {
            return;
        }
        left -= length;
    }
}

/// Time allowed for sending a request body, in addition to the time at the minimum rate.
const BODY_READ_GRACE: Duration = Duration::from_secs(60);

/// Minimum average transfer rate of a request body after the grace period, in bytes per second.
const MIN_BYTES_PER_SECOND: u32 = 512;

/// Reads a request body of at most `limit` bytes.
///
/// # Errors
/// 413 above the limit; 408 below the minimum rate; 400 if the client disconnects.
pub(super) async fn read_limited_body(body: Body, limit: usize) -> Result<Bytes, Fault> {
    let mut started = None;
    let mut body = Limited::new(body, limit);
    let mut whole = Vec::new();
    loop {
        // Starts no timer for a body that arrived with the headers.
        let frame = match body.frame().now_or_never() {
            Some(frame) => Ok(frame),
            None => {
                let started = *started.get_or_insert_with(Instant::now);
                let time = Duration::from_secs(whole.len() as u64) / MIN_BYTES_PER_SECOND;
                timeout_at(started + BODY_READ_GRACE + time, body.frame()).await
            }
        };
        let frame = match frame {
            Err(_) => return Err(body_too_slow(whole.len())),
            Ok(None) => return Ok(whole.into()),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => {
                let message = format!(
                    "request body is larger than {limit} bytes; raise --max-request-body-size-mb to allow it"
                );
                return Err(Fault::new(413, ErrorType::TooLarge, message));
            }
            Ok(Some(Err(error))) => {
                let message = format!("cannot read the request body: {error}");
                return Err(Fault::bad_request(message));
            }
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // Returns a body of a single frame without copying it.
        if whole.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        whole.extend_from_slice(&data);
    }
}

/// Returns the error for a request body that arrives too slowly; `bytes` is the size received so
/// far.
fn body_too_slow(bytes: usize) -> Fault {
    let grace = BODY_READ_GRACE.as_secs();
    let message = format!(
        "the request body arrives too slowly: {bytes} bytes so far; after {grace} seconds the \
         average must be at least {MIN_BYTES_PER_SECOND} bytes per second"
    );
    Fault::new(408, ErrorType::RequestTimeoutPhrase, message)
}

/// Size of each part in which a large response body is sent, in bytes.
const PART_BYTES: usize = 256 << 10;

/// A large response body, sent in parts, whose bytes are counted until the client has read them.
///
/// hyper would copy a body of one frame to its write buffer as a whole. In parts, the body waits
/// here while the client does not read, and its bytes stay counted.
struct LargeBody {
    body: Body,
    /// Unsent rest of the current frame of the large response body.
    rest: Bytes,
    _reservation: LargeBodyReservation,
}

/// Returns the response, with a large body in parts. Returns a 503 if all large requests and
/// responses would take too much memory.
pub(super) fn send_large_body_in_parts(memory: &LargeBodyMemory, response: Response) -> Response {
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    match memory.reserve_body_bytes(bytes) {
        Ok(None) => response,
        Ok(Some(reservation)) => response.map(|body| {
            Body::new(LargeBody { body, rest: Bytes::new(), _reservation: reservation })
        }),
        Err(refused) => error::fault_response(&error::submission_error_fault(&refused.into())),
    }
}

impl HttpBody for LargeBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let part = self.rest.len().min(PART_BYTES);
        let part = self.rest.split_to(part);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.size_hint();
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + self.rest.len() as u64),
            None => hint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::convert::Infallible;

    /// Builds a body of chunks with a delay between them.
    fn slow(pieces: usize, bytes: usize, apart: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |piece| async move {
            if piece == pieces {
                return None;
            }
            let sent = tokio::time::timeout(apart, std::future::pending::<()>()).await;
            let piece_bytes = Bytes::from(vec![b'x'; bytes]);
            sent.err().map(|_| (Ok::<_, Infallible>(piece_bytes), piece + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickled_body_meets_a_limit_and_a_slow_one_does_not() {
        let started = Instant::now();
        let answer = read_limited_body(slow(1_000, 1, Duration::from_secs(10)), 4096).await;
        let words = "the request body arrives too slowly: 6 bytes so far; after 60 seconds the \
             average must be at least 512 bytes per second";
        let fault = answer.map(|body| body.len()).unwrap_err();
        assert_eq!((fault.status, fault.message.as_str()), (408, words));
        assert_eq!(started.elapsed().as_secs(), 60);
        // Ten minutes at 2 KiB/s.
        let honest = read_limited_body(slow(60, 20_480, Duration::from_secs(10)), 4 << 20).await;
        assert_eq!(honest.map(|body| body.len()), Ok(1_228_800));
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_is_refused_by_its_size() {
        let answer = read_limited_body(Body::from(vec![0; 11]), 10).await;
        assert_eq!(answer.map_err(|fault| fault.status), Err(413));
        let answer = read_limited_body(slow(3, 5, Duration::ZERO), 10).await;
        assert_eq!(answer.map_err(|fault| fault.status), Err(413));
    }
}
