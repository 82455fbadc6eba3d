//! Renders finished chat replies as one JSON object.
//!
//! Source: vLLM 0.33 `entrypoints/openai/chat_completion/`.

use std::sync::Arc;

use super::logprobs::{LogprobStyle, with_token_position, write_chat_entry, write_prompt_logprobs};
use super::response_shape::{ResponseShape, TokenCounts, UsageMembers, end_of_choice};
use crate::json;
use crate::media::GREY_PIXEL_DATA_URL;
use crate::openai::response_shape::NullMembers;
use crate::request_head::ToolCallIds;
use vllm_sim_observe::metrics::{Metrics, ToolMode, ToolOutcome, ToolRequest};
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};

/// Response settings of chat replies: the members that completions lack.
#[derive(Clone)]
pub(crate) struct ChatResponseSettings {
    pub(crate) view: ResponseShape,
    pub(crate) role: Arc<str>,
    /// Text that the reply starts with: the last message of the prompt (`echo`).
    pub(crate) echo: Option<Arc<str>>,
    pub(crate) include_reasoning: bool,
    /// Whether a tool or reasoning parser reads the text; the stream then ends with an empty delta.
    pub(crate) parsed: bool,
    /// Whether `tool_choice` names a tool; tool calls then do not change the finish reason.
    pub(crate) named: bool,
    /// Whether `tool_choice` forces tool calls; the content is then empty instead of null.
    pub(crate) forced: bool,
    pub(crate) call_ids: ToolCallIds,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) prompt_ids: Option<Arc<[u32]>>,
    pub(crate) prompt_text: Option<Arc<str>>,
    pub(crate) ec_transfer_params: Option<Arc<str>>,
    /// Whether the reply includes a generated image (vLLM-Omni).
    pub(crate) image: bool,
    pub(crate) tool_parser: Option<Arc<Metrics>>,
}

impl ChatResponseSettings {
    pub(super) fn logprob_style(&self) -> Option<LogprobStyle> {
        let top = self.view.logprobs?;
        Some(LogprobStyle {
            top,
            as_ids: self.view.tokens_as_ids,
            distribution: self.view.distribution,
        })
    }

    /// Returns the JSON body of a finished chat reply.
    pub(crate) fn body_json(&self, reply: &Reply) -> String {
        let view = &self.view;
        let mut out = view.response_head_json("chat.completion");
        for (index, choice) in reply.choices.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            self.write_choice(&mut out, index, choice);
        }
        out.push_str("],\"service_tier\":null,\"system_fingerprint\":");
        json::write_optional_string(&mut out, view.fingerprint.as_deref());
        out.push_str(",\"usage\":");
        view.write_usage(&mut out, TokenCounts::of_reply(reply), UsageMembers::Chat);
        out.push_str(",\"prompt_logprobs\":");
        match (self.prompt_logprobs, &self.prompt_ids) {
            (Some(top), Some(ids)) => {
                write_prompt_logprobs(&mut out, &view.tokenizer, ids, top, view.distribution);
            }
            _ => out.push_str("null"),
        }
        self.write_prompt_members(&mut out);
        out.push_str(",\"kv_transfer_params\":");
        view.write_kv_transfer_params(&mut out);
        out.push_str(",\"ec_transfer_params\":");
        out.push_str(self.ec_transfer_params.as_deref().unwrap_or("null"));
        out.push_str(",\"metrics\":");
        view.write_timings(&mut out, reply, NullMembers::Shown);
        out.push('}');
        out
    }

    pub(super) fn write_prompt_members(&self, out: &mut String) {
        out.push_str(",\"prompt_token_ids\":");
        match &self.prompt_ids {
            Some(ids) if self.view.return_token_ids => {
                json::write_int_array(out, ids.iter().copied())
            }
            _ => out.push_str("null"),
        }
        out.push_str(",\"prompt_text\":");
        json::write_optional_string(out, self.prompt_text.as_deref());
    }

    fn write_choice(&self, out: &mut String, index: usize, choice: &ReplyChoice) {
        let released = choice.released_tokens();
        let end = end_of_choice(choice);
        let content = choice.script.channel_text(OutputChannel::Content, released);
        let calls = self.released_tool_calls(choice, released);
        self.count_parser_run(ToolMode::NonStreaming, !calls.is_empty());
        let content = match &self.echo {
            Some(echo) => format!("{echo}{content}"),
            None => content,
        };
        out.push_str("{\"index\":");
        json::write_int(out, index);
        out.push_str(",\"message\":{\"role\":");
        json::write_string(out, &self.role);
        out.push_str(",\"content\":");
        let thinks = choice.script.has_reasoning();
        if content.is_empty() && ((!calls.is_empty() && !self.forced) || thinks) {
            out.push_str("null");
        } else if self.image {
            out.push('[');
            if calls.is_empty() {
                out.push_str("{\"type\":\"text\",\"text\":");
                json::write_string(out, &content);
                out.push_str("},");
            }
            write_image_part(out);
            out.push(']');
        } else {
            json::write_string(out, &content);
        }
        out.push_str(
            ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null",
        );
        if !calls.is_empty() {
            self.write_tool_calls(out, index, &calls);
        }
        out.push_str(",\"reasoning\":");
        if thinks && self.include_reasoning {
            json::write_string(
                out,
                &choice.script.channel_text(OutputChannel::Reasoning, released),
            );
        } else {
            out.push_str("null");
        }
        out.push_str("},\"logprobs\":");
        let hidden = !self.include_reasoning && self.parsed;
        match self.logprob_style().filter(|_| !hidden) {
            Some(style) => {
                out.push_str("{\"content\":[");
                let script = &choice.script;
                for (position, token) in script.output_tokens().take(released as usize).enumerate()
                {
                    if position > 0 {
                        out.push(',');
                    }
                    with_token_position(script, position, |place| {
                        write_chat_entry(out, &self.view.tokenizer, &token, place, style);
                    });
                }
                out.push_str("]}");
            }
            None => out.push_str("null"),
        }
        out.push(',');
        let stop_word = self.natural_finish_reason(calls.len());
        self.view.write_finish_reason(out, choice, end, stop_word);
        out.push_str(",\"token_ids\":");
        if self.view.return_token_ids && !hidden {
            json::write_int_array(
                out,
                choice.script.output_tokens().take(released as usize).map(|t| t.id),
            );
        } else {
            out.push_str("null");
        }
        out.push_str(",\"routed_experts\":null");
        self.view.write_weight_versions(out, Some(released));
        out.push('}');
    }

    fn write_tool_calls(&self, out: &mut String, choice: usize, calls: &[(String, String)]) {
        out.push_str(",\"tool_calls\":[");
        for (at, (name, arguments)) in calls.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            out.push_str("{\"id\":");
            json::write_string(out, &self.call_ids.tool_call_id(choice, at));
            out.push_str(",\"type\":\"function\",\"function\":{\"name\":");
            json::write_string(out, name);
            out.push_str(",\"arguments\":");
            json::write_string(out, arguments);
            out.push_str("}}");
        }
        out.push(']');
    }

    /// Returns the finish reason of a choice that stopped by itself: `tool_calls` if it has tool
    /// calls that no named tool choice forced.
    pub(super) fn natural_finish_reason(&self, calls: usize) -> &'static str {
        if calls > 0 && !self.named { "tool_calls" } else { "stop" }
    }

    /// Counts one run of the tool parser in the metrics, on a choice or on a stream delta.
    pub(crate) fn count_parser_run(&self, mode: ToolMode, found: bool) {
        let outcome = if found { ToolOutcome::ToolCall } else { ToolOutcome::NoToolCall };
        if let Some(metrics) = &self.tool_parser {
            metrics.on_tool_parser(mode, outcome, ToolRequest::ChatCompletions, 1);
        }
    }

    /// Returns names and arguments of the tool calls among the first `released` tokens of a choice.
    pub(crate) fn released_tool_calls(
        &self,
        choice: &ReplyChoice,
        released: u32,
    ) -> Vec<(String, String)> {
        let names = choice.script.calls.iter().enumerate();
        names
            .map(|(index, name)| {
                (
                    name.clone(),
                    choice.script.channel_text(OutputChannel::Call(index as u16), released),
                )
            })
            .filter(|(_, arguments)| !arguments.is_empty())
            .collect()
    }
}

pub(super) fn write_image_part(out: &mut String) {
    out.push_str("{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    out.push_str(GREY_PIXEL_DATA_URL);
    out.push_str("\"}}");
}
