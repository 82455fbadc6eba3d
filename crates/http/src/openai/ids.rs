//! Ids of requests, engines and tool calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::http::HeaderMap;

use crate::request_head::names;

/// Returns a number for ids that is unique in this process and looks random.
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

/// Length of an id from [`new_uid`], in hex digits.
const UID_HEX_DIGITS: usize = 16;

/// Returns a new id of 16 lowercase hex digits, like the low half of a random UUID.
pub(crate) fn new_uid() -> String {
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

    pub(crate) fn with_prefix(self, prefix: &'static str) -> Self {
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
