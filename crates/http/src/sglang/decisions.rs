//! `POST /v1/decisions` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/serving_decisions.py`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::errors::SglangResult;
use super::pooling::has_generation_model;
use super::request::conversation_token_ids;
use super::score::{label_logprobs, softmax};
use crate::app::App;
use crate::error::ok_json_response;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::sglang::decisions::{Decision, DecisionRequest};

/// Version of the wording of the prompts for `POST /v1/decisions`.
const PROMPT_FORMAT_VERSION: i64 = 1;

/// Handles `POST /v1/decisions`: answers questions about an input, by the probabilities of answer
/// labels.
pub(super) async fn create_decisions(app: Arc<App>, request: DecisionRequest) -> SglangResult {
    check_decision_server(&app, "/v1/decisions", &request.model, &request.images)?;
    check_prompt_format(&request)?;
    let (mut answers, mut tokens) = (Map::new(), 0);
    for question in &request.questions {
        let decision = Decision::of_question(question);
        let kwargs = &request.chat_template_kwargs;
        let scored = score(&app, (&request.input, kwargs), &decision, request.temperature).await?;
        tokens += scored.prompt.len();
        answers.insert(decision.id.to_owned(), answer_json(&request, &decision, &scored));
    }
    Ok(ok_json_response(&json!({
        "object": "decisions",
        "model": request.model,
        "prompt_format_version": PROMPT_FORMAT_VERSION,
        "answers": answers,
        "usage": {
            "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0,
            "reasoning_tokens": 0,
        },
    })))
}

/// Checks the server, and the members of a request that do not depend on its questions.
///
/// # Errors
/// SGLang's 400, which names the route.
pub(super) fn check_decision_server(
    app: &App,
    route: &str,
    model: &str,
    images: &[Value],
) -> Result<(), Fault> {
    let text = if !has_generation_model(app) {
        format!("{route} requires a generation model")
    } else if let Some((_, adapter)) = model.split_once(':') {
        format!("model names the LoRA adapter '{adapter}', which {route} does not support")
    } else if !images.is_empty() {
        format!(
            "{route} images require a model served with multimodal input, and some vision models \
             need --enable-multimodal"
        )
    } else {
        return Ok(());
    };
    Err(Fault::bad_request(text))
}

fn check_prompt_format(request: &DecisionRequest) -> Result<(), Fault> {
    match request.prompt_format_version.filter(|version| *version != PROMPT_FORMAT_VERSION) {
        None => Ok(()),
        Some(version) => Err(Fault::bad_request(format!(
            "prompt_format_version {version} is not served, this server uses version \
             {PROMPT_FORMAT_VERSION}"
        ))),
    }
}

/// Scores of the answers to a question.
pub(super) struct ScoredDecision {
    /// Token ids of the prompt that asks the question.
    pub(super) prompt: Vec<u32>,
    /// Token id of each answer's label.
    labels: Vec<i64>,
    /// Probability of each answer; they sum to 1.
    pub(super) probabilities: Vec<f64>,
    /// Probability of all labels together as the next token.
    pub(super) label_mass: f64,
}

impl ScoredDecision {
    /// Returns the index of the most likely answer, the first of several.
    pub(super) fn most_likely(&self) -> usize {
        let order =
            |a: &usize, b: &usize| self.probabilities[*a].total_cmp(&self.probabilities[*b]);
        (0..self.probabilities.len()).rev().max_by(order).unwrap_or(0)
    }

    /// Returns the mean level of a score.
    pub(super) fn mean_level(&self) -> f64 {
        let levels = self.probabilities.iter().enumerate();
        levels.map(|(level, probability)| level as f64 * probability).sum()
    }

    /// Returns the probabilities of the answers by their names.
    pub(super) fn by_name(&self, decision: &Decision<'_>) -> Map<String, Value> {
        let names = decision.names.iter().cloned();
        names.zip(self.probabilities.iter().map(|one| json!(one))).collect()
    }
}

/// Scores the answers to a question about an input; a chat template with these arguments renders
/// its prompt.
///
/// # Errors
/// SGLang's 400, which names the question.
pub(super) async fn score(
    app: &Arc<App>,
    (input, kwargs): (&Value, &Map<String, Value>),
    decision: &Decision<'_>,
    temperature: f64,
) -> Result<ScoredDecision, Fault> {
    let body = json!({
        "messages": [{"role": "user", "content": decision.message(input)}],
        "chat_template_kwargs": kwargs,
    });
    let named = |fault: Fault| Fault {
        message: format!("question '{}': {}", decision.id, fault.message),
        error_type: ErrorType::BadRequestName,
        ..fault
    };
    let scored = score_body(app, &body, decision, temperature).await;
    scored.map_err(named)
}

async fn score_body(
    app: &Arc<App>,
    body: &Value,
    decision: &Decision<'_>,
    temperature: f64,
) -> Result<ScoredDecision, Fault> {
    let chat = ChatRequest::parse_chat_request(body, &app.rules.defaults.bounds)?;
    let prompt = conversation_token_ids(app, chat).await?;
    let context = app.rules.limits.max_model_len;
    if prompt.len() >= context as usize {
        return Err(Fault::bad_request(format!(
            "the prompt has {} tokens, which does not fit the context length of {context} tokens",
            prompt.len()
        )));
    }
    let labels = label_ids(app, &decision.labels())?;
    let logprobs = label_logprobs(&prompt, &labels);
    let probabilities = softmax(&logprobs, temperature);
    let label_mass = logprobs.iter().map(|value| value.exp()).sum();
    Ok(ScoredDecision { prompt, labels, probabilities, label_mass })
}

fn answer_json(
    request: &DecisionRequest,
    decision: &Decision<'_>,
    scored: &ScoredDecision,
) -> Value {
    let mut answer = json!({
        "type": decision.kind,
        "probabilities": scored.by_name(decision),
        "label_mass": scored.label_mass,
    });
    match decision.kind {
        "choice" => answer["choice"] = decision.names[scored.most_likely()].as_str().into(),
        "score" => answer["score"] = scored.mean_level().into(),
        _ => {}
    }
    if request.return_prompt_token_ids {
        answer["prompt_token_ids"] = json!(scored.prompt);
        answer["label_token_ids"] = json!(scored.labels);
    }
    answer
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
