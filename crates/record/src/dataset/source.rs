//! Reads conversations from a JSON file, one at a time.

use std::io::BufRead;
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConversationMessage {
    /// Role of the message's author, in the terms of OpenAI's API.
    pub(super) role: String,
    pub(super) text: String,
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(alias = "conversation")]
    conversations: Option<Vec<Turn>>,
    messages: Option<Vec<Turn>>,
}

#[derive(Deserialize)]
struct Turn {
    #[serde(alias = "from")]
    role: String,
    #[serde(alias = "value")]
    content: Option<Value>,
}

impl Conversation {
    fn into_messages(self) -> Vec<ConversationMessage> {
        let turns = self.conversations.or(self.messages).unwrap_or_default();
        turns.into_iter().map(Turn::into_message).collect()
    }
}

impl Turn {
    fn into_message(self) -> ConversationMessage {
        let role = match self.role.as_str() {
            "human" => "user".to_owned(),
            "gpt" | "chatgpt" | "bing" | "bard" | "model" => "assistant".to_owned(),
            _ => self.role,
        };
        let text = match self.content {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        };
        ConversationMessage { role, text }
    }
}

/// Calls `each` for every conversation of the input until `each` returns `Break`.
///
/// The input is a JSON array, or a sequence of JSON values such as JSON lines.
///
/// # Errors
/// Returns an error with the position of invalid input, and the errors of `each`.
pub(super) fn for_each_conversation(
    mut input: impl BufRead,
    mut each: impl FnMut(Vec<ConversationMessage>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let first = loop {
        let seen = input.fill_buf()?;
        if seen.is_empty() {
            return Ok(());
        }
        let blanks = seen.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let found = seen.get(blanks).copied();
        input.consume(blanks);
        if let Some(found) = found {
            break found;
        }
    };
    let what = "neither ShareGPT conversations nor OpenAI messages";
    if first != b'[' {
        for item in serde_json::Deserializer::from_reader(input).into_iter::<Conversation>() {
            if each(item.context(what)?.into_messages())?.is_break() {
                break;
            }
        }
        return Ok(());
    }
    let mut outcome = Ok(ControlFlow::Continue(()));
    let list = ConversationVisitor { each: &mut each, outcome: &mut outcome };
    let read = serde_json::Deserializer::from_reader(input).deserialize_seq(list);
    match outcome? {
        // The rest of the input is not needed.
        ControlFlow::Break(()) => Ok(()),
        ControlFlow::Continue(()) => read.context(what),
    }
}

struct ConversationVisitor<'e, F> {
    each: &'e mut F,
    outcome: &'e mut Result<ControlFlow<()>>,
}

impl<'de, F: FnMut(Vec<ConversationMessage>) -> Result<ControlFlow<()>>> Visitor<'de>
    for ConversationVisitor<'_, F>
{
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a list of conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<Conversation>()? {
            *self.outcome = (self.each)(item.into_messages());
            if !matches!(self.outcome, Ok(ControlFlow::Continue(()))) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(text: &str, most: usize) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for_each_conversation(text.as_bytes(), |messages| {
            let shown = messages.iter().map(|m| format!("{}:{}", m.role, m.text));
            found.push(shown.collect::<Vec<_>>().join("|"));
            Ok(if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
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
            assert!(format!("{error:#}").contains("line 1 column"), "{error:#}");
        }
    }
}
