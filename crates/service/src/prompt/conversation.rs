//! Converts a chat conversation to a prompt: media, chat template, tokenization, truncation.

use std::sync::Arc;

use super::media::{ConversationMedia, cut};
use super::messages::{conversation, template_fault, unread_conversation};
use super::{Conversation, PromptBound, schema};
use crate::dialect::RequestRules;
use crate::generate::request::Prompt;
use crate::{Service, is_large_text, run_blocking_if_large};
use vllm_sim_tokenizer::{ChatInput, ChatMessage, MediaFeature, SpecialTokens};
use vllm_sim_wire::openai::message::Message;
use vllm_sim_wire::{Fault, Limits};

impl Service {
    pub(super) async fn conversation_prompt(
        self: &Arc<Self>,
        rules: &RequestRules,
        mut conversation: Conversation,
    ) -> Result<Prompt, Fault> {
        let messages = &conversation.messages;
        let prompt = Prompt {
            echo: match messages.last() {
                Some(last) => rules.dialect.echo(last).into(),
                None => "".into(),
            },
            text_hash: {
                let said = messages.iter().map(|m| (m.role(), m.text()));
                self.generator.text_hash(said)
            },
            schema: match rules.dialect.reads_prompt_schemas()
                && self.generator.generates_random_text()
            {
                true => schema::find(messages.iter().flat_map(Message::texts)).map(Arc::new),
                false => None,
            },
            ..Prompt::default()
        };
        let bound = conversation.bound;
        let given = std::mem::take(&mut conversation.token_ids).raise()?;
        let (tokens, media) = match given {
            Some(tokens) => (tokens, Vec::new()),
            None => self.conversation_tokens(rules, conversation).await?,
        };
        if bound == PromptBound::RoomForOutput {
            rules.dialect.check_response(&rules.limits, tokens.len())?;
        }
        Ok(Prompt {
            tokens,
            media,
            ..prompt
        })
    }

    /// Tokenizes a chat conversation with the chat template.
    ///
    /// # Errors
    /// Status 400 for unsupported media, a failing template, or a prompt that is too long.
    pub async fn conversation_tokens(
        self: &Arc<Self>,
        rules: &RequestRules,
        conversation: Conversation,
    ) -> Result<(Vec<u32>, Vec<MediaFeature>), Fault> {
        self.check_tokenizer()?;
        let (truncation, bound) = (conversation.truncation, conversation.bound);
        let size = conversation.messages.iter().map(Message::text_len).sum();
        let (messages, mut found) = self.template_messages(rules, &conversation)?;
        let marked = std::mem::take(&mut found.marked);
        let checked = bound != PromptBound::None && truncation.keep.is_none();
        let dialect = rules.dialect;
        let encode = move |service: &Self, limits: &Limits| {
            let tokenizer = service.generator.tokenizer();
            let text = service.render(&conversation, &messages)?;
            if checked {
                dialect.check_text(limits, &text, tokenizer.max_token_chars())?;
            }
            let special = conversation.add_special_tokens;
            if marked.is_empty() {
                return Ok::<_, Fault>((
                    tokenizer.encode(&text, SpecialTokens::when(special)),
                    Vec::new(),
                ));
            }
            Ok(tokenizer.encode_media(&text, SpecialTokens::when(special), &marked))
        };
        let (tokens, mut media) = match is_large_text(size) {
            false => encode(self, &rules.limits)?,
            true => {
                let (service, limits) = (self.clone(), rules.limits.clone());
                run_blocking_if_large(size, move || encode(&service, &limits)).await?
            }
        };
        let whole = tokens.len();
        let tokens = truncation.apply(self.generator.tokenizer(), &rules.limits, tokens);
        cut(
            &mut media,
            whole - tokens.len(),
            tokens.len(),
            truncation.side,
        );
        if bound != PromptBound::None {
            rules.dialect.check_encoded(&rules.limits, tokens.len())?;
        }
        if !found.spread.is_empty() {
            media = found.spread_over(tokens.len());
        }
        Ok((tokens, media))
    }

    fn render(
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
        let kwargs = server
            .as_ref()
            .unwrap_or(&conversation.chat_template_kwargs);
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
            true => unread_conversation(messages),
            false => conversation(messages, &rules.limits.served_name)?,
        };
        let found = with_media.map(|(_, found)| found);
        Ok((read, found.unwrap_or_default()))
    }
}
