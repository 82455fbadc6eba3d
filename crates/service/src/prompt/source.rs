//! The prompts of a request as it gives them, and how they become tokens: media, chat template,
//! tokenization, truncation.
//!
//! Source of the messages of a template: `vllm/renderers/chat_utils/chat_message.py`
//! (`parse_chat_messages`).

use std::sync::Arc;

use serde_json::{Map, Value};

use super::media::ConversationMedia;
use super::schema;
use super::truncation::PromptTruncation;
use crate::dialect::{RequestRules, ServerDialect};
use crate::generate::request::TokenizedPrompt;
use crate::{DeferredRequestCheck, InferenceService, is_large_text, run_blocking_if_large};
use vllm_sim_tokenizer::{
    ChatMessage, ChatTemplateError, ChatTemplateInput, MediaItem, MessageContentPart,
    PlacedMediaItem, SpecialTokenHandling, TemplateMessage,
};
use vllm_sim_wire::openai::request_message::RequestMessage;
use vllm_sim_wire::openai::validated_message::{ValidatedChatMessage, text_only_model_fault};
use vllm_sim_wire::{Fault, ServerLimits};

/// The form in which a request gives its prompts.
#[derive(Debug)]
pub enum PromptSource {
    /// The prompts are already tokenized.
    Ready(Vec<TokenizedPrompt>),
    /// The prompts are texts and lists of token ids.
    Inputs(PromptTextsOrTokenIds),
    /// The prompts are conversations, converted by the chat template.
    Conversations(Vec<Conversation>),
}

impl Default for PromptSource {
    fn default() -> Self {
        Self::Ready(Vec::new())
    }
}

impl PromptSource {
    /// Returns the number of prompts of the request.
    pub fn len(&self) -> usize {
        match self {
            Self::Ready(prompts) => prompts.len(),
            Self::Inputs(inputs) => inputs.inputs.len(),
            Self::Conversations(conversations) => conversations.len(),
        }
    }

    /// Returns whether the request has no prompts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Texts and lists of token ids as prompts, with their tokenization and truncation.
#[derive(Debug, Default)]
pub struct PromptTextsOrTokenIds {
    /// Texts or lists of token ids, one per prompt.
    pub inputs: Vec<PromptTextOrTokenIds>,
    /// Whether the tokenizer adds its special tokens to texts.
    pub add_special_tokens: bool,
    /// Truncation of every prompt to a number of tokens.
    pub truncation: PromptTruncation,
}

/// A text or a list of token ids, used as one prompt.
#[derive(Debug)]
pub enum PromptTextOrTokenIds {
    /// A prompt as a text to tokenize.
    Text(String),
    /// A prompt as token ids. The checks before submission reject ids outside the vocabulary.
    Tokens {
        /// Token ids of the prompt.
        ids: Vec<i64>,
        /// Text of a reply in echo mode; `None` uses the comma-separated ids.
        text: Option<Box<str>>,
        /// Images, audio clips and videos among the tokens of the prompt.
        media: Vec<PlacedMediaItem>,
    },
}

/// A chat conversation, and the options for converting it to a prompt.
#[derive(Debug, Default)]
pub struct Conversation {
    /// Messages of the conversation, in order.
    pub messages: Vec<RequestMessage>,
    /// Tool definitions for the chat template, as in the request.
    pub tools: Option<Vec<Value>>,
    /// Documents for the chat template, as in the request.
    pub documents: Option<Value>,
    /// Chat template of the request, in place of the server's.
    pub chat_template: Option<String>,
    /// Arguments of the chat template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the prompt ends with the start of an assistant message.
    pub add_generation_prompt: bool,
    /// Whether the model continues the last message instead of a new one.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its special tokens to the rendered text.
    pub add_special_tokens: bool,
    /// Truncation of the prompt to a number of tokens.
    pub truncation: PromptTruncation,
    /// Maximum length of the conversation's prompt.
    pub bound: PromptLengthLimit,
    /// Token ids of the same conversation from another server, used instead of tokenizing.
    pub token_ids: DeferredRequestCheck<Option<Vec<u32>>>,
}

/// The maximum length of a conversation's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptLengthLimit {
    /// The prompt may fill the context length.
    #[default]
    Context,
    /// The prompt must leave room in the context for one output token (Responses API).
    RoomForOutput,
    /// The prompt's length is not limited, because its tokens are only returned, as by `/tokenize`.
    None,
}

impl InferenceService {
    /// Creates the prompts of a request.
    ///
    /// # Errors
    /// The first error in the order of the prompts.
    pub async fn create_prompts(
        self: &Arc<Self>,
        rules: &RequestRules,
        source: PromptSource,
    ) -> Result<Vec<TokenizedPrompt>, Fault> {
        match source {
            PromptSource::Ready(prompts) => Ok(prompts),
            PromptSource::Inputs(PromptTextsOrTokenIds {
                inputs,
                add_special_tokens,
                truncation,
            }) => {
                let special = SpecialTokenHandling::from_bool(add_special_tokens);
                let mut prompts = Vec::with_capacity(inputs.len());
                for input in inputs {
                    let made = self.tokenize_input(rules, input, special, truncation);
                    prompts.push(made.await?);
                }
                Ok(prompts)
            }
            PromptSource::Conversations(conversations) => {
                let mut prompts = Vec::with_capacity(conversations.len());
                for mut conversation in conversations {
                    prompts.push(self.conversation_prompt(rules, &mut conversation).await?);
                }
                Ok(prompts)
            }
        }
    }

    /// Checks that the server has a tokenizer.
    ///
    /// # Errors
    /// vLLM's status 400 on a server without a tokenizer (`--skip-tokenizer-init`).
    pub fn check_tokenizer_available(&self) -> Result<(), Fault> {
        if self.settings().prompts.skip_tokenizer_init {
            let text = "Tokenizer not available when `skip_tokenizer_init=True`";
            return Err(Fault::bad_request(text));
        }
        Ok(())
    }

    async fn tokenize_input(
        &self,
        rules: &RequestRules,
        input: PromptTextOrTokenIds,
        special: SpecialTokenHandling,
        truncation: PromptTruncation,
    ) -> Result<TokenizedPrompt, Fault> {
        let RequestRules { limits, dialect, .. } = rules;
        let tokenizer = self.generator.tokenizer();
        match input {
            PromptTextOrTokenIds::Text(text) => {
                self.check_tokenizer_available()?;
                if truncation.keep.is_none() {
                    dialect.check_text_length(limits, &text, tokenizer.max_token_chars())?;
                }
                let encoder = tokenizer.clone();
                let size = text.len();
                let encode = move || (encoder.encode(&text, special), text);
                let (tokens, text) = run_blocking_if_large(size, encode).await;
                let tokens = truncation.truncate_tokens(tokenizer, limits, tokens);
                dialect.check_encoded_length(limits, tokens.len())?;
                Ok(TokenizedPrompt { tokens, echo: text.into(), ..TokenizedPrompt::default() })
            }
            PromptTextOrTokenIds::Tokens { ids, text, media } => {
                let small = |id: &i64| u32::try_from(*id).unwrap_or(u32::MAX);
                let (low, high) = (ids.iter().copied().min(), ids.iter().copied().max());
                let unknown_id = low.filter(|id| *id < 0).or(high);
                let unknown_id = unknown_id.filter(|id| u32::try_from(*id).is_err());
                let tokens: Vec<u32> = ids.iter().map(small).collect();
                let echo = text.unwrap_or_else(|| join_ids(&ids).into());
                let echo_ids = dialect.echo_ids(&tokens);
                let truncation = PromptTruncation { special: false, ..truncation };
                let tokens = truncation.truncate_tokens(tokenizer, limits, tokens);
                dialect.check_prompt_ids_length(limits, tokens.len())?;
                Ok(TokenizedPrompt {
                    tokens,
                    unknown_id,
                    echo,
                    echo_ids,
                    media,
                    ..TokenizedPrompt::default()
                })
            }
        }
    }
}

/// Joins token ids with commas.
fn join_ids(ids: &[i64]) -> String {
    let mut text = String::with_capacity(8 * ids.len());
    for id in ids {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(itoa::Buffer::new().format(*id));
    }
    text
}

impl InferenceService {
    async fn conversation_prompt(
        self: &Arc<Self>,
        rules: &RequestRules,
        conversation: &mut Conversation,
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
            None => self.tokenize_conversation(rules, conversation).await?,
        };
        if bound == PromptLengthLimit::RoomForOutput {
            rules.dialect.check_response_prompt_length(&rules.limits, tokens.len())?;
        }
        Ok(TokenizedPrompt { tokens, media, ..prompt })
    }

    /// Tokenizes a chat conversation with the chat template. A large conversation is taken from the
    /// argument, because it is tokenized on the blocking pool.
    ///
    /// # Errors
    /// Status 400 for unsupported media, a failing template, or a prompt that is too long.
    pub async fn tokenize_conversation(
        self: &Arc<Self>,
        rules: &RequestRules,
        conversation: &mut Conversation,
    ) -> Result<(Vec<u32>, Vec<PlacedMediaItem>), Fault> {
        self.check_tokenizer_available()?;
        let (truncation, bound) = (conversation.truncation, conversation.bound);
        let size = conversation.messages.iter().map(RequestMessage::content_text_len).sum();
        let (messages, mut found) = self.template_messages(rules, conversation)?;
        let marked = std::mem::take(&mut found.marked);
        let (mut tokens, mut media) = match is_large_text(size) {
            false => self.encode_conversation(
                &rules.limits,
                rules.dialect,
                conversation,
                &messages,
                &marked,
            )?,
            true => {
                let (service, limits, dialect) =
                    (self.clone(), rules.limits.clone(), rules.dialect);
                let conversation = std::mem::take(conversation);
                let encode = move || {
                    service.encode_conversation(&limits, dialect, &conversation, &messages, &marked)
                };
                run_blocking_if_large(size, encode).await?
            }
        };
        if truncation.keep.is_some() {
            let whole = tokens.len();
            tokens = truncation.truncate_tokens(self.generator.tokenizer(), &rules.limits, tokens);
            truncation.truncate_media(&mut media, whole - tokens.len(), tokens.len());
        }
        if bound != PromptLengthLimit::None {
            rules.dialect.check_encoded_length(&rules.limits, tokens.len())?;
        }
        if !found.spread.is_empty() {
            media = found.place_media_over_tokens(tokens.len());
        }
        Ok((tokens, media))
    }

    /// Renders the chat template and encodes its text, whose media markers stand for the items
    /// `marked`.
    fn encode_conversation(
        &self,
        limits: &ServerLimits,
        dialect: &dyn ServerDialect,
        conversation: &Conversation,
        messages: &[ChatMessage],
        marked: &[MediaItem],
    ) -> Result<(Vec<u32>, Vec<PlacedMediaItem>), Fault> {
        let tokenizer = self.generator.tokenizer();
        let text = self.render_template(conversation, messages)?;
        if conversation.bound != PromptLengthLimit::None && conversation.truncation.keep.is_none() {
            dialect.check_text_length(limits, &text, tokenizer.max_token_chars())?;
        }
        let special = SpecialTokenHandling::from_bool(conversation.add_special_tokens);
        match marked {
            [] => Ok((tokenizer.encode(&text, special), Vec::new())),
            _ => Ok(tokenizer.encode_text_with_media(&text, special, marked)),
        }
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
        let text = self.generator.tokenizer().render_chat(&ChatTemplateInput {
            messages,
            tools: conversation.tools.as_deref(),
            documents: conversation.documents.as_ref(),
            add_generation_prompt: conversation.add_generation_prompt,
            continue_final_message: conversation.continue_final_message,
            chat_template: template.map(String::as_str),
            kwargs: Some(kwargs),
            content_format: settings.content_format,
        });
        text.map_err(chat_template_fault)
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
        let with_media = self.find_conversation_media(&asked.messages)?;
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

/// Converts chat messages to the input of the chat template, for a text-only model; `model` is the
/// model's first served name.
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
        message.parse_tool_call_arguments().map_err(chat_template_fault)?;
    }
    Ok(read.into_iter().map(ChatMessage::Read).collect())
}

/// Passes messages to the chat template without validation, media included, as llm-d does.
pub fn to_unvalidated_messages(messages: &[RequestMessage]) -> Vec<ChatMessage> {
    let messages = messages.iter().map(|message| match message.as_role_and_texts() {
        // A single text is the same with and without validation.
        Some((role, texts @ [_])) if role != "system" => {
            ChatMessage::Read(TemplateMessage::from_text_parts(role, texts))
        }
        _ => ChatMessage::Sent(message.to_message_json().into_owned()),
    });
    messages.collect()
}

pub(super) fn chat_template_fault(error: ChatTemplateError) -> Fault {
    Fault {
        param: error.invalid_request_field_name().map(str::to_owned),
        ..Fault::bad_request(error.to_string())
    }
}

fn read_message(message: &RequestMessage, model: &str) -> Result<TemplateMessage, Fault> {
    if let Some((role, texts)) = message.as_role_and_texts() {
        return Ok(TemplateMessage::from_text_parts(role, texts));
    }
    let message = ValidatedChatMessage::new(message)?;
    let role = message.message_members_except_content().get("role");
    let role = role.and_then(|role| role.as_str()).unwrap_or_default();
    if role == "system" {
        // vLLM looks for a billing header in all parts before it reads the first one.
        message.content_parts().try_for_each(|part| part.map(drop))?;
    }
    let mut parts = Vec::new();
    for part in message.content_parts() {
        let part = part?;
        let read =
            MessageContentPart::parse_content_part(role, &part).map_err(chat_template_fault)?;
        if let Some(kind) = read.as_ref().and_then(MessageContentPart::modality_name) {
            return Err(text_only_model_fault(kind, &part, model));
        }
        parts.extend(read);
    }
    Ok(TemplateMessage::new(message.message_members_except_content(), parts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vllm_sim_tokenizer::{ChatTemplateContentFormat, ChatTemplateInput, ChatTemplates};

    use super::*;

    fn shown(messages: &[ChatMessage], format: ChatTemplateContentFormat) -> String {
        let templates = ChatTemplates::default();
        let text = templates.render_chat(&ChatTemplateInput {
            messages,
            chat_template: Some("{{ messages }}"),
            content_format: Some(format),
            ..ChatTemplateInput::default()
        });
        text.unwrap()
    }

    #[test]
    fn only_one_of_two_billing_lines_is_dropped() {
        let text = "x-anthropic-billing-header: a\nx-anthropic-billing-header: b\nkeep";
        for content in [json!(text), json!([{"type": "text", "text": text}])] {
            let message = RequestMessage::message_from_trusted_json(
                json!({"role": "system", "content": content}),
            );
            let read = to_template_messages(&[message], "m").unwrap();
            assert_eq!(
                shown(&read, ChatTemplateContentFormat::String),
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
                for format in [ChatTemplateContentFormat::String, ChatTemplateContentFormat::Openai]
                {
                    let shown = |message| {
                        let read = to_template_messages(
                            &[RequestMessage::message_from_trusted_json(message)],
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
