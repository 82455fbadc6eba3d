//! Request fields that several OpenAI routes share.
//!
//! Source: `vllm/entrypoints/generate/base/protocol.py`, `vllm/sampling_params.py`.

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use super::validators::reject_request;
use crate::fault::Fault;
use crate::schema::Schema::{self, Any, Before, Dict, List, Literal, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, LengthLimits, RequestField, STR, ValidatorError, int_at_least_schema,
    int_between_schema, wire_model,
};
use crate::{bounds, lax};

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

/// Stop strings of a request: one string or a list, read into a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStrings(pub Vec<String>);

impl RequestField for StopStrings {
    const SCHEMA: Schema = Union(&[
        STR,
        List(&STR, LengthLimits { min: 0, max: bounds::MAX_STOP_STRINGS_PLACEHOLDER }),
    ]);

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(one) => Some(Self(vec![one.clone()])),
            value => Vec::read(value).map(Self),
        }
    }
}

/// Custom sampling arguments for vLLM extensions, `dict[str, str | int | float | list[str | int |
/// float]]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExtraSamplingArgs(pub Map<String, Value>);

impl RequestField for ExtraSamplingArgs {
    const SCHEMA: Schema = Dict(
        &STR,
        &Union(&[STR, INT, f64::SCHEMA, List(&Union(&[STR, INT, f64::SCHEMA]), ANY_LENGTH)]),
    );

    fn read(value: &Value) -> Option<Self> {
        value.as_object().cloned().map(Self)
    }
}

/// Type of the request field `logit_bias`: token ids as text, and their bias.
pub(crate) type LogitBias = IndexMap<String, f64>;

/// Logit bias per token id, in the order of the request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenLogitBias(pub Vec<(i128, f64)>);

impl RequestField for TokenLogitBias {
    const SCHEMA: Schema = Dict(&INT, &FLOAT);

    fn read(value: &Value) -> Option<Self> {
        let pairs = value.as_object()?.iter();
        pairs
            .map(|(id, bias)| Some((id.trim().replace('_', "").parse().ok()?, f64::read(bias)?)))
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// Converts `logit_bias` of an OpenAI request: keys to token ids, values clamped to -100..100.
///
/// # Errors
/// A 400 with the keys that are not integers.
pub(crate) fn to_token_logit_bias(bias: &LogitBias) -> Result<TokenLogitBias, Fault> {
    let id = |text: &str| i128::read(&lax::parse_python_int(text)?);
    let bad = bias.keys().filter(|key| id(key).is_none());
    let bad: Vec<Value> = bad.map(|key| Value::from(key.as_str())).collect();
    if !bad.is_empty() {
        let keys = python::python_repr(&Value::Array(bad));
        return Err(Fault::invalid_value_fault(
            format_args!(
                "logit_bias contains key(s) that cannot be converted to integer token IDs: {keys}"
            ),
            "logit_bias",
            &keys,
        ));
    }
    // `max(-100.0, nan)` is -100.0 in Python.
    let clamped = |bias: f64| {
        if bias.is_nan() { -100.0 } else { bias.clamp(-100.0, 100.0) }
    };
    let pairs = bias.iter().filter_map(|(key, bias)| Some((id(key)?, clamped(*bias))));
    Ok(TokenLogitBias(pairs.collect()))
}

/// Schema of `truncate_prompt_tokens`; -1 keeps all tokens that fit the context.
pub(crate) const TRUNCATE_PROMPT_TOKENS_SCHEMA: Schema =
    Nullable(&int_between_schema(-1, i64::MAX as i128));

/// Schema of a request field with an optional integer of at least 1.
pub(crate) const NULLABLE_POSITIVE_INT_SCHEMA: Schema = Nullable(&int_at_least_schema(1));

/// Schema of the request field `cache_salt`; stricter limits are checked before.
pub(crate) const CACHE_SALT_SCHEMA: Schema =
    Nullable(&Schema::Str(LengthLimits { min: 1, max: 1024 }));

/// Schema of the request field `mm_payload`.
pub(crate) const MM_PAYLOAD_SCHEMA: Schema = Literal(&["tensors", "none"]);

/// Schema of the request field `truncation_side`.
pub(crate) const TRUNCATION_SIDE_SCHEMA: Schema = Nullable(&Literal(&["left", "right"]));

/// Schema of the request field `top_logprobs`; null means 0.
pub(crate) const TOP_LOGPROBS_SCHEMA: Schema =
    Before(|value| Ok(value.is_null().then(|| Value::from(0))), &INT);

/// Schema of `thinking_token_budget`: null, -1 for no limit, or a number of tokens.
///
/// Other values of the field are rejected before schema validation.
pub(crate) const THINKING_TOKEN_BUDGET_SCHEMA: Schema =
    Before(check_thinking_token_budget, &Nullable(&INT));

fn check_thinking_token_budget(value: &Value) -> Result<Option<Value>, Fault> {
    match PythonValue::from_json_value(value) {
        PythonValue::None => Ok(None),
        PythonValue::Int(-1) => Ok(Some(Value::Null)),
        PythonValue::Int(i) if i >= 0 => Ok(None),
        PythonValue::BigInt(text) if !text.starts_with('-') => Ok(None),
        _ => Err(Fault::invalid_value_fault(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            "thinking_token_budget",
            python::python_str(value),
        )),
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

wire_model! {
    /// Settings of the detection of repetitions, which ends an output that repeats itself.
    pub struct RepetitionDetection: Dataclass "RepetitionDetectionParams" after validate_repetition_detection {
        /// Maximum length of a repeated pattern, in tokens; 0 disables detection.
        max_pattern_size: i128 = 0,
        /// Minimum length of a repeated pattern, in tokens.
        min_pattern_size: i128 = 0,
        /// Number of repetitions at which the output ends.
        min_count: i128 = 0,
    }
}

/// Checks the pattern sizes and the minimum count of `repetition_detection`.
///
/// Source: vLLM's `RepetitionDetectionParams.__post_init__`.
fn validate_repetition_detection(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let number = |key: &str| map.get(key).and_then(i128::read).unwrap_or_default();
    let (max, min) = (number("max_pattern_size"), number("min_pattern_size"));
    if max < 0 || min < 0 || min > max {
        return reject_request(
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= \
             max_pattern_size. Set both to 0 to disable repetitive pattern detection.",
        );
    }
    if max > 0 && number("min_count") < 2 {
        return reject_request(
            "min_count must be >= 2 to detect repetitive patterns in engine output. If you do \
             not wish to detect repetitive patterns, set max_pattern_size to 0.",
        );
    }
    Ok(())
}
