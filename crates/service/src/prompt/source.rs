//! The prompts of a request as it gives them, and how they become tokens.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::dialect::RequestRules;
use crate::generate::request::TokenizedPrompt;
use crate::{DeferredCheck, InferenceService, run_blocking_if_large};
use vllm_sim_tokenizer::{PlacedMediaItem, SpecialTokens, Tokenizer};
use vllm_sim_wire::openai::message::RequestMessage;
use vllm_sim_wire::{Fault, ServerLimits};

/// The form in which a request gives its prompts.
#[derive(Debug)]
pub enum PromptSource {
    /// The prompts are already tokenized.
    Ready(Vec<TokenizedPrompt>),
    /// The prompts are texts and lists of token ids.
    Inputs(PromptInputs),
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
pub struct PromptInputs {
    /// Texts or lists of token ids, one per prompt.
    pub inputs: Vec<PromptInput>,
    /// Whether the tokenizer adds its special tokens to texts.
    pub add_special_tokens: bool,
    /// Truncation of every prompt to a number of tokens.
    pub truncation: PromptTruncation,
}

/// A text or a list of token ids, used as one prompt.
#[derive(Debug)]
pub enum PromptInput {
    /// A text to tokenize.
    Text(String),
    /// Token ids. The checks before submission reject ids outside the vocabulary.
    Tokens {
        /// Token ids of the prompt.
        ids: Vec<i64>,
        /// Text of a reply in echo mode; `None` uses the comma-separated ids.
        text: Option<Box<str>>,
        /// Images, audio clips and videos among the tokens.
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
    pub token_ids: DeferredCheck<Option<Vec<u32>>>,
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

/// The truncation of a prompt to a number of tokens (`truncate_prompt_tokens`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptTruncation {
    /// Number of prompt tokens to keep; negative keeps `max_model_len - 1`, `None` keeps all.
    pub keep: Option<i64>,
    /// Side of the prompt that is cut.
    pub side: TruncationSide,
    /// Whether the special tokens around the text are kept.
    ///
    /// The tokenizers of vLLM truncate a text before they add special tokens. If the request names a
    /// side, vLLM itself cuts the tokens, special ones too.
    pub special: bool,
}

/// The side of a prompt that truncation cuts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TruncationSide {
    /// Truncation cuts the beginning of the prompt, as tokenizers of chat models do by default.
    #[default]
    Left,
    /// Truncation cuts the end of the prompt.
    Right,
}

impl TruncationSide {
    /// Converts a request's `truncation_side`; every value but `right` means left.
    pub fn from_side_name(asked: Option<&str>) -> Self {
        match asked {
            Some("right") => Self::Right,
            _ => Self::Left,
        }
    }
}

impl PromptTruncation {
    /// Truncates the token ids of a prompt.
    pub fn truncate_tokens(
        self,
        tokenizer: &Tokenizer,
        limits: &ServerLimits,
        mut tokens: Vec<u32>,
    ) -> Vec<u32> {
        let most = limits.max_model_len as usize;
        let keep = match self.keep {
            Some(keep) => usize::try_from(keep).unwrap_or(most.saturating_sub(1)),
            None => return tokens,
        };
        if tokens.len() <= keep {
            return tokens;
        }
        let (before, behind) = match self.special {
            true => count_special_around(tokenizer, &tokens),
            false => (0, 0),
        };
        // If not even the special tokens fit, they are truncated like the rest.
        let (before, behind) = match keep >= before + behind {
            true => (before, behind),
            false => (0, 0),
        };
        let cut = tokens.len() - keep;
        match self.side {
            TruncationSide::Right => {
                let end = tokens.len() - behind;
                tokens.drain(end - cut..end);
            }
            TruncationSide::Left => {
                tokens.drain(before..before + cut);
            }
        }
        tokens
    }

    /// Removes media items that the truncation of their prompt cut; `gone` tokens were removed and
    /// `left` remain.
    pub(super) fn truncate_media(self, media: &mut Vec<PlacedMediaItem>, gone: usize, left: usize) {
        if gone == 0 {
            return;
        }
        let shift = match self.side {
            TruncationSide::Right => 0,
            TruncationSide::Left => u32::try_from(gone).unwrap_or(u32::MAX),
        };
        media.retain_mut(|item| {
            let start = item.start.checked_sub(shift);
            let end = start.map(|start| u64::from(start) + u64::from(item.len));
            item.start = start.unwrap_or(0);
            end.is_some_and(|end| end <= left as u64)
        });
    }
}

/// Returns the numbers of special tokens that the tokenizer added before and after a text.
fn count_special_around(tokenizer: &Tokenizer, tokens: &[u32]) -> (usize, usize) {
    let special = tokenizer.encode("", SpecialTokens::With);
    let fits = |at: &usize| {
        let (before, behind) = special.split_at(*at);
        tokens.starts_with(before) && tokens.ends_with(behind)
    };
    let at = (0..=special.len()).rev().find(fits);
    at.map_or((0, 0), |at| (at, special.len() - at))
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
            PromptSource::Inputs(PromptInputs { inputs, add_special_tokens, truncation }) => {
                let special = SpecialTokens::from_bool(add_special_tokens);
                let mut prompts = Vec::with_capacity(inputs.len());
                for input in inputs {
                    let made = self.tokenize_input(rules, input, special, truncation);
                    prompts.push(made.await?);
                }
                Ok(prompts)
            }
            PromptSource::Conversations(conversations) => {
                let mut prompts = Vec::with_capacity(conversations.len());
                for conversation in conversations {
                    prompts.push(self.conversation_prompt(rules, conversation).await?);
                }
                Ok(prompts)
            }
        }
    }

    /// Checks that the server has a tokenizer.
    ///
    /// # Errors
    /// vLLM's status 400 on a server without a tokenizer (`--skip-tokenizer-init`).
    pub fn check_tokenizer(&self) -> Result<(), Fault> {
        if self.settings().prompts.skip_tokenizer_init {
            let text = "Tokenizer not available when `skip_tokenizer_init=True`";
            return Err(Fault::bad_request(text));
        }
        Ok(())
    }

    async fn tokenize_input(
        &self,
        rules: &RequestRules,
        input: PromptInput,
        special: SpecialTokens,
        truncation: PromptTruncation,
    ) -> Result<TokenizedPrompt, Fault> {
        let RequestRules { limits, dialect, .. } = rules;
        let tokenizer = self.generator.tokenizer();
        match input {
            PromptInput::Text(text) => {
                self.check_tokenizer()?;
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
            PromptInput::Tokens { ids, text, media } => {
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
