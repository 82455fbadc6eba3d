//! Converts a chat conversation to a prompt: media, chat template, tokenization, truncation.

use std::sync::Arc;

use super::media::{ConversationMedia, remove_cut_media};
use super::messages::{template_fault, to_template_messages, to_unvalidated_messages};
use super::{Conversation, PromptLengthLimit, schema};
use crate::dialect::RequestRules;
use crate::generate::request::TokenizedPrompt;
use crate::{InferenceService, is_large_text, run_blocking_if_large};
use vllm_sim_tokenizer::{ChatInput, ChatMessage, PlacedMediaItem, SpecialTokens};
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
                let said = messages.iter().map(|m| (m.role(), m.all_text()));
                self.generator.conversation_hash(said)
            },
            schema: match rules.dialect.follows_prompt_schemas()
                && self.generator.generates_random_text()
            {
                true => schema::find_prompt_schema(messages.iter().flat_map(RequestMessage::texts))
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
        remove_cut_media(&mut media, whole - tokens.len(), tokens.len(), truncation.side);
        if bound != PromptLengthLimit::None {
            rules.dialect.check_encoded_length(&rules.limits, tokens.len())?;
        }
        if !found.spread.is_empty() {
            media = found.spread_over(tokens.len());
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
