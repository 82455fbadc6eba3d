//! Plans tool calls: number, tools and arguments.
//!
//! Counting rule and flags follow llm-d-inference-sim (`pkg/llm-d-inference-sim/tools_utils.go`).
//! The arguments satisfy the whole JSON Schema, where the original supports a subset.

mod whitelist;

use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use vllm_sim_random::Draw;
use vllm_sim_schema_sampler::{ConstraintError, Limits, SchemaCache};

/// A tool that a request offers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDef {
    /// Function name.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// JSON Schema of the arguments; `None` means no arguments.
    pub parameters: Option<Value>,
    /// Whether the client asked for strict arguments; generated arguments always follow the schema.
    pub strict: Option<bool>,
}

/// Selects the tools to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// No calls.
    None,
    /// Calls or text.
    Auto,
    /// One or more calls.
    Required,
    /// One or more calls of the tool with this name.
    Named(String),
}

/// Settings of tool calls. The defaults are llm-d-inference-sim's.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSettings {
    /// Range of integers, `min-/max-tool-call-integer-param`.
    ///
    /// `None` derives the range from the field name (a year, a port), else 0 to 100.
    pub integer: Option<(i64, i64)>,
    /// Range of numbers, `min-/max-tool-call-number-param`; `None` as for `integer`.
    pub number: Option<(f64, f64)>,
    /// Range of array lengths, `min-/max-tool-call-array-param-length`.
    pub array: (u64, u64),
    /// Chance of an optional parameter, `tool-call-not-required-param-probability`, in percent.
    pub not_required_probability: u32,
    /// Chance of an optional field of an object, `object-tool-call-not-required-field-probability`,
    /// in percent.
    pub object_not_required_probability: u32,
    /// Chance of each further call, `tool-call-extra-call-probability`, in percent.
    pub extra_call_probability: u32,
    /// Whether schemas outside llm-d's subset are rejected.
    pub strict_whitelist: bool,
    /// Nesting depth beyond which optional parts are omitted.
    pub max_depth: u32,
    /// Whether one reply may contain several calls (`parallel_tool_calls`).
    pub parallel: bool,
    /// Whether a tool forced by name may be called several times, as in llm-d-inference-sim.
    ///
    /// vLLM's parsers stop after the first call.
    pub repeats_named: bool,
}

impl Default for ToolSettings {
    fn default() -> Self {
        Self {
            integer: None,
            number: None,
            array: (1, 5),
            not_required_probability: 50,
            object_not_required_probability: 50,
            extra_call_probability: 45,
            strict_whitelist: false,
            max_depth: 12,
            parallel: true,
            repeats_named: false,
        }
    }
}

impl ToolSettings {
    fn limits(&self) -> Limits {
        Limits {
            integer: self.integer,
            number: self.number,
            array: self.array,
            optional_percent: self.not_required_probability,
            nested_optional_percent: self.object_not_required_probability,
            max_depth: self.max_depth,
            ..Limits::default()
        }
    }
}

/// One tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Function name.
    pub name: String,
    /// JSON text in the format of models: `{"city": "Paris"}`.
    pub arguments: String,
}

/// Reports why tool calls cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The forced tool is not offered. Source: llm-d-inference-sim's `tool_choice.go`.
    #[error("tool with name '{0}' requested in tool_choice but not found in the tools list")]
    Unknown(String),
    /// The parameters use keywords that llm-d does not support.
    #[error("tool '{tool}': {reason}")]
    NotAllowed {
        /// Tool name.
        tool: String,
        /// Unsupported keyword or value.
        reason: String,
    },
    /// The parameters are not a valid schema, or no arguments satisfy it.
    #[error("tool '{tool}': {source}")]
    Schema {
        /// Tool name.
        tool: String,
        /// Error of the schema.
        source: ConstraintError,
    },
}

/// Plans the calls of one reply; an empty plan means text.
///
/// The count starts at 0 (`auto`) or 1 and grows while a draw succeeds, up to the number of tools.
/// Each call draws one of the tools. A tool forced by name is called once.
///
/// Source: vLLM 0.33 `tool_parsers/structural_tag_registry.py`, `at_least_one` for `required`, and
/// also `stop_after_first` for a forced tool.
///
/// # Errors
/// [`ToolError`] for a tool that is called or, with `strict_whitelist`, for any tool.
pub(crate) fn plan_calls(
    tools: &[ToolDef],
    choice: &ToolChoice,
    settings: &ToolSettings,
    cache: &SchemaCache,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<ToolCall>, ToolError> {
    let (least, open) = match choice {
        ToolChoice::None => return Ok(Vec::new()),
        ToolChoice::Auto => (0, tools),
        ToolChoice::Required => (1, tools),
        ToolChoice::Named(name) => {
            let position = tools.iter().position(|tool| tool.name == *name);
            match position {
                Some(i) => (1, &tools[i..=i]),
                None => return Err(ToolError::Unknown(name.clone())),
            }
        }
    };
    if settings.strict_whitelist {
        check_whitelist(tools)?;
    }
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let once = matches!(choice, ToolChoice::Named(_)) && !settings.repeats_named;
    let most = if settings.parallel && !once {
        tools.len()
    } else {
        1
    };
    let mut count = least;
    while count < most && rng.percent(settings.extra_call_probability) {
        count += 1;
    }
    let limits = settings.limits();
    (0..count)
        .map(|_| {
            let index = rng.between(0, open.len() as u64 - 1) as usize;
            call(&open[index], &limits, cache, rng)
        })
        .collect()
}

fn call(
    tool: &ToolDef,
    limits: &Limits,
    cache: &SchemaCache,
    rng: &mut ChaCha8Rng,
) -> Result<ToolCall, ToolError> {
    let schema = |source| ToolError::Schema {
        tool: tool.name.clone(),
        source,
    };
    let arguments = match &tool.parameters {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(parameters) => cache
            .schema(parameters)
            .and_then(|compiled| compiled.sample_object(rng, limits))
            .map_err(schema)?,
    };
    Ok(ToolCall {
        name: tool.name.clone(),
        arguments,
    })
}

fn check_whitelist(tools: &[ToolDef]) -> Result<(), ToolError> {
    for tool in tools {
        let none = json!({});
        let parameters = tool.parameters.as_ref().unwrap_or(&none);
        if let Err(reason) = validate_llmd_whitelist(parameters) {
            return Err(ToolError::NotAllowed {
                tool: tool.name.clone(),
                reason,
            });
        }
    }
    Ok(())
}

/// Checks that `parameters` use only keywords that llm-d-inference-sim supports.
///
/// # Errors
/// A sentence that names the unsupported keyword and its location.
pub(crate) fn validate_llmd_whitelist(parameters: &Value) -> Result<(), String> {
    whitelist::check(parameters)
}

#[cfg(test)]
mod tests;
