//! Renders chat replies as stream chunks; `chat_render.rs` renders them as one JSON object.
//!
//! Source: vLLM 0.33 `entrypoints/openai/chat_completion/`.

use std::sync::Arc;

use super::logprobs::{call_with_reply_token_position, write_chat_logprob_entry};
use super::response_settings::{ResponseSettings, TokenCounts, UsageFields};
use crate::error;
use crate::json;
use crate::media::GREY_PIXEL_DATA_URL;
use crate::request_head::ToolCallIds;
use crate::stream::StreamRenderer;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_observe::metrics::{Metrics, ToolParserApi, ToolParserMode};
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::VllmVersion;

const DELTA_START: &str = ",\"delta\":{";
/// JSON before the text of a text-only chat chunk.
const CONTENT_START: &str = "\"content\":\"";

/// Renders a chat reply as one JSON object or as stream chunks.
#[derive(Clone)]
pub(crate) struct ChatRenderer {
    pub(crate) view: ResponseSettings,
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
    pub(crate) prompt_tokens: u32,
    /// Reasoning tokens and tool calls of each choice that the stream has sent so far.
    pub(crate) sent: Vec<SentChoiceParts>,
    /// Start of the JSON of a chat chunk for the first choice, up to and including `"delta":{`; empty
    /// before the first chunk of a stream.
    pub(crate) chunk_head: String,
    /// Byte offset in the start of a chunk at which the JSON of its choices begins.
    pub(crate) choices_at: usize,
}

/// Numbers of reasoning tokens and tool calls of one choice that the stream has sent so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct SentChoiceParts {
    reasoning: u32,
    calls: usize,
}

impl ChatRenderer {
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

impl ChatRenderer {
    /// Appends usage to a chat chunk if every chunk has it: the prompt, and the `completion` tokens of
    /// this choice only.
    fn write_chunk_usage(&self, out: &mut String, index: usize, completion: u32) {
        let counts = TokenCounts {
            prompt_tokens: self.prompt_tokens,
            completion,
            reasoning: self.sent[index].reasoning,
            ..TokenCounts::default()
        };
        self.view.write_chunk_usage(out, counts, UsageFields::Chat);
    }

    /// Ends the JSON of the choices of a chat chunk before the first token, and appends usage if every
    /// chunk has it.
    fn end_empty_delta(&self, out: &mut String, index: usize) {
        out.push_str("},\"logprobs\":null,\"finish_reason\":null}]");
        self.write_chunk_usage(out, index, 0);
    }

    fn begin_chunk(&self, out: &mut String, index: usize) {
        if index == 0 {
            out.push_str(&self.chunk_head);
            return;
        }
        out.push_str(&self.chunk_head[..self.choices_at]);
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
        logprobs: &str,
        ids: Option<&[u32]>,
        end: Option<SequenceEndReason>,
    ) {
        let view = &self.view;
        out.push_str("},\"logprobs\":");
        out.push_str(if logprobs.is_empty() { "null" } else { logprobs });
        match end {
            None => out.push_str(",\"finish_reason\":null"),
            Some(end) => {
                out.push(',');
                let stop_word = self.finish_reason_of_stopped_choice(self.sent[choice.index].calls);
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
        self.write_chunk_usage(out, choice.index, choice.sent);
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
        call: usize,
    ) -> bool {
        if self.sent[choice.index].calls > call {
            return false;
        }
        self.sent[choice.index].calls = call + 1;
        self.begin_chunk(out, choice.index);
        out.push_str("\"content\":null,\"tool_calls\":[{\"id\":");
        json::write_json_string(out, &self.call_ids.tool_call_id(choice.index, call));
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

impl ChatRenderer {
    fn collect_delta(&mut self, choice: &mut ReplyChoice, tokens: u32) -> ChunkDelta {
        let mut delta = ChunkDelta::default();
        let style = self.view.logprob_style();
        let from = choice.sent - tokens;
        for index in 0..tokens {
            let Some(token) = choice.script.next_token(&mut choice.cursor) else {
                break;
            };
            match token.channel {
                OutputChannel::Content => delta.content.push_str(token.text),
                OutputChannel::Reasoning => {
                    self.sent[choice.index].reasoning += 1;
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
                let tokenizer = &self.view.tokenizer;
                call_with_reply_token_position(&choice.script, (from + index) as usize, |place| {
                    write_chat_logprob_entry(&mut delta.logprobs, tokenizer, &token, place, style);
                });
            }
            if self.view.return_token_ids {
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

impl StreamRenderer for Box<ChatRenderer> {
    fn write_failure(&mut self, out: &mut String) -> bool {
        out.push_str(&error::stream_error_events(&error::engine_failure_fault().to_json()));
        true
    }

    /// Appends the chat chunks with the role of each choice, then the chunks with the echoed text.
    fn write_before_tokens(&mut self, out: &mut String) {
        self.chunk_head = self.view.chunk_head_json("chat.completion.chunk");
        self.choices_at = self.chunk_head.len();
        self.chunk_head.push_str("{\"index\":0");
        self.chunk_head.push_str(DELTA_START);
        for index in 0..self.sent.len() {
            self.begin_chunk(out, index);
            out.push_str("\"role\":");
            json::write_json_string(out, &self.role);
            out.push_str(",\"content\":\"\"");
            self.end_empty_delta(out, index);
            self.write_prompt_token_ids(out);
            out.push_str("}\n\n");
        }
        let Some(echo) = &self.echo else {
            return;
        };
        for index in 0..self.sent.len() {
            self.begin_chunk(out, index);
            out.push_str("\"content\":");
            json::write_json_string(out, echo);
            self.end_empty_delta(out, index);
            out.push_str("}\n\n");
        }
    }

    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let end = choice.sent_end;
        if !self.image || end.is_none() {
            return self.write_choice_step(out, choice, tokens, end);
        }
        // The image follows the last text and precedes the finish reason.
        if tokens > 0 {
            self.write_choice_step(out, choice, tokens, None);
        }
        self.write_image_chunk(out, choice.index);
        self.write_choice_step(out, choice, 0, end);
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
        if self.view.include_usage {
            out.push_str(&self.chunk_head[..self.choices_at]);
            out.push_str("],");
            self.view.write_final_usage(out, reply, UsageFields::Chat);
            out.push_str("}\n\n");
        }
        out.push_str("data: [DONE]\n\n");
    }
}

impl ChatRenderer {
    /// Appends the chat chunks for the next `tokens` tokens of a choice, and for its end.
    fn write_choice_step(
        &mut self,
        out: &mut String,
        choice: &mut ReplyChoice,
        tokens: u32,
        last: Option<SequenceEndReason>,
    ) {
        if self.has_text_only_chunks() && tokens == 1 && last.is_none() {
            if let Some(token) = choice.script.next_token(&mut choice.cursor) {
                self.begin_chunk(out, choice.index);
                out.push_str(CONTENT_START);
                json::push_json_escaped_unicode(out, token.text);
                self.end_text_chunk(out, choice);
            }
            return;
        }
        let delta = self.collect_delta(choice, tokens);
        self.count_tool_parser_run(ToolParserMode::Streaming, delta.call.is_some());
        let hides = !self.include_reasoning && self.parsed;
        let ids = (self.view.return_token_ids && !hides).then_some(delta.ids.as_slice());
        let logprobs = if hides { "" } else { delta.logprobs.as_str() };
        let mut end = last;
        if !delta.reasoning.is_empty() && self.include_reasoning {
            self.begin_chunk(out, choice.index);
            out.push_str("\"reasoning\":");
            json::write_json_string(out, &delta.reasoning);
            let rest = !delta.content.is_empty() || delta.call.is_some();
            self.end_chunk(out, choice, logprobs, ids, if rest { None } else { end.take() });
            if !rest && last.is_some() {
                return;
            }
        }
        if let Some((call, arguments)) = &delta.call {
            if self.write_tool_call_name(out, choice, *call) {
                self.end_chunk(out, choice, "", ids.map(|_| &[][..]), None);
            }
            self.begin_chunk(out, choice.index);
            out.push_str("\"content\":null,\"tool_calls\":[{\"index\":");
            json::write_json_int(out, *call);
            out.push_str(",\"function\":{\"arguments\":");
            json::write_json_string(out, arguments);
            out.push_str("}}]");
            self.end_chunk(out, choice, logprobs, ids, end.take());
            return;
        }
        let shown = !delta.content.is_empty() || (!delta.hidden && delta.reasoning.is_empty());
        if shown || (end.is_some() && !self.parsed) {
            self.begin_chunk(out, choice.index);
            if !self.image {
                out.push_str("\"content\":");
                json::write_json_string(out, &delta.content);
            } else if !delta.content.is_empty() {
                out.push_str("\"content\":[{\"type\":\"text\",\"text\":");
                json::write_json_string(out, &delta.content);
                out.push_str("}]");
            }
            if hides && (!self.image || !delta.content.is_empty()) {
                out.push_str(",\"reasoning\":null");
            }
            self.end_chunk(out, choice, logprobs, ids, end);
        } else if end.is_some()
            || ((ids.is_some() || !logprobs.is_empty()) && delta.reasoning.is_empty())
        {
            self.begin_chunk(out, choice.index);
            self.end_chunk(out, choice, logprobs, ids, end);
        } else if !self.parsed {
            self.begin_chunk(out, choice.index);
            out.push_str("\"content\":\"\"");
            self.end_chunk(out, choice, logprobs, ids, end);
        }
    }
}

/// Fast path for the chat streams whose chunks contain only text.
impl ChatRenderer {
    fn has_text_only_chunks(&self) -> bool {
        self.view.logprobs.is_none() && !self.image && !self.view.return_token_ids && !self.parsed
    }

    /// Appends the JSON of a text-only chat chunk after its text.
    fn end_text_chunk(&self, out: &mut String, choice: &ReplyChoice) {
        out.push_str("\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]");
        self.write_chunk_usage(out, choice.index, choice.sent);
        if self.view.version >= VllmVersion::V033 {
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
        if self.sent.len() > 1 || !self.has_text_only_chunks() || self.view.continuous_usage {
            return 0;
        }
        let mut between = String::with_capacity(2 * self.chunk_head.len());
        self.end_text_chunk(&mut between, choice);
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
        written
    }
}

pub(super) fn write_image_content_part(out: &mut String) {
    out.push_str("{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    out.push_str(GREY_PIXEL_DATA_URL);
    out.push_str("\"}}");
}
