//! Bodies and queries of the operators' routes, most of which read JSON by hand.
//!
//! Source: `vllm/entrypoints/serve/dev/**`, `vllm/entrypoints/rl/online/api_router.py`,
//! `vllm/entrypoints/serve/elastic_ep/api_router.py`,
//! `vllm/entrypoints/scale_out/token_in_token_out/api_router.py`.

use serde_json::{Map, Value};
use vllm_sim_python::{self as python, JsonError, Py};

use crate::check;
use crate::fault::{ErrorType, Fault};
use crate::schema::{Schema, Wire, int_within, wire_model};

const MODE: Schema = Schema::Literal(&["abort", "wait", "keep"]);

wire_model! {
    /// Query of `POST /sleep`.
    pub struct SleepQuery: Plain "sleep" {
        /// 0 pauses, 1 drops the cache, 2 the weights too.
        level: i128 [int_within(0, 2)] = 1,
        /// What becomes of running requests: `abort`, `wait` or `keep`.
        mode: String [MODE] = "abort".to_owned(),
    }
}

wire_model! {
    /// Query of `POST /pause`.
    pub struct PauseQuery: Plain "pause" {
        /// What becomes of running requests: `abort`, `wait` or `keep`.
        mode: String [MODE] = "abort".to_owned(),
        /// Deprecated.
        clear_cache: bool = true,
    }
}

wire_model! {
    /// Query of `POST /reset_prefix_cache`.
    pub struct ResetQuery: Plain "reset_prefix_cache" {
        /// Whether running requests are preempted for it.
        reset_running_requests: bool = false,
        /// Whether a connector's cache is reset too.
        reset_external: bool = false,
    }
}

wire_model! {
    /// Query of `GET /server_info`.
    pub struct ServerInfoQuery: Plain "server_info" {
        /// `text` or `json`.
        config_format: String [Schema::Literal(&["text", "json"])] = "text".to_owned(),
    }
}

wire_model! {
    /// Query of `GET /get_world_size`.
    pub struct WorldSizeQuery: Plain "get_world_size" {
        /// Whether data-parallel ranks count.
        include_dp: bool = true,
    }
}

wire_model! {
    /// Query of `GET /v1/responses/{response_id}`.
    pub struct ResponseQuery: Plain "retrieve_responses" {
        /// Events after this one only.
        starting_after: Option<i128> = None,
        /// Whether the events are sent instead of the body.
        stream: Option<bool> = Some(false),
    }
}

/// Reads the query of a request; the last of a repeated name counts.
///
/// # Errors
/// vLLM's 400 listing every parameter that is not of its type.
pub fn query<T: Wire>(pairs: impl IntoIterator<Item = (String, String)>) -> Result<T, Fault> {
    let map: Map<String, Value> = pairs
        .into_iter()
        .map(|(name, value)| (name, Value::from(value)))
        .collect();
    check::query(&Value::Object(map))
}

/// `HTTPException(400)`.
fn bad_request(message: impl Into<String>) -> Fault {
    Fault::new(400, ErrorType::BadRequestPhrase, message)
}

/// A body read by hand: an object, or a refusal in the route's words for broken JSON.
fn object(body: &[u8], broken: impl Fn(String) -> String) -> Result<Map<String, Value>, Fault> {
    match python::loads(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(bad_request("Request body must be a JSON object")),
        Err(error @ JsonError::Decode { .. }) => Err(bad_request(broken(error.located(body)))),
        Err(JsonError::Unreadable) => Err(Fault::new(
            400,
            ErrorType::Detail,
            "There was an error parsing the body",
        )),
    }
}

/// Body of `POST /collective_rpc`.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveRpc {
    /// What every worker calls.
    pub method: String,
    /// Positional arguments, as sent.
    pub args: Value,
    /// Named arguments, as sent.
    pub kwargs: Value,
}

impl CollectiveRpc {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(body: &[u8]) -> Result<Self, Fault> {
        let body = object(body, |error| format!("JSON decode error: {error}"))?;
        let method = body.get("method").filter(|method| !method.is_null());
        let method = method.ok_or_else(|| bad_request("Missing 'method' in request body"))?;
        let member = |key: &str| body.get(key).cloned().unwrap_or(Value::Null);
        Ok(Self {
            method: python::str(method),
            args: member("args"),
            kwargs: member("kwargs"),
        })
    }
}

/// Request ids to abort, of `POST /abort_requests` in dev mode: none means all.
///
/// # Errors
/// vLLM's 400 for a body it does not take.
pub fn abort_any(body: &[u8]) -> Result<Vec<String>, Fault> {
    let body = object(body, |_| "Invalid JSON format".to_owned())?;
    Ok(body.get("request_ids").map(ids).unwrap_or_default())
}

/// Request ids to abort, of `POST /inference/v1/abort_requests`.
///
/// # Errors
/// vLLM's 400 for a body it does not take.
pub fn abort_named(body: &[u8]) -> Result<Vec<String>, Fault> {
    let body = object(body, |error| format!("JSON decode error: {error}"))?;
    let named = body.get("request_ids").filter(|ids| !ids.is_null());
    named
        .map(ids)
        .ok_or_else(|| bad_request("Missing 'request_ids' in request body"))
}

fn ids(value: &Value) -> Vec<String> {
    match value {
        Value::Array(ids) => ids.iter().map(python::str).collect(),
        Value::String(one) => vec![one.clone()],
        _ => Vec::new(),
    }
}

/// Body of `POST /scale_elastic_ep`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleRequest {
    /// Ranks to scale to.
    pub new_data_parallel_size: i128,
    /// Seconds to wait for running requests.
    pub drain_timeout: i128,
}

impl ScaleRequest {
    /// Reads a body that was found to be JSON.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(body: &Value) -> Result<Self, Fault> {
        let Value::Object(body) = body else {
            return Err(crate::openai::validators::no_get(body));
        };
        let size = body
            .get("new_data_parallel_size")
            .filter(|size| !size.is_null());
        let size = size.ok_or_else(|| bad_request("new_data_parallel_size is required"))?;
        let positive = |value: &Value, name: &str| {
            let number = match Py::of(value) {
                Py::Int(number) => number,
                Py::Bool(truth) => i128::from(truth),
                _ => 0,
            };
            if number > 0 {
                return Ok(number);
            }
            Err(bad_request(format!("{name} must be a positive integer")))
        };
        Ok(Self {
            new_data_parallel_size: positive(size, "new_data_parallel_size")?,
            drain_timeout: match body.get("drain_timeout") {
                Some(seconds) => positive(seconds, "drain_timeout")?,
                None => 120,
            },
        })
    }

    /// Running requests did not end in time.
    pub fn timed_out(&self) -> Fault {
        let seconds = self.drain_timeout;
        Fault::new(
            408,
            ErrorType::RequestTimeoutPhrase,
            format!("Scale failed due to request drain timeout after {seconds} seconds"),
        )
    }
}

/// Scale-out routes on a server without `--enable-scale-out`.
pub fn scale_out_disabled() -> Fault {
    Fault::new(
        403,
        ErrorType::PermissionDenied,
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable \
         them.",
    )
}

/// A route whose model does not offer that API.
pub fn unsupported_api(api: &str) -> Fault {
    Fault::new(
        501,
        ErrorType::NotImplemented,
        format!("The model does not support {api}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &[(&str, &str)]) -> Vec<(String, String)> {
        text.iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn queries_list_every_bad_parameter() {
        assert_eq!(
            query::<SleepQuery>(pairs(&[("level", "2")])),
            Ok(SleepQuery {
                level: 2,
                mode: "abort".to_owned()
            })
        );
        assert_eq!(
            query::<SleepQuery>(pairs(&[("level", "9"), ("mode", "x")])).map_err(|f| f.to_json()),
            Err(concat!(
                r#"{"error":{"message":"2 validation errors:\n  {'type': 'less_than_equal', "#,
                r#"'loc': 'query.level', 'msg': 'Input should be less than or equal to 2', "#,
                r#"'input': '9', 'ctx': {'le': 2}}\n  {'type': 'literal_error', 'loc': "#,
                r#"'query.mode', 'msg': \"Input should be 'abort', 'wait' or 'keep'\", 'input': "#,
                r#"'x', 'ctx': {'expected': \"'abort', 'wait' or 'keep'\"}}","type":"#,
                r#""Bad Request","param":"query.level","code":400}}"#
            )
            .to_owned())
        );
    }

    #[test]
    fn hand_read_bodies_are_refused_in_each_routes_words() {
        let text = |fault: Fault| fault.message;
        assert_eq!(
            CollectiveRpc::parse(b"{\n x").map_err(text),
            Err(
                "JSON decode error: Expecting property name enclosed in double quotes: line 2 \
                 column 2 (char 3)"
                    .to_owned()
            )
        );
        assert_eq!(
            abort_any(b"{").map_err(text),
            Err("Invalid JSON format".to_owned())
        );
        assert_eq!(abort_any(b"{}"), Ok(Vec::new()));
        assert_eq!(
            abort_named(b"{}").map_err(text),
            Err("Missing 'request_ids' in request body".to_owned())
        );
        let scale = |text: &str| serde_json::from_str(text).expect("JSON");
        assert_eq!(
            ScaleRequest::parse(&scale(r#"{"new_data_parallel_size": 0}"#)).map_err(text),
            Err("new_data_parallel_size must be a positive integer".to_owned())
        );
    }
}
