use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::exchange::{Api, Delivery};

/// A request and what came back for it.
pub(super) struct Captured {
    pub(super) api: Api,
    pub(super) request: Value,
    pub(super) delivery: Delivery,
    /// Pieces of the answer, and when each came after the request was sent.
    pub(super) chunks: Vec<(Duration, Bytes)>,
}
