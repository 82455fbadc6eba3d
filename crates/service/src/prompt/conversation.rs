//! Converts a chat conversation to a prompt: media, chat template, tokenization, truncation.
//!
//! Source of the messages of a template: `vllm/renderers/chat_utils/chat_message.py`
//! (`parse_chat_messages`).

use std::sync::Arc;

use super::media::ConversationMedia;
use super::{Conversation, PromptLengthLimit, schema};
use crate::dialect::RequestRules;
use crate::generate::request::TokenizedPrompt;
use crate::{InferenceService, is_large_text, run_blocking_if_large};
use vllm_sim_tokenizer::{
    ChatInput, ChatMessage, MessagePart, PlacedMediaItem, SpecialTokens, TemplateError,
    TemplateMessage,
};
use vllm_sim_wire::openai::checked_message::{ValidatedChatMessage, text_only_model_fault};
use vllm_sim_wire::openai::message::RequestMessage;
use vllm_sim_wire::{Fault, ServerLimits};

impl InferenceService {
    pub(super) async fn conversation_prompt(
        self: &Arc<Self>,
        rules: &RequestRules,
        mut conversation: Conversation,
    ) -> Result<TokenizedPrompt, Fault> {
        let messages = &conversation.messages;
        let prompt = TokenizedPrompt {
            echo: match messages.last() {
                Some(last) => rules.dialect.echo_text(last).into(),
                None => "".into(),
            },
            text_hash: {
                let said = messages.iter().map(|m| (m.role(), m.content_text()));
                self.generator.conversation_hash(said)
            },
            schema: match rules.dialect.follows_prompt_schemas()
                && self.generator.generates_random_text()
            {
                true => schema::find_prompt_schema(
                    messages.iter().flat_map(RequestMessage::content_texts),
                )
                .map(Arc::new),
                false => None,
            },
            ..TokenizedPrompt::default()
        };
        let bound = conversation.bound;
        let given = std::mem::take(&mut conversation.token_ids).into_result()?;
        let (tokens, media) = match given {
            Some(tokens) => (tokens, Vec::new()),
            None => self.conversation_tokens(rules, conversation).await?,
        };
        if bound == PromptLengthLimit::RoomForOutput {
            rules.dialect.check_response_prompt_length(&rules.limits, tokens.len())?;
        }
        Ok(TokenizedPrompt { tokens, media, ..prompt })
    }

    /// Tokenizes a chat conversation with the chat template.
    ///
    /// # Errors
    /// Status 400 for unsupported media, a failing template, or a prompt that is too long.
    pub async fn conversation_tokens(
        self: &Arc<Self>,
        rules: &RequestRules,
        conversation: Conversation,
    ) -> Result<(Vec<u32>, Vec<PlacedMediaItem>), Fault> {
        self.check_tokenizer()?;
        let (truncation, bound) = (conversation.truncation, conversation.bound);
        let size = conversation.messages.iter().map(RequestMessage::text_len).sum();
        let (messages, mut found) = self.template_messages(rules, &conversation)?;
        let marked = std::mem::take(&mut found.marked);
        let checked = bound != PromptLengthLimit::None && truncation.keep.is_none();
        let dialect = rules.dialect;
        let encode = move |service: &Self, limits: &ServerLimits| {
            let tokenizer = service.generator.tokenizer();
            let text = service.render_template(&conversation, &messages)?;
            if checked {
                dialect.check_text_length(limits, &text, tokenizer.max_token_chars())?;
            }
            let special = conversation.add_special_tokens;
            if marked.is_empty() {
                return Ok::<_, Fault>((
                    tokenizer.encode(&text, SpecialTokens::from_bool(special)),
                    Vec::new(),
                ));
            }
            Ok(tokenizer.encode_media(&text, SpecialTokens::from_bool(special), &marked))
        };
        let (tokens, mut media) = match is_large_text(size) {
            false => encode(self, &rules.limits)?,
            true => {
                let (service, limits) = (self.clone(), rules.limits.clone());
                run_blocking_if_large(size, move || encode(&service, &limits)).await?
            }
        };
        let whole = tokens.len();
        let tokens = truncation.truncate_tokens(self.generator.tokenizer(), &rules.limits, tokens);
        truncation.truncate_media(&mut media, whole - tokens.len(), tokens.len());
        if bound != PromptLengthLimit::None {
            rules.dialect.check_encoded_length(&rules.limits, tokens.len())?;
        }
        if !found.spread.is_empty() {
            media = found.spread_over_tokens(tokens.len());
        }
        Ok((tokens, media))
    }

    fn render_template(
        &self,
        conversation: &Conversation,
        messages: &[ChatMessage],
    ) -> Result<String, Fault> {
        let settings = &self.settings().prompts;
        let server = (!settings.chat_template_kwargs.is_empty()).then(|| {
            let mut kwargs = settings.chat_template_kwargs.clone();
            let own = conversation.chat_template_kwargs.iter();
            kwargs.extend(own.map(|(name, value)| (name.clone(), value.clone())));
            kwargs
        });
        let kwargs = server.as_ref().unwrap_or(&conversation.chat_template_kwargs);
        let template = conversation.chat_template.as_ref();
        let template = template.or(settings.chat_template.as_ref());
        let text = self.generator.tokenizer().render_chat(&ChatInput {
            messages,
            tools: conversation.tools.as_deref(),
            documents: conversation.documents.as_ref(),
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            chat_template: template.map(String::as_str),
            kwargs: Some(kwargs),
            content_format: settings.content_format,
        });
        text.map_err(template_fault)
    }

    /// Converts chat messages to the input of the chat template. Source: vLLM 0.33
    /// `renderers/hf.py`.
    ///
    /// # Errors
    /// vLLM's status 400 for content parts that the model does not support, and for an empty
    /// conversation.
    fn template_messages(
        &self,
        rules: &RequestRules,
        asked: &Conversation,
    ) -> Result<(Vec<ChatMessage>, ConversationMedia), Fault> {
        let with_media = self.find_media(&asked.messages)?;
        let messages = match &with_media {
            Some((messages, _)) => messages.as_slice(),
            None => &asked.messages,
        };
        if messages.is_empty() {
            return Err(Fault::bad_request(
                "Cannot apply chat template to an empty conversation. Provide at least one message.",
            ));
        }
        let read = match self.settings().prompts.media.unchecked {
            true => to_unvalidated_messages(messages),
            false => to_template_messages(messages, &rules.limits.served_name)?,
        };
        let found = with_media.map(|(_, found)| found);
        Ok((read, found.unwrap_or_default()))
    }
}

/// Converts chat messages to the input of the chat template, for a text-only model; `model` is its
/// first served name.
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
        message.parse_tool_call_arguments().map_err(template_fault)?;
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
    Fault {
        param: error.invalid_parameter_name().map(str::to_owned),
        ..Fault::bad_request(error.to_string())
    }
}

fn read_message(message: &RequestMessage, model: &str) -> Result<TemplateMessage, Fault> {
    if let Some((role, texts)) = message.as_texts() {
        return Ok(TemplateMessage::from_texts(role, texts));
    }
    let message = ValidatedChatMessage::new(message)?;
    let role = message.members().get("role");
    let role = role.and_then(|role| role.as_str()).unwrap_or_default();
    if role == "system" {
        // vLLM looks for a billing header in all parts before it reads the first one.
        message.content_parts().try_for_each(|part| part.map(drop))?;
    }
    let mut parts = Vec::new();
    for part in message.content_parts() {
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
            let message =
                RequestMessage::from_trusted_json(json!({"role": "system", "content": content}));
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
                        let read = to_template_messages(
                            &[RequestMessage::from_trusted_json(message)],
                            "m",
                        )
                        .unwrap();
                        shown(&read, format)
                    };
                    let long = shown(named.clone()).replace(", 'name': 'x'", "");
                    assert_eq!(shown(plain.clone()), long, "{plain}");
                }
            }
        }
    }
}
