//! Converts requests of Anthropic's Messages API to chat requests, as SGLang does.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/anthropic/serving.py`,
//! `_convert_to_chat_completion_request`.

use serde_json::{Map, Value, json};
use vllm_sim_python::{self as python, json::dumps};

use super::messages::{SglangMessagesRequest, is_server_tool};
use crate::fault::Fault;

impl SglangMessagesRequest {
    /// Returns the body of the chat request for a Messages request; without a reasoning parser, the
    /// model does not reason.
    ///
    /// # Errors
    /// A 400 in SGLang's words for reasoning that the model lacks, reasoning that cannot be read,
    /// and a forced call of a tool that does not exist.
    pub fn to_chat_body(&self, reasoning_parser: Option<&str>) -> Result<Value, Fault> {
        let mut body = json!({
            "messages": self.chat_messages()?,
            "model": self.model,
            "max_tokens": self.max_tokens,
            "stream": self.stream.unwrap_or(false),
        });
        let routing = [
            ("bootstrap_host", self.bootstrap_host.clone()),
            ("bootstrap_port", self.bootstrap_port.clone()),
            ("bootstrap_room", self.bootstrap_room.clone()),
            ("routed_dp_rank", self.routed_dp_rank.map(Value::from)),
            ("disagg_prefill_dp_rank", self.disagg_prefill_dp_rank.map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            ("stop", self.stop_sequences.clone().map(Value::from)),
        ];
        for (name, value) in routing {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        if self.stream == Some(true) {
            body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        }
        self.set_reasoning(&mut body, reasoning_parser)?;
        self.set_output_config(&mut body);
        self.set_tools(&mut body)?;
        Ok(body)
    }

    fn set_reasoning(&self, body: &mut Value, parser: Option<&str>) -> Result<(), Fault> {
        let Some(thinking) = self.thinking.as_ref().filter(|thinking| !thinking.is_null()) else {
            return Ok(());
        };
        let enabled = thinking["type"] != "disabled";
        if parser.is_none() {
            return match enabled {
                true => Err(Fault::bad_request(
                    "Anthropic thinking is not supported for models without a reasoning parser",
                )),
                false => Ok(()),
            };
        }
        body["chat_template_kwargs"] = json!({"thinking": enabled, "enable_thinking": enabled});
        Ok(())
    }

    fn set_output_config(&self, body: &mut Value) {
        let Some(config) = &self.output_config else { return };
        if let Some(schema) = config.pointer("/format/schema") {
            let format = json!({"name": "response", "schema": schema, "strict": true});
            body["response_format"] = json!({"type": "json_schema", "json_schema": format});
        }
        match config.get("effort").and_then(Value::as_str) {
            Some("xhigh") => body["reasoning_effort"] = "max".into(),
            Some(effort) => body["reasoning_effort"] = effort.into(),
            None => {}
        }
    }

    /// Sets the tools that the model may call, without those of Anthropic's servers.
    fn set_tools(&self, body: &mut Value) -> Result<(), Fault> {
        let tools = self.tools.iter().flatten().filter(|tool| !is_server_tool(tool));
        let tools: Vec<Value> = tools.map(chat_tool).collect();
        let choice = self.tool_choice.as_ref().filter(|choice| !choice.is_null());
        let text = |name: &str| choice.and_then(|choice| choice.get(name)?.as_str());
        if let Some(choice) = choice {
            let serial = choice.get("disable_parallel_tool_use").and_then(Value::as_bool);
            body["parallel_tool_calls"] = (serial != Some(true)).into();
        }
        let rule = match text("type") {
            Some("none") => Some(json!("none")),
            Some(kind @ ("any" | "tool")) if tools.is_empty() => {
                return Err(Fault::bad_request(format!(
                    "tool_choice='{kind}' requires at least one custom tool; all supplied tools \
                     were server-side Anthropic built-ins which the OpenAI-compatible backend \
                     cannot invoke"
                )));
            }
            Some("any") => Some(json!("required")),
            Some("tool") => Some(named_tool(text("name"), &tools)?),
            _ => (!tools.is_empty()).then(|| json!("auto")),
        };
        if !tools.is_empty() {
            body["tools"] = tools.into();
        }
        if let Some(rule) = rule {
            body["tool_choice"] = rule;
        }
        Ok(())
    }

    fn chat_messages(&self) -> Result<Vec<Value>, Fault> {
        let mut messages = Vec::new();
        let mut system = Vec::new();
        match &self.system {
            Some(Value::String(text)) if !text.trim().is_empty() => system.push(text.clone()),
            Some(Value::Array(blocks)) => {
                let texts = blocks.iter().filter_map(block_text).filter(|text| !text.is_empty());
                system.extend(texts.map(str::to_owned));
            }
            _ => {}
        }
        let (inline, rest): (Vec<&Value>, Vec<&Value>) =
            self.messages.iter().partition(|message| message["role"] == "system");
        system.extend(inline.into_iter().filter_map(|message| system_text(&message["content"])));
        if !system.is_empty() {
            messages.push(json!({"role": "system", "content": system.join("\n")}));
        }
        for message in rest {
            match &message["content"] {
                Value::Array(blocks) => {
                    let role = message["role"].as_str().unwrap_or_default();
                    push_blocks(role, blocks, &mut messages)?;
                }
                text => messages.push(json!({"role": message["role"], "content": text})),
            }
        }
        Ok(messages)
    }
}

/// Returns the `tool_choice` of a chat request that forces a call of one tool.
fn named_tool(name: Option<&str>, tools: &[Value]) -> Result<Value, Fault> {
    let known = tools.iter().any(|tool| tool["function"]["name"].as_str() == name);
    match name.filter(|_| known) {
        Some(name) => Ok(json!({"type": "function", "function": {"name": name}})),
        None => {
            let shown = name.map_or_else(|| "None".to_owned(), python::python_repr_of_str);
            Err(Fault::bad_request(format!(
                "tool_choice references tool {shown} but it is not in the forwarded tools list \
                 (server-side Anthropic tools cannot be selected)"
            )))
        }
    }
}

fn chat_tool(tool: &Value) -> Value {
    let mut schema = tool["input_schema"].as_object().cloned().unwrap_or_default();
    schema.entry("type").or_insert_with(|| "object".into());
    json!({"type": "function", "function": {
        "name": tool["name"],
        "description": tool["description"].as_str().unwrap_or_default(),
        "parameters": schema,
        "strict": tool["strict"].as_bool().unwrap_or(false),
    }})
}

fn block_text(block: &Value) -> Option<&str> {
    block["text"].as_str().filter(|_| block["type"] == "text")
}

/// Returns the text of a system message, trimmed.
fn system_text(content: &Value) -> Option<String> {
    let text = match content {
        Value::Array(blocks) => {
            let texts = blocks.iter().filter_map(block_text).map(str::trim);
            texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
        }
        text => text.as_str().unwrap_or_default().trim().to_owned(),
    };
    (!text.is_empty()).then_some(text)
}

/// Appends the chat messages for an Anthropic message with content blocks.
fn push_blocks(role: &str, blocks: &[Value], out: &mut Vec<Value>) -> Result<(), Fault> {
    let is_user = role == "user";
    if !is_user && blocks.iter().any(|block| block["type"] == "redacted_thinking") {
        let text = "Anthropic redacted_thinking history is not supported";
        return Err(Fault::bad_request(text));
    }
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    for block in blocks {
        match block["type"].as_str().unwrap_or_default() {
            "text" => parts.push(json!({"type": "text", "text": block["text"]})),
            "image" => parts.extend(image_part(&block["source"])),
            "search_result" => {
                let text = search_text(block);
                parts.extend((!text.is_empty()).then(|| json!({"type": "text", "text": text})));
            }
            "tool_use" => {
                let empty = Value::Object(Map::new());
                let input = block.get("input").unwrap_or(&empty);
                calls.push(json!({"id": block["id"], "type": "function", "function": {
                    "name": block["name"], "arguments": dumps(input),
                }}));
            }
            "tool_result" if is_user => {
                push_parts(role, &mut parts, &[], out);
                let id = [&block["tool_use_id"], &block["id"]];
                let id = id.into_iter().find_map(|id| id.as_str().filter(|id| !id.is_empty()));
                for content in result_contents(&block["content"]).0 {
                    let id = id.unwrap_or_default();
                    out.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
                }
            }
            "tool_result" => {
                let text = format!("Tool result: {}", result_contents(&block["content"]).1);
                parts.push(json!({"type": "text", "text": text}));
            }
            // Reasoning of earlier turns is not part of the prompt.
            _ => {}
        }
    }
    if !is_user && parts.is_empty() && calls.is_empty() {
        out.push(json!({"role": "assistant", "content": ""}));
    }
    push_parts(role, &mut parts, &calls, out);
    Ok(())
}

/// Appends a chat message with the given content parts and tool calls; appends nothing if both are
/// empty.
fn push_parts(role: &str, parts: &mut Vec<Value>, calls: &[Value], out: &mut Vec<Value>) {
    let mut message = json!({"role": role});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    match &mut parts[..] {
        [] if calls.is_empty() => return,
        [] => {}
        [one] if one["type"] == "text" => message["content"] = one["text"].take(),
        _ => message["content"] = std::mem::take(parts).into(),
    }
    parts.clear();
    out.push(message);
}

fn image_part(source: &Value) -> Option<Value> {
    let text =
        |name: &str| source.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let url = match text("type") {
        Some("base64") => {
            let kind = text("media_type").unwrap_or("image/png");
            format!("data:{kind};base64,{}", text("data")?)
        }
        _ => text("url")?.to_owned(),
    };
    Some(json!({"type": "image_url", "image_url": {"url": url}}))
}

fn search_text(block: &Value) -> String {
    let mut parts = Vec::new();
    let filled = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    parts.extend(filled(&block["title"]).map(|title| format!("Title: {title}")));
    let source = match &block["source"] {
        Value::Object(source) => ["url", "text"].iter().find_map(|name| filled(source.get(*name)?)),
        source => filled(source),
    };
    parts.extend(source.map(|source| format!("Source: {source}")));
    let texts = block["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = texts.filter_map(block_text).filter(|text| !text.is_empty()).collect();
    if !texts.is_empty() {
        parts.push(format!("Content: {}", texts.join("\n")));
    }
    parts.join("\n")
}

/// Returns the contents of the chat messages that stand for a `tool_result` block, and the block's
/// text.
fn result_contents(content: &Value) -> (Vec<Value>, String) {
    let Value::Array(items) = content else {
        let text = content.as_str().unwrap_or_default();
        return (vec![text.into()], text.to_owned());
    };
    let mut texts = Vec::new();
    // References to tools are in messages of their own.
    let mut groups: Vec<Vec<Value>> = Vec::new();
    for item in items {
        let part = match item["type"].as_str().unwrap_or_default() {
            "text" | "search_result" => {
                let text = block_text(item).map_or_else(|| search_text(item), str::to_owned);
                if text.is_empty() {
                    continue;
                }
                texts.push(text.clone());
                Some(json!({"type": "text", "text": text}))
            }
            "image" => image_part(&item["source"]),
            "tool_reference" => {
                let name = [&item["tool_name"], &item["name"]].into_iter();
                let name = name.filter_map(Value::as_str).find(|name| !name.is_empty());
                name.map(|name| json!({"type": "tool_reference", "name": name}))
            }
            _ => None,
        };
        let Some(part) = part else { continue };
        let is_reference = |part: &Value| part["type"] == "tool_reference";
        match groups.last_mut() {
            Some(group) if is_reference(&group[0]) == is_reference(&part) => group.push(part),
            _ => groups.push(vec![part]),
        }
    }
    let contents: Vec<Value> = groups
        .into_iter()
        .map(|mut group| match &mut group[..] {
            [one] if one["type"] == "text" => one["text"].take(),
            _ => group.into(),
        })
        .collect();
    let contents = if contents.is_empty() { vec!["".into()] } else { contents };
    (contents, texts.join("\n"))
}
