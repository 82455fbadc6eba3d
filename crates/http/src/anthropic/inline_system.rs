//! Moves the system messages that appear inside an Anthropic conversation.
//!
//! Leading system messages join the system prompt. Later ones stay if the chat template renders
//! them there; otherwise their text joins an adjacent user message.
//!
//! Source: `vllm/entrypoints/anthropic/inline_system.py`.

use serde_json::json;

use crate::app::App;
use vllm_sim_tokenizer::ChatTemplateInput;
use vllm_sim_wire::anthropic::{AnthropicContent, AnthropicContentBlock, AnthropicMessage};

/// Prefix of Claude Code's attribution text, which differs in each request and would prevent
/// prefix-cache hits.
const BILLING_HEADER_PREFIX: &str = "x-anthropic-billing-header";

/// Joins nonempty texts, with a blank line between two texts.
pub(super) fn join_paragraphs(texts: &[&str]) -> String {
    let said: Vec<&str> = texts.iter().filter(|t| !t.is_empty()).copied().collect();
    said.join("\n\n")
}

pub(super) fn system_prompt_text(system: &AnthropicContent) -> String {
    match system {
        AnthropicContent::Text(text) => text.clone(),
        AnthropicContent::Blocks(blocks) => blocks_text(blocks),
    }
}

pub(super) fn message_text(message: &AnthropicMessage) -> String {
    match &message.content {
        AnthropicContent::Text(text) if text.starts_with(BILLING_HEADER_PREFIX) => String::new(),
        AnthropicContent::Text(text) => text.clone(),
        AnthropicContent::Blocks(blocks) => blocks_text(blocks),
    }
}

fn blocks_text(blocks: &[AnthropicContentBlock]) -> String {
    let texts = blocks.iter().filter(|block| block.kind == "text");
    texts
        .filter_map(|block| block.text.as_deref())
        .filter(|text| !text.starts_with(BILLING_HEADER_PREFIX))
        .collect()
}

/// Returns the system prompt joined with the leading system messages, and the remaining messages.
pub(super) fn split_leading_system_messages(
    app: &App,
    system: &str,
    messages: &[AnthropicMessage],
) -> (String, Vec<AnthropicMessage>) {
    if messages.iter().all(|m| m.role != "system") {
        return (String::new(), messages.to_vec());
    }
    let head = messages.iter().take_while(|m| m.role == "system").count();
    let texts: Vec<String> = messages[..head].iter().map(message_text).collect();
    let leading = join_paragraphs(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let rest = move_system_after_tool_results(&messages[head..]);
    let kept = !(system.is_empty() && leading.is_empty()) && template_keeps_inline_system(app);
    (leading, if kept { rest } else { merge_system_into_user_messages(rest) })
}

/// Returns whether the chat template renders a system message in the middle of a conversation.
fn template_keeps_inline_system(app: &App) -> bool {
    const PROBE_TEXT: &str = "Echo inline note";
    let say = |role: &str, text: &str| json!({"role": role, "content": text}).into();
    let messages = [
        say("system", "Alpha leading instructions"),
        say("user", "Bravo first question"),
        say("assistant", "Charlie first answer"),
        say("system", PROBE_TEXT),
        say("user", "Delta second question"),
    ];
    let kwargs = app.settings.model.chat_template_kwargs.clone();
    let rendered = app.service.generator.tokenizer().render_chat(&ChatTemplateInput {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        chat_template: None,
        kwargs: Some(&kwargs),
        content_format: None,
    });
    rendered.is_ok_and(|text| text.contains(PROBE_TEXT))
}

/// Moves each system message between a tool use and its results to after the results.
fn move_system_after_tool_results(messages: &[AnthropicMessage]) -> Vec<AnthropicMessage> {
    let mut out = Vec::with_capacity(messages.len());
    let mut held = Vec::new();
    let mut awaiting = false;
    for message in messages {
        if message.role == "system" {
            if awaiting {
                held.push(message.clone());
            } else {
                out.push(message.clone());
            }
            continue;
        }
        if message.role == "assistant" {
            out.append(&mut held);
        }
        out.push(message.clone());
        if message.role == "user" {
            out.append(&mut held);
        }
        awaiting = message.role == "assistant"
            && matches!(&message.content, AnthropicContent::Blocks(blocks) if blocks.iter().any(|b| b.kind == "tool_use"));
    }
    out.append(&mut held);
    out
}

/// Joins the text of system messages to the preceding user message, or to the following one if no
/// user message precedes.
fn merge_system_into_user_messages(messages: Vec<AnthropicMessage>) -> Vec<AnthropicMessage> {
    let mut out: Vec<AnthropicMessage> = Vec::with_capacity(messages.len());
    let mut pending: Vec<String> = Vec::new();
    let user = |text: String| AnthropicMessage {
        role: "user".to_owned(),
        content: AnthropicContent::Text(text),
    };
    for mut message in messages {
        if message.role == "system" {
            let text = message_text(&message);
            match out.last_mut().filter(|last| last.role == "user") {
                _ if text.is_empty() => {}
                Some(last) if pending.is_empty() => append_text(&mut last.content, &text),
                _ => pending.push(text),
            }
            continue;
        }
        if !pending.is_empty() {
            let text = pending.join("\n\n");
            pending.clear();
            if message.role == "user" {
                prepend_text(&mut message.content, &text);
            } else {
                out.push(user(text));
            }
        }
        out.push(message);
    }
    if !pending.is_empty() {
        out.push(user(pending.join("\n\n")));
    }
    out
}

fn append_text(content: &mut AnthropicContent, text: &str) {
    match content {
        AnthropicContent::Text(said) => *said = join_paragraphs(&[said, text]),
        AnthropicContent::Blocks(blocks) => match blocks.last_mut().filter(|b| b.kind == "text") {
            Some(last) => {
                last.text = Some(join_paragraphs(&[last.text.as_deref().unwrap_or(""), text]))
            }
            None => blocks.extend(text_block(text)),
        },
    }
}

fn prepend_text(content: &mut AnthropicContent, text: &str) {
    match content {
        AnthropicContent::Text(said) => *said = join_paragraphs(&[text, said]),
        AnthropicContent::Blocks(blocks) => match blocks.first_mut().filter(|b| b.kind == "text") {
            Some(first) => {
                first.text = Some(join_paragraphs(&[text, first.text.as_deref().unwrap_or("")]))
            }
            None => {
                if let Some(block) = text_block(text) {
                    blocks.insert(0, block);
                }
            }
        },
    }
}

fn text_block(text: &str) -> Option<AnthropicContentBlock> {
    use vllm_sim_wire::schema::RequestField;
    AnthropicContentBlock::read(&json!({"type": "text", "text": text}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(role: &str, text: &str) -> AnthropicMessage {
        AnthropicMessage { role: role.to_owned(), content: AnthropicContent::Text(text.to_owned()) }
    }

    #[test]
    fn system_text_joins_the_user_before_or_after_it() {
        let messages = vec![
            say("user", "a"),
            say("system", "b"),
            say("assistant", "c"),
            say("system", "d"),
            say("user", "e"),
        ];
        let expected = [say("user", "a\n\nb"), say("assistant", "c"), say("user", "d\n\ne")];
        assert_eq!(merge_system_into_user_messages(messages), expected);
    }

    #[test]
    fn a_billing_header_is_dropped() {
        let message = say("system", "x-anthropic-billing-header: 1");
        assert_eq!(message_text(&message), "");
        assert_eq!(join_paragraphs(&["a", "", "b"]), "a\n\nb");
    }
}
