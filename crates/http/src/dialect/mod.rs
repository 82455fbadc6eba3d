//! The differences between the servers that this one imitates, as clients of the HTTP API see them.
//!
//! A request's own questions are in `vllm_sim_service::dialect`; these are about bodies, routes and the form
//! of answers. The default of each question is vLLM's answer; a further dialect is a file beside `llmd.rs`
//! and a line in [`of`].

mod llmd;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::error;
use super::openai::ids::{CallIds, request_id, uid};
use super::openai::responses::ids::Ids;
use super::transfer::params::TransferParams;
use vllm_sim_config::Compat;
use vllm_sim_service::HandOver;
use vllm_sim_service::dialect::{Dialect, Llmd, Vllm};
use vllm_sim_service::generate::request::Target;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::DEFAULT_MAX_TOKENS;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::{Limits, Version};

/// Returns the dialect of an API.
pub(crate) fn of(compat: Compat) -> &'static dyn ApiDialect {
    match compat {
        Compat::Vllm => &Vllm,
        Compat::Llmd => &Llmd,
    }
}

/// The questions that the imitated servers answer differently about bodies, routes and answers.
pub(crate) trait ApiDialect: Dialect {
    /// Returns the media type of a body whose head names `named`, as it is read.
    fn media_type<'h>(&self, named: Option<&'h str>) -> Option<&'h str> {
        named
    }

    /// Returns whether nothing is read of a body before its schema.
    fn reads_schema_first(&self) -> bool {
        true
    }

    /// Returns whether a request fails on purpose, or for its model, before its schema is looked at.
    fn asks_model_first(&self, _: Endpoint) -> bool {
        false
    }

    /// Returns a body as the schema is to read it.
    ///
    /// # Errors
    /// 400 for a body that is refused whatever it asks for.
    fn read<'b>(&self, _: Endpoint, body: Cow<'b, Value>) -> Result<Cow<'b, Value>, Fault> {
        Ok(body)
    }

    /// Checks the content of a body before its schema is looked at, for a model that is there.
    ///
    /// # Errors
    /// 400 for content that the dialect refuses in words of its own.
    fn check_content(&self, _: Endpoint, _: &Value) -> Result<(), Fault> {
        Ok(())
    }

    /// Checks a body before its schema is looked at, for a model that is there.
    ///
    /// # Errors
    /// 400 for what the dialect refuses in words of its own.
    fn check(&self, _: Endpoint, _: &Value) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns vLLM's report about a body that cannot be read, in the words of the dialect.
    fn unread(&self, fault: Fault) -> Fault {
        fault
    }

    /// Returns whether `//` in a path is `/`, and OPTIONS is answered on every route.
    fn has_lenient_paths(&self) -> bool {
        false
    }

    /// Returns the refusal of a model that nobody answers to, where `served` do.
    fn unknown_model(&self, name: &str, served: &[Arc<str>]) -> Fault {
        Fault::unknown_model(name, served)
    }

    /// Returns who answers on a route that generates nothing; `None`: the model, as its name is not looked
    /// at.
    ///
    /// # Errors
    /// The refusal that `found` holds, where the name is looked at.
    fn side_model(&self, found: Result<Target, Fault>) -> Result<Option<Target>, Fault> {
        found.map(Some)
    }

    /// Returns the data-parallel rank that a request gets that asks for `asked`.
    fn rank(&self, _: &Limits, asked: Option<i64>) -> Option<i64> {
        asked
    }

    /// Returns the engine of a rank that has no name given.
    fn engine_id(&self, _rank: u32) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    /// Returns the ranks of `all`, with their engines, that other ports than that of `here` answer for and
    /// `/query` names all the same.
    fn ranks_elsewhere(&self, _all: u32, _here: Range<u32>) -> Vec<(u32, String)> {
        Vec::new()
    }

    /// Returns the parameters that an answer tells of `hand_over`; `connector` says what its connector does.
    fn transfer_params(
        &self,
        _: &Arc<HandOver>,
        connector: &dyn Fn() -> Option<TransferParams>,
    ) -> Option<TransferParams> {
        connector()
    }

    /// Returns the reason for which an answer ended whose prompt another server decodes, where that has a
    /// word of its own.
    fn prefill_reason(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether a hit threshold means anything without a prefix cache.
    fn has_threshold_without_cache(&self) -> bool {
        true
    }

    /// Returns the tokens of a completion that does not say.
    fn default_max_tokens(&self) -> Option<i128> {
        Some(DEFAULT_MAX_TOKENS)
    }

    /// Returns whether calls of the tool that was named are the reason for which an answer ends.
    fn ends_with_named_calls(&self) -> bool {
        false
    }

    /// Settles which tools a turn of a Responses conversation may call.
    fn choose_tools(&self, _: &ResponsesRequest, _: &mut ChatRequest) {}

    /// Takes out of a Responses request the instructions that the model is not told.
    fn take_unread_instructions(&self, _: &mut Option<String>) -> Option<String> {
        None
    }

    /// Returns the form of ids.
    fn ids(&self) -> IdForm {
        IdForm::Hex
    }

    /// Returns the beginning of the id of a message, before the request's own.
    fn message_id_prefix(&self) -> &'static str {
        "chatcmpl-"
    }

    /// Returns the beginning of the id of a request in tokens, before the request's own.
    fn generate_id_prefix(&self) -> &'static str {
        "generate-tokens-"
    }

    /// Returns whether the id of a completion ends with the index of its prompt.
    fn numbers_prompts(&self) -> bool {
        false
    }

    /// Returns how much answers tell.
    fn answers(&self) -> AnswerForm {
        AnswerForm::Full
    }

    /// Returns whether usage says how much of the prompt was cached, whatever the flags say.
    fn shows_prompt_details(&self) -> bool {
        false
    }

    /// Returns whether a log probability says no more than the position of its token.
    fn numbers_logprobs(&self) -> bool {
        false
    }

    /// Returns whether adapters are listed with the context of their model.
    fn lists_adapter_context(&self) -> bool {
        false
    }

    /// Returns the place in which a stream says what is found after its headers, in Messages and Responses.
    fn late_refusals(&self) -> LateRefusals {
        LateRefusals::InStream
    }

    /// Returns a refusal of `/v1/messages`.
    fn message_refusal(&self, fault: &Fault, version: Version) -> Response<Body> {
        let body = fault.to_anthropic_json(version);
        error::retry_after(fault, error::json(error::status(fault.status), body))
    }

    /// Returns the form of what the render routes show.
    fn rendered(&self) -> RenderedForm {
        RenderedForm::Request
    }

    /// Returns the form of adapters' loads, of sleep and of settings.
    fn operations(&self) -> OperationForm {
        OperationForm::Checked
    }
}

impl ApiDialect for Vllm {}

/// The endpoint that a body is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Responses,
    Messages,
    Generate,
    Embeddings,
    Tokenize,
}

/// The form of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdForm {
    /// Hex digits.
    Hex,
    /// Ten decimal digits, or the request's own.
    Numbered,
}

/// The place in which a stream says what is found after its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateRefusals {
    /// In its body.
    InStream,
    /// In a status: its headers wait.
    AsStatus,
}

/// The amount of detail in answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// vLLM's, with every member.
    Full,
    /// llm-d's.
    Short,
}

/// The form of what the render routes show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderedForm {
    /// A request for `/inference/v1/generate`.
    Request,
    /// The tokens of the base model's prompt.
    Tokens,
}

/// The form in which routes for operators answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationForm {
    /// vLLM's way: checked, with a word of success.
    Checked,
    /// llm-d's way: lenient, with an empty body.
    Lenient,
}

impl IdForm {
    /// Returns ids of tool calls; `prefix` stands before numbers.
    pub(crate) fn calls(self, prefix: &'static str) -> CallIds {
        match self {
            Self::Numbered => CallIds::numbered(prefix),
            Self::Hex => CallIds::fresh(),
        }
    }

    /// Returns the id of a response that its body does not name.
    pub(crate) fn response(self, headers: &HeaderMap) -> Arc<str> {
        match self {
            Self::Numbered => request_id("resp_", headers, None),
            Self::Hex => format!("resp_{}", uid()).into(),
        }
    }

    /// Returns ids of what a response holds.
    pub(crate) fn items(self, response: &str) -> Ids {
        match self {
            Self::Numbered => Ids::llmd(response),
            Self::Hex => Ids::new(),
        }
    }
}

impl RenderedForm {
    /// Returns what is shown of a prompt: its tokens with its media, or the request that holds it.
    ///
    /// # Errors
    /// Those of `request`.
    pub(crate) fn show(
        self,
        tokens: &[u32],
        features: impl FnOnce() -> Option<Value>,
        request: impl FnOnce() -> Result<Value, Fault>,
    ) -> Result<Value, Fault> {
        if self == Self::Request {
            return request();
        }
        let mut shown = json!({"token_ids": tokens});
        if let Some(features) = features() {
            shown["features"] = features;
        }
        Ok(shown)
    }

    /// Checks that the prompts of whoever answers are shown.
    ///
    /// # Errors
    /// llm-d's 400: it renders for the base model alone.
    pub(crate) fn renders(self, target: &Target) -> Result<(), Fault> {
        match target {
            Target::Lora { name, .. } if self == Self::Tokens => Err(Fault::bad_request(format!(
                "The model `{name}` is a LoRA adapter and is not supported by the render endpoints."
            ))),
            _ => Ok(()),
        }
    }
}

impl OperationForm {
    /// Returns the answer to an operation that succeeded.
    pub(crate) fn done(self, value: &Value) -> Response<Body> {
        match self {
            Self::Lenient => error::empty(StatusCode::OK),
            Self::Checked => error::json(StatusCode::OK, value.to_string()),
        }
    }
}
