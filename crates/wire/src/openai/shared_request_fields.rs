//! Request fields that several OpenAI routes share, and the validators of the raw request body, run by
//! vLLM before schema validation.
//!
//! The validator function declared last runs first, and the first error is the response. Python's
//! own errors are part of the contract: iterating over a number is a `TypeError` and a 400. Calling
//! `.get` on a string is an `AttributeError` and upstream a 500. A client's mistake is a 400 here,
//! with the same message.
//!
//! Source: `vllm/entrypoints/generate/base/protocol.py`, `vllm/sampling_params.py`; the
//! `model_validator(mode="before")` methods of
//! `vllm/entrypoints/openai/{chat_completion,completion}/protocol.py`.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use crate::fault::Fault;
use crate::schema::Schema::{self, Any, Dict, Literal, Nullable, Union};
use crate::schema::{RequestField, STR, ValidatorError, find_member, wire_model};

wire_model! {
    /// Options for token usage in a streamed response.
    pub struct StreamOptions: Wrapped "StreamOptions" {
        /// Whether the stream ends with a chunk of token usage.
        include_usage: Option<bool> = Some(false),
        /// Whether every chunk of the stream reports token usage; needs `include_usage`.
        continuous_usage_stats: Option<bool> = Some(false),
    }
}

wire_model! {
    /// A function that the model may call.
    pub struct FunctionDefinition: Wrapped "FunctionDefinition" {
        /// Name of the function, for the model to call it.
        name: String,
        /// Description of the function for the model.
        description: Option<String> = None,
        /// JSON schema of the function's arguments.
        parameters: Option<Map<String, Value>> = None,
        /// Whether the function's arguments must match the schema.
        strict: Option<bool> = None,
        /// Whether the model loads the function on demand.
        defer_loading: Option<bool> = None,
    }
}

wire_model! {
    /// A tool of a chat request.
    pub struct ChatTool: Wrapped "ChatCompletionToolsParam" {
        /// Type of the tool, always `function`.
        kind: String [Literal(&["function"])] as "type" = "function".to_owned(),
        /// The function of the tool, with its name, description and arguments.
        function: FunctionDefinition,
        /// Whether the model loads the tool on demand.
        defer_loading: Option<bool> = None,
    }
}

impl ChatTool {
    /// Returns the tool as JSON for chat templates.
    ///
    /// Members with null are kept, except `strict` and `defer_loading`.
    pub fn to_template_json(&self) -> Value {
        let function = &self.function;
        let mut inner = Map::new();
        inner.insert("name".to_owned(), Value::from(function.name.as_str()));
        inner.insert("description".to_owned(), Value::from(function.description.clone()));
        inner.insert(
            "parameters".to_owned(),
            function.parameters.clone().map_or(Value::Null, Value::Object),
        );
        let defer = function.defer_loading.or(self.defer_loading);
        for (key, flag) in [("strict", function.strict), ("defer_loading", defer)] {
            inner.extend(flag.map(|flag| (key.to_owned(), Value::Bool(flag))));
        }
        let mut tool = Map::new();
        tool.insert("type".to_owned(), Value::from(self.kind.as_str()));
        tool.insert("function".to_owned(), Value::Object(inner));
        let defer = self.defer_loading;
        tool.extend(defer.map(|flag| ("defer_loading".to_owned(), Value::Bool(flag))));
        Value::Object(tool)
    }
}

wire_model! {
    /// Name of the function in a tool choice (`tool_choice.function`).
    pub struct NamedFunction: Wrapped "ChatCompletionNamedFunction" {
        /// Name of the function that the model must call.
        name: String,
    }
}

wire_model! {
    /// A tool choice that names a function.
    pub struct NamedToolChoice: Wrapped "ChatCompletionNamedToolChoiceParam" {
        /// The function that the model must call.
        function: NamedFunction,
        /// Type of the tool choice, always `function`.
        kind: String [Literal(&["function"])] as "type" = "function".to_owned(),
    }
}

/// Rule for tool calls in the reply (`tool_choice`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatToolChoice {
    /// Tool choice `none`: the model calls no tool.
    None,
    /// Tool choice `auto`: the model decides whether to call tools.
    Auto,
    /// Tool choice `required`: the model calls one or more tools.
    Required,
    /// Tool choice by name: the model must call the given function.
    Named(String),
}

impl RequestField for ChatToolChoice {
    const SCHEMA: Schema = Union(&[
        Literal(&["none"]),
        Literal(&["auto"]),
        Literal(&["required"]),
        NamedToolChoice::SCHEMA,
    ]);

    fn read(value: &Value) -> Option<Self> {
        match value.as_str() {
            Some("none") => Some(Self::None),
            Some("auto") => Some(Self::Auto),
            Some("required") => Some(Self::Required),
            Some(_) => None,
            None => Some(Self::Named(NamedToolChoice::read(value)?.function.name)),
        }
    }
}

wire_model! {
    /// The JSON schema inside `response_format`, with its name.
    pub struct JsonSchemaFormat: Wrapped "JsonSchemaResponseFormat" {
        /// Name of the JSON schema.
        name: String,
        /// Description of the schema for the model.
        description: Option<String> = None,
        /// The JSON schema of the model's reply.
        schema: Option<Map<String, Value>> = None,
        /// Whether the reply must match the JSON schema.
        strict: Option<bool> = None,
    }
}

wire_model! {
    struct PlainFormat: Wrapped "ResponseFormat" {
        kind: String [Literal(&["text", "json_object", "json_schema"])] as "type",
        json_schema: Option<JsonSchemaFormat> = None,
    }
}

wire_model! {
    struct TagFormat: Wrapped "StructuralTagResponseFormat" {
        kind: String [Literal(&["structural_tag"])] as "type",
        format: Value,
    }
}

wire_model! {
    struct LegacyTag: Wrapped "LegacyStructuralTag" {
        begin: String,
        schema: Option<Map<String, Value>> = None,
        end: String,
    }
}

wire_model! {
    struct LegacyTagFormat: Wrapped "LegacyStructuralTagResponseFormat" {
        kind: String [Literal(&["structural_tag"])] as "type",
        structures: Vec<LegacyTag>,
        triggers: Vec<String>,
    }
}

/// Required format of a reply (`response_format`).
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseFormat {
    /// Response format `text`: the reply is free text.
    Text,
    /// Response format `json_object`: the reply is any JSON object.
    JsonObject,
    /// Response format `json_schema`: the reply is a JSON value that the given schema accepts.
    JsonSchema(JsonSchemaFormat),
    /// Response format `structural_tag`: the reply is free text with formatted parts; the tag is
    /// kept as sent.
    StructuralTag(Value),
}

impl RequestField for ResponseFormat {
    const SCHEMA: Schema =
        Union(&[PlainFormat::SCHEMA, TagFormat::SCHEMA, LegacyTagFormat::SCHEMA]);

    fn read(value: &Value) -> Option<Self> {
        match value.get("type")?.as_str()? {
            "text" => Some(Self::Text),
            "json_object" => Some(Self::JsonObject),
            "json_schema" => PlainFormat::read(value)?.json_schema.map(Self::JsonSchema),
            _ => Some(Self::StructuralTag(value.clone())),
        }
    }
}

wire_model! {
    default
    /// A structured-output constraint; exactly one of `json`, `regex`, `choice`, `grammar`,
    /// `json_object` and `structural_tag` is set.
    pub struct StructuredOutputs: Dataclass "StructuredOutputsParams" after validate_one_constraint {
        /// JSON schema of the output, as an object or as text.
        json: Option<Value> [Nullable(&Union(&[
            STR,
            Dict(&Any, &Any),
        ]))] = None,
        /// Regular expression for the whole output, which must match it.
        regex: Option<String> = None,
        /// List of texts; the output is one of them.
        choice: Option<Vec<String>> = None,
        /// Context-free grammar of the output, in EBNF or Lark.
        grammar: Option<String> = None,
        /// Whether the output must be a JSON object, of any kind.
        json_object: Option<bool> = None,
        /// Whether JSON output has no whitespace between tokens.
        disable_any_whitespace: bool = false,
        /// Whether objects in JSON output have only declared properties.
        disable_additional_properties: bool = false,
        /// Regular expression of the whitespace that JSON output may contain.
        whitespace_pattern: Option<String> = None,
        /// Structural tag (free text with formatted parts) of the output, as JSON text.
        structural_tag: Option<String> = None,
    }
}

/// Checks that `structured_outputs` has exactly one kind of constraint.
fn validate_one_constraint(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    StructuredOutputs::read(&Value::Object(map.clone())).map_or(Ok(()), |outputs| {
        outputs.check_one_constraint_kind()?;
        Ok(())
    })
}

impl StructuredOutputs {
    /// Checks that exactly one kind of structured-output constraint is set.
    ///
    /// Source: vLLM's `StructuredOutputsParams.__post_init__`.
    pub(crate) fn check_one_constraint_kind(&self) -> Result<(), Fault> {
        let members = self.structured_outputs_params_json();
        let kinds = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];
        let text = match kinds.iter().filter(|kind| !members[**kind].is_null()).count() {
            0 => "You must use one kind of structured outputs constraint but none are specified",
            1 => return Ok(()),
            _ => {
                "You can only use one kind of structured outputs constraint but multiple are \
                 specified"
            }
        };
        let members = python::python_repr(&Value::Object(members));
        Err(Fault::bad_request(format!("{text}: {members}")))
    }

    /// Returns all members of vLLM's `StructuredOutputsParams`, in the order of that class.
    pub fn structured_outputs_params_json(&self) -> Map<String, Value> {
        let members = [
            ("json", self.json.clone().into()),
            ("regex", self.regex.clone().into()),
            ("choice", self.choice.clone().into()),
            ("grammar", self.grammar.clone().into()),
            ("json_object", self.json_object.into()),
            ("disable_any_whitespace", self.disable_any_whitespace.into()),
            ("disable_additional_properties", self.disable_additional_properties.into()),
            ("whitespace_pattern", self.whitespace_pattern.clone().into()),
            ("structural_tag", self.structural_tag.clone().into()),
            ("_backend", Value::Null),
            ("_backend_was_auto", false.into()),
        ];
        members.map(|(key, value): (_, Value)| (key.to_owned(), value)).into_iter().collect()
    }
}

/// The raw JSON body of a request.
pub(crate) type JsonBody = Map<String, Value>;

pub(crate) type ValidatorResult = Result<(), ValidatorError>;

/// Rejects the request with a 400.
pub(crate) fn reject_request(message: impl Into<String>) -> ValidatorResult {
    Err(Fault::bad_request(message).into())
}

/// Rejects the request with a 400 that names the parameter.
pub(crate) fn reject_parameter(message: impl fmt::Display, param: &str) -> ValidatorResult {
    Err(Fault::bad_parameter(message, param).into())
}

/// Rejects the request with a 400 that names the parameter and shows its value.
pub(crate) fn reject_value(
    message: impl fmt::Display,
    param: &str,
    value: impl fmt::Display,
) -> ValidatorResult {
    Err(Fault::invalid_value_fault(message, param, value).into())
}

/// Returns Python's `bool(data.get(key))` for a member of the request body.
pub(crate) fn is_truthy_member(body: &JsonBody, key: &str) -> bool {
    find_member(body, key).is_some_and(|(_, value)| PythonValue::from_json_value(value).is_truthy())
}

/// Returns a member of the request body, `null` included.
pub(crate) fn body_member<'b>(body: &'b JsonBody, key: &str) -> Option<&'b Value> {
    find_member(body, key).map(|(_, value)| value)
}

/// Returns a member of the request body; `None` if it is absent or null.
pub(crate) fn non_null_member<'b>(body: &'b JsonBody, key: &str) -> Option<&'b Value> {
    body_member(body, key).filter(|value| !value.is_null())
}

/// Returns the 400 with Python's `TypeError` of `for x in value`.
pub(crate) fn not_iterable_fault(value: &Value) -> Fault {
    Fault::bad_request(format!(
        "'{}' object is not iterable",
        PythonValue::from_json_value(value).python_type_name()
    ))
}

/// Returns the 400 with Python's `AttributeError` of `value.get`.
pub(crate) fn python_get_attribute_error_fault(value: &Value) -> Fault {
    let name = PythonValue::from_json_value(value).python_type_name();
    Fault::bad_request(format!("'{name}' object has no attribute 'get'"))
}

/// Checks that `cache_salt`, if given, is a text of 1 to 128 allowed characters.
///
/// Source: vLLM's `check_cache_salt_support`.
pub(crate) fn check_cache_salt_support(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    const FORBIDDEN_CHARS: [char; 4] = ['@', '/', '\\', '\0'];
    const MAX_SALT_LENGTH: usize = 128;

    let Some(salt) = non_null_member(body, "cache_salt") else {
        return Ok(());
    };
    match salt.as_str() {
        None | Some("") => reject_parameter(
            "Parameter 'cache_salt' must be a non-empty string if provided.",
            "cache_salt",
        ),
        Some(salt) if salt.chars().count() > MAX_SALT_LENGTH || salt.contains(FORBIDDEN_CHARS) => {
            reject_parameter(
                "Parameter 'cache_salt' must be at most 128 characters and must not contain \
                 '@', '/', '\\\\', or NUL.",
                "cache_salt",
            )
        }
        Some(_) => Ok(()),
    }
}

/// Checks that `continue_final_message` and `add_generation_prompt` are not both true.
///
/// Source: vLLM's `ChatRequestMixin.check_generation_prompt`.
pub(crate) fn check_generation_prompt(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if is_truthy_member(body, "continue_final_message")
        && is_truthy_member(body, "add_generation_prompt")
    {
        return reject_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        );
    }
    Ok(())
}

/// Translates `return_mm_kwargs: false` into `mm_payload: none`.
///
/// Source: vLLM's `apply_return_mm_kwargs_alias`.
pub(crate) fn apply_return_mm_kwargs_alias(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let silent = body_member(body, "mm_payload").is_none();
    if body_member(body, "return_mm_kwargs") == Some(&Value::Bool(false)) && silent {
        body.to_mut().insert("mm_payload".to_owned(), Value::from("none"));
    }
    Ok(())
}

/// Checks that `stream_options` comes with `stream: true`.
///
/// Source: vLLM's `validate_stream_options`.
pub(crate) fn validate_stream_options(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if is_truthy_member(body, "stream_options") && !is_truthy_member(body, "stream") {
        return reject_parameter(
            "Stream options can only be defined when `stream=True`.",
            "stream_options",
        );
    }
    Ok(())
}

/// Checks that a `response_format` has the schema or the tag that its type needs.
///
/// Source: vLLM's `validate_response_format`.
pub(crate) fn validate_response_format(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let Some(Value::Object(format)) = non_null_member(body, "response_format") else {
        return Ok(());
    };
    match format.get("type").and_then(Value::as_str) {
        Some("json_schema") if non_null_member(format, "json_schema").is_none() => {
            reject_parameter(
                "When response_format type is 'json_schema', the 'json_schema' field must be \
             provided.",
                "response_format",
            )
        }
        _ => validate_structural_tag_format(body),
    }
}

/// Checks that a response format of type `structural_tag` has the member `format`, or `structures`
/// and `triggers`.
///
/// Source: vLLM's `validate_structural_tag_response_format`.
pub(crate) fn validate_structural_tag_format(body: &JsonBody) -> ValidatorResult {
    let Some(Value::Object(format)) = non_null_member(body, "response_format") else {
        return Ok(());
    };
    let tag = format.get("type").is_some_and(|kind| kind == "structural_tag");
    if tag && !is_structural_tag(format) {
        return reject_parameter(
            "Invalid response_format structural_tag specification.",
            "response_format",
        );
    }
    Ok(())
}

/// Returns whether a structural tag has one of its two forms: `format`, or `structures` and
/// `triggers`.
fn is_structural_tag(format: &JsonBody) -> bool {
    let text = |value: &Value, key: &str| value.get(key).is_some_and(Value::is_string);
    let legacy = || {
        let structures = format.get("structures").and_then(Value::as_array);
        let triggers = format.get("triggers").and_then(Value::as_array);
        structures.is_some_and(|all| all.iter().all(|s| text(s, "begin") && text(s, "end")))
            && triggers.is_some_and(|all| !all.is_empty() && all.iter().all(Value::is_string))
    };
    match format.get("format") {
        Some(Value::Object(inner)) => inner.get("type").is_some_and(Value::is_string),
        Some(_) => false,
        None => legacy(),
    }
}

/// Returns whether a request body has one of the constraints `json`, `regex` and `choice`; more
/// than one is an error.
///
/// The check is the part of `check_structured_outputs_count` that is common to chat and
/// completions.
pub(crate) fn has_single_constraint(
    body: &JsonBody,
    conflict_fault: impl FnOnce() -> Fault,
) -> Result<bool, ValidatorError> {
    let Some(outputs) = non_null_member(body, "structured_outputs") else {
        return Ok(false);
    };
    let PythonValue::Dict(outputs) = PythonValue::from_json_value(outputs) else {
        return Err(python_get_attribute_error_fault(outputs).into());
    };
    let count =
        ["json", "regex", "choice"].iter().filter(|key| non_null_member(outputs, key).is_some());
    match count.count() {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(conflict_fault().into()),
    }
}

/// Checks that the request's structural tag is a JSON document, as `check_structured_outputs_count`
/// does.
pub(crate) fn check_structural_tag(body: &JsonBody) -> ValidatorResult {
    let tag = body_member(body, "structured_outputs")
        .and_then(|outputs| non_null_member(outputs.as_object()?, "structural_tag"));
    let good = match tag {
        None => true,
        Some(Value::String(text)) => matches!(
            serde_json::from_str::<Value>(text),
            Ok(Value::Object(tag)) if is_structural_tag(&tag)
        ),
        Some(_) => false,
    };
    if good {
        return Ok(());
    }
    reject_parameter(
        "Invalid structured_outputs structural_tag specification.",
        "structured_outputs",
    )
}

/// Checks that a member of the request body like `logprobs` is absent or a number, so that it can
/// be compared.
pub(crate) fn check_number_or_absent(body: &JsonBody, key: &str) -> ValidatorResult {
    match non_null_member(body, key) {
        Some(value) if PythonValue::from_json_value(value).as_number().is_none() => reject_value(
            format_args!("`{key}` must be an integer."),
            key,
            python::python_str(value),
        ),
        _ => Ok(()),
    }
}

/// Checks the field `prompt_logprobs`: not with streams, and not below -1. Mirrors
/// `check_logprobs`.
pub(crate) fn check_prompt_logprobs(body: &JsonBody) -> ValidatorResult {
    let key = "prompt_logprobs";
    let Some(value) = non_null_member(body, key) else {
        return Ok(());
    };
    let count = PythonValue::from_json_value(value).as_number().unwrap_or_default();
    if is_truthy_member(body, "stream") && (count > 0.0 || count == -1.0) {
        return reject_parameter("`prompt_logprobs` are not available when `stream=True`.", key);
    }
    check_not_below_minus_one(key, value)
}

/// Rejects a request field with a negative number other than -1.
pub(crate) fn check_not_below_minus_one(key: &str, value: &Value) -> ValidatorResult {
    match PythonValue::from_json_value(value).as_number() {
        Some(count) if count < 0.0 && count != -1.0 => reject_value(
            format_args!("`{key}` must be a positive value or -1."),
            key,
            python::python_str(value),
        ),
        _ => Ok(()),
    }
}
