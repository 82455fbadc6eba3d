//! Requests of `POST /v1/messages` and `POST /v1/messages/count_tokens` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/anthropic/protocol.py`.

use serde_json::{Map, Value};

use crate::schema::Schema::{
    self, After, Any, Bool, Dict, Late, List, Literal, Nullable, Selected, Tagged, Union,
};
use crate::schema::{
    ANY_LENGTH, INT, STR, ValidatorError, optional_field as opt, plain_model,
    required_field as req, wire_model,
};

const OBJECT: Schema = Dict(&STR, &Any);

/// Defines one kind of content block: its `type`, and the schema of its class.
macro_rules! block {
    ($kind:literal, $class:literal, $($field:expr),* $(,)?) => {
        ($kind, &plain_model!($class, opt("type", Literal(&[$kind])), $($field),*))
    };
}

/// Schema of a content block, whose `type` selects its class.
const BLOCK: Schema = Tagged {
    by: "type",
    choices: &[
        block!("text", "TextBlock", req("text", STR)),
        block!("image", "ImageBlock", opt("source", Nullable(&Union(&[OBJECT, STR])))),
        block!("tool_use", "ToolUseBlock", req("id", STR), req("name", STR), opt("input", OBJECT)),
        block!(
            "tool_result",
            "ToolResultBlock",
            opt("tool_use_id", Nullable(&STR)),
            opt("id", Nullable(&STR)),
            opt("content", Nullable(&Late(|| CONTENT))),
            opt("is_error", Nullable(&Bool)),
        ),
        block!(
            "tool_reference",
            "ToolReferenceBlock",
            opt("name", Nullable(&STR)),
            opt("tool_name", Nullable(&STR)),
            opt("id", Nullable(&STR)),
        ),
        block!(
            "search_result",
            "SearchResultBlock",
            opt("source", Nullable(&Union(&[STR, OBJECT]))),
            opt("title", Nullable(&STR)),
            opt("content", Nullable(&List(&OBJECT, ANY_LENGTH))),
        ),
        block!("thinking", "ThinkingBlock", req("thinking", STR), opt("signature", Nullable(&STR))),
        block!("redacted_thinking", "RedactedThinkingBlock", opt("data", Nullable(&STR))),
    ],
};

/// Schema of a message's content: a text, or blocks.
const CONTENT: Schema = Union(&[STR, List(&BLOCK, ANY_LENGTH)]);

const MESSAGES: Schema = List(
    &plain_model!(
        "AnthropicMessage",
        req("role", Literal(&["user", "assistant", "system"])),
        req("content", CONTENT)
    ),
    ANY_LENGTH,
);

/// Schema of a tool of Anthropic's servers, which the model never sees.
macro_rules! server_tool {
    ($class:literal, [$($name:literal),*]) => {
        plain_model!($class, req("type", STR), opt("name", Literal(&[$($name),*])))
    };
}

/// Prefixes of the types of tools of Anthropic's servers, with their tag and schema.
const SERVER_TOOLS: [(&str, &str, Schema); 4] = [
    ("web_search_", "web_search", server_tool!("AnthropicWebSearchTool", ["web_search"])),
    ("computer_", "computer", server_tool!("AnthropicComputerTool", ["computer"])),
    ("bash_", "bash", server_tool!("AnthropicBashTool", ["bash"])),
    (
        "text_editor_",
        "text_editor",
        server_tool!(
            "AnthropicTextEditorTool",
            ["str_replace_editor", "str_replace_based_edit_tool"]
        ),
    ),
];

const CUSTOM_TOOL: Schema = plain_model!(
    "AnthropicCustomTool",
    opt("type", Nullable(&Literal(&["custom"]))),
    req("name", STR),
    opt("description", Nullable(&STR)),
    req("input_schema", OBJECT),
    opt("strict", Bool),
    opt("defer_loading", Nullable(&Bool))
);

/// Returns the union tag and the schema of the Python class that SGLang chooses for a tool.
///
/// Source: SGLang's `_tool_discriminator`.
fn tool_class(tool: &Value) -> (&'static str, &'static Schema) {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or_default();
    let server = SERVER_TOOLS.iter().find(|(start, ..)| kind.starts_with(start));
    server.map_or(("custom", &CUSTOM_TOOL), |(_, tag, schema)| (tag, schema))
}

/// Returns whether a tool runs on Anthropic's servers.
pub fn is_server_tool(tool: &Value) -> bool {
    tool_class(tool).0 != "custom"
}

const TOOLS: Schema = Nullable(&List(&Selected(tool_class), ANY_LENGTH));

const TOOL_CHOICE: Schema = Nullable(&plain_model!(
    "AnthropicToolChoice",
    req("type", Literal(&["auto", "any", "tool", "none"])),
    opt("name", Nullable(&STR)),
    opt("disable_parallel_tool_use", Bool)
));

const THINKING: Schema = Nullable(&After(
    check_thinking,
    &plain_model!(
        "AnthropicThinkingParam",
        req("type", Literal(&["enabled", "disabled", "adaptive"])),
        opt("budget_tokens", Nullable(&INT)),
        opt("display", Nullable(&Literal(&["summarized", "omitted"])))
    ),
));

/// Minimum budget of reasoning tokens.
const MIN_THINKING_BUDGET: i64 = 1024;

/// Checks that `thinking` has only the members that its type allows; mirrors SGLang's
/// `_validate_thinking_shape`.
fn check_thinking(thinking: &Value) -> Result<Option<Value>, ValidatorError> {
    let kind = thinking.get("type").and_then(Value::as_str).unwrap_or_default();
    let budget = thinking.get("budget_tokens").filter(|budget| !budget.is_null());
    let shows = thinking.get("display").is_some_and(|display| !display.is_null());
    let text = match (kind, budget) {
        ("enabled", None) => {
            "thinking.budget_tokens is required when thinking.type is 'enabled'".to_owned()
        }
        ("enabled", Some(budget)) if budget.as_i64().unwrap_or(0) < MIN_THINKING_BUDGET => {
            format!("thinking.budget_tokens must be >= {MIN_THINKING_BUDGET} (got {budget})")
        }
        ("disabled" | "adaptive", Some(_)) => {
            format!("thinking.budget_tokens is not allowed when thinking.type is '{kind}'")
        }
        ("disabled", None) if shows => {
            "thinking.display is not allowed when thinking.type is 'disabled'".to_owned()
        }
        _ => return Ok(None),
    };
    Err(ValidatorError::ValueError(text))
}

const OUTPUT_CONFIG: Schema = Nullable(&plain_model!(
    "AnthropicOutputConfig",
    opt("effort", Nullable(&Literal(&["minimal", "low", "medium", "high", "xhigh", "max"]))),
    opt("task_budget", Nullable(&OBJECT)),
    opt(
        "format",
        Nullable(&plain_model!(
            "AnthropicJSONOutputFormat",
            req("type", Literal(&["json_schema"])),
            req("schema", OBJECT)
        )),
    )
));

fn check_model(name: &Value) -> Result<Option<Value>, ValidatorError> {
    match name.as_str() {
        Some("") => Err(ValidatorError::ValueError("Model is required".to_owned())),
        _ => Ok(None),
    }
}

fn check_max_tokens(limit: &Value) -> Result<Option<Value>, ValidatorError> {
    match limit.as_i64() {
        Some(..=0) => Err(ValidatorError::ValueError("max_tokens must be positive".to_owned())),
        _ => Ok(None),
    }
}

wire_model! {
    /// A request of `POST /v1/messages`.
    pub struct SglangMessagesRequest: Plain "AnthropicMessagesRequest" {
        /// Name of the model, which responses repeat.
        model: String [After(check_model, &STR)],
        /// Messages of the conversation, oldest first.
        messages: Vec<Value> [MESSAGES],
        /// Maximum number of tokens to generate.
        max_tokens: i64 [After(check_max_tokens, &INT)],
        /// Metadata of the request, such as a user id.
        metadata: Option<Map<String, Value>> = None,
        /// Stop strings: the output ends before the first of them.
        stop_sequences: Option<Vec<String>> = None,
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// System prompt, before the first message.
        system: Option<Value> [Nullable(&CONTENT)] = None,
        /// Sampling temperature.
        temperature: Option<f64> = None,
        /// Reasoning (extended thinking) mode of the request.
        thinking: Option<Value> [THINKING] = None,
        /// Rule for tool calls: whether the model calls tools, and which.
        tool_choice: Option<Value> [TOOL_CHOICE] = None,
        /// The tools that the model may call.
        tools: Option<Vec<Value>> [TOOLS] = None,
        /// Number of most likely tokens to sample from.
        top_k: Option<i64> = None,
        /// Nucleus sampling threshold.
        top_p: Option<f64> = None,
        /// Reasoning effort and output format of the reply.
        output_config: Option<Value> [OUTPUT_CONFIG] = None,
        /// Names of features of Anthropic's API; have no effect.
        betas: Option<Vec<String>> = None,
        /// Host of the bootstrap server of the prefill server.
        bootstrap_host: Option<Value> = None,
        /// Port of the bootstrap server of the prefill server.
        bootstrap_port: Option<Value> = None,
        /// Number of the request, which identifies it on both servers of a prefill/decode pair.
        bootstrap_room: Option<Value> = None,
        /// The data-parallel rank of the prefill server that computes the prompt.
        disagg_prefill_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request.
        routed_dp_rank: Option<i64> = None,
    }
}

wire_model! {
    /// A request of `POST /v1/messages/count_tokens`.
    pub struct SglangCountRequest: Plain "AnthropicCountTokensRequest" {
        /// Name of the model.
        model: String,
        /// Messages of the conversation, oldest first.
        messages: Vec<Value> [MESSAGES],
        /// System prompt, before the first message.
        system: Option<Value> [Nullable(&CONTENT)] = None,
        /// Reasoning (extended thinking) mode of the request.
        thinking: Option<Value> [THINKING] = None,
        /// Rule for tool calls: whether the model calls tools, and which.
        tool_choice: Option<Value> [TOOL_CHOICE] = None,
        /// The tools that the model may call.
        tools: Option<Vec<Value>> [TOOLS] = None,
        /// Reasoning effort and output format of the reply.
        output_config: Option<Value> [OUTPUT_CONFIG] = None,
        /// Names of features of Anthropic's API; have no effect.
        betas: Option<Vec<String>> = None,
    }
}

impl From<SglangCountRequest> for SglangMessagesRequest {
    fn from(count: SglangCountRequest) -> Self {
        Self {
            model: count.model,
            messages: count.messages,
            max_tokens: 1,
            metadata: None,
            stop_sequences: None,
            stream: None,
            system: count.system,
            temperature: None,
            thinking: count.thinking,
            tool_choice: count.tool_choice,
            tools: count.tools,
            top_k: None,
            top_p: None,
            output_config: count.output_config,
            betas: None,
            bootstrap_host: None,
            bootstrap_port: None,
            bootstrap_room: None,
            disagg_prefill_dp_rank: None,
            routed_dp_rank: None,
        }
    }
}
