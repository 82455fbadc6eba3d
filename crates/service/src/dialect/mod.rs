//! The differences between the servers that this one imitates, as one value.
//!
//! The default of each question is vLLM's answer. A further dialect is a file beside
//! `llmd.rs` and its name in the configuration.

mod llmd;
mod tokens;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

pub use llmd::Llmd;
pub use tokens::TokensApi;
use vllm_sim_wire::openai::message::Message;
use vllm_sim_wire::{Fault, Limits, SamplingDefaults};

/// The questions that the imitated servers answer differently about a request.
pub trait Dialect: Debug + Send + Sync {
    /// Returns whether a request has to name its model.
    fn requires_model_name(&self) -> bool {
        false
    }

    /// Returns whether admission is asked for before the prompt is made, and again with the job.
    fn admits_on_arrival(&self) -> bool {
        true
    }

    /// Returns the point at which the values of a request are validated.
    fn validation(&self) -> ValidateAt {
        ValidateAt::BeforePrompt
    }

    /// Checks that a prompt with the output asked for fits into the context.
    ///
    /// # Errors
    /// 400 where both together have to fit.
    fn check_whole(&self, _: &Limits, _prompt: usize, _asked: Option<i128>) -> Result<(), Fault> {
        Ok(())
    }

    /// Checks a text of tokens of at most `longest` characters before it is encoded.
    ///
    /// # Errors
    /// 400 for a text whose characters alone are beyond the context.
    fn check_text(&self, limits: &Limits, text: &str, longest: usize) -> Result<(), Fault> {
        limits.prompt_characters(text, longest)
    }

    /// Checks that an encoded text leaves the context as it has to.
    ///
    /// vLLM's tokenizer cuts a text one token behind the context: the message shows no more.
    ///
    /// # Errors
    /// 400 for a prompt beyond the context.
    fn check_encoded(&self, limits: &Limits, tokens: usize) -> Result<(), Fault> {
        limits.prompt_tokens(tokens.min(limits.max_model_len as usize + 1))
    }

    /// Checks that a prompt of token ids leaves the context as it has to.
    ///
    /// # Errors
    /// 400 for a prompt beyond the context.
    fn check_tokens(&self, limits: &Limits, tokens: usize) -> Result<(), Fault> {
        limits.prompt_tokens(tokens)
    }

    /// Checks that the prompt of a Responses request leaves room for an answer.
    ///
    /// # Errors
    /// 400 for a prompt that fills the context.
    fn check_response(&self, limits: &Limits, tokens: usize) -> Result<(), Fault> {
        limits.responses_prompt_tokens(tokens)
    }

    /// Returns whether calls of tools are written to their end, whatever `max_tokens` says.
    fn writes_whole_calls(&self) -> bool {
        false
    }

    /// Returns what an echo of a message says.
    fn echo<'m>(&self, message: &'m Message) -> Cow<'m, str> {
        message.text()
    }

    /// Returns the tokens of an echo of token ids, where they are these ids themselves.
    fn echo_ids(&self, _tokens: &[u32]) -> Option<Arc<[u32]>> {
        None
    }

    /// Returns whether an answer keeps to a JSON Schema that only the prompt describes.
    fn reads_prompt_schemas(&self) -> bool {
        true
    }
}

/// vLLM's OpenAI server.
#[derive(Debug)]
pub struct Vllm;

impl Dialect for Vllm {}

/// The point at which the values of a request are validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidateAt {
    /// Before the prompt is made (vLLM).
    BeforePrompt,
    /// After the prompt is made (llm-d-inference-sim).
    AfterPrompt,
}

/// The JSON Schemas that tools may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolSchemas {
    /// All.
    Any,
    /// Those that llm-d-inference-sim makes values of.
    Whitelisted,
}

/// The bounds and defaults that an edge's requests meet, and the dialect that orders the checks.
#[derive(Debug, Clone)]
pub struct RequestRules {
    /// Bounds of the values.
    pub limits: Limits,
    /// Values of fields that a request leaves out.
    pub defaults: SamplingDefaults,
    /// Most words that a reply may be kept from saying.
    pub max_bad_words: usize,
    /// JSON Schemas that tools may have.
    pub tool_schemas: ToolSchemas,
    /// Dialect of the edge.
    pub dialect: &'static dyn Dialect,
}
