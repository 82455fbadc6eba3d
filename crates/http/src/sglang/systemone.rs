//! `POST /v1/systemone` of an SGLang server: the scores of `/v1/decisions` in another form.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/systemone/serving.py`; `http_server.py`
//! (`validation_exception_handler`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::decisions::{ScoredDecision, check_decision_server, score};
use super::errors::SglangResult;
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{self, ok_json_response};
use vllm_sim_python::orjson_loads;
use vllm_sim_wire::body;
use vllm_sim_wire::fastapi;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::sglang::decisions::Decision;
use vllm_sim_wire::sglang::system_one::{SystemOneRequest, shown_question_id};

/// Number of options that have letters as labels; SGLang labels more with pairs of letters.
const MAX_OPTIONS: usize = 26;

/// Handles `POST /v1/systemone`.
pub(super) async fn create_systemone_decisions(
    State(app): AppState,
    received: RawRequest,
) -> SglangResult {
    match answer(&app, &received).await {
        // The list of FastAPI's default response.
        Err(fault) if fault.status == 422 => {
            Ok(error::json_response(StatusCode::UNPROCESSABLE_ENTITY, fault.message))
        }
        answer => Ok(answer?),
    }
}

async fn answer(app: &Arc<App>, received: &RawRequest) -> Result<Response<Body>, Fault> {
    let body = parse_body(received)?;
    let bounds = &app.rules.defaults.bounds;
    let request: SystemOneRequest = fastapi::read_body_or_detail(&body, bounds)?;
    check_decision_server(app, "/v1/systemone", &request.model, &request.images)?;
    let (mut answers, mut tokens) = (Map::new(), 0);
    for (id, question) in &request.questions {
        let decision = Decision::of_system_one_question(id, question);
        if decision.names.len() > MAX_OPTIONS {
            return Err(Fault::bad_request(format!(
                "question {}: it has {} options, but more than {MAX_OPTIONS} are not simulated",
                shown_question_id(id),
                decision.names.len()
            )));
        }
        let kwargs = &request.chat_template_kwargs;
        let scored = score(app, (&request.state, kwargs), &decision, 1.0).await?;
        tokens += scored.prompt.len();
        answers.insert(id.clone(), answer_json(&decision, &scored));
    }
    Ok(ok_json_response(&json!({
        "model": **app.service.models.displayed_model_name(),
        "answers": answers,
        "usage": {"input_tokens": tokens, "output_tokens": 0},
    })))
}

/// Returns the body of a request as JSON.
///
/// # Errors
/// A 422 for another media type, and for a body that is not JSON.
fn parse_body(received: &RawRequest) -> Result<Value, Fault> {
    let fail = |error: Value| {
        let body = json!({"detail": [error]}).to_string();
        Err(Fault::new(422, ErrorType::Detail, body))
    };
    if body::check_json_content_type(received.media_type()).is_err() {
        let text = "Unsupported Media Type: Only 'application/json' is allowed";
        let location = ["header", "content-type"];
        return fail(json!({"loc": location, "msg": text, "type": "value_error"}));
    }
    if received.bytes.is_empty() {
        return fail(json!({"type": "missing", "loc": ["body"], "msg": "Field required"}));
    }
    body::check_json_value_count(&received.bytes)?;
    orjson_loads(&received.bytes).or_else(|error| {
        fail(json!({
            "type": "json_invalid",
            "loc": ["body", error.position],
            "msg": "JSON decode error",
            "ctx": {"error": error.message},
        }))
    })
}

fn answer_json(decision: &Decision<'_>, scored: &ScoredDecision) -> Value {
    let best = scored.most_likely();
    let probability = scored.probabilities[best];
    let count = scored.probabilities.len() as f64;
    match decision.kind {
        "choice" => json!({
            "type": "choice",
            "choice": decision.names[best],
            "confidence": match scored.probabilities.len() {
                1 => 1.0,
                _ => ((count * probability - 1.0) / (count - 1.0)).clamp(0.0, 1.0),
            },
            "probabilities": scored.by_name(decision),
            "x_label_mass": scored.label_mass,
        }),
        "score" => json!({
            "type": "score",
            "score": scored.mean_level(),
            "confidence": score_confidence(&scored.probabilities, best),
            "legend": decision.details_by_name(),
            "probabilities": scored.by_name(decision),
            "x_label_mass": scored.label_mass,
        }),
        _ => json!({
            "type": "noul", "noul": scored.probabilities[0], "x_label_mass": scored.label_mass,
        }),
    }
}

/// Returns one minus the spread around the most likely level, relative to the spread of equal
/// probabilities.
fn score_confidence(probabilities: &[f64], best: usize) -> f64 {
    let count = probabilities.len() as f64;
    let levels = || (0..probabilities.len()).map(|level| level as f64);
    let uniform: f64 =
        levels().map(|level| (level - (count - 1.0) / 2.0).abs()).sum::<f64>() / count;
    if uniform == 0.0 {
        return 1.0;
    }
    let spread = levels().zip(probabilities).map(|(level, p)| p * (level - best as f64).abs());
    (1.0 - spread.sum::<f64>() / uniform).max(0.0)
}
