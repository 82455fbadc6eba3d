//! Request checks of llm-d-inference-sim (`--compat llm-d`).
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/helpers.go`, `validateRequest`.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::{RequestValidationPoint, ServerDialect};
use vllm_sim_tokenizer::message_plain_text;
use vllm_sim_wire::openai::request_message::{ChatContent, RequestMessage};
use vllm_sim_wire::{Fault, ServerLimits};

/// The request checks of llm-d-inference-sim.
#[derive(Debug)]
pub struct LlmdDialect;

impl LlmdDialect {
    /// Maximum number of alternative log probabilities per token; larger values are clamped.
    pub const LLMD_MAX_TOP_LOGPROBS: i64 = 100;
}

impl ServerDialect for LlmdDialect {
    fn requires_model_name(&self) -> bool {
        true
    }

    fn validation_point(&self) -> RequestValidationPoint {
        RequestValidationPoint::AfterPrompt
    }

    /// Checks that prompt and requested output fit into the context together; an output without a
    /// limit counts as one token.
    fn check_prompt_and_output(
        &self,
        limits: &ServerLimits,
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

    fn check_text_length(&self, _: &ServerLimits, _: &str, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn check_encoded_length(&self, _: &ServerLimits, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn check_prompt_ids_length(&self, _: &ServerLimits, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn check_response_prompt_length(&self, _: &ServerLimits, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn writes_whole_calls(&self) -> bool {
        true
    }

    /// Returns the text to echo for a message: the whole message as JSON text, images and tool
    /// calls included.
    fn echo_text<'m>(&self, message: &'m RequestMessage) -> Cow<'m, str> {
        // For text alone, the result is the same without building a JSON tree.
        let whole = !matches!(message.content(), ChatContent::Texts(_));
        match whole.then(|| message.to_message_json()).as_deref() {
            Some(Value::Object(members)) => Cow::Owned(message_plain_text(members)),
            _ => message.content_text(),
        }
    }

    fn echo_ids(&self, tokens: &[u32]) -> Option<Arc<[u32]>> {
        Some(tokens.into())
    }

    fn follows_prompt_schemas(&self) -> bool {
        false
    }
}
