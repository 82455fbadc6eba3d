//! Bootstrap server of a prefill server, on its own port: describes the ranks of the prefill server
//! to decode servers.
//!
//! Source: SGLang 0.5.23 `srt/disaggregation/common/conn.py`, `CommonKVBootstrapServer`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use axum::routing::{any, get, post};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ok_json_response;

/// Maximum number of bootstrap rooms whose data-parallel rank is stored; beyond it, all are
/// dropped.
const MAX_ROOMS: usize = 65_536;

/// Registry of the ranks of a prefill server.
#[derive(Debug, Clone)]
pub struct SglangBootstrapServer(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    /// Description of the deployment from the first registered rank; empty before the first
    /// registration.
    common: Map<String, Value>,
    /// Map from the data-parallel, context, tensor and pipeline index of a rank of the prefill
    /// server to the rank's address.
    ranks: BTreeMap<[i64; 4], (Value, Value)>,
    registered: u64,
    /// Map from a bootstrap room to the data-parallel rank of the prefill server that serves the
    /// room.
    rooms: HashMap<u64, i64>,
}

impl SglangBootstrapServer {
    /// Creates a bootstrap server with the ranks of this process's prefill server, whose ZeroMQ
    /// listener has the endpoint `tcp://IP:PORT`.
    pub fn with_prefill_ranks(app: &App, listener_endpoint: &str) -> Self {
        let parallel = &app.settings.parallel;
        let address = listener_endpoint.strip_prefix("tcp://").unwrap_or(listener_endpoint);
        let (ip, port) = address.rsplit_once(':').unwrap_or((address, "0"));
        let mut registry = Registry::default();
        for dp in 0..parallel.data {
            for tp in 0..parallel.tensor {
                for pp in 0..parallel.pipeline {
                    let row = json!({
                        "attn_tp_size": parallel.tensor,
                        "attn_tp_rank": tp,
                        "attn_cp_size": 1,
                        "attn_cp_rank": 0,
                        "attn_dp_size": 1,
                        "attn_dp_rank": 0,
                        "pp_size": parallel.pipeline,
                        "pp_rank": pp,
                        "system_dp_size": parallel.data,
                        "system_dp_rank": dp,
                        "rank_ip": ip.trim_matches(['[', ']']),
                        "rank_port": port.parse().unwrap_or(0_u16),
                        "page_size": app.settings.cache.block_size,
                        "kv_cache_dtype": app.settings.shown_config.get("kv_cache_dtype"),
                        "load_balance_method": "follow_bootstrap_room",
                        "prefill_http_port": app.port,
                    });
                    // The row has all that is needed.
                    let _ = registry.register(&row);
                }
            }
        }
        Self(Arc::new(Mutex::new(registry)))
    }

    /// Returns the routes of the bootstrap server.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/route", any(route))
            .route("/register_dp_rank", post(register_rank))
            .route("/query_dp_ranks", post(query_ranks))
            .route("/health", get(health))
            .with_state(self)
    }
}

impl Registry {
    /// Registers a rank of the prefill server from JSON; returns `None` if a member is missing.
    fn register(&mut self, row: &Value) -> Option<Result<(), &'static str>> {
        let number = |name: &str| row.get(name).and_then(Value::as_i64);
        let (system, attention) = (number("system_dp_size")?, number("attn_dp_size")?);
        let (dp, size) = match system {
            1 => (number("attn_dp_rank")?, attention),
            _ => (number("system_dp_rank")?, system),
        };
        let rank = [dp, number("attn_cp_rank")?, number("attn_tp_rank")?, number("pp_rank")?];
        let address = (row.get("rank_ip")?.clone(), row.get("rank_port")?.clone());
        let policy = row.get("decode_allocation_policy").cloned().unwrap_or("early".into());
        if self.registered > 0 && self.common["decode_allocation_policy"] != policy {
            return Some(Err("Inconsistent prefill allocation policies"));
        }
        let balance = row.get("load_balance_method").and_then(Value::as_str);
        let is_set = |name: &str| row.get(name).and_then(Value::as_bool).unwrap_or(false);
        let members = [
            ("attn_tp_size", number("attn_tp_size")?.into()),
            ("attn_cp_size", number("attn_cp_size")?.into()),
            ("dp_size", size.into()),
            ("pp_size", number("pp_size")?.into()),
            ("page_size", number("page_size")?.into()),
            ("kv_cache_dtype", row.get("kv_cache_dtype")?.clone()),
            (
                "follow_bootstrap_room",
                balance.is_none_or(|method| method == "follow_bootstrap_room").into(),
            ),
            ("enable_dsa_cache_layer_split", is_set("enable_dsa_cache_layer_split").into()),
            ("decode_allocation_policy", policy),
            ("enable_kv_cache_sharding", is_set("enable_kv_cache_sharding").into()),
            ("prefill_http_port", row.get("prefill_http_port").cloned().unwrap_or_default()),
        ];
        for (name, value) in members {
            self.common.entry(name).or_insert(value);
        }
        self.ranks.insert(rank, address);
        self.registered += 1;
        Some(Ok(()))
    }

    fn is_ready(&self) -> bool {
        let size = |name| self.common.get(name).and_then(Value::as_u64);
        let sizes = ["dp_size", "attn_cp_size", "attn_tp_size", "pp_size"].map(size);
        let expected =
            sizes.into_iter().try_fold(1_u64, |product, size| product.checked_mul(size?));
        expected.is_some_and(|expected| self.registered >= expected)
    }

    /// Returns the description of the prefill server.
    fn description(&self) -> Value {
        let mut description = self.common.clone();
        for unresolved in [
            "target_tp_rank",
            "target_tp_ranks",
            "target_cp_ranks",
            "target_pp_ranks",
            "required_dst_info_num",
            "required_prefill_response_num",
        ] {
            description.insert(unresolved.to_owned(), Value::Null);
        }
        Value::Object(description)
    }
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Returns the 500 response that aiohttp sends when a request handler raises an exception.
fn failed() -> Response<Body> {
    let words = "500 Internal Server Error\n\nServer got itself in trouble";
    text(StatusCode::INTERNAL_SERVER_ERROR, words)
}

/// Handles `/route`: `PUT` registers a rank, `GET` returns a rank's address. If all indices of the
/// rank are -1, `GET` describes the prefill server.
async fn route(
    State(server): State<SglangBootstrapServer>,
    method: Method,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> Response<Body> {
    let mut registry = server.0.lock();
    if method == Method::PUT {
        let row = serde_json::from_slice(&body).unwrap_or(Value::Null);
        return match registry.register(&row) {
            None => failed(),
            Some(Err(refusal)) => text(StatusCode::BAD_REQUEST, refusal),
            Some(Ok(())) => text(StatusCode::OK, "OK"),
        };
    }
    if method != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed");
    }
    let names = ["prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"];
    let given = names.map(|name| query.get(name).filter(|value| !value.is_empty()));
    if given.iter().any(Option::is_none) {
        return text(StatusCode::BAD_REQUEST, "Missing inputs for bootstrap server.");
    }
    let numbers = given.map(|value| value.and_then(|value| value.parse::<i64>().ok()));
    let [Some(dp), Some(cp), Some(tp), Some(pp)] = numbers else {
        return failed();
    };
    if !registry.is_ready() {
        let count = registry.registered;
        let words =
            format!("Prefill server not fully registered yet ({count} workers registered).");
        return text(StatusCode::SERVICE_UNAVAILABLE, &words);
    }
    if [dp, cp, tp, pp] == [-1; 4] {
        return ok_json_response(&registry.description());
    }
    match registry.ranks.get(&[dp, cp, tp, pp]) {
        Some((ip, port)) => ok_json_response(&json!({"rank_ip": ip, "rank_port": port})),
        None => {
            let words = format!(
                "Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}"
            );
            text(StatusCode::NOT_FOUND, &words)
        }
    }
}

async fn health() -> Response<Body> {
    text(StatusCode::OK, "OK")
}

/// Handles `POST /register_dp_rank`: stores the data-parallel rank that serves a bootstrap room.
async fn register_rank(State(server): State<SglangBootstrapServer>, body: Bytes) -> Response<Body> {
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let room = request.get("bootstrap_room").and_then(Value::as_u64);
    let rank = request.get("dp_rank").and_then(Value::as_i64);
    let (Some(room), Some(rank)) = (room, rank) else {
        return failed();
    };
    let mut registry = server.0.lock();
    if registry.rooms.len() >= MAX_ROOMS {
        registry.rooms.clear();
    }
    registry.rooms.insert(room, rank);
    text(StatusCode::OK, "OK")
}

/// Handles `POST /query_dp_ranks`: returns the data-parallel ranks of the given bootstrap rooms.
async fn query_ranks(State(server): State<SglangBootstrapServer>, body: Bytes) -> Response<Body> {
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(rooms) = request.get("bootstrap_rooms").and_then(Value::as_array) else {
        return failed();
    };
    let registry = server.0.lock();
    let known = rooms.iter().filter_map(|room| {
        let room = room.as_u64()?;
        Some((room.to_string(), Value::from(*registry.rooms.get(&room)?)))
    });
    ok_json_response(&Value::Object(known.collect()))
}
