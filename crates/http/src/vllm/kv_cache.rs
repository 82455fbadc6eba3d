//! The prefix cache as the engines see it, for whoever checks an index against them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value, json};

use super::ok;
use crate::app::App;

/// `GET /debug/kv_cache`: by rank, the cached blocks in the order of their numbers.
///
/// `hash` is the number that events show: the last 64 bits of the whole hash.
pub(crate) async fn show(State(app): State<Arc<App>>) -> Response<Body> {
    let (first, _) = app.settings.parallel.local_ranks;
    let ranks = app.service.ranks().iter().zip(first..);
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
    ok(&Value::Object(ranks))
}
