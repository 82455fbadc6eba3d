//! A Responses request as the conversation that a template renders.
//!
//! Source: `vllm/entrypoints/openai/responses/utils.py` (`construct_input_messages`,
//! `construct_tool_dicts`, `should_continue_final_message`),
//! `vllm/tool_parsers/utils.py` (`get_function_tools`).

use serde_json::{Map, Value, json};

use super::message::Message;
use super::responses::{Input, ResponsesRequest};
use super::shared::{FunctionDefinition, Tool};
use crate::wire::fault::Fault;
use crate::wire::python;
use crate::wire::schema::Wire;

impl ResponsesRequest {
    /// The conversation: instructions, what earlier turns left (`history`, without their system
    /// messages), then the input.
    ///
    /// # Errors
    /// 400 for items that are no part of a conversation.
    pub fn conversation(&self, history: &[Message]) -> Result<Vec<Message>, Fault> {
        let said =
            |role: &str, text: &str| Message::trusted(json!({"role": role, "content": text}));
        let instructions = self.instructions.as_deref().filter(|text| !text.is_empty());
        let mut messages: Vec<Message> = instructions
            .map(|text| said("system", text))
            .into_iter()
            .collect();
        messages.extend(
            history
                .iter()
                .filter(|message| message.role() != "system")
                .cloned(),
        );
        match &self.input {
            Input::Text(text) => messages.push(said("user", text)),
            Input::Items(items) => {
                let mut new = Vec::new();
                for item in items {
                    add(item, &mut new)?;
                }
                messages.extend(
                    new.into_iter()
                        .map(|map| Message::trusted(Value::Object(map))),
                );
            }
        }
        Ok(messages)
    }

    /// Whether the last item is an unfinished message that the reply goes on with.
    pub fn continues_final_message(&self) -> bool {
        let Input::Items(items) = &self.input else {
            return false;
        };
        let Some(last) = items.last() else {
            return false;
        };
        let text = |key: &str| last.get(key).and_then(Value::as_str);
        matches!(text("type").unwrap_or("message"), "message" | "reasoning")
            && matches!(text("status"), Some("in_progress" | "incomplete"))
    }

    /// The functions that a template shows and a reply may call: function tools, those inside
    /// namespaces under `namespace__name`, and custom tools as functions of one text.
    pub fn functions(&self) -> Vec<Tool> {
        let mut functions = Vec::new();
        for tool in &self.tools {
            let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
            match tool.get("type").and_then(Value::as_str) {
                Some("function") => functions.push(function(tool, name.to_owned())),
                Some("custom") => {
                    let mut shim = function(tool, name.to_owned());
                    shim.function.parameters = custom_parameters();
                    functions.push(shim);
                }
                Some("namespace") => {
                    let inner = tool.get("tools").and_then(Value::as_array);
                    let inner = inner.into_iter().flatten();
                    functions.extend(
                        inner
                            .filter(|tool| tool.get("type").is_none_or(|kind| kind == "function"))
                            .map(|tool| function(tool, flat_name(name, tool))),
                    );
                }
                _ => {}
            }
        }
        functions
    }
}

/// `flat_namespace_tool_name`.
fn flat_name(namespace: &str, tool: &Value) -> String {
    let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
    format!("{namespace}__{name}")
}

fn function(tool: &Value, name: String) -> Tool {
    fn member<T: Wire>(tool: &Value, key: &str) -> Option<T> {
        tool.get(key).and_then(T::read)
    }
    Tool {
        kind: "function".to_owned(),
        function: FunctionDefinition {
            name,
            description: member(tool, "description"),
            parameters: member(tool, "parameters"),
            strict: member(tool, "strict"),
            defer_loading: member(tool, "defer_loading"),
        },
        defer_loading: None,
    }
}

/// `custom_tool_parameters`.
fn custom_parameters() -> Option<Map<String, Value>> {
    let schema = json!({
        "type": "object",
        "properties": {
            "input": {"type": "string", "description": "The freeform text payload for this tool."}
        },
        "required": ["input"],
        "additionalProperties": false,
    });
    schema.as_object().cloned()
}

/// `_construct_message_from_response_item`: a new message, or a part of the last.
fn add(item: &Value, messages: &mut Vec<Map<String, Value>>) -> Result<(), Fault> {
    let Some(map) = item.as_object() else {
        return Err(unsupported(item));
    };
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    match text("type") {
        Some("function_call") => {
            let name = text("name").unwrap_or_default();
            let name = match text("namespace").filter(|space| !space.is_empty()) {
                Some(space) => flat_name(space, item),
                None => name.to_owned(),
            };
            let arguments = text("arguments").unwrap_or_default();
            call(text("call_id"), &name, arguments, messages);
        }
        Some("custom_tool_call") => {
            let payload = json!({"input": text("input").unwrap_or_default()}).to_string();
            call(
                text("call_id"),
                text("name").unwrap_or_default(),
                &payload,
                messages,
            );
        }
        Some("reasoning") => {
            if text("encrypted_content").is_some_and(|text| !text.is_empty()) {
                return Err(Fault::parameter(
                    "Encrypted content is not supported.",
                    "input",
                ));
            }
            let first = |key: &str| {
                map.get(key)
                    .and_then(|parts| parts.get(0)?.get("text").cloned())
            };
            let thought = first("content")
                .or_else(|| first("summary"))
                .unwrap_or_else(|| Value::from(""));
            assistant("reasoning", thought, messages);
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let member = |key: &str| map.get(key).cloned().unwrap_or(Value::Null);
            messages.push(Map::from_iter([
                ("role".to_owned(), Value::from("tool")),
                ("content".to_owned(), member("output")),
                ("tool_call_id".to_owned(), member("call_id")),
            ]));
        }
        _ => spoken(item, map, messages)?,
    }
    Ok(())
}

/// A message that has a role.
fn spoken(
    item: &Value,
    map: &Map<String, Value>,
    messages: &mut Vec<Map<String, Value>>,
) -> Result<(), Fault> {
    let Some(role) = map.get("role") else {
        return Err(unsupported(item));
    };
    let said = match map.get("content") {
        Some(text @ Value::String(_)) => Some(text.clone()),
        Some(Value::Array(parts)) => parts
            .first()
            .and_then(|part| part.get("text").or_else(|| part.get("refusal")))
            .cloned(),
        _ => None,
    };
    match said {
        Some(text) if role == "assistant" => assistant("content", text, messages),
        _ => messages.push(map.clone()),
    }
    Ok(())
}

fn unsupported(item: &Value) -> Fault {
    let kind = item
        .get("type")
        .map_or_else(|| "None".to_owned(), python::str);
    Fault::parameter(format_args!("Unsupported input item type: {kind}"), "input")
}

/// What the assistant said: into its last message where that lacks it, else a new one.
fn assistant(key: &str, text: Value, messages: &mut Vec<Map<String, Value>>) {
    if let Some(last) = last_assistant(messages)
        && last.get(key).is_none_or(Value::is_null)
    {
        last.insert(key.to_owned(), text);
        return;
    }
    messages.push(Map::from_iter([
        ("role".to_owned(), Value::from("assistant")),
        (key.to_owned(), text),
    ]));
}

fn last_assistant(messages: &mut [Map<String, Value>]) -> Option<&mut Map<String, Value>> {
    messages
        .last_mut()
        .filter(|last| last.get("role").is_some_and(|role| role == "assistant"))
}

fn call(id: Option<&str>, name: &str, arguments: &str, messages: &mut Vec<Map<String, Value>>) {
    let call = json!({
        "id": id,
        "function": {"name": name, "arguments": arguments},
        "type": "function",
    });
    if let Some(last) = last_assistant(messages) {
        match last.get_mut("tool_calls") {
            Some(Value::Array(calls)) => calls.push(call),
            _ => {
                last.insert("tool_calls".to_owned(), Value::Array(vec![call]));
            }
        }
        return;
    }
    messages.push(Map::from_iter([
        ("role".to_owned(), Value::from("assistant")),
        ("tool_calls".to_owned(), Value::Array(vec![call])),
    ]));
}

#[cfg(test)]
mod tests {
    use super::super::conversation::{ContentFormat, conversation};
    use super::*;

    fn said(body: Value) -> Result<Value, String> {
        let request = ResponsesRequest::parse(&body).map_err(|fault| fault.message)?;
        let messages = request.conversation(&[]).map_err(|fault| fault.message)?;
        conversation(&messages, ContentFormat::String, "m")
            .map(Value::Array)
            .map_err(|fault| fault.message)
    }

    #[test]
    fn items_of_one_turn_become_one_message() {
        let body = json!({"instructions": "Be brief.", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [], "content": [
                {"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}"},
            {"type": "function_call_output", "call_id": "c", "output": "2"},
            {"role": "assistant", "content": "Two."}]});
        assert_eq!(
            said(body),
            Ok(json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "c", "function": {"name": "f", "arguments": {"a": 1}},
                     "type": "function"}], "reasoning": "hm", "reasoning_content": "hm"},
                {"role": "tool", "content": "2", "tool_call_id": "c"},
                {"role": "assistant", "content": "Two."},
            ]))
        );
    }

    #[test]
    fn items_of_other_kinds_are_refused() {
        let body = json!({"input": [{"type": "item_reference", "id": "x"}]});
        assert_eq!(
            said(body),
            Err("Unsupported input item type: item_reference (parameter=input)".to_owned())
        );
    }
}
