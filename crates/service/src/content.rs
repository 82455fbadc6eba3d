//! Chooses the kind of a reply's content (text, constrained text or tool calls) from the request's
//! constraint and tools.

use std::sync::Arc;

use serde_json::Value;

use super::dialect::AllowedToolSchemas;
use super::job::ReplyContent;
use super::request::{GenerationRequest, ReplyFacts};
use super::{RequestError, ServeError, run_blocking};
use crate::generate::tools::{ToolChoice, ToolDef, validate_llmd_whitelist};
use vllm_sim_random::{StreamPurpose, request_rng};
use vllm_sim_schema_sampler::{
    CompiledConstraint, Constraint, ConstraintError, SampleLimits, compile_constraint,
};
use vllm_sim_wire::Fault;
use vllm_sim_wire::openai::shared::StructuredOutputs;

/// Returns the kind of content of each choice of a request.
///
/// # Errors
/// A constraint or tool schema that cannot be satisfied, or a tool whose schema is not on llm-d's
/// whitelist.
pub(super) async fn reply_content(
    request: &GenerationRequest,
    facts: &ReplyFacts,
    schemas: AllowedToolSchemas,
) -> Result<ReplyContent, RequestError> {
    let outputs = facts.params.structured_outputs.as_ref();
    let described = compile_prompt_schema(facts).await;
    let asked = request.constraint.clone();
    let asked = asked.or_else(|| outputs.and_then(structured_outputs_constraint));
    if let Some(constraint) = asked.filter(|_| !tools_replace_constraint(request)) {
        let compiled = match (constraint, described) {
            (Constraint::JsonObject, Some(described)) => Ok(described),
            (constraint @ (Constraint::JsonObject | Constraint::Choice(_)), _) => {
                compile_constraint(&constraint)
            }
            // A few bytes of such a constraint may take long to compile.
            (constraint, _) => {
                Box::pin(run_blocking(async move { compile_constraint(&constraint) })).await
            }
        };
        let compiled = compiled.map_err(ServeError::Constraint)?;
        return Ok(match request.parses_calls {
            true => ReplyContent::Parsed(Arc::new(compiled)),
            false => ReplyContent::Constrained(Arc::new(compiled)),
        });
    }
    let Some(offered) = &request.tools else {
        let described = described.map(Arc::new);
        return Ok(described.map_or(ReplyContent::Text, ReplyContent::Constrained));
    };
    if schemas == AllowedToolSchemas::Whitelisted {
        for tool in &offered.tools {
            let parameters = tool.parameters.clone().unwrap_or_default();
            validate_llmd_whitelist(&parameters)
                .map_err(|e| Fault::bad_request(format!("Tool validation failed: {e}")))?;
        }
    }
    Ok(ReplyContent::Tools {
        tools: offered.tools.clone().into(),
        choice: offered.choice.clone(),
        parallel: offered.parallel,
    })
}

/// Compiles the JSON Schema that the prompt describes; `None` if no value satisfies it.
async fn compile_prompt_schema(facts: &ReplyFacts) -> Option<CompiledConstraint> {
    let schema = facts.prompts.first()?.schema.as_ref()?;
    let constraint = Constraint::Json(schema.as_ref().clone());
    let read = run_blocking(async move {
        let compiled = compile_constraint(&constraint)?;
        compiled.sample_text(
            &mut request_rng(0, 0, StreamPurpose::Structured),
            &SampleLimits::default(),
        )?;
        Ok::<_, ConstraintError>(compiled)
    });
    Box::pin(read).await.ok()
}

/// Returns whether a constraint for tool calls replaces the request's own constraint.
///
/// It does if the request requires a tool call, or if the model may call a tool with a strict
/// schema.
///
/// Source: vLLM 0.33 `parser/abstract_parser.py`, `_apply_structural_tag`, and
/// `tool_parsers/abstract_tool_parser.py`, `adjust_request`.
fn tools_replace_constraint(request: &GenerationRequest) -> bool {
    let Some(offered) = &request.tools else {
        return false;
    };
    match offered.choice {
        ToolChoice::Required | ToolChoice::Named(_) => true,
        ToolChoice::Auto => {
            let strict = |tool: &ToolDef| tool.strict == Some(true);
            request.parses_calls && offered.tools.iter().any(strict)
        }
        ToolChoice::None => false,
    }
}

/// Converts the request field `structured_outputs`, of which exactly one member is set, to a
/// constraint.
fn structured_outputs_constraint(outputs: &StructuredOutputs) -> Option<Constraint> {
    if let Some(schema) = &outputs.json {
        // Clients may send the schema as a JSON string.
        let parsed = schema.as_str().and_then(|text| serde_json::from_str(text).ok());
        return Some(Constraint::Json(parsed.unwrap_or_else(|| schema.clone())));
    }
    if let Some(regex) = &outputs.regex {
        return Some(Constraint::Regex(regex.clone()));
    }
    if let Some(choice) = &outputs.choice {
        return Some(Constraint::Choice(choice.clone()));
    }
    if let Some(grammar) = &outputs.grammar {
        return Some(Constraint::Grammar(grammar.clone()));
    }
    if let Some(tag) = &outputs.structural_tag {
        let tag = serde_json::from_str(tag).unwrap_or_else(|_| Value::String(tag.clone()));
        return Some(Constraint::StructuralTag(tag));
    }
    outputs.json_object.unwrap_or(false).then_some(Constraint::JsonObject)
}
