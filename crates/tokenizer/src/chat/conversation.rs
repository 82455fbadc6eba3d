//! Messages of a request → the messages that a template is given.
//!
//! Sources: `vllm/renderers/chat_utils/chat_message.py` (`parse_chat_messages`),
//! `vllm/renderers/hf.py` (developer messages), `transformers/utils/chat_template_utils.py`
//! (names of reasoning).

use std::borrow::Cow;

use minijinja::Value;
use serde_json::{Map, Value as Json, json};
use vllm_sim_python::repr_str;

use super::content_format::ContentFormat;
use super::error::TemplateError;
use super::python::{Fields, dict, fields, from_json, list};

/// The messages of a request.
#[derive(Debug, Clone, Copy)]
pub enum ChatMessages<'a> {
    /// As the OpenAI API has them.
    Json(&'a [Json]),
    /// Each in the form in which it was read.
    Read(&'a [ChatMessage<'a>]),
}

/// One message of a request.
#[derive(Debug, Clone, Copy)]
pub enum ChatMessage<'a> {
    /// One text and nothing else.
    Text {
        /// Who speaks.
        role: &'a str,
        /// What it says.
        text: &'a str,
    },
    /// Parts of type `text` and nothing else.
    Texts {
        /// Who speaks.
        role: &'a str,
        /// What it says.
        texts: &'a [String],
    },
    /// Any message, as the OpenAI API has it.
    Json(&'a Json),
}

impl<'a> ChatMessages<'a> {
    /// The messages, in turn.
    pub(super) fn iter(self) -> impl Iterator<Item = ChatMessage<'a>> {
        let (json, read): (&[Json], &[ChatMessage<'_>]) = match self {
            Self::Json(json) => (json, &[]),
            Self::Read(read) => (&[], read),
        };
        json.iter()
            .map(ChatMessage::Json)
            .chain(read.iter().copied())
    }
}

impl Default for ChatMessages<'_> {
    fn default() -> Self {
        Self::Json(&[])
    }
}

impl<'a> From<&'a [Json]> for ChatMessages<'a> {
    fn from(messages: &'a [Json]) -> Self {
        Self::Json(messages)
    }
}

/// One message as a template sees it.
#[derive(Debug, Clone)]
pub(super) struct TemplateMessage {
    /// Who speaks.
    pub(super) role: String,
    /// What it says.
    pub(super) content: MessageContent,
    /// The members after role and content.
    rest: Fields,
}

/// What a message says.
#[derive(Debug, Clone)]
pub(super) enum MessageContent {
    /// One text.
    Text(String),
    /// A list of parts.
    Parts(Vec<Fields>),
}

/// Members of content parts that vLLM reads itself; others reach the template.
///
/// Source: `_KNOWN_CONTENT_PART_FIELDS`.
const KNOWN: [&str; 17] = [
    "type",
    "text",
    "image_url",
    "input_audio",
    "file",
    "refusal",
    "audio_url",
    "video_url",
    "image_pil",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "data",
    "uuid",
    "thinking",
    "closed",
    "name",
];

/// The part types that vLLM knows, sorted as its message lists them.
const TYPES: [&str; 16] = [
    "audio_embeds",
    "audio_url",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "input_image",
    "input_text",
    "output_text",
    "prompt_embeds",
    "refusal",
    "text",
    "thinking",
    "tool_reference",
    "video_embeds",
    "video_url",
];

/// Reads all messages.
pub(super) fn template_messages(
    messages: ChatMessages<'_>,
    format: ContentFormat,
) -> Result<Vec<TemplateMessage>, TemplateError> {
    messages
        .iter()
        .map(|message| match message {
            ChatMessage::Text { role, text }
                if role != "system" && format == ContentFormat::String =>
            {
                Ok(TemplateMessage {
                    role: role.to_owned(),
                    content: MessageContent::Text(text.to_owned()),
                    rest: Fields::default(),
                })
            }
            ChatMessage::Text { role, text } => {
                template_message(&json!({"role": role, "content": text}), format)
            }
            ChatMessage::Texts { role, texts } => {
                let part = |text: &String| json!({"type": "text", "text": text});
                let parts: Json = texts.iter().map(part).collect();
                template_message(&json!({"role": role, "content": parts}), format)
            }
            ChatMessage::Json(message) => template_message(message, format),
        })
        .collect()
}

fn template_message(
    message: &Json,
    format: ContentFormat,
) -> Result<TemplateMessage, TemplateError> {
    let Some(message) = message.as_object() else {
        return Err(wrong("messages", "each message must be an object."));
    };
    let role = message
        .get("role")
        .and_then(Json::as_str)
        .unwrap_or_default();
    let parts = match message.get("content") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(parts)) => parts.iter().collect(),
        Some(single) => vec![single],
    };
    let mut read = Vec::with_capacity(parts.len());
    for each in parts {
        if role == "system" {
            match without_billing(each) {
                BillingHeader::Absent => read.extend(part(each, format)?),
                BillingHeader::Whole => {}
                BillingHeader::Before(rest) => read.extend(part(&rest, format)?),
            }
        } else {
            read.extend(part(each, format)?);
        }
    }
    let mut content = content(read, format);
    let mut rest = Fields::default();
    let mut set = |name: &'static str, value: Value| rest.insert(Cow::Borrowed(name), value);
    match role {
        "assistant" => {
            if let Some(calls) = tool_calls(message)? {
                set("tool_calls", calls);
            }
            let reasoning = ["reasoning", "reasoning_content"]
                .iter()
                .find_map(|name| message.get(*name).filter(|value| !value.is_null()));
            if let Some(reasoning) = reasoning {
                set("reasoning", from_json(reasoning));
                set("reasoning_content", from_json(reasoning));
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                set("tool_call_id", from_json(id));
            }
            content = content.joined_when_text();
        }
        _ => {}
    }
    for name in ["name", "task"] {
        if let Some(Json::String(text)) = message.get(name) {
            set(name, Value::from(text.as_str()));
        }
    }
    if role == "developer" {
        set(
            "tools",
            message.get("tools").map_or(Value::from(()), from_json),
        );
    }
    Ok(TemplateMessage {
        role: role.to_owned(),
        content,
        rest,
    })
}

/// A part of a message: its text for the string format, its members for the other.
struct ContentPart {
    text: Option<String>,
    members: Fields,
}

fn part(part: &Json, format: ContentFormat) -> Result<Option<ContentPart>, TemplateError> {
    if let Json::String(text) = part {
        return Ok(Some(ContentPart::text(text, &Map::new(), format)));
    }
    let Some(part) = part.as_object() else {
        return Err(wrong(
            "messages",
            "each content part must be an object or a string.",
        ));
    };
    let kind = part_type(part)?;
    let string = |name: &str| part.get(name).and_then(Json::as_str);
    let text = match kind {
        "text" | "input_text" | "output_text" => string("text"),
        "thinking" => string("thinking"),
        "refusal" => string("refusal"),
        "tool_reference" => {
            let name = string("name").unwrap_or_default();
            let members = [("type", kind), ("name", name)];
            return Ok(Some(ContentPart {
                text: Some(name.to_owned()),
                members: strings(members),
            }));
        }
        _ => {
            let modality = match kind {
                "input_image" | "image_url" | "image_pil" | "image_embeds" => "image",
                "input_audio" | "audio_url" | "audio_embeds" => "audio",
                "video_url" | "video_embeds" => "video",
                _ => {
                    return Err(wrong(
                        "messages",
                        "prompt_embeds content parts are not supported.",
                    ));
                }
            };
            let mut members = strings([("type", modality)]);
            members.extend(extra(part));
            return Ok(Some(ContentPart {
                text: None,
                members,
            }));
        }
    };
    Ok(text.map(|text| ContentPart::text(text, part, format)))
}

impl ContentPart {
    /// A text, with what `part` says besides it.
    fn text(text: &str, part: &Map<String, Json>, format: ContentFormat) -> Self {
        let members = match format {
            ContentFormat::Openai => {
                let mut members = strings([("type", "text"), ("text", text)]);
                members.extend(extra(part));
                members
            }
            ContentFormat::String => Fields::default(),
        };
        Self {
            text: Some(text.to_owned()),
            members,
        }
    }
}

/// The type of a part; without one, or beside a `uuid`, the medium that it carries names it.
fn part_type(part: &Map<String, Json>) -> Result<&'static str, TemplateError> {
    let uuid = part.get("uuid").is_some_and(|uuid| !uuid.is_null());
    let known = |name: &str| TYPES.iter().find(|known| **known == name).copied();
    let named = part.get("type").filter(|kind| !kind.is_null());
    if let (Some(Json::String(name)), false) = (named, uuid) {
        return known(name).ok_or_else(|| TemplateError::Message {
            message: format!(
                "Unsupported chat content part type: {}. Supported types: {}.",
                repr_str(name),
                TYPES.join(", ")
            ),
            parameter: "type",
            value: Some(name.clone()),
        });
    }
    if named.is_some() && !uuid {
        return Err(wrong("type", "Invalid 'type' field in multimodal part."));
    }
    const MEDIA: [&str; 10] = [
        "image_url",
        "image_pil",
        "image_embeds",
        "audio_embeds",
        "video_embeds",
        "prompt_embeds",
        "audio_url",
        "input_audio",
        "video_url",
        "tool_reference",
    ];
    MEDIA
        .into_iter()
        .find(|name| part.contains_key(*name))
        .ok_or_else(|| wrong("type", "Missing 'type' field in multimodal part."))
}

fn extra(part: &Map<String, Json>) -> Fields {
    let unknown = part
        .iter()
        .filter(|(name, _)| !KNOWN.contains(&name.as_str()));
    unknown
        .map(|(name, value)| (Cow::Owned(name.clone()), from_json(value)))
        .collect()
}

fn strings<const N: usize>(members: [(&'static str, &str); N]) -> Fields {
    members
        .into_iter()
        .map(|(name, text)| (Cow::Borrowed(name), Value::from(text)))
        .collect()
}

fn content(parts: Vec<ContentPart>, format: ContentFormat) -> MessageContent {
    match format {
        ContentFormat::Openai => {
            MessageContent::Parts(parts.into_iter().map(|p| p.members).collect())
        }
        ContentFormat::String => {
            let texts = parts.into_iter().filter_map(|part| part.text);
            let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
            MessageContent::Text(texts.join("\n"))
        }
    }
}

impl MessageContent {
    /// Parts that are all text as one text; anything else as it is.
    fn joined_when_text(self) -> Self {
        let Self::Parts(parts) = &self else {
            return self;
        };
        let is_text = |part: &Fields| part.get("type").and_then(Value::as_str) == Some("text");
        if parts.iter().all(is_text) {
            Self::Text(self.text())
        } else {
            self
        }
    }

    /// The texts in it, one to a line.
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts
                    .iter()
                    .filter_map(|part| part.get("text")?.as_str())
                    .collect();
                texts.join("\n")
            }
        }
    }
}

/// What Claude Code's attribution header leaves of a system text.
enum BillingHeader {
    Absent,
    Whole,
    Before(Json),
}

/// Its value changes with every request, so vLLM drops it for the prefix cache's sake.
fn without_billing(part: &Json) -> BillingHeader {
    let text = match part {
        Json::String(text) => Some(text.as_str()),
        Json::Object(part) if part.get("type").is_some_and(|kind| kind == "text") => {
            part.get("text").and_then(Json::as_str)
        }
        _ => None,
    };
    match text {
        Some(text) if text.starts_with("x-anthropic-billing-header") => {
            match text.split_once('\n') {
                Some((_, rest)) if !rest.is_empty() => match part.as_object() {
                    Some(part) => {
                        let mut part = part.clone();
                        part.insert("text".to_owned(), rest.into());
                        BillingHeader::Before(part.into())
                    }
                    None => BillingHeader::Before(rest.into()),
                },
                _ => BillingHeader::Whole,
            }
        }
        _ => BillingHeader::Absent,
    }
}

/// The tool calls of an assistant, their arguments as objects. An empty list counts as none.
fn tool_calls(message: &Map<String, Json>) -> Result<Option<Value>, TemplateError> {
    let calls = match message.get("tool_calls") {
        Some(Json::Array(calls)) if !calls.is_empty() => calls,
        _ => return Ok(None),
    };
    let calls: Result<Vec<Value>, TemplateError> = calls.iter().map(tool_call).collect();
    Ok(Some(list(calls?)))
}

fn tool_call(call: &Json) -> Result<Value, TemplateError> {
    let Some(call) = call.as_object() else {
        return Err(wrong(
            "tool_calls",
            "assistant tool_calls entries must be objects.",
        ));
    };
    let function = call.get("function").and_then(Json::as_object);
    let of_function = call.get("type").is_none_or(|kind| kind == "function");
    let Some(function) = function.filter(|_| of_function) else {
        return Err(wrong(
            "tool_calls",
            "chat completions only support assistant tool_calls of type 'function'.",
        ));
    };
    let arguments = match function.get("arguments") {
        Some(Json::Object(arguments)) => fields(arguments),
        Some(Json::String(text)) => serde_json::from_str::<Map<String, Json>>(text)
            .map_or_else(|_| Fields::default(), |a| fields(&a)),
        _ => Fields::default(),
    };
    let mut function = fields(function);
    function.insert(Cow::Borrowed("arguments"), dict(arguments));
    let mut call = fields(call);
    call.insert(Cow::Borrowed("function"), dict(function));
    Ok(dict(call))
}

/// Developer messages as system messages, all system messages as one at the front: for templates
/// that do not know the role.
pub(super) fn developers_to_system(mut messages: Vec<TemplateMessage>) -> Vec<TemplateMessage> {
    for message in messages
        .iter_mut()
        .filter(|message| message.role == "developer")
    {
        "system".clone_into(&mut message.role);
        message.rest.shift_remove("tools");
    }
    let is_system = |message: &TemplateMessage| message.role == "system";
    if !messages.iter().skip(1).any(is_system) {
        return messages;
    }
    let (system, others): (Vec<TemplateMessage>, Vec<TemplateMessage>) =
        messages.into_iter().partition(is_system);
    let texts = system.iter().map(|message| message.content.text());
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    let merged = TemplateMessage {
        role: "system".to_owned(),
        content: MessageContent::Text(texts.join("\n\n")),
        rest: Fields::default(),
    };
    std::iter::once(merged).chain(others).collect()
}

impl TemplateMessage {
    /// The message as the template's dict.
    pub(super) fn into_value(self) -> Value {
        let mut members = Fields::default();
        let reasoning = self.rest.get("reasoning_content").cloned();
        if let Some(reasoning) = &reasoning {
            members.insert(Cow::Borrowed("thinking"), reasoning.clone());
        }
        members.insert(Cow::Borrowed("role"), Value::from(self.role));
        let content = match self.content {
            MessageContent::Text(text) => Value::from(text),
            MessageContent::Parts(parts) => list(parts.into_iter().map(dict).collect()),
        };
        members.insert(Cow::Borrowed("content"), content);
        members.extend(self.rest);
        dict(members)
    }
}

fn wrong(parameter: &'static str, message: &str) -> TemplateError {
    TemplateError::Message {
        message: message.to_owned(),
        parameter,
        value: None,
    }
}
