//! Ids of the requests in submission and in the engine.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::control::lock_unpoisoned;

type Ids = Arc<Mutex<HashSet<Arc<str>>>>;

/// Ids of the requests that are being submitted to the engine or are running there.
#[derive(Default)]
pub(crate) struct UsedRequestIds(Ids);

/// Guard of a request's id, which is reserved until the guard is dropped.
pub(crate) struct ReservedRequestId {
    ids: Ids,
    id: Arc<str>,
}

impl UsedRequestIds {
    /// Reserves a request id; returns `None` if another request uses it.
    pub(crate) fn reserve_request_id(&self, id: &Arc<str>) -> Option<ReservedRequestId> {
        let mut used = lock_unpoisoned(&self.0);
        used.insert(id.clone()).then(|| ReservedRequestId { ids: self.0.clone(), id: id.clone() })
    }
}

impl Drop for ReservedRequestId {
    fn drop(&mut self) {
        lock_unpoisoned(&self.ids).remove(&self.id);
    }
}
