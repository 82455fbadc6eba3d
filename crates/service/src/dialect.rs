//! Differences between the imitated servers in how they check and answer a request (`--compat`).
//!
//! Each method of [`ServerDialect`] defaults to vLLM's behaviour. To add a server, add a type like
//! [`LlmdDialect`] and its name in the configuration.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use serde_json::Value;

use vllm_sim_tokenizer::message_plain_text;
use vllm_sim_wire::openai::request_message::{ChatContent, RequestMessage};
use vllm_sim_wire::{Fault, SamplingDefaults, ServerLimits};

/// The request rules of one imitated server, where imitated servers differ.
pub trait ServerDialect: Debug + Send + Sync {
    /// Returns whether a request must name its model.
    fn requires_model_name(&self) -> bool {
        false
    }

    /// Returns whether admission limits are checked on arrival, in addition to the check when the
    /// job is submitted.
    fn admits_on_arrival(&self) -> bool {
        true
    }

    /// Returns the point at which the values of a request are validated.
    fn validation_point(&self) -> RequestValidationPoint {
        RequestValidationPoint::BeforePrompt
    }

    /// Checks that the prompt and the requested output fit into the context together, as vLLM up to
    /// 0.31 does.
    ///
    /// # Errors
    /// Status 400 if prompt and output do not fit into the context.
    fn check_prompt_and_output(
        &self,
        limits: &ServerLimits,
        prompt: usize,
        asked: Option<i128>,
    ) -> Result<(), Fault> {
        limits.check_prompt_and_output_tokens(prompt, asked)
    }

    /// Checks that a prompt text may fit into the context, before it is encoded; a token has at
    /// most `longest` characters.
    ///
    /// # Errors
    /// Status 400 for a text that cannot fit into the context.
    fn check_text_length(
        &self,
        limits: &ServerLimits,
        text: &str,
        longest: usize,
    ) -> Result<(), Fault> {
        limits.check_prompt_characters(text, longest)
    }

    /// Checks that the tokens of an encoded prompt text fit into the context.
    ///
    /// vLLM's tokenizer truncates a text to one token more than the context, so the message never
    /// shows a larger number.
    ///
    /// # Errors
    /// Status 400 for a prompt that exceeds the context.
    fn check_encoded_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        limits.check_prompt_tokens(tokens.min(limits.max_model_len as usize + 1))
    }

    /// Checks that a prompt of token ids fits into the context.
    ///
    /// # Errors
    /// Status 400 for a prompt that exceeds the context.
    fn check_prompt_ids_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        limits.check_prompt_tokens(tokens)
    }

    /// Checks that the prompt of a Responses request leaves room for output.
    ///
    /// # Errors
    /// Status 400 for a prompt that fills the context.
    fn check_response_prompt_length(
        &self,
        limits: &ServerLimits,
        tokens: usize,
    ) -> Result<(), Fault> {
        limits.check_responses_prompt_tokens(tokens)
    }

    /// Returns whether a generated tool call is completed even beyond `max_tokens`.
    fn writes_whole_calls(&self) -> bool {
        false
    }

    /// Returns the text of a message that a reply in echo mode repeats.
    fn echo_text<'m>(&self, message: &'m RequestMessage) -> Cow<'m, str> {
        message.content_text()
    }

    /// Returns the token ids that a reply in echo mode repeats for a prompt of token ids; `None`
    /// encodes the echoed text.
    fn echo_ids(&self, _tokens: &[u32]) -> Option<Arc<[u32]>> {
        None
    }

    /// Returns whether a reply follows a JSON Schema that only the prompt describes.
    fn follows_prompt_schemas(&self) -> bool {
        true
    }
}

/// The request checks of vLLM's OpenAI server.
#[derive(Debug)]
pub struct VllmDialect;

impl ServerDialect for VllmDialect {}

/// The point at which the values of a request are validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestValidationPoint {
    /// Request values are validated before tokenization (vLLM).
    BeforePrompt,
    /// Request values are validated after tokenization (llm-d-inference-sim).
    AfterPrompt,
}

/// The JSON Schemas that tool parameters may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedToolSchemas {
    /// A tool's parameters may have any JSON Schema.
    Any,
    /// A tool's parameters may use only the subset of JSON Schema that llm-d-inference-sim
    /// supports.
    Whitelisted,
}

/// The limits, defaults and imitated server's rules for the requests of one front end.
#[derive(Debug, Clone)]
pub struct RequestRules {
    /// Limits on the values of a generation request.
    pub limits: ServerLimits,
    /// Default values of sampling parameters that a request omits.
    pub defaults: SamplingDefaults,
    /// Maximum number of a request's bad words after tokenization.
    pub max_bad_words: usize,
    /// Accepted JSON Schemas for tool parameters.
    pub tool_schemas: AllowedToolSchemas,
    /// Request rules of the imitated server.
    pub dialect: &'static dyn ServerDialect,
}

/// The request checks of vLLM's gRPC server and engine core.
///
/// Admission is checked only on submission, and texts are encoded without a prior length check.
#[derive(Debug)]
pub struct GrpcAndEngineCoreDialect;

impl ServerDialect for GrpcAndEngineCoreDialect {
    fn admits_on_arrival(&self) -> bool {
        false
    }

    fn check_text_length(&self, _: &ServerLimits, _: &str, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Accepts any requested output length, which vLLM's gRPC server and engine core shorten
    /// instead of rejecting it.
    fn check_prompt_and_output(
        &self,
        _: &ServerLimits,
        _: usize,
        _: Option<i128>,
    ) -> Result<(), Fault> {
        Ok(())
    }

    fn check_encoded_length(&self, limits: &ServerLimits, tokens: usize) -> Result<(), Fault> {
        limits.check_prompt_tokens(tokens)
    }
}

/// The request checks of llm-d-inference-sim (`--compat llm-d`).
///
/// Source: llm-d-inference-sim `pkg/llm-d-inference-sim/helpers.go`, `validateRequest`.
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
