//! What a protocol allows and in which order it looks at a request: chosen once, when the server
//! starts, and asked by the road that every request takes ([`crate::Service::serve`]).
//!
//! The parameters of the sampler, the limits they are checked against and the words of a refusal
//! are `vllm_sim_wire`'s: vLLM builds the same `SamplingParams` behind HTTP and gRPC and says the
//! same of them, so they belong to no protocol. This crate names nothing else of the wire.

use super::{Refusal, Service};
use crate::generate::request::Target;
use vllm_sim_wire::{Fault, Limits, SamplingDefaults};

/// The rules of one protocol.
#[derive(Debug, Clone)]
pub struct Policy {
    /// What requests are checked against.
    pub limits: Limits,
    /// What is filled in where a request is silent.
    pub defaults: SamplingDefaults,
    /// Most words that a reply may be kept from saying.
    pub max_bad_words: usize,
    /// Which JSON Schemas tools may have.
    pub tool_schemas: ToolSchemas,
    /// Whether a request has to name its model.
    pub model_name: ModelName,
    /// When it is seen whether there is room for another request.
    pub admission: AdmitAt,
    /// When the values of a request are checked.
    pub validation: ValidateAt,
    /// What has to fit into the context.
    pub context: ContextCheck,
    /// How long calls of tools may be.
    pub calls: CallLength,
}

impl Policy {
    /// The rules of an API between programs, which sends prompts as token ids: no model to name,
    /// admission with the job alone, and the prompt alone has to fit.
    pub fn of_token_ids(limits: Limits, defaults: SamplingDefaults, max_bad_words: usize) -> Self {
        Self {
            limits,
            defaults,
            max_bad_words,
            tool_schemas: ToolSchemas::Any,
            model_name: ModelName::Optional,
            admission: AdmitAt::Submission,
            validation: ValidateAt::BeforePrompt,
            context: ContextCheck::Prompt,
            calls: CallLength::Cut,
        }
    }
}

/// How long calls of tools may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallLength {
    /// As long as any other text.
    Cut,
    /// As long as they are: only the context limits them (llm-d-inference-sim).
    Whole,
}

/// Which JSON Schemas tools may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolSchemas {
    /// All.
    Any,
    /// What llm-d-inference-sim can make values of.
    Whitelisted,
}

/// Whether a request has to name its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelName {
    /// No name is the base model's.
    Optional,
    /// No name is nobody's.
    Required,
}

/// When it is seen whether there is room for another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmitAt {
    /// Before its prompt is made, and again with the job.
    Arrival,
    /// With the job alone.
    Submission,
}

/// When the values of a request are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidateAt {
    /// As vLLM does.
    BeforePrompt,
    /// As llm-d-inference-sim does.
    AfterPrompt,
}

/// What has to fit into the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextCheck {
    /// Each prompt; the output gets what is left (vLLM).
    Prompt,
    /// Each prompt and what is asked for, one token if nobody says (llm-d-inference-sim).
    PromptAndOutput,
}

impl Policy {
    /// Whether a prompt leaves the context as vLLM wants it; a text is cut by the tokenizer at one
    /// token too many, so that is all its length says.
    ///
    /// # Errors
    /// 400 for a prompt that fills more than the context.
    pub fn fits(&self, tokens: &[u32], text: bool) -> Result<(), Fault> {
        if self.context == ContextCheck::PromptAndOutput {
            // Looked at with what is asked for, and not at all where nothing is.
            return Ok(());
        }
        let most = self.limits.max_model_len as usize;
        let shown = if text {
            tokens.len().min(most + 1)
        } else {
            tokens.len()
        };
        self.limits.prompt_tokens(shown)
    }

    /// Whether the prompt of a Responses request leaves the context as vLLM wants it there.
    ///
    /// # Errors
    /// 400 for a prompt that fills the context.
    pub fn response_fits(&self, tokens: &[u32]) -> Result<(), Fault> {
        match self.context {
            ContextCheck::Prompt => self.limits.responses_prompt_tokens(tokens.len()),
            ContextCheck::PromptAndOutput => Ok(()),
        }
    }

    /// Whether prompts and what is asked for fit into the context, where that is looked at.
    pub(super) fn whole_fits(
        &self,
        prompts: impl IntoIterator<Item = usize>,
        asked: Option<i128>,
    ) -> Result<(), Fault> {
        if self.context == ContextCheck::Prompt {
            return Ok(());
        }
        let most = self.limits.max_model_len;
        let completion = asked.unwrap_or(1);
        for prompt in prompts {
            let whole = completion.saturating_add(prompt as i128);
            if whole > i128::from(most) {
                return Err(Fault::bad_request(format!(
                    "This model's maximum context length is {most} tokens. However, you requested \
                     {whole} tokens ({prompt} in the messages, {completion} in the completion). \
                     Please reduce the length of the messages or completion"
                )));
            }
        }
        Ok(())
    }
}

impl Service {
    /// Who answers to a name.
    ///
    /// # Errors
    /// [`Refusal::UnknownModel`].
    pub fn target(&self, policy: &Policy, model: Option<&str>) -> Result<Target, Refusal> {
        let name = model.unwrap_or_default();
        let named = policy.model_name == ModelName::Optional || !name.is_empty();
        let found = self.models.resolve(model).filter(|_| named);
        found.ok_or_else(|| Refusal::UnknownModel(name.to_owned()))
    }
}
