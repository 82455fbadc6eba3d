//! Tool calls: how many, which tools, with which arguments.
//!
//! The counting rule and the flags are those of llm-d-inference-sim
//! (`pkg/llm-d-inference-sim/tools_utils.go`); the arguments satisfy the tool's JSON Schema,
//! which the original's do only for a small part of the language.

mod whitelist;

use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use vllm_sim_random::Draw;
use vllm_sim_schema_sampler::{ConstraintError, Limits, SchemaCache};

/// A tool that a request offers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDef {
    /// Name of the function.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of the arguments; none means no arguments.
    pub parameters: Option<Value>,
    /// Whether the client asked for arguments bound by the schema; ours always are.
    pub strict: Option<bool>,
}

/// Whether and what to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// No calls.
    None,
    /// Calls or text.
    Auto,
    /// At least one call.
    Required,
    /// At least one call, of this tool only.
    Named(String),
}

/// The flags that shape tool calls; their defaults are llm-d-inference-sim's.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSettings {
    /// `min-/max-tool-call-integer-param`; `None`: not set, so a field's name may choose
    /// (a year, a port) and 0 to 100 holds for the rest.
    pub integer: Option<(i64, i64)>,
    /// `min-/max-tool-call-number-param`, likewise.
    pub number: Option<(f64, f64)>,
    /// `min-/max-tool-call-array-param-length`.
    pub array: (u64, u64),
    /// `tool-call-not-required-param-probability`, in percent.
    pub not_required_probability: u32,
    /// `object-tool-call-not-required-field-probability`, in percent.
    pub object_not_required_probability: u32,
    /// `tool-call-extra-call-probability`, in percent.
    pub extra_call_probability: u32,
    /// Refuse what llm-d's schema check refuses.
    pub strict_whitelist: bool,
    /// Levels of nesting beyond which optional parts are left out.
    pub max_depth: u32,
    /// `parallel_tool_calls`: more than one call.
    pub parallel: bool,
    /// Whether a tool that is forced by name may be called several times, as llm-d-inference-sim
    /// does; the constraint of vLLM's parsers stops after the first call.
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

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// JSON text as a model prints it: `{"city": "Paris"}`.
    pub arguments: String,
}

/// Why no calls can be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The forced tool is not offered. Source: llm-d-inference-sim's `tool_choice.go`.
    #[error("tool with name '{0}' requested in tool_choice but not found in the tools list")]
    Unknown(String),
    /// llm-d's schema check refuses the parameters.
    #[error("tool '{tool}': {reason}")]
    NotAllowed {
        /// Name of the tool.
        tool: String,
        /// The keyword or value at fault.
        reason: String,
    },
    /// The parameters are no schema, or one that no arguments satisfy.
    #[error("tool '{tool}': {source}")]
    Schema {
        /// Name of the tool.
        tool: String,
        /// What is wrong with the parameters.
        source: ConstraintError,
    },
}

/// Plans the calls of one answer; none means an ordinary text.
///
/// Starts at no call (`auto`) or one, then adds one more while a draw succeeds, at most as
/// many as there are tools. Each call takes any of the tools. A forced one is called once.
///
/// Source of the last rule and of «at least one»: vLLM 0.33 `tool_parsers/structural_tag_registry.py`,
/// `at_least_one` for `required`, `stop_after_first` too for a forced tool.
///
/// # Errors
/// [`ToolError`], for a tool that is called or, with `strict_whitelist`, for any.
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

/// Whether `parameters` use only what llm-d-inference-sim's schema check lets through.
///
/// # Errors
/// A sentence that names the keyword at fault and where it stands.
pub(crate) fn validate_llmd_whitelist(parameters: &Value) -> Result<(), String> {
    whitelist::check(parameters)
}

#[cfg(test)]
mod tests;
