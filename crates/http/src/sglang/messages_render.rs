//! Renders replies as SGLang's messages of Anthropic's API.
//!
//! Source: SGLang 0.5.23 `anthropic/serving.py` (`_convert_response`,
//! `_generate_anthropic_stream`), `anthropic/protocol.py`.

use serde_json::{Map, Value, json};

use super::chat_render::SglangChatFormat;
use super::usage::EndedRequestCounter;
use crate::openai::response_settings::end_reason_of_choice;
use crate::stream::{StreamRenderer, for_each_output_channel_text};
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};

/// Returns a new id of an Anthropic message.
fn new_message_id() -> String {
    format!("msg_{}", uuid::Uuid::new_v4().simple())
}

/// Returns the JSON of the Anthropic message for an ended reply.
pub(super) fn message_json(format: &SglangChatFormat, reply: &Reply) -> Value {
    let choice = &reply.choices[0];
    let (script, released) = (&choice.script, choice.released_tokens());
    let reasoning = script.channel_text(OutputChannel::Reasoning, released);
    let text = script.channel_text(OutputChannel::Content, released);
    let calls = format.tool_calls(0, choice);
    let mut content = Vec::new();
    if !reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": reasoning}));
    }
    if !text.is_empty() {
        content.push(json!({"type": "text", "text": text}));
    }
    for call in &calls {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        // The output limit may have cut the arguments.
        let input: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
        content.push(json!({
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": input,
        }));
    }
    if content.is_empty() {
        content.push(json!({"type": "text", "text": ""}));
    }
    json!({
        "id": new_message_id(),
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": format.model_name(),
        "stop_reason": stop_reason(format, choice, calls.len()),
        "usage": usage(format, reply),
    })
}

fn stop_reason(format: &SglangChatFormat, choice: &ReplyChoice, calls: usize) -> &'static str {
    let (reason, _) =
        format.finish_reason_and_matched_stop(choice, end_reason_of_choice(choice), calls);
    match reason.as_str() {
        Some("length") => "max_tokens",
        Some("tool_calls") => "tool_use",
        _ => "end_turn",
    }
}

/// Returns the usage of a reply for an Anthropic message; input tokens exclude cached tokens if
/// usage reports them.
fn usage(format: &SglangChatFormat, reply: &Reply) -> Value {
    let cached = format.cached_tokens(reply).unwrap_or(0);
    let output = reply.choices[0].released_tokens();
    let input = reply.prompt_token_count().saturating_sub(cached);
    let mut usage = json!({"input_tokens": input, "output_tokens": output});
    if cached > 0 {
        usage["cache_read_input_tokens"] = cached.into();
    }
    usage
}

/// Renders a streamed response of `/v1/messages` as server-sent events.
pub(super) struct SglangMessageStream {
    format: SglangChatFormat,
    counter: EndedRequestCounter,
    prompt: u32,
    /// Index of the next content block in the Anthropic message.
    index: usize,
    open: Option<OutputChannel>,
    calls: usize,
}

impl SglangMessageStream {
    pub(super) fn new(
        format: SglangChatFormat,
        counter: EndedRequestCounter,
        reply: &Reply,
    ) -> Self {
        Self { format, counter, prompt: reply.prompt_token_count(), index: 0, open: None, calls: 0 }
    }

    fn open_block(&mut self, out: &mut String, channel: OutputChannel, choice: &ReplyChoice) {
        if self.open == Some(channel) {
            return;
        }
        self.close_block(out);
        self.open = Some(channel);
        let block = match channel {
            OutputChannel::Reasoning => json!({"type": "thinking", "thinking": ""}),
            OutputChannel::Call(call) => {
                let call = usize::from(call);
                self.calls = self.calls.max(call + 1);
                let name = choice.script.calls.get(call).map_or("", String::as_str);
                let id = self.format.tool_call_id(0, call);
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
            _ => json!({"type": "text", "text": ""}),
        };
        let event =
            json!({"type": "content_block_start", "index": self.index, "content_block": block});
        write_event(out, "content_block_start", &event);
    }

    fn close_block(&mut self, out: &mut String) {
        if self.open.take().is_some() {
            let event = json!({"type": "content_block_stop", "index": self.index});
            write_event(out, "content_block_stop", &event);
            self.index += 1;
        }
    }

    fn write_text(
        &mut self,
        out: &mut String,
        channel: OutputChannel,
        text: &str,
        choice: &ReplyChoice,
    ) {
        if text.is_empty() || channel == OutputChannel::Marker {
            return;
        }
        self.open_block(out, channel, choice);
        let delta = match channel {
            OutputChannel::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
            OutputChannel::Call(_) => json!({"type": "input_json_delta", "partial_json": text}),
            _ => json!({"type": "text_delta", "text": text}),
        };
        let event = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        write_event(out, "content_block_delta", &event);
    }
}

/// Appends a server-sent event with the name `name` and JSON data.
fn write_event(out: &mut String, name: &str, event: &Value) {
    out.push_str(&format!("event: {name}\ndata: {event}\n\n"));
}

/// Appends the first event of a stream of `/v1/messages`.
pub(super) fn write_message_start(out: &mut String, model: &str, prompt_tokens: u32) {
    let event = json!({"type": "message_start", "message": {
        "id": new_message_id(),
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
    }});
    write_event(out, "message_start", &event);
}

/// Appends the last events of a failed stream of `/v1/messages`.
pub(super) fn write_error_and_stop(out: &mut String, error: &Value) {
    write_event(out, "error", error);
    write_event(out, "message_stop", &json!({"type": "message_stop"}));
}

impl StreamRenderer for SglangMessageStream {
    fn write_before_tokens(&mut self, out: &mut String) {
        write_message_start(out, self.format.model_name(), self.prompt);
    }

    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        for_each_output_channel_text(choice, tokens, |channel, text, choice| {
            self.write_text(out, channel, text, choice);
        });
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        self.counter.count_ended_reply(reply);
        self.close_block(out);
        let choice = &reply.choices[0];
        let event = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason(&self.format, choice, self.calls)},
            "usage": {"output_tokens": choice.released_tokens()},
        });
        write_event(out, "message_delta", &event);
        write_event(out, "message_stop", &json!({"type": "message_stop"}));
    }

    fn write_failure(&mut self, out: &mut String) -> bool {
        self.close_block(out);
        let error = json!({"type": "api_error", "message": "Internal server error"});
        write_error_and_stop(out, &json!({"type": "error", "error": error}));
        true
    }
}
