//! Plans the tool calls of a reply: number, tools and arguments.
//!
//! The number of calls and the flags follow llm-d-inference-sim
//! (`pkg/llm-d-inference-sim/tools_utils.go`). The arguments satisfy the whole JSON Schema, where
//! llm-d-inference-sim supports a subset.

mod whitelist;

use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use vllm_sim_random::DrawRandom;
use vllm_sim_schema_sampler::{ConstraintError, SampleLimits, SchemaCache};

/// A tool in the list `tools` of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// Name of the function.
    pub name: String,
    /// Description of the function for the model.
    pub description: Option<String>,
    /// JSON Schema of the tool's arguments; `None` means no arguments.
    pub parameters: Option<Value>,
    /// Whether the client requested strict arguments; generated arguments always follow the schema.
    pub strict: Option<bool>,
}

/// The tools that a reply must or may call (`tool_choice`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// Tool choice `none`: the reply contains no tool calls.
    None,
    /// Tool choice `auto`: the reply contains tool calls or text.
    Auto,
    /// Tool choice `required`: the reply contains one or more tool calls.
    Required,
    /// Tool choice by name: the reply contains one or more calls of the given tool.
    Named(String),
}

/// Settings of generated tool calls. The defaults are llm-d-inference-sim's.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallSettings {
    /// Range of generated integer arguments, `min-/max-tool-call-integer-param`.
    ///
    /// `None` derives the range from the parameter's name (a year, a port), else 0 to 100.
    pub integer: Option<(i64, i64)>,
    /// Range of generated number arguments, `min-/max-tool-call-number-param`; `None` uses the
    /// range of integer arguments.
    pub number: Option<(f64, f64)>,
    /// Range of the length of generated arrays, `min-/max-tool-call-array-param-length`.
    pub array: (u64, u64),
    /// Probability of an optional parameter, `tool-call-not-required-param-probability`, in
    /// percent.
    pub not_required_probability: u32,
    /// Probability of an optional field of an object,
    /// `object-tool-call-not-required-field-probability`, in percent.
    pub object_not_required_probability: u32,
    /// Probability of each further tool call, `tool-call-extra-call-probability`, in percent.
    pub extra_call_probability: u32,
    /// Whether tool schemas outside llm-d's subset of JSON Schema are rejected.
    pub strict_whitelist: bool,
    /// Nesting depth of arguments beyond which optional fields are omitted.
    pub max_depth: u32,
    /// Whether one reply may contain several tool calls (`parallel_tool_calls`).
    pub parallel: bool,
    /// Whether a tool forced by name may be called several times, as in llm-d-inference-sim.
    ///
    /// vLLM's parsers stop after the first call of a forced tool.
    pub repeats_named: bool,
}

impl Default for ToolCallSettings {
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

impl ToolCallSettings {
    fn schema_limits(&self) -> SampleLimits {
        SampleLimits {
            integer: self.integer,
            number: self.number,
            array: self.array,
            optional_percent: self.not_required_probability,
            nested_optional_percent: self.object_not_required_probability,
            max_depth: self.max_depth,
            ..SampleLimits::default()
        }
    }
}

/// A planned tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the called function.
    pub name: String,
    /// Arguments as JSON text in the format of models: `{"city": "Paris"}`.
    pub arguments: String,
}

/// Error of planning tool calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolCallPlanError {
    /// The request forces a tool that is not in its list of tools. Source: llm-d-inference-sim's
    /// `tool_choice.go`.
    #[error("tool with name '{0}' requested in tool_choice but not found in the tools list")]
    Unknown(String),
    /// A tool's parameters use JSON Schema keywords that llm-d does not support.
    #[error("tool '{tool}': {reason}")]
    NotAllowed {
        /// Name of the tool with the unsupported parameters.
        tool: String,
        /// Message about the unsupported keyword or value in the tool's parameters.
        reason: String,
    },
    /// A tool's parameters are not a valid JSON Schema, or no arguments satisfy it.
    #[error("tool '{tool}': {source}")]
    Schema {
        /// Name of the tool whose JSON Schema has the error.
        tool: String,
        /// Error of the JSON Schema of the tool's parameters.
        source: ConstraintError,
    },
}

/// Plans the tool calls of one reply; an empty plan means a text reply.
///
/// The number of calls starts at 0 (`auto`) or 1 and grows while a random draw succeeds, up to the
/// number of tools. Each call draws one of the tools. A tool forced by name is called once.
///
/// Source: vLLM 0.33 `tool_parsers/structural_tag_registry.py`, `at_least_one` for `required`, and
/// also `stop_after_first` for a forced tool.
///
/// # Errors
/// [`ToolCallPlanError`] for the schema of a tool that is called or, with `strict_whitelist`, of any tool.
pub(crate) fn plan_tool_calls(
    tools: &[ToolDefinition],
    choice: &ToolChoice,
    settings: &ToolCallSettings,
    cache: &SchemaCache,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<ToolCall>, ToolCallPlanError> {
    let (least, open) = match choice {
        ToolChoice::None => return Ok(Vec::new()),
        ToolChoice::Auto => (0, tools),
        ToolChoice::Required => (1, tools),
        ToolChoice::Named(name) => {
            let position = tools.iter().position(|tool| tool.name == *name);
            match position {
                Some(i) => (1, &tools[i..=i]),
                None => return Err(ToolCallPlanError::Unknown(name.clone())),
            }
        }
    };
    if settings.strict_whitelist {
        check_llmd_whitelist(tools)?;
    }
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let once = matches!(choice, ToolChoice::Named(_)) && !settings.repeats_named;
    let most = if settings.parallel && !once { tools.len() } else { 1 };
    let mut count = least;
    while count < most && rng.draw_percent_chance(settings.extra_call_probability) {
        count += 1;
    }
    let limits = settings.schema_limits();
    (0..count)
        .map(|_| {
            let index = rng.draw_u64_between(0, open.len() as u64 - 1) as usize;
            generate_call(&open[index], &limits, cache, rng)
        })
        .collect()
}

fn generate_call(
    tool: &ToolDefinition,
    limits: &SampleLimits,
    cache: &SchemaCache,
    rng: &mut ChaCha8Rng,
) -> Result<ToolCall, ToolCallPlanError> {
    let schema = |source| ToolCallPlanError::Schema { tool: tool.name.clone(), source };
    let arguments = match &tool.parameters {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(parameters) => cache
            .compile_cached(parameters)
            .and_then(|compiled| compiled.sample_object(rng, limits))
            .map_err(schema)?,
    };
    Ok(ToolCall { name: tool.name.clone(), arguments })
}

fn check_llmd_whitelist(tools: &[ToolDefinition]) -> Result<(), ToolCallPlanError> {
    for tool in tools {
        let none = json!({});
        let parameters = tool.parameters.as_ref().unwrap_or(&none);
        if let Err(reason) = validate_llmd_tool_parameters(parameters) {
            return Err(ToolCallPlanError::NotAllowed { tool: tool.name.clone(), reason });
        }
    }
    Ok(())
}

/// Checks that a tool's `parameters` use only JSON Schema keywords that llm-d-inference-sim
/// supports.
///
/// # Errors
/// A sentence that names the unsupported keyword and its location.
pub(crate) fn validate_llmd_tool_parameters(parameters: &Value) -> Result<(), String> {
    whitelist::check_llmd_tool_schema(parameters)
}

#[cfg(test)]
mod tests;
