//! Responses that can be asked for again, in memory. vLLM keeps them for ever; we keep the
//! latest ones, up to a number and up to a size.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use indexmap::IndexMap;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::app::App;

/// Most responses that are kept.
const CAPACITY: usize = 10_000;

/// Most bytes that they take, about; few in tests.
const MAX_BYTES: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// The latest responses.
#[derive(Default)]
pub(crate) struct ResponseStore(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    by_id: IndexMap<String, StoredResponse>,
    /// What all of them take.
    bytes: usize,
    /// Requests so far that may be kept.
    slots: u64,
    /// The life of the process that they are of.
    lives: u32,
}

impl Entries {
    /// Adds or replaces an entry's size, and lets go of the oldest entries beyond the bounds; the
    /// newest one stays.
    fn settle(&mut self, id: &str) {
        if let Some(entry) = self.by_id.get_mut(id) {
            let bytes = entry.size();
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
        while self.by_id.len() > 1 && (self.by_id.len() > CAPACITY || self.bytes > MAX_BYTES) {
            if let Some((_, oldest)) = self.by_id.shift_remove_index(0) {
                self.bytes -= oldest.bytes;
            }
        }
    }
}

struct StoredResponse {
    /// What it takes, as last measured.
    bytes: usize,
    /// The request that it answers.
    slot: u64,
    response: Value,
    messages: Vec<Value>,
    /// Events of a background stream.
    log: Option<Arc<EventLog>>,
    /// What makes a background response.
    task: Option<AbortHandle>,
}

impl StoredResponse {
    /// Ends what still makes it.
    fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        if let Some(log) = &self.log {
            log.end();
        }
    }

    fn size(&self) -> usize {
        let log = self.log.as_ref().map_or(0, |log| log.size());
        log + size(&self.response) + self.messages.iter().map(size).sum::<usize>()
    }
}

/// What a value takes, about.
fn size(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(map) => map
            .iter()
            .map(|(key, item)| 64 + key.len() + size(item))
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inner
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
    /// Returns the responses of `app`'s process, which forgets them when it restarts.
    pub(super) fn of(app: &App) -> &Arc<Self> {
        let lives = app.availability().borrow().lives;
        let mut entries = app.responses.0.lock();
        if entries.lives != lives {
            let slots = entries.slots;
            let mut old = std::mem::take(&mut *entries);
            (entries.lives, entries.slots) = (lives, slots);
            old.by_id.values_mut().for_each(StoredResponse::stop);
        }
        &app.responses
    }

    /// Returns the right to keep the response to a request with these messages.
    pub(super) fn slot(self: &Arc<Self>, messages: Vec<Value>) -> StoreSlot {
        let mut entries = self.0.lock();
        entries.slots += 1;
        StoreSlot {
            slot: entries.slots,
            lives: entries.lives,
            store: self.clone(),
            messages,
        }
    }

    /// Keeps a response in place of that of an earlier request with its id; one that was cancelled
    /// stays so.
    fn put(&self, slot: &StoreSlot, response: &Value) {
        let id = id(response);
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
                    // What the bound counts of it is settled below.
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
        entries.settle(&id);
    }

    /// Who makes a background response, and where its events go.
    pub(super) fn attach_task(&self, id: &str, task: AbortHandle, log: Option<Arc<EventLog>>) {
        if let Some(entry) = self.0.lock().by_id.get_mut(id) {
            entry.task = Some(task);
            entry.log = log;
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Value> {
        self.0
            .lock()
            .by_id
            .get(id)
            .map(|entry| entry.response.clone())
    }

    pub(super) fn log(&self, id: &str) -> Option<Arc<EventLog>> {
        self.0.lock().by_id.get(id)?.log.clone()
    }

    /// What a following request builds on.
    pub(super) fn previous(&self, id: &str) -> Option<PreviousResponse> {
        let entries = self.0.lock();
        let entry = entries.by_id.get(id)?;
        let output = entry.response["output"].as_array();
        Some(PreviousResponse {
            messages: entry.messages.clone(),
            output: output.cloned().unwrap_or_default(),
        })
    }

    pub(super) fn cancel(&self, id: &str) -> CancelOutcome {
        let mut entries = self.0.lock();
        let Some(entry) = entries.by_id.get_mut(id) else {
            return CancelOutcome::NotFound;
        };
        if !matches!(
            entry.response["status"].as_str(),
            Some("queued" | "in_progress")
        ) {
            return CancelOutcome::Ended;
        }
        entry.response["status"] = "cancelled".into();
        entry.stop();
        CancelOutcome::Cancelled(entry.response.clone())
    }
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap_or_default().to_owned()
}

/// The right to keep one response.
pub(super) struct StoreSlot {
    store: Arc<ResponseStore>,
    /// Which request it is.
    slot: u64,
    /// In which life of the process.
    lives: u32,
    messages: Vec<Value>,
}

impl StoreSlot {
    pub(super) fn finish(&self, response: &Value) {
        self.store.put(self, response);
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

    /// Bytes of its events.
    fn size(&self) -> usize {
        self.events.lock().0.iter().map(Bytes::len).sum()
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
        let slot = store.slot(Vec::new());
        for id in 0..6 {
            store.put(&slot, &response(&id.to_string(), MAX_BYTES / 4));
        }
        let kept: Vec<bool> = (0..6)
            .map(|id| store.get(&id.to_string()).is_some())
            .collect();
        assert_eq!(kept, [false, false, false, true, true, true]);
        // A larger one takes the place of what was measured before.
        store.put(&slot, &response("4", MAX_BYTES / 2));
        assert!(store.get("3").is_none() && store.get("4").is_some());
        assert!(store.0.lock().bytes <= MAX_BYTES);
    }

    #[test]
    fn the_newest_response_stays_however_large() {
        let store = Arc::new(ResponseStore::default());
        let slot = store.slot(Vec::new());
        store.put(&slot, &response("a", 10));
        store.put(&slot, &response("b", MAX_BYTES + 1));
        assert!(store.get("a").is_none() && store.get("b").is_some());
    }
}
