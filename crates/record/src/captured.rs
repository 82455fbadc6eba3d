use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::exchange::{RecordedApi, ResponseDelivery};

pub(super) struct CapturedExchange {
    pub(super) api: RecordedApi,
    pub(super) request: Value,
    pub(super) delivery: ResponseDelivery,
    /// Chunks of the response body, each with the time since the request was sent.
    pub(super) chunks: Vec<(Duration, Bytes)>,
}
