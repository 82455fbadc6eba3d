//! Weight transfer and update for training loops: accepted, counted, without effect.
//!
//! Source: vLLM `entrypoints/rl/online/api_router.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};

use super::control::timed;
use super::{ok, raw_json, refused};
use crate::app::App;
use crate::body::{Posted, Received};
use crate::error::Answer;
use vllm_sim_observe::metrics::Operation;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::control::WeightVersionRequest;

/// `POST /init_weight_transfer_engine`.
pub(crate) async fn init(State(app): State<Arc<App>>, received: Received) -> Answer {
    let words = "Weight transfer initialized";
    step(
        app,
        received,
        Operation::WeightsInit,
        Some("init_info"),
        words,
    )
    .await
}

/// `POST /shutdown_weight_transfer_engine`.
pub(crate) async fn shutdown(State(app): State<Arc<App>>, received: Received) -> Answer {
    let words = "Weight transfer shut down";
    step(app, received, Operation::WeightsShutdown, None, words).await
}

/// `POST /start_weight_update`.
pub(crate) async fn start(State(app): State<Arc<App>>, received: Received) -> Answer {
    let words = "Weight update started";
    step(app, received, Operation::WeightsStart, None, words).await
}

/// `POST /start_draft_weight_update`.
pub(crate) async fn start_draft(State(app): State<Arc<App>>, received: Received) -> Answer {
    let words = "Draft weight update started";
    step(app, received, Operation::WeightsStartDraft, None, words).await
}

/// `POST /update_weights`.
pub(crate) async fn update(State(app): State<Arc<App>>, received: Received) -> Answer {
    let words = "Weights updated";
    step(
        app,
        received,
        Operation::WeightsUpdate,
        Some("update_info"),
        words,
    )
    .await
}

/// `POST /finish_weight_update`.
pub(crate) async fn finish(State(app): State<Arc<App>>, received: Received) -> Answer {
    let words = "Weight update finished";
    step(app, received, Operation::WeightsFinish, None, words).await
}

/// `GET /weight_info`.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Response<Body> {
    ok(&json!({"weight_version": &**app.weight_version.load()}))
}

/// `POST /update_weight_version`.
pub(crate) async fn set_version(
    State(app): State<Arc<App>>,
    Posted { value, .. }: Posted,
) -> Answer {
    let asked = WeightVersionRequest::parse(&value)?;
    if asked.abort_all_requests {
        app.service.abort(None);
    }
    app.weight_version
        .store(Arc::new(asked.new_version.clone()));
    Ok(ok(
        &json!({"success": true, "new_version": asked.new_version}),
    ))
}

/// `POST /weight_checker`: there are no weights to compare.
pub(crate) async fn check(_any: Posted) -> Answer {
    Ok(ok(&json!({"success": true})))
}

async fn step(
    app: Arc<App>,
    received: Received,
    operation: Operation,
    needs: Option<&str>,
    words: &str,
) -> Answer {
    let bytes = &received.bytes;
    let value = if bytes.is_empty() && needs.is_none() {
        Value::Null
    } else {
        raw_json(bytes, "Invalid JSON format")?
    };
    if let Some(key) = needs.filter(|key| value.get(*key).is_none_or(Value::is_null)) {
        return Err(refused(format!("Missing '{key}' in request body")));
    }
    timed(&app, operation, async {}).await;
    Ok::<_, Fault>(ok(&json!({"message": words})))
}
