//! Bodies and answers of the operators' routes that read JSON by hand.
//!
//! Source: `vllm/entrypoints/serve/dev/**`, `vllm/entrypoints/rl/online/api_router.py`,
//! `vllm/entrypoints/serve/elastic_ep/api_router.py`, `vllm/entrypoints/scale_out/**`.

use serde_json::Value;

use crate::wire::fault::{Fault, Kind};
use crate::wire::python_json;

/// What an `HTTPException(400)` says.
fn bad_request(message: impl Into<String>) -> Fault {
    Fault::new(400, Kind::BadRequestPhrase, message)
}

/// Reads a body that has to be an object, as `await request.json()` does.
///
/// # Errors
/// 400 `Invalid JSON format`, or with the decoder's words where the route gives them.
pub fn json(body: &[u8]) -> Result<Value, Fault> {
    python_json::parse(body).map_err(|_| bad_request("Invalid JSON format"))
}

/// A key that a hand-read body has to have.
///
/// # Errors
/// 400 `Missing 'key' in request body`.
pub fn required<'v>(body: &'v Value, key: &str) -> Result<&'v Value, Fault> {
    body.get(key)
        .filter(|value| !value.is_null())
        .ok_or_else(|| bad_request(format!("Missing '{key}' in request body")))
}

/// Scale-out routes on a server without `--enable-scale-out`.
pub fn scale_out_disabled() -> Fault {
    Fault::new(
        403,
        Kind::PermissionDenied,
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable \
         them.",
    )
}

/// `POST /scale_elastic_ep` without a size.
pub fn scale_size_missing() -> Fault {
    bad_request("new_data_parallel_size is required")
}

/// A route whose model does not offer that API.
pub fn unsupported_api(api: &str) -> Fault {
    Fault::new(
        501,
        Kind::NotImplemented,
        format!("The model does not support {api}"),
    )
}

/// A query parameter that is not of its type: an enumeration.
pub fn query_choice(name: &str, value: &str, choices: &[&str]) -> Fault {
    query(crate::wire::lax::literal_words(choices), name, value)
}

/// A query parameter that is not of its type: an integer.
pub fn query_int(name: &str, value: &str) -> Result<i128, Fault> {
    let text = Value::from(value);
    match crate::wire::lax::int(&text) {
        Ok(number) => Ok(number.as_ref().and_then(read_int).unwrap_or_default()),
        Err(words) => Err(query(words, name, value)),
    }
}

/// A query parameter that is not of its type: a truth value.
pub fn query_bool(name: &str, value: &str) -> Result<bool, Fault> {
    let text = Value::from(value);
    match crate::wire::lax::bool(&text) {
        Ok(truth) => Ok(truth == Some(Value::Bool(true))),
        Err(words) => Err(query(words, name, value)),
    }
}

fn read_int(value: &Value) -> Option<i128> {
    <i128 as crate::wire::schema::Wire>::read(value)
}

fn query(words: crate::wire::lax::Words, name: &str, value: &str) -> Fault {
    crate::wire::check::query_fault(words, name, value)
}
