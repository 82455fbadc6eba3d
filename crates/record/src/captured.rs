use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::exchange::{Api, Delivery};

pub(super) struct CapturedExchange {
    pub(super) api: Api,
    pub(super) request: Value,
    pub(super) delivery: Delivery,
    /// Chunks of the response body, each with the time since the request was sent.
    pub(super) chunks: Vec<(Duration, Bytes)>,
}
