//! Converts the messages of a chat request to those that a chat template receives, or to plain text
//! for models without a template.
//!
//! **Source:** `vllm/renderers/chat_utils/chat_message.py` (`parse_chat_messages`),
//! `vllm/renderers/hf.py` (developer messages), `transformers/utils/chat_template_utils.py`
//! (reasoning fields). Plain text: llm-d-inference-sim `pkg/tokenizer/tokenizer.go`
//! (`RenderMessages`) and `pkg/api/response.go` (`Message.PlainText`).

use std::borrow::Cow;

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::content_format::ChatTemplateContentFormat;
use super::error::ChatTemplateError;
use super::part::{MessageContentPart, invalid_message_error};
use super::python::{PythonDictFields, python_dict, python_list, value_from_json};
use vllm_sim_python::{PythonValue, loads};

/// Message of a conversation: JSON as sent by the client, or already parsed.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatMessage {
    /// JSON message of the OpenAI API, parsed when a template is rendered.
    Sent(Json),
    /// Message in the form that chat templates receive, already parsed from JSON.
    Read(TemplateMessage),
}

/// Message in the form that chat templates receive.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateMessage {
    pub(super) role: Cow<'static, str>,
    content: MessageContent,
    rest: Vec<(&'static str, Json)>,
}

#[derive(Debug, Clone, PartialEq)]
enum MessageContent {
    /// Message content as one text, whatever format the template expects.
    Text(String),
    /// Message content as parts, joined to one text for a template that expects text.
    Parts(Vec<MessageContentPart>),
}

impl From<Json> for ChatMessage {
    fn from(message: Json) -> Self {
        Self::Sent(message)
    }
}

impl ChatMessage {
    pub(super) fn to_template_message(
        &self,
    ) -> Result<Cow<'_, TemplateMessage>, ChatTemplateError> {
        match self {
            Self::Sent(message) => TemplateMessage::parse_message(message).map(Cow::Owned),
            Self::Read(message) => Ok(Cow::Borrowed(message)),
        }
    }
}

impl TemplateMessage {
    /// Creates a message from texts, each of which becomes a content part.
    pub fn from_text_parts(role: &'static str, texts: &[String]) -> Self {
        let parts = texts.iter().filter_map(|text| MessageContentPart::from_text(role, text));
        Self {
            role: Cow::Borrowed(role),
            content: MessageContent::Parts(parts.collect()),
            rest: Vec::new(),
        }
    }

    /// Creates a message from parsed content parts; the arguments of the message's tool calls are
    /// not parsed yet.
    pub fn new(message: &Map<String, Json>, parts: Vec<MessageContentPart>) -> Self {
        let given = |name: &str| message.get(name).filter(|value| !value.is_null());
        let role = message.get("role").and_then(Json::as_str);
        let role = role.unwrap_or_default().to_owned();
        let mut rest = Vec::new();
        let mut set = |name: &'static str, value: &Json| rest.push((name, value.clone()));
        match role.as_str() {
            "assistant" => {
                let calls = given("tool_calls");
                if let Some(calls) = calls.filter(|calls| calls.get(0).is_some()) {
                    set("tool_calls", calls);
                }
                if let Some(reasoning) = given("reasoning").or_else(|| given("reasoning_content")) {
                    set("reasoning", reasoning);
                    set("reasoning_content", reasoning);
                }
            }
            "tool" => {
                if let Some(id) = message.get("tool_call_id") {
                    set("tool_call_id", id);
                }
            }
            _ => {}
        }
        for name in ["name", "task"] {
            if let Some(text @ Json::String(_)) = message.get(name) {
                set(name, text);
            }
        }
        if role == "developer" {
            set("tools", message.get("tools").unwrap_or(&Json::Null));
        }
        Self { role: Cow::Owned(role), content: MessageContent::Parts(parts), rest }
    }

    /// Parses the arguments of an assistant's tool calls to JSON objects, which templates expect.
    ///
    /// **Source:** `_postprocess_messages`.
    ///
    /// # Errors
    /// [`ChatTemplateError::Message`] if a tool call is not of type `function`.
    pub fn parse_tool_call_arguments(&mut self) -> Result<(), ChatTemplateError> {
        let calls = self.rest.iter_mut().find(|(name, _)| *name == "tool_calls");
        let calls = calls.and_then(|(_, calls)| calls.as_array_mut());
        calls.into_iter().flatten().try_for_each(parse_tool_call_arguments)
    }

    fn parse_message(message: &Json) -> Result<Self, ChatTemplateError> {
        let Some(message) = message.as_object() else {
            return Err(invalid_message_error("messages", "each message must be an object."));
        };
        let role = message.get("role").and_then(Json::as_str);
        let role = role.unwrap_or_default();
        let parts = match message.get("content") {
            None | Some(Json::Null) => &[],
            Some(Json::Array(parts)) => parts.as_slice(),
            Some(single) => std::slice::from_ref(single),
        };
        let mut read = Vec::with_capacity(parts.len());
        for part in parts {
            let part = MessageContentPart::parse_content_part(role, part)?;
            if part.as_ref().and_then(MessageContentPart::modality_name) == Some("prompt_embeds") {
                let message = "prompt_embeds content parts are not supported.";
                return Err(invalid_message_error("messages", message));
            }
            read.extend(part);
        }
        let mut read = Self::new(message, read);
        read.parse_tool_call_arguments()?;
        Ok(read)
    }

    pub(super) fn extra_message_field(&self, name: &str) -> Option<&Json> {
        let found = self.rest.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }

    /// Returns whether the message's content is one text in the given content format. Also true for
    /// a tool message with text parts only.
    fn is_single_text(&self, format: ChatTemplateContentFormat) -> bool {
        match &self.content {
            MessageContent::Text(_) => true,
            MessageContent::Parts(parts) => match format {
                ChatTemplateContentFormat::String => true,
                ChatTemplateContentFormat::Openai => {
                    self.role == "tool" && parts.iter().all(|part| part.text_content().is_some())
                }
            },
        }
    }

    /// Returns the texts of the message's content, joined by newlines.
    pub(super) fn content_as_text(&self, format: ChatTemplateContentFormat) -> Cow<'_, str> {
        let parts = match &self.content {
            MessageContent::Text(text) => return Cow::Borrowed(text),
            MessageContent::Parts(parts) => parts.iter(),
        };
        let mut lines: Vec<Cow<'_, str>> = match format {
            ChatTemplateContentFormat::String => {
                parts.filter_map(MessageContentPart::to_plain_text).collect()
            }
            ChatTemplateContentFormat::Openai => {
                let texts = parts.filter_map(MessageContentPart::text_content);
                texts.map(Cow::Borrowed).collect()
            }
        };
        match lines.len() {
            0 | 1 => lines.pop().unwrap_or_default(),
            _ => Cow::Owned(lines.join("\n")),
        }
    }

    /// Appends `tail` to the last text of the message; returns that text before the change.
    pub(super) fn append_to_last_text_part(
        &mut self,
        tail: &str,
        format: ChatTemplateContentFormat,
    ) -> Option<String> {
        if self.is_single_text(format) {
            let text = self.content_as_text(format).into_owned();
            self.content = MessageContent::Text(format!("{text}{tail}"));
            return Some(text);
        }
        let MessageContent::Parts(parts) = &mut self.content else {
            return None;
        };
        let text = parts.iter_mut().rev().find_map(MessageContentPart::text_content_mut)?;
        let before = text.clone();
        text.push_str(tail);
        Some(before)
    }

    pub(super) fn to_template_value(&self, format: ChatTemplateContentFormat) -> Value {
        let mut members = PythonDictFields::default();
        if let Some(reasoning) = self.extra_message_field("reasoning_content") {
            members.insert(Cow::Borrowed("thinking"), value_from_json(reasoning));
        }
        members.insert(Cow::Borrowed("role"), Value::from(&*self.role));
        let content = match &self.content {
            MessageContent::Parts(parts) if !self.is_single_text(format) => {
                python_list(parts.iter().map(MessageContentPart::to_template_value).collect())
            }
            _ => Value::from(&*self.content_as_text(format)),
        };
        members.insert(Cow::Borrowed("content"), content);
        let rest = self.rest.iter();
        members.extend(rest.map(|(name, value)| (Cow::Borrowed(*name), value_from_json(value))));
        python_dict(members)
    }
}

fn parse_tool_call_arguments(call: &mut Json) -> Result<(), ChatTemplateError> {
    let Some(call) = call.as_object_mut() else {
        return Err(invalid_message_error(
            "tool_calls",
            "assistant tool_calls entries must be objects.",
        ));
    };
    let of_function = call.get("type").is_none_or(|kind| kind == "function");
    let Some(Json::Object(function)) = call.get_mut("function").filter(|_| of_function) else {
        return Err(invalid_message_error(
            "tool_calls",
            "chat completions only support assistant tool_calls of type 'function'.",
        ));
    };
    let arguments = function.entry("arguments").or_insert_with(|| Map::new().into());
    if let Json::String(text) = arguments {
        *arguments = loads(text.as_bytes()).unwrap_or_default();
    }
    if !matches!(PythonValue::from_json_value(arguments), PythonValue::Dict(_)) {
        *arguments = Map::new().into();
    }
    Ok(())
}

/// Converts developer messages to system messages and merges all system messages into the first,
/// for templates without the developer role.
pub(super) fn developer_messages_to_system(
    mut messages: Vec<Cow<'_, TemplateMessage>>,
    format: ChatTemplateContentFormat,
) -> Vec<Cow<'_, TemplateMessage>> {
    for message in &mut messages {
        if message.role == "developer" {
            let message = message.to_mut();
            message.role = Cow::Borrowed("system");
            message.rest.retain(|(name, _)| *name != "tools");
        }
    }
    let is_system = |message: &Cow<'_, TemplateMessage>| message.role == "system";
    if !messages.iter().skip(1).any(is_system) {
        return messages;
    }
    let (system, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
    let texts = system.iter().map(|message| message.content_as_text(format));
    let texts: Vec<Cow<'_, str>> = texts.filter(|text| !text.is_empty()).collect();
    let merged = TemplateMessage {
        role: Cow::Borrowed("system"),
        content: MessageContent::Text(texts.join("\n\n")),
        rest: Vec::new(),
    };
    std::iter::once(Cow::Owned(merged)).chain(others).collect()
}

/// Typical size of a message of a conversation as plain text, in bytes.
const TYPICAL_MESSAGE_BYTES: usize = 128;

/// Formats each message of a conversation as `### ROLE: TEXT` and a newline.
pub(super) fn messages_to_plain_text(
    messages: &[ChatMessage],
    format: ChatTemplateContentFormat,
) -> String {
    let mut out = String::with_capacity(messages.len() * TYPICAL_MESSAGE_BYTES);
    for message in messages {
        out.push_str("### ");
        match message {
            ChatMessage::Read(message) => write_parsed_message(&mut out, message, format),
            ChatMessage::Sent(Json::Object(message)) => write_raw_message(&mut out, message),
            ChatMessage::Sent(_) => {}
        }
        out.push('\n');
    }
    out
}

fn write_parsed_message(
    out: &mut String,
    message: &TemplateMessage,
    format: ChatTemplateContentFormat,
) {
    let call = message.extra_message_field("tool_call_id").and_then(Json::as_str);
    write_message_head(out, &message.role, call);
    out.push_str(&message.content_as_text(format));
    write_tool_calls(out, message.extra_message_field("tool_calls"));
}

fn write_raw_message(out: &mut String, message: &Map<String, Json>) {
    let text = |name: &str| message.get(name).and_then(Json::as_str);
    write_message_head(out, text("role").unwrap_or_default(), text("tool_call_id"));
    write_content(out, message);
}

/// Appends a message's role, and the id of the tool call that a tool message answers.
fn write_message_head(out: &mut String, role: &str, call: Option<&str>) {
    out.push_str(role);
    if let Some(call) = call.filter(|call| !call.is_empty()) {
        for piece in ["(", call, ")"] {
            out.push_str(piece);
        }
    }
    out.push_str(": ");
}

/// Returns a message as plain text: its texts, image URLs and tool calls.
pub fn message_plain_text(message: &Map<String, Json>) -> String {
    let mut out = String::new();
    write_content(&mut out, message);
    out
}

fn write_content(out: &mut String, message: &Map<String, Json>) {
    match message.get("content") {
        Some(Json::String(text)) => out.push_str(text),
        Some(Json::Array(parts)) => {
            let mut empty = true;
            for part in parts.iter().filter_map(content_part_text) {
                if !empty {
                    out.push('\n');
                }
                empty = false;
                out.push_str(&part);
            }
        }
        _ => {}
    }
    write_tool_calls(out, message.get("tool_calls"));
}

fn write_tool_calls(out: &mut String, calls: Option<&Json>) {
    for function in
        calls.and_then(Json::as_array).into_iter().flatten().filter_map(|call| call.get("function"))
    {
        if let Some(name) = function.get("name").and_then(Json::as_str) {
            out.push('[');
            out.push_str(name);
            out.push('(');
            match function.get("arguments") {
                Some(Json::String(arguments)) => out.push_str(arguments),
                Some(Json::Null) | None => {}
                Some(arguments) => out.push_str(&arguments.to_string()),
            }
            out.push_str(")]");
        }
    }
}

fn content_part_text(part: &Json) -> Option<String> {
    let kind = part.get("type").and_then(Json::as_str);
    match kind {
        _ if part.is_string() => part.as_str().map(str::to_owned),
        Some("text" | "input_text" | "output_text") | None => {
            part.get("text")?.as_str().map(str::to_owned)
        }
        Some("image_url" | "input_image") => {
            let url = part.get("image_url")?;
            Some(format!("image: {}", url.as_str().or_else(|| url.get("url")?.as_str())?))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ChatTemplateInput, ChatTemplates};
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_flatten_like_llm_d() {
        let messages = [
            json!({"role": "user", "content": "q1"}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"function": {"name": "f", "arguments": "{\"a\":1}"}},
                {"function": {"name": "g", "arguments": {"b": 2}}}, {}]}),
            json!({"role": "tool", "tool_call_id": "c1", "content": [
                {"type": "text", "text": "r"}, {"type": "image_url", "image_url": {"url": "u"}},
                {"type": "input_audio"}]}),
            json!(3),
        ]
        .map(ChatMessage::from);
        let text = "### user: q1\n### assistant: [f({\"a\":1})][g({\"b\":2})]\n\
                    ### tool(c1): r\nimage: u\n### \n";
        assert_eq!(messages_to_plain_text(&messages, ChatTemplateContentFormat::String), text);
        assert_eq!(messages_to_plain_text(&[], ChatTemplateContentFormat::String), "");
        let continued = ChatTemplateInput {
            messages: &messages[..1],
            continue_final_message: true,
            ..ChatTemplateInput::default()
        };
        let text = ChatTemplates::default().render_chat(&continued);
        assert_eq!(text.unwrap(), "### user: q1");
    }
}
