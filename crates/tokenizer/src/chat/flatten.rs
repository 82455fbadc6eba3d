//! Formats a conversation as plain text, for models without a chat template.
//!
//! **Source:** llm-d-inference-sim `pkg/tokenizer/tokenizer.go` (`RenderMessages`) and
//! `pkg/api/response.go` (`Message.PlainText`).

use serde_json::{Map, Value as Json};

use super::content_format::ContentFormat;
use super::message::{ChatMessage, TemplateMessage};

/// Formats each message of a conversation as `### ROLE: TEXT` and a newline.
pub(super) fn flatten_messages(messages: &[ChatMessage], format: ContentFormat) -> String {
    let mut out = String::new();
    for message in messages {
        out.push_str("### ");
        match message {
            ChatMessage::Read(message) => write_parsed_message(&mut out, message, format),
            ChatMessage::Sent(Json::Object(message)) => write_raw_message(&mut out, message),
            ChatMessage::Sent(_) => {}
        }
        out.push('\n');
    }
    out
}

fn write_parsed_message(out: &mut String, message: &TemplateMessage, format: ContentFormat) {
    let call = message.extra_field("tool_call_id").and_then(Json::as_str);
    write_message_head(out, &message.role, call);
    out.push_str(&message.content_text(format));
    write_tool_calls(out, message.extra_field("tool_calls"));
}

fn write_raw_message(out: &mut String, message: &Map<String, Json>) {
    let text = |name: &str| message.get(name).and_then(Json::as_str);
    write_message_head(out, text("role").unwrap_or_default(), text("tool_call_id"));
    write_content(out, message);
}

/// Appends a message's role, and the id of the tool call that a tool message answers.
fn write_message_head(out: &mut String, role: &str, call: Option<&str>) {
    out.push_str(role);
    if let Some(call) = call.filter(|call| !call.is_empty()) {
        for piece in ["(", call, ")"] {
            out.push_str(piece);
        }
    }
    out.push_str(": ");
}

/// Returns a message as plain text: its texts, image URLs and tool calls.
pub fn message_plain_text(message: &Map<String, Json>) -> String {
    let mut out = String::new();
    write_content(&mut out, message);
    out
}

fn write_content(out: &mut String, message: &Map<String, Json>) {
    match message.get("content") {
        Some(Json::String(text)) => out.push_str(text),
        Some(Json::Array(parts)) => {
            let mut empty = true;
            for part in parts.iter().filter_map(content_part_text) {
                if !empty {
                    out.push('\n');
                }
                empty = false;
                out.push_str(&part);
            }
        }
        _ => {}
    }
    write_tool_calls(out, message.get("tool_calls"));
}

fn write_tool_calls(out: &mut String, calls: Option<&Json>) {
    for function in
        calls.and_then(Json::as_array).into_iter().flatten().filter_map(|call| call.get("function"))
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

fn content_part_text(part: &Json) -> Option<String> {
    let kind = part.get("type").and_then(Json::as_str);
    match kind {
        _ if part.is_string() => part.as_str().map(str::to_owned),
        Some("text" | "input_text" | "output_text") | None => {
            part.get("text")?.as_str().map(str::to_owned)
        }
        Some("image_url" | "input_image") => {
            let url = part.get("image_url")?;
            Some(format!("image: {}", url.as_str().or_else(|| url.get("url")?.as_str())?))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ChatInput, ChatTemplates};
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
        ]
        .map(ChatMessage::from);
        let text = "### user: q1\n### assistant: [f({\"a\":1})][g({\"b\":2})]\n\
                    ### tool(c1): r\nimage: u\n### \n";
        assert_eq!(flatten_messages(&messages, ContentFormat::String), text);
        assert_eq!(flatten_messages(&[], ContentFormat::String), "");
        let continued = ChatInput {
            messages: &messages[..1],
            continue_final_message: true,
            ..ChatInput::default()
        };
        let text = ChatTemplates::default().render_chat(&continued);
        assert_eq!(text.unwrap(), "### user: q1");
    }
}
