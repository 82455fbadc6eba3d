//! Chat messages after pydantic has chosen their class.
//!
//! Schema validation leaves the parts of a message unchecked (`Iterable`). Each part is checked
//! when the chat template reads it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::message_schema;
use super::request_message::RequestMessage;
use crate::body;
use crate::fault::Fault;
use crate::schema::Schema;

/// A chat message whose Python class has been determined, and whose content parts may still be
/// unchecked.
#[derive(Debug)]
pub struct ValidatedChatMessage {
    members: Map<String, Value>,
    parts: Vec<Value>,
    lazy: Option<&'static Schema>,
}

impl ValidatedChatMessage {
    /// Determines the Python class that pydantic chooses for a chat message.
    ///
    /// # Errors
    /// A 400 for a message of `openai_harmony`, which is not a dict.
    pub fn new(message: &RequestMessage) -> Result<Self, Fault> {
        let json = message.to_message_json();
        if message.is_from_trusted_json() {
            return Ok(Self::with_parts(json.into_owned(), None));
        }
        let Some((branch, mut shaped)) =
            body::best_union_branch(message_schema::MESSAGE_SCHEMAS, &json)
        else {
            let mut unknown = Self::with_parts(json.into_owned(), None);
            unknown.parts.clear();
            return Ok(unknown);
        };
        if shaped.get("role").is_none() {
            return Err(Fault::bad_request("'Message' object is not subscriptable"));
        }
        if branch == message_schema::ASSISTANT_BRANCH_INDEX
            && let Some(Value::Array(calls)) = shaped.get_mut("tool_calls")
        {
            for call in calls {
                if let Some((_, shaped)) =
                    body::best_union_branch(message_schema::TOOL_CALL_SCHEMAS, call)
                {
                    *call = shaped;
                }
            }
        }
        let lazy = message_schema::unchecked_part_schema(branch);
        Ok(Self::with_parts(shaped, lazy))
    }

    fn with_parts(message: Value, lazy: Option<&'static Schema>) -> Self {
        let mut members = match message {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        // Routes that do not rename this member to `reasoning` ignore it.
        members.shift_remove("reasoning_content");
        let (parts, lazy) = match members.shift_remove("content") {
            Some(text @ Value::String(_)) => (vec![text], None),
            Some(Value::Array(parts)) => (parts, lazy),
            // Python iterates over the keys of an object.
            Some(Value::Object(map)) if lazy.is_some() => {
                (map.into_iter().map(|(key, _)| key.into()).collect(), lazy)
            }
            _ => (Vec::new(), None),
        };
        Self { members, parts, lazy }
    }

    /// Returns the members of the chat message except its content.
    pub fn message_members_except_content(&self) -> &Map<String, Value> {
        &self.members
    }

    /// Iterates over the parts of the message's content; each part is checked when the iterator
    /// returns it.
    pub fn content_parts(&self) -> impl Iterator<Item = Result<Cow<'_, Value>, Fault>> {
        let parts = self.parts.iter().enumerate();
        parts.map(|(index, part)| match self.lazy {
            Some(schema) => body::validate_iterable_item(schema, index, part).map(Cow::Owned),
            None => Ok(Cow::Borrowed(part)),
        })
    }
}

/// Returns the error for a content part of type `kind` in a chat message, since the served model
/// `model` accepts only text.
pub fn text_only_model_fault(kind: &str, part: &Value, model: &str) -> Fault {
    if kind == "prompt_embeds" {
        let data = part.get("data").and_then(Value::as_str);
        let text = match data.is_none_or(str::is_empty) {
            true => {
                "prompt_embeds content part requires a non-empty `data` field with \
                 base64-encoded tensor bytes."
            }
            false => "You must set `--enable-prompt-embeds` to input `prompt_embeds`",
        };
        return Fault::bad_parameter(text, "prompt_embeds");
    }
    let uuid = part.get("uuid").is_some_and(|uuid| !uuid.is_null());
    let typed = !uuid && part.get("type").is_some_and(Value::is_string);
    message_schema::url_content_part_schema(kind)
        .filter(|_| typed)
        .and_then(|schema| body::validate_json_value(schema, part).err())
        .unwrap_or_else(|| Fault::bad_request(format!("{model} is not a multimodal model")))
}
