//! A conversation as plain text, for models without a chat template.
//!
//! Source: llm-d-inference-sim `pkg/tokenizer/tokenizer.go` (`RenderMessages`) and
//! `pkg/api/response.go` (`Message.PlainText`).

use serde_json::{Map, Value as Json};

use super::conversation::{ChatMessage, ChatMessages};

/// `### ROLE: TEXT` and a line end per message.
pub(super) fn flatten(messages: ChatMessages<'_>) -> String {
    let size = messages.iter().map(|message| match message {
        ChatMessage::Text { text, .. } => text.len() + "### assistant: \n".len(),
        ChatMessage::Texts { .. } | ChatMessage::Json(_) => 0,
    });
    let mut out = String::with_capacity(size.sum());
    for message in messages.iter() {
        out.push_str("### ");
        match message {
            ChatMessage::Text { role, text } => {
                for piece in [role, ": ", text] {
                    out.push_str(piece);
                }
            }
            ChatMessage::Texts { role, texts } => {
                for piece in [role, ": ", &texts.join("\n")] {
                    out.push_str(piece);
                }
            }
            ChatMessage::Json(Json::Object(message)) => plain(&mut out, message),
            ChatMessage::Json(_) => {}
        }
        out.push('\n');
    }
    out
}

fn plain(out: &mut String, message: &Map<String, Json>) {
    let text = |name: &str| message.get(name).and_then(Json::as_str).unwrap_or_default();
    out.push_str(text("role"));
    if !text("tool_call_id").is_empty() {
        out.push('(');
        out.push_str(text("tool_call_id"));
        out.push(')');
    }
    out.push_str(": ");
    content(out, message);
}

/// What a message says: its texts, the addresses of its images and its calls.
pub fn plain_text(message: &Map<String, Json>) -> String {
    let mut out = String::new();
    content(&mut out, message);
    out
}

fn content(out: &mut String, message: &Map<String, Json>) {
    match message.get("content") {
        Some(Json::String(text)) => out.push_str(text),
        Some(Json::Array(parts)) => {
            let mut empty = true;
            for part in parts.iter().filter_map(part_text) {
                if !empty {
                    out.push('\n');
                }
                empty = false;
                out.push_str(&part);
            }
        }
        _ => {}
    }
    let calls = message.get("tool_calls").and_then(Json::as_array);
    for function in calls
        .into_iter()
        .flatten()
        .filter_map(|call| call.get("function"))
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

/// What a content part says, if anything.
fn part_text(part: &Json) -> Option<String> {
    let kind = part.get("type").and_then(Json::as_str);
    match kind {
        _ if part.is_string() => part.as_str().map(str::to_owned),
        Some("text" | "input_text" | "output_text") | None => {
            part.get("text")?.as_str().map(str::to_owned)
        }
        Some("image_url" | "input_image") => {
            let url = part.get("image_url")?;
            Some(format!(
                "image: {}",
                url.as_str().or_else(|| url.get("url")?.as_str())?
            ))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
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
        ];
        let text = "### user: q1\n### assistant: [f({\"a\":1})][g({\"b\":2})]\n\
                    ### tool(c1): r\nimage: u\n### \n";
        assert_eq!(flatten(messages.as_slice().into()), text);
        assert_eq!(flatten(messages[..1].into()), "### user: q1\n");
        assert_eq!(flatten(ChatMessages::default()), "");
    }
}
