//! Responses API responses stored in memory for `previous_response_id` and later retrieval.
//!
//! vLLM stores them forever; the simulator keeps the latest, limited by number and size.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use indexmap::IndexMap;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::app::App;

const MAX_STORED_RESPONSES: usize = 10_000;

/// Maximum size of all stored Responses API responses, in bytes; smaller in tests.
const MAX_STORED_BYTES: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

#[derive(Default)]
pub(crate) struct ResponseStore(Mutex<StoredEntries>);

#[derive(Default)]
struct StoredEntries {
    by_id: IndexMap<String, StoredResponse>,
    bytes: usize,
    /// Number of response slots reserved so far in the store of Responses API responses.
    slots: u64,
    /// Number of simulated restarts of the server before the stored responses were created.
    lives: u32,
}

impl StoredEntries {
    /// Updates the size of a stored response, and drops the oldest responses beyond the store's
    /// limits.
    ///
    /// The newest response always stays.
    fn update_size_and_evict(&mut self, id: &str) {
        if let Some(entry) = self.by_id.get_mut(id) {
            let bytes = entry.size_bytes();
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
        while self.by_id.len() > 1
            && (self.by_id.len() > MAX_STORED_RESPONSES || self.bytes > MAX_STORED_BYTES)
        {
            if let Some((_, oldest)) = self.by_id.shift_remove_index(0) {
                self.bytes -= oldest.bytes;
            }
        }
    }
}

struct StoredResponse {
    /// Size of the stored Responses API response when last measured, in bytes.
    bytes: usize,
    slot: u64,
    response: Value,
    messages: Vec<Value>,
    log: Option<Arc<ResponseEventLog>>,
    /// Task that generates a background response; `None` for other responses.
    task: Option<AbortHandle>,
}

impl StoredResponse {
    /// Stops the task of a background response and ends its event log.
    fn stop_background_task(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        if let Some(log) = &self.log {
            log.end_response_event_log();
        }
    }

    fn size_bytes(&self) -> usize {
        let log = self.log.as_ref().map_or(0, |log| log.size_bytes());
        log + json_size_bytes(&self.response)
            + self.messages.iter().map(json_size_bytes).sum::<usize>()
    }
}

fn json_size_bytes(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(json_size_bytes).sum(),
        Value::Object(map) => {
            map.iter().map(|(key, item)| 64 + key.len() + json_size_bytes(item)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inner
}

/// An earlier Responses API response that a request continues.
#[derive(Debug, Clone)]
pub(crate) struct PreviousResponse {
    pub(crate) messages: Vec<Value>,
    pub(crate) output: Vec<Value>,
}

pub(super) enum ResponseCancelOutcome {
    Cancelled(Value),
    Ended,
    NotFound,
}

impl ResponseStore {
    /// Returns the store of responses of `app`; empties it if the server had a simulated restart.
    pub(super) fn store_of_app(app: &App) -> &Arc<Self> {
        let lives = app.availability_sender().borrow().lives;
        let mut entries = app.responses.0.lock();
        if entries.lives != lives {
            let slots = entries.slots;
            let mut old = std::mem::take(&mut *entries);
            (entries.lives, entries.slots) = (lives, slots);
            old.by_id.values_mut().for_each(StoredResponse::stop_background_task);
        }
        &app.responses
    }

    /// Reserves a slot in the store for the response to a request with the given chat messages.
    pub(super) fn reserve_slot(self: &Arc<Self>, messages: Vec<Value>) -> ResponseStoreSlot {
        let mut entries = self.0.lock();
        entries.slots += 1;
        ResponseStoreSlot {
            slot: entries.slots,
            lives: entries.lives,
            store: self.clone(),
            messages,
        }
    }

    /// Stores a Responses API response; it replaces the response of an earlier request with the
    /// same id.
    ///
    /// A cancelled response stays cancelled.
    fn store_response(&self, slot: &ResponseStoreSlot, response: &Value) {
        let id = response_id(response);
        let mut entries = self.0.lock();
        if entries.lives != slot.lives {
            return;
        }
        match entries.by_id.get_mut(&id) {
            Some(entry) if entry.slot > slot.slot => {}
            Some(entry) if entry.slot == slot.slot => {
                if entry.response["status"] != "cancelled" {
                    entry.response = response.clone();
                }
            }
            found => {
                let new = StoredResponse {
                    bytes: 0,
                    slot: slot.slot,
                    response: response.clone(),
                    messages: slot.messages.clone(),
                    log: None,
                    task: None,
                };
                match found {
                    // `settle` replaces this size below.
                    Some(old) => {
                        let bytes = old.bytes;
                        *old = StoredResponse { bytes, ..new };
                    }
                    None => {
                        entries.by_id.insert(id.clone(), new);
                    }
                }
            }
        }
        entries.update_size_and_evict(&id);
    }

    /// Attaches the generating task and the event log to a stored background response.
    pub(super) fn attach_background_task(
        &self,
        id: &str,
        task: AbortHandle,
        log: Option<Arc<ResponseEventLog>>,
    ) {
        if let Some(entry) = self.0.lock().by_id.get_mut(id) {
            entry.task = Some(task);
            entry.log = log;
        }
    }

    pub(super) fn stored_response(&self, id: &str) -> Option<Value> {
        self.0.lock().by_id.get(id).map(|entry| entry.response.clone())
    }

    pub(super) fn response_event_log(&self, id: &str) -> Option<Arc<ResponseEventLog>> {
        self.0.lock().by_id.get(id)?.log.clone()
    }

    /// Returns the chat messages and output items of a stored response, which the next request
    /// continues.
    pub(super) fn previous_response(&self, id: &str) -> Option<PreviousResponse> {
        let entries = self.0.lock();
        let entry = entries.by_id.get(id)?;
        let output = entry.response["output"].as_array();
        Some(PreviousResponse {
            messages: entry.messages.clone(),
            output: output.cloned().unwrap_or_default(),
        })
    }

    pub(super) fn cancel_response(&self, id: &str) -> ResponseCancelOutcome {
        let mut entries = self.0.lock();
        let Some(entry) = entries.by_id.get_mut(id) else {
            return ResponseCancelOutcome::NotFound;
        };
        if !matches!(entry.response["status"].as_str(), Some("queued" | "in_progress")) {
            return ResponseCancelOutcome::Ended;
        }
        entry.response["status"] = "cancelled".into();
        entry.stop_background_task();
        ResponseCancelOutcome::Cancelled(entry.response.clone())
    }
}

fn response_id(response: &Value) -> String {
    response["id"].as_str().unwrap_or_default().to_owned()
}

/// A reserved slot for one response in the store of Responses API responses.
pub(super) struct ResponseStoreSlot {
    store: Arc<ResponseStore>,
    slot: u64,
    /// Number of simulated server restarts before this response slot was reserved.
    lives: u32,
    messages: Vec<Value>,
}

impl ResponseStoreSlot {
    pub(super) fn store_finished_response(&self, response: &Value) {
        self.store.store_response(self, response);
    }
}

/// Records the events of a background Responses API response, so that clients can stream them
/// later.
#[derive(Default)]
pub(super) struct ResponseEventLog {
    events: Mutex<(Vec<Bytes>, bool)>,
    changed: Notify,
}

impl ResponseEventLog {
    pub(super) fn append_response_events(&self, event_bytes: &[u8]) {
        let text = String::from_utf8_lossy(event_bytes);
        let events = text.split_inclusive("\n\n");
        let events = events.map(|event| Bytes::copy_from_slice(event.as_bytes()));
        self.events.lock().0.extend(events);
        self.changed.notify_waiters();
    }

    fn size_bytes(&self) -> usize {
        self.events.lock().0.iter().map(Bytes::len).sum()
    }

    pub(super) fn end_response_event_log(&self) {
        self.events.lock().1 = true;
        self.changed.notify_waiters();
    }

    /// Returns a stream of the recorded response events from number `from`; the stream ends when
    /// the log ends.
    pub(super) fn stream_events_from(self: Arc<Self>, from: usize) -> Body {
        let next = |(log, at): (Arc<Self>, usize)| async move {
            loop {
                let changed = log.changed.notified();
                tokio::pin!(changed);
                // Registers before reading, so that later additions wake this task.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn response(id: &str, bytes: usize) -> Value {
        json!({"id": id, "status": "completed", "output": [{"text": "x".repeat(bytes)}]})
    }

    #[test]
    fn the_oldest_responses_make_room_by_size() {
        let store = Arc::new(ResponseStore::default());
        let slot = store.reserve_slot(Vec::new());
        for id in 0..6 {
            store.store_response(&slot, &response(&id.to_string(), MAX_STORED_BYTES / 4));
        }
        let kept: Vec<bool> =
            (0..6).map(|id| store.stored_response(&id.to_string()).is_some()).collect();
        assert_eq!(kept, [false, false, false, true, true, true]);
        // A larger one takes the place of what was measured before.
        store.store_response(&slot, &response("4", MAX_STORED_BYTES / 2));
        assert!(store.stored_response("3").is_none() && store.stored_response("4").is_some());
        assert!(store.0.lock().bytes <= MAX_STORED_BYTES);
    }

    #[test]
    fn the_newest_response_stays_however_large() {
        let store = Arc::new(ResponseStore::default());
        let slot = store.reserve_slot(Vec::new());
        store.store_response(&slot, &response("a", 10));
        store.store_response(&slot, &response("b", MAX_STORED_BYTES + 1));
        assert!(store.stored_response("a").is_none() && store.stored_response("b").is_some());
    }
}
