//! Checks that vLLM makes on structured-output constraints before decoding.
//!
//! vLLM compiles a grammar (xgrammar, then llguidance). Here only simple cases are rejected: empty
//! texts, invalid JSON, schemas nested too deeply, and regular expressions that do not parse. The
//! messages are llguidance's, which uses the same regex parser.
//!
//! Source: `vllm/sampling_params.py` (`_validate_structured_outputs`, `check_json_nesting`),
//! `vllm/v1/structured_output/backend_guidance.py`.

use serde_json::Value;
use vllm_sim_python as python;

use super::fault::Fault;
use super::openai::shared_request_fields::StructuredOutputs;

/// Maximum nesting of objects and arrays in a JSON schema.
const MAX_SCHEMA_NESTING: usize = 64;
/// Number of further nesting levels that a structural tag may add around its schemas.
const TAG_NESTING: usize = 16;

/// Checks a structured-output constraint, as vLLM does before decoding.
///
/// # Errors
/// The first 400 in vLLM's order.
pub(super) fn verify_structured_outputs(outputs: &StructuredOutputs) -> Result<(), Fault> {
    if outputs.choice.as_ref().is_some_and(Vec::is_empty) {
        return reject_with("Choice '[]' cannot be an empty list");
    }
    if outputs.grammar.as_deref().is_some_and(is_python_whitespace) {
        return reject_with("structured_outputs.grammar cannot be an empty string");
    }
    let json = outputs.json.as_ref();
    if json.and_then(Value::as_str).is_some_and(is_python_whitespace) {
        return reject_with("structured_outputs.json cannot be an empty string");
    }
    if let Some(json) = json {
        check_json_nesting(json, MAX_SCHEMA_NESTING)?;
    }
    if let Some(tag) = &outputs.structural_tag {
        check_json_nesting(&Value::from(tag.as_str()), MAX_SCHEMA_NESTING + TAG_NESTING)?;
    }
    if outputs.json_object == Some(false) {
        return reject_with(
            "structured_outputs.json_object must be True if set; omit structured_outputs to \
             disable structured outputs",
        );
    }
    if outputs.regex.as_deref().is_some_and(|regex| regex.contains('\0')) {
        return reject_with("structured_outputs.regex must not contain a NUL character ('\\x00')");
    }
    if outputs.structural_tag.as_deref().is_some_and(is_python_whitespace) {
        return reject_with("structured_outputs.structural_tag cannot be an empty string");
    }
    if let Some(Value::String(text)) = json
        && python::loads(text.as_bytes()).is_err()
    {
        return reject_with("Invalid JSON grammar specification.");
    }
    outputs.regex.as_deref().map_or(Ok(()), check_regex)
}

/// Checks that a regular expression parses; the error text is that of llguidance for a one-rule
/// grammar.
fn check_regex(pattern: &str) -> Result<(), Fault> {
    match regex_syntax::Parser::new().parse(pattern) {
        Ok(_) => Ok(()),
        Err(error) => Err(Fault::bad_request(format!(
            "Grammar error: at 1(8): invalid regex {pattern:?} (in regex): {error}\n   1 | \
             start: /{pattern}/\n              ^"
        ))),
    }
}

fn is_python_whitespace(text: &str) -> bool {
    text.trim().is_empty()
}

fn reject_with(message: &str) -> Result<(), Fault> {
    Err(Fault::bad_request(message))
}

/// Limits the nesting of a JSON schema, given as a value or as its JSON text. Lets invalid JSON
/// pass, since other checks reject it.
///
/// Source: vLLM's `check_json_nesting`.
fn check_json_nesting(schema: &Value, limit: usize) -> Result<(), Fault> {
    let read = match schema {
        Value::String(text) => python::loads(text.as_bytes()),
        other => Ok(other.clone()),
    };
    let Ok(root) = read else { return Ok(()) };
    let mut level = vec![&root];
    for _ in 0..limit {
        level = level.into_iter().flat_map(child_containers).collect();
        if level.is_empty() {
            return Ok(());
        }
    }
    Err(Fault::bad_request(format!(
        "The JSON schema is nested too deeply: objects and arrays may nest at most \
         {MAX_SCHEMA_NESTING} levels"
    )))
}

/// Returns the objects and arrays directly inside a JSON value.
fn child_containers(value: &Value) -> Vec<&Value> {
    let container = |child: &&Value| child.is_object() || child.is_array();
    match value {
        Value::Object(map) => map.values().filter(container).collect(),
        Value::Array(items) => items.iter().filter(container).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_regex_is_reported_as_llguidance_does() {
        assert_eq!(
            check_regex("([").map_err(|fault| fault.message),
            Err(
                "Grammar error: at 1(8): invalid regex \"([\" (in regex): regex parse error:\n    \
                 ([\n     ^\nerror: unclosed character class\n   1 | start: /([/\n              ^"
                    .to_owned()
            )
        );
        assert_eq!(check_regex("[a-z]+"), Ok(()));
    }

    #[test]
    fn schemas_may_nest_up_to_a_limit() {
        let deep = |levels: usize| {
            (0..levels).fold(Value::from(1), |inner, _| serde_json::json!({"a": inner}))
        };
        assert_eq!(check_json_nesting(&deep(64), MAX_SCHEMA_NESTING), Ok(()));
        assert!(check_json_nesting(&deep(65), MAX_SCHEMA_NESTING).is_err());
    }
}
