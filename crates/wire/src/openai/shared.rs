//! Parts of requests that several routes share.
//!
//! Source: `vllm/entrypoints/generate/base/protocol.py`, `vllm/sampling_params.py`.

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::{self as python, Py};

use crate::bounds;
use crate::fault::Fault;
use crate::schema::{
    ANY_LENGTH, INT, Length, STR, Schema, ValidatorError, Wire, int_from, int_within, wire_model,
};

wire_model! {
    /// Options that only matter to a stream.
    pub struct StreamOptions: Wrapped "StreamOptions" {
        /// One more chunk with the usage at the end.
        include_usage: Option<bool> = Some(false),
        /// Usage in every chunk; only together with `include_usage`.
        continuous_usage_stats: Option<bool> = Some(false),
    }
}

wire_model! {
    /// A function a model may call.
    pub struct FunctionDefinition: Wrapped "FunctionDefinition" {
        /// Its name.
        name: String,
        /// What it does.
        description: Option<String> = None,
        /// JSON schema of its arguments.
        parameters: Option<Map<String, Value>> = None,
        /// Whether the arguments have to follow the schema.
        strict: Option<bool> = None,
        /// Whether the model loads it on demand.
        defer_loading: Option<bool> = None,
    }
}

wire_model! {
    /// A tool of a chat request.
    pub struct Tool: Wrapped "ChatCompletionToolsParam" {
        /// Always `function`.
        kind: String [Schema::Literal(&["function"])] as "type" = "function".to_owned(),
        /// The function.
        function: FunctionDefinition,
        /// As in [`FunctionDefinition`].
        defer_loading: Option<bool> = None,
    }
}

impl Tool {
    /// The tool as templates see it: null members except `strict` and `defer_loading`, which are
    /// left out.
    pub fn dump(&self) -> Value {
        let function = &self.function;
        let mut inner = Map::new();
        inner.insert("name".to_owned(), Value::from(function.name.as_str()));
        inner.insert(
            "description".to_owned(),
            Value::from(function.description.clone()),
        );
        inner.insert(
            "parameters".to_owned(),
            function
                .parameters
                .clone()
                .map_or(Value::Null, Value::Object),
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
    /// The name inside a named tool choice.
    pub struct NamedFunction: Wrapped "ChatCompletionNamedFunction" {
        /// The function to call.
        name: String,
    }
}

wire_model! {
    /// A tool choice that names a function.
    pub struct NamedToolChoice: Wrapped "ChatCompletionNamedToolChoiceParam" {
        /// The function to call.
        function: NamedFunction,
        /// Always `function`.
        kind: String [Schema::Literal(&["function"])] as "type" = "function".to_owned(),
    }
}

/// Which tools a reply may or must use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// None.
    None,
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
    /// This function.
    Named(String),
}

impl Wire for ToolChoice {
    const SCHEMA: Schema = Schema::Union(&[
        Schema::Literal(&["none"]),
        Schema::Literal(&["auto"]),
        Schema::Literal(&["required"]),
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
    /// The schema inside `response_format`.
    pub struct JsonSchema: Wrapped "JsonSchemaResponseFormat" {
        /// Its name.
        name: String,
        /// What it is for.
        description: Option<String> = None,
        /// The schema.
        schema: Option<Map<String, Value>> = None,
        /// Whether the reply has to follow it.
        strict: Option<bool> = None,
    }
}

wire_model! {
    struct PlainFormat: Wrapped "ResponseFormat" {
        kind: String [Schema::Literal(&["text", "json_object", "json_schema"])] as "type",
        json_schema: Option<JsonSchema> = None,
    }
}

wire_model! {
    struct TagFormat: Wrapped "StructuralTagResponseFormat" {
        kind: String [Schema::Literal(&["structural_tag"])] as "type",
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
        kind: String [Schema::Literal(&["structural_tag"])] as "type",
        structures: Vec<LegacyTag>,
        triggers: Vec<String>,
    }
}

/// The form a reply has to have.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseFormat {
    /// Free text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON by a schema.
    JsonSchema(JsonSchema),
    /// A structural tag, as it was sent.
    StructuralTag(Value),
}

impl Wire for ResponseFormat {
    const SCHEMA: Schema = Schema::Union(&[
        PlainFormat::SCHEMA,
        TagFormat::SCHEMA,
        LegacyTagFormat::SCHEMA,
    ]);

    fn read(value: &Value) -> Option<Self> {
        match value.get("type")?.as_str()? {
            "text" => Some(Self::Text),
            "json_object" => Some(Self::JsonObject),
            "json_schema" => PlainFormat::read(value)?.json_schema.map(Self::JsonSchema),
            _ => Some(Self::StructuralTag(value.clone())),
        }
    }
}

/// One string, or a few; read into a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stop(pub Vec<String>);

impl Wire for Stop {
    const SCHEMA: Schema = Schema::Union(&[
        STR,
        Schema::List(
            &STR,
            Length {
                min: 0,
                max: bounds::STOP_STRINGS,
            },
        ),
    ]);

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(one) => Some(Self(vec![one.clone()])),
            value => Vec::read(value).map(Self),
        }
    }
}

/// `dict[str, str | int | float | list[str | int | float]]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExtraArgs(pub Map<String, Value>);

impl Wire for ExtraArgs {
    const SCHEMA: Schema = Schema::Dict(
        &STR,
        &Schema::Union(&[
            STR,
            INT,
            f64::SCHEMA,
            Schema::List(&Schema::Union(&[STR, INT, f64::SCHEMA]), ANY_LENGTH),
        ]),
    );

    fn read(value: &Value) -> Option<Self> {
        value.as_object().cloned().map(Self)
    }
}

/// `logit_bias`: token ids as text, and their bias.
pub(crate) type LogitBias = IndexMap<String, f64>;

/// `truncate_prompt_tokens`: -1 for all that fits.
pub(crate) const TRUNCATE: Schema = Schema::Nullable(&int_within(-1, i64::MAX as i128));

/// At least 1, when given.
pub(crate) const POSITIVE: Schema = Schema::Nullable(&int_from(1));

/// `cache_salt`; tighter limits are checked before.
pub(crate) const CACHE_SALT: Schema = Schema::Nullable(&Schema::Str(Length { min: 1, max: 1024 }));

/// `"tensors"` or `"none"`.
pub(crate) const MM_PAYLOAD: Schema = Schema::Literal(&["tensors", "none"]);

/// `"left"` or `"right"`.
pub(crate) const SIDE: Schema = Schema::Nullable(&Schema::Literal(&["left", "right"]));

/// `top_logprobs`, where null means 0.
pub(crate) const TOP_LOGPROBS: Schema =
    Schema::Before(|value| Ok(value.is_null().then(|| Value::from(0))), &INT);

/// `thinking_token_budget`: null, -1 for no limit, or a limit; other numbers and types are
/// refused before the schema is asked.
pub(crate) const THINKING_BUDGET: Schema = Schema::Before(thinking_budget, &Schema::Nullable(&INT));

fn thinking_budget(value: &Value) -> Result<Option<Value>, Fault> {
    match Py::of(value) {
        Py::None => Ok(None),
        Py::Int(-1) => Ok(Some(Value::Null)),
        Py::Int(i) if i >= 0 => Ok(None),
        Py::BigInt(text) if !text.starts_with('-') => Ok(None),
        _ => Err(Fault::value(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            "thinking_token_budget",
            python::str(value),
        )),
    }
}

wire_model! {
    default
    /// A constraint on the text of a reply; exactly one of the first kinds is given.
    pub struct StructuredOutputs: Dataclass "StructuredOutputsParams" after one_constraint {
        /// A JSON schema, as an object or as text.
        json: Option<Value> [Schema::Nullable(&Schema::Union(&[
            STR,
            Schema::Dict(&Schema::Any, &Schema::Any),
        ]))] = None,
        /// A regular expression.
        regex: Option<String> = None,
        /// One of these texts.
        choice: Option<Vec<String>> = None,
        /// A grammar in EBNF.
        grammar: Option<String> = None,
        /// Any JSON object.
        json_object: Option<bool> = None,
        /// No blanks between JSON tokens.
        disable_any_whitespace: bool = false,
        /// Only named properties.
        disable_additional_properties: bool = false,
        /// What blanks may look like.
        whitespace_pattern: Option<String> = None,
        /// A structural tag, as JSON text.
        structural_tag: Option<String> = None,
    }
}

/// `StructuredOutputsParams.__post_init__`.
fn one_constraint(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let given = [
        "json",
        "regex",
        "choice",
        "grammar",
        "json_object",
        "structural_tag",
    ]
    .iter()
    .filter(|key| map.get(**key).is_some_and(|value| !value.is_null()))
    .count();
    let text = match given {
        0 => "You must use one kind of structured outputs constraint but none are specified",
        1 => return Ok(()),
        _ => {
            "You can only use one kind of structured outputs constraint but multiple are \
             specified"
        }
    };
    Err(Fault::bad_request(format!("{text}: {}", attributes(map))).into())
}

/// `self.__dict__` of a `StructuredOutputsParams`.
fn attributes(map: &Map<String, Value>) -> String {
    let off = Value::Bool(false);
    let members = [
        ("json", &Value::Null),
        ("regex", &Value::Null),
        ("choice", &Value::Null),
        ("grammar", &Value::Null),
        ("json_object", &Value::Null),
        ("disable_any_whitespace", &off),
        ("disable_additional_properties", &off),
        ("whitespace_pattern", &Value::Null),
        ("structural_tag", &Value::Null),
        ("_backend", &Value::Null),
        ("_backend_was_auto", &off),
    ];
    let texts = members.map(|(key, default)| {
        format!("'{key}': {}", python::repr(map.get(key).unwrap_or(default)))
    });
    format!("{{{}}}", texts.join(", "))
}

wire_model! {
    /// When to stop because the reply repeats itself.
    pub struct RepetitionDetection: Dataclass "RepetitionDetectionParams" after repetition {
        /// Longest pattern looked for; 0 for none.
        max_pattern_size: i128 = 0,
        /// Shortest pattern looked for.
        min_pattern_size: i128 = 0,
        /// Repetitions that count.
        min_count: i128 = 0,
    }
}

/// `RepetitionDetectionParams.__post_init__`.
fn repetition(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let number = |key: &str| map.get(key).and_then(i128::read).unwrap_or_default();
    let (max, min) = (number("max_pattern_size"), number("min_pattern_size"));
    if max < 0 || min < 0 || min > max {
        return Err(Fault::bad_request(
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= \
             max_pattern_size. Set both to 0 to disable repetitive pattern detection.",
        )
        .into());
    }
    if max > 0 && number("min_count") < 2 {
        return Err(Fault::bad_request(
            "min_count must be >= 2 to detect repetitive patterns in engine output. If you do \
             not wish to detect repetitive patterns, set max_pattern_size to 0.",
        )
        .into());
    }
    Ok(())
}
