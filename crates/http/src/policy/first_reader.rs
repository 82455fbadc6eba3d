//! Who looks at a body first: the schema, or what llm-d-inference-sim checks in an order and in
//! words of its own (`--compat llm-d`): whether the body can be read, injected failures, the model,
//! the numbers, and with the prompt at hand the context.
//!
//! Source: llm-d-inference-sim `pkg/communication/http.go`, `pkg/api/request.go`,
//! `pkg/llm-d-inference-sim/helpers.go`, `validateRequest` (August 2026).

use std::borrow::Cow;

use serde_json::Value;

use super::{llmd_bodies, llmd_lenient, llmd_responses};
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Who looks at a body first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstReader {
    /// The schema, as pydantic does.
    Schema,
    /// llm-d's own checks, with failures and the model among them.
    Llmd,
}

/// What a body asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
    Generate,
    Embeddings,
    Tokenize,
}

impl Api {
    /// Where a request says how many tokens it wants; the first one counts.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["/max_completion_tokens", "/max_tokens"],
            Self::Completions | Self::Messages => &["/max_tokens"],
            Self::Responses => &["/max_output_tokens"],
            Self::Generate => &["/sampling_params/max_tokens"],
            Self::Embeddings | Self::Tokenize => &[],
        }
    }
}

impl FirstReader {
    /// The body as the schema is to read it, with what this reader fills in.
    ///
    /// # Errors
    /// What is wrong with it whoever is asked.
    pub(crate) fn read<'b>(self, api: Api, body: Cow<'b, Value>) -> Result<Cow<'b, Value>, Fault> {
        if self == Self::Schema {
            return Ok(body);
        }
        if !body.is_object() {
            let words = "Failed to read and parse request body, a JSON object is expected";
            return Err(Fault::bad_request(words));
        }
        let mut body = llmd_lenient::body(api, body);
        match api {
            Api::Chat if wants_one_alternative(&body) => {
                body.to_mut()["top_logprobs"] = 1.into();
            }
            Api::Responses => llmd_responses::body(body.to_mut())?,
            Api::Generate => llmd_bodies::move_inside(body.to_mut()),
            Api::Embeddings => llmd_bodies::input(&body)?,
            Api::Tokenize => llmd_bodies::text_or_chat(&body)?,
            Api::Chat | Api::Completions | Api::Messages => {}
        }
        Ok(body)
    }

    /// What llm-d looks at once the model is found.
    ///
    /// # Errors
    /// Its 400.
    pub(crate) fn check_content(self, api: Api, body: &Value) -> Result<(), Fault> {
        match api {
            _ if self == Self::Schema => Ok(()),
            Api::Completions => llmd_bodies::prompt(body.get("prompt").unwrap_or(&Value::Null)),
            Api::Messages => llmd_bodies::messages(body),
            Api::Generate => llmd_bodies::generate(body),
            Api::Chat | Api::Responses | Api::Embeddings | Api::Tokenize => Ok(()),
        }
    }

    /// Whether a request fails on purpose, or for its model, before its schema is looked at.
    pub(crate) fn asks_model_first(self, api: Api) -> bool {
        self == Self::Llmd && !api.limits().is_empty()
    }

    /// What is wrong with a body before its schema is looked at, for a model that is there.
    ///
    /// # Errors
    /// llm-d's 400 for the content, the numbers, a streamed prefill and a missing end, in this order.
    pub(crate) fn check(self, api: Api, body: &Value) -> Result<(), Fault> {
        self.check_content(api, body)?;
        Self::check_numbers(api, body)?;
        check_prefill(body)?;
        Self::check_end(api, body)
    }

    /// What is wrong with the numbers of a body, for a model that is there.
    ///
    /// # Errors
    /// llm-d's refusal.
    fn check_numbers(api: Api, body: &Value) -> Result<(), Fault> {
        let number = |path: &&str| body.pointer(path).filter(|value| !value.is_null());
        if number(&"/n").and_then(Value::as_i64).is_some_and(|n| n < 1) {
            return Err(Fault::bad_request("n must be at least 1"));
        }
        let asked = api.limits().iter().find_map(number);
        if asked.and_then(Value::as_i64).is_some_and(|n| n < 1) {
            let words = "Max completion tokens and max tokens should be positive";
            return Err(Fault::bad_request(words));
        }
        Ok(())
    }

    /// Whether a body that never ends says how long it may be.
    ///
    /// # Errors
    /// llm-d's refusal.
    fn check_end(api: Api, body: &Value) -> Result<(), Fault> {
        let ignores_end = body.get("ignore_eos").and_then(Value::as_bool) == Some(true);
        let given = |path: &&str| body.pointer(path).is_some_and(|value| !value.is_null());
        if ignores_end && !api.limits().iter().any(given) {
            return Err(Fault::bad_request(
                "Ignore_eos is true but max_completion_tokens (or max_tokens) is not set",
            ));
        }
        Ok(())
    }

    /// vLLM's report about a body that cannot be read, as llm-d begins such a sentence.
    pub(crate) fn unread(self, fault: Fault) -> Fault {
        if self == Self::Schema || fault.error_type != ErrorType::BadRequestPhrase {
            return fault;
        }
        Fault::bad_request(format!(
            "Failed to read and parse request body, {}",
            fault.message
        ))
    }
}

/// Whether a prompt that another server decodes may be answered so: llm-d streams nothing that it
/// prefills.
///
/// # Errors
/// Its 400.
fn check_prefill(body: &Value) -> Result<(), Fault> {
    let remote = body.pointer("/kv_transfer_params/do_remote_decode");
    let stream = body.get("stream").and_then(Value::as_bool);
    if stream == Some(true) && remote.and_then(Value::as_bool) == Some(true) {
        return Err(Fault::bad_request("Prefill does not support streaming"));
    }
    Ok(())
}

/// Log probabilities come with one alternative where nobody says more.
fn wants_one_alternative(body: &Value) -> bool {
    let silent = body.get("top_logprobs").is_none_or(Value::is_null);
    silent && body.get("logprobs").and_then(Value::as_bool) == Some(true)
}
