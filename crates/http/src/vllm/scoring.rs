//! `POST /generative_scoring`: for each item of a request, the probability of the first label token
//! after it.

use axum::extract::State;
use serde_json::{Value, json};

use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{self, HandlerResult, ok_json_response};
use crate::generation;
use crate::request_head::request_id;
use crate::token_ids;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_service::generate::request::TokenizedPrompt;
use vllm_sim_service::generate::{EMPTY_CONTEXT_HASH, extend_context_hash};
use vllm_sim_service::logprobs::LogprobInputs;
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_service::{GenerationRequest, OutputTokenBudget, RequestSubmissionChecks};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::body::validate_and_read_body;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::GenerativeScoringRequest;

/// Handles `POST /generative_scoring`: scores items after a query; equal prompts get equal scores.
pub(crate) async fn create_generative_scoring(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = validate_and_read_body::<GenerativeScoringRequest>(&value)?;
    let lora = generation::resolve_model_without_faults(&app, request.model.as_deref())?;
    check_scoring_request(&app, &request)?;
    received.check_prompt_encodable(&["query", "items"])?;
    let prompts = item_prompts(&app, &request)?;
    let data: Vec<Value> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| {
            let score = label_probability(&app, &prompt.tokens, &request);
            json!({"index": index, "object": "score", "score": score})
        })
        .collect();
    let items = prompts.len();
    let prompt_tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let id = request_id("generative-scoring-", &received.headers, request.request_id.as_deref());
    // vLLM generates one token per item, so items queue, count in metrics and use the prefix cache.
    let generation = GenerationRequest {
        prompts: PromptSource::Ready(prompts),
        max_tokens: Some(1),
        room: OutputTokenBudget::Context,
        checks: RequestSubmissionChecks::OnlySamplingRanges,
        ..generation::new_generation_request(&app, &received, id.clone(), request.model.as_deref())
    };
    let started = generation::start_generation(&app, lora, generation).await;
    let (mut reply, job) = started.map_err(|refused| refused.error)?;
    reply.wait_until_choices_ended().await;
    if reply.has_failed_choice() {
        return Err(error::engine_failure_fault());
    }
    reply.mark_reply_delivered();
    Ok(ok_json_response(&json!({
        "id": &*id,
        "object": "list",
        "created": unix_now_secs() as u64,
        "model": &**app.service.models.model_name_in_responses(job.lora.as_deref()),
        "data": data,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + items,
            "completion_tokens": items,
            "prompt_tokens_details": null,
            "completion_tokens_details": null,
        },
    })))
}

/// Returns one prompt per item to score, truncated to the context length.
///
/// Source: vLLM 0.33 `vllm/entrypoints/generative_scoring/serving.py`, `_build_prompts`.
fn item_prompts(
    app: &App,
    request: &GenerativeScoringRequest,
) -> Result<Vec<TokenizedPrompt>, Fault> {
    let query = tokens_of_text_or_ids(
        app,
        &request.query,
        SpecialTokenHandling::from_bool(request.add_special_tokens),
    )?;
    let items = request.items.as_array().into_iter().flatten();
    // One place is left for the output token.
    let most = (app.settings.model.max_model_len as usize).saturating_sub(1);
    let prompt = |item: &Value| {
        let item = tokens_of_text_or_ids(app, item, SpecialTokenHandling::Without)?;
        let mut tokens = match request.item_first {
            true => [item, query.clone()].concat(),
            false => [query.clone(), item].concat(),
        };
        tokens.truncate(most);
        Ok(TokenizedPrompt { tokens, ..TokenizedPrompt::default() })
    };
    items.map(prompt).collect()
}

/// Returns the probability of the first label token after a prompt, from the log probabilities that
/// a completion of the same prompt reports.
///
/// Source: vLLM 0.33 `vllm/entrypoints/generative_scoring/serving.py`, `_compute_probabilities`.
fn label_probability(app: &App, prompt: &[u32], request: &GenerativeScoringRequest) -> f64 {
    let tokens = prompt.iter().copied();
    let context = tokens.fold(EMPTY_CONTEXT_HASH, extend_context_hash);
    let position = LogprobInputs {
        vocabulary: app.service.generator.tokenizer().vocab_size(),
        context: mix_u64_pair(app.service.settings().seed, context),
        temperature: 1.0,
    };
    let mut labels: Vec<u32> = Vec::new();
    for label in request.label_token_ids.iter().filter_map(|label| u32::try_from(*label).ok()) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    let Some((first, rest)) = labels.split_first() else {
        return 0.0;
    };
    let row = position.chosen_and_listed_tokens(*first, rest);
    let logprobs: Vec<f64> = row.iter().map(|entry| f64::from(entry.logprob)).collect();
    match request.apply_softmax {
        true => {
            let most = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logprobs.iter().map(|logprob| (logprob - most).exp()).sum();
            (logprobs[0] - most).exp() / sum
        }
        false => logprobs[0].exp(),
    }
}

/// Maximum number of items times labels in one generative scoring request (vLLM has no limit).
const MAX_SCORES: usize = 65_536;

/// Checks labels and items, in the order of vLLM's `create_generative_scoring`.
fn check_scoring_request(app: &App, request: &GenerativeScoringRequest) -> Result<(), Fault> {
    let vocabulary = i128::from(app.service.generator.tokenizer().vocab_size());
    let labels = &request.label_token_ids;
    if let Some(id) = labels.iter().find(|id| !(0..vocabulary).contains(*id)) {
        return Err(Fault::bad_request(format!(
            "label_token_id {id} is out of vocabulary range [0, {vocabulary}). Please provide \
             valid token IDs."
        )));
    }
    if labels.is_empty() {
        return Err(Fault::bad_request("label_token_ids must contain at least one token ID."));
    }
    let items = request.items.as_array().map_or(0, Vec::len);
    if items == 0 {
        return Err(Fault::bad_request("items must contain at least one item."));
    }
    if items.saturating_mul(labels.len()) > MAX_SCORES {
        return Err(Fault::bad_request(format!(
            "The request has {items} items times {} labels; at most {MAX_SCORES} scores are \
             allowed.",
            labels.len()
        )));
    }
    Ok(())
}

fn tokens_of_text_or_ids(
    app: &App,
    value: &Value,
    special: SpecialTokenHandling,
) -> Result<Vec<u32>, Fault> {
    match value {
        Value::String(text) => Ok(app.service.generator.tokenizer().encode(text, special)),
        Value::Array(ids) => {
            let ids = ids.iter().map(|id| id.as_i64().unwrap_or(i64::MAX));
            token_ids::check_prompt_token_ids(&app.rules.limits, &ids.collect::<Vec<_>>())
        }
        _ => Ok(Vec::new()),
    }
}
