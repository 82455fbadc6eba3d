use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::exchange::{RecordedApi, RecordedResponseDelivery};

pub(super) struct CapturedHttpExchange {
    pub(super) api: RecordedApi,
    pub(super) request: Value,
    pub(super) delivery: RecordedResponseDelivery,
    /// Send time of the request, in microseconds since 1970.
    pub(super) started_us: u64,
    /// Session of the request, from its header `X-Session-ID` or its field `session_id`.
    pub(super) session: Option<String>,
    /// Chunks of the response body, each with the time since the request was sent.
    pub(super) chunks: Vec<(Duration, Bytes)>,
}
