//! From the messages of a request to what a chat template is given.
//!
//! The schema leaves the parts of a message unread (`Iterable`); they are looked at here, one
//! after the other, and what they cannot be is refused in pydantic's or vLLM's words. Our models
//! read text only, so media is refused as a text-only model refuses it.
//!
//! Source: `vllm/renderers/chat_utils/chat_message.py`.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use vllm_sim_python::{self as python, Py};

use super::message::{Message, PlainContent, PlainMessage, Speaker, text_part, text_parts};
use super::message_schema;
use crate::check;
use crate::fault::Fault;
use crate::schema::Schema;

/// How a template wants the content of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// One string, parts joined with a line feed.
    String,
    /// A list of typed parts.
    OpenAi,
}

/// Keys of parts that templates know; others are handed through.
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

/// Line that Claude Code puts into its system prompt, different in every request.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// A message as a template sees it.
#[derive(Debug, Clone, PartialEq)]
pub enum ShownMessage {
    /// One text and nothing else.
    Text {
        /// Who speaks.
        role: &'static str,
        /// What it says.
        text: String,
    },
    /// Parts that are all of type `text`, and nothing else.
    Texts {
        /// Who speaks.
        role: &'static str,
        /// What it says.
        texts: Vec<String>,
    },
    /// Any message.
    Json(Box<Value>),
}

impl ShownMessage {
    /// The message as JSON.
    pub fn into_json(self) -> Value {
        match self {
            Self::Text { role, text } => json!({"role": role, "content": text}),
            Self::Texts { role, texts } => json!({"role": role, "content": text_parts(&texts)}),
            Self::Json(message) => *message,
        }
    }
}

impl From<&Message> for ShownMessage {
    /// The message as it was sent.
    fn from(message: &Message) -> Self {
        let Some(plain) = message.as_plain() else {
            return message.to_json().into_owned().into();
        };
        let role = plain.role.as_str();
        match plain.content.clone() {
            PlainContent::Text(text) => Self::Text { role, text },
            PlainContent::Parts(texts) => Self::Texts { role, texts },
        }
    }
}

impl From<Value> for ShownMessage {
    fn from(message: Value) -> Self {
        Self::Json(Box::new(message))
    }
}

/// The messages as a template sees them; `model` is the first served name.
///
/// # Errors
/// 400 for parts that are malformed, of unknown type, or not text.
pub fn conversation(
    messages: &[Message],
    format: ContentFormat,
    model: &str,
) -> Result<Vec<ShownMessage>, Fault> {
    let mut out = Vec::with_capacity(messages.len());
    for message in messages {
        out.push(match message.as_plain() {
            Some(plain) => shown(plain, format),
            None => Value::Object(any(message, format, model)?).into(),
        });
    }
    for message in &mut out {
        if let ShownMessage::Json(message) = message {
            decode_arguments(message)?;
        }
    }
    Ok(out)
}

/// A message that is nothing but text.
fn shown(message: &PlainMessage, format: ContentFormat) -> ShownMessage {
    let role = message.role.as_str();
    let texts = match &message.content {
        PlainContent::Text(text) => std::slice::from_ref(text),
        PlainContent::Parts(texts) => texts,
    };
    let texts = texts.iter().filter_map(|text| match message.role {
        Speaker::System => match behind_billing(text) {
            Some("") => None,
            Some(rest) => Some(rest),
            None => Some(text.as_str()),
        },
        Speaker::User | Speaker::Assistant => Some(text.as_str()),
    });
    match format {
        ContentFormat::String => {
            let mut joined = String::with_capacity(texts.clone().map(|text| text.len() + 1).sum());
            for text in texts.filter(|text| !text.is_empty()) {
                if !joined.is_empty() {
                    joined.push('\n');
                }
                joined.push_str(text);
            }
            ShownMessage::Text { role, text: joined }
        }
        ContentFormat::OpenAi => ShownMessage::Texts {
            role,
            texts: texts.map(str::to_owned).collect(),
        },
    }
}

fn any(message: &Message, format: ContentFormat, model: &str) -> Result<Map<String, Value>, Fault> {
    let (message, parts) = taken(message)?;
    let role = message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let parts = if role == "system" {
        without_billing(&parts)?
    } else {
        parts
    };
    let content = joined(&parts, format, model)?;

    let mut out = Map::new();
    out.insert("role".to_owned(), Value::from(role.as_str()));
    out.insert("content".to_owned(), content);
    let given = |key: &str| message.get(key).filter(|value| !value.is_null()).cloned();
    match role.as_str() {
        "assistant" => {
            if let Some(calls) = given("tool_calls") {
                out.insert("tool_calls".to_owned(), calls);
            }
            if let Some(reasoning) = given("reasoning") {
                out.insert("reasoning".to_owned(), reasoning.clone());
                out.insert("reasoning_content".to_owned(), reasoning);
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                out.insert("tool_call_id".to_owned(), id.clone());
            }
            flatten_tool_result(&mut out);
        }
        _ => {}
    }
    for key in ["name", "task"] {
        if let Some(text @ Value::String(_)) = message.get(key) {
            out.insert(key.to_owned(), text.clone());
        }
    }
    if role == "developer" {
        out.insert(
            "tools".to_owned(),
            message.get("tools").cloned().unwrap_or(Value::Null),
        );
    }
    Ok(out)
}

/// The parts of a message's content, perhaps still to be checked one by one.
struct ContentParts {
    items: Vec<Value>,
    lazy: Option<&'static Schema>,
}

impl ContentParts {
    fn get(&self, index: usize) -> Result<Cow<'_, Value>, Fault> {
        let item = &self.items[index];
        match self.lazy {
            Some(schema) => check::item(schema, index, item).map(Cow::Owned),
            None => Ok(Cow::Borrowed(item)),
        }
    }
}

/// A message as the class pydantic chose for it, and its parts.
fn taken(message: &Message) -> Result<(Value, ContentParts), Fault> {
    let none = ContentParts {
        items: Vec::new(),
        lazy: None,
    };
    let json = message.to_json().into_owned();
    if message.is_trusted() {
        let items = match json.get("content") {
            Some(Value::String(text)) => vec![text_part(text)],
            Some(Value::Array(parts)) => parts.clone(),
            _ => Vec::new(),
        };
        return Ok((json, ContentParts { items, lazy: None }));
    }
    let Some((branch, mut shaped)) = check::winner(message_schema::MESSAGE, &json) else {
        return Ok((json, none));
    };
    if shaped.get("role").is_none() {
        // `openai_harmony.Message` is no dict.
        return Err(Fault::bad_request("'Message' object is not subscriptable"));
    }
    let lazy = message_schema::lazy_part(branch);
    let parts = match shaped.get("content").map(Py::of) {
        Some(Py::Str(text)) => ContentParts {
            items: vec![text_part(text)],
            lazy: None,
        },
        Some(Py::List(parts)) => ContentParts {
            items: parts.to_vec(),
            lazy,
        },
        Some(Py::Dict(map)) => ContentParts {
            items: map.keys().map(|key| Value::from(key.as_str())).collect(),
            lazy,
        },
        _ => none,
    };
    if branch == message_schema::ASSISTANT_BRANCH
        && let Some(Value::Array(calls)) = shaped.get_mut("tool_calls")
    {
        for call in calls {
            if let Some((_, shaped)) = check::winner(message_schema::TOOL_CALL, call) {
                *call = shaped;
            }
        }
    }
    Ok((shaped, parts))
}

/// What follows the first line of a text that starts with [`BILLING_HEADER`].
fn behind_billing(text: &str) -> Option<&str> {
    text.starts_with(BILLING_HEADER)
        .then(|| text.split_once('\n').map_or("", |(_, rest)| rest))
}

/// Drops the first line of system texts that start with [`BILLING_HEADER`].
fn without_billing(parts: &ContentParts) -> Result<ContentParts, Fault> {
    let mut items = Vec::with_capacity(parts.items.len());
    for index in 0..parts.items.len() {
        let mut part = parts.get(index)?.into_owned();
        let text = match &part {
            Value::String(text) => Some(text.as_str()),
            Value::Object(map) if map.get("type").is_some_and(|kind| kind == "text") => {
                map.get("text").and_then(Value::as_str)
            }
            _ => None,
        };
        if let Some(rest) = text.and_then(behind_billing).map(str::to_owned) {
            if rest.is_empty() {
                continue;
            }
            match &mut part {
                Value::Object(map) => {
                    map.insert("text".to_owned(), Value::from(rest));
                }
                part => *part = Value::from(rest),
            }
        }
        items.push(part);
    }
    Ok(ContentParts { items, lazy: None })
}

/// The content that the parts make.
fn joined(parts: &ContentParts, format: ContentFormat, model: &str) -> Result<Value, Fault> {
    let mut items = Vec::with_capacity(parts.items.len());
    for index in 0..parts.items.len() {
        let part = parts.get(index)?;
        items.extend(parsed(&part, format, model)?.filter(|item| Py::of(item).truthy()));
    }
    Ok(match format {
        ContentFormat::OpenAi => Value::Array(items),
        ContentFormat::String => {
            let texts: Vec<String> = items.iter().map(python::str).collect();
            Value::from(texts.join("\n"))
        }
    })
}

/// Says why a prompt in embeddings is refused.
fn prompt_embeds(part: &Map<String, Value>) -> Fault {
    let data = part.get("data").and_then(Value::as_str);
    let text = if data.is_none_or(str::is_empty) {
        "prompt_embeds content part requires a non-empty `data` field with \
         base64-encoded tensor bytes."
    } else {
        "You must set `--enable-prompt-embeds` to input `prompt_embeds`"
    };
    Fault::parameter(text, "prompt_embeds")
}

/// `parse_chat_message_content_part`.
fn parsed(part: &Value, format: ContentFormat, model: &str) -> Result<Option<Value>, Fault> {
    let wrapped = |text: &str, part: &Map<String, Value>| match format {
        ContentFormat::String => Value::from(text),
        ContentFormat::OpenAi => {
            let mut item = text_part(text);
            if let Value::Object(item) = &mut item {
                let extra = part
                    .iter()
                    .filter(|(key, _)| !KNOWN.contains(&key.as_str()));
                item.extend(extra.map(|(key, value)| (key.clone(), value.clone())));
            }
            item
        }
    };
    let part = match part {
        Value::String(text) => return Ok(Some(wrapped(text, &Map::new()))),
        Value::Object(part) => part,
        _ => return Ok(None),
    };
    let uuid = part.get("uuid").is_some_and(|uuid| !uuid.is_null());
    let typed = !uuid && part.get("type").is_some_and(Value::is_string);
    let kind = match part.get("type") {
        Some(Value::String(kind)) if known(kind) && !uuid => kind.as_str(),
        None | Some(Value::Null) => untyped(part)?,
        Some(_) if uuid => untyped(part)?,
        Some(Value::String(kind)) => kind,
        Some(_) => {
            return Err(Fault::parameter(
                "Invalid 'type' field in multimodal part.",
                "type",
            ));
        }
    };
    let key = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" | "thinking" => kind,
        "tool_reference" => {
            let name = part.get("name").cloned().unwrap_or(Value::Null);
            return Ok(Some(match format {
                ContentFormat::String => name,
                ContentFormat::OpenAi => Value::Object(Map::from_iter([
                    ("type".to_owned(), Value::from("tool_reference")),
                    ("name".to_owned(), name),
                ])),
            }));
        }
        "prompt_embeds" => return Err(prompt_embeds(part)),
        kind if known(kind) => {
            if let Some(class) = message_schema::address_part(kind)
                && typed
            {
                check::apart(class, &Value::Object(part.clone()))?;
            }
            return Err(Fault::bad_request(format!(
                "{model} is not a multimodal model"
            )));
        }
        kind => return Err(unsupported(kind)),
    };
    Ok(part
        .get(key)
        .and_then(Value::as_str)
        .map(|text| wrapped(text, part)))
}

/// The types of parts that have a reader.
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

fn known(kind: &str) -> bool {
    TYPES.contains(&kind)
}

/// The type of a part that does not say it, from the key it has.
fn untyped(part: &Map<String, Value>) -> Result<&'static str, Fault> {
    const KEYS: [&str; 10] = [
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
    KEYS.into_iter()
        .find(|key| part.contains_key(*key))
        .ok_or_else(|| Fault::parameter("Missing 'type' field in multimodal part.", "type"))
}

fn unsupported(kind: &str) -> Fault {
    Fault::value(
        format_args!(
            "Unsupported chat content part type: {}. Supported types: {}.",
            python::repr_str(kind),
            TYPES.join(", ")
        ),
        "type",
        kind,
    )
}

/// A tool's answer in text parts becomes one string; other parts stay as they are.
fn flatten_tool_result(message: &mut Map<String, Value>) {
    let Some(Value::Array(items)) = message.get("content") else {
        return;
    };
    if items
        .iter()
        .any(|item| item.get("type").is_none_or(|kind| kind != "text"))
    {
        return;
    }
    let texts: Vec<&str> = items
        .iter()
        .filter_map(|item| item.get("text").and_then(Value::as_str))
        .collect();
    let text = texts.join("\n");
    message.insert("content".to_owned(), Value::from(text));
}

/// `_postprocess_messages`: arguments of calls become objects, as templates expect them.
fn decode_arguments(message: &mut Value) -> Result<(), Fault> {
    let Some(message) = message.as_object_mut() else {
        return Ok(());
    };
    if message.get("role").is_none_or(|role| role != "assistant") {
        return Ok(());
    }
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else {
        return Ok(());
    };
    if calls.is_empty() {
        message.shift_remove("tool_calls");
        return Ok(());
    }
    for call in calls {
        let Some(call) = call.as_object_mut() else {
            return Err(Fault::parameter(
                "assistant tool_calls entries must be objects.",
                "tool_calls",
            ));
        };
        let plain = call.get("type").is_none_or(|kind| kind == "function");
        let Some(Value::Object(function)) = call.get_mut("function").filter(|_| plain) else {
            return Err(Fault::parameter(
                "chat completions only support assistant tool_calls of type 'function'.",
                "tool_calls",
            ));
        };
        let arguments = match function.get("arguments") {
            Some(Value::Object(map)) => Value::Object(map.clone()),
            Some(Value::String(text)) => match python::loads(text.as_bytes()) {
                Ok(Value::Object(map)) => Value::Object(map),
                _ => Value::Object(Map::new()),
            },
            _ => Value::Object(Map::new()),
        };
        function.insert("arguments".to_owned(), arguments);
    }
    Ok(())
}
