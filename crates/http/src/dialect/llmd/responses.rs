//! Differences between llm-d-inference-sim (`--compat llm-d`) and vLLM for Responses API requests.
//!
//! Source: llm-d-inference-sim `pkg/api/request.go`, `pkg/llm-d-inference-sim/responses.go`.

use serde_json::{Map, Value, json};

use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::responses::{ResponsesInput, ResponsesRequest};
use vllm_sim_wire::openai::shared_request_fields::ChatToolChoice;

const ITEM_TYPES: [&str; 3] = ["message", "function_call", "function_call_output"];
const CONTENT_TYPES: [&str; 5] = ["", "input_text", "output_text", "input_image", "input_audio"];

/// Converts the body of a Responses request to the form that vLLM's schema accepts: flat tools and
/// known text parts.
///
/// # Errors
/// llm-d's 400 for missing input and for unknown items, parts or tools.
pub(super) fn convert_responses_body(body: &mut Value) -> Result<(), Fault> {
    match body.get("input") {
        None | Some(Value::Null) => return Err(unreadable_body("input is required")),
        Some(Value::Array(items)) => {
            items.iter().try_for_each(check_item)?;
            if let Some(Value::Array(items)) = body.get_mut("input") {
                items.iter_mut().for_each(convert_content_parts);
            }
        }
        Some(_) => {}
    }
    if let Some(members) = body.as_object_mut() {
        remove_ignored_members(members);
    }
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        tools.iter_mut().try_for_each(flatten_tool)?;
    }
    Ok(())
}

fn unreadable_body(words: impl std::fmt::Display) -> Fault {
    Fault::bad_request(format!("Failed to read and parse request body, {words}"))
}

/// Removes the members of a Responses request that llm-d-inference-sim ignores and vLLM would
/// reject.
fn remove_ignored_members(members: &mut Map<String, Value>) {
    for key in ["previous_response_id", "background"] {
        members.shift_remove(key);
    }
    for (key, known) in [
        ("truncation", &["auto", "disabled"][..]),
        ("service_tier", &["auto", "default", "flex", "scale", "priority"][..]),
    ] {
        if members.get(key).and_then(Value::as_str).is_some_and(|word| !known.contains(&word)) {
            members.shift_remove(key);
        }
    }
    if let Some(Value::Array(include)) = members.get_mut("include") {
        include.retain(|what| *what == "message.output_text.logprobs");
    }
}

/// Converts the content parts of a message to parts of type `input_text`; only the format of audio
/// is kept.
fn convert_content_parts(item: &mut Value) {
    let Some(Value::Array(parts)) = item.get_mut("content") else {
        return;
    };
    for part in parts {
        let text = match json_type_field(part) {
            "" | "output_text" => part.get("text").cloned().unwrap_or_else(|| "".into()),
            "input_audio" => format!("audio: {}", part["format"].as_str().unwrap_or("")).into(),
            _ => continue,
        };
        *part = json!({"type": "input_text", "text": text});
    }
}

pub(super) fn json_type_field(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("")
}

fn check_item(item: &Value) -> Result<(), Fault> {
    let kind_of_item = json_type_field(item);
    let bare = kind_of_item.is_empty() && item.get("role").is_some();
    if !bare && !ITEM_TYPES.contains(&kind_of_item) {
        let words = format!("unsupported input item type {kind_of_item:?}");
        return Err(unreadable_body(words));
    }
    let parts = item.get("content").and_then(Value::as_array);
    for part in parts.into_iter().flatten() {
        if !CONTENT_TYPES.contains(&json_type_field(part)) {
            let words = format!("unsupported input content type {:?}", json_type_field(part));
            return Err(unreadable_body(words));
        }
    }
    Ok(())
}

fn flatten_tool(tool: &mut Value) -> Result<(), Fault> {
    if !["", "function"].contains(&json_type_field(tool)) {
        return Err(unreadable_body(format!("unsupported tool type {:?}", json_type_field(tool))));
    }
    if let Some(Value::Object(inner)) = tool.get("function").cloned() {
        let mut flat = json!({"type": "function"});
        for (key, value) in inner {
            flat[key] = value;
        }
        *tool = flat;
    }
    let Some(members) = tool.as_object_mut() else {
        return Err(unreadable_body("a tool is expected to be a JSON object"));
    };
    members.insert("type".to_owned(), "function".into());
    let name = members.get("name").and_then(Value::as_str);
    if name.is_none_or(str::is_empty) {
        return Err(unreadable_body("tool name is required"));
    }
    Ok(())
}

/// Sets the tool choice of a Responses request as llm-d-inference-sim does, so that a client's loop
/// of tool calls ends.
///
/// The first turn makes one tool call even if the choice is `auto`; once a call has its result, the
/// reply is text.
pub(super) fn set_tool_choice(request: &ResponsesRequest, chat: &mut ChatRequest) {
    let answered = match &request.input {
        ResponsesInput::Text(_) => false,
        ResponsesInput::Items(items) => {
            items.iter().any(|item| json_type_field(item) == "function_call_output")
        }
    };
    chat.parallel_tool_calls = Some(false);
    if answered {
        chat.tool_choice = Some(ChatToolChoice::None);
    } else if request.tool_choice == "auto" && chat.tools.as_ref().is_some_and(|t| !t.is_empty()) {
        chat.tool_choice = Some(ChatToolChoice::Required);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_may_be_nested_as_in_chat_requests() {
        let mut flat = json!({"input": "x", "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {}}},
        ]});
        convert_responses_body(&mut flat).expect("it is good");
        let expected = json!([{"type": "function", "name": "f", "parameters": {}}]);
        assert_eq!(flat["tools"], expected);
    }

    #[test]
    fn unknown_input_is_rejected_with_llmds_messages() {
        for (mut bad, words) in [
            (json!({}), "input is required"),
            (
                json!({"input": [{"type": "reasoning"}]}),
                "unsupported input item type \"reasoning\"",
            ),
            (
                json!({"input": [{"role": "user", "content": [{"type": "text"}]}]}),
                "unsupported input content type \"text\"",
            ),
            (
                json!({"input": "x", "tools": [{"type": "custom"}]}),
                "unsupported tool type \"custom\"",
            ),
            (json!({"input": "x", "tools": [{"type": "function"}]}), "tool name is required"),
            (json!({"input": "x", "tools": ["x"]}), "a tool is expected to be a JSON object"),
            (json!({"input": "x", "tools": [["a"]]}), "a tool is expected to be a JSON object"),
        ] {
            let fault = convert_responses_body(&mut bad).expect_err(words);
            assert!(fault.message.ends_with(words), "{}", fault.message);
        }
    }
}
