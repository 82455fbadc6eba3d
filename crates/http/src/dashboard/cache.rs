//! `GET /dashboard/cache`: usage of the KV blocks of each data-parallel rank.

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};

use crate::app::AppState;
use crate::error::ok_json_response;
use vllm_sim_engine::KvBlockUsage;
use vllm_sim_engine::driver::LiveEngine;

/// Maximum number of cells per rank in the dashboard's map of KV blocks.
const MAX_MAP_CELLS: u32 = 240;

/// Returns the numbers of used, cached and unused KV blocks of each data-parallel rank, in total
/// and by map cell.
pub(crate) async fn get_kv_blocks(State(app): AppState) -> Response<Body> {
    let (first, _) = app.settings.parallel.local_ranks;
    let ranks = app.service.rank_engines().iter().zip(first..);
    let ranks: Vec<Value> = ranks.map(|(engine, rank)| rank_blocks_json(engine, rank)).collect();
    ok_json_response(&json!({"block_size": app.settings.cache.block_size, "ranks": ranks}))
}

/// Returns the JSON of the KV block counts of one data-parallel rank.
///
/// `shared_blocks` are used by several sequences, which would need `saved_blocks` more without
/// sharing. `host` counts chunks in host memory and is `null` without offloading to it. A cell is
/// its number of used, shared and cached blocks.
fn rank_blocks_json(engine: &LiveEngine, rank: u32) -> Value {
    let map = engine.snapshot_kv_block_map(MAX_MAP_CELLS);
    let sum = |count: fn(&KvBlockUsage) -> u32| map.cells.iter().map(count).sum::<u32>();
    let host = map.stats.host;
    let host = (host.total > 0).then(|| json!({"total": host.total, "used": host.used}));
    let cells = map.cells.iter();
    let cells = cells.map(|cell| [cell.used, cell.shared, cell.cached]);
    json!({
        "rank": rank,
        "total_blocks": map.stats.total_blocks,
        "used_blocks": sum(|cell| cell.used),
        "shared_blocks": sum(|cell| cell.shared),
        "saved_blocks": map.cells.iter().map(|cell| cell.saved).sum::<u64>(),
        "cached_blocks": sum(|cell| cell.cached),
        "unused_blocks": sum(|cell| cell.unused),
        "host": host,
        "blocks_per_cell": map.blocks_per_cell,
        "cells": cells.collect::<Vec<_>>(),
    })
}
