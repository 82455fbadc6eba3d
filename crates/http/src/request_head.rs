//! Headers of a request, with the faults and counters that belong to it.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use vllm_sim_service::{MessageReservation, RequestFaults, TokenUsage};

/// Header names that the server looks up in requests; static names avoid parsing.
pub(super) mod names {
    use super::HeaderName;

    /// Header with the requested data-parallel rank.
    pub(crate) static DATA_PARALLEL_RANK: HeaderName =
        HeaderName::from_static("x-data-parallel-rank");
    pub(crate) static PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");
    pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
    pub(crate) static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
    pub(crate) static SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
    pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
    /// Header with the HTTP status of an error to return.
    pub(crate) static RETURN_ERROR: HeaderName = HeaderName::from_static("x-return-error");
    /// Header with the faults to inject into the response.
    pub(crate) static SIM_FAULT: HeaderName = HeaderName::from_static("x-sim-fault");
    /// Header that makes the request finish as if too little of its prompt were cached.
    pub(crate) static CACHE_HIT_THRESHOLD: HeaderName =
        HeaderName::from_static("x-cache-threshold-finish-reason");
    /// Header that requests the server's load in a response header, and names its format.
    pub(crate) static LOAD_FORMAT: HeaderName =
        HeaderName::from_static("endpoint-load-metrics-format");
}

/// Headers of a request, with the faults and counters that belong to it.
pub(super) struct RequestHead {
    pub(super) headers: HeaderMap,
    /// Injected faults of this request; `None` if faults are off.
    pub(super) faults: Option<Arc<RequestFaults>>,
    /// Counter of the request's tokens for the request history; `None` without `--request-history`.
    pub(super) usage: Option<Arc<TokenUsage>>,
    /// Reserved memory of a large body, until the response is complete.
    pub(super) _memory: Option<MessageReservation>,
}

const MASKED_VALUE: &str = "***";
const SECRET_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"];

/// Returns the value of a header for the log, masked if it is secret.
pub(super) fn masked_header_value<'v>(name: &HeaderName, value: &'v HeaderValue) -> Cow<'v, str> {
    if SECRET_HEADERS.contains(&name.as_str()) {
        return Cow::Borrowed(MASKED_VALUE);
    }
    String::from_utf8_lossy(value.as_bytes())
}
