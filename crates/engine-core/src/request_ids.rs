//! Ids of the requests in submission and in the engine.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

type Ids = Arc<Mutex<HashSet<Arc<str>>>>;

/// The set of the request ids in use.
#[derive(Default)]
pub(crate) struct RequestIds(Ids);

/// Guard of a request: its id is in use until the guard is dropped.
pub(crate) struct ReservedId {
    ids: Ids,
    id: Arc<str>,
}

impl RequestIds {
    /// Reserves `id`; `None` if another request uses it.
    pub(crate) fn reserve(&self, id: &Arc<str>) -> Option<ReservedId> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(id.clone()).then(|| ReservedId { ids: self.0.clone(), id: id.clone() })
    }
}

impl Drop for ReservedId {
    fn drop(&mut self) {
        let mut used = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        used.remove(&self.id);
    }
}
