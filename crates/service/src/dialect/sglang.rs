//! Request checks of SGLang's tokenizer manager (`--compat sglang`).
//!
//! Source: SGLang 0.5.23 `srt/managers/tokenizer_manager.py`, `_validate_one_request`.

use super::ServerDialect;
use vllm_sim_wire::{Fault, ServerLimits};

/// The request checks of SGLang's tokenizer manager.
#[derive(Debug)]
pub struct SglangDialect;

impl ServerDialect for SglangDialect {
    /// Checks that prompt and requested output fit into the context together.
    fn check_prompt_and_output(
        &self,
        limits: &ServerLimits,
        prompt: usize,
        asked: Option<i128>,
    ) -> Result<(), Fault> {
        let most = limits.max_model_len;
        let completion = asked.unwrap_or(0);
        let total = completion.saturating_add(prompt as i128);
        if total <= i128::from(most) {
            return Ok(());
        }
        Err(Fault::bad_request(format!(
            "Requested token count exceeds the model's maximum context length of {most} tokens. \
             You requested a total of {total} tokens: {prompt} tokens from the input messages and \
             {completion} tokens for the completion. Please reduce the number of tokens in the \
             input messages or the completion to fit within the limit."
        )))
    }

    fn check_text_length(&self, _: &ServerLimits, _: &str, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Checks that a prompt leaves room for one token of output.
    fn check_encoded_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        let most = limits.max_model_len;
        if tokens < most as usize {
            return Ok(());
        }
        Err(Fault::bad_request(format!(
            "The input ({tokens} tokens) is longer than the model's context length ({most} tokens)."
        )))
    }

    fn check_prompt_ids_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        self.check_encoded_length(limits, tokens)
    }
}
