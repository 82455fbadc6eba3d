//! What a request says beside its body.

use std::sync::Arc;

use axum::http::HeaderMap;

use vllm_sim_service::RequestFaults;

/// What comes with a request beside its body.
#[derive(Default)]
pub(super) struct RequestHead {
    pub(super) headers: HeaderMap,
    /// What befalls it; `None`: nothing can.
    pub(super) faults: Option<Arc<RequestFaults>>,
}
