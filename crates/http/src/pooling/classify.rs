//! `POST /classify`: class probabilities of texts, from a simulated classifier.

use std::fmt::Write as _;

use axum::extract::State;

use super::tokenize::{POOLING_INPUT_FIELDS, check_pooling_request};
use super::{
    count_in_flight, count_inputs, list_head_json, list_tail_json, pooling_request_id, rows,
    tokenize_inputs, vector,
};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::HandlerResult;
use crate::json;
use vllm_sim_service::pooling::class_probabilities;
use vllm_sim_wire::vllm::pooling::PoolingRequest;

/// Handles `POST /classify`: returns class probabilities, which are equal for equal inputs.
pub(crate) async fn create_classification(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = PoolingRequest::parse_classify_request(&value)?;
    let model = check_pooling_request(&app, &received, &request, POOLING_INPUT_FIELDS)?;
    let _guard = count_in_flight(&app, count_inputs(&request))?;
    let inputs = tokenize_inputs(&app, &request, &value).await?;
    let classes = app.settings.pooling.num_labels.max(1);
    rows::check_response_float_count(inputs.len(), classes as usize)?;
    let read = inputs.tokens.len();
    let id = pooling_request_id("classify-", &received.headers, request.request_id.as_deref());
    let count = inputs.len();
    let row = move |out: &mut String, index: usize| {
        let probs = class_probabilities(&inputs[index], classes);
        let best = (0..probs.len()).max_by(|a, b| probs[*a].total_cmp(&probs[*b]));
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(out, "{comma}{{\"index\":{index},\"label\":");
        json::write_json_string(out, &class_label(&app, best.unwrap_or(0)));
        out.push_str(",\"probs\":");
        vector::write_vector_as_python_floats(out, &probs);
        let _ = write!(out, ",\"num_classes\":{classes}}}");
    };
    let head = list_head_json(&id, &model);
    Ok(rows::stream_json_rows(head, count, row, list_tail_json(read)))
}

/// Returns the label of a class in the model's `config.json`, else `LABEL_n`.
pub(crate) fn class_label(app: &App, class: usize) -> String {
    let config = app.settings.model.hf_config.as_deref();
    config
        .and_then(|config| config.get("id2label")?.get(class.to_string())?.as_str())
        .map_or_else(|| format!("LABEL_{class}"), str::to_owned)
}
