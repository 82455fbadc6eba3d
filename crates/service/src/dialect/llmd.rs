//! llm-d-inference-sim's dialect (`--compat llm-d`).
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/helpers.go`, `validateRequest`.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::{Dialect, ValidateAt};
use vllm_sim_tokenizer::plain_text;
use vllm_sim_wire::openai::message::{Content, Message};
use vllm_sim_wire::{Fault, Limits};

/// llm-d-inference-sim.
#[derive(Debug)]
pub struct Llmd;

impl Llmd {
    /// The most alternatives of a log probability; who asks for more gets so many.
    pub const MAX_LOGPROBS: i64 = 100;
}

impl Dialect for Llmd {
    fn requires_model_name(&self) -> bool {
        true
    }

    fn validation(&self) -> ValidateAt {
        ValidateAt::AfterPrompt
    }

    /// Prompt and output have to fit together; one token of output counts if nobody asks for more.
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

    /// The tokens of every text are counted.
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

    /// An echo has the images and calls of the message too.
    fn echo<'m>(&self, message: &'m Message) -> Cow<'m, str> {
        // Texts alone read the same, and take a tree of values in between.
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
