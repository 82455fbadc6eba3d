//! Request checks of llm-d-inference-sim (`--compat llm-d`).
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/helpers.go`, `validateRequest`.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::{Dialect, ValidateAt};
use vllm_sim_tokenizer::plain_text;
use vllm_sim_wire::openai::message::{Content, Message};
use vllm_sim_wire::{Fault, Limits};

/// The request checks of llm-d-inference-sim.
#[derive(Debug)]
pub struct Llmd;

impl Llmd {
    /// Maximum number of alternative log probabilities per token; larger values are clamped.
    pub const MAX_LOGPROBS: i64 = 100;
}

impl Dialect for Llmd {
    fn requires_model_name(&self) -> bool {
        true
    }

    fn validation(&self) -> ValidateAt {
        ValidateAt::AfterPrompt
    }

    /// Checks that prompt and requested output fit into the context together; an output without a
    /// limit counts as one token.
    fn check_whole(
        &self,
        limits: &Limits,
        prompt: usize,
        asked: Option<i128>,
    ) -> Result<(), Fault> {
        let most = limits.max_model_len;
        let completion = asked.unwrap_or(1);
        let whole = completion.saturating_add(prompt as i128);
        if whole <= i128::from(most) {
            return Ok(());
        }
        Err(Fault::bad_request(format!(
            "This model's maximum context length is {most} tokens. However, you requested \
             {whole} tokens ({prompt} in the messages, {completion} in the completion). \
             Please reduce the length of the messages or completion"
        )))
    }

    fn check_text(&self, _: &Limits, _: &str, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn check_encoded(&self, _: &Limits, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn check_tokens(&self, _: &Limits, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn check_response(&self, _: &Limits, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn writes_whole_calls(&self) -> bool {
        true
    }

    /// Returns the text to echo for a message: the whole message as JSON text, images and tool
    /// calls included.
    fn echo<'m>(&self, message: &'m Message) -> Cow<'m, str> {
        // For text alone, the result is the same without building a JSON tree.
        let whole = !matches!(message.content(), Content::Texts(_));
        match whole.then(|| message.to_json()).as_deref() {
            Some(Value::Object(members)) => Cow::Owned(plain_text(members)),
            _ => message.text(),
        }
    }

    fn echo_ids(&self, tokens: &[u32]) -> Option<Arc<[u32]>> {
        Some(tokens.into())
    }

    fn reads_prompt_schemas(&self) -> bool {
        false
    }
}
