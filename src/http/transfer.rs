//! Disaggregated prefill: what a server that computed a prompt tells the one that decodes it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use serde_json::{Map, Value, json};

use super::app::App;
use super::openai::view::View;
use super::vllm::ok;
use crate::job::Prompt;
use crate::wire::fault::Fault;

/// Where vLLM's NIXL connector listens for handshakes [VLLM_NIXL_SIDE_CHANNEL_HOST].
const SIDE_CHANNEL_HOST: &str = "localhost";
/// Its port [VLLM_NIXL_SIDE_CHANNEL_PORT]; each rank takes the next.
const SIDE_CHANNEL_PORT: u32 = 5600;

/// Whether the cache of the prompt is computed for another server.
fn decodes_elsewhere(params: Option<&Map<String, Value>>) -> bool {
    let told = params.and_then(|params| params.get("do_remote_decode"));
    told.and_then(Value::as_bool) == Some(true)
}

/// llm-d streams nothing that it prefills.
///
/// # Errors
/// Its refusal.
pub(in crate::http) fn streams(
    app: &App,
    params: Option<&Map<String, Value>>,
    stream: bool,
) -> Result<(), Fault> {
    if stream && app.is_llmd() && decodes_elsewhere(params) {
        return Err(Fault::bad_request("Prefill does not support streaming"));
    }
    Ok(())
}

/// Puts into `view` what the decoding server has to know, when there is one and a connector to
/// tell it.
///
/// Source: `NixlPullConnectorScheduler.request_finished` of
/// `vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py`.
pub(in crate::http) fn offer(
    app: &App,
    view: &mut View,
    params: Option<&Map<String, Value>>,
    prompts: &[Prompt],
) {
    if !decodes_elsewhere(params) {
        return;
    }
    let answer = if app.is_llmd() {
        json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "remote_block_ids": ["DUMMY_ID"],
            "remote_engine_id": "DUMMY_ID",
            "remote_host": "DUMMY",
            "remote_port": 1234,
            "tp_size": 1,
        })
    } else if sends(app) {
        // Of several prompts vLLM's answer carries the first one's parameters.
        let tokens = prompts.first().map_or(0, |prompt| prompt.tokens.len());
        nixl(app, &view.id, tokens)
    } else {
        return;
    };
    view.kv_transfer_params = Some(answer.to_string().into());
}

/// Connectors that move caches between servers; the others of vLLM keep them in storage of their
/// own and offer nothing.
const MOVING: [&str; 4] = ["Nixl", "Mooncake", "MoRIIO", "Multi"];

/// Whether a connector is configured that offers what it has.
fn sends(app: &App) -> bool {
    let transfer = app.config.kv_transfer.as_ref();
    let connector = transfer.and_then(|transfer| transfer.connector.as_deref());
    connector.is_some_and(|name| MOVING.iter().any(|kind| name.starts_with(kind)))
}

fn nixl(app: &App, id: &str, tokens: usize) -> Value {
    let parallel = &app.config.engine.parallel;
    let rank = parallel.local_ranks.0;
    let mut engine = app.engine_id.to_string();
    if parallel.data > 1 {
        engine.push_str(&format!("_dp{rank}"));
    }
    // The engine knows a request by the API's id and eight more digits.
    let suffix = super::openai::prepare::uid();
    json!({
        "do_remote_prefill": true,
        "do_remote_decode": false,
        "remote_block_ids": [block_ids(app, id, tokens)],
        "remote_engine_id": engine,
        "remote_request_id": format!("{id}-{}", &suffix[..8]),
        "remote_host": SIDE_CHANNEL_HOST,
        "remote_port": SIDE_CHANNEL_PORT + rank,
        "tp_size": parallel.tensor,
        "dcp_size": 1,
        "pp_size": parallel.pipeline,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": null,
        "transfer_mode": "pull",
    })
}

/// Numbers of the blocks that hold a prompt: as many as it fills, none of them the null block.
/// Nobody can read them, so a run of numbers stands for the real ones.
fn block_ids(app: &App, id: &str, tokens: usize) -> Vec<u64> {
    let engine = &app.config.engine;
    let needed = tokens.div_ceil(engine.block_size.max(1) as usize) as u64;
    let total = u64::from(app.service.ranks()[0].stats().total_blocks).max(needed + 1);
    let start = id
        .bytes()
        .fold(0, |key, byte| crate::sim::mix(key, u64::from(byte)))
        % total;
    (0..needed).map(|n| 1 + (start + n) % total).collect()
}

/// The least share of the prompt that must be cached, from the header that forces a miss, the
/// request or the server's own setting.
pub(in crate::http) fn hit_threshold(
    app: &App,
    headers: &HeaderMap,
    request: &Value,
) -> Option<f64> {
    let forced = headers
        .get("x-cache-threshold-finish-reason")
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    if forced {
        // More than all of it.
        return Some(2.0);
    }
    let global = Some(app.config.engine.cache_hit_threshold).filter(|share| *share > 0.0);
    // llm-d ignores a share that is none.
    let asked = request.get("cache_hit_threshold").and_then(Value::as_f64);
    asked.filter(|share| (0.0..=1.0).contains(share)).or(global)
}

/// `GET /query`, Mooncake's bootstrap: rank to engine.
pub(in crate::http) async fn query(State(app): State<Arc<App>>) -> Response<Body> {
    let (first, count) = app.config.engine.parallel.local_ranks;
    let engine = &*app.engine_id;
    let ranks: Map<String, Value> = (first..first + count)
        .map(|rank| (rank.to_string(), json!({"engine_id": engine})))
        .collect();
    ok(&Value::Object(ranks))
}
