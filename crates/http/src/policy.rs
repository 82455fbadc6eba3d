//! What llm-d-inference-sim and vLLM do differently over HTTP, as one value: chosen when the server
//! starts, and asked by field.

use vllm_sim_config::{Compat, Config};
use vllm_sim_service::{
    AdmitAt, ContextCheck, ModelName, Policy as GenerationPolicy, ToolSchemas, ValidateAt,
};
use vllm_sim_wire::openai::completion::DEFAULT_MAX_TOKENS;
use vllm_sim_wire::{Limits, SamplingDefaults};

/// The rules of a server's HTTP API.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// The rules of the road that requests for generation take.
    pub(crate) generation: GenerationPolicy,
    /// Who looks at a body first.
    pub(crate) first_reader: FirstReader,
    /// What is said of a name that nobody answers to.
    pub(crate) unknown_model: UnknownModel,
    /// Whether `/tokenize` and the pooling routes look at the model's name.
    pub(crate) checks_side_models: bool,
    /// Most tokens of a completion that does not say.
    pub(crate) default_max_tokens: Option<i128>,
    /// Whether a text is refused by its characters, before it is encoded.
    pub(crate) refuses_long_texts: bool,
    /// Whether a prompt that another server decodes may be streamed.
    pub(crate) streams_prefill: bool,
    /// What the server that decodes is told.
    pub(crate) transfer_offer: TransferOffer,
    /// Whether a hit threshold holds without a prefix cache.
    pub(crate) threshold_without_cache: bool,
    /// Ids of tool calls, and of what else an answer names.
    pub(crate) ids: IdForm,
    /// Id of a message, before the request's own.
    pub(crate) message_id_prefix: &'static str,
    /// Where a stream says what is found after its headers: in Messages and Responses.
    pub(crate) late_refusals: LateRefusals,
    /// Whose envelope errors of `/v1/messages` have.
    pub(crate) message_errors: Envelope,
    /// Whether the model reads the instructions of a Responses request.
    pub(crate) tells_instructions: bool,
    /// Which turns of a Responses conversation call tools.
    pub(crate) tool_turns: ToolTurns,
    /// How long answers are.
    pub(crate) answers: AnswerForm,
    /// What the render routes show.
    pub(crate) rendered: RenderedForm,
    /// How adapters are loaded, engines sent to sleep and settings shown.
    pub(crate) operations: OperationForm,
}

/// Who looks at a body first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstReader {
    /// The schema, as pydantic does.
    Schema,
    /// llm-d's own checks, with failures and the model among them.
    Llmd,
}

/// What is said of a name that nobody answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownModel {
    /// That, and which names there are.
    WithAliases,
    /// That.
    Bare,
}

/// What the server that decodes a prompt is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferOffer {
    /// What its connector needs.
    Connector,
    /// llm-d's placeholders.
    Placeholders,
}

/// How ids look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdForm {
    /// Hex digits.
    Hex,
    /// Ten decimal digits, or the request's own.
    Numbered,
}

/// Where a stream says what is found after its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateRefusals {
    /// In its body.
    InStream,
    /// In a status: its headers wait.
    AsStatus,
}

/// Whose envelope an error has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// Anthropic's.
    Anthropic,
    /// OpenAI's.
    OpenAi,
}

/// Which turns of a Responses conversation call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolTurns {
    /// As the request says.
    AsAsked,
    /// One call in the first turn, none once it has its result.
    OneCall,
}

/// How long answers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// vLLM's, with every member.
    Full,
    /// llm-d's.
    Short,
}

/// What the render routes show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderedForm {
    /// A request for `/inference/v1/generate`.
    Request,
    /// The tokens of the base model's prompt.
    Tokens,
}

/// How routes for operators answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationForm {
    /// vLLM's way: checked, with a word of success.
    Checked,
    /// llm-d's way: lenient, with an empty body.
    Lenient,
}

impl Policy {
    /// The rules of a configuration.
    pub(crate) fn of(config: &Config, limits: Limits, defaults: SamplingDefaults) -> Self {
        let content = &config.content;
        let generation = GenerationPolicy {
            limits,
            defaults,
            max_bad_words: config.api.limits.bad_words as usize,
            tool_schemas: match content.tools.strict_whitelist && !content.skip_tool_validation {
                true => ToolSchemas::Whitelisted,
                false => ToolSchemas::Any,
            },
            model_name: ModelName::Optional,
            admission: AdmitAt::Arrival,
            validation: ValidateAt::BeforePrompt,
            context: ContextCheck::Prompt,
        };
        if config.model.compat == Compat::Llmd {
            Self::llmd(generation)
        } else {
            Self::vllm(generation)
        }
    }

    fn vllm(generation: GenerationPolicy) -> Self {
        Self {
            generation,
            first_reader: FirstReader::Schema,
            unknown_model: UnknownModel::WithAliases,
            checks_side_models: true,
            default_max_tokens: Some(DEFAULT_MAX_TOKENS),
            refuses_long_texts: true,
            streams_prefill: true,
            transfer_offer: TransferOffer::Connector,
            threshold_without_cache: true,
            ids: IdForm::Hex,
            message_id_prefix: "chatcmpl-",
            late_refusals: LateRefusals::InStream,
            message_errors: Envelope::Anthropic,
            tells_instructions: true,
            tool_turns: ToolTurns::AsAsked,
            answers: AnswerForm::Full,
            rendered: RenderedForm::Request,
            operations: OperationForm::Checked,
        }
    }

    fn llmd(generation: GenerationPolicy) -> Self {
        Self {
            generation: GenerationPolicy {
                model_name: ModelName::Required,
                validation: ValidateAt::AfterPrompt,
                context: ContextCheck::PromptAndOutput,
                ..generation
            },
            first_reader: FirstReader::Llmd,
            unknown_model: UnknownModel::Bare,
            checks_side_models: false,
            default_max_tokens: None,
            // The tokens of whatever comes are counted.
            refuses_long_texts: false,
            streams_prefill: false,
            transfer_offer: TransferOffer::Placeholders,
            threshold_without_cache: false,
            ids: IdForm::Numbered,
            message_id_prefix: "msg_",
            late_refusals: LateRefusals::AsStatus,
            message_errors: Envelope::OpenAi,
            tells_instructions: false,
            tool_turns: ToolTurns::OneCall,
            answers: AnswerForm::Short,
            rendered: RenderedForm::Tokens,
            operations: OperationForm::Lenient,
        }
    }
}
