//! Debug route that returns the contents of the prefix cache, to verify an external index of KV
//! blocks.

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value, json};

use crate::app::AppState;
use crate::error::ok_json_response;

/// Handles `GET /debug/kv_cache`: lists the cached KV blocks of each data-parallel rank by block
/// number.
///
/// `hash` is the block's number in KV events: the last 64 bits of the block hash.
pub(crate) async fn list_cached_blocks(State(app): AppState) -> Response<Body> {
    let (first, _) = app.settings.parallel.local_ranks;
    let ranks = app.service.rank_engines().iter().zip(first..);
    let ranks: Map<String, Value> = ranks
        .map(|(engine, rank)| {
            let stats = engine.stats();
            let blocks = engine.cached_blocks().into_iter().map(
                |cached| json!({"hash": cached.key.0, "block": cached.block, "users": cached.users}),
            );
            let cache = json!({
                "total_blocks": stats.total_blocks,
                "used_blocks": stats.used_blocks,
                "cached": blocks.collect::<Vec<_>>(),
            });
            (rank.to_string(), cache)
        })
        .collect();
    ok_json_response(&Value::Object(ranks))
}
