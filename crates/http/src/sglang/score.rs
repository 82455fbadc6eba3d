//! `POST /v1/score` of an SGLang server: probabilities of label tokens after a text, or the classes
//! of a classifier.
//!
//! Source: SGLang 0.5.23 `openai/serving_score.py`, `managers/tokenizer_manager_score_mixin.py`
//! (`score_request`, `_convert_logprobs_to_scores`).

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors::SglangResult;
use super::pooling::has_generation_model;
use super::pooling_inputs::{PoolingInputs, read_pooling_inputs};
use super::usage::prompt_only_usage_json;
use crate::app::App;
use crate::error::ok_json_response;
use vllm_sim_python::python_repr;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_service::pooling::class_probabilities;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::pooling::SglangScoreRequest;

/// Handles `POST /v1/score`: scores items by the probabilities of label tokens or classes.
pub(super) async fn create_score(app: Arc<App>, request: SglangScoreRequest) -> SglangResult {
    check(&app, &request)?;
    let items = request.items.as_ref().filter(|items| !items.is_null());
    let items = items.ok_or_else(|| Fault::bad_request("items must be provided"))?;
    let prompts = prompts(&app, &request, items).await?;
    let count = prompts.lists.len();
    let labels = match has_generation_model(&app) && count > 0 {
        true => labels(&app, request.label_token_ids.as_ref(), count)?,
        false => vec![Vec::new(); count],
    };
    let classes = app.settings.pooling.num_labels.max(1);
    let (mut scores, mut logprobs) = (Vec::new(), Vec::new());
    for (tokens, labels) in prompts.lists.iter().zip(&labels) {
        if !has_generation_model(&app) {
            scores.push(class_probabilities(tokens, classes).into_iter().map(f64::from).collect());
            continue;
        }
        let values = label_logprobs(tokens, labels);
        scores.push(match request.apply_softmax {
            true => softmax(&values, request.temperature),
            false => values.iter().map(|value| value.exp()).collect::<Vec<f64>>(),
        });
        logprobs.push(values);
    }
    Ok(ok_json_response(&json!({
        "scores": scores,
        "pooled_hidden_states": null,
        "token_logprobs": request.return_token_logprobs.then_some(logprobs),
        "model": request.model,
        "usage": prompt_only_usage_json(prompts.input_token_count()),
        "object": "scoring",
    })))
}

/// Checks the members of a score request that do not depend on its items.
fn check(app: &App, request: &SglangScoreRequest) -> Result<(), Fault> {
    let fail = |text: &str| Err(Fault::bad_request(text));
    if request.temperature != 1.0 && !request.apply_softmax {
        return fail("temperature requires apply_softmax=True");
    }
    if request.return_token_logprobs && !has_generation_model(app) {
        return fail("return_token_logprobs is only supported for CausalLM models");
    }
    let has_labels = request.label_token_ids.as_ref().is_some_and(|ids| !ids.is_null());
    if has_generation_model(app) && !has_labels {
        return fail("label_token_ids is required for generation (CausalLM) models.");
    }
    if request.score_extraction_token.is_some() {
        return fail("score_extraction_token is not simulated");
    }
    if request.return_pooled_hidden_states {
        return match has_generation_model(app) {
            true => fail(
                "return_pooled_hidden_states is not supported for CausalLM models. It requires a \
                 model with a task-specific head (e.g. SequenceClassification or RewardModel).",
            ),
            false => fail("return_pooled_hidden_states is not simulated"),
        };
    }
    Ok(())
}

/// Returns one prompt per item to score: query and item, or item and query.
async fn prompts(
    app: &Arc<App>,
    request: &SglangScoreRequest,
    items: &Value,
) -> Result<PoolingInputs, Fault> {
    let query = request.query.as_ref().filter(|query| !query.is_null());
    let one = [items.clone()];
    let listed = items.as_array().map_or(&one[..], Vec::as_slice);
    let are_ids = listed.iter().any(Value::is_array);
    let joined = |query: &Value, item: &Value| -> Option<Value> {
        let (first, second) = if request.item_first { (item, query) } else { (query, item) };
        match (first, second) {
            // Python formats a list of token ids into the text.
            _ if query.is_string() => {
                let text = |value: &Value| match value {
                    Value::String(text) => text.clone(),
                    other => python_repr(other),
                };
                Some(format!("{}{}", text(first), text(second)).into())
            }
            (Value::Array(first), Value::Array(second)) => {
                Some(first.iter().chain(second).cloned().collect())
            }
            _ => None,
        }
    };
    let empty = if are_ids { json!([]) } else { json!("") };
    let prompts = listed.iter().map(|item| joined(query.unwrap_or(&empty), item));
    let prompts = prompts.collect::<Option<Vec<Value>>>().ok_or_else(|| {
        Fault::bad_request("Invalid combination of query/items types for score_request.")
    })?;
    if prompts.is_empty() {
        return Ok(PoolingInputs { lists: Vec::new(), is_single: false });
    }
    read_pooling_inputs(app, &prompts.into()).await
}

/// Returns the ids of the label tokens for each item of a score request.
fn labels(app: &App, given: Option<&Value>, items: usize) -> Result<Vec<Vec<i64>>, Fault> {
    let fail = |text: &str| Err(Fault::bad_request(text));
    let given = given.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let ids = |list: &[Value]| list.iter().filter_map(Value::as_i64).collect::<Vec<_>>();
    let lists: Vec<Vec<i64>> = match given.first() {
        None => return fail("label_token_ids must be a nonempty list"),
        Some(Value::Array(_)) if given.len() != items => {
            return fail("label_token_ids must have one list per item");
        }
        Some(Value::Array(_)) => {
            given.iter().map(|list| ids(list.as_array().map_or(&[], Vec::as_slice))).collect()
        }
        Some(_) => vec![ids(given); items],
    };
    let size = app.service.generator.tokenizer().base_vocab_size();
    for list in &lists {
        if list.is_empty() {
            return fail("each item must have a nonempty candidate list");
        }
        if list.iter().any(|id| *id < 0) {
            return fail("label_token_ids must contain nonnegative integers");
        }
        let repeated = |(at, id): (usize, &i64)| list[..at].contains(id);
        if list.iter().enumerate().any(repeated) {
            return fail("label_token_ids must not contain duplicate tokens");
        }
        if let Some(id) = list.iter().find(|id| **id >= i64::from(size)) {
            return fail(&format!("Token ID {id} is out of vocabulary (vocab size: {size})"));
        }
    }
    Ok(lists)
}

/// Returns the log probability of each label token after a prompt; equal prompts get equal values.
pub(super) fn label_logprobs(tokens: &[u32], labels: &[i64]) -> Vec<f64> {
    let key = tokens.iter().fold(0x5c0e, |key, token| mix_u64_pair(key, u64::from(*token)));
    // The labels share one half of the probability.
    let weight = |label: &i64| {
        let drawn = mix_u64_pair(key, label.unsigned_abs()) % 10_000;
        (drawn as f64 / 2_500.0).exp()
    };
    let total: f64 = labels.iter().map(weight).sum::<f64>() * 2.0;
    labels.iter().map(|label| (weight(label) / total).ln()).collect()
}

pub(super) fn softmax(logprobs: &[f64], temperature: f64) -> Vec<f64> {
    let most = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> =
        logprobs.iter().map(|value| ((value - most) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}
