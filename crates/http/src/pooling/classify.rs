//! `POST /classify`: class probabilities of texts, from a simulated classifier.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;

use super::{count, enter, id, list_head, list_tail, model, rows, tokens, vector};
use crate::app::App;
use crate::body::JsonRequest;
use crate::error::HandlerResult;
use crate::json;
use vllm_sim_service::pooling::class_probabilities;
use vllm_sim_wire::vllm::pooling::PoolingRequest;

/// Handles `POST /classify`; equal inputs get equal class probabilities.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    JsonRequest { head, value }: JsonRequest,
) -> HandlerResult {
    let request = PoolingRequest::parse_classify(&value)?;
    let model = model(&app, request.model.as_deref())?;
    let _guard = enter(&app, count(&request))?;
    let inputs = tokens(&app, &request, &value).await?;
    let classes = app.settings.pooling.num_labels.max(1);
    rows::check(inputs.len(), classes as usize)?;
    let read = inputs.tokens.len();
    let id = id("classify-", &head.headers, request.request_id.as_deref());
    let count = inputs.len();
    let row = move |out: &mut String, index: usize| {
        let probs = class_probabilities(&inputs[index], classes);
        let best = (0..probs.len()).max_by(|a, b| probs[*a].total_cmp(&probs[*b]));
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(out, "{comma}{{\"index\":{index},\"label\":");
        json::string(out, &label(&app, best.unwrap_or(0)));
        out.push_str(",\"probs\":");
        vector::write(out, &probs);
        let _ = write!(out, ",\"num_classes\":{classes}}}");
    };
    let head = list_head(&id, &model);
    Ok(rows::json(head, count, row, list_tail(read)))
}

/// Returns the label of a class in the model's `config.json`, else `LABEL_n`.
fn label(app: &App, class: usize) -> String {
    let config = app.settings.model.hf_config.as_deref();
    config
        .and_then(|config| config.get("id2label")?.get(class.to_string())?.as_str())
        .map_or_else(|| format!("LABEL_{class}"), str::to_owned)
}
