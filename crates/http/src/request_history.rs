//! Recent requests, for clients' tests: a bounded list behind `/admin/requests` and `/admin/usage`.
//!
//! A record is created when a request arrives. It is updated when the body was read, the response
//! starts, and the response ends or is cut off.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

mod usage;

use super::body_prefix_recorder::{BodyPrefixRecorder, RecordedBodyPrefix};
use super::middleware::{Middleware, ResponseHook};
use super::request_head::masked_header_value;
use super::request_head::names;
use vllm_sim_config::HttpServerConfig;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::{RequestContext, TokenUsage};

/// Maximum size of the recorded headers and bodies of all requests, in bytes; the oldest requests
/// are dropped.
const MAX_HISTORY_BYTES: usize = 128 << 20;

const RECORDED_GRPC_CALLS: [&str; 2] =
    ["/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"];

static GRPC_STATUS_HEADER: HeaderName = HeaderName::from_static("grpc-status");

static IDEMPOTENCY_KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Header with the number of earlier attempts, sent by the SDKs of OpenAI and Anthropic.
static RETRY_COUNT_HEADER: HeaderName = HeaderName::from_static("x-stainless-retry-count");

pub(crate) struct RequestHistory {
    keep: usize,
    bodies: bool,
    /// Maximum size of a request body that the server reads, in bytes.
    max_body: usize,
    state: Mutex<RecordedRequests>,
    /// Notifies waiting clients whenever a recorded request ends.
    ended: Notify,
}

#[derive(Default)]
struct RecordedRequests {
    next_id: u64,
    dropped: u64,
    /// Size of all recorded headers and bodies, in bytes.
    kept_bytes: usize,
    records: VecDeque<RequestRecord>,
    /// Map from the key of a request to the ids of its latest attempts, oldest first. An attempt is
    /// removed when a retry follows it.
    attempts: HashMap<String, VecDeque<u64>>,
}

struct RequestRecord {
    id: u64,
    time: f64,
    started: Instant,
    ended: Option<Instant>,
    path: String,
    headers: HeaderMap,
    model: Option<String>,
    stream: bool,
    body_bytes: u64,
    digest: Option<String>,
    body: Option<Vec<u8>>,
    key: Option<String>,
    attempt: u32,
    /// Time from the end of the client's previous attempt to this one; `None` if the previous
    /// attempt was still running.
    gap: Option<Duration>,
    status: Option<u16>,
    grpc_status: Option<u16>,
    to_headers: Option<Duration>,
    /// Whether the response is a JSON body, which clients cannot use in part.
    is_json: bool,
    outcome: RequestOutcome,
    usage: Arc<TokenUsage>,
}

/// Members of a request body that the request history shows.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ShownBodyMembers {
    model: Value,
    stream: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestOutcome {
    Running,
    Finished,
    Refused,
    Cut,
}

/// Filter for recorded requests; all conditions that are set must hold.
#[derive(Default)]
pub(crate) struct RecordedRequestFilter {
    pub(crate) path: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) key: Option<String>,
    /// Filter condition: only recorded requests with an id above this value match.
    pub(crate) after: Option<u64>,
}

/// Record of a request in progress; dropping it before its end records the request as cut off.
pub(super) struct RequestRecordingGuard {
    history: Arc<RequestHistory>,
    id: u64,
    ended: bool,
}

#[derive(Clone)]
pub(super) struct RequestHistoryLayer {
    history: Arc<RequestHistory>,
    is_recorded: fn(&Request) -> bool,
}

impl RequestHistoryLayer {
    /// Creates a middleware that records HTTP POST requests, except those to operator routes.
    pub(super) fn new_for_http(history: Arc<RequestHistory>) -> Self {
        let is_recorded = |request: &Request| {
            let path = request.uri().path();
            let operates = path.starts_with("/admin/") || path == "/fake_metrics";
            request.method() == Method::POST && !operates
        };
        Self { history, is_recorded }
    }

    pub(super) fn new_for_grpc(history: Arc<RequestHistory>) -> Self {
        let is_recorded = |call: &Request| RECORDED_GRPC_CALLS.contains(&call.uri().path());
        Self { history, is_recorded }
    }
}

impl Middleware for RequestHistoryLayer {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        if !(self.is_recorded)(request) {
            return Ok(None);
        }
        let recording = self.history.begin_record(request);
        Ok(Some(Box::new(move |response| recording.record_response(response))))
    }
}

impl RequestHistory {
    pub(crate) fn new_if_enabled(server: &HttpServerConfig) -> Option<Arc<Self>> {
        (server.history.requests > 0).then(|| {
            Arc::new(Self {
                keep: server.history.requests,
                bodies: server.history.bodies,
                max_body: server.max_body_bytes,
                state: Mutex::default(),
                ended: Notify::new(),
            })
        })
    }

    fn begin_record(self: &Arc<Self>, request: &mut Request) -> RequestRecordingGuard {
        let usage = Arc::new(TokenUsage::default());
        let time = match request.extensions_mut().get_mut::<RequestContext>() {
            Some(context) => {
                context.usage = Some(usage.clone());
                context.started
            }
            None => unix_now_secs(),
        };
        let id = {
            let mut state = self.state.lock();
            state.next_id += 1;
            let record = RequestRecord::new(state.next_id, request, time, usage);
            state.kept_bytes += record.kept_bytes();
            state.records.push_back(record);
            state.drop_beyond(self.keep);
            state.next_id
        };
        let history = self.clone();
        let body = std::mem::take(request.body_mut());
        *request.body_mut() =
            BodyPrefixRecorder::wrap_with_prefix_recorder(body, self.max_body, move |tapped| {
                history.record_body(id, &tapped)
            });
        RequestRecordingGuard { history: self.clone(), id, ended: false }
    }

    /// Records the body of a request after the body has been read to its end or dropped.
    fn record_body(&self, id: u64, tapped: &RecordedBodyPrefix) {
        let whole = tapped.whole && tapped.length == tapped.head.len() as u64;
        let digest = whole.then(|| hex_text(&Sha256::digest(&tapped.head)));
        let members: ShownBodyMembers = serde_json::from_slice(&tapped.head).unwrap_or_default();
        let body = self.bodies.then(|| tapped.head.clone());
        let kept = body.as_ref().map_or(0, Vec::len);
        let mut state = self.state.lock();
        let Some(record) = state.record_mut(id) else {
            return;
        };
        record.model = members.model.as_str().map(str::to_owned);
        record.stream = members.stream == true;
        record.body_bytes = tapped.length;
        record.digest = digest;
        record.body = body;
        state.kept_bytes += kept;
        state.link_previous_attempt(id);
        state.drop_beyond(self.keep);
    }

    fn record_finish(&self, id: u64) {
        self.end_record(id, |record| match (record.status, record.grpc_status) {
            (Some(400..), _) | (_, Some(1..)) => RequestOutcome::Refused,
            _ => RequestOutcome::Finished,
        });
    }

    fn record_cut_off(&self, id: u64) {
        self.end_record(id, |_| RequestOutcome::Cut);
    }

    fn end_record(&self, id: u64, outcome: impl FnOnce(&RequestRecord) -> RequestOutcome) {
        let mut state = self.state.lock();
        if let Some(record) = state.record_mut(id) {
            record.ended = Some(now());
            record.outcome = outcome(record);
        }
        drop(state);
        self.ended.notify_waiters();
    }

    /// Clears the request history; returns the number of removed requests.
    pub(crate) fn clear_recorded_requests(&self) -> usize {
        let mut state = self.state.lock();
        let next_id = state.next_id;
        let former = std::mem::take(&mut *state);
        state.next_id = next_id;
        former.records.len()
    }

    /// Waits until `wanted` requests that match `filter` have ended.
    ///
    /// # Errors
    /// The number that had ended at the timeout.
    pub(crate) async fn wait_for_ended_requests(
        &self,
        filter: &RecordedRequestFilter,
        wanted: usize,
        within: Duration,
    ) -> Result<(), usize> {
        let count = || {
            let state = self.state.lock();
            let records = state.records.iter();
            let ended = records
                .filter(|r| filter.matches_record(r) && r.outcome != RequestOutcome::Running);
            ended.count()
        };
        let enough = async {
            loop {
                let next = self.ended.notified();
                let mut next = std::pin::pin!(next);
                // Registers first, so that no notification is missed.
                next.as_mut().enable();
                if count() >= wanted {
                    return;
                }
                next.await;
            }
        };
        let waited = tokio::time::timeout(within, enough).await;
        waited.map_err(|_| count())
    }

    /// Returns the newest `max_requests` recorded requests that match `filter` as JSON, oldest
    /// first, and the total number of matching requests.
    pub(crate) fn recorded_requests_json(
        &self,
        filter: &RecordedRequestFilter,
        max_requests: usize,
    ) -> String {
        let state = self.state.lock();
        let (found, newest) = state.matching_records(filter, max_requests);
        let (count, dropped) = (found, state.dropped);
        let mut shown = format!("{{\"count\":{count},\"dropped\":{dropped},\"requests\":[");
        for (at, record) in newest.iter().enumerate() {
            shown.push_str(if at > 0 { "," } else { "" });
            record.write_json(&mut shown);
        }
        shown.push_str("]}");
        shown
    }
}

impl RecordedRequests {
    fn record_mut(&mut self, id: u64) -> Option<&mut RequestRecord> {
        let first = self.records.front()?.id;
        let index = usize::try_from(id.checked_sub(first)?).ok()?;
        self.records.get_mut(index)
    }

    fn drop_beyond(&mut self, most: usize) {
        while self.records.len() > most
            || (self.kept_bytes > MAX_HISTORY_BYTES && self.records.len() > 1)
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.records.pop_front() else {
            return;
        };
        self.dropped += 1;
        self.kept_bytes -= oldest.kept_bytes();
        if let Some(key) = oldest.key
            && let Some(attempts) = self.attempts.get_mut(&key)
        {
            if attempts.front() == Some(&oldest.id) {
                attempts.pop_front();
            } else {
                attempts.retain(|id| *id != oldest.id);
            }
            if attempts.is_empty() {
                self.attempts.remove(&key);
            }
        }
    }

    /// Links a recorded request to the client's previous attempt with the same key.
    ///
    /// If the client counts attempts, the previous one must have failed and have the preceding
    /// number.
    fn link_previous_attempt(&mut self, id: u64) {
        let Some((key, retries)) = self.record_mut(id).and_then(|record| record.attempt_key())
        else {
            return;
        };
        let mut open = self.attempts.remove(&key).unwrap_or_default();
        let failed_before = |state: &mut Self, before: u64, retries: u32| {
            let before = state.record_mut(before);
            before.is_some_and(|b| b.attempt == retries && b.outcome != RequestOutcome::Finished)
        };
        let found = match retries {
            Some(0) => None,
            Some(retries) => {
                (0..open.len()).rev().find(|at| failed_before(self, open[*at], retries))
            }
            None => open.len().checked_sub(1),
        };
        let before = found.and_then(|at| open.remove(at));
        let before = before.and_then(|before| self.record_mut(before));
        let before = before.map(|before| (before.attempt, before.ended));
        if let Some(record) = self.record_mut(id) {
            if let Some((attempt, ended)) = before {
                record.attempt = attempt + 1;
                record.gap = ended.and_then(|ended| record.started.checked_duration_since(ended));
            } else if let Some(retries) = retries {
                record.attempt = retries.saturating_add(1);
            }
            record.key = Some(key.clone());
        }
        open.push_back(id);
        self.attempts.insert(key, open);
    }
}

impl RequestRecord {
    fn new(id: u64, request: &Request, time: f64, usage: Arc<TokenUsage>) -> Self {
        Self {
            id,
            time,
            started: now(),
            ended: None,
            path: request.uri().path().to_owned(),
            headers: request.headers().clone(),
            model: None,
            stream: false,
            body_bytes: 0,
            digest: None,
            body: None,
            key: None,
            attempt: 1,
            gap: None,
            status: None,
            grpc_status: None,
            to_headers: None,
            is_json: false,
            outcome: RequestOutcome::Running,
            usage,
        }
    }

    /// Returns the size of a recorded request that counts towards the limit, in bytes.
    fn kept_bytes(&self) -> usize {
        let headers = self.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.as_str().len() + value.len()).sum();
        self.path.len() + headers + self.body.as_ref().map_or(0, Vec::len)
    }

    /// Returns the key that all attempts of a client's request share, and the client's count of
    /// earlier attempts.
    fn attempt_key(&self) -> Option<(String, Option<u32>)> {
        let text = |name: &HeaderName| self.headers.get(name)?.to_str().ok().map(str::to_owned);
        let retries = text(&RETRY_COUNT_HEADER).and_then(|count| count.parse().ok());
        let same_body = || {
            retries?;
            Some(format!("{} {}", self.path, self.digest.as_ref()?))
        };
        let key = text(&IDEMPOTENCY_KEY_HEADER)
            .or_else(|| text(&names::REQUEST_ID_HEADER))
            .or_else(same_body)?;
        Some((key, retries))
    }

    fn write_json(&self, out: &mut String) {
        let mut shown = self.to_json();
        if let (Some(status), Some(shown)) = (self.grpc_status, shown.as_object_mut()) {
            shown.insert("grpc_status".to_owned(), status.into());
        }
        let Some(body) = &self.body else {
            out.push_str(&shown.to_string());
            return;
        };
        let shown = shown.to_string();
        out.push_str(shown.strip_suffix('}').unwrap_or(&shown));
        out.push_str(",\"body\":");
        // Writes valid JSON as received, without parsing it into values.
        match std::str::from_utf8(body) {
            Ok(text) if serde_json::from_str::<IgnoredAny>(text).is_ok() => out.push_str(text),
            _ => out.push_str(&Value::from(String::from_utf8_lossy(body)).to_string()),
        }
        out.push('}');
    }

    fn to_json(&self) -> Value {
        let headers: Map<String, Value> = self
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), masked_header_value(name, value).into()))
            .collect();
        let counts = self.usage.token_counts();
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        json!({
            "id": self.id,
            "time": self.time,
            "path": self.path,
            "model": self.model,
            "stream": self.stream,
            "status": self.status,
            "outcome": self.outcome.request_outcome_name(),
            "seconds_to_headers": seconds(self.to_headers),
            "seconds": seconds(self.ended.map(|ended| ended.duration_since(self.started))),
            "prompt_tokens": counts.prompt,
            "completion_tokens": counts.generated,
            "key": self.key,
            "attempt": self.attempt,
            "gap_seconds": seconds(self.gap),
            "headers": headers,
            "body_bytes": self.body_bytes,
            "body_sha256": self.digest,
        })
    }
}

impl RecordedRequestFilter {
    fn matches_record(&self, record: &RequestRecord) -> bool {
        self.path.as_ref().is_none_or(|path| *path == record.path)
            && (self.model.is_none() || self.model == record.model)
            && (self.status.is_none() || self.status == record.status)
            && (self.key.is_none() || self.key == record.key)
            && self.after.is_none_or(|id| record.id > id)
    }
}

impl RequestRecordingGuard {
    /// Records the start of the response to a recorded request, and wraps its body to record the
    /// end.
    fn record_response(self, response: Response) -> Response {
        let status = response.status().as_u16();
        let early = grpc_status_of(response.headers());
        if let Some(record) = self.history.state.lock().record_mut(self.id) {
            record.status = Some(status);
            record.grpc_status = early;
            record.to_headers = Some(now().duration_since(record.started));
            let content = response.headers().get(header::CONTENT_TYPE);
            record.is_json = content.is_some_and(|content| content == "application/json");
        }
        response
            .map(|body| Body::new(RecordedBody { body: Some(body), whole: false, recording: self }))
    }
}

impl Drop for RequestRecordingGuard {
    fn drop(&mut self) {
        if !self.ended {
            self.history.record_cut_off(self.id);
        }
    }
}

struct RecordedBody {
    body: Option<Body>,
    whole: bool,
    recording: RequestRecordingGuard,
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        let ends = body.is_end_stream();
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(status) = frame.trailers_ref().and_then(grpc_status_of)
        {
            let recording = &self.recording;
            if let Some(record) = recording.history.state.lock().record_mut(recording.id) {
                record.grpc_status = Some(status);
            }
            // Trailers are the last frame.
            self.whole = true;
        }
        self.whole |= match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => ends,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        // hyper does not poll an empty body.
        self.whole |= http_body::Body::is_end_stream(self);
        // Drops the reply first, because that counts its tokens.
        self.body = None;
        self.recording.ended = true;
        let RequestRecordingGuard { history, id, .. } = &self.recording;
        if self.whole {
            history.record_finish(*id);
        } else {
            history.record_cut_off(*id);
        }
    }
}

fn grpc_status_of(headers: &HeaderMap) -> Option<u16> {
    headers.get(&GRPC_STATUS_HEADER)?.to_str().ok()?.parse().ok()
}

#[expect(clippy::disallowed_methods, reason = "clients wait in real time")]
fn now() -> Instant {
    Instant::now()
}

fn hex_text(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
