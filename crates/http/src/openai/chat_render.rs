//! Renders chat replies as one JSON object or as stream chunks.
//!
//! Source: vLLM 0.33 `entrypoints/openai/chat_completion/`.

mod plain;

use std::sync::Arc;

use super::ids::ToolCallIds;
use super::logprobs::{LogprobStyle, with_token_position, write_chat_entry, write_prompt_logprobs};
use super::response_shape::{ResponseShape, TokenCounts, UsageMembers, end_of_choice};
use crate::error;
use crate::json::{self, NullMembers};
use crate::media::GREY_PIXEL_DATA_URL;
use crate::stream::{ChoiceStep, StreamRenderer};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_observe::metrics::{Metrics, ToolMode, ToolOutcome, ToolRequest};
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Choice, Reply};
use vllm_sim_wire::VllmVersion;

/// Response settings of chat replies: the members that completions lack.
#[derive(Clone)]
pub(crate) struct ChatView {
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

impl ChatView {
    fn logprob_style(&self) -> Option<LogprobStyle> {
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

    fn write_prompt_members(&self, out: &mut String) {
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

    fn write_choice(&self, out: &mut String, index: usize, choice: &Choice) {
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
                for (position, token) in script.tokens().take(released as usize).enumerate() {
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
                choice.script.tokens().take(released as usize).map(|t| t.id),
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
            json::write_string(out, &self.call_ids.id_of_call(choice, at));
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
    fn natural_finish_reason(&self, calls: usize) -> &'static str {
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
        choice: &Choice,
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

fn write_image_part(out: &mut String) {
    out.push_str("{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    out.push_str(GREY_PIXEL_DATA_URL);
    out.push_str("\"}}");
}

const DELTA_START: &str = ",\"delta\":{";

pub(crate) struct ChatStream {
    chat: Box<ChatView>,
    /// Start of the JSON of a chat chunk for the first choice, up to and including `"delta":{`.
    head: String,
    /// Offset in `head` at which the JSON of the chat choices begins, in bytes.
    choices_at: usize,
    prompt: u32,
    so_far: Vec<ChoiceProgress>,
}

/// Number of tokens, reasoning tokens and tool calls of one choice that the stream has sent so far.
#[derive(Clone, Default)]
struct ChoiceProgress {
    tokens: u32,
    reasoning: u32,
    calls: usize,
}

impl ChatStream {
    pub(crate) fn new(chat: Box<ChatView>, choices: usize, prompt: u32) -> Self {
        let mut head = chat.view.chunk_head_json("chat.completion.chunk");
        let choices_at = head.len();
        head.push_str("{\"index\":0");
        head.push_str(DELTA_START);
        Self { so_far: vec![ChoiceProgress::default(); choices], chat, head, choices_at, prompt }
    }

    /// Returns the token counts for the usage of a chat chunk: the prompt, and the tokens of this
    /// choice only.
    fn token_counts(&self, index: usize) -> TokenCounts {
        TokenCounts {
            prompt: self.prompt,
            completion: self.so_far[index].tokens,
            reasoning: self.so_far[index].reasoning,
            ..TokenCounts::default()
        }
    }

    /// Appends the end of a chat chunk without tokens, up to the members that only some of these
    /// chunks have.
    fn end_empty_delta(&self, out: &mut String, index: usize) {
        out.push_str("},\"logprobs\":null,\"finish_reason\":null}]");
        self.chat.view.write_chunk_usage(out, self.token_counts(index), UsageMembers::Chat);
    }

    fn begin_chunk(&self, out: &mut String, index: usize) {
        if index == 0 {
            out.push_str(&self.head);
            return;
        }
        out.push_str(&self.head[..self.choices_at]);
        out.push_str("{\"index\":");
        json::write_int(out, index);
        out.push_str(DELTA_START);
    }

    /// Appends the JSON of a chat chunk after its delta.
    fn end_chunk(
        &self,
        out: &mut String,
        choice: &Choice,
        step: &ChoiceStep,
        logprobs: &str,
        ids: Option<&[u32]>,
        end: Option<SequenceEndReason>,
    ) {
        let view = &self.chat.view;
        out.push_str("},\"logprobs\":");
        out.push_str(if logprobs.is_empty() { "null" } else { logprobs });
        match end {
            None => out.push_str(",\"finish_reason\":null"),
            Some(end) => {
                out.push(',');
                let stop_word = self.chat.natural_finish_reason(self.so_far[step.index].calls);
                view.write_finish_reason(out, choice, end, stop_word);
            }
        }
        out.push_str(",\"token_ids\":");
        match ids {
            Some(ids) => json::write_int_array(out, ids.iter().copied()),
            None => out.push_str("null"),
        }
        let new = view.version >= VllmVersion::V033;
        if end.is_some() {
            view.write_weight_versions(out, Some(choice.sent));
        }
        out.push_str("}]");
        view.write_chunk_usage(out, self.token_counts(step.index), UsageMembers::Chat);
        if end.is_some() && !view.include_usage {
            view.write_fingerprint(out);
        }
        if new || (end.is_some() && view.kv_transfer_params.is_some()) {
            out.push_str(",\"kv_transfer_params\":");
            if end.is_some() { view.write_kv_transfer_params(out) } else { out.push_str("null") }
        }
        out.push_str("}\n\n");
    }

    /// Sends the name of a tool call, unless it was sent before; returns whether it was sent.
    fn write_tool_call_name(
        &mut self,
        out: &mut String,
        choice: &Choice,
        step: &ChoiceStep,
        call: usize,
    ) -> bool {
        if self.so_far[step.index].calls > call {
            return false;
        }
        self.so_far[step.index].calls = call + 1;
        self.begin_chunk(out, step.index);
        out.push_str("\"content\":null,\"tool_calls\":[{\"id\":");
        json::write_string(out, &self.chat.call_ids.id_of_call(step.index, call));
        out.push_str(",\"type\":\"function\",\"index\":");
        json::write_int(out, call);
        out.push_str(",\"function\":{\"name\":");
        json::write_string(out, choice.script.calls.get(call).map_or("", String::as_str));
        out.push_str("}}]");
        true
    }
}

#[derive(Default)]
struct ChunkDelta {
    content: String,
    reasoning: String,
    call: Option<(usize, String)>,
    hidden: bool,
    logprobs: String,
    ids: Vec<u32>,
}

impl ChatStream {
    fn collect_delta(&mut self, choice: &mut Choice, step: &ChoiceStep) -> ChunkDelta {
        let mut delta = ChunkDelta::default();
        let style = self.chat.logprob_style();
        let from = choice.sent - step.tokens;
        for index in 0..step.tokens {
            let Some(token) = choice.script.next_token(&mut choice.cursor) else {
                break;
            };
            self.so_far[step.index].tokens += 1;
            match token.channel {
                OutputChannel::Content => delta.content.push_str(token.text),
                OutputChannel::Reasoning => {
                    self.so_far[step.index].reasoning += 1;
                    delta.reasoning.push_str(token.text);
                }
                OutputChannel::Marker => delta.hidden = true,
                OutputChannel::Call(call) => {
                    let entry = delta.call.get_or_insert((call.into(), String::new()));
                    entry.1.push_str(token.text);
                }
            }
            if let Some(style) = style {
                let separator = if delta.logprobs.is_empty() { "{\"content\":[" } else { "," };
                delta.logprobs.push_str(separator);
                let tokenizer = &self.chat.view.tokenizer;
                with_token_position(&choice.script, (from + index) as usize, |place| {
                    write_chat_entry(&mut delta.logprobs, tokenizer, &token, place, style);
                });
            }
            if self.chat.view.return_token_ids {
                delta.ids.push(token.id);
            }
        }
        if !delta.logprobs.is_empty() {
            delta.logprobs.push_str("]}");
        }
        delta
    }

    fn write_image_chunk(&self, out: &mut String, index: usize) {
        self.begin_chunk(out, index);
        out.push_str("\"content\":[");
        write_image_part(out);
        out.push_str("]},\"logprobs\":null,\"finish_reason\":null}],\"modality\":\"image\"}\n\n");
    }
}

impl StreamRenderer for ChatStream {
    fn write_failure(&mut self, out: &mut String) -> bool {
        out.push_str(&error::error_events(&error::engine_failure_fault().to_json()));
        true
    }

    /// Appends the chat chunks with the role of each choice, then those with the echoed text.
    fn write_before_tokens(&mut self, out: &mut String) {
        for index in 0..self.so_far.len() {
            self.begin_chunk(out, index);
            out.push_str("\"role\":");
            json::write_string(out, &self.chat.role);
            out.push_str(",\"content\":\"\"");
            self.end_empty_delta(out, index);
            self.chat.write_prompt_members(out);
            out.push_str("}\n\n");
        }
        let Some(echo) = &self.chat.echo else {
            return;
        };
        for index in 0..self.so_far.len() {
            self.begin_chunk(out, index);
            out.push_str("\"content\":");
            json::write_string(out, echo);
            self.end_empty_delta(out, index);
            out.push_str("}\n\n");
        }
    }

    fn write_step(&mut self, out: &mut String, choice: &mut Choice, step: &ChoiceStep) {
        if !self.chat.image || step.end.is_none() {
            return self.write_choice_step(out, choice, step);
        }
        // The image follows the last text and precedes the finish reason.
        let (said, over) = step.split_end();
        if said.tokens > 0 {
            self.write_choice_step(out, choice, &said);
        }
        self.write_image_chunk(out, step.index);
        self.write_choice_step(out, choice, &over);
    }

    fn write_single_tokens(
        &mut self,
        out: &mut String,
        choice: &mut Choice,
        most: u32,
        bytes: usize,
    ) -> u32 {
        self.write_text_chunks(out, choice, most, bytes)
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        if self.chat.view.include_usage {
            out.push_str(&self.head[..self.choices_at]);
            out.push_str("],");
            self.chat.view.write_final_usage(out, reply, UsageMembers::Chat);
            out.push_str("}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}

impl ChatStream {
    /// Appends the chat chunks for one step of a choice.
    fn write_choice_step(&mut self, out: &mut String, choice: &mut Choice, step: &ChoiceStep) {
        if self.has_text_only_chunks() && step.tokens == 1 && step.end.is_none() {
            if let Some(token) = choice.script.next_token(&mut choice.cursor) {
                self.write_text_chunk(out, &token, step.index);
            }
            return;
        }
        let delta = self.collect_delta(choice, step);
        self.chat.count_parser_run(ToolMode::Streaming, delta.call.is_some());
        let hides = !self.chat.include_reasoning && self.chat.parsed;
        let ids = (self.chat.view.return_token_ids && !hides).then_some(delta.ids.as_slice());
        let logprobs = if hides { "" } else { delta.logprobs.as_str() };
        let mut end = step.end;
        if !delta.reasoning.is_empty() && self.chat.include_reasoning {
            self.begin_chunk(out, step.index);
            out.push_str("\"reasoning\":");
            json::write_string(out, &delta.reasoning);
            let rest = !delta.content.is_empty() || delta.call.is_some();
            self.end_chunk(out, choice, step, logprobs, ids, if rest { None } else { end.take() });
            if !rest && step.end.is_some() {
                return;
            }
        }
        if let Some((call, arguments)) = &delta.call {
            if self.write_tool_call_name(out, choice, step, *call) {
                self.end_chunk(out, choice, step, "", ids.map(|_| &[][..]), None);
            }
            self.begin_chunk(out, step.index);
            out.push_str("\"content\":null,\"tool_calls\":[{\"index\":");
            json::write_int(out, *call);
            out.push_str(",\"function\":{\"arguments\":");
            json::write_string(out, arguments);
            out.push_str("}}]");
            self.end_chunk(out, choice, step, logprobs, ids, end.take());
            return;
        }
        let shown = !delta.content.is_empty() || (!delta.hidden && delta.reasoning.is_empty());
        if shown || (end.is_some() && !self.chat.parsed) {
            self.begin_chunk(out, step.index);
            if !self.chat.image {
                out.push_str("\"content\":");
                json::write_string(out, &delta.content);
            } else if !delta.content.is_empty() {
                out.push_str("\"content\":[{\"type\":\"text\",\"text\":");
                json::write_string(out, &delta.content);
                out.push_str("}]");
            }
            if hides && (!self.chat.image || !delta.content.is_empty()) {
                out.push_str(",\"reasoning\":null");
            }
            self.end_chunk(out, choice, step, logprobs, ids, end);
        } else if end.is_some()
            || ((ids.is_some() || !logprobs.is_empty()) && delta.reasoning.is_empty())
        {
            self.begin_chunk(out, step.index);
            self.end_chunk(out, choice, step, logprobs, ids, end);
        } else if !self.chat.parsed {
            self.begin_chunk(out, step.index);
            out.push_str("\"content\":\"\"");
            self.end_chunk(out, choice, step, logprobs, ids, end);
        }
    }
}
