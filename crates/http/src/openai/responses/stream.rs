//! Renders the events of a streamed Responses API response.
//!
//! Source: `vllm/entrypoints/openai/responses/{serving,simple_streaming_events}.py`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::custom;
use super::object::{
    ResponseDeliveryMode, ResponseObjectBuilder, nonempty_logprobs, output_text_part,
    responses_api_status,
};
use super::response_store::ResponseStoreSlot;
use crate::json;
use crate::stream::StreamRenderer;
use vllm_sim_observe::metrics::ToolParserMode;
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::VllmVersion;

struct OpenItem {
    channel: OutputChannel,
    id: String,
    text: String,
    /// Free text of the current custom tool call that the stream has sent so far.
    input: String,
}

pub(super) struct ResponseStream {
    frame: Arc<ResponseObjectBuilder>,
    keep: Option<ResponseStoreSlot>,
    sequence: u64,
    output_index: u32,
    open: Option<OpenItem>,
    /// Log probabilities of the output text that the stream has sent so far.
    text_logprobs: Vec<Value>,
}

impl ResponseStream {
    pub(super) fn new(
        object_builder: Arc<ResponseObjectBuilder>,
        store_slot: Option<ResponseStoreSlot>,
    ) -> Self {
        Self {
            frame: object_builder,
            keep: store_slot,
            sequence: 0,
            output_index: 0,
            open: None,
            text_logprobs: Vec::new(),
        }
    }

    pub(super) fn write_created_events(&mut self, out: &mut String) {
        let response = self.frame.response_object("in_progress", Vec::new(), None);
        for name in ["response.created", "response.in_progress"] {
            self.write_event(out, name, json!({"response": response}));
        }
    }

    /// Appends one Responses API event with members in the SDK's order: `sequence_number`, `text`
    /// if any, `type`.
    fn write_event(&mut self, out: &mut String, name: &str, mut members: Value) {
        let text = members.as_object_mut().and_then(|members| members.shift_remove("text"));
        members["sequence_number"] = self.sequence.into();
        if let Some(text) = text {
            members["text"] = text;
        }
        members["type"] = name.into();
        self.sequence += 1;
        out.push_str("event: ");
        out.push_str(name);
        out.push_str("\ndata: ");
        json::write_json_value(out, &members);
        out.push_str("\n\n");
    }

    /// Appends the events that open the output item of a channel, unless it is open already.
    fn open_item(&mut self, out: &mut String, channel: OutputChannel, choice: &ReplyChoice) {
        if self.open.as_ref().is_some_and(|open| open.channel == channel) {
            return;
        }
        self.close_item(out, choice, "completed");
        let frame = self.frame.clone();
        let id = frame.output_item_id(choice, channel);
        let index = self.output_index;
        let (item, part) = match channel {
            OutputChannel::Reasoning => (
                frame.reasoning_item(None, Some("in_progress")),
                Some(json!({"text": "", "type": "reasoning_text"})),
            ),
            OutputChannel::Call(call) => {
                (frame.tool_call_item(choice, call, "", "in_progress"), None)
            }
            _ => (
                frame.message_item("", None, "in_progress"),
                Some(output_text_part("", Some(json!([])))),
            ),
        };
        let added = json!({"item": item, "output_index": index});
        self.write_event(out, "response.output_item.added", added);
        if let Some(part) = part {
            let added =
                json!({"content_index": 0, "item_id": id, "output_index": index, "part": part});
            self.write_event(out, "response.content_part.added", added);
        }
        self.open = Some(OpenItem { channel, id, text: String::new(), input: String::new() });
    }

    /// Appends the events that close the open output item; `status` is the status of the reply so
    /// far.
    fn close_item(&mut self, out: &mut String, choice: &ReplyChoice, status: &str) {
        let Some(open) = self.open.take() else {
            return;
        };
        let frame = self.frame.clone();
        let OpenItem { channel, id, text, input } = open;
        let index = self.output_index;
        self.output_index += 1;
        let (item, part) = match channel {
            OutputChannel::Reasoning => {
                let done =
                    json!({"content_index": 0, "item_id": id, "output_index": index, "text": text});
                self.write_event(out, "response.reasoning_text.done", done);
                (
                    frame.reasoning_item(Some(&text), Some("completed")),
                    Some(json!({"text": text, "type": "reasoning_text"})),
                )
            }
            OutputChannel::Call(call) if frame.is_custom_tool_call(choice, call) => {
                let whole = custom::custom_tool_input(&text);
                // Text already sent that does not match cannot be revoked, so the whole text is
                // sent again.
                let delta = whole.strip_prefix(&*input).unwrap_or(&whole);
                if !delta.is_empty() {
                    let delta = json!({"delta": delta, "item_id": id, "output_index": index});
                    self.write_event(out, "response.custom_tool_call_input.delta", delta);
                }
                let done = json!({"input": whole, "item_id": id, "output_index": index});
                self.write_event(out, "response.custom_tool_call_input.done", done);
                (frame.tool_call_item(choice, call, &text, "completed"), None)
            }
            OutputChannel::Call(call) => {
                let name = choice.script.calls.get(usize::from(call));
                let done = json!({
                    "arguments": text, "item_id": id, "name": name, "output_index": index,
                });
                self.write_event(out, "response.function_call_arguments.done", done);
                (frame.tool_call_item(choice, call, &text, "completed"), None)
            }
            _ => {
                let done = json!({
                    "content_index": 0, "item_id": id, "logprobs": [], "output_index": index,
                    "text": text,
                });
                self.write_event(out, "response.output_text.done", done);
                let logprobs = nonempty_logprobs(&self.text_logprobs);
                (
                    frame.message_item(&text, logprobs.clone(), frame.message_status(status)),
                    Some(output_text_part(&text, logprobs)),
                )
            }
        };
        if let Some(part) = part {
            let done =
                json!({"content_index": 0, "item_id": id, "output_index": index, "part": part});
            self.write_event(out, "response.content_part.done", done);
        }
        let done = json!({"item": item, "output_index": index});
        self.write_event(out, "response.output_item.done", done);
    }

    /// Appends the events for consecutive tokens of one channel: reasoning, text or a tool call.
    fn write_run(&mut self, out: &mut String, group: &ChannelRun, choice: &ReplyChoice) {
        let shown = match group.channel {
            OutputChannel::Marker => false,
            OutputChannel::Reasoning => self.frame.request.include_reasoning,
            _ => true,
        };
        if !shown || group.text.is_empty() {
            return;
        }
        self.open_item(out, group.channel, choice);
        let index = self.output_index;
        let Some(open) = &mut self.open else { return };
        open.text.push_str(&group.text);
        let (id, delta) = (open.id.clone(), &group.text);
        if let OutputChannel::Call(call) = group.channel
            && self.frame.is_custom_tool_call(choice, call)
        {
            let begun = custom::partial_custom_tool_input(&open.text);
            let more = begun.strip_prefix(&*open.input).unwrap_or_default().to_owned();
            if !more.is_empty() {
                open.input = begun;
                let delta = json!({"delta": more, "item_id": id, "output_index": index});
                self.write_event(out, "response.custom_tool_call_input.delta", delta);
            }
            return;
        }
        let (name, members) = match group.channel {
            OutputChannel::Reasoning => (
                "response.reasoning_text.delta",
                json!({"content_index": 0, "delta": delta, "item_id": id, "output_index": index}),
            ),
            OutputChannel::Call(_) => (
                "response.function_call_arguments.delta",
                json!({"delta": delta, "item_id": id, "output_index": index}),
            ),
            _ => {
                let tokens = group.tokens.iter().copied();
                let logprobs = self.frame.logprobs;
                let mut logprobs = logprobs
                    .map_or(Vec::new(), |top| self.frame.logprobs_json(choice, tokens, top));
                self.text_logprobs.extend_from_slice(&logprobs);
                logprobs.iter_mut().for_each(remove_bytes);
                (
                    "response.output_text.delta",
                    json!({
                        "content_index": 0, "delta": delta, "item_id": id, "logprobs": logprobs,
                        "output_index": index,
                    }),
                )
            }
        };
        self.write_event(out, name, members);
    }
}

/// Removes the `bytes` members from a log probability, because text delta events have none.
fn remove_bytes(logprob: &mut Value) {
    let tops = logprob.get_mut("top_logprobs").and_then(Value::as_array_mut);
    tops.into_iter().flatten().for_each(remove_bytes);
    if let Some(members) = logprob.as_object_mut() {
        members.shift_remove("bytes");
    }
}

struct ChannelRun {
    channel: OutputChannel,
    text: String,
    tokens: Vec<(usize, u32)>,
}

impl StreamRenderer for ResponseStream {
    // No event can report that a response failed (measured on vLLM 0.33).
    fn write_failure(&mut self, _out: &mut String) -> bool {
        if let Some(keep) = self.keep.take() {
            keep.store_finished_response(&self.frame.response_object("failed", Vec::new(), None));
        }
        false
    }

    fn garbled_event(&self) -> &'static str {
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\n\n"
    }

    fn write_opening(&mut self, out: &mut String) {
        self.write_created_events(out);
    }

    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        let from = (choice.sent - tokens) as usize;
        let mut called = false;
        let mut group: Option<ChannelRun> = None;
        for at in 0..tokens as usize {
            let Some(token) = choice.script.next_token(&mut choice.cursor) else {
                break;
            };
            called |= matches!(token.channel, OutputChannel::Call(_));
            let place = (from + at, token.id);
            match &mut group {
                Some(group) if group.channel == token.channel => {
                    group.text.push_str(token.text);
                    group.tokens.push(place);
                }
                _ => {
                    let next = ChannelRun {
                        channel: token.channel,
                        text: token.text.to_owned(),
                        tokens: vec![place],
                    };
                    if let Some(group) = group.replace(next) {
                        self.write_run(out, &group, choice);
                    }
                }
            }
        }
        if let Some(group) = group {
            self.write_run(out, &group, choice);
        }
        self.frame.count_tool_parser_run(ToolParserMode::Streaming, called);
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        let choice = &reply.choices[0];
        let status = responses_api_status(choice);
        self.close_item(out, choice, status);
        let output =
            self.frame.output_items(choice, ResponseDeliveryMode::Streamed(&self.text_logprobs));
        let response = self.frame.response_object(status, output, Some(reply));
        if let Some(keep) = self.keep.take() {
            keep.store_finished_response(&response);
        }
        let name = match status {
            "incomplete" if self.frame.view.version >= VllmVersion::V033 => "response.incomplete",
            _ => "response.completed",
        };
        self.write_event(out, name, json!({"response": response}));
    }
}
