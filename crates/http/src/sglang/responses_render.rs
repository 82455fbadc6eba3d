//! Renders replies as SGLang's responses, as JSON or as typed events.
//!
//! Source: SGLang 0.5.23 `openai/serving_responses.py` (`_make_response_output_items`,
//! `_responses_stream_generator_non_harmony`), `openai/protocol.py` (`ResponsesResponse`).

use serde_json::{Value, json};

use super::chat_render::SglangChatFormat;
use super::usage::EndedRequestCounter;
use crate::openai::response_settings::{count_reasoning_tokens, end_reason_of_choice};
use crate::stream::{StreamRenderer, for_each_output_channel_text};
use vllm_sim_service::generate::OutputChannel;
use vllm_sim_service::{Reply, ReplyChoice};
use vllm_sim_wire::sglang::responses::SglangResponsesRequest;

/// Id, request and options for the JSON of an SGLang Responses API response.
pub(super) struct SglangResponsesFormat {
    request: SglangResponsesRequest,
    chat: SglangChatFormat,
    id: String,
}

/// Returns a new id of a Responses API object: `prefix`, an underscore and a random UUID.
fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::new_v4().simple())
}

/// Returns a new id of a function call item, which is shorter than the ids of other output items.
fn new_call_item_id() -> String {
    let mut id = new_id("fc");
    id.truncate("fc_".len() + 8);
    id
}

impl SglangResponsesFormat {
    pub(super) fn new(request: SglangResponsesRequest, chat: SglangChatFormat) -> Self {
        let id = request.request_id.clone().unwrap_or_else(|| new_id("resp"));
        Self { request, chat, id }
    }

    /// Returns the JSON of the Responses API response for an ended reply.
    pub(super) fn responses_api_body_json(&self, reply: &Reply) -> Value {
        let choice = &reply.choices[0];
        let (script, released) = (&choice.script, choice.released_tokens());
        let mut output = Vec::new();
        let reasoning = script.channel_text(OutputChannel::Reasoning, released);
        if !reasoning.is_empty() {
            output.push(reasoning_item(&new_id("rs"), &reasoning, "completed"));
        }
        let text = script.channel_text(OutputChannel::Content, released);
        let calls = self.chat.tool_calls(0, choice);
        if !text.is_empty() {
            let logprobs = self.logprobs(choice);
            output.push(message_item(&new_id("msg"), &text, logprobs));
        }
        for call in &calls {
            let id = call["id"].as_str().unwrap_or_default();
            let function = &call["function"];
            let (name, arguments) = (&function["name"], &function["arguments"]);
            let state = (name.as_str(), arguments.as_str(), "completed");
            output.push(call_item(&new_call_item_id(), id, state));
        }
        self.response_json(output, self.status(choice), Some(self.usage(reply)), TextForm::Guessed)
    }

    /// Returns log probabilities in the form of SGLang's `/v1/responses`, or null.
    fn logprobs(&self, choice: &ReplyChoice) -> Value {
        if !self.request.includes_logprobs() {
            return Value::Null;
        }
        let entries = self.chat.choice_logprobs_json(choice, 0, choice.released_tokens());
        entries.get("content").cloned().unwrap_or(Value::Null)
    }

    fn status(&self, choice: &ReplyChoice) -> &'static str {
        let (reason, _) =
            self.chat.finish_reason_and_matched_stop(choice, end_reason_of_choice(choice), 0);
        match reason.as_str() {
            Some("length") => "incomplete",
            Some("abort") => "cancelled",
            _ => "completed",
        }
    }

    fn usage(&self, reply: &Reply) -> Value {
        let choice = &reply.choices[0];
        let (input, output) = (reply.prompt_token_count(), choice.released_tokens());
        json!({
            "input_tokens": input,
            "input_tokens_details": {
                "cached_tokens": self.chat.cached_tokens(reply).unwrap_or(0),
                "cache_write_tokens": 0,
            },
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": count_reasoning_tokens(choice)},
            "total_tokens": input.saturating_add(output),
        })
    }

    fn response_json(
        &self,
        output: Vec<Value>,
        status: &str,
        usage: Option<Value>,
        text: TextForm,
    ) -> Value {
        let request = &self.request;
        let is_text = !output.is_empty() && output.iter().all(|item| item["type"] == "message");
        let text = match (&request.text, text) {
            (Some(_), _) => request.text_format_json(),
            (None, TextForm::Guessed) if is_text => json!({"format": {"type": "text"}}),
            _ => Value::Null,
        };
        let reasoning = request.reasoning.as_ref();
        let of_reasoning = |name: &str| reasoning.and_then(|members| members.get(name));
        let details = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let tools: Vec<Value> = request.tools.iter().map(|tool| tool.to_tool_json()).collect();
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.chat.created_unix_seconds(),
            "model": self.chat.model_name(),
            "output": output,
            "status": status,
            "usage": usage,
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "tool_choice": request.effective_tool_choice(),
            "tools": tools,
            "error": null,
            "incomplete_details": details,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": of_reasoning("effort"), "summary": of_reasoning("summary")},
            "store": request.store,
            "temperature": request.temperature,
            "text": text,
            "top_p": request.top_p,
            "truncation": request.truncation,
            "user": request.user,
            "metadata": request.metadata.clone().unwrap_or_default(),
        })
    }
}

/// Selects the `text` member of a Responses API response whose request does not set `text`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextForm {
    /// The member `text` has the plain text format if the output is only text, else it is null.
    Guessed,
    /// The member `text` is null, because the response has no output yet.
    Unknown,
}

fn text_part(text: &str, logprobs: Value) -> Value {
    json!({"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs})
}

fn message_item(id: &str, text: &str, logprobs: Value) -> Value {
    json!({
        "id": id,
        "content": [text_part(text, logprobs)],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": "final_answer",
    })
}

fn reasoning_item(id: &str, text: &str, status: &str) -> Value {
    let content = match text {
        "" => json!([]),
        text => json!([{"text": text, "type": "reasoning_text"}]),
    };
    json!({
        "id": id,
        "summary": [],
        "type": "reasoning",
        "content": content,
        "encrypted_content": null,
        "status": status,
    })
}

/// Returns the output item of a function call; `state` holds the call's name, arguments and status.
fn call_item(id: &str, call_id: &str, state: (Option<&str>, Option<&str>, &str)) -> Value {
    let (name, arguments, status) = state;
    json!({
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        "type": "function_call",
        "id": id,
        "status": status,
    })
}

/// Output item of a streamed Responses API response that has begun but not ended.
struct OpenItem {
    channel: OutputChannel,
    id: String,
    text: String,
}

/// Renders the events of a streamed Responses API response.
pub(super) struct ResponseStream {
    format: SglangResponsesFormat,
    counter: EndedRequestCounter,
    sequence: u64,
    open: Option<OpenItem>,
    done: Vec<Value>,
}

impl ResponseStream {
    pub(super) fn new(format: SglangResponsesFormat, counter: EndedRequestCounter) -> Self {
        Self { format, counter, sequence: 0, open: None, done: Vec::new() }
    }

    /// Appends a Responses API event; its last members are sequence number, text if any, and type,
    /// as in SGLang.
    fn write_event(&mut self, out: &mut String, kind: &str, mut event: Value) {
        let text = event.as_object_mut().and_then(|members| members.shift_remove("text"));
        event["sequence_number"] = self.sequence.into();
        if let Some(text) = text {
            event["text"] = text;
        }
        event["type"] = kind.into();
        self.sequence += 1;
        out.push_str(&format!("event: {kind}\ndata: {event}\n\n"));
    }

    /// Appends an event of the type `kind` that contains the whole Responses API response.
    fn write_response(&mut self, out: &mut String, kind: &str, response: &Value) {
        let number = self.sequence;
        self.sequence += 1;
        let event = json!({"type": kind, "response": response, "sequence_number": number});
        out.push_str(&format!("event: {kind}\ndata: {event}\n\n"));
    }

    fn open_item(&mut self, out: &mut String, channel: OutputChannel, choice: &ReplyChoice) {
        if self.open.as_ref().is_some_and(|open| open.channel == channel) {
            return;
        }
        self.close_item(out, choice);
        let index = self.done.len();
        let (id, item, part) = match channel {
            OutputChannel::Reasoning => {
                let id = new_id("rs");
                let part = json!({"text": "", "type": "reasoning_text"});
                (id.clone(), reasoning_item(&id, "", "in_progress"), Some(part))
            }
            OutputChannel::Call(call) => {
                let id = new_call_item_id();
                let name = choice.script.calls.get(usize::from(call)).map(String::as_str);
                let call_id = self.format.chat.tool_call_id(0, usize::from(call));
                (id.clone(), call_item(&id, &call_id, (name, Some(""), "in_progress")), None)
            }
            _ => {
                let id = new_id("msg");
                let mut item = message_item(&id, "", Value::Null);
                item["content"] = json!([]);
                item["status"] = "in_progress".into();
                (id, item, Some(text_part("", Value::Null)))
            }
        };
        let event = json!({"item": item, "output_index": index});
        self.write_event(out, "response.output_item.added", event);
        if let Some(part) = part {
            let event =
                json!({"content_index": 0, "item_id": id, "output_index": index, "part": part});
            self.write_event(out, "response.content_part.added", event);
        }
        self.open = Some(OpenItem { channel, id, text: String::new() });
    }

    fn close_item(&mut self, out: &mut String, choice: &ReplyChoice) {
        let Some(OpenItem { channel, id, text }) = self.open.take() else {
            return;
        };
        let index = self.done.len();
        let (item, part) = match channel {
            OutputChannel::Call(call) => {
                let name = choice.script.calls.get(usize::from(call)).map(String::as_str);
                let event = json!({
                    "arguments": text, "item_id": id, "name": name, "output_index": index,
                });
                self.write_event(out, "response.function_call_arguments.done", event);
                let call_id = self.format.chat.tool_call_id(0, usize::from(call));
                (call_item(&id, &call_id, (name, Some(&text), "completed")), None)
            }
            OutputChannel::Reasoning => {
                let event =
                    json!({"content_index": 0, "item_id": id, "output_index": index, "text": text});
                self.write_event(out, "response.reasoning_text.done", event);
                let part = json!({"text": text, "type": "reasoning_text"});
                (reasoning_item(&id, &text, "completed"), Some(part))
            }
            _ => {
                let event = json!({
                    "content_index": 0, "item_id": id, "logprobs": [], "output_index": index,
                    "text": text,
                });
                self.write_event(out, "response.output_text.done", event);
                (message_item(&id, &text, Value::Null), Some(text_part(&text, Value::Null)))
            }
        };
        if let Some(part) = part {
            let event =
                json!({"content_index": 0, "item_id": id, "output_index": index, "part": part});
            self.write_event(out, "response.content_part.done", event);
        }
        let event = json!({"item": item, "output_index": index});
        self.write_event(out, "response.output_item.done", event);
        self.done.push(item);
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
        self.open_item(out, channel, choice);
        let index = self.done.len();
        let Some(open) = &mut self.open else {
            return;
        };
        open.text.push_str(text);
        let id = open.id.clone();
        let (kind, event) = match channel {
            OutputChannel::Call(_) => (
                "response.function_call_arguments.delta",
                json!({"delta": text, "item_id": id, "output_index": index}),
            ),
            OutputChannel::Reasoning => (
                "response.reasoning_text.delta",
                json!({"content_index": 0, "delta": text, "item_id": id, "output_index": index}),
            ),
            _ => (
                "response.output_text.delta",
                json!({
                    "content_index": 0,
                    "delta": text,
                    "item_id": id,
                    "logprobs": [],
                    "output_index": index,
                }),
            ),
        };
        self.write_event(out, kind, event);
    }
}

impl StreamRenderer for ResponseStream {
    fn write_before_tokens(&mut self, out: &mut String) {
        let response =
            self.format.response_json(Vec::new(), "in_progress", None, TextForm::Unknown);
        self.write_response(out, "response.created", &response);
        self.write_response(out, "response.in_progress", &response);
    }

    fn write_step(&mut self, out: &mut String, choice: &mut ReplyChoice, tokens: u32) {
        for_each_output_channel_text(choice, tokens, |channel, text, choice| {
            self.write_text(out, channel, text, choice);
        });
    }

    fn write_closing(&mut self, out: &mut String, reply: &Reply) {
        self.counter.count_ended_reply(reply);
        let choice = &reply.choices[0];
        self.close_item(out, choice);
        let status = self.format.status(choice);
        let output = std::mem::take(&mut self.done);
        let usage = Some(self.format.usage(reply));
        let response = self.format.response_json(output, status, usage, TextForm::Guessed);
        let kind = match status {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        self.write_response(out, kind, &response);
    }

    fn write_failure(&mut self, out: &mut String) -> bool {
        let mut response = self.format.response_json(Vec::new(), "failed", None, TextForm::Unknown);
        response["error"] = json!({"code": "server_error", "message": "Internal server error"});
        self.write_response(out, "response.failed", &response);
        true
    }
}
