//! `POST /v1/messages` and `/v1/messages/count_tokens`: the requests.
//!
//! Source: `vllm/entrypoints/anthropic/protocol.py`.

use serde_json::{Map, Value};

use super::bounds::{self, RequestBounds};
use super::check;
use super::fault::Fault;
use super::openai::shared::{CACHE_SALT, ExtraArgs, MM_PAYLOAD};
use super::openai::validators;
use super::schema::{
    ANY_LENGTH, INT, Length, Model, STR, Schema, ValidatorError, Wire, int_from, optional,
    required, wire_model,
};

/// Text of a message or of the system prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// One text.
    Text(String),
    /// Typed blocks.
    Blocks(Vec<ContentBlock>),
}

impl Wire for Content {
    const SCHEMA: Schema = Schema::Union(&[STR, Schema::List(&ContentBlock::SCHEMA, ANY_LENGTH)]);

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            value => Vec::read(value).map(Self::Blocks),
        }
    }
}

wire_model! {
    /// One block of content. Which members mean something depends on `kind`.
    pub struct ContentBlock: Plain "AnthropicContentBlock" after tool_change {
        /// What it is: `text`, `image`, `tool_use`, `tool_result`, …
        kind: String [Schema::Literal(&[
            "text", "image", "tool_use", "tool_result", "tool_reference", "thinking",
            "redacted_thinking", "tool_addition", "tool_removal",
        ])] as "type",
        /// Of `text`.
        text: Option<String> = None,
        /// Of `image`.
        source: Option<Map<String, Value>> = None,
        /// Of `tool_use`.
        id: Option<String> = None,
        /// The call that a `tool_result` answers.
        tool_use_id: Option<String> = None,
        /// Of `tool_use`.
        name: Option<String> = None,
        /// Arguments of `tool_use`.
        input: Option<Map<String, Value>> = None,
        /// Of `tool_result`: a text or blocks, as sent.
        content: Option<Value> [Schema::Nullable(&Schema::Union(&[
            STR,
            Schema::List(&Schema::Dict(&STR, &Schema::Any), ANY_LENGTH),
        ]))] = None,
        /// Whether a `tool_result` reports a failure.
        is_error: Option<bool> = None,
        /// Of `tool_reference`.
        tool_name: Option<String> = None,
        /// Of `thinking`.
        thinking: Option<String> = None,
        /// Of `thinking`.
        signature: Option<String> = None,
        /// Of `redacted_thinking`.
        data: Option<String> = None,
        /// Of `tool_addition` and `tool_removal`, as sent.
        tool: Option<Value> [Schema::Nullable(&TOOL_CHANGE)] = None,
    }
}

const TOOL_CHANGE: Schema = Schema::Tagged {
    by: "type",
    choices: &[
        (
            "tool_reference",
            &Schema::Model(&Model::plain(
                "AnthropicToolChangeReference",
                &[
                    required("type", Schema::Literal(&["tool_reference"])),
                    required("name", STR),
                ],
            )),
        ),
        (
            "tool_definition",
            &Schema::Model(&Model::plain(
                "AnthropicToolChangeDefinition",
                &[
                    required("type", Schema::Literal(&["tool_definition"])),
                    required("definition", Tool::SCHEMA),
                ],
            )),
        ),
    ],
};

fn text<'m>(map: &'m Map<String, Value>, key: &str) -> &'m str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// `AnthropicContentBlock.validate_tool_change`.
fn tool_change(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let kind = text(map, "type");
    if !changes_tools(kind) {
        return Ok(());
    }
    let Some(Value::Object(tool)) = map.get("tool") else {
        return Err(ValidatorError::ValueError(format!(
            "tool is required for {kind} blocks"
        )));
    };
    if kind == "tool_removal" && text(tool, "type") != "tool_reference" {
        return Err(ValidatorError::ValueError(
            "tool_removal only accepts a tool_reference".to_owned(),
        ));
    }
    Ok(())
}

fn changes_tools(kind: &str) -> bool {
    matches!(kind, "tool_addition" | "tool_removal")
}

/// `_reject_tool_changes`.
fn no_tool_changes(content: Option<&Value>) -> Result<(), ValidatorError> {
    let blocks = content.and_then(Value::as_array).into_iter().flatten();
    for kind in blocks.filter_map(|block| block.get("type")?.as_str()) {
        if changes_tools(kind) {
            return Err(ValidatorError::ValueError(format!(
                "{kind} blocks are only allowed in messages with role \"system\""
            )));
        }
    }
    Ok(())
}

wire_model! {
    /// One message.
    pub struct Message: Plain "AnthropicMessage" after tool_change_role {
        /// `user`, `assistant` or `system`.
        role: String [Schema::Literal(&["user", "assistant", "system"])],
        /// What is said.
        content: Content,
    }
}

/// `AnthropicMessage.validate_tool_change_role`.
fn tool_change_role(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    if text(map, "role") == "system" {
        Ok(())
    } else {
        no_tool_changes(map.get("content"))
    }
}

wire_model! {
    /// A tool the model may use.
    pub struct Tool: Plain "AnthropicTool" {
        /// Its name.
        name: String,
        /// What it does.
        description: Option<String> = None,
        /// JSON schema of its input; `type` is `object` when it does not say.
        input_schema: Map<String, Value> [Schema::After(object_type, &Schema::Dict(
            &STR,
            &Schema::Any,
        ))],
        /// Whether the input has to follow the schema.
        strict: Option<bool> = None,
        /// Whether the model loads it on demand.
        defer_loading: Option<bool> = None,
    }
}

/// `AnthropicTool.validate_input_schema`.
fn object_type(schema: &Value) -> Result<Option<Value>, ValidatorError> {
    if schema.get("type").is_some() {
        return Ok(None);
    }
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    schema.insert("type".to_owned(), Value::from("object"));
    Ok(Some(Value::Object(schema)))
}

wire_model! {
    /// Which tools a reply may or must use.
    pub struct ToolChoice: Plain "AnthropicToolChoice" after tool_name {
        /// `auto`, `any`, `tool` or `none`.
        kind: String [Schema::Literal(&["auto", "any", "tool", "none"])] as "type",
        /// The tool, where it is named.
        name: Option<String> = None,
        /// Whether a reply has at most one call.
        disable_parallel_tool_use: Option<bool> = None,
    }
}

/// `AnthropicToolChoice.validate_name_required_for_tool`.
fn tool_name(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    if text(map, "type") == "tool" && text(map, "name").is_empty() {
        return Err(ValidatorError::ValueError(
            "tool_choice.name is required when type is 'tool'".to_owned(),
        ));
    }
    Ok(())
}

wire_model! {
    /// The JSON that a reply should be.
    pub struct JsonFormat: Plain "AnthropicJsonOutputFormat" {
        /// Its schema.
        schema: Option<Map<String, Value>> = None,
        /// Always `json_schema`.
        kind: String [Schema::Literal(&["json_schema"])] as "type" = "json_schema".to_owned(),
    }
}

wire_model! {
    /// How the reply should be.
    pub struct OutputConfig: Plain "AnthropicOutputConfig" {
        /// How hard to think.
        effort: Option<String> [Schema::Nullable(&Schema::Literal(&[
            "low", "medium", "high", "xhigh", "max",
        ]))] = None,
        /// The form of the reply.
        format: Option<JsonFormat> = None,
    }
}

/// Whether and how the model thinks first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// With a budget of tokens.
    Enabled(i128),
    /// Not at all.
    Disabled,
    /// As the model likes.
    Adaptive,
}

const DISPLAY: Schema = Schema::Nullable(&Schema::Literal(&["summarized", "omitted", "updates"]));

impl Wire for Thinking {
    const SCHEMA: Schema = Schema::Tagged {
        by: "type",
        choices: &[
            (
                "enabled",
                &Schema::Model(&Model::plain(
                    "AnthropicThinkingConfigEnabled",
                    &[
                        required("type", Schema::Literal(&["enabled"])),
                        required("budget_tokens", int_from(1024)),
                        optional("display", DISPLAY),
                    ],
                )),
            ),
            (
                "disabled",
                &Schema::Model(&Model::plain(
                    "AnthropicThinkingConfigDisabled",
                    &[required("type", Schema::Literal(&["disabled"]))],
                )),
            ),
            (
                "adaptive",
                &Schema::Model(&Model::plain(
                    "AnthropicThinkingConfigAdaptive",
                    &[
                        required("type", Schema::Literal(&["adaptive"])),
                        optional("display", DISPLAY),
                    ],
                )),
            ),
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

const MODEL_NAME: Schema = Schema::After(
    |name| match name.as_str() {
        Some("") => Err(ValidatorError::ValueError("Model is required".to_owned())),
        _ => Ok(None),
    },
    &STR,
);

const SYSTEM: Schema = Schema::After(
    |system| no_tool_changes(Some(system)).map(|()| None),
    &Schema::Nullable(&Content::SCHEMA),
);

wire_model! {
    /// A request for a message.
    pub struct MessagesRequest: Plain "AnthropicMessagesRequest"
        before [validators::mm_payload_alias] after thinking_budget
    {
        /// Served name.
        model: String [MODEL_NAME],
        /// The conversation.
        messages: Vec<Message>,
        /// Most tokens to generate.
        max_tokens: i128 [Schema::After(
            |max| match i128::read(max) {
                Some(i128::MIN..=0) => {
                    Err(ValidatorError::ValueError("max_tokens must be positive".to_owned()))
                }
                _ => Ok(None),
            },
            &INT,
        )],
        /// Ignored.
        metadata: Option<Map<String, Value>> = None,
        /// How the reply should be.
        output_config: Option<OutputConfig> = None,
        /// Whether and how to think.
        thinking: Option<Thinking> = None,
        /// Texts that end the reply.
        stop_sequences: Option<Vec<String>> [Schema::Nullable(&Schema::List(
            &STR,
            Length { min: 0, max: bounds::STOP_STRINGS },
        ))] = None,
        /// Server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// The system prompt.
        system: Option<Content> [SYSTEM] = None,
        /// 0 to 2.
        temperature: Option<f64> = None,
        /// Which tools may or must be used.
        tool_choice: Option<ToolChoice> = None,
        /// Tools the model may use.
        tools: Option<Vec<Tool>> = None,
        /// 0 or -1 for off.
        top_k: Option<i128> = None,
        /// Above 0, up to 1.
        top_p: Option<f64> = None,
        /// What a render answer carries of media.
        mm_payload: String [MM_PAYLOAD] = "tensors".to_owned(),
        /// Older form of `mm_payload`.
        return_mm_kwargs: Option<bool> = None,
        /// Keeps the prefix cache apart.
        cache_salt: Option<String> [CACHE_SALT] = None,
        /// Whether the engine's watermark applies.
        watermarking: Option<bool> = None,
        /// For the engine's KV connector.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// For the engine's encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
        /// For extensions.
        vllm_xargs: Option<ExtraArgs> = None,
        /// Arguments for the template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
    }
}

/// `AnthropicMessagesRequest.validate_thinking_budget`.
fn thinking_budget(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let params = map.get("kv_transfer_params").and_then(Value::as_object);
    if params.is_some_and(|params| validators::truthy(params, "do_remote_decode")) {
        return Ok(());
    }
    let thinking = map.get("thinking").and_then(Thinking::read);
    let max = map.get("max_tokens").and_then(i128::read);
    match (thinking, max) {
        (Some(Thinking::Enabled(budget)), Some(max)) if budget >= max => {
            Err(ValidatorError::ValueError(
                "thinking.budget_tokens must be less than max_tokens".to_owned(),
            ))
        }
        _ => Ok(()),
    }
}

impl MessagesRequest {
    /// Reads a body within the bounds of a server.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take, in OpenAI's envelope.
    pub fn parse(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        check::body_within(value, bounds)
    }
}

wire_model! {
    /// A request to count the tokens of a prompt.
    pub struct CountTokensRequest: Plain "AnthropicCountTokensRequest" {
        /// Served name.
        model: String [MODEL_NAME],
        /// The conversation.
        messages: Vec<Message>,
        /// How the reply should be.
        output_config: Option<OutputConfig> = None,
        /// The system prompt.
        system: Option<Content> [SYSTEM] = None,
        /// Whether and how to think.
        thinking: Option<Thinking> = None,
        /// Which tools may or must be used.
        tool_choice: Option<ToolChoice> = None,
        /// Tools the model may use.
        tools: Option<Vec<Tool>> = None,
        /// Arguments for the template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
    }
}

impl CountTokensRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take, in OpenAI's envelope.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}
