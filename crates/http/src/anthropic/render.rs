//! Renders a chat reply as one Anthropic message or as the events of a message stream.
//!
//! Source: `vllm/entrypoints/anthropic/serving.py`, `messages_full_converter` and
//! `message_stream_converter`.

use super::message_format::{
    AnthropicStopReasonInputs, CachedTokenReporting, ping_event, write_last_usage,
    write_stop_members, write_usage,
};
use crate::dialect::ResponseFieldSet;
use crate::error;
use crate::json;
use crate::openai::chat_stream::ChatRenderer;
use crate::openai::response_settings::{NullMemberHandling, TokenCounts, end_reason_of_choice};
use crate::stream::{StreamRenderer, for_each_output_channel_text};
use vllm_sim_observe::metrics::ToolParserMode;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::VllmVersion;
use vllm_sim_wire::fault::Fault;

/// Returns the `error` event that ends a failed stream of `/v1/messages`.
pub(super) fn anthropic_error_event(fault: &Fault, version: VllmVersion) -> String {
    let json = fault.to_anthropic_json(version);
    format!("event: error\ndata: {json}\n\n")
}

/// Returns a random signature of a thinking block: 32 hex digits, which clients cannot verify.
fn random_signature() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Returns the JSON body of a finished Anthropic message.
pub(super) fn anthropic_message_json(
    chat: &ChatRenderer,
    fields: ResponseFieldSet,
    reply: &Reply,
) -> String {
    let view = &chat.view;
    let mut out = String::with_capacity(512);
    json::write_member(&mut out, "{\"id\":", &view.id);
    out.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
    let choice = &reply.choices[0];
    let start = out.len();
    let released = choice.released_tokens();
    let reasoning = choice.script.channel_text(OutputChannel::Reasoning, released);
    if !reasoning.is_empty() {
        json::write_member(&mut out, "{\"type\":\"thinking\",\"thinking\":", &reasoning);
        json::write_member(&mut out, ",\"signature\":", &random_signature());
        out.push('}');
    }
    let separate = |out: &mut String| {
        if out.len() > start {
            out.push(',');
        }
    };
    let content = choice.script.channel_text(OutputChannel::Content, released);
    let calls = chat.tool_calls_in_released_tokens(choice, released);
    if !content.is_empty() || (reasoning.is_empty() && calls.is_empty()) {
        separate(&mut out);
        json::write_member(&mut out, "{\"type\":\"text\",\"text\":", &content);
        out.push('}');
    }
    for (index, (name, arguments)) in calls.iter().enumerate() {
        separate(&mut out);
        out.push_str("{\"type\":\"tool_use\",\"id\":");
        json::write_json_string(&mut out, &chat.call_ids.tool_call_id(0, index));
        json::write_member(&mut out, ",\"name\":", name);
        out.push_str(",\"input\":");
        out.push_str(complete_json_object(arguments).unwrap_or("{}"));
        out.push('}');
    }
    json::write_member(&mut out, "],\"model\":", &view.model);
    let before = out.len();
    out.push(',');
    let end = AnthropicStopReasonInputs {
        choice,
        end: end_reason_of_choice(choice),
        called: !calls.is_empty(),
    };
    write_stop_members(&mut out, fields, &end, NullMemberHandling::LeftOut);
    if out.len() == before + 1 {
        out.pop();
    }
    out.push_str(",\"usage\":");
    let cache = CachedTokenReporting::from_response_settings(view);
    write_usage(&mut out, fields, TokenCounts::count_reply_tokens(reply), cache);
    end_with_kv_transfer_params(&mut out, chat);
    out
}

/// Ends the JSON of an Anthropic message, and appends its KV transfer parameters
/// (`kv_transfer_params`) if it has any.
fn end_with_kv_transfer_params(out: &mut String, chat: &ChatRenderer) {
    let view = &chat.view;
    if view.kv_transfer_params.is_some() {
        out.push_str(",\"kv_transfer_params\":");
        view.write_kv_transfer_params(out);
    }
    if let Some(value) = &chat.ec_transfer_params {
        out.push_str(",\"ec_transfer_params\":");
        out.push_str(value);
    }
    out.push('}');
}

/// Returns the arguments of a tool call if they are a complete JSON object; `None` if, for example,
/// the output limit cut them.
fn complete_json_object(arguments: &str) -> Option<&str> {
    let whole = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments);
    whole.is_ok().then_some(arguments)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Text,
    Thinking,
    Tool(u16),
}

pub(super) struct AnthropicMessageStream {
    chat: Box<ChatRenderer>,
    fields: ResponseFieldSet,
    prompt: u32,
    index: usize,
    open: Option<OpenBlock>,
    called: bool,
}

impl AnthropicMessageStream {
    pub(super) fn new(chat: Box<ChatRenderer>, fields: ResponseFieldSet, prompt: u32) -> Self {
        Self { chat, fields, prompt, index: 0, open: None, called: false }
    }

    fn write_message_start(&self, out: &mut String) {
        let view = &self.chat.view;
        out.push_str(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":",
        );
        json::write_json_string(out, &view.id);
        out.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":");
        json::write_json_string(out, &view.model);
        out.push_str(",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        let counts = TokenCounts { prompt_tokens: self.prompt, ..TokenCounts::default() };
        write_usage(out, self.fields, counts, CachedTokenReporting::LeftOut);
        out.push_str("}}\n\n");
    }

    /// Writes the start event of a content block of an Anthropic message, unless the block is open
    /// already.
    fn open_block(&mut self, out: &mut String, block: OpenBlock, choice: &ReplyChoice) {
        if self.open == Some(block) {
            return;
        }
        self.stop_block(out);
        self.open = Some(block);
        let calls = matches!(block, OpenBlock::Tool(_));
        let ping = if self.index == 0 { ping_event(self.fields) } else { "" };
        if calls {
            out.push_str(ping);
        }
        out.push_str("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":");
        match block {
            OpenBlock::Text => out.push_str("{\"type\":\"text\",\"text\":\"\"}"),
            OpenBlock::Thinking => out.push_str("{\"type\":\"thinking\",\"thinking\":\"\"}"),
            OpenBlock::Tool(call) => {
                let call = usize::from(call);
                out.push_str("{\"type\":\"tool_use\",\"id\":");
                json::write_json_string(out, &self.chat.call_ids.tool_call_id(0, call));
                out.push_str(",\"name\":");
                let name = choice.script.calls.get(call);
                json::write_json_string(out, name.map_or("", String::as_str));
                out.push_str(",\"input\":{}}");
            }
        }
        self.end_block_event(out);
        if !calls {
            out.push_str(ping);
        }
    }

    fn stop_block(&mut self, out: &mut String) {
        let Some(block) = self.open.take() else {
            return;
        };
        if block == OpenBlock::Thinking {
            self.write_block_delta(out, "signature_delta", "signature", &random_signature());
        }
        out.push_str("event: content_block_stop\ndata: {\"type\":\"content_block_stop\"");
        self.end_block_event(out);
        self.index += 1;
    }

    fn write_block_delta(&self, out: &mut String, kind: &str, member: &str, text: &str) {
        out.push_str(
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"",
        );
        out.push_str(kind);
        out.push_str("\",\"");
        out.push_str(member);
        json::write_member(out, "\":", text);
        out.push('}');
        self.end_block_event(out);
    }

    /// Appends the index of the content block to an Anthropic stream event, as the event's last
    /// member, and ends the event.
    fn end_block_event(&self, out: &mut String) {
        json::write_member(out, ",\"index\":", self.index);
        out.push_str("}\n\n");
    }

    fn write_channel_text(
        &mut self,
        out: &mut String,
        channel: OutputChannel,
        text: &str,
        choice: &ReplyChoice,
    ) {
        let (block, kind, member) = match channel {
            OutputChannel::Content => (OpenBlock::Text, "text_delta", "text"),
            OutputChannel::Reasoning => (OpenBlock::Thinking, "thinking_delta", "thinking"),
            OutputChannel::Call(call) => {
                (OpenBlock::Tool(call), "input_json_delta", "partial_json")
            }
            OutputChannel::Marker => return,
        };
        if text.is_empty() {
            return;
        }
        self.called |= matches!(block, OpenBlock::Tool(_));
        self.open_block(out, block, choice);
        self.write_block_delta(out, kind, member, text);
    }
}

impl StreamRenderer for AnthropicMessageStream {
    fn write_before_tokens(&mut self, out: &mut String) {
        self.write_message_start(out);
    }

    fn garbled_event(&self) -> &'static str {
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":\n\n"
    }

    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let mut called = false;
        for_each_output_channel_text(choice, tokens, |channel, text, choice| {
            called |= matches!(channel, OutputChannel::Call(_));
            self.write_channel_text(out, channel, text, choice);
        });
        self.chat.count_tool_parser_run(ToolParserMode::Streaming, called);
    }

    fn write_failure(&mut self, out: &mut String) -> bool {
        self.stop_block(out);
        out.push_str(&anthropic_error_event(
            &error::engine_failure_fault(),
            self.chat.view.version,
        ));
        true
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        self.stop_block(out);
        let choice = &reply.choices[0];
        out.push_str("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
        let end = AnthropicStopReasonInputs {
            choice,
            end: end_reason_of_choice(choice),
            called: self.called,
        };
        write_stop_members(out, self.fields, &end, NullMemberHandling::Shown);
        out.push_str("},\"usage\":");
        let cache = CachedTokenReporting::from_response_settings(&self.chat.view);
        write_last_usage(out, self.fields, TokenCounts::count_reply_tokens(reply), cache);
        out.push_str("}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }
}
