//! The HTTP API of llm-d-inference-sim (`--compat llm-d`).
//!
//! A request body is checked in that simulator's order and with its messages: JSON, injected
//! failures, model, numbers, then the context length of the prompt.
//!
//! Source: llm-d-inference-sim `pkg/communication/http.go`, `pkg/api/request.go`,
//! `pkg/llm-d-inference-sim/helpers.go`, `validateRequest` (August 2026).

mod bodies;
mod lenient;
mod responses;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use serde_json::Value;

use super::{
    ApiDialect, ApiEndpoint, ApiProperties, OperatorRouteStyle, RenderRouteFormat,
    ResponseFieldSet, ResponseIdFormat, StreamErrorReporting,
};
use crate::error;
use crate::request_head::rank_engine_id;
use crate::transfer::params::KvTransferParams;
use vllm_sim_service::LoraAdapter;
use vllm_sim_service::PrefillHandoff;
use vllm_sim_service::dialect::LlmdDialect;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::{ServerLimits, VllmVersion};

const LLMD_PROPERTIES: ApiProperties = ApiProperties {
    prefill_finish_reason: Some("remote_decode"),
    applies_threshold_without_cache: false,
    default_max_tokens: None,
    message_id_prefix: "msg_",
    generate_id_prefix: "",
    appends_prompt_index: true,
    response_field_set: ResponseFieldSet::Short,
    always_reports_cached_tokens: true,
    has_positional_logprobs: true,
    lists_adapter_context: true,
    late_error_reporting: StreamErrorReporting::AsStatus,
    render_format: RenderRouteFormat::Tokens,
    operator_route_style: OperatorRouteStyle::Lenient,
};

impl ApiDialect for LlmdDialect {
    fn properties(&self) -> &'static ApiProperties {
        &LLMD_PROPERTIES
    }

    /// Treats every request body as JSON, whatever its content type.
    fn media_type<'h>(&self, _: Option<&'h str>) -> Option<&'h str> {
        Some("application/json")
    }

    fn checks_schema_first(&self) -> bool {
        false
    }

    fn checks_model_before_schema(&self, endpoint: ApiEndpoint) -> bool {
        !output_limit_pointers(endpoint).is_empty()
    }

    fn schema_body<'b>(
        &self,
        endpoint: ApiEndpoint,
        body: Cow<'b, Value>,
    ) -> Result<Cow<'b, Value>, Fault> {
        if !body.is_object() {
            let words = "Failed to read and parse request body, a JSON object is expected";
            return Err(Fault::bad_request(words));
        }
        let mut body = lenient::remove_values_rejected_by_vllm(endpoint, body);
        match endpoint {
            ApiEndpoint::Chat if wants_one_alternative(&body) => {
                body.to_mut()["top_logprobs"] = 1.into();
            }
            ApiEndpoint::Responses => responses::convert_responses_body(body.to_mut())?,
            ApiEndpoint::Generate => bodies::nest_root_sampling_params(body.to_mut()),
            ApiEndpoint::Embeddings => bodies::check_embeddings_input(&body)?,
            ApiEndpoint::Tokenize => bodies::check_prompt_xor_messages(&body)?,
            ApiEndpoint::Chat | ApiEndpoint::Completions | ApiEndpoint::Messages => {}
        }
        Ok(body)
    }

    fn check_body_content(&self, endpoint: ApiEndpoint, body: &Value) -> Result<(), Fault> {
        match endpoint {
            ApiEndpoint::Completions => {
                bodies::check_completion_prompt(body.get("prompt").unwrap_or(&Value::Null))
            }
            ApiEndpoint::Messages => bodies::check_messages_body(body),
            ApiEndpoint::Generate => bodies::check_generate_body(body),
            ApiEndpoint::Chat => bodies::check_forced_tool(body),
            ApiEndpoint::Responses | ApiEndpoint::Embeddings | ApiEndpoint::Tokenize => Ok(()),
        }
    }

    /// Runs llm-d-inference-sim's checks of a request body, in the order of that server: content,
    /// numbers, streamed prefill, missing output limit.
    fn check_body(&self, endpoint: ApiEndpoint, body: &Value) -> Result<(), Fault> {
        self.check_body_content(endpoint, body)?;
        check_n_and_output_limit(endpoint, body)?;
        check_streamed_prefill(body)?;
        check_ignore_eos_limit(endpoint, body)
    }

    fn unreadable_body_fault(&self, fault: Fault) -> Fault {
        if fault.error_type != ErrorType::BadRequestPhrase {
            return fault;
        }
        Fault::bad_request(format!("Failed to read and parse request body, {}", fault.message))
    }

    fn has_lenient_paths(&self) -> bool {
        true
    }

    fn unknown_model_fault(&self, name: &str, _: &[Arc<str>]) -> Fault {
        let words = format!("The model `{name}` does not exist.");
        Fault::new(404, ErrorType::NotFound, words)
    }

    fn pooling_model(
        &self,
        found: Result<Option<Arc<LoraAdapter>>, Fault>,
    ) -> Result<Option<Arc<LoraAdapter>>, Fault> {
        Ok(found.ok().flatten())
    }

    /// Returns the requested data-parallel rank, or `None` if no such rank exists.
    fn effective_rank(&self, limits: &ServerLimits, asked: Option<i64>) -> Option<i64> {
        let ranks = i64::from(limits.data_parallel_ranks);
        asked.filter(|rank| (0..ranks).contains(rank))
    }

    fn generated_engine_id(&self, rank: u32) -> String {
        rank_engine_id(rank)
    }

    fn ranks_on_other_ports(&self, all: u32, here: Range<u32>) -> Vec<(u32, String)> {
        let others = (0..all).filter(|rank| !here.contains(rank));
        others.map(|rank| (rank, rank_engine_id(rank))).collect()
    }

    fn transfer_params(
        &self,
        prefill_handoff: &Arc<PrefillHandoff>,
        _: &dyn Fn() -> Option<KvTransferParams>,
    ) -> Option<KvTransferParams> {
        Some(KvTransferParams::llmd_placeholder_params(prefill_handoff.clone()))
    }

    fn named_call_sets_finish_reason(&self) -> bool {
        true
    }

    fn set_turn_tool_choice(&self, request: &ResponsesRequest, chat: &mut ChatRequest) {
        responses::set_tool_choice(request, chat);
    }

    fn take_hidden_instructions(&self, instructions: &mut Option<String>) -> Option<String> {
        instructions.take()
    }

    fn id_format(&self) -> ResponseIdFormat {
        ResponseIdFormat::Numbered
    }

    fn message_error_response(&self, fault: &Fault, _: VllmVersion) -> Response<Body> {
        error::fault_response(fault)
    }
}

/// Returns the JSON pointers of the output token limit in a body; the first one that is set
/// applies.
fn output_limit_pointers(endpoint: ApiEndpoint) -> &'static [&'static str] {
    match endpoint {
        ApiEndpoint::Chat => &["/max_completion_tokens", "/max_tokens"],
        ApiEndpoint::Completions | ApiEndpoint::Messages => &["/max_tokens"],
        ApiEndpoint::Responses => &["/max_output_tokens"],
        ApiEndpoint::Generate => &["/sampling_params/max_tokens"],
        ApiEndpoint::Embeddings | ApiEndpoint::Tokenize => &[],
    }
}

/// Checks `n` and the output token limit of a body.
///
/// # Errors
/// llm-d's 400.
fn check_n_and_output_limit(endpoint: ApiEndpoint, body: &Value) -> Result<(), Fault> {
    let number = |path: &&str| body.pointer(path).filter(|value| !value.is_null());
    if number(&"/n").and_then(Value::as_i64).is_some_and(|n| n < 1) {
        return Err(Fault::bad_request("n must be at least 1"));
    }
    let asked = output_limit_pointers(endpoint).iter().find_map(number);
    if asked.and_then(Value::as_i64).is_some_and(|n| n < 1) {
        let words = "Max completion tokens and max tokens should be positive";
        return Err(Fault::bad_request(words));
    }
    Ok(())
}

/// Checks that a body with `ignore_eos` has an output token limit.
///
/// # Errors
/// llm-d's 400.
fn check_ignore_eos_limit(endpoint: ApiEndpoint, body: &Value) -> Result<(), Fault> {
    let ignores_end = body.get("ignore_eos").and_then(Value::as_bool) == Some(true);
    let given = |path: &&str| body.pointer(path).is_some_and(|value| !value.is_null());
    if ignores_end && !output_limit_pointers(endpoint).iter().any(given) {
        return Err(Fault::bad_request(
            "Ignore_eos is true but max_completion_tokens (or max_tokens) is not set",
        ));
    }
    Ok(())
}

/// Rejects a streamed prefill for a remote decode server, which llm-d-inference-sim does not
/// support.
///
/// # Errors
/// llm-d's 400.
fn check_streamed_prefill(body: &Value) -> Result<(), Fault> {
    let remote = body.pointer("/kv_transfer_params/do_remote_decode");
    let stream = body.get("stream").and_then(Value::as_bool);
    if stream == Some(true) && remote.and_then(Value::as_bool) == Some(true) {
        return Err(Fault::bad_request("Prefill does not support streaming"));
    }
    Ok(())
}

/// Returns whether log probabilities list one alternative per token: the request has `logprobs` set
/// but not `top_logprobs`.
fn wants_one_alternative(body: &Value) -> bool {
    let silent = body.get("top_logprobs").is_none_or(Value::is_null);
    silent && body.get("logprobs").and_then(Value::as_bool) == Some(true)
}
