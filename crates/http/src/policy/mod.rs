//! What llm-d-inference-sim and vLLM do differently over HTTP, as one value: chosen when the server
//! starts. Handlers do not ask which of the two it is: they use what it says or have it decide.

mod first_reader;
mod llmd_bodies;
mod llmd_lenient;
mod llmd_responses;
mod mode_policy;

use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

pub(crate) use self::first_reader::{Api, FirstReader};
use self::mode_policy::ModePolicy;
use super::error;
use super::openai::ids::{CallIds, rank_engine_id, request_id, uid};
use super::openai::responses::ids::Ids;
use super::transfer::params::TransferParams;
use vllm_sim_config::{CliMode, Compat};
use vllm_sim_service::HandOver;
use vllm_sim_service::generate::request::Target;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::DEFAULT_MAX_TOKENS;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::{Limits, Version};

/// The rules of a server's HTTP API.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// Who looks at a body first.
    pub(crate) first_reader: FirstReader,
    /// Whether a body has to say that it is JSON.
    asks_media_type: bool,
    /// Whether `//` in a path is `/`, and OPTIONS is answered on every route.
    pub(crate) lenient_paths: bool,
    /// Whether a data-parallel rank that is not there is refused.
    refuses_ranks: bool,
    /// Whether `/query` names the ranks of other ports too.
    lists_all_ranks: bool,
    /// What is said of a name that nobody answers to.
    unknown_model: UnknownModel,
    /// Whether `/tokenize` and the pooling routes look at the model's name.
    checks_side_models: bool,
    /// Most tokens of a completion that does not say.
    pub(crate) default_max_tokens: Option<i128>,
    /// What the server that decodes is told.
    pub(crate) transfer_offer: TransferOffer,
    /// Why an answer ended whose prompt another server decodes, where that has a word of its own.
    pub(crate) prefill_reason: Option<&'static str>,
    /// Whether a hit threshold holds without a prefix cache.
    threshold_without_cache: bool,
    /// Whether calls of the tool that was named are why an answer ends.
    pub(crate) named_calls_end: bool,
    /// Whether the id of a completion ends with the index of its prompt.
    pub(crate) numbers_prompts: bool,
    /// Ids of tool calls, and of what else an answer names.
    pub(crate) ids: IdForm,
    /// Id of a message, before the request's own.
    pub(crate) message_id_prefix: &'static str,
    /// Id of a request in tokens, before the request's own.
    pub(crate) generate_id_prefix: &'static str,
    /// Whether adapters are listed with the context of their model.
    pub(crate) lists_adapter_context: bool,
    /// Where a stream says what is found after its headers: in Messages and Responses.
    pub(crate) late_refusals: LateRefusals,
    /// Whose envelope errors of `/v1/messages` have.
    message_errors: Envelope,
    /// Whether the model reads the instructions of a Responses request.
    reads_instructions: bool,
    /// Which turns of a Responses conversation call tools.
    tool_turns: ToolTurns,
    /// How long answers are.
    pub(crate) answers: AnswerForm,
    /// Whether usage says how much of the prompt was cached, whatever the flags say.
    pub(crate) prompt_details: bool,
    /// Whether a log probability says no more than where its token stands.
    pub(crate) logprobs_by_position: bool,
    /// What the render routes show.
    pub(crate) rendered: RenderedForm,
    /// How adapters are loaded, engines sent to sleep and settings shown.
    pub(crate) operations: OperationForm,
    /// What the command-line mode does, whatever the rest says.
    pub(crate) mode: ModePolicy,
}

/// What is said of a name that nobody answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnknownModel {
    /// That, and which names there are.
    WithAliases,
    /// That.
    Bare,
}

/// What the server that decodes a prompt is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferOffer {
    /// What its connector needs.
    Connector,
    /// llm-d's placeholders.
    Placeholders,
}

/// How ids look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdForm {
    /// Hex digits.
    Hex,
    /// Ten decimal digits, or the request's own.
    Numbered,
}

/// Where a stream says what is found after its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateRefusals {
    /// In its body.
    InStream,
    /// In a status: its headers wait.
    AsStatus,
}

/// Whose envelope an error has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Envelope {
    /// Anthropic's.
    Anthropic,
    /// OpenAI's.
    OpenAi,
}

/// Which turns of a Responses conversation call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToolTurns {
    /// As the request says.
    AsAsked,
    /// One call in the first turn, none once it has its result.
    OneCall,
}

/// How long answers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// vLLM's, with every member.
    Full,
    /// llm-d's.
    Short,
}

/// What the render routes show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderedForm {
    /// A request for `/inference/v1/generate`.
    Request,
    /// The tokens of the base model's prompt.
    Tokens,
}

/// How routes for operators answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationForm {
    /// vLLM's way: checked, with a word of success.
    Checked,
    /// llm-d's way: lenient, with an empty body.
    Lenient,
}

impl Policy {
    /// Returns the rules of a server.
    pub(crate) fn of(compat: Compat, cli_mode: CliMode) -> Self {
        let mode = ModePolicy::of(cli_mode);
        match compat {
            Compat::Llmd => Self::llmd(mode),
            Compat::Vllm => Self::vllm(mode),
        }
    }

    fn vllm(mode: ModePolicy) -> Self {
        Self {
            first_reader: FirstReader::Schema,
            asks_media_type: true,
            lenient_paths: false,
            refuses_ranks: true,
            lists_all_ranks: false,
            unknown_model: UnknownModel::WithAliases,
            checks_side_models: true,
            default_max_tokens: Some(DEFAULT_MAX_TOKENS),
            transfer_offer: TransferOffer::Connector,
            prefill_reason: None,
            threshold_without_cache: true,
            named_calls_end: false,
            numbers_prompts: false,
            ids: IdForm::Hex,
            message_id_prefix: "chatcmpl-",
            generate_id_prefix: "generate-tokens-",
            lists_adapter_context: false,
            late_refusals: LateRefusals::InStream,
            message_errors: Envelope::Anthropic,
            reads_instructions: true,
            tool_turns: ToolTurns::AsAsked,
            answers: AnswerForm::Full,
            prompt_details: false,
            logprobs_by_position: false,
            rendered: RenderedForm::Request,
            operations: OperationForm::Checked,
            mode,
        }
    }

    fn llmd(mode: ModePolicy) -> Self {
        Self {
            first_reader: FirstReader::Llmd,
            asks_media_type: false,
            lenient_paths: true,
            refuses_ranks: false,
            lists_all_ranks: true,
            unknown_model: UnknownModel::Bare,
            checks_side_models: false,
            default_max_tokens: None,
            transfer_offer: TransferOffer::Placeholders,
            prefill_reason: Some("remote_decode"),
            threshold_without_cache: false,
            named_calls_end: true,
            numbers_prompts: true,
            ids: IdForm::Numbered,
            message_id_prefix: "msg_",
            generate_id_prefix: "",
            lists_adapter_context: true,
            late_refusals: LateRefusals::AsStatus,
            message_errors: Envelope::OpenAi,
            reads_instructions: false,
            tool_turns: ToolTurns::OneCall,
            answers: AnswerForm::Short,
            prompt_details: true,
            logprobs_by_position: true,
            rendered: RenderedForm::Tokens,
            operations: OperationForm::Lenient,
            mode,
        }
    }
}

impl Policy {
    /// What is said of a name that nobody answers to, where `served` do.
    pub(crate) fn unknown_model(&self, name: &str, served: &[Arc<str>]) -> Fault {
        match self.unknown_model {
            UnknownModel::Bare => {
                let words = format!("The model `{name}` does not exist.");
                Fault::new(404, ErrorType::NotFound, words)
            }
            UnknownModel::WithAliases => Fault::unknown_model(name, served),
        }
    }

    /// The media type of a body whose head names `named`, as it is read.
    pub(crate) fn media_type<'h>(&self, named: Option<&'h str>) -> Option<&'h str> {
        if self.asks_media_type {
            named
        } else {
            Some("application/json")
        }
    }

    /// The data-parallel rank that a request gets that asks for `asked`.
    pub(crate) fn rank(&self, limits: &Limits, asked: Option<i64>) -> Option<i64> {
        let ranks = i64::from(limits.data_parallel_ranks);
        asked.filter(|rank| self.refuses_ranks || (0..ranks).contains(rank))
    }

    /// The engine of a rank that has no name given, where a name is known beforehand.
    pub(crate) fn engine_id(&self, rank: u32) -> String {
        match self.lists_all_ranks {
            true => rank_engine_id(rank),
            false => uuid::Uuid::new_v4().to_string(),
        }
    }

    /// Ranks of `all`, with their engines, that other ports than that of `here` answer for and
    /// `/query` names all the same.
    pub(crate) fn ranks_elsewhere(
        &self,
        all: u32,
        here: Range<u32>,
    ) -> impl Iterator<Item = (u32, String)> {
        let all = if self.lists_all_ranks { all } else { 0 };
        let others = (0..all).filter(move |rank| !here.contains(rank));
        others.map(|rank| (rank, rank_engine_id(rank)))
    }

    /// Who answers on a route that generates nothing; `None`: whoever is there, as nobody looks.
    ///
    /// # Errors
    /// The refusal that `found` holds, where the name is looked at.
    pub(crate) fn side_model(&self, found: Result<Target, Fault>) -> Result<Option<Target>, Fault> {
        match found {
            Err(_) if !self.checks_side_models => Ok(None),
            found => found.map(Some),
        }
    }

    /// Whether a hit threshold means anything; `cache`: there is a prefix cache.
    pub(crate) fn has_threshold(&self, cache: bool) -> bool {
        cache || self.threshold_without_cache
    }

    /// A refusal of `/v1/messages`.
    pub(crate) fn message_refusal(&self, fault: &Fault, version: Version) -> Response<Body> {
        match self.message_errors {
            Envelope::OpenAi => error::response(fault),
            Envelope::Anthropic => {
                let body = fault.to_anthropic_json(version);
                error::retry_after(fault, error::json(error::status(fault.status), body))
            }
        }
    }

    /// Takes out of a Responses request what the model is not told.
    pub(crate) fn take_unread(&self, instructions: &mut Option<String>) -> Option<String> {
        instructions.take_if(|_| !self.reads_instructions)
    }

    /// Settles which tools this turn of a Responses conversation may call.
    pub(crate) fn choose_tools(&self, request: &ResponsesRequest, chat: &mut ChatRequest) {
        if self.tool_turns == ToolTurns::OneCall {
            llmd_responses::choose(request, chat);
        }
    }
}

impl TransferOffer {
    /// What an answer tells of `hand_over`; `connector` says what its connector does.
    pub(crate) fn params(
        self,
        hand_over: &Arc<HandOver>,
        connector: impl FnOnce() -> Option<TransferParams>,
    ) -> Option<TransferParams> {
        match self {
            Self::Placeholders => Some(TransferParams::placeholders(hand_over.clone())),
            Self::Connector => connector(),
        }
    }
}

impl IdForm {
    /// Ids of tool calls; `prefix` stands before numbers.
    pub(crate) fn calls(self, prefix: &'static str) -> CallIds {
        match self {
            Self::Numbered => CallIds::numbered(prefix),
            Self::Hex => CallIds::fresh(),
        }
    }

    /// The id of a response that its body does not name.
    pub(crate) fn response(self, headers: &HeaderMap) -> Arc<str> {
        match self {
            Self::Numbered => request_id("resp_", headers, None),
            Self::Hex => format!("resp_{}", uid()).into(),
        }
    }

    /// Ids of what a response holds.
    pub(crate) fn items(self, response: &str) -> Ids {
        match self {
            Self::Numbered => Ids::llmd(response),
            Self::Hex => Ids::new(),
        }
    }
}

impl RenderedForm {
    /// What is shown of a prompt: its tokens with its media, or the request that holds it.
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

    /// Whether the prompts of whoever answers are shown.
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
    /// What an operation that succeeded answers.
    pub(crate) fn done(self, value: &Value) -> Response<Body> {
        match self {
            Self::Lenient => error::empty(StatusCode::OK),
            Self::Checked => error::json(StatusCode::OK, value.to_string()),
        }
    }
}
