//! Applies `tool_addition` and `tool_removal` blocks of an Anthropic conversation to its tools.
//!
//! Source: vLLM 0.33 `entrypoints/anthropic/`, `tool_addition` and `tool_removal` blocks.

use indexmap::IndexMap;
use serde_json::Value;

use vllm_sim_python as python;
use vllm_sim_wire::anthropic::{
    AnthropicContent, AnthropicContentBlock, AnthropicMessage, AnthropicTool,
};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::schema::RequestField;

/// Returns `tools` after applying the `tool_addition` and `tool_removal` blocks of `messages` in
/// order.
///
/// # Errors
/// 400 for a block that names a tool which neither `tools` nor an earlier block defines.
pub(super) fn apply_tool_additions_and_removals(
    tools: Option<&[AnthropicTool]>,
    messages: &[AnthropicMessage],
) -> Result<Option<Vec<AnthropicTool>>, Fault> {
    let changes: Vec<&AnthropicContentBlock> = messages
        .iter()
        .filter_map(|message| match &message.content {
            AnthropicContent::Blocks(blocks) => Some(blocks),
            AnthropicContent::Text(_) => None,
        })
        .flatten()
        .filter(|block| matches!(block.kind.as_str(), "tool_addition" | "tool_removal"))
        .collect();
    if changes.is_empty() {
        return Ok(tools.map(<[AnthropicTool]>::to_vec));
    }
    let mut known: IndexMap<String, AnthropicTool> =
        tools.unwrap_or_default().iter().map(|tool| (tool.name.clone(), tool.clone())).collect();
    let mut removed: Vec<String> = Vec::new();
    for block in changes {
        let addition = block.kind == "tool_addition";
        let Some(change) = &block.tool else { continue };
        let name = match change.get("definition").and_then(RequestField::read) {
            Some(definition) => {
                let definition: AnthropicTool = definition;
                let name = definition.name.clone();
                known.insert(name.clone(), definition);
                name
            }
            None => {
                let name = change.get("name").and_then(Value::as_str).unwrap_or_default();
                let Some(tool) = known.get_mut(name) else {
                    return Err(Fault::bad_request(format!(
                        "{} references tool {}, which is not declared in tools",
                        block.kind,
                        python::python_repr_of_str(name)
                    )));
                };
                if addition {
                    tool.defer_loading = None;
                }
                name.to_owned()
            }
        };
        removed.retain(|gone| *gone != name);
        if !addition {
            removed.push(name);
        }
    }
    Ok(Some(known.into_values().filter(|tool| !removed.contains(&tool.name)).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use vllm_sim_wire::anthropic::MessagesRequest;
    use vllm_sim_wire::body::read_body_within_bounds;
    use vllm_sim_wire::bounds::RequestBounds;

    fn left(changes: Value) -> Result<Vec<String>, String> {
        let body = json!({
            "model": "m", "max_tokens": 5,
            "messages": [{"role": "user", "content": "x"}, {"role": "system", "content": changes}],
            "tools": [{"name": "f", "input_schema": {}}, {"name": "g", "input_schema": {}}],
        });
        let request = read_body_within_bounds::<MessagesRequest>(&body, &RequestBounds::default())
            .map_err(|fault| fault.message)?;
        let tools = apply_tool_additions_and_removals(request.tools.as_deref(), &request.messages);
        let tools = tools.map_err(|fault| fault.message)?.unwrap_or_default();
        Ok(tools.into_iter().map(|tool| tool.name).collect())
    }

    #[test]
    fn tool_changes_add_and_remove_tools() {
        let by_name = |name: &str| json!({"type": "tool_reference", "name": name});
        let removal = json!({"type": "tool_removal", "tool": by_name("f")});
        let addition = json!({"type": "tool_addition", "tool": by_name("f")});
        assert_eq!(left(json!([removal])), Ok(vec!["g".to_owned()]));
        let both = left(json!([removal, addition])).map(|tools| tools.len());
        assert_eq!(both, Ok(2));
        let unknown = json!([{"type": "tool_removal", "tool": by_name("h")}]);
        let words = "tool_removal references tool 'h', which is not declared in tools";
        assert_eq!(left(unknown), Err(words.to_owned()));
    }
}
