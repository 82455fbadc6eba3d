//! Requests of Anthropic's API: `POST /v1/messages` and `/v1/messages/count_tokens`.
//!
//! Source: `vllm/entrypoints/anthropic/protocol.py`.

use serde_json::{Map, Value};

use super::bounds;
use super::openai::sampling_fields::{CACHE_SALT_SCHEMA, ExtraSamplingArgs, MM_PAYLOAD_SCHEMA};
use crate::openai::shared_request_fields;
use crate::schema::Schema::{self, After, Any, Dict, List, Literal, Nullable, Tagged, Union};
use crate::schema::{
    ANY_LENGTH, INT, LengthLimits, RequestField, STR, ValidatorError, int_at_least_schema,
    optional_field as opt, plain_model, required_field as req, wire_model,
};

/// Content of an Anthropic message or system prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum AnthropicContent {
    /// Content of an Anthropic message or system prompt as a plain string.
    Text(String),
    /// Content of an Anthropic message or system prompt as a list of typed content blocks.
    Blocks(Vec<AnthropicContentBlock>),
}

impl RequestField for AnthropicContent {
    const SCHEMA: Schema = Union(&[STR, List(&AnthropicContentBlock::SCHEMA, ANY_LENGTH)]);

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            value => Vec::read(value).map(Self::Blocks),
        }
    }
}

wire_model! {
    /// One content block of an Anthropic message; `kind` decides which of the other members are
    /// used.
    pub struct AnthropicContentBlock: Plain "AnthropicContentBlock" after validate_tool_change {
        /// Type of the content block: `text`, `image`, `tool_use`, `tool_result`, …
        kind: String [Literal(&[
            "text", "image", "tool_use", "tool_result", "tool_reference", "thinking",
            "redacted_thinking", "tool_addition", "tool_removal",
        ])] as "type",
        /// Text of a `text` block.
        text: Option<String> = None,
        /// Source of an `image` block: base64 data or URL.
        source: Option<Map<String, Value>> = None,
        /// Id of the tool call in a `tool_use` block.
        id: Option<String> = None,
        /// Id of the tool call that a `tool_result` block answers.
        tool_use_id: Option<String> = None,
        /// Tool name of a `tool_use` block.
        name: Option<String> = None,
        /// Arguments of the tool call in a `tool_use` block.
        input: Option<Map<String, Value>> = None,
        /// Output of the tool in a `tool_result` block: a string or blocks, as sent.
        content: Option<Value> [Nullable(&Union(&[
            STR,
            List(&Dict(&STR, &Any), ANY_LENGTH),
        ]))] = None,
        /// Whether a `tool_result` block reports a failure of the tool.
        is_error: Option<bool> = None,
        /// Tool name of a `tool_reference` block.
        tool_name: Option<String> = None,
        /// Reasoning text of a `thinking` block.
        thinking: Option<String> = None,
        /// Signature of the reasoning in a `thinking` block.
        signature: Option<String> = None,
        /// Encrypted reasoning of a `redacted_thinking` block.
        data: Option<String> = None,
        /// Tool of a `tool_addition` or `tool_removal` block, as sent.
        tool: Option<Value> [Nullable(&TOOL_CHANGE_SCHEMA)] = None,
    }
}

/// Defines a choice of a tagged union: its `type`, and the schema of its class.
macro_rules! choice {
    ($kind:literal, $class:literal $(, $field:expr)* $(,)?) => {
        ($kind, &plain_model!($class, req("type", Literal(&[$kind])) $(, $field)*))
    };
}

const TOOL_CHANGE_SCHEMA: Schema = Tagged {
    by: "type",
    choices: &[
        choice!("tool_reference", "AnthropicToolChangeReference", req("name", STR)),
        choice!(
            "tool_definition",
            "AnthropicToolChangeDefinition",
            req("definition", AnthropicTool::SCHEMA)
        ),
    ],
};

fn text_member<'m>(map: &'m Map<String, Value>, key: &str) -> &'m str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Checks that a `tool_addition` or `tool_removal` block has a tool, and that a removal has only a
/// `tool_reference`.
///
/// Source: vLLM's `AnthropicContentBlock.validate_tool_change`.
fn validate_tool_change(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let kind = text_member(map, "type");
    if !is_tool_change(kind) {
        return Ok(());
    }
    let Some(Value::Object(tool)) = map.get("tool") else {
        return Err(ValidatorError::ValueError(format!("tool is required for {kind} blocks")));
    };
    if kind == "tool_removal" && text_member(tool, "type") != "tool_reference" {
        return Err(ValidatorError::ValueError(
            "tool_removal only accepts a tool_reference".to_owned(),
        ));
    }
    Ok(())
}

fn is_tool_change(kind: &str) -> bool {
    matches!(kind, "tool_addition" | "tool_removal")
}

/// Rejects `tool_addition` and `tool_removal` blocks, for content outside system messages.
///
/// Source: vLLM's `_reject_tool_changes`.
fn reject_tool_changes(content: Option<&Value>) -> Result<(), ValidatorError> {
    let blocks = content.and_then(Value::as_array).into_iter().flatten();
    for kind in blocks.filter_map(|block| block.get("type")?.as_str()) {
        if is_tool_change(kind) {
            return Err(ValidatorError::ValueError(format!(
                "{kind} blocks are only allowed in messages with role \"system\""
            )));
        }
    }
    Ok(())
}

wire_model! {
    /// One message of an Anthropic conversation.
    pub struct AnthropicMessage: Plain "AnthropicMessage" after validate_tool_change_role {
        /// Role of the message: `user`, `assistant` or `system`.
        role: String [Literal(&["user", "assistant", "system"])],
        /// Content of the message: a string or typed blocks.
        content: AnthropicContent,
    }
}

/// Checks that `tool_addition` and `tool_removal` blocks are only in system messages.
///
/// Source: vLLM's `AnthropicMessage.validate_tool_change_role`.
fn validate_tool_change_role(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    if text_member(map, "role") == "system" {
        Ok(())
    } else {
        reject_tool_changes(map.get("content"))
    }
}

wire_model! {
    /// A tool that the model may call.
    pub struct AnthropicTool: Plain "AnthropicTool" {
        /// Name of the tool, for the model to call it.
        name: String,
        /// Description of the tool for the model.
        description: Option<String> = None,
        /// JSON schema of the tool's arguments; a missing `type` becomes `object`.
        input_schema: Map<String, Value> [After(validate_input_schema, &Dict(
            &STR,
            &Any,
        ))],
        /// Whether the tool's arguments must match the schema.
        strict: Option<bool> = None,
        /// Whether the model loads the tool on demand.
        defer_loading: Option<bool> = None,
    }
}

/// Adds `type: object` to a tool schema without a type.
///
/// Source: vLLM's `AnthropicTool.validate_input_schema`.
fn validate_input_schema(schema: &Value) -> Result<Option<Value>, ValidatorError> {
    if schema.get("type").is_some() {
        return Ok(None);
    }
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    schema.insert("type".to_owned(), Value::from("object"));
    Ok(Some(Value::Object(schema)))
}

wire_model! {
    /// Rule for tool calls: whether the model calls tools, and which.
    pub struct AnthropicToolChoice: Plain "AnthropicToolChoice" after validate_name_required_for_tool {
        /// Kind of tool choice: `auto`, `any`, `tool` or `none`.
        kind: String [Literal(&["auto", "any", "tool", "none"])] as "type",
        /// Name of the tool to call, if `kind` is `tool`.
        name: Option<String> = None,
        /// Whether a reply may contain at most one tool call.
        disable_parallel_tool_use: Option<bool> = None,
    }
}

/// Checks that a tool choice of type `tool` has a name.
///
/// Source: vLLM's `AnthropicToolChoice.validate_name_required_for_tool`.
fn validate_name_required_for_tool(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    if text_member(map, "type") == "tool" && text_member(map, "name").is_empty() {
        return Err(ValidatorError::ValueError(
            "tool_choice.name is required when type is 'tool'".to_owned(),
        ));
    }
    Ok(())
}

wire_model! {
    /// JSON output format of an Anthropic request.
    pub struct AnthropicJsonFormat: Plain "AnthropicJsonOutputFormat" {
        /// JSON schema of the model's reply.
        schema: Option<Map<String, Value>> = None,
        /// Type of the output format, always `json_schema`.
        kind: String [Literal(&["json_schema"])] as "type" = "json_schema".to_owned(),
    }
}

wire_model! {
    /// Reasoning effort and output format of the reply.
    pub struct AnthropicOutputConfig: Plain "AnthropicOutputConfig" {
        /// Reasoning effort of the model, such as `low` or `high`.
        effort: Option<String> [Nullable(&Literal(&[
            "low", "medium", "high", "xhigh", "max",
        ]))] = None,
        /// Output format of the reply; `None`: free text.
        format: Option<AnthropicJsonFormat> = None,
    }
}

/// Reasoning (extended thinking) mode of an Anthropic request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingConfig {
    /// Reasoning mode: the model reasons with at most this number of tokens.
    Enabled(i128),
    /// Reasoning mode: the model does not reason.
    Disabled,
    /// Reasoning mode: the model decides whether to reason.
    Adaptive,
}

const DISPLAY_SCHEMA: Schema = Nullable(&Literal(&["summarized", "omitted", "updates"]));

impl RequestField for ThinkingConfig {
    const SCHEMA: Schema = Tagged {
        by: "type",
        choices: &[
            choice!(
                "enabled",
                "AnthropicThinkingConfigEnabled",
                req("budget_tokens", int_at_least_schema(1024)),
                opt("display", DISPLAY_SCHEMA)
            ),
            choice!("disabled", "AnthropicThinkingConfigDisabled"),
            choice!("adaptive", "AnthropicThinkingConfigAdaptive", opt("display", DISPLAY_SCHEMA)),
        ],
    };

    fn read(value: &Value) -> Option<Self> {
        match value.get("type")?.as_str()? {
            "enabled" => Some(Self::Enabled(i128::read(value.get("budget_tokens")?)?)),
            "disabled" => Some(Self::Disabled),
            _ => Some(Self::Adaptive),
        }
    }
}

const MODEL_NAME_SCHEMA: Schema = After(
    |name| match name.as_str() {
        Some("") => Err(ValidatorError::ValueError("Model is required".to_owned())),
        _ => Ok(None),
    },
    &STR,
);

const SYSTEM_SCHEMA: Schema = After(
    |system| reject_tool_changes(Some(system)).map(|()| None),
    &Nullable(&AnthropicContent::SCHEMA),
);

wire_model! {
    /// A request of `POST /v1/messages`.
    pub struct MessagesRequest: Plain "AnthropicMessagesRequest"
        before [shared_request_fields::apply_return_mm_kwargs_alias] after validate_thinking_budget
    {
        /// Name of the served model or LoRA adapter that handles the request.
        model: String [MODEL_NAME_SCHEMA],
        /// Messages of the conversation, oldest first.
        messages: Vec<AnthropicMessage>,
        /// Maximum number of tokens to generate.
        max_tokens: i128 [After(
            |max| match i128::read(max) {
                Some(i128::MIN..=0) => {
                    Err(ValidatorError::ValueError("max_tokens must be positive".to_owned()))
                }
                _ => Ok(None),
            },
            &INT,
        )],
        /// Metadata of the request, such as a user id; ignored.
        metadata: Option<Map<String, Value>> = None,
        /// Reasoning effort and output format of the reply.
        output_config: Option<AnthropicOutputConfig> = None,
        /// Reasoning (extended thinking) mode of the request.
        thinking: Option<ThinkingConfig> = None,
        /// Stop strings: the output ends before the first of them.
        stop_sequences: Option<Vec<String>> [Nullable(&List(
            &STR,
            LengthLimits { min: 0, max: bounds::MAX_STOP_STRINGS_PLACEHOLDER },
        ))] = None,
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// The system prompt, before the first message.
        system: Option<AnthropicContent> [SYSTEM_SCHEMA] = None,
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: Option<f64> = None,
        /// Rule for tool calls: whether the model calls tools, and which.
        tool_choice: Option<AnthropicToolChoice> = None,
        /// The tools that the model may call.
        tools: Option<Vec<AnthropicTool>> = None,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// Form of images, audio and video in a render response: `tensors` or `none`.
        mm_payload: String [MM_PAYLOAD_SCHEMA] = "tensors".to_owned(),
        /// Deprecated form of `mm_payload`: false means `none`.
        return_mm_kwargs: Option<bool> = None,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> [CACHE_SALT_SCHEMA] = None,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Parameters for the KV connector, such as the blocks of a remote prefill server.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// Parameters for the encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
        /// Custom sampling arguments for vLLM extensions (`vllm_xargs`).
        vllm_xargs: Option<ExtraSamplingArgs> = None,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
    }
}

/// Checks that the thinking budget is below `max_tokens`.
///
/// Source: vLLM's `AnthropicMessagesRequest.validate_thinking_budget`.
fn validate_thinking_budget(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let params = map.get("kv_transfer_params").and_then(Value::as_object);
    if params
        .is_some_and(|params| shared_request_fields::is_truthy_member(params, "do_remote_decode"))
    {
        return Ok(());
    }
    let thinking = map.get("thinking").and_then(ThinkingConfig::read);
    let max = map.get("max_tokens").and_then(i128::read);
    match (thinking, max) {
        (Some(ThinkingConfig::Enabled(budget)), Some(max)) if budget >= max => {
            Err(ValidatorError::ValueError(
                "thinking.budget_tokens must be less than max_tokens".to_owned(),
            ))
        }
        _ => Ok(()),
    }
}

wire_model! {
    /// A request of `POST /v1/messages/count_tokens`.
    pub struct CountTokensRequest: Plain "AnthropicCountTokensRequest" {
        /// Name of the served model or LoRA adapter that handles the request.
        model: String [MODEL_NAME_SCHEMA],
        /// Messages of the conversation, oldest first.
        messages: Vec<AnthropicMessage>,
        /// Reasoning effort and output format of the reply.
        output_config: Option<AnthropicOutputConfig> = None,
        /// The system prompt, before the first message.
        system: Option<AnthropicContent> [SYSTEM_SCHEMA] = None,
        /// Reasoning (extended thinking) mode of the request.
        thinking: Option<ThinkingConfig> = None,
        /// Rule for tool calls: whether the model calls tools, and which.
        tool_choice: Option<AnthropicToolChoice> = None,
        /// The tools that the model may call.
        tools: Option<Vec<AnthropicTool>> = None,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
    }
}
