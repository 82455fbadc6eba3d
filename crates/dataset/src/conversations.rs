//! Reads conversations from a JSON file, one at a time.

use std::io::{self, BufRead};
use std::ops::ControlFlow;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::{Deserializer, Value};

/// Conversation in the JSON format of ShareGPT or of OpenAI's `messages`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ConversationFields")]
pub struct Conversation {
    /// Id of the conversation, usually a string.
    pub id: Option<Value>,
    /// Messages of the conversation, the oldest first.
    pub messages: Vec<ConversationMessage>,
}

/// Message of a [`Conversation`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "MessageFields")]
pub struct ConversationMessage {
    /// Role of the message's author, in the terms of OpenAI's API.
    pub role: String,
    /// Text of the message; texts of several content parts are joined by line breaks.
    pub text: String,
}

#[derive(Deserialize)]
struct ConversationFields {
    id: Option<Value>,
    #[serde(alias = "conversation")]
    conversations: Option<Vec<ConversationMessage>>,
    messages: Option<Vec<ConversationMessage>>,
}

#[derive(Deserialize)]
struct MessageFields {
    #[serde(alias = "from")]
    role: String,
    #[serde(alias = "value")]
    content: Option<Value>,
}

impl From<ConversationFields> for Conversation {
    fn from(fields: ConversationFields) -> Self {
        let messages = fields.conversations.or(fields.messages).unwrap_or_default();
        Self { id: fields.id, messages }
    }
}

impl From<MessageFields> for ConversationMessage {
    fn from(fields: MessageFields) -> Self {
        let role = match fields.role.as_str() {
            "human" => "user".to_owned(),
            "gpt" | "chatgpt" | "bing" | "bard" | "model" => "assistant".to_owned(),
            _ => fields.role,
        };
        let text = match fields.content {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        };
        Self { role, text }
    }
}

/// Calls `each` for every conversation of the input until `each` returns `Break`; the rest of the
/// input is then not read.
///
/// The input is a JSON array, or a sequence of JSON values such as JSON lines.
///
/// # Errors
/// Returns an error with the position of invalid input.
pub fn for_each_conversation(
    mut input: impl BufRead,
    mut each: impl FnMut(Conversation) -> ControlFlow<()>,
) -> serde_json::Result<()> {
    if skip_blanks(&mut input).map_err(serde_json::Error::io)? != Some(b'[') {
        for conversation in Deserializer::from_reader(input).into_iter() {
            if each(conversation?).is_break() {
                break;
            }
        }
        return Ok(());
    }
    let mut is_ended = false;
    let visitor = ConversationVisitor(|conversation| {
        is_ended = each(conversation).is_break();
        is_ended
    });
    let read = Deserializer::from_reader(input).deserialize_seq(visitor);
    if is_ended { Ok(()) } else { read }
}

/// Skips white space, and returns the byte that follows; `None` at the end of the input.
fn skip_blanks(input: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        let seen = input.fill_buf()?;
        let blanks = seen.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let (is_end, found) = (seen.is_empty(), seen.get(blanks).copied());
        input.consume(blanks);
        if is_end || found.is_some() {
            return Ok(found);
        }
    }
}

/// Calls a function for the conversations of a list until the function returns true.
struct ConversationVisitor<F>(F);

impl<'de, F: FnMut(Conversation) -> bool> Visitor<'de> for ConversationVisitor<F> {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a list of conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(conversation) = items.next_element()? {
            if (self.0)(conversation) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(text: &str, most: usize) -> serde_json::Result<Vec<String>> {
        let mut found = Vec::new();
        for_each_conversation(text.as_bytes(), |conversation| {
            let shown = conversation.messages.iter().map(|m| format!("{}:{}", m.role, m.text));
            found.push(shown.collect::<Vec<_>>().join("|"));
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }

    #[test]
    fn reads_conversations_from_array_and_jsonl() {
        let share = r#"{"id":"x","conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}"#;
        let openai = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"q"}]},{"role":"assistant","content":"a"}]}"#;
        let expected = ["user:q|assistant:a", "user:q|assistant:a"];
        for text in [format!(" \n[{share}, {openai}]\n"), format!("\n{share}\n{openai}\n\n")] {
            assert_eq!(roles(&text, 9).expect("both are conversations"), expected);
            assert_eq!(roles(&text, 1).expect("the rest is not read"), expected[..1]);
        }
        assert!(roles("", 9).expect("nothing is no error").is_empty());
    }

    #[test]
    fn invalid_conversation_error_names_line() {
        for text in ["[{\"messages\":[{}]}]", "[{}", "hello", "[1]"] {
            let error = roles(text, 9).expect_err(text);
            assert!(error.to_string().contains("line 1 column"), "{error}");
        }
    }
}
