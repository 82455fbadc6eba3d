//! Registry of Mooncake's bootstrap server on its own port: lists prefill engines and their workers
//! by data-parallel rank.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderName, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::app::App;
use crate::error::{self, ok_json_response};

/// Header with the block size of this server, in tokens. vLLM's servers compare block sizes before
/// they transfer blocks.
pub static BLOCK_SIZE_HEADER: HeaderName = HeaderName::from_static("x-vllm-sim-block-size");

/// Registry of prefill engines by data-parallel rank, as Mooncake's bootstrap server keeps it.
#[derive(Debug, Clone)]
pub struct MooncakeBootstrapRegistry {
    ranks: Arc<Mutex<BTreeMap<u64, Value>>>,
    block_size: u32,
}

impl MooncakeBootstrapRegistry {
    /// Creates a bootstrap registry with this server's own ranks.
    pub fn with_own_ranks(app: &App) -> Self {
        let parallel = &app.settings.parallel;
        let (first, count) = parallel.local_ranks;
        let workers = |rank: u32| {
            let worker = |tp: u32| {
                let stages = (0..parallel.pipeline).map(|pp| {
                    // Synthetic, unique address of a worker.
                    let number = (rank * parallel.tensor + tp) * parallel.pipeline + pp;
                    let address = format!("tcp://127.0.0.1:{}", 20_000 + number % 40_000);
                    (pp.to_string(), address.into())
                });
                (tp.to_string(), Value::Object(stages.collect()))
            };
            (0..parallel.tensor).map(worker).collect::<Map<_, _>>()
        };
        let ranks = (first..first + count).map(|rank| {
            let id = match parallel.data {
                1 => app.engine_id.to_string(),
                _ => format!("{}_dp{rank}", app.engine_id),
            };
            let entry = json!({"engine_id": id, "worker_addr": workers(rank)});
            (u64::from(rank), entry)
        });
        Self {
            ranks: Arc::new(Mutex::new(ranks.collect())),
            block_size: app.settings.cache.block_size,
        }
    }
}

/// Handles `GET /query` of the bootstrap server: returns the registered engines by data-parallel
/// rank.
pub async fn list_engines(State(registry): State<MooncakeBootstrapRegistry>) -> Response<Body> {
    let ranks = registry.ranks.lock();
    let ranks = ranks.iter().map(|(rank, entry)| (rank.to_string(), entry.clone()));
    let mut response = ok_json_response(&Value::Object(ranks.collect()));
    response.headers_mut().insert(&BLOCK_SIZE_HEADER, registry.block_size.into());
    response
}

/// Handles `POST /register` of the bootstrap server: adds a worker of another engine of the
/// deployment.
pub async fn register_worker(
    State(registry): State<MooncakeBootstrapRegistry>,
    body: Bytes,
) -> Response<Body> {
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let number = |key: &str| request.get(key).and_then(Value::as_u64);
    let text = |key: &str| request.get(key).and_then(Value::as_str);
    let (Some(engine), Some(dp), Some(tp), Some(pp), Some(addr)) =
        (text("engine_id"), number("dp_rank"), number("tp_rank"), number("pp_rank"), text("addr"))
    else {
        let message = "engine_id, dp_rank, tp_rank, pp_rank and addr are needed";
        return detail_response(StatusCode::UNPROCESSABLE_ENTITY, message);
    };
    let mut ranks = registry.ranks.lock();
    let entry = ranks.entry(dp).or_insert_with(|| json!({"engine_id": engine, "worker_addr": {}}));
    if entry["engine_id"] != engine {
        let known = entry["engine_id"].as_str().unwrap_or_default();
        let message =
            format!("Engine ID mismatch for dp_rank={dp}: expected {known}, got {engine}");
        return detail_response(StatusCode::BAD_REQUEST, &message);
    }
    let slot = &mut entry["worker_addr"][tp.to_string()][pp.to_string()];
    if slot.as_str().is_some_and(|known| known != addr) {
        let known = slot.as_str().unwrap_or_default();
        let message = format!(
            "Worker with dp_rank={dp}, tp_rank={tp}, pp_rank={pp} is already registered at \
             {known}, but still want to register at {addr}"
        );
        return detail_response(StatusCode::BAD_REQUEST, &message);
    }
    *slot = addr.into();
    ok_json_response(&json!({"status": "ok"}))
}

fn detail_response(status: StatusCode, message: &str) -> Response<Body> {
    let body = json!({"detail": message}).to_string();
    error::json_response(status, body)
}
