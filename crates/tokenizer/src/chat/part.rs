//! Represents the parts of a message's content.
//!
//! **Source:** `vllm/renderers/chat_utils/chat_message.py` (`parse_chat_message_content_part`).

use std::borrow::Cow;

use minijinja::Value;
use serde_json::{Map, Value as Json};
use vllm_sim_python::{PythonValue, python_repr_of_str, python_str};

use super::error::ChatTemplateError;
use super::python::{PythonDictFields, python_dict, value_from_json};

/// Part of a chat message's content: text, media or a tool reference.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageContentPart {
    content: MessagePartContent,
    extra: Vec<(String, Json)>,
}

#[derive(Debug, Clone, PartialEq)]
enum MessagePartContent {
    Text(String),
    ToolReference(Json),
    /// Media part of a message's content, such as an image; the type of the part is one of
    /// [`PART_TYPES`].
    Media(&'static str),
}

/// Fields of content parts that vLLM reads; all other fields are passed to the template.
///
/// **Source:** `_KNOWN_CONTENT_PART_FIELDS`.
const KNOWN_PART_KEYS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

/// Types of content parts known to vLLM, sorted as in its error message.
const PART_TYPES: [&str; 16] = [
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

/// Start of the line that Claude Code adds to its system prompt.
///
/// The line differs per request, so vLLM drops it to keep the prefix cache effective.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

impl MessageContentPart {
    /// Parses a content part of a message by `role`; returns `None` for an empty part.
    ///
    /// # Errors
    /// [`ChatTemplateError::Message`] if vLLM does not know the type of the content part.
    pub fn parse_content_part(role: &str, part: &Json) -> Result<Option<Self>, ChatTemplateError> {
        let text = match part {
            Json::String(text) => Some(text.as_str()),
            Json::Object(part) if part.get("type").is_some_and(|kind| kind == "text") => {
                part.get("text").and_then(Json::as_str)
            }
            _ => None,
        };
        let rest = text.and_then(|text| without_billing_header(role, text));
        if rest == Some("") {
            return Ok(None);
        }
        let mut read = match part {
            Json::String(text) => Some(Self::from(MessagePartContent::Text(text.clone()))),
            Json::Object(part) => Self::parse_typed_part(part)?,
            _ => {
                return Err(invalid_message_error(
                    "messages",
                    "each content part must be an object or a string.",
                ));
            }
        };
        if let (Some(rest), Some(MessagePartContent::Text(text))) =
            (rest, read.as_mut().map(|read| &mut read.content))
        {
            rest.clone_into(text);
        }
        Ok(read)
    }

    pub(super) fn from_text(role: &str, text: &str) -> Option<Self> {
        let text = match without_billing_header(role, text) {
            Some("") => return None,
            Some(rest) => rest,
            None => text,
        };
        Some(Self::from(MessagePartContent::Text(text.to_owned())))
    }

    fn parse_typed_part(part: &Map<String, Json>) -> Result<Option<Self>, ChatTemplateError> {
        let string = |name: &str| part.get(name).and_then(Json::as_str).map(str::to_owned);
        let kind = part_type(part)?;
        let content = match kind {
            "text" | "input_text" | "output_text" => string("text").map(MessagePartContent::Text),
            "thinking" | "refusal" => string(kind).map(MessagePartContent::Text),
            "tool_reference" => {
                let name = part.get("name").cloned().unwrap_or_default();
                return Ok(Some(Self::from(MessagePartContent::ToolReference(name))));
            }
            media => Some(MessagePartContent::Media(media)),
        };
        let unknown = part.iter().filter(|(name, _)| !KNOWN_PART_KEYS.contains(&name.as_str()));
        let owned = |(name, value): (&String, &Json)| (name.clone(), value.clone());
        Ok(content.map(|content| Self { content, extra: unknown.map(owned).collect() }))
    }

    /// Returns the content part's type if it is media, such as `image_url`; `None` for other parts.
    pub fn modality_name(&self) -> Option<&'static str> {
        match self.content {
            MessagePartContent::Media(kind) => Some(kind),
            MessagePartContent::Text(_) | MessagePartContent::ToolReference(_) => None,
        }
    }

    pub(super) fn text_content(&self) -> Option<&str> {
        match &self.content {
            MessagePartContent::Text(text) => Some(text),
            MessagePartContent::ToolReference(_) | MessagePartContent::Media(_) => None,
        }
    }

    pub(super) fn text_content_mut(&mut self) -> Option<&mut String> {
        match &mut self.content {
            MessagePartContent::Text(text) => Some(text),
            MessagePartContent::ToolReference(_) | MessagePartContent::Media(_) => None,
        }
    }

    /// Returns the content part as text for a template that expects text; `None` for media.
    pub(super) fn to_plain_text(&self) -> Option<Cow<'_, str>> {
        let line = match &self.content {
            MessagePartContent::Text(text) => Cow::Borrowed(text.as_str()),
            MessagePartContent::ToolReference(name)
                if PythonValue::from_json_value(name).is_truthy() =>
            {
                python_str(name).into()
            }
            MessagePartContent::ToolReference(_) | MessagePartContent::Media(_) => return None,
        };
        Some(line).filter(|line| !line.is_empty())
    }

    pub(super) fn to_template_value(&self) -> Value {
        let (kind, said) = match &self.content {
            MessagePartContent::Text(text) => ("text", Some(("text", text.as_str()))),
            MessagePartContent::ToolReference(name) => {
                let name = name.as_str().unwrap_or_default();
                ("tool_reference", Some(("name", name)))
            }
            MessagePartContent::Media(kind) => (modality_of_type(kind), None),
        };
        let mut members = PythonDictFields::default();
        members.insert(Cow::Borrowed("type"), Value::from(kind));
        if let Some((name, text)) = said {
            members.insert(Cow::Borrowed(name), Value::from(text));
        }
        let extra = self.extra.iter();
        members
            .extend(extra.map(|(name, value)| (Cow::Owned(name.clone()), value_from_json(value))));
        python_dict(members)
    }
}

impl From<MessagePartContent> for MessageContentPart {
    fn from(content: MessagePartContent) -> Self {
        Self { content, extra: Vec::new() }
    }
}

/// Returns the text after the first line if a system message starts with [`BILLING_HEADER`].
fn without_billing_header<'t>(role: &str, text: &'t str) -> Option<&'t str> {
    (role == "system" && text.starts_with(BILLING_HEADER))
        .then(|| text.split_once('\n').map_or("", |(_, rest)| rest))
}

fn modality_of_type(kind: &str) -> &'static str {
    match kind {
        "input_audio" | "audio_url" | "audio_embeds" => "audio",
        "video_url" | "video_embeds" => "video",
        _ => "image",
    }
}

/// Returns the type of a content part; without a type, or with a `uuid`, the media field determines
/// it.
fn part_type(part: &Map<String, Json>) -> Result<&'static str, ChatTemplateError> {
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
    let uuid = part.get("uuid").is_some_and(|uuid| !uuid.is_null());
    match part.get("type").filter(|kind| !kind.is_null() && !uuid) {
        Some(Json::String(name)) => {
            let known = PART_TYPES.into_iter().find(|known| known == name);
            known.ok_or_else(|| ChatTemplateError::Message {
                message: format!(
                    "Unsupported chat content part type: {}. Supported types: {}.",
                    python_repr_of_str(name),
                    PART_TYPES.join(", ")
                ),
                parameter: "type",
                value: Some(name.clone()),
            })
        }
        Some(_) => Err(invalid_message_error("type", "Invalid 'type' field in multimodal part.")),
        None => MEDIA.into_iter().find(|name| part.contains_key(*name)).ok_or_else(|| {
            invalid_message_error("type", "Missing 'type' field in multimodal part.")
        }),
    }
}

pub(super) fn invalid_message_error(parameter: &'static str, message: &str) -> ChatTemplateError {
    ChatTemplateError::Message { message: message.to_owned(), parameter, value: None }
}
