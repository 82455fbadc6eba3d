//! Converts the items of a Responses request to chat messages, as vLLM does.
//!
//! Source: `vllm/entrypoints/openai/responses/utils.py`.

use serde_json::{Map, Value, json};

use super::custom;
use super::response_store::PreviousResponse;
use vllm_sim_wire::body::unreadable_value_fault;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::request_message::RequestMessage;
use vllm_sim_wire::openai::responses::{ResponsesInput, ResponsesRequest};
use vllm_sim_wire::schema::RequestField;

/// Returns the chat messages of a Responses request: instructions, earlier turns, new items.
pub(crate) fn responses_chat_messages(
    request: &ResponsesRequest,
    previous: Option<&PreviousResponse>,
) -> Result<Vec<Value>, Fault> {
    let mut out = Vec::new();
    if let Some(text) = request.instructions.as_deref().filter(|t| !t.is_empty()) {
        out.push(json!({"role": "system", "content": text}));
    }
    if let Some(previous) = previous {
        // Instructions and reasoning of earlier turns are dropped.
        let said = previous.messages.iter();
        out.extend(said.filter(|m| role_of(m) != "system").cloned());
        for item in previous.output.iter().filter(|i| has_type(i, "message")) {
            for part in item["content"].as_array().into_iter().flatten() {
                out.push(json!({"role": "assistant", "content": part["text"]}));
            }
        }
    }
    match &request.input {
        ResponsesInput::Text(text) => out.push(json!({"role": "user", "content": text})),
        ResponsesInput::Items(items) => {
            let start = out.len();
            for item in items {
                append_item(item, &mut out, start)?;
            }
        }
    }
    Ok(out)
}

fn has_type(item: &Value, kind: &str) -> bool {
    item.get("type").is_some_and(|text| text == kind)
}

fn role_of(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or("")
}

/// Converts a call item of a function or custom tool to a tool call of a chat message.
fn chat_tool_call(item: &Value) -> Value {
    let input = item.get("input");
    let arguments = if has_type(item, "custom_tool_call") {
        let input = input.and_then(Value::as_str).unwrap_or_default();
        Some(custom::custom_tool_arguments(input).into())
    } else {
        item.get("arguments").or(input).cloned()
    };
    let name = match item.get("namespace").and_then(Value::as_str) {
        Some(space) => format!("{space}__{}", item["name"].as_str().unwrap_or("")).into(),
        None => item["name"].clone(),
    };
    let function = json!({"name": name, "arguments": arguments});
    json!({"id": item["call_id"], "function": function, "type": "function"})
}

/// Appends one item of a Responses request to the chat messages; consecutive reasoning, text and
/// calls of the assistant form one message.
fn append_item(item: &Value, out: &mut Vec<Value>, start: usize) -> Result<(), Fault> {
    let kind = item.get("type").and_then(Value::as_str);
    let (member, value) = match kind {
        Some("function_call" | "custom_tool_call") => {
            let call = chat_tool_call(item);
            if let Some(last) = last_assistant_message(out, start) {
                match last.get_mut("tool_calls") {
                    Some(Value::Array(calls)) => calls.push(call),
                    _ => {
                        last.insert("tool_calls".to_owned(), json!([call]));
                    }
                }
                return Ok(());
            }
            ("tool_calls", json!([call]))
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let output = item.get("output").cloned().unwrap_or_default();
            let id = item.get("call_id").cloned().unwrap_or_default();
            out.push(json!({"role": "tool", "content": output, "tool_call_id": id}));
            return Ok(());
        }
        Some("reasoning") => {
            if item
                .get("encrypted_content")
                .is_some_and(|e| e.as_str().is_some_and(|e| !e.is_empty()))
            {
                return Err(Fault::bad_request("Encrypted content is not supported."));
            }
            let first = |key: &str| item.get(key)?.as_array()?.first()?.get("text").cloned();
            let text = first("content").or_else(|| first("summary"));
            ("reasoning", text.unwrap_or_else(|| "".into()))
        }
        None | Some("message") if role_of(item) == "assistant" => {
            let text = match item.get("content") {
                Some(Value::Array(parts)) => parts.first().and_then(|p| p.get("text")).cloned(),
                other => other.cloned(),
            };
            ("content", text.unwrap_or_else(|| "".into()))
        }
        None | Some("message") => {
            let mut message = item.as_object().cloned().unwrap_or_default();
            for key in ["type", "status", "id", "phase"] {
                message.shift_remove(key);
            }
            out.push(Value::Object(message));
            return Ok(());
        }
        Some(_) if item.get("role").is_some() => {
            out.push(item.clone());
            return Ok(());
        }
        // Items of tools that no simulated model supports.
        Some(kind) => {
            let text = format!("Unsupported input item type: {kind}");
            return Err(Fault::bad_parameter(text, "input"));
        }
    };
    match last_assistant_message(out, start) {
        Some(last) if last.get(member).is_none_or(Value::is_null) => {
            last.insert(member.to_owned(), value);
        }
        _ => {
            out.push(json!({"role": "assistant", member: value}));
        }
    }
    Ok(())
}

/// Returns the last chat message if it is an assistant message that the Responses request added.
fn last_assistant_message(out: &mut [Value], start: usize) -> Option<&mut Map<String, Value>> {
    let last = out[start..].last_mut()?;
    if role_of(last) == "assistant" { last.as_object_mut() } else { None }
}

/// Returns whether the reply continues the last input item, an unfinished assistant message.
fn continues_last_item(request: &ResponsesRequest) -> bool {
    let ResponsesInput::Items(items) = &request.input else {
        return false;
    };
    let Some(last) = items.last() else {
        return false;
    };
    let said = last.get("type").is_none_or(|kind| kind == "message" || kind == "reasoning");
    let status = last.get("status").and_then(Value::as_str);
    said && matches!(status, Some("in_progress" | "incomplete"))
}

/// Returns the function tools of a Responses request for a chat request; tools of a namespace get
/// their flat names.
fn function_tools(tools: &[Value]) -> Vec<Value> {
    let mut out = Vec::new();
    for tool in tools {
        if has_type(tool, "function") {
            out.push(function_tool(tool, None));
        } else if has_type(tool, "custom") {
            out.push(custom::custom_tool_function(tool));
        } else if has_type(tool, "namespace") {
            let inner = tool.get("tools").and_then(Value::as_array);
            let inner = inner.into_iter().flatten().filter(|t| has_type(t, "function"));
            out.extend(inner.map(|t| function_tool(t, tool["name"].as_str())));
        }
    }
    out
}

fn function_tool(tool: &Value, namespace: Option<&str>) -> Value {
    let name = tool["name"].as_str().unwrap_or_default();
    let name = namespace.map_or(name.to_owned(), |space| format!("{space}__{name}"));
    json!({"type": "function", "function": {
        "name": name,
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict"),
    }})
}

/// Returns the chat request for a Responses request; sampling fields are unset.
pub(crate) fn to_chat_request(
    request: &ResponsesRequest,
    messages: &[Value],
) -> Result<ChatRequest, Fault> {
    let proceed = continues_last_item(request);
    let mut body = json!({
        "model": request.model,
        "messages": messages,
        "add_special_tokens": true,
        "add_generation_prompt": !proceed,
        "continue_final_message": proceed,
        "include_reasoning": request.include_reasoning,
        "parallel_tool_calls": request.parallel_tool_calls,
        "tool_choice": "none",
    });
    let mut set = |key: &str, value: Value| body[key] = value;
    if let Some(kwargs) = &request.chat_template_kwargs {
        set("chat_template_kwargs", Value::Object(kwargs.clone()));
    }
    if let Some(params) = &request.kv_transfer_params {
        set("kv_transfer_params", Value::Object(params.clone()));
    }
    let effort = request.reasoning.as_ref().and_then(|r| r.get("effort"));
    if let Some(effort) = effort.filter(|effort| !effort.is_null()) {
        set("reasoning_effort", effort.clone());
    }
    if request.truncation.as_deref() != Some("disabled") {
        set("truncate_prompt_tokens", (-1).into());
    }
    let mut tools = function_tools(&request.tools);
    if !tools.is_empty() {
        let choice = match &request.tool_choice {
            Value::String(word) => word.as_str().into(),
            choice if has_type(choice, "function") || has_type(choice, "custom") => {
                json!({"type": "function", "function": {"name": choice["name"]}})
            }
            choice if has_type(choice, "allowed_tools") => {
                let allowed = choice.get("tools").and_then(Value::as_array);
                let allowed: Vec<&Value> =
                    allowed.into_iter().flatten().map(|t| &t["name"]).collect();
                tools.retain(|tool| allowed.contains(&&tool["function"]["name"]));
                choice.get("mode").cloned().unwrap_or_else(|| "auto".into())
            }
            _ => "auto".into(),
        };
        set("tool_choice", choice);
        set("tools", tools.into());
    }
    let mut chat = ChatRequest::read(&body).ok_or_else(unreadable_value_fault)?;
    // Parts of the Responses API (`input_text`) are not valid in a chat, so messages skip that
    // check.
    chat.messages =
        messages.iter().cloned().map(RequestMessage::message_from_trusted_json).collect();
    Ok(chat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_sim_wire::body::read_body_within_bounds;
    use vllm_sim_wire::bounds::RequestBounds;

    fn converted(items: Value) -> Vec<Value> {
        let request = read_body_within_bounds::<ResponsesRequest>(
            &json!({"input": items}),
            &RequestBounds::default(),
        )
        .expect("it is good");
        responses_chat_messages(&request, None).expect("it converts")
    }

    #[test]
    fn consecutive_assistant_items_form_one_message() {
        let out = converted(json!([
            {"role": "user", "content": "q"},
            {"type": "reasoning", "id": "rs_1", "summary": [],
             "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
        ]));
        let roles: Vec<&str> = out.iter().map(role_of).collect();
        assert_eq!(roles, ["user", "assistant", "tool"]);
        assert_eq!(out[1]["reasoning"], "hm");
        assert_eq!(out[1]["tool_calls"][1]["id"], "c2");
        assert_eq!(out[2], json!({"role": "tool", "content": "1", "tool_call_id": "c1"}));
    }

    #[test]
    fn items_of_unsupported_tools_are_rejected() {
        let request = json!({"input": [{"type": "item_reference", "id": "x"}]});
        let request =
            read_body_within_bounds::<ResponsesRequest>(&request, &RequestBounds::default())
                .expect("it is good");
        let fault = responses_chat_messages(&request, None).expect_err("it is no message");
        assert_eq!(fault.message, "Unsupported input item type: item_reference (parameter=input)");
    }

    #[test]
    fn instructions_come_first_and_old_ones_are_dropped() {
        let request = json!({"input": "b", "instructions": "new"});
        let request =
            read_body_within_bounds::<ResponsesRequest>(&request, &RequestBounds::default())
                .expect("it is good");
        let previous = PreviousResponse {
            messages: vec![
                json!({"role": "system", "content": "old"}),
                json!({"role": "user", "content": "a"}),
            ],
            output: vec![json!({"type": "message", "content": [{"text": "x"}]})],
        };
        let out = responses_chat_messages(&request, Some(&previous)).expect("it converts");
        let texts: Vec<&str> = out.iter().filter_map(|m| m["content"].as_str()).collect();
        assert_eq!(texts, ["new", "a", "x", "b"]);
    }
}
