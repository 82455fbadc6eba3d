//! Creates the prompts of a request from texts, token ids or conversations.

use std::sync::Arc;

use super::{PromptInput, PromptInputs, PromptSource, Truncation};
use crate::dialect::RequestRules;
use crate::generate::request::Prompt;
use crate::{Service, run_blocking_if_large};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::Fault;

impl Service {
    /// Creates the prompts of a request.
    ///
    /// # Errors
    /// The first error in the order of the prompts.
    pub async fn prompts(
        self: &Arc<Self>,
        rules: &RequestRules,
        source: PromptSource,
    ) -> Result<Vec<Prompt>, Fault> {
        match source {
            PromptSource::Ready(prompts) => Ok(prompts),
            PromptSource::Inputs(PromptInputs {
                inputs,
                add_special_tokens,
                truncation,
            }) => {
                let special = SpecialTokens::when(add_special_tokens);
                let mut prompts = Vec::with_capacity(inputs.len());
                for input in inputs {
                    let made = self.input_prompt(rules, input, special, truncation);
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

    async fn input_prompt(
        &self,
        rules: &RequestRules,
        input: PromptInput,
        special: SpecialTokens,
        truncation: Truncation,
    ) -> Result<Prompt, Fault> {
        let RequestRules {
            limits, dialect, ..
        } = rules;
        let tokenizer = self.generator.tokenizer();
        match input {
            PromptInput::Text(text) => {
                self.check_tokenizer()?;
                if truncation.keep.is_none() {
                    dialect.check_text(limits, &text, tokenizer.max_token_chars())?;
                }
                let encoder = tokenizer.clone();
                let size = text.len();
                let encode = move || (encoder.encode(&text, special), text);
                let (tokens, text) = run_blocking_if_large(size, encode).await;
                let tokens = truncation.apply(tokenizer, limits, tokens);
                dialect.check_encoded(limits, tokens.len())?;
                Ok(Prompt {
                    tokens,
                    echo: text.into(),
                    ..Prompt::default()
                })
            }
            PromptInput::Tokens { ids, text, media } => {
                let small = |id: &i64| u32::try_from(*id).unwrap_or(u32::MAX);
                let (low, high) = (ids.iter().copied().min(), ids.iter().copied().max());
                let unknown_id = low.filter(|id| *id < 0).or(high);
                let unknown_id = unknown_id.filter(|id| u32::try_from(*id).is_err());
                let tokens: Vec<u32> = ids.iter().map(small).collect();
                let echo = text.unwrap_or_else(|| listed(&ids).into());
                let echo_ids = dialect.echo_ids(&tokens);
                let truncation = Truncation {
                    special: false,
                    ..truncation
                };
                let tokens = truncation.apply(tokenizer, limits, tokens);
                dialect.check_tokens(limits, tokens.len())?;
                Ok(Prompt {
                    tokens,
                    unknown_id,
                    echo,
                    echo_ids,
                    media,
                    ..Prompt::default()
                })
            }
        }
    }
}

/// Joins token ids with commas.
fn listed(ids: &[i64]) -> String {
    let mut text = String::with_capacity(8 * ids.len());
    for id in ids {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(itoa::Buffer::new().format(*id));
    }
    text
}
