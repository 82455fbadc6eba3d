//! What llm-d-inference-sim checks of a request to generate, in its order and words
//! (`--compat llm-d`): whether the body can be read, injected failures, the model, the numbers, and
//! with the prompt at hand the context.
//!
//! Source: llm-d-inference-sim `pkg/communication/http.go`, `pkg/api/request.go`,
//! `pkg/llm-d-inference-sim/helpers.go`, `validateRequest` (August 2026).

use std::borrow::Cow;

use serde_json::Value;

use crate::app::App;
use crate::policy::FirstReader;
use crate::request_head::RequestHead;
use crate::{fault, generation, transfer};
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Where a request says how many tokens it wants; the first one counts.
#[derive(Clone, Copy)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

impl Api {
    fn limits(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["max_completion_tokens", "max_tokens"],
            Self::Completions | Self::Messages => &["max_tokens"],
            Self::Responses => &["max_output_tokens"],
        }
    }
}

/// What is wrong with a body before anybody tokenises it; another server looks at nothing here.
///
/// # Errors
/// llm-d's refusal.
pub(crate) fn check(app: &App, head: &RequestHead, body: &Value, api: Api) -> Result<(), Fault> {
    if app.policy.first_reader == FirstReader::Schema {
        return Ok(());
    }
    if matches!(api, Api::Completions) {
        prompt(body.get("prompt").unwrap_or(&Value::Null))?;
    }
    let model = body.get("model").and_then(Value::as_str);
    fault::inject(app, head, model)?;
    generation::target(app, model)?;
    let number = |key: &&str| body.get(*key).filter(|value| !value.is_null());
    if number(&"n").and_then(Value::as_i64).is_some_and(|n| n < 1) {
        return Err(Fault::bad_request("n must be at least 1"));
    }
    let asked = api.limits().iter().find_map(number);
    if asked.and_then(Value::as_i64).is_some_and(|n| n < 1) {
        let words = "Max completion tokens and max tokens should be positive";
        return Err(Fault::bad_request(words));
    }
    let is = |key: &str| body.get(key).and_then(Value::as_bool).unwrap_or(false);
    let remote = body.get("kv_transfer_params").and_then(Value::as_object);
    transfer::streams(app, remote, is("stream"))?;
    if is("ignore_eos") && asked.is_none() {
        return Err(Fault::bad_request(
            "Ignore_eos is true but max_completion_tokens (or max_tokens) is not set",
        ));
    }
    Ok(())
}

/// llm-d's words for a prompt that is none.
fn prompt(prompt: &Value) -> Result<(), Fault> {
    let words = match prompt {
        Value::Null => "prompt array must contain at least one prompt",
        Value::String(text) if text.is_empty() => "prompt must not contain an empty string",
        Value::Array(items) if items.is_empty() => "prompt array must contain at least one prompt",
        Value::Array(items) if items.iter().any(|item| *item == *"") => {
            "prompt must not contain an empty string"
        }
        Value::Array(items)
            if items
                .iter()
                .any(|i| i.as_array().is_some_and(Vec::is_empty)) =>
        {
            "prompt must not contain an empty token-id array"
        }
        _ => return Ok(()),
    };
    Err(Fault::bad_request(words))
}

/// The body as llm-d reads it: log probabilities come with one alternative where nobody says more.
pub(crate) fn body<'b>(app: &App, body: Cow<'b, Value>) -> Cow<'b, Value> {
    let silent = |key: &str| body.get(key).is_none_or(Value::is_null);
    let wanted = body.get("logprobs").and_then(Value::as_bool) == Some(true);
    let schema = app.policy.first_reader == FirstReader::Schema;
    if schema || !wanted || !silent("top_logprobs") {
        return body;
    }
    let mut body = body.into_owned();
    body["top_logprobs"] = 1.into();
    Cow::Owned(body)
}

/// vLLM's report about a body that cannot be read, as llm-d begins such a sentence.
pub(crate) fn unread(app: &App, fault: Fault) -> Fault {
    if app.policy.first_reader == FirstReader::Schema
        || fault.error_type != ErrorType::BadRequestPhrase
    {
        return fault;
    }
    Fault::bad_request(format!(
        "Failed to read and parse request body, {}",
        fault.message
    ))
}
