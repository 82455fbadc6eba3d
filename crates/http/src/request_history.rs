//! What requests were, for tests: a bounded list behind `/admin/requests`.
//!
//! A request is recorded when it arrives and completed while it goes on: its body has been read, its
//! answer has begun, the answer has ended or was cut.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::app::unix_now;
use super::body_tap::{BodyTap, TappedBody};
use super::request_head::names;
use super::request_log::shown_header;
use vllm_sim_service::TokenUsage;

/// Bytes of all bodies that are kept; older requests go first.
const MAX_BODY_BYTES: usize = 64 << 20;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The SDKs of OpenAI and Anthropic count their attempts here.
static RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

/// The newest requests of a server.
pub(crate) struct RequestHistory {
    /// How many.
    keep: usize,
    /// Whether their bodies are kept, too.
    bodies: bool,
    /// Largest body that the server reads.
    max_body: usize,
    state: Mutex<State>,
    /// A request has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    next_id: u64,
    dropped: u64,
    body_bytes: usize,
    records: VecDeque<Record>,
    /// The newest attempt of each key.
    attempts: HashMap<String, u64>,
}

/// One request.
struct Record {
    id: u64,
    /// Seconds since 1970.
    started: f64,
    path: String,
    headers: HeaderMap,
    model: Option<String>,
    stream: bool,
    body_bytes: u64,
    digest: Option<String>,
    body: Option<Value>,
    key: Option<String>,
    attempt: u32,
    /// From the end of the attempt before, in seconds.
    gap: Option<f64>,
    status: Option<u16>,
    seconds_to_headers: Option<f64>,
    seconds: Option<f64>,
    outcome: Outcome,
    usage: Arc<TokenUsage>,
}

/// What a record shows of a body; the rest of it makes no values.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Members {
    model: Value,
    stream: Value,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Running,
    Finished,
    /// It was answered with an error.
    Refused,
    /// The client left, or a fault broke the answer off.
    Cut,
}

/// Which requests are asked for: all that is given holds.
#[derive(Default)]
pub(crate) struct RequestFilter {
    pub(crate) path: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) key: Option<String>,
    /// Only those behind this id.
    pub(crate) after: Option<u64>,
}

/// A request that goes on; dropped before its end, it was cut.
pub(crate) struct Recording {
    history: Arc<RequestHistory>,
    id: u64,
    ended: bool,
}

impl RequestHistory {
    /// A history of the newest `keep` requests; `bodies`: with all that they say.
    pub(crate) fn new(keep: usize, bodies: bool, max_body: usize) -> Self {
        Self {
            keep,
            bodies,
            max_body,
            state: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// Whether a request is one that clients send to a model.
    pub(crate) fn concerns(request: &Request<Body>) -> bool {
        let path = request.uri().path();
        request.method() == Method::POST && !path.starts_with("/admin/") && path != "/fake_metrics"
    }

    /// Records a request that arrives.
    pub(crate) fn begin(
        self: &Arc<Self>,
        mut request: Request<Body>,
        started: f64,
    ) -> (Recording, Request<Body>) {
        let usage = Arc::new(TokenUsage::default());
        request.extensions_mut().insert(usage.clone());
        let id = {
            let mut state = self.state.lock();
            state.next_id += 1;
            let id = state.next_id;
            state.records.push_back(Record {
                id,
                started,
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
                seconds_to_headers: None,
                seconds: None,
                outcome: Outcome::Running,
                usage,
            });
            while state.records.len() > self.keep {
                state.drop_oldest();
            }
            id
        };
        let history = self.clone();
        let request = request.map(|body| {
            BodyTap::body(body, self.max_body, move |tapped| history.read(id, &tapped))
        });
        let history = self.clone();
        let recording = Recording {
            history,
            id,
            ended: false,
        };
        (recording, request)
    }

    /// The body of a request has been read, or nobody reads it any further.
    fn read(&self, id: u64, tapped: &TappedBody) {
        let whole = tapped.whole && tapped.length == tapped.head.len() as u64;
        let digest = whole.then(|| hex(&Sha256::digest(&tapped.head)));
        let members: Members = serde_json::from_slice(&tapped.head).unwrap_or_default();
        let body = self.bodies.then(|| {
            let text = || String::from_utf8_lossy(&tapped.head).into_owned();
            serde_json::from_slice(&tapped.head).unwrap_or_else(|_| text().into())
        });
        let mut state = self.state.lock();
        let Some(record) = state.record(id) else {
            return;
        };
        record.model = members.model.as_str().map(str::to_owned);
        record.stream = members.stream == true;
        record.body_bytes = tapped.length;
        record.digest = digest;
        record.body = body;
        if self.bodies {
            state.body_bytes += tapped.head.len();
        }
        state.count_attempt(id);
        while state.body_bytes > MAX_BODY_BYTES && state.records.len() > 1 {
            state.drop_oldest();
        }
    }

    fn end(&self, id: u64, whole: bool) {
        let mut state = self.state.lock();
        if let Some(record) = state.record(id) {
            record.seconds = Some(unix_now() - record.started);
            record.outcome = match record.status {
                _ if !whole => Outcome::Cut,
                Some(400..) => Outcome::Refused,
                _ => Outcome::Finished,
            };
        }
        drop(state);
        self.ended.notify_waiters();
    }

    /// Forgets all requests; how many there were.
    pub(crate) fn clear(&self) -> usize {
        let mut state = self.state.lock();
        let next_id = state.next_id;
        let former = std::mem::take(&mut *state);
        state.next_id = next_id;
        former.records.len()
    }

    /// Waits until so many of the requests that are asked for have ended.
    ///
    /// # Errors
    /// How many had when the time was over.
    pub(crate) async fn wait(
        &self,
        filter: &RequestFilter,
        wanted: usize,
        within: Duration,
    ) -> Result<(), usize> {
        let count = || {
            let state = self.state.lock();
            let records = state.records.iter();
            let ended = records.filter(|r| filter.holds(r) && r.outcome != Outcome::Running);
            ended.count()
        };
        let enough = async {
            loop {
                let next = self.ended.notified();
                let mut next = std::pin::pin!(next);
                // From here on no end is missed.
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

    /// The newest `most` requests that are asked for, oldest first, and how many there are.
    pub(crate) fn show(&self, filter: &RequestFilter, most: usize) -> Value {
        let state = self.state.lock();
        let found: Vec<&Record> = state.records.iter().filter(|r| filter.holds(r)).collect();
        let newest = &found[found.len().saturating_sub(most)..];
        json!({
            "count": found.len(),
            "dropped": state.dropped,
            "requests": newest.iter().map(|record| record.to_json()).collect::<Vec<_>>(),
        })
    }
}

impl State {
    fn record(&mut self, id: u64) -> Option<&mut Record> {
        let first = self.records.front()?.id;
        let index = usize::try_from(id.checked_sub(first)?).ok()?;
        self.records.get_mut(index)
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.records.pop_front() else {
            return;
        };
        self.dropped += 1;
        if oldest.body.is_some() {
            let bytes = usize::try_from(oldest.body_bytes).unwrap_or(usize::MAX);
            self.body_bytes = self.body_bytes.saturating_sub(bytes);
        }
        if let Some(key) = oldest.key
            && self.attempts.get(&key) == Some(&oldest.id)
        {
            self.attempts.remove(&key);
        }
    }

    /// Finds the attempt before this one: that of the same key.
    fn count_attempt(&mut self, id: u64) {
        let Some(key) = self.record(id).and_then(|record| record.find_key()) else {
            return;
        };
        let before = self.attempts.insert(key.clone(), id);
        let before = before.and_then(|before| self.record(before));
        let before = before.map(|b| (b.attempt, b.started + b.seconds.unwrap_or(0.0)));
        if let Some(record) = self.record(id) {
            if let Some((attempt, ended)) = before {
                record.attempt = attempt + 1;
                record.gap = Some(record.started - ended);
            }
            record.key = Some(key);
        }
    }
}

impl Record {
    /// What attempts at the same thing have in common: the idempotency key, the request's id, or, from
    /// clients that count their attempts, path and body.
    fn find_key(&self) -> Option<String> {
        let text = |name: &HeaderName| self.headers.get(name)?.to_str().ok().map(str::to_owned);
        let same_body = || {
            self.headers.get(&RETRY_COUNT)?;
            Some(format!("{} {}", self.path, self.digest.as_ref()?))
        };
        text(&IDEMPOTENCY_KEY)
            .or_else(|| text(&names::REQUEST_ID))
            .or_else(same_body)
    }

    fn to_json(&self) -> Value {
        let headers: Map<String, Value> = self
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), shown_header(name, value).into()))
            .collect();
        let (prompt_tokens, completion_tokens) = self.usage.tokens();
        let mut shown = json!({
            "id": self.id,
            "time": self.started,
            "path": self.path,
            "model": self.model,
            "stream": self.stream,
            "status": self.status,
            "outcome": match self.outcome {
                Outcome::Running => "running",
                Outcome::Finished => "finished",
                Outcome::Refused => "refused",
                Outcome::Cut => "cut",
            },
            "seconds_to_headers": self.seconds_to_headers,
            "seconds": self.seconds,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "key": self.key,
            "attempt": self.attempt,
            "gap_seconds": self.gap,
            "headers": headers,
            "body_bytes": self.body_bytes,
            "body_sha256": self.digest,
        });
        if let (Some(body), Some(shown)) = (&self.body, shown.as_object_mut()) {
            shown.insert("body".to_owned(), body.clone());
        }
        shown
    }
}

impl RequestFilter {
    fn holds(&self, record: &Record) -> bool {
        self.path.as_ref().is_none_or(|path| *path == record.path)
            && (self.model.is_none() || self.model == record.model)
            && (self.status.is_none() || self.status == record.status)
            && (self.key.is_none() || self.key == record.key)
            && self.after.is_none_or(|id| record.id > id)
    }
}

impl Recording {
    /// The answer begins; it is followed to its end.
    pub(crate) fn answer(self, response: Response<Body>) -> Response<Body> {
        let status = response.status().as_u16();
        if let Some(record) = self.history.state.lock().record(self.id) {
            record.status = Some(status);
            record.seconds_to_headers = Some(unix_now() - record.started);
        }
        response.map(|body| {
            Body::new(RecordedBody {
                body: Some(body),
                whole: false,
                recording: self,
            })
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.ended {
            self.history.end(self.id, false);
        }
    }
}

/// An answer that is followed to its end.
struct RecordedBody {
    /// `None` once it is dropped.
    body: Option<Body>,
    whole: bool,
    recording: Recording,
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
        self.whole |= match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => ends,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        // An empty answer is never polled.
        self.whole |= http_body::Body::is_end_stream(self);
        // First what holds the reply, which counts its tokens when it goes.
        self.body = None;
        self.recording.ended = true;
        self.recording.history.end(self.recording.id, self.whole);
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
