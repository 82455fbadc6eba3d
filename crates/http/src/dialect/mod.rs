//! Differences of the HTTP API between the imitated servers, vLLM and llm-d-inference-sim.
//!
//! `vllm_sim_service::dialect` has the differences inside a request; this module has those of
//! bodies, routes and responses. Defaults are vLLM's. `crate::imitated` lists the dialects.

mod llmd;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::openai::responses::ids::OutputItemIds;
use super::request_head::{ToolCallIds, new_random_hex_id, request_id};
use super::transfer::params::KvTransferParams;
use crate::error::{self, ok_json_response};
use vllm_sim_service::LoraAdapter;
use vllm_sim_service::PrefillHandoff;
use vllm_sim_service::dialect::{ServerDialect, VllmDialect};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::DEFAULT_MAX_TOKENS;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::openai::shared_request_fields::ChatTool;
use vllm_sim_wire::{ServerLimits, VllmVersion};

/// Rules of an imitated server's API.
#[derive(Clone, Copy)]
pub struct ApiRules(pub(crate) &'static dyn ApiDialect);

impl ApiRules {
    /// Returns the rules by which the service checks requests for the imitated server.
    pub fn service_dialect(self) -> &'static dyn ServerDialect {
        self.0
    }

    /// Returns the name of the imitated server and its release.
    pub fn release(self, vllm: VllmVersion) -> (&'static str, &'static str) {
        self.0.release(vllm)
    }

    /// Returns the imitated server's command, whose flags vllm-sim accepts; `None` if the
    /// command-line mode determines it.
    pub fn launch_command(self) -> Option<&'static str> {
        self.0.launch_command()
    }
}

/// Properties of an imitated server's API that are the same for all requests.
pub(crate) struct ApiProperties {
    /// Finish reason of a prefill for a remote decode server, if it differs from the usual reasons.
    pub(crate) prefill_finish_reason: Option<&'static str>,
    /// Whether the prefix-cache hit threshold applies to requests when there is no prefix cache.
    pub(crate) applies_threshold_without_cache: bool,
    /// Default of `max_tokens` for `/v1/completions`.
    pub(crate) default_max_tokens: Option<i128>,
    /// Start of the ids of Anthropic messages.
    pub(crate) message_id_prefix: &'static str,
    /// Start of the ids of `/inference/v1/generate` requests.
    pub(crate) generate_id_prefix: &'static str,
    /// Whether the id of a completion request ends with the index of its prompt.
    pub(crate) appends_prompt_index: bool,
    /// Set of members in responses.
    pub(crate) response_field_set: ResponseFieldSet,
    /// Whether `usage` always reports cached prompt tokens, regardless of flags.
    pub(crate) always_reports_cached_tokens: bool,
    /// Whether the log probabilities of a token depend only on its position in the output.
    pub(crate) has_positional_logprobs: bool,
    /// Whether `/v1/models` lists LoRA adapters with the context length of their model.
    pub(crate) lists_adapter_context: bool,
    /// Reporting of errors after the admission of a request, in a stream of Messages or Responses
    /// events.
    pub(crate) late_error_reporting: StreamErrorReporting,
    /// Response format of the routes `/…/render`.
    pub(crate) render_format: RenderRouteFormat,
    /// Behaviour of the LoRA, sleep and settings routes.
    pub(crate) operator_route_style: OperatorRouteStyle,
}

impl ApiProperties {
    pub(crate) const VLLM: Self = Self {
        prefill_finish_reason: None,
        applies_threshold_without_cache: true,
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        message_id_prefix: "chatcmpl-",
        generate_id_prefix: "generate-tokens-",
        appends_prompt_index: false,
        response_field_set: ResponseFieldSet::Full,
        always_reports_cached_tokens: false,
        has_positional_logprobs: false,
        lists_adapter_context: false,
        late_error_reporting: StreamErrorReporting::InStream,
        render_format: RenderRouteFormat::Request,
        operator_route_style: OperatorRouteStyle::Checked,
    };
}

/// Differences of request bodies, routes and responses between vLLM and other imitated servers.
pub(crate) trait ApiDialect: ServerDialect {
    /// Returns the properties of the imitated server's API that are the same for all requests.
    fn properties(&self) -> &'static ApiProperties {
        &ApiProperties::VLLM
    }

    /// Returns the name of the imitated server and its release.
    fn release(&self, vllm: VllmVersion) -> (&'static str, &'static str) {
        ("vLLM", vllm.as_str())
    }

    /// Returns the imitated server's command, whose flags vllm-sim accepts; `None` if the
    /// command-line mode determines it.
    fn launch_command(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether requests to a path need an API key.
    ///
    /// Source: vLLM 0.33 `entrypoints/serve/middleware.py`, `AuthenticationMiddleware`.
    fn needs_api_key(&self, path: &str) -> bool {
        ["/v1", "/v2", "/inference", "/cohere"].iter().any(|prefix| path.starts_with(prefix))
    }

    /// Returns whether requests to a path need the key of `--admin-api-key`, if there is one, in
    /// place of an API key.
    fn needs_admin_key(&self, _path: &str) -> bool {
        false
    }

    /// Returns a tool's definition as JSON, as the chat template receives it.
    fn template_tool(&self, tool: &ChatTool) -> Value {
        tool.to_template_json()
    }

    /// Returns the media type by which a request body is parsed; `named` is the media type in the
    /// request's headers.
    fn media_type<'h>(&self, named: Option<&'h str>) -> Option<&'h str> {
        named
    }

    /// Returns whether a request body is checked against its JSON schema before all other checks.
    fn checks_schema_first(&self) -> bool {
        true
    }

    /// Returns whether a request's injected failures and model are checked before its body is
    /// checked against the JSON schema.
    fn checks_model_before_schema(&self, _: ApiEndpoint) -> bool {
        false
    }

    /// Returns a request body in the form that vLLM's JSON schema accepts.
    ///
    /// # Errors
    /// 400 for a body that is rejected regardless of its endpoint.
    fn schema_body<'b>(
        &self,
        _: ApiEndpoint,
        body: Cow<'b, Value>,
    ) -> Result<Cow<'b, Value>, Fault> {
        Ok(body)
    }

    /// Checks the content of a request body before the check against its JSON schema; the model is
    /// already known.
    ///
    /// # Errors
    /// 400 with the message of the imitated server.
    fn check_body_content(&self, _: ApiEndpoint, _: &Value) -> Result<(), Fault> {
        Ok(())
    }

    /// Runs all checks of a request body that precede the check against its JSON schema; the model
    /// is already known.
    ///
    /// # Errors
    /// 400 with the message of the imitated server.
    fn check_body(&self, _: ApiEndpoint, _: &Value) -> Result<(), Fault> {
        Ok(())
    }

    /// Converts vLLM's error for an unreadable body to that of the imitated server.
    fn unreadable_body_fault(&self, fault: Fault) -> Fault {
        fault
    }

    /// Returns whether the imitated server treats `//` in request paths as `/` and answers OPTIONS
    /// on every route.
    fn has_lenient_paths(&self) -> bool {
        false
    }

    /// Returns the error for a requested model that is not in `served`.
    fn unknown_model_fault(&self, name: &str, served: &[Arc<str>]) -> Fault {
        Fault::unknown_model(name, served)
    }

    /// Returns the LoRA adapter for a route that generates nothing, such as embeddings; `Ok(None)`
    /// for the base model, also if the imitated server ignores the name.
    ///
    /// # Errors
    /// The error in `found`, unless the imitated server ignores the name.
    fn pooling_model(
        &self,
        found: Result<Option<Arc<LoraAdapter>>, Fault>,
    ) -> Result<Option<Arc<LoraAdapter>>, Fault> {
        found
    }

    /// Returns the data-parallel rank that runs a request for the rank `asked`.
    fn effective_rank(&self, _: &ServerLimits, asked: Option<i64>) -> Option<i64> {
        asked
    }

    /// Generates an engine id for KV transfer from a data-parallel rank.
    fn generated_engine_id(&self, _rank: u32) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    /// Returns the data-parallel ranks on other ports, with their engine ids, that the bootstrap
    /// server's `/query` lists.
    ///
    /// `_all` is the number of ranks, `_here` the ranks of this port.
    fn ranks_on_other_ports(&self, _all: u32, _here: Range<u32>) -> Vec<(u32, String)> {
        Vec::new()
    }

    /// Returns the KV transfer parameters of a response; `connector` computes those of the KV
    /// connector.
    fn transfer_params(
        &self,
        _: &Arc<PrefillHandoff>,
        connector: &dyn Fn() -> Option<KvTransferParams>,
    ) -> Option<KvTransferParams> {
        connector()
    }

    /// Returns whether calls of the tool named in `tool_choice` set the finish reason `tool_calls`.
    fn named_call_sets_finish_reason(&self) -> bool {
        false
    }

    /// Sets the tool choice for one turn of a Responses conversation, if the imitated server
    /// changes it.
    fn set_turn_tool_choice(&self, _: &ResponsesRequest, _: &mut ChatRequest) {}

    /// Removes and returns the instructions of a Responses request that the model does not see.
    fn take_hidden_instructions(&self, _: &mut Option<String>) -> Option<String> {
        None
    }

    fn id_format(&self) -> ResponseIdFormat {
        ResponseIdFormat::Hex
    }

    fn message_error_response(&self, fault: &Fault, version: VllmVersion) -> Response<Body> {
        let body = fault.to_anthropic_json(version);
        error::add_retry_after(
            fault,
            error::json_response(error::to_status_code(fault.status), body),
        )
    }
}

impl ApiDialect for VllmDialect {}

/// An API endpoint whose JSON request body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiEndpoint {
    Chat,
    Completions,
    Responses,
    Messages,
    Generate,
    Embeddings,
    Tokenize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseIdFormat {
    Hex,
    /// Id format of llm-d-inference-sim: response and tool-call ids have ten decimal digits; a
    /// response may take its request's id.
    Numbered,
}

/// Selects how a stream reports an error that occurs after its headers could have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamErrorReporting {
    /// A stream reports a late error as an event.
    InStream,
    /// A stream reports a late error as HTTP status; its headers therefore wait until the request
    /// is started.
    AsStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFieldSet {
    /// The imitated server's responses contain every member that vLLM writes.
    Full,
    /// The imitated server's responses contain only the members that llm-d-inference-sim writes.
    Short,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderRouteFormat {
    /// The routes `/…/render` return a request body for `/inference/v1/generate`.
    Request,
    /// The routes `/…/render` return only the token ids of the prompt.
    Tokens,
}

/// Behaviour of the routes for operators: those that load LoRA adapters, put the engine to sleep or
/// change settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperatorRouteStyle {
    /// The operator routes check requests and return a message on success, as in vLLM.
    Checked,
    /// The operator routes are lenient and return an empty body, as in llm-d-inference-sim.
    Lenient,
}

impl ResponseIdFormat {
    /// Returns the generator of tool-call ids in this id format; only decimal ids start with
    /// `prefix`.
    pub(crate) fn tool_call_ids(self, prefix: &'static str) -> ToolCallIds {
        match self {
            Self::Numbered => ToolCallIds::with_decimal_ids(prefix),
            Self::Hex => ToolCallIds::with_random_hex_ids(),
        }
    }

    /// Returns the id of a Responses API response; in llm-d's format, the request's headers may
    /// contain the id.
    pub(crate) fn response_id(self, headers: &HeaderMap) -> Arc<str> {
        match self {
            Self::Numbered => request_id("resp_", headers, None),
            Self::Hex => format!("resp_{}", new_random_hex_id()).into(),
        }
    }

    pub(crate) fn output_item_ids(self, response: &str) -> OutputItemIds {
        match self {
            Self::Numbered => OutputItemIds::with_decimal_ids(response),
            Self::Hex => OutputItemIds::with_random_hex_ids(),
        }
    }
}

impl RenderRouteFormat {
    /// Returns the response of a render route: the prompt's tokens and media, or the request body
    /// that the function `request` builds.
    ///
    /// # Errors
    /// The errors of `request`.
    pub(crate) fn render_route_response(
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

    /// Checks that the render routes support the requested model.
    ///
    /// # Errors
    /// llm-d's 400 for an adapter.
    pub(crate) fn check_render_support(self, lora: Option<&LoraAdapter>) -> Result<(), Fault> {
        match lora {
            Some(LoraAdapter { name, .. }) if self == Self::Tokens => {
                Err(Fault::bad_request(format!(
                    "The model `{name}` is a LoRA adapter and is not supported by the render endpoints."
                )))
            }
            _ => Ok(()),
        }
    }
}

impl OperatorRouteStyle {
    /// Returns the HTTP response of a successful LoRA, sleep or settings operation.
    pub(crate) fn operation_success_response(self, value: &Value) -> Response<Body> {
        match self {
            Self::Lenient => error::empty_response(StatusCode::OK),
            Self::Checked => ok_json_response(value),
        }
    }
}
