//! Chat messages and access to their content.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::message_schema::MESSAGE_SCHEMAS;
use crate::schema::{RequestField, Schema, find_member};

/// One chat message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestMessage(MessageForm);

#[derive(Debug, Clone, PartialEq)]
enum MessageForm {
    Plain(TextOnlyMessage),
    Json(Box<JsonMessage>),
}

/// A chat message as sent, with `reasoning_content` renamed to `reasoning`.
#[derive(Debug, Clone, PartialEq)]
struct JsonMessage {
    value: Value,
    trust: MessageOrigin,
}

/// Origin of a chat message; content parts of messages that the server itself builds are not
/// checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageOrigin {
    Clients,
    Ours,
}

/// A chat message with only a role and text, which is valid for every class of its role.
///
/// The form is compact because a conversation may have very many messages.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TextOnlyMessage {
    pub(super) role: MessageRole,
    pub(super) content: TextOnlyContent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageRole {
    System,
    User,
    Assistant,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TextOnlyContent {
    Text(String),
    /// Content parts of type `text`, at least one.
    Parts(Vec<String>),
}

impl MessageRole {
    pub(super) fn from_role(role: &str) -> Option<Self> {
        match role {
            "system" => Some(Self::System),
            "user" => Some(Self::User),
            "assistant" => Some(Self::Assistant),
            _ => None,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

impl TextOnlyMessage {
    /// Returns the compact form of a chat message if it has nothing but role and text.
    fn from_json(value: &Value) -> Option<Self> {
        let [role, content] = exact_members(value, ["role", "content"])?;
        let content = match content {
            Value::String(text) => TextOnlyContent::Text(text.clone()),
            Value::Array(parts) if !parts.is_empty() => {
                let texts = parts.iter().map(|part| {
                    let [kind, text] = exact_members(part, ["type", "text"])?;
                    let text = text.as_str().filter(|_| *kind == "text")?;
                    Some(text.to_owned())
                });
                TextOnlyContent::Parts(texts.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        Some(Self { role: MessageRole::from_role(role.as_str()?)?, content })
    }
}

/// Returns the values of the members `names` if the object has exactly these members.
fn exact_members<'v>(value: &'v Value, names: [&str; 2]) -> Option<[&'v Value; 2]> {
    let value = value.as_object().filter(|value| value.len() == 2)?;
    let member = |name| find_member(value, name).map(|(_, value)| value);
    Some([member(names[0])?, member(names[1])?])
}

/// Content of a chat message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChatContent<'a> {
    /// The content of the chat message is absent or null.
    None,
    /// Content of a chat message as a plain string.
    Text(&'a str),
    /// Content of a chat message as parts, all of type `text`.
    Texts(&'a [String]),
    /// Content of a chat message as parts of any type, as sent.
    Parts(&'a [Value]),
}

/// A tool call of an assistant message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MessageToolCall<'a> {
    /// Id of the tool call.
    pub id: Option<&'a str>,
    /// Name of the called function.
    pub name: &'a str,
    /// Arguments of the call, as the JSON text that was sent.
    pub arguments: &'a str,
}

impl RequestMessage {
    /// Creates a chat message that the server itself builds, whose parts are not checked against
    /// OpenAI's Python classes.
    pub fn message_from_trusted_json(message_json: Value) -> Self {
        Self::new(message_json, MessageOrigin::Ours)
    }

    pub(super) fn from_text_only_message(message: TextOnlyMessage) -> Self {
        Self(MessageForm::Plain(message))
    }

    fn new(value: Value, trust: MessageOrigin) -> Self {
        match TextOnlyMessage::from_json(&value) {
            Some(plain) => Self::from_text_only_message(plain),
            None => Self::json(value, trust),
        }
    }

    fn json(value: Value, trust: MessageOrigin) -> Self {
        Self(MessageForm::Json(Box::new(JsonMessage { value, trust })))
    }

    /// Returns role and texts of a chat message without other members; `None` for any other
    /// message.
    pub fn as_role_and_texts(&self) -> Option<(&'static str, &[String])> {
        let MessageForm::Plain(message) = &self.0 else {
            return None;
        };
        let texts = match &message.content {
            TextOnlyContent::Text(text) => std::slice::from_ref(text),
            TextOnlyContent::Parts(texts) => texts,
        };
        Some((message.role.as_str(), texts))
    }

    /// Returns a copy of the chat message with other JSON and the same origin.
    #[must_use]
    pub fn with_message_json(&self, value: Value) -> Self {
        match &self.0 {
            MessageForm::Plain(_) => Self::new(value, MessageOrigin::Clients),
            MessageForm::Json(message) => Self::new(value, message.trust),
        }
    }

    pub(super) fn is_from_trusted_json(&self) -> bool {
        matches!(&self.0, MessageForm::Json(message) if message.trust == MessageOrigin::Ours)
    }

    /// Returns the chat message as JSON.
    pub fn to_message_json(&self) -> Cow<'_, Value> {
        let plain = match &self.0 {
            MessageForm::Plain(plain) => plain,
            MessageForm::Json(message) => return Cow::Borrowed(&message.value),
        };
        let content = match &plain.content {
            TextOnlyContent::Text(text) => Value::from(text.as_str()),
            TextOnlyContent::Parts(texts) => texts.iter().map(|text| text_part(text)).collect(),
        };
        Cow::Owned(json!({"role": plain.role.as_str(), "content": content}))
    }

    /// Returns the role of the message, such as `user`.
    pub fn role(&self) -> &str {
        match &self.0 {
            MessageForm::Plain(plain) => plain.role.as_str(),
            MessageForm::Json(_) => self.text_member("role").unwrap_or_default(),
        }
    }

    /// Returns the id of the tool call that a tool message answers.
    pub fn tool_call_id(&self) -> Option<&str> {
        self.text_member("tool_call_id")
    }

    /// Returns the reasoning of an assistant message.
    pub fn reasoning_text(&self) -> Option<&str> {
        self.text_member("reasoning")
    }

    /// Returns the content of the message.
    pub fn content(&self) -> ChatContent<'_> {
        let message = match &self.0 {
            MessageForm::Plain(plain) => {
                return match &plain.content {
                    TextOnlyContent::Text(text) => ChatContent::Text(text),
                    TextOnlyContent::Parts(texts) => ChatContent::Texts(texts),
                };
            }
            MessageForm::Json(message) => &message.value,
        };
        match message.get("content") {
            Some(Value::String(text)) => ChatContent::Text(text),
            Some(Value::Array(parts)) => ChatContent::Parts(parts),
            _ => ChatContent::None,
        }
    }

    /// Returns all text of the message's content.
    ///
    /// Content parts are joined with a line feed, as vLLM does for templates that expect a string.
    pub fn content_text(&self) -> Cow<'_, str> {
        match self.content() {
            ChatContent::None => Cow::Borrowed(""),
            ChatContent::Text(text) => Cow::Borrowed(text),
            ChatContent::Texts(texts) => Cow::Owned(texts.join("\n")),
            ChatContent::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(part_text).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }

    /// Iterates over the texts of the message's content.
    pub fn content_texts(&self) -> impl DoubleEndedIterator<Item = &str> {
        let (one, texts, parts) = match self.content() {
            ChatContent::None => (None, &[][..], &[][..]),
            ChatContent::Text(text) => (Some(text), &[][..], &[][..]),
            ChatContent::Texts(texts) => (None, texts, &[][..]),
            ChatContent::Parts(parts) => (None, &[][..], parts),
        };
        let texts = texts.iter().map(String::as_str);
        let parts = parts.iter().filter_map(part_text);
        one.into_iter().chain(texts).chain(parts)
    }

    /// Returns the length of all text in the message's content, in bytes.
    pub fn content_text_len(&self) -> usize {
        self.content_texts().map(str::len).sum()
    }

    /// Iterates over the tool calls of an assistant message.
    pub fn tool_calls(&self) -> impl Iterator<Item = MessageToolCall<'_>> {
        let calls = self.member("tool_calls").and_then(Value::as_array);
        calls.into_iter().flatten().filter_map(|call| {
            let function = call.get("function")?;
            Some(MessageToolCall {
                id: call.get("id").and_then(Value::as_str),
                name: function.get("name")?.as_str()?,
                arguments: function.get("arguments").and_then(Value::as_str).unwrap_or_default(),
            })
        })
    }

    fn text_member(&self, key: &str) -> Option<&str> {
        self.member(key).and_then(Value::as_str)
    }

    /// Returns a message member other than role and content; plain messages have no others.
    fn member(&self, key: &str) -> Option<&Value> {
        match &self.0 {
            MessageForm::Plain(_) => None,
            MessageForm::Json(message) => message.value.get(key),
        }
    }
}

impl RequestField for RequestMessage {
    const SCHEMA: Schema = Schema::Union(MESSAGE_SCHEMAS);

    fn read(value: &Value) -> Option<Self> {
        let plain = TextOnlyMessage::from_json(value).map(Self::from_text_only_message);
        plain.or_else(|| Some(Self::json(value.clone(), MessageOrigin::Clients)))
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Returns the text of a content part of a textual type.
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
