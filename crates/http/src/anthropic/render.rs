//! Renders a chat reply as one Anthropic message or as the events of a message stream.
//!
//! Source: `vllm/entrypoints/anthropic/serving.py`, `messages_full_converter` and
//! `message_stream_converter`.

use super::message_format::{CacheCounts, MessageEnd, MessageFormat};
use crate::error;
use crate::json::{self, Nulls};
use crate::openai::chat_render::ChatView;
use crate::openai::response_shape::{Counts, end_of};
use crate::stream::{ChoiceStep, Render};
use vllm_sim_observe::metrics::ToolMode;
use vllm_sim_service::generate::Channel;
use vllm_sim_service::{Choice, Reply};
use vllm_sim_wire::Version;
use vllm_sim_wire::fault::Fault;

/// Returns the `error` event that ends a failed stream of `/v1/messages`.
pub(super) fn failed_event(fault: &Fault, version: Version) -> String {
    let json = fault.to_anthropic_json(version);
    format!("event: error\ndata: {json}\n\n")
}

/// Returns a random signature of a thinking block: 32 hex digits, which clients cannot verify.
fn signature() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Returns the JSON body of a finished Anthropic message.
pub(super) fn message(chat: &ChatView, form: &MessageFormat, reply: &Reply) -> String {
    let view = &chat.view;
    let mut out = String::with_capacity(512);
    out.push_str("{\"id\":");
    json::string(&mut out, &view.id);
    out.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
    let choice = &reply.choices[0];
    let start = out.len();
    let released = choice.released();
    let reasoning = choice.script.text(Channel::Reasoning, released);
    if !reasoning.is_empty() {
        out.push_str("{\"type\":\"thinking\",\"thinking\":");
        json::string(&mut out, &reasoning);
        out.push_str(",\"signature\":");
        json::string(&mut out, &signature());
        out.push('}');
    }
    let separate = |out: &mut String| {
        if out.len() > start {
            out.push(',');
        }
    };
    let content = choice.script.text(Channel::Content, released);
    let calls = chat.calls(choice, released);
    if !content.is_empty() || (reasoning.is_empty() && calls.is_empty()) {
        separate(&mut out);
        out.push_str("{\"type\":\"text\",\"text\":");
        json::string(&mut out, &content);
        out.push('}');
    }
    for (index, (name, arguments)) in calls.iter().enumerate() {
        separate(&mut out);
        out.push_str("{\"type\":\"tool_use\",\"id\":");
        json::string(&mut out, &chat.call_ids.of(0, index));
        out.push_str(",\"name\":");
        json::string(&mut out, name);
        out.push_str(",\"input\":");
        out.push_str(whole_object(arguments).unwrap_or("{}"));
        out.push('}');
    }
    out.push_str("],\"model\":");
    json::string(&mut out, &view.model);
    let before = out.len();
    out.push(',');
    let end = MessageEnd {
        choice,
        end: end_of(choice),
        called: !calls.is_empty(),
    };
    (form.stop)(&mut out, end, Nulls::LeftOut);
    if out.len() == before + 1 {
        out.pop();
    }
    out.push_str(",\"usage\":");
    (form.usage)(&mut out, Counts::of(reply), CacheCounts::of(view));
    transferred(&mut out, chat);
    out
}

/// Ends the JSON of a message with the KV transfer parameters for a decode server, if it has any.
fn transferred(out: &mut String, chat: &ChatView) {
    let view = &chat.view;
    if view.kv_transfer_params.is_some() {
        out.push_str(",\"kv_transfer_params\":");
        view.transfer(out);
    }
    if let Some(value) = &chat.ec_transfer_params {
        out.push_str(",\"ec_transfer_params\":");
        out.push_str(value);
    }
    out.push('}');
}

/// Returns the arguments of a tool call if they are a complete JSON object; the output limit may
/// have cut them.
fn whole_object(arguments: &str) -> Option<&str> {
    let whole = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments);
    whole.is_ok().then_some(arguments)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    Tool(u16),
}

pub(super) struct MessageStream {
    chat: Box<ChatView>,
    form: &'static MessageFormat,
    prompt: u32,
    index: usize,
    open: Option<Block>,
    called: bool,
}

impl MessageStream {
    pub(super) fn new(chat: Box<ChatView>, form: &'static MessageFormat, prompt: u32) -> Self {
        Self {
            chat,
            form,
            prompt,
            index: 0,
            open: None,
            called: false,
        }
    }

    fn start(&self, out: &mut String) {
        let view = &self.chat.view;
        out.push_str(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":",
        );
        json::string(out, &view.id);
        out.push_str(",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":");
        json::string(out, &view.model);
        out.push_str(",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        let counts = Counts {
            prompt: self.prompt,
            ..Counts::default()
        };
        (self.form.usage)(out, counts, CacheCounts::LeftOut);
        out.push_str("}}\n\n");
    }

    /// Writes the start event of a content block of an Anthropic message, unless the block is open
    /// already.
    fn open(&mut self, out: &mut String, block: Block, choice: &Choice) {
        if self.open == Some(block) {
            return;
        }
        self.stop(out);
        self.open = Some(block);
        let calls = matches!(block, Block::Tool(_));
        let ping = if self.index == 0 { self.form.ping } else { "" };
        if calls {
            out.push_str(ping);
        }
        out.push_str("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":");
        match block {
            Block::Text => out.push_str("{\"type\":\"text\",\"text\":\"\"}"),
            Block::Thinking => out.push_str("{\"type\":\"thinking\",\"thinking\":\"\"}"),
            Block::Tool(call) => {
                let call = usize::from(call);
                out.push_str("{\"type\":\"tool_use\",\"id\":");
                json::string(out, &self.chat.call_ids.of(0, call));
                out.push_str(",\"name\":");
                let name = choice.script.calls.get(call);
                json::string(out, name.map_or("", String::as_str));
                out.push_str(",\"input\":{}}");
            }
        }
        self.end_event(out);
        if !calls {
            out.push_str(ping);
        }
    }

    fn stop(&mut self, out: &mut String) {
        let Some(block) = self.open.take() else {
            return;
        };
        if block == Block::Thinking {
            self.delta(out, "signature_delta", "signature", &signature());
        }
        out.push_str("event: content_block_stop\ndata: {\"type\":\"content_block_stop\"");
        self.end_event(out);
        self.index += 1;
    }

    fn delta(&self, out: &mut String, kind: &str, member: &str, text: &str) {
        out.push_str(
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"",
        );
        out.push_str(kind);
        out.push_str("\",\"");
        out.push_str(member);
        out.push_str("\":");
        json::string(out, text);
        out.push('}');
        self.end_event(out);
    }

    /// Appends the index of the content block, the last member of every block event, and ends the
    /// event.
    fn end_event(&self, out: &mut String) {
        out.push_str(",\"index\":");
        json::int(out, self.index);
        out.push_str("}\n\n");
    }

    fn write(&mut self, out: &mut String, channel: Channel, text: &str, choice: &Choice) {
        let (block, kind, member) = match channel {
            Channel::Content => (Block::Text, "text_delta", "text"),
            Channel::Reasoning => (Block::Thinking, "thinking_delta", "thinking"),
            Channel::Call(call) => (Block::Tool(call), "input_json_delta", "partial_json"),
            Channel::Marker => return,
        };
        if text.is_empty() {
            return;
        }
        self.called |= matches!(block, Block::Tool(_));
        self.open(out, block, choice);
        self.delta(out, kind, member, text);
    }
}

impl Render for MessageStream {
    fn first(&mut self, out: &mut String) {
        self.start(out);
    }

    fn garbled(&self) -> &'static str {
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":\n\n"
    }

    fn step(&mut self, out: &mut String, choice: &mut Choice, step: &ChoiceStep) {
        let mut called = false;
        // Consecutive tokens of one channel are one delta.
        let mut group: Option<(Channel, String)> = None;
        for _ in 0..step.tokens {
            let Some(token) = choice.script.next(&mut choice.cursor) else {
                break;
            };
            called |= matches!(token.channel, Channel::Call(_));
            match &mut group {
                Some((channel, text)) if *channel == token.channel => text.push_str(token.text),
                _ => {
                    let next = (token.channel, token.text.to_owned());
                    if let Some((channel, text)) = group.replace(next) {
                        self.write(out, channel, &text, choice);
                    }
                }
            }
        }
        if let Some((channel, text)) = group {
            self.write(out, channel, &text, choice);
        }
        self.chat.count_parsed(ToolMode::Streaming, called);
    }

    fn fail(&mut self, out: &mut String) -> bool {
        self.stop(out);
        out.push_str(&failed_event(
            &error::engine_failure(),
            self.chat.view.version,
        ));
        true
    }

    fn close(&mut self, out: &mut String, reply: &Reply) {
        self.stop(out);
        let choice = &reply.choices[0];
        out.push_str("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
        let end = MessageEnd {
            choice,
            end: end_of(choice),
            called: self.called,
        };
        (self.form.stop)(out, end, Nulls::Shown);
        out.push_str("},\"usage\":");
        let cache = CacheCounts::of(&self.chat.view);
        (self.form.last_usage)(out, Counts::of(reply), cache);
        out.push_str("}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }
}
