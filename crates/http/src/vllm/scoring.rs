//! `POST /generative_scoring`: how likely a label follows, per item.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::ok;
use crate::app::App;
use crate::body::Posted;
use crate::error::Answer;
use crate::openai::prepare;
use vllm_sim_engine::driver::unix_now;
use vllm_sim_random::{Draw, Purpose, mix, stream};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::GenerativeScoringRequest;

/// Scores every item; the same item under the same query always scores the same.
pub(crate) async fn create(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    let request = GenerativeScoringRequest::parse(&value)?;
    let target = crate::generation::target(&app, request.model.as_deref())?;
    check(&app, &request)?;
    let query = tokens(
        &app,
        &request.query,
        SpecialTokens::when(request.add_special_tokens),
    );
    let items = request.items.as_array().cloned().unwrap_or_default();
    let mut prompt_tokens = 0;
    let mut data = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let item = tokens(&app, item, SpecialTokens::Without);
        prompt_tokens += query.len() + item.len();
        let key = query
            .iter()
            .chain(&item)
            .fold(0x5c0e, |key, token| mix(key, u64::from(*token)));
        let mut rng = stream(0, key, Purpose::Content);
        let labels = request.label_token_ids.len().max(1);
        let weights: Vec<f64> = (0..labels).map(|_| rng.unit() + 1e-9).collect();
        let sum = if request.apply_softmax {
            weights.iter().sum()
        } else {
            // The rest of the vocabulary has a share too.
            weights.iter().sum::<f64>() + 1.0
        };
        data.push(json!({
            "index": index,
            "object": "score",
            "score": weights[0] / sum,
        }));
    }
    let id = prepare::request_id(
        "generative-scoring-",
        &head.headers,
        request.request_id.as_deref(),
    );
    Ok(ok(&json!({
        "id": &*id,
        "object": "list",
        "created": unix_now() as u64,
        "model": &*app.service.models.shown(&target),
        "data": data,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + items.len(),
            "completion_tokens": items.len(),
            "prompt_tokens_details": null,
            "completion_tokens_details": null,
        },
    })))
}

/// Most items times labels of one request (vLLM has no limit).
const MAX_SCORES: usize = 65_536;

fn check(app: &App, request: &GenerativeScoringRequest) -> Result<(), Fault> {
    if request.label_token_ids.is_empty() {
        return Err(Fault::bad_request("label_token_ids must not be empty."));
    }
    if request.items.as_array().is_none_or(Vec::is_empty) {
        return Err(Fault::bad_request("At least one item must be provided."));
    }
    let labels = request.label_token_ids.len();
    let items = request.items.as_array().map_or(0, Vec::len);
    if items.saturating_mul(labels) > MAX_SCORES {
        return Err(Fault::bad_request(format!(
            "The request asks for {items} items times {labels} labels, the most is {MAX_SCORES}."
        )));
    }
    let vocabulary = i128::from(app.service.generator.tokenizer().vocab_size());
    for id in &request.label_token_ids {
        if !(0..vocabulary).contains(id) {
            return Err(Fault::bad_request(format!(
                "label_token_id {id} is out of vocabulary range [0, {vocabulary})."
            )));
        }
    }
    Ok(())
}

fn tokens(app: &App, value: &Value, special: SpecialTokens) -> Vec<u32> {
    match value {
        Value::String(text) => app.service.generator.tokenizer().encode(text, special),
        Value::Array(ids) => ids
            .iter()
            .map(|id| id.as_u64().map_or(u32::MAX, |id| id as u32))
            .collect(),
        _ => Vec::new(),
    }
}
