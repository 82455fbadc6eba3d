//! Ids of requests, and of what answers them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::http::HeaderMap;

use crate::request_head::names;

/// A number that no other request of this process gets, and that looks random: a UUID drawn once,
/// mixed with a counter. Asking the system for each id is a call too many per request.
fn fresh() -> u64 {
    static BASE: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().1);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    vllm_sim_random::mix(*BASE, COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The name of a rank's engine: the same as often as this process is asked.
pub(crate) fn rank_engine_id(rank: u32) -> String {
    static BASE: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().1);
    let high = vllm_sim_random::mix(*BASE, u64::from(rank));
    let low = vllm_sim_random::mix(high, *BASE);
    let bytes = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
    let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
    id.to_string()
}

/// Lower-case hex digits of a [`uid`].
const UID: usize = 16;

/// 16 lower-case hex digits, as the low half of a random UUID.
pub(crate) fn uid() -> String {
    let mut id = String::with_capacity(UID);
    push_uid(&mut id);
    id
}

/// Appends a [`uid`]; the formatting machinery costs ten times as much.
fn push_uid(out: &mut String) {
    let id = fresh();
    let digit = |place: usize| b"0123456789abcdef"[(id >> (4 * (UID - 1 - place))) as usize & 0xf];
    let digits: [u8; UID] = std::array::from_fn(digit);
    out.push_str(str::from_utf8(&digits).unwrap_or_default());
}

/// The id of a call by choice and call.
pub(crate) type CallIds = Arc<dyn Fn(usize, usize) -> String + Send + Sync>;

/// Ids of tool calls, fresh for each (choice, call) and the same when asked again.
pub(crate) fn call_ids() -> CallIds {
    let base = fresh();
    Arc::new(move |choice, call| {
        let id = vllm_sim_random::mix(base, (choice as u64) << 32 | call as u64);
        format!("chatcmpl-tool-{id:016x}")
    })
}

/// Ids of tool calls as llm-d has them: `prefix` and ten digits.
pub(crate) fn numbered(prefix: &'static str) -> CallIds {
    let base = fresh();
    Arc::new(move |choice, call| {
        let id = vllm_sim_random::mix(base, (choice as u64) << 32 | call as u64);
        format!("{prefix}{:010}", id % 10_000_000_000)
    })
}

/// The id of a request: `prefix` and the header's, the body's or a fresh one.
pub(crate) fn request_id(prefix: &str, headers: &HeaderMap, body: Option<&str>) -> Arc<str> {
    let header = headers
        .get(&names::REQUEST_ID)
        .and_then(|v| v.to_str().ok())
        .filter(|v| !v.is_empty());
    let given = header.or(body.filter(|v| !v.is_empty()));
    let mut id = String::with_capacity(prefix.len() + given.map_or(16, str::len));
    id.push_str(prefix);
    match given {
        Some(given) => id.push_str(given),
        None => push_uid(&mut id),
    }
    id.into()
}
