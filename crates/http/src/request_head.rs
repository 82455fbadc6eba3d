//! Headers that the server looks up in requests; ids of requests, engines and tool calls.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

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

const MASKED_VALUE: &str = "***";
const SECRET_HEADERS: [&str; 7] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
];

/// Returns the value of a header for the log, masked if it is secret.
pub(super) fn masked_header_value<'v>(name: &HeaderName, value: &'v HeaderValue) -> Cow<'v, str> {
    if SECRET_HEADERS.contains(&name.as_str()) {
        return Cow::Borrowed(MASKED_VALUE);
    }
    String::from_utf8_lossy(value.as_bytes())
}

/// Returns a number for a new id, which is unique in this process and looks random.
///
/// It mixes a counter with one random UUID, which saves a system call per request.
fn fresh_number() -> u64 {
    static BASE: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().1);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    vllm_sim_random::mix_u64_pair(*BASE, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the engine id of a data-parallel rank, which is constant while this process runs.
pub(crate) fn rank_engine_id(rank: u32) -> String {
    static BASE: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().1);
    let high = vllm_sim_random::mix_u64_pair(*BASE, u64::from(rank));
    let low = vllm_sim_random::mix_u64_pair(high, *BASE);
    let bytes = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
    let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
    id.to_string()
}

/// Length of an id from [`new_random_hex_id`], in hex digits.
const UID_HEX_DIGITS: usize = 16;

/// Returns a new id of 16 lowercase hex digits, like the low half of a random UUID.
pub(crate) fn new_random_hex_id() -> String {
    str::from_utf8(&uid_digits()).unwrap_or_default().to_owned()
}

fn uid_digits() -> [u8; UID_HEX_DIGITS] {
    let id = fresh_number();
    std::array::from_fn(|place| {
        b"0123456789abcdef"[(id >> (4 * (UID_HEX_DIGITS - 1 - place))) as usize & 0xf]
    })
}

/// Generator of tool-call ids: unique for each choice and call, and equal when requested again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolCallIds {
    base: u64,
    prefix: &'static str,
    /// Whether tool-call ids have ten decimal digits (llm-d) instead of sixteen hex digits (vLLM).
    decimal: bool,
}

impl ToolCallIds {
    /// Creates a generator of tool-call ids in vLLM's form.
    pub(crate) fn with_random_hex_ids() -> Self {
        Self { base: fresh_number(), prefix: "chatcmpl-tool-", decimal: false }
    }

    /// Creates a generator of tool-call ids in llm-d's form: `prefix` and ten decimal digits.
    pub(crate) fn with_decimal_ids(prefix: &'static str) -> Self {
        Self { prefix, decimal: true, ..Self::with_random_hex_ids() }
    }

    pub(crate) fn with_id_prefix(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    pub(crate) fn tool_call_id(&self, choice: usize, call: usize) -> String {
        let id = vllm_sim_random::mix_u64_pair(self.base, (choice as u64) << 32 | call as u64);
        match self.decimal {
            true => format!("{}{:010}", self.prefix, id % 10_000_000_000),
            false => format!("{}{id:016x}", self.prefix),
        }
    }
}

/// Returns a request id: `prefix`, then the id in the header `X-Request-Id`, the id in the body, or
/// a new one. An empty id counts as given.
///
/// Source: vLLM's `BaseServing._base_request_id`.
pub(crate) fn request_id(prefix: &str, headers: &HeaderMap, body: Option<&str>) -> Arc<str> {
    let header = headers.get(&names::REQUEST_ID_HEADER).and_then(|v| v.to_str().ok());
    if let Some(given) = header.or(body) {
        return [prefix, given].concat().into();
    }
    // Builds the id on the stack, so that only the shared string is allocated.
    let mut id = [0; 32];
    let (digits, whole) = (uid_digits(), prefix.len() + UID_HEX_DIGITS);
    match id.get_mut(..whole) {
        Some(id) => {
            id[..prefix.len()].copy_from_slice(prefix.as_bytes());
            id[prefix.len()..].copy_from_slice(&digits);
            str::from_utf8(id).unwrap_or_default().into()
        }
        None => [prefix, str::from_utf8(&digits).unwrap_or_default()].concat().into(),
    }
}
