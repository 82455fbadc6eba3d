//! Represents the parts of a message's content.
//!
//! **Source:** `vllm/renderers/chat_utils/chat_message.py` (`parse_chat_message_content_part`).

use std::borrow::Cow;

use minijinja::Value;
use serde_json::{Map, Value as Json};
use vllm_sim_python::{Py, repr_str, str as python_str};

use super::error::TemplateError;
use super::python::{Fields, dict, from_json};

/// Part of a message's content: text, media or a tool reference.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagePart {
    content: PartContent,
    extra: Vec<(String, Json)>,
}

#[derive(Debug, Clone, PartialEq)]
enum PartContent {
    Text(String),
    ToolReference(Json),
    /// Media part; its type is one of [`TYPES`].
    Media(&'static str),
}

/// Fields of content parts that vLLM reads; all other fields are passed to the template.
///
/// **Source:** `_KNOWN_CONTENT_PART_FIELDS`.
const KNOWN: [&str; 18] = [
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

/// Start of the line that Claude Code adds to its system prompt.
///
/// The line differs per request, so vLLM drops it to keep the prefix cache effective.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

impl MessagePart {
    /// Parses a content part of a message by `role`; returns `None` for an empty part.
    ///
    /// # Errors
    /// [`TemplateError::Message`] if vLLM does not know the type of the content part.
    pub fn read(role: &str, part: &Json) -> Result<Option<Self>, TemplateError> {
        let text = match part {
            Json::String(text) => Some(text.as_str()),
            Json::Object(part) if part.get("type").is_some_and(|kind| kind == "text") => {
                part.get("text").and_then(Json::as_str)
            }
            _ => None,
        };
        let rest = text.and_then(|text| after_billing_header(role, text));
        if rest == Some("") {
            return Ok(None);
        }
        let mut read = match part {
            Json::String(text) => Some(Self::from(PartContent::Text(text.clone()))),
            Json::Object(part) => Self::typed(part)?,
            _ => {
                return Err(wrong(
                    "messages",
                    "each content part must be an object or a string.",
                ));
            }
        };
        if let (Some(rest), Some(PartContent::Text(text))) =
            (rest, read.as_mut().map(|read| &mut read.content))
        {
            rest.clone_into(text);
        }
        Ok(read)
    }

    pub(super) fn of_text(role: &str, text: &str) -> Option<Self> {
        let text = match after_billing_header(role, text) {
            Some("") => return None,
            Some(rest) => rest,
            None => text,
        };
        Some(Self::from(PartContent::Text(text.to_owned())))
    }

    fn typed(part: &Map<String, Json>) -> Result<Option<Self>, TemplateError> {
        let string = |name: &str| part.get(name).and_then(Json::as_str).map(str::to_owned);
        let kind = part_type(part)?;
        let content = match kind {
            "text" | "input_text" | "output_text" => string("text").map(PartContent::Text),
            "thinking" | "refusal" => string(kind).map(PartContent::Text),
            "tool_reference" => {
                let name = part.get("name").cloned().unwrap_or_default();
                return Ok(Some(Self::from(PartContent::ToolReference(name))));
            }
            media => Some(PartContent::Media(media)),
        };
        let unknown = part
            .iter()
            .filter(|(name, _)| !KNOWN.contains(&name.as_str()));
        let owned = |(name, value): (&String, &Json)| (name.clone(), value.clone());
        Ok(content.map(|content| Self {
            content,
            extra: unknown.map(owned).collect(),
        }))
    }

    /// Returns the type of a media part, such as `image_url`; `None` for other parts.
    pub fn media_type(&self) -> Option<&'static str> {
        match self.content {
            PartContent::Media(kind) => Some(kind),
            PartContent::Text(_) | PartContent::ToolReference(_) => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            PartContent::Text(text) => Some(text),
            PartContent::ToolReference(_) | PartContent::Media(_) => None,
        }
    }

    pub(super) fn text_mut(&mut self) -> Option<&mut String> {
        match &mut self.content {
            PartContent::Text(text) => Some(text),
            PartContent::ToolReference(_) | PartContent::Media(_) => None,
        }
    }

    /// Returns the content part as text for a template that expects text; `None` for media.
    pub(super) fn line(&self) -> Option<Cow<'_, str>> {
        let line = match &self.content {
            PartContent::Text(text) => Cow::Borrowed(text.as_str()),
            PartContent::ToolReference(name) if Py::of(name).truthy() => python_str(name).into(),
            PartContent::ToolReference(_) | PartContent::Media(_) => return None,
        };
        Some(line).filter(|line| !line.is_empty())
    }

    pub(super) fn to_value(&self) -> Value {
        let (kind, said) = match &self.content {
            PartContent::Text(text) => ("text", Some(("text", text.as_str()))),
            PartContent::ToolReference(name) => {
                let name = name.as_str().unwrap_or_default();
                ("tool_reference", Some(("name", name)))
            }
            PartContent::Media(kind) => (modality(kind), None),
        };
        let mut members = Fields::default();
        members.insert(Cow::Borrowed("type"), Value::from(kind));
        if let Some((name, text)) = said {
            members.insert(Cow::Borrowed(name), Value::from(text));
        }
        let extra = self.extra.iter();
        members.extend(extra.map(|(name, value)| (Cow::Owned(name.clone()), from_json(value))));
        dict(members)
    }
}

impl From<PartContent> for MessagePart {
    fn from(content: PartContent) -> Self {
        Self {
            content,
            extra: Vec::new(),
        }
    }
}

/// Returns the text after the first line if a system message starts with [`BILLING_HEADER`].
fn after_billing_header<'t>(role: &str, text: &'t str) -> Option<&'t str> {
    (role == "system" && text.starts_with(BILLING_HEADER))
        .then(|| text.split_once('\n').map_or("", |(_, rest)| rest))
}

fn modality(kind: &str) -> &'static str {
    match kind {
        "input_audio" | "audio_url" | "audio_embeds" => "audio",
        "video_url" | "video_embeds" => "video",
        _ => "image",
    }
}

/// Returns the type of a content part; without a type, or with a `uuid`, the media field determines
/// it.
fn part_type(part: &Map<String, Json>) -> Result<&'static str, TemplateError> {
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
            let known = TYPES.into_iter().find(|known| known == name);
            known.ok_or_else(|| TemplateError::Message {
                message: format!(
                    "Unsupported chat content part type: {}. Supported types: {}.",
                    repr_str(name),
                    TYPES.join(", ")
                ),
                parameter: "type",
                value: Some(name.clone()),
            })
        }
        Some(_) => Err(wrong("type", "Invalid 'type' field in multimodal part.")),
        None => MEDIA
            .into_iter()
            .find(|name| part.contains_key(*name))
            .ok_or_else(|| wrong("type", "Missing 'type' field in multimodal part.")),
    }
}

pub(super) fn wrong(parameter: &'static str, message: &str) -> TemplateError {
    TemplateError::Message {
        message: message.to_owned(),
        parameter,
        value: None,
    }
}
