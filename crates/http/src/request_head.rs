//! Headers of a request, with the faults and counters that belong to it.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use vllm_sim_service::{LargeBodyReservation, RequestFaults, TokenUsage};

/// Header names that the server looks up in requests; static names avoid parsing.
pub(super) mod names {
    use super::HeaderName;

    /// Header with the requested data-parallel rank.
    pub(crate) static DATA_PARALLEL_RANK_HEADER: HeaderName =
        HeaderName::from_static("x-data-parallel-rank");
    pub(crate) static PRIORITY_HEADER: HeaderName = HeaderName::from_static("x-vllm-priority");
    pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
    pub(crate) static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
    pub(crate) static SESSION_ID_HEADER: HeaderName = HeaderName::from_static("x-session-id");
    pub(crate) static REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
    /// Header with the HTTP status of an error to return.
    pub(crate) static RETURN_ERROR_HEADER: HeaderName = HeaderName::from_static("x-return-error");
    /// Header with the faults to inject into the response.
    pub(crate) static SIM_FAULT_HEADER: HeaderName = HeaderName::from_static("x-sim-fault");
    /// Header that makes the request finish as if too little of its prompt were cached.
    pub(crate) static CACHE_HIT_THRESHOLD_HEADER: HeaderName =
        HeaderName::from_static("x-cache-threshold-finish-reason");
    /// Header that requests the server's load in a response header, and names its format.
    pub(crate) static LOAD_FORMAT_HEADER: HeaderName =
        HeaderName::from_static("endpoint-load-metrics-format");
}

/// Headers of a request, with its injected faults and its token counter.
#[derive(Default)]
pub(super) struct RequestHead {
    pub(super) headers: HeaderMap,
    /// Whether the request has only common headers, which do not change the response.
    pub(super) plain: bool,
    /// Injected faults of this request; `None` if faults are off.
    pub(super) faults: Option<Arc<RequestFaults>>,
    /// Counter of the request's tokens for the request history; `None` without `--request-history`.
    pub(super) usage: Option<Arc<TokenUsage>>,
    /// Reserved memory of a large body, until the response is complete.
    pub(super) _memory: Option<LargeBodyReservation>,
}

/// Common request headers without effect on the response, most frequent first.
static COMMON_HEADERS: [HeaderName; 10] = [
    header::HOST,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::USER_AGENT,
    header::CONNECTION,
    header::AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::ACCEPT_LANGUAGE,
];

/// Prefix of the request headers that OpenAI's SDKs add.
const SDK_HEADER_PREFIX: &str = "x-stainless-";

/// Returns whether a request has only common headers, which do not change the response.
pub(super) fn has_only_common_headers(headers: &HeaderMap) -> bool {
    let everyday = |name: &HeaderName| {
        COMMON_HEADERS.contains(name) || name.as_str().starts_with(SDK_HEADER_PREFIX)
    };
    headers.keys().all(everyday)
}

impl RequestHead {
    pub(super) fn new(headers: HeaderMap) -> Self {
        Self { plain: has_only_common_headers(&headers), headers, ..Self::default() }
    }

    /// Returns the headers of a request that may contain one of [`names`]; empty if all headers are
    /// common ones.
    ///
    /// This saves the lookups for most requests.
    pub(super) fn special_headers(&self) -> &HeaderMap {
        static NO_HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        match self.plain {
            true => &NO_HEADERS,
            false => &self.headers,
        }
    }
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
