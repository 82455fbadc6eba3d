//! What a request says beside its body.

use std::sync::{Arc, LazyLock};

use axum::http::{HeaderMap, HeaderName, header};

use vllm_sim_service::{RequestFaults, TokenUsage};

/// Headers that are looked for in every request: a name that is no text is not parsed each time.
pub(super) mod names {
    use super::HeaderName;

    /// The data-parallel rank asked for.
    pub(crate) static RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
    /// The priority.
    pub(crate) static PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");
    /// W3C trace context.
    pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
    /// W3C trace context.
    pub(crate) static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
    /// The id of the request.
    pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
    /// The failure that is asked for.
    pub(crate) static RETURN_ERROR: HeaderName = HeaderName::from_static("x-return-error");
    /// The faults that are asked for.
    pub(crate) static FAULT: HeaderName = HeaderName::from_static("x-sim-fault");
    /// Whether to end as one does that finds too little in the cache.
    pub(crate) static CACHE_THRESHOLD: HeaderName =
        HeaderName::from_static("x-cache-threshold-finish-reason");
    /// The form in which the load is to be told.
    pub(crate) static LOAD_FORMAT: HeaderName =
        HeaderName::from_static("endpoint-load-metrics-format");
}

/// What comes with a request beside its body.
#[derive(Default)]
pub(super) struct RequestHead {
    pub(super) headers: HeaderMap,
    /// It has none but headers that every client sends.
    pub(super) plain: bool,
    /// What befalls it; `None`: nothing can.
    pub(super) faults: Option<Arc<RequestFaults>>,
    /// Where its tokens are counted; `None`: nobody asks.
    pub(super) usage: Option<Arc<TokenUsage>>,
}

/// Headers that say nothing to this server beside HTTP, the most frequent ones first.
static EVERYDAY: [HeaderName; 10] = [
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

/// What OpenAI's clients say of themselves.
const OWN_CLIENT: &str = "x-stainless-";

/// Whether there are none but headers that every client sends.
pub(super) fn is_plain(headers: &HeaderMap) -> bool {
    let everyday =
        |name: &HeaderName| EVERYDAY.contains(name) || name.as_str().starts_with(OWN_CLIENT);
    headers.keys().all(everyday)
}

impl RequestHead {
    /// A head of these headers.
    pub(super) fn new(headers: HeaderMap) -> Self {
        Self {
            plain: is_plain(&headers),
            headers,
            ..Self::default()
        }
    }

    /// The headers among which [`names`] may be: each look-up costs as much as reading a line, and most
    /// requests have none of them.
    pub(super) fn special_headers(&self) -> &HeaderMap {
        static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        match self.plain {
            true => &NONE,
            false => &self.headers,
        }
    }
}
