//! Chat messages and access to what they say.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::message_schema::MESSAGE;
use crate::schema::{Schema, Wire};

/// One message of a conversation, kept as it was sent (with `reasoning_content` renamed).
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    raw: Value,
    trusted: bool,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Content<'a> {
    /// Absent or null.
    None,
    /// One text.
    Text(&'a str),
    /// Typed parts.
    Parts(&'a [Value]),
}

/// A call that an assistant message made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ToolCall<'a> {
    /// Its id.
    pub id: Option<&'a str>,
    /// The function's name.
    pub name: &'a str,
    /// Its arguments, as the JSON text that was sent.
    pub arguments: &'a str,
}

impl Message {
    /// A message of our own making: its parts are not checked against the SDK's classes.
    pub fn trusted(raw: Value) -> Self {
        Self { raw, trusted: true }
    }

    /// A message that is nothing but a text by one of the usual speakers; `None` for any other,
    /// which has to be checked.
    pub(super) fn plain(raw: Map<String, Value>) -> Option<Self> {
        let message = Self {
            raw: Value::Object(raw),
            trusted: false,
        };
        message.spoken().is_some().then_some(message)
    }

    /// Role and text of a message that is nothing but a text by one of the usual speakers: what the
    /// classes of all of them take, and make nothing else of.
    pub(super) fn spoken(&self) -> Option<(&str, &str)> {
        let mut members = self.raw.as_object()?.iter();
        let (first, second) = (members.next()?, members.next()?);
        let (role, content) = match (first.0.as_str(), second.0.as_str()) {
            ("role", "content") => (first.1, second.1),
            ("content", "role") => (second.1, first.1),
            _ => return None,
        };
        let role = role.as_str()?;
        let usual = members.next().is_none() && matches!(role, "system" | "user" | "assistant");
        usual.then_some((role, content.as_str()?))
    }

    /// The same message with other contents.
    pub fn with_raw(&self, raw: Value) -> Self {
        Self { raw, ..*self }
    }

    /// Whether the parts need no check.
    pub(super) fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// The message as JSON.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// Who speaks.
    pub fn role(&self) -> &str {
        self.text_of("role").unwrap_or_default()
    }

    /// The speaker's or function's name.
    pub fn name(&self) -> Option<&str> {
        self.text_of("name")
    }

    /// The call that a tool message answers.
    pub fn tool_call_id(&self) -> Option<&str> {
        self.text_of("tool_call_id")
    }

    /// The reasoning of an assistant message.
    pub fn reasoning(&self) -> Option<&str> {
        self.text_of("reasoning")
    }

    /// What is said.
    pub fn content(&self) -> Content<'_> {
        match self.raw.get("content") {
            Some(Value::String(text)) => Content::Text(text),
            Some(Value::Array(parts)) => Content::Parts(parts),
            _ => Content::None,
        }
    }

    /// All text of the content, parts joined with a line feed as vLLM joins them for templates
    /// that want a string.
    pub fn text(&self) -> Cow<'_, str> {
        match self.content() {
            Content::None => Cow::Borrowed(""),
            Content::Text(text) => Cow::Borrowed(text),
            Content::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(part_text).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }

    /// The calls an assistant message made.
    pub fn tool_calls(&self) -> impl Iterator<Item = ToolCall<'_>> {
        let calls = self.raw.get("tool_calls").and_then(Value::as_array);
        calls.into_iter().flatten().filter_map(|call| {
            let function = call.get("function")?;
            Some(ToolCall {
                id: call.get("id").and_then(Value::as_str),
                name: function.get("name")?.as_str()?,
                arguments: function
                    .get("arguments")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            })
        })
    }

    fn text_of(&self, key: &str) -> Option<&str> {
        self.raw.get(key).and_then(Value::as_str)
    }
}

impl Wire for Message {
    const SCHEMA: Schema = Schema::Union(MESSAGE);

    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            raw: value.clone(),
            trusted: false,
        })
    }
}

/// The text of one part, for the kinds that are text.
fn part_text(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        Value::Object(map) => {
            let key = match map.get("type").and_then(Value::as_str) {
                Some("refusal") => "refusal",
                Some("thinking") => "thinking",
                Some("text" | "input_text" | "output_text") | None => "text",
                Some(_) => return None,
            };
            map.get(key)?.as_str()
        }
        _ => None,
    }
}
