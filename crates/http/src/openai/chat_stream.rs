//! Streams chat replies as chunks, with the settings that both forms of a chat response share.
//!
//! Source: vLLM 0.33 `entrypoints/openai/chat_completion/`.

use std::sync::Arc;

use super::logprobs::{call_with_reply_token_position, write_chat_logprob_entry};
use super::response_shape::{ResponseShape, TokenCounts, UsageFields};
use crate::error;
use crate::json;
use crate::media::GREY_PIXEL_DATA_URL;
use crate::request_head::ToolCallIds;
use crate::stream::{ChoiceStreamStep, StreamRenderer};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_observe::metrics::{Metrics, ToolParserApi, ToolParserMode};
use vllm_sim_service::generate::{OutputChannel, OutputToken};
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::VllmVersion;

const DELTA_START: &str = ",\"delta\":{";
/// JSON before the text of a text-only chat chunk.
const CONTENT_START: &str = "\"content\":\"";

/// Response settings of chat replies, including those that completion replies lack.
#[derive(Clone)]
pub(crate) struct ChatResponseSettings {
    pub(crate) view: ResponseShape,
    pub(crate) role: Arc<str>,
    /// Text of the last prompt message, with which the chat reply starts (`echo`).
    pub(crate) echo: Option<Arc<str>>,
    pub(crate) include_reasoning: bool,
    /// Whether a tool or reasoning parser reads the reply's text; the stream then ends with an
    /// empty delta.
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
    pub(super) fn write_prompt_token_ids(&self, out: &mut String) {
        out.push_str(",\"prompt_token_ids\":");
        match &self.prompt_ids {
            Some(ids) if self.view.return_token_ids => {
                json::write_json_int_array(out, ids.iter().copied())
            }
            _ => out.push_str("null"),
        }
        out.push_str(",\"prompt_text\":");
        json::write_optional_json_string(out, self.prompt_text.as_deref());
    }

    /// Returns the finish reason of a choice that stopped by itself: `tool_calls` if it has tool
    /// calls and `tool_choice` names no tool, else `stop`.
    pub(super) fn finish_reason_of_stopped_choice(&self, tool_calls: usize) -> &'static str {
        if tool_calls > 0 && !self.named { "tool_calls" } else { "stop" }
    }

    /// Counts one run of the tool parser in the metrics, on a choice or on a stream delta.
    pub(crate) fn count_tool_parser_run(&self, mode: ToolParserMode, found_tool_call: bool) {
        if let Some(metrics) = &self.tool_parser {
            metrics.on_tool_parser_invocation(
                mode,
                found_tool_call,
                ToolParserApi::ChatCompletions,
            );
        }
    }

    /// Returns names and arguments of the tool calls among the first `released` tokens of a choice.
    pub(crate) fn tool_calls_in_released_tokens(
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

pub(crate) struct ChatStream {
    chat: Box<ChatResponseSettings>,
    /// Start of the JSON of a chat chunk for the first choice, up to and including `"delta":{`.
    head: String,
    /// Byte offset in the chunk's beginning (`head`) at which the JSON of its chat choices begins.
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
    pub(crate) fn new(chat: Box<ChatResponseSettings>, choices: usize, prompt: u32) -> Self {
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
            prompt_tokens: self.prompt,
            completion: self.so_far[index].tokens,
            reasoning: self.so_far[index].reasoning,
            ..TokenCounts::default()
        }
    }

    /// Ends the JSON of the choices of a chat chunk without tokens, and appends usage if every
    /// chunk has it.
    fn end_empty_delta(&self, out: &mut String, index: usize) {
        out.push_str("},\"logprobs\":null,\"finish_reason\":null}]");
        self.chat.view.write_chunk_usage(out, self.token_counts(index), UsageFields::Chat);
    }

    fn begin_chunk(&self, out: &mut String, index: usize) {
        if index == 0 {
            out.push_str(&self.head);
            return;
        }
        out.push_str(&self.head[..self.choices_at]);
        out.push_str("{\"index\":");
        json::write_json_int(out, index);
        out.push_str(DELTA_START);
    }

    /// Appends the part of a chat chunk's JSON that follows the delta, such as log probabilities
    /// and finish reason.
    fn end_chunk(
        &self,
        out: &mut String,
        choice: &ReplyChoice,
        step: &ChoiceStreamStep,
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
                let stop_word =
                    self.chat.finish_reason_of_stopped_choice(self.so_far[step.index].calls);
                view.write_finish_reason(out, choice, end, stop_word);
            }
        }
        out.push_str(",\"token_ids\":");
        match ids {
            Some(ids) => json::write_json_int_array(out, ids.iter().copied()),
            None => out.push_str("null"),
        }
        let new = view.version >= VllmVersion::V033;
        if end.is_some() {
            view.write_weight_versions(out, Some(choice.sent));
        }
        out.push_str("}]");
        view.write_chunk_usage(out, self.token_counts(step.index), UsageFields::Chat);
        if end.is_some() && !view.include_usage {
            view.write_system_fingerprint(out);
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
        choice: &ReplyChoice,
        step: &ChoiceStreamStep,
        call: usize,
    ) -> bool {
        if self.so_far[step.index].calls > call {
            return false;
        }
        self.so_far[step.index].calls = call + 1;
        self.begin_chunk(out, step.index);
        out.push_str("\"content\":null,\"tool_calls\":[{\"id\":");
        json::write_json_string(out, &self.chat.call_ids.tool_call_id(step.index, call));
        out.push_str(",\"type\":\"function\",\"index\":");
        json::write_json_int(out, call);
        out.push_str(",\"function\":{\"name\":");
        json::write_json_string(out, choice.script.calls.get(call).map_or("", String::as_str));
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
    fn collect_delta(&mut self, choice: &mut ReplyChoice, step: &ChoiceStreamStep) -> ChunkDelta {
        let mut delta = ChunkDelta::default();
        let style = self.chat.view.logprob_style();
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
                call_with_reply_token_position(&choice.script, (from + index) as usize, |place| {
                    write_chat_logprob_entry(&mut delta.logprobs, tokenizer, &token, place, style);
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
        write_image_content_part(out);
        out.push_str("]},\"logprobs\":null,\"finish_reason\":null}],\"modality\":\"image\"}\n\n");
    }
}

impl StreamRenderer for ChatStream {
    fn write_failure(&mut self, out: &mut String) -> bool {
        out.push_str(&error::stream_error_events(&error::engine_failure_fault().to_json()));
        true
    }

    /// Appends the chat chunks with the role of each choice, then the chunks with the echoed text.
    fn write_before_tokens(&mut self, out: &mut String) {
        for index in 0..self.so_far.len() {
            self.begin_chunk(out, index);
            out.push_str("\"role\":");
            json::write_json_string(out, &self.chat.role);
            out.push_str(",\"content\":\"\"");
            self.end_empty_delta(out, index);
            self.chat.write_prompt_token_ids(out);
            out.push_str("}\n\n");
        }
        let Some(echo) = &self.chat.echo else {
            return;
        };
        for index in 0..self.so_far.len() {
            self.begin_chunk(out, index);
            out.push_str("\"content\":");
            json::write_json_string(out, echo);
            self.end_empty_delta(out, index);
            out.push_str("}\n\n");
        }
    }

    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, step: &ChoiceStreamStep) {
        if !self.chat.image || step.end.is_none() {
            return self.write_choice_step(out, choice, step);
        }
        // The image follows the last text and precedes the finish reason.
        let (said, over) = step.split_choice_tokens_and_end();
        if said.tokens > 0 {
            self.write_choice_step(out, choice, &said);
        }
        self.write_image_chunk(out, step.index);
        self.write_choice_step(out, choice, &over);
    }

    fn write_single_tokens(
        &mut self,
        out: &mut String,
        choice: &mut ReplyChoice,
        most: u32,
        bytes: usize,
    ) -> u32 {
        self.write_text_chunks(out, choice, most, bytes)
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        if self.chat.view.include_usage {
            out.push_str(&self.head[..self.choices_at]);
            out.push_str("],");
            self.chat.view.write_final_usage(out, reply, UsageFields::Chat);
            out.push_str("}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}

impl ChatStream {
    /// Appends the chat chunks for one step of a choice.
    fn write_choice_step(
        &mut self,
        out: &mut String,
        choice: &mut ReplyChoice,
        step: &ChoiceStreamStep,
    ) {
        if self.has_text_only_chunks() && step.tokens == 1 && step.end.is_none() {
            if let Some(token) = choice.script.next_token(&mut choice.cursor) {
                self.write_text_chunk(out, &token, step.index);
            }
            return;
        }
        let delta = self.collect_delta(choice, step);
        self.chat.count_tool_parser_run(ToolParserMode::Streaming, delta.call.is_some());
        let hides = !self.chat.include_reasoning && self.chat.parsed;
        let ids = (self.chat.view.return_token_ids && !hides).then_some(delta.ids.as_slice());
        let logprobs = if hides { "" } else { delta.logprobs.as_str() };
        let mut end = step.end;
        if !delta.reasoning.is_empty() && self.chat.include_reasoning {
            self.begin_chunk(out, step.index);
            out.push_str("\"reasoning\":");
            json::write_json_string(out, &delta.reasoning);
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
            json::write_json_int(out, *call);
            out.push_str(",\"function\":{\"arguments\":");
            json::write_json_string(out, arguments);
            out.push_str("}}]");
            self.end_chunk(out, choice, step, logprobs, ids, end.take());
            return;
        }
        let shown = !delta.content.is_empty() || (!delta.hidden && delta.reasoning.is_empty());
        if shown || (end.is_some() && !self.chat.parsed) {
            self.begin_chunk(out, step.index);
            if !self.chat.image {
                out.push_str("\"content\":");
                json::write_json_string(out, &delta.content);
            } else if !delta.content.is_empty() {
                out.push_str("\"content\":[{\"type\":\"text\",\"text\":");
                json::write_json_string(out, &delta.content);
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

/// Fast path for the chat streams whose chunks contain only text.
impl ChatStream {
    fn has_text_only_chunks(&self) -> bool {
        self.chat.view.logprobs.is_none()
            && !self.chat.image
            && !self.chat.view.return_token_ids
            && !self.chat.parsed
    }

    /// Appends a text-only chat chunk of one token.
    fn write_text_chunk(&mut self, out: &mut String, token: &OutputToken<'_>, index: usize) {
        self.so_far[index].tokens += 1;
        self.begin_chunk(out, index);
        out.push_str(CONTENT_START);
        json::push_json_escaped_unicode(out, token.text);
        self.end_text_chunk(out, index);
    }

    /// Appends the JSON of a text-only chat chunk after its text.
    fn end_text_chunk(&self, out: &mut String, index: usize) {
        out.push_str("\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]");
        self.chat.view.write_chunk_usage(out, self.token_counts(index), UsageFields::Chat);
        if self.chat.view.version >= VllmVersion::V033 {
            out.push_str(",\"kv_transfer_params\":null");
        }
        out.push_str("}\n\n");
    }

    /// Appends text-only chat chunks of several tokens; the JSON between two texts is constant.
    fn write_text_chunks(
        &mut self,
        out: &mut String,
        choice: &mut ReplyChoice,
        most: u32,
        bytes: usize,
    ) -> u32 {
        if self.so_far.len() > 1 || !self.has_text_only_chunks() || self.chat.view.continuous_usage
        {
            return 0;
        }
        let mut between = String::with_capacity(2 * self.head.len());
        self.end_text_chunk(&mut between, 0);
        let end = between.len();
        self.begin_chunk(&mut between, 0);
        between.push_str(CONTENT_START);
        let begin = between.len() - end;
        let mut written = 0;
        out.push_str(&between[end..]);
        while written < most
            && out.len() - begin < bytes
            && let Some(texts) = choice.script.next_token_texts(&mut choice.cursor)
        {
            let plain = !texts.may_need_json_escapes();
            let before = written;
            for text in texts.iter().take((most - written) as usize) {
                match plain {
                    true => text.append_to(out),
                    false => json::push_json_escaped_unicode(out, text.as_str()),
                }
                out.push_str(&between);
                written += 1;
                if out.len() - begin >= bytes {
                    break;
                }
            }
            choice.cursor.advance_script_cursor(written - before);
        }
        out.truncate(out.len() - begin);
        self.so_far[0].tokens += written;
        written
    }
}

pub(super) fn write_image_content_part(out: &mut String) {
    out.push_str("{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    out.push_str(GREY_PIXEL_DATA_URL);
    out.push_str("\"}}");
}
