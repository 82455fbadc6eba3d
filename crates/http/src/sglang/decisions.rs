//! `POST /v1/decisions` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/serving_decisions.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::pooling::has_generation_model;
use super::score::{label_logprobs, softmax};
use super::{endpoint, errors};
use crate::app::App;
use crate::body::RawRequest;
use crate::error;
use crate::openai::chat;
use vllm_sim_service::prompt::PromptLengthLimit;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::sglang::decisions::{Decision, DecisionRequest};

/// Version of the wording of the prompts for `POST /v1/decisions`.
const PROMPT_FORMAT_VERSION: i64 = 1;

/// Handles `POST /v1/decisions`: answers questions about an input, by the probabilities of answer
/// labels.
pub(super) async fn create_decisions(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    errors::response_or_openai_error(answer(&app, &received).await)
}

async fn answer(app: &Arc<App>, received: &RawRequest) -> Result<Response<Body>, Fault> {
    let request: DecisionRequest = endpoint::read_request(app, received, &endpoint::DECISIONS)?;
    check(app, &request)?;
    let (mut answers, mut tokens) = (Map::new(), 0);
    for question in &request.questions {
        let decision = Decision::of_question(question);
        let scored = score(app, &request, &decision).await;
        let (answer, prompt) = scored.map_err(|fault| Fault {
            message: format!("question '{}': {}", decision.id, fault.message),
            error_type: ErrorType::BadRequestName,
            ..fault
        })?;
        tokens += prompt;
        answers.insert(decision.id.to_owned(), answer);
    }
    let body = json!({
        "object": "decisions",
        "model": request.model,
        "prompt_format_version": PROMPT_FORMAT_VERSION,
        "answers": answers,
        "usage": {
            "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0,
            "reasoning_tokens": 0,
        },
    });
    Ok(error::json_response(StatusCode::OK, body.to_string()))
}

/// Checks the members of a `/v1/decisions` request that do not depend on the questions.
fn check(app: &App, request: &DecisionRequest) -> Result<(), Fault> {
    let text = if !has_generation_model(app) {
        "/v1/decisions requires a generation model".to_owned()
    } else if let Some((_, adapter)) = request.model.split_once(':') {
        format!("model names the LoRA adapter '{adapter}', which /v1/decisions does not support")
    } else if !request.images.is_empty() {
        "/v1/decisions images require a model served with multimodal input, and some vision models \
         need --enable-multimodal"
            .to_owned()
    } else if let Some(version) =
        request.prompt_format_version.filter(|version| *version != PROMPT_FORMAT_VERSION)
    {
        format!(
            "prompt_format_version {version} is not served, this server uses version \
             {PROMPT_FORMAT_VERSION}"
        )
    } else {
        return Ok(());
    };
    Err(Fault::bad_request(text))
}

/// Returns the answer to one question of a `/v1/decisions` request, and the length of the
/// question's prompt in tokens.
async fn score(
    app: &Arc<App>,
    request: &DecisionRequest,
    decision: &Decision<'_>,
) -> Result<(Value, usize), Fault> {
    let message = decision.message(&request.input);
    let body = json!({
        "messages": [{"role": "user", "content": message}],
        "chat_template_kwargs": request.chat_template_kwargs,
    });
    let mut chat = ChatRequest::parse_chat_request(&body, &app.rules.defaults.bounds)?;
    let mut conversation = chat::chat_conversation(app, &mut chat);
    conversation.bound = PromptLengthLimit::None;
    let (prompt, _) = app.service.tokenize_conversation(&app.rules, conversation).await?;
    let context = app.rules.limits.max_model_len;
    if prompt.len() >= context as usize {
        return Err(Fault::bad_request(format!(
            "the prompt has {} tokens, which does not fit the context length of {context} tokens",
            prompt.len()
        )));
    }
    let labels = label_ids(app, &decision.labels())?;
    let logprobs = label_logprobs(&prompt, &labels);
    let probabilities = softmax(&logprobs, request.temperature);
    let named = decision.names.iter().cloned().zip(probabilities.iter().map(|one| json!(one)));
    let mut answer = json!({
        "type": decision.kind,
        "probabilities": named.collect::<Map<_, _>>(),
        "label_mass": logprobs.iter().map(|value| value.exp()).sum::<f64>(),
    });
    let best = (0..probabilities.len())
        .rev()
        .max_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    match decision.kind {
        "choice" => answer["choice"] = best.map(|at| decision.names[at].clone()).into(),
        "score" => {
            let levels = probabilities.iter().enumerate();
            answer["score"] = levels.map(|(level, one)| level as f64 * one).sum::<f64>().into();
        }
        _ => {}
    }
    if request.return_prompt_token_ids {
        answer["prompt_token_ids"] = json!(prompt);
        answer["label_token_ids"] = json!(labels);
    }
    Ok((answer, prompt.len()))
}

/// Returns the token id of each answer label of a question.
///
/// # Errors
/// SGLang's 400 for a label that is not one distinct token.
fn label_ids(app: &App, labels: &[String]) -> Result<Vec<i64>, Fault> {
    let tokenizer = app.service.generator.tokenizer();
    let mut ids = Vec::new();
    for label in labels {
        match tokenizer.encode(label, SpecialTokenHandling::Without)[..] {
            [id] if !ids.contains(&i64::from(id)) => ids.push(i64::from(id)),
            _ => {
                return Err(Fault::bad_request(format!(
                    "the answer label '{label}' is not one distinct token after the chat prompt \
                     for this tokenizer, so this model is not supported"
                )));
            }
        }
    }
    Ok(ids)
}
