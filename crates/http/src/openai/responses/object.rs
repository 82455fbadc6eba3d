//! The response object and its output items, with keys in vLLM's order.
//!
//! Source: `vllm/entrypoints/openai/responses/protocol.py`, `ResponsesResponse`; items are classes
//! of the openai SDK.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::custom;
use super::ids::OutputItemIds;
use crate::openai::logprobs::TokenLogprob;
use crate::openai::response_settings::NullMemberHandling;
use crate::openai::response_settings::{ResponseSettings, TokenCounts, end_reason_of_choice};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_observe::metrics::{Metrics, ToolParserApi, ToolParserMode};
use vllm_sim_service::generate::{OutputChannel, OutputEndReason};
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::VllmVersion;
use vllm_sim_wire::openai::responses::ResponsesRequest;

/// Values that all objects and events of one Responses API response share.
pub(super) struct ResponseObjectBuilder {
    pub(super) view: ResponseSettings,
    pub(super) request: Arc<ResponsesRequest>,
    pub(super) temperature: f64,
    pub(super) top_p: f64,
    /// Maximum number of output tokens of the response, after all limits.
    pub(super) max_tokens: i128,
    /// Number of alternatives per token with log probabilities; `None` returns no log
    /// probabilities.
    pub(super) logprobs: Option<u32>,
    pub(super) ids: OutputItemIds,
    pub(super) tool_parser: Option<Arc<Metrics>>,
    pub(super) prompt: Option<Vec<u32>>,
}

/// Returns the status of a Responses API object, which depends on how the reply ended.
pub(super) fn responses_api_status(choice: &ReplyChoice) -> &'static str {
    match (end_reason_of_choice(choice), choice.script.finish.reason) {
        (SequenceEndReason::Finished, OutputEndReason::Length) => "incomplete",
        (SequenceEndReason::Cancelled, _) => "cancelled",
        (SequenceEndReason::Failed, _) => "failed",
        _ => "completed",
    }
}

/// Delivery of a Responses API response: in one body or as a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ResponseDeliveryMode<'a> {
    Whole,
    /// Delivery as a stream of Responses API events; the value holds the log probabilities of the
    /// text, if requested.
    Streamed(&'a [Value]),
}

/// Returns the log probabilities of a streamed text; null without any.
pub(super) fn nonempty_logprobs(logprobs: &[Value]) -> Option<Value> {
    (!logprobs.is_empty()).then(|| logprobs.into())
}

/// Returns the JSON value that the function `write` writes as text.
fn parse_written_json(write: impl FnOnce(&mut String)) -> Value {
    let mut text = String::new();
    write(&mut text);
    serde_json::from_str(&text).unwrap_or_default()
}

fn cache_options_json(request: &ResponsesRequest) -> Value {
    let options = request.prompt_cache_options.as_ref().map(|o| {
        json!({
            "mode": o.mode, "ttl": o.ttl, "comparison_response_id": o.comparison_response_id,
        })
    });
    options.into()
}

impl ResponseObjectBuilder {
    /// Returns the Responses API object with the given status and output items.
    pub(super) fn response_object(
        &self,
        status: &str,
        output: Vec<Value>,
        reply: Option<&Reply>,
    ) -> Value {
        let (view, request) = (&self.view, &self.request);
        let new = view.version >= VllmVersion::V033;
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let mut map = Map::new();
        let mut set = |key: &str, value: Value| map.insert(key.to_owned(), value);
        set("id", (*view.id).into());
        set("created_at", view.created.into());
        set("incomplete_details", incomplete.into());
        set("instructions", request.instructions.clone().into());
        set("metadata", json!(request.metadata));
        set("model", (*view.model).into());
        set("object", "response".into());
        set("output", output.into());
        set("parallel_tool_calls", request.parallel_tool_calls.unwrap_or(true).into());
        set("temperature", self.temperature.into());
        set("tool_choice", tool_choice_json(&request.tool_choice));
        set("tools", request.tools.iter().map(tool_json).collect());
        set("top_p", self.top_p.into());
        set("background", request.background.unwrap_or(false).into());
        set("max_output_tokens", vllm_sim_python::json_of_python_int(self.max_tokens));
        let calls = request.max_tool_calls.map(vllm_sim_python::json_of_python_int);
        set("max_tool_calls", calls.into());
        set("previous_response_id", request.previous_response_id.clone().into());
        set("prompt", Value::Null);
        if new {
            set("prompt_cache_options", cache_options_json(request));
            set("prompt_cache_key", request.prompt_cache_key.clone().into());
            set("prompt_cache_retention", request.prompt_cache_retention.clone().into());
        }
        let reasoning = request.reasoning.as_ref().map(|reasoning| {
            with_ordered_members(reasoning, "context effort generate_summary mode summary")
        });
        set("reasoning", reasoning.into());
        if new {
            set("safety_identifier", request.safety_identifier.clone().into());
        }
        set("service_tier", request.service_tier.as_str().into());
        set("status", status.into());
        set("text", request.text.as_ref().map(text_config_json).into());
        let top = self.logprobs.map(|_| vllm_sim_python::json_of_python_int(request.top_logprobs));
        set("top_logprobs", top.into());
        set("truncation", request.truncation.clone().into());
        set("usage", reply.map(usage_json).into());
        set("user", request.user.clone().into());
        if let Some(reply) = reply.filter(|_| view.metrics) {
            set(
                "metrics",
                parse_written_json(|text| {
                    view.write_timings(text, reply, NullMemberHandling::Shown)
                }),
            );
        }
        set("presence_penalty", request.presence_penalty.unwrap_or(0.0).into());
        set("frequency_penalty", request.frequency_penalty.unwrap_or(0.0).into());
        let offer = reply.map(|_| parse_written_json(|text| view.write_kv_transfer_params(text)));
        set("kv_transfer_params", offer.unwrap_or_default());
        set("ec_transfer_params", Value::Null);
        let (input, output) = self.raw_messages(reply).unzip();
        set("input_messages", input.into());
        set("output_messages", output.into());
        Value::Object(map)
    }

    /// Returns prompt and reply of a Responses request as raw text and tokens, if the request asks
    /// for raw messages.
    fn raw_messages(&self, reply: Option<&Reply>) -> Option<(Value, Value)> {
        let (prompt, tokenizer) = (self.prompt.as_ref()?, &self.view.tokenizer);
        let raw = |text: String, ids: &[u32]| json!([{"message": text, "tokens": ids, "type": "raw_message_tokens"}]);
        // The text of the prompt is that of the template; the tokenizer adds tokens before it.
        let added = tokenizer.encode("", SpecialTokenHandling::With);
        let templated = prompt.strip_prefix(&*added).unwrap_or(prompt);
        let input = raw(tokenizer.decode(templated, SpecialTokenHandling::With), prompt);
        let choice = &reply?.choices[0];
        let tokens = choice.script.output_tokens().take(choice.released_tokens() as usize);
        let ids: Vec<u32> = tokens.map(|t| t.id).collect();
        let skips = self.request.skip_special_tokens.unwrap_or(true);
        let output = tokenizer.decode(&ids, SpecialTokenHandling::from_bool(!skips));
        Some((input, raw(output, &ids)))
    }

    /// Counts one run of the tool parser in the metrics, on a reply or on a stream delta.
    pub(super) fn count_tool_parser_run(&self, mode: ToolParserMode, found_tool_call: bool) {
        if let Some(metrics) = &self.tool_parser {
            metrics.on_tool_parser_invocation(mode, found_tool_call, ToolParserApi::Responses);
        }
    }

    /// Returns the output items of a Responses API object for an ended reply.
    ///
    /// A stream reports its reasoning as completed; a unary response leaves its status null.
    pub(super) fn output_items(
        &self,
        choice: &ReplyChoice,
        delivery: ResponseDeliveryMode<'_>,
    ) -> Vec<Value> {
        let streamed = delivery != ResponseDeliveryMode::Whole;
        let released = choice.released_tokens();
        let text = |channel| choice.script.channel_text(channel, released);
        let mut items = Vec::new();
        let reasoning = text(OutputChannel::Reasoning);
        if !reasoning.is_empty() && self.request.include_reasoning {
            let status = streamed.then_some("completed");
            items.push(self.reasoning_item(Some(&reasoning), status));
        }
        let calls = (0..choice.script.calls.len() as u16)
            .map(|call| (call, text(OutputChannel::Call(call))))
            .filter(|(_, arguments)| !arguments.is_empty());
        let calls: Vec<Value> = calls
            .map(|(call, arguments)| self.tool_call_item(choice, call, &arguments, "completed"))
            .collect();
        let mut content = text(OutputChannel::Content);
        let silent = items.is_empty() && calls.is_empty() && content.is_empty();
        if silent && !streamed && !choice.script.calls.is_empty() {
            // The parser treats a call that was cut before its first argument as text.
            let tokens = choice.script.output_tokens().take(released as usize);
            let ids: Vec<u32> = tokens.map(|token| token.id).collect();
            content = self.view.tokenizer.decode(&ids, SpecialTokenHandling::Without);
        }
        let alone = items.is_empty() && calls.is_empty() && self.view.version >= VllmVersion::V033;
        if !content.is_empty() || (alone && !streamed) {
            let ended = match calls.is_empty() {
                true => responses_api_status(choice),
                false => "completed",
            };
            let state = self.message_status(ended);
            let tokens = choice.script.output_tokens().take(released as usize);
            let logprobs = match (delivery, self.logprobs) {
                (ResponseDeliveryMode::Streamed(sent), _) => nonempty_logprobs(sent),
                (ResponseDeliveryMode::Whole, Some(top)) => {
                    let tokens = tokens.enumerate().map(|(at, token)| (at, token.id));
                    Some(self.logprobs_json(choice, tokens, top).into())
                }
                (ResponseDeliveryMode::Whole, None) => None,
            };
            items.push(self.message_item(&content, logprobs, state));
        }
        items.extend(calls);
        items
    }

    /// Returns the status of a message item; vLLM 0.32 reports a message cut by the output limit as
    /// completed.
    pub(super) fn message_status(&self, reply: &str) -> &'static str {
        if reply == "incomplete" && self.view.version >= VllmVersion::V033 {
            "incomplete"
        } else {
            "completed"
        }
    }

    pub(super) fn reasoning_item(&self, text: Option<&str>, status: Option<&str>) -> Value {
        let content = text.map(|text| json!([{"text": text, "type": "reasoning_text"}]));
        json!({
            "id": self.ids.reasoning, "summary": [], "type": "reasoning", "content": content,
            "encrypted_content": null, "status": status,
        })
    }

    pub(super) fn message_item(&self, text: &str, logprobs: Option<Value>, status: &str) -> Value {
        let content: Vec<Value> = match text {
            "" => Vec::new(),
            text => vec![output_text_part(text, logprobs)],
        };
        json!({
            "id": self.ids.message, "content": content, "role": "assistant", "status": status,
            "type": "message", "phase": null,
        })
    }

    pub(super) fn tool_call_item(
        &self,
        choice: &ReplyChoice,
        call: u16,
        arguments: &str,
        status: &str,
    ) -> Value {
        let name = choice.script.calls.get(usize::from(call));
        if self.is_custom_tool_call(choice, call) {
            return json!({
                "call_id": self.ids.tool_call_id(call), "input": custom::custom_tool_input(arguments), "name": name,
                "type": "custom_tool_call", "id": self.output_item_id(choice, OutputChannel::Call(call)),
                "async": null, "caller": null, "namespace": null,
            });
        }
        json!({
            "arguments": arguments, "call_id": self.ids.tool_call_id(call), "name": name,
            "type": "function_call", "id": self.ids.output_item_id(OutputChannel::Call(call)), "async": null,
            "caller": null, "namespace": null, "status": status,
        })
    }

    /// Returns whether a tool call is of a custom tool, which takes free text.
    pub(super) fn is_custom_tool_call(&self, choice: &ReplyChoice, call: u16) -> bool {
        let name = choice.script.calls.get(usize::from(call));
        let custom = |tool: &&Value| tool["type"] == "custom";
        let mut tools = self.request.tools.iter().filter(custom);
        name.is_some_and(|name| tools.any(|tool| tool["name"] == **name))
    }

    /// Returns the id of the output item for a channel: reasoning, message or tool call.
    pub(super) fn output_item_id(&self, choice: &ReplyChoice, channel: OutputChannel) -> String {
        let id = self.ids.output_item_id(channel);
        match channel {
            OutputChannel::Call(call) if self.is_custom_tool_call(choice, call) => {
                id.replacen("fc_", "ctc_", 1)
            }
            _ => id,
        }
    }

    /// Returns the log probabilities of tokens of the reply, given by position and id.
    pub(super) fn logprobs_json(
        &self,
        choice: &ReplyChoice,
        tokens: impl Iterator<Item = (usize, u32)>,
        top: u32,
    ) -> Vec<Value> {
        let entry = |e: &TokenLogprob| json!({"token": e.text, "bytes": e.text.as_bytes(), "logprob": e.logprob});
        tokens
            .map(|(at, id)| {
                let shown = self.view.token_logprobs_at(choice, at, id, top);
                let mut token = entry(&shown[0]);
                token["top_logprobs"] = shown.iter().take(top as usize).map(entry).collect();
                token
            })
            .collect()
    }
}

pub(super) fn output_text_part(text: &str, logprobs: Option<Value>) -> Value {
    json!({"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs})
}

fn usage_json(reply: &Reply) -> Value {
    let counts = TokenCounts::count_reply_tokens(reply);
    json!({
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": counts.cached, "cache_write_tokens": 0,
            "input_tokens_per_turn": [], "cached_tokens_per_turn": [],
        },
        "output_tokens": counts.completion,
        "output_tokens_details": {
            "reasoning_tokens": counts.reasoning, "tool_output_tokens": 0,
            "output_tokens_per_turn": [], "tool_output_tokens_per_turn": [],
        },
        "total_tokens": counts.prompt_tokens + counts.completion,
    })
}

/// Returns a JSON object with `members` first, in the given order and null if absent, then its
/// other members.
fn with_ordered_members(value: &Value, members: &str) -> Value {
    let Value::Object(given) = value else {
        return value.clone();
    };
    let mut out = Map::new();
    for member in members.split_whitespace() {
        out.insert(member.to_owned(), given.get(member).cloned().unwrap_or_default());
    }
    for (key, value) in given {
        if !out.contains_key(key) {
            out.insert(key.clone(), value.clone());
        }
    }
    Value::Object(out)
}

/// Members of the tools in a response, in order, by the type of the tool.
///
/// **Source:** openai 3.57 `types/responses/tool.py`, whose models vLLM 0.33 serializes.
const TOOL_MEMBERS: [(&str, &str); 13] = [
    (
        "function",
        "name parameters strict type allowed_callers async defer_loading description output_schema",
    ),
    ("custom", "name type allowed_callers async defer_loading description format"),
    ("file_search", "type vector_store_ids filters max_num_results ranking_options"),
    ("web_search", WEB_SEARCH_MEMBERS),
    ("web_search_2025_08_26", WEB_SEARCH_MEMBERS),
    ("web_search_preview", WEB_SEARCH_PREVIEW_MEMBERS),
    ("web_search_preview_2025_03_11", WEB_SEARCH_PREVIEW_MEMBERS),
    ("code_interpreter", "container type allowed_callers"),
    ("shell", "type allowed_callers environment"),
    ("apply_patch", "type allowed_callers"),
    ("tool_search", "type description execution parameters"),
    (
        "mcp",
        "server_label type allowed_callers allowed_tools authorization connector_id defer_loading \
         headers require_approval server_description server_url tunnel_id",
    ),
    (
        "image_generation",
        "type action background complexity frame_count frame_duration_ms input_fidelity \
         input_image_mask model moderation output_compression output_format partial_images quality \
         size svg",
    ),
];

const WEB_SEARCH_MEMBERS: &str =
    "type external_web_access filters search_context_size user_location";

const WEB_SEARCH_PREVIEW_MEMBERS: &str =
    "type search_content_types search_context_size user_location";

fn tool_json(tool: &Value) -> Value {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or_default();
    let known = TOOL_MEMBERS.iter().find(|(name, _)| *name == kind);
    known.map_or_else(|| tool.clone(), |(_, members)| with_ordered_members(tool, members))
}

fn tool_choice_json(choice: &Value) -> Value {
    match choice.get("type").and_then(Value::as_str) {
        Some("function") => with_ordered_members(choice, "name type"),
        Some("allowed_tools") => with_ordered_members(choice, "mode tools type"),
        _ => choice.clone(),
    }
}

fn text_config_json(text: &Value) -> Value {
    let mut text = with_ordered_members(text, "format verbosity");
    if text["format"]["type"] == "json_schema" {
        let members = "name schema type description strict";
        text["format"] = with_ordered_members(&text["format"], members);
    }
    text
}
