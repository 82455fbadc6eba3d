//! Creates the prompts of a request from texts, token ids or conversations.

use std::sync::Arc;

use super::{PromptInput, PromptInputs, PromptSource, PromptTruncation};
use crate::dialect::RequestRules;
use crate::generate::request::TokenizedPrompt;
use crate::{InferenceService, run_blocking_if_large};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::Fault;

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
