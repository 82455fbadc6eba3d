//! The subset of JSON Schema that llm-d-inference-sim accepts for tool parameters.
//!
//! Source: `pkg/llm-d-inference-sim/tools_utils.go`, the schema that validates tools.

use serde_json::{Map, Value};

const ALLOWED_KEYWORDS: &[&str] = &[
    "type",
    "description",
    "enum",
    "properties",
    "items",
    "required",
    "additionalProperties",
    "minItems",
    "maxItems",
    "default",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "title",
];

/// Checks that llm-d-inference-sim accepts the JSON Schema of a tool's parameters.
///
/// # Errors
/// A sentence that names the unsupported keyword and its location.
pub(super) fn check_llmd_tool_schema(parameters: &Value) -> Result<(), String> {
    // An explicit stack, because documents may be nested arbitrarily deep.
    let mut stack = vec![(parameters, "parameters".to_owned())];
    while let Some((value, at)) = stack.pop() {
        let Some(map) = value.as_object() else {
            return Err(format!("{at} must be an object"));
        };
        check_schema_node(map, &at)?;
        if let Some(properties) = map.get("properties").and_then(Value::as_object) {
            for (name, inner) in properties {
                stack.push((inner, format!("{at}.properties.{name}")));
            }
        }
        if let Some(items) = map.get("items") {
            stack.push((items, format!("{at}.items")));
        }
    }
    Ok(())
}

fn check_schema_node(map: &Map<String, Value>, at: &str) -> Result<(), String> {
    if let Some(unknown) = map.keys().find(|key| !ALLOWED_KEYWORDS.contains(&key.as_str())) {
        return Err(format!("{at}: keyword '{unknown}' is not supported"));
    }
    let Some(kind) = map.get("type") else {
        return Err(format!("{at}: 'type' is missing"));
    };
    let Some(kind) = kind.as_str() else {
        return Err(format!("{at}: 'type' must be one of the type names, not {kind}"));
    };
    let fits: fn(&Value) -> bool = match kind {
        "string" => Value::is_string,
        "integer" => |v| v.is_i64() || v.is_u64(),
        "number" => Value::is_number,
        "boolean" => Value::is_boolean,
        "null" | "object" | "array" => |_| false,
        other => return Err(format!("{at}: type '{other}' is not supported")),
    };
    if let Some(values) = map.get("enum") {
        let values = values.as_array().map_or(&[][..], Vec::as_slice);
        if values.is_empty() || !values.iter().all(fits) {
            return Err(format!("{at}: the values of 'enum' do not fit type '{kind}'"));
        }
    }
    if kind == "object" && !map.get("properties").is_some_and(Value::is_object) {
        return Err(format!("{at}: an object needs 'properties'"));
    }
    if kind == "array" && !map.contains_key("items") {
        return Err(format!("{at}: an array needs 'items'"));
    }
    if map.get("additionalProperties").is_some_and(|v| !v.is_boolean()) {
        return Err(format!("{at}: 'additionalProperties' must be true or false"));
    }
    Ok(())
}
