//! Converts the messages of a request to the input of a chat template.
//!
//! Source: `vllm/renderers/chat_utils/chat_message.py` (`parse_chat_messages`).

use vllm_sim_tokenizer::{ChatMessage, MessagePart, TemplateError, TemplateMessage};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::checked_message::{CheckedMessage, text_only_model_fault};
use vllm_sim_wire::openai::message::RequestMessage;

/// Converts the messages of a request to a text-only model; `model` is its first served name.
///
/// # Errors
/// Status 400 for content parts that are malformed, of unknown type, or not text.
pub fn to_template_messages(
    messages: &[RequestMessage],
    model: &str,
) -> Result<Vec<ChatMessage>, Fault> {
    let read = messages.iter().map(|message| read_message(message, model));
    let mut read = read.collect::<Result<Vec<_>, _>>()?;
    for message in &mut read {
        message.parse_arguments().map_err(template_fault)?;
    }
    Ok(read.into_iter().map(ChatMessage::Read).collect())
}

/// Passes messages to the chat template without validation, media included, as llm-d does.
pub fn to_unvalidated_messages(messages: &[RequestMessage]) -> Vec<ChatMessage> {
    let messages = messages.iter().map(|message| match message.as_texts() {
        // A single text is the same with and without validation.
        Some((role, texts @ [_])) if role != "system" => {
            ChatMessage::Read(TemplateMessage::from_texts(role, texts))
        }
        _ => ChatMessage::Sent(message.to_json().into_owned()),
    });
    messages.collect()
}

pub(super) fn template_fault(error: TemplateError) -> Fault {
    Fault { param: error.parameter().map(str::to_owned), ..Fault::bad_request(error.to_string()) }
}

fn read_message(message: &RequestMessage, model: &str) -> Result<TemplateMessage, Fault> {
    if let Some((role, texts)) = message.as_texts() {
        return Ok(TemplateMessage::from_texts(role, texts));
    }
    let message = CheckedMessage::new(message)?;
    let role = message.members().get("role");
    let role = role.and_then(|role| role.as_str()).unwrap_or_default();
    if role == "system" {
        // vLLM looks for a billing header in all parts before it reads the first one.
        message.parts().try_for_each(|part| part.map(drop))?;
    }
    let mut parts = Vec::new();
    for part in message.parts() {
        let part = part?;
        let read = MessagePart::parse_part(role, &part).map_err(template_fault)?;
        if let Some(kind) = read.as_ref().and_then(MessagePart::modality_name) {
            return Err(text_only_model_fault(kind, &part, model));
        }
        parts.extend(read);
    }
    Ok(TemplateMessage::new(message.members(), parts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vllm_sim_tokenizer::{ChatInput, ChatTemplates, ContentFormat};

    use super::*;

    fn shown(messages: &[ChatMessage], format: ContentFormat) -> String {
        let templates = ChatTemplates::default();
        let text = templates.render_chat(&ChatInput {
            messages,
            chat_template: Some("{{ messages }}"),
            content_format: Some(format),
            ..ChatInput::default()
        });
        text.unwrap()
    }

    #[test]
    fn only_one_of_two_billing_lines_is_dropped() {
        let text = "x-anthropic-billing-header: a\nx-anthropic-billing-header: b\nkeep";
        for content in [json!(text), json!([{"type": "text", "text": text}])] {
            let message = RequestMessage::trusted(json!({"role": "system", "content": content}));
            let read = to_template_messages(&[message], "m").unwrap();
            assert_eq!(
                shown(&read, ContentFormat::String),
                r"[{'role': 'system', 'content': 'x-anthropic-billing-header: b\nkeep'}]"
            );
        }
    }

    #[test]
    fn plain_text_messages_render_like_json_messages() {
        let header = "x-anthropic-billing-header: 1";
        let line = format!("{header}\nHi");
        let part = |text: &str| json!({"type": "text", "text": text});
        let contents = [
            json!("Hi"),
            json!(""),
            json!("a\nb"),
            json!(header),
            json!(line),
            json!([part("x")]),
            json!([part(""), part("é"), part("")]),
            json!([part(header), part("b")]),
            json!([part(&line), part("b")]),
        ];
        for role in ["system", "user", "assistant"] {
            for content in &contents {
                let plain = json!({"role": role, "content": content});
                let mut named = plain.clone();
                named["name"] = "x".into();
                for format in [ContentFormat::String, ContentFormat::Openai] {
                    let shown = |message| {
                        let read =
                            to_template_messages(&[RequestMessage::trusted(message)], "m").unwrap();
                        shown(&read, format)
                    };
                    let long = shown(named.clone()).replace(", 'name': 'x'", "");
                    assert_eq!(shown(plain.clone()), long, "{plain}");
                }
            }
        }
    }
}
