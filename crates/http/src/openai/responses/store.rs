//! Responses that can be asked for again, in memory. vLLM keeps them for ever; we keep the
//! latest ones.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use indexmap::IndexMap;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Most responses that are kept.
const CAPACITY: usize = 10_000;

/// The latest responses.
#[derive(Default)]
pub(crate) struct ResponseStore(Mutex<IndexMap<String, StoredResponse>>);

struct StoredResponse {
    response: Value,
    messages: Vec<Value>,
    /// Events of a background stream.
    log: Option<Arc<EventLog>>,
    /// What makes a background response.
    task: Option<AbortHandle>,
}

/// A response that a request follows.
#[derive(Debug, Clone)]
pub(crate) struct PreviousResponse {
    /// The messages it answered.
    pub(crate) messages: Vec<Value>,
    /// Its output items.
    pub(crate) output: Vec<Value>,
}

/// What became of the wish to cancel.
pub(super) enum CancelOutcome {
    /// The response as it is now.
    Cancelled(Value),
    /// There is nothing to cancel.
    Ended,
    /// No such response.
    NotFound,
}

impl ResponseStore {
    /// Keeps a response; one that was cancelled stays so.
    fn put(&self, messages: &[Value], response: &Value) {
        let id = id(response);
        let mut entries = self.0.lock();
        if let Some(entry) = entries.get_mut(&id) {
            if entry.response["status"] != "cancelled" {
                entry.response = response.clone();
            }
            return;
        }
        if entries.len() >= CAPACITY {
            entries.shift_remove_index(0);
        }
        let entry = StoredResponse {
            response: response.clone(),
            messages: messages.to_vec(),
            log: None,
            task: None,
        };
        entries.insert(id, entry);
    }

    /// Who makes a background response, and where its events go.
    pub(super) fn attach_task(&self, id: &str, task: AbortHandle, log: Option<Arc<EventLog>>) {
        if let Some(entry) = self.0.lock().get_mut(id) {
            entry.task = Some(task);
            entry.log = log;
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Value> {
        self.0.lock().get(id).map(|entry| entry.response.clone())
    }

    pub(super) fn log(&self, id: &str) -> Option<Arc<EventLog>> {
        self.0.lock().get(id)?.log.clone()
    }

    /// What a following request builds on.
    pub(super) fn previous(&self, id: &str) -> Option<PreviousResponse> {
        let entries = self.0.lock();
        let entry = entries.get(id)?;
        let output = entry.response["output"].as_array();
        Some(PreviousResponse {
            messages: entry.messages.clone(),
            output: output.cloned().unwrap_or_default(),
        })
    }

    pub(super) fn cancel(&self, id: &str) -> CancelOutcome {
        let mut entries = self.0.lock();
        let Some(entry) = entries.get_mut(id) else {
            return CancelOutcome::NotFound;
        };
        if !matches!(
            entry.response["status"].as_str(),
            Some("queued" | "in_progress")
        ) {
            return CancelOutcome::Ended;
        }
        entry.response["status"] = "cancelled".into();
        if let Some(task) = entry.task.take() {
            task.abort();
        }
        if let Some(log) = &entry.log {
            log.end();
        }
        CancelOutcome::Cancelled(entry.response.clone())
    }
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap_or_default().to_owned()
}

/// The right to keep one response.
pub(super) struct StoreSlot {
    pub(super) store: Arc<ResponseStore>,
    pub(super) messages: Vec<Value>,
}

impl StoreSlot {
    pub(super) fn finish(&self, response: &Value) {
        self.store.put(&self.messages, response);
    }
}

/// The events of a background stream so far.
#[derive(Default)]
pub(super) struct EventLog {
    events: Mutex<(Vec<Bytes>, bool)>,
    changed: Notify,
}

impl EventLog {
    /// Adds the events of one frame.
    pub(super) fn add(&self, frame: &[u8]) {
        let text = String::from_utf8_lossy(frame);
        let events = text.split_inclusive("\n\n");
        let events = events.map(|event| Bytes::copy_from_slice(event.as_bytes()));
        self.events.lock().0.extend(events);
        self.changed.notify_waiters();
    }

    /// No more will come.
    pub(super) fn end(&self) {
        self.events.lock().1 = true;
        self.changed.notify_waiters();
    }

    /// Events from number `from` on, until the last.
    pub(super) fn body(self: Arc<Self>, from: usize) -> Body {
        let next = |(log, at): (Arc<Self>, usize)| async move {
            loop {
                let changed = log.changed.notified();
                tokio::pin!(changed);
                // Before looking: what is added after must wake us.
                changed.as_mut().enable();
                let (event, ended) = {
                    let events = log.events.lock();
                    (events.0.get(at).cloned(), events.1)
                };
                match event {
                    Some(event) => {
                        return Some((
                            Ok::<_, std::convert::Infallible>(event),
                            (log.clone(), at + 1),
                        ));
                    }
                    None if ended => return None,
                    None => changed.await,
                }
            }
        };
        Body::from_stream(futures_util::stream::unfold((self, from), next))
    }
}
