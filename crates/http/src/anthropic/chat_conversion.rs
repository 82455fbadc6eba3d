//! Converts requests of Anthropic's Messages API to chat requests, as vLLM does.
//!
//! Source: `vllm/entrypoints/anthropic/serving.py`, `to_chat_completion_request`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::inline_system;
use super::tools::apply_tool_additions_and_removals;
use crate::app::App;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_python::{json_of_python_float, json_of_python_int};
use vllm_sim_wire::anthropic::{
    AnthropicContent, AnthropicContentBlock, AnthropicMessage, AnthropicTool, AnthropicToolChoice,
    CountTokensRequest, MessagesRequest, ThinkingConfig,
};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::shared_request_fields::ChatToolChoice;

/// Returns the chat request for an Anthropic message request.
///
/// # Errors
/// The errors of the chat route for the converted request.
pub(super) fn to_chat_request(app: &App, request: &MessagesRequest) -> Result<ChatRequest, Fault> {
    let body = to_chat_body(app, request)?;
    parse_converted_body(app, &body, request.tools.as_deref(), request.tool_choice.as_ref())
}

/// Parses the chat request converted from an Anthropic request. Without tools, on a server without a
/// tool parser, it gets the Anthropic tool choice.
///
/// vLLM checks the choice also if there are no tools, and refuses all but `none` without a parser.
///
/// # Errors
/// The errors of the chat route.
fn parse_converted_body(
    app: &App,
    body: &Value,
    tools: Option<&[AnthropicTool]>,
    choice: Option<&AnthropicToolChoice>,
) -> Result<ChatRequest, Fault> {
    let mut chat = ChatRequest::parse_chat_request(body, &app.rules.defaults.bounds)?;
    if app.rules.limits.has_tool_parser || chat.tools.is_some() {
        return Ok(chat);
    }
    chat.tool_choice = match choice {
        None => tools.map(|_| ChatToolChoice::Auto),
        Some(choice) => Some(match choice.kind.as_str() {
            "any" => ChatToolChoice::Required,
            "tool" => ChatToolChoice::Named(choice.name.clone().unwrap_or_default()),
            "auto" => ChatToolChoice::Auto,
            _ => ChatToolChoice::None,
        }),
    };
    Ok(chat)
}

/// Returns the JSON body of the chat request for an Anthropic message request.
///
/// # Errors
/// 400 if a `tool_addition` or `tool_removal` block names an unknown tool.
pub(crate) fn to_chat_body(app: &App, request: &MessagesRequest) -> Result<Value, Fault> {
    let offered = apply_tool_additions_and_removals(request.tools.as_deref(), &request.messages)?;
    let mut body = Map::new();
    body.insert("model".into(), request.model.as_str().into());
    let messages = chat_messages(app, request.system.as_ref(), &request.messages);
    body.insert("messages".into(), messages.into());
    let most = json_of_python_int(request.max_tokens);
    body.insert("max_tokens".into(), most.clone());
    body.insert("max_completion_tokens".into(), most);
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("stop", request.stop_sequences.clone().map(Value::from));
    set("temperature", request.temperature.map(json_of_python_float));
    set("top_p", request.top_p.map(json_of_python_float));
    set("top_k", request.top_k.map(json_of_python_int));
    set("cache_salt", request.cache_salt.clone().map(Value::from));
    let params = request.kv_transfer_params.clone();
    set("kv_transfer_params", params.map(Value::Object));
    let params = request.ec_transfer_params.clone();
    set("ec_transfer_params", params.map(Value::Object));
    let xargs = request.vllm_xargs.as_ref();
    set("vllm_xargs", xargs.map(|args| Value::Object(args.0.clone())));
    let kwargs = request.chat_template_kwargs.clone();
    set("chat_template_kwargs", kwargs.map(Value::Object));
    if request.stream.unwrap_or(false) {
        set("stream", Some(true.into()));
        let options = json!({"include_usage": true, "continuous_usage_stats": true});
        set("stream_options", Some(options));
    }
    let config = request.output_config.as_ref();
    let format = config.and_then(|config| config.format.as_ref());
    if let Some(schema) = format.and_then(|format| format.schema.as_ref()) {
        let format = json!({"name": "json_schema", "schema": schema});
        let format = json!({"type": "json_schema", "json_schema": format});
        set("response_format", Some(format));
    }
    let effort = config.and_then(|config| config.effort.clone());
    set("reasoning_effort", effort.map(Value::from));
    match request.thinking {
        Some(ThinkingConfig::Disabled) => set("reasoning_effort", Some("none".into())),
        Some(ThinkingConfig::Enabled(budget)) => {
            set("thinking_token_budget", Some(json_of_python_int(budget)));
        }
        Some(ThinkingConfig::Adaptive) | None => {}
    }
    insert_tools(&mut body, offered.as_deref(), request.tool_choice.as_ref());
    Ok(Value::Object(body))
}

/// Returns the chat request whose prompt `/v1/messages/count_tokens` counts.
///
/// # Errors
/// Same errors as [`to_chat_request`].
pub(crate) fn chat_request_for_count_tokens(
    app: &Arc<App>,
    request: &CountTokensRequest,
) -> Result<ChatRequest, Fault> {
    let offered = apply_tool_additions_and_removals(request.tools.as_deref(), &request.messages)?;
    let mut body = Map::new();
    body.insert("model".into(), request.model.as_str().into());
    let messages = chat_messages(app, request.system.as_ref(), &request.messages);
    body.insert("messages".into(), messages.into());
    if let Some(kwargs) = &request.chat_template_kwargs {
        body.insert("chat_template_kwargs".into(), kwargs.clone().into());
    }
    insert_tools(&mut body, offered.as_deref(), request.tool_choice.as_ref());
    let body = Value::Object(body);
    parse_converted_body(app, &body, request.tools.as_deref(), request.tool_choice.as_ref())
}

fn chat_messages(
    app: &App,
    system: Option<&AnthropicContent>,
    messages: &[AnthropicMessage],
) -> Vec<Value> {
    let system = system.map_or(String::new(), inline_system::system_prompt_text);
    let (leading, rest) = inline_system::split_leading_system_messages(app, &system, messages);
    let mut out = Vec::with_capacity(rest.len() + 1);
    let system = inline_system::join_paragraphs(&[&system, &leading]);
    if !system.is_empty() {
        out.push(json!({"role": "system", "content": system}));
    }
    for message in &rest {
        append_chat_messages(message, &mut out);
    }
    out
}

/// Appends the chat message of one Anthropic message, after a separate chat message for each of its
/// tool results.
fn append_chat_messages(message: &AnthropicMessage, out: &mut Vec<Value>) {
    if message.role == "system" {
        let text = inline_system::message_text(message);
        if !text.is_empty() {
            out.push(json!({"role": "system", "content": text}));
        }
        return;
    }
    let blocks = match &message.content {
        AnthropicContent::Text(text) => {
            out.push(json!({"role": message.role, "content": text}));
            return;
        }
        AnthropicContent::Blocks(blocks) => blocks,
    };
    let mut parts = ChatMessageParts::default();
    for block in blocks {
        parts.add_block(block, &message.role, out);
    }
    let mut converted = json!({"role": message.role});
    if !parts.reasoning.is_empty() {
        converted["reasoning"] = parts.reasoning.concat().into();
    }
    if !parts.calls.is_empty() {
        converted["tool_calls"] = parts.calls.into();
    }
    let said = !parts.content.is_empty();
    if let [Value::Object(only)] = parts.content.as_slice()
        && only.get("type").is_some_and(|kind| kind == "text")
    {
        converted["content"] = only.get("text").cloned().unwrap_or_default();
    } else if said {
        converted["content"] = parts.content.into();
    }
    if said || message.role != "user" {
        out.push(converted);
    }
}

#[derive(Default)]
struct ChatMessageParts {
    content: Vec<Value>,
    calls: Vec<Value>,
    reasoning: Vec<String>,
}

impl ChatMessageParts {
    fn add_block(&mut self, block: &AnthropicContentBlock, role: &str, out: &mut Vec<Value>) {
        let text = block.text.as_deref().filter(|text| !text.is_empty());
        match (block.kind.as_str(), text) {
            ("text", Some(text)) => self.content.push(json!({"type": "text", "text": text})),
            ("image", _) => {
                if let Some(source) = block.source.as_ref().filter(|source| !source.is_empty()) {
                    self.content.push(image_content_part(source));
                }
            }
            ("thinking", _) => self.reasoning.extend(block.thinking.clone()),
            ("tool_use", _) => {
                let id = block.id.clone().filter(|id| !id.is_empty());
                let id = id.unwrap_or_else(|| format!("call_{}", unix_now_secs() as u64));
                let input = block.input.clone().unwrap_or_default();
                let function = json!({
                    "name": block.name.clone().unwrap_or_default(),
                    "arguments": crate::json::dumps(&Value::Object(input)),
                });
                self.calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            ("tool_result", _) if role == "user" => append_tool_result(block, out),
            ("tool_result", _) => {
                let result = match &block.content {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Array(parts)) if !parts.is_empty() => {
                        vllm_sim_python::python_str(&Value::Array(parts.clone()))
                    }
                    _ => String::new(),
                };
                let text = format!("Tool result: {result}");
                self.content.push(json!({"type": "text", "text": text}));
            }
            // Redacted thinking is opaque; tool references and changes have no text.
            _ => {}
        }
    }
}

/// Appends the chat messages of one tool result: its text, then its images and its tool references
/// if it has any.
fn append_tool_result(block: &AnthropicContentBlock, out: &mut Vec<Value>) {
    let id = block.tool_use_id.clone().unwrap_or_default();
    let mut texts = Vec::new();
    let mut images = Vec::new();
    let mut references = Vec::new();
    match &block.content {
        Some(Value::String(text)) => texts.push(text.as_str()),
        Some(Value::Array(parts)) => {
            for part in parts {
                let named = |key: &str| part.get(key).and_then(Value::as_str);
                match named("type") {
                    Some("text") => texts.push(named("text").unwrap_or_default()),
                    Some("image") => {
                        let source = part.get("source").and_then(Value::as_object);
                        images.push(image_content_part(&source.cloned().unwrap_or_default()));
                    }
                    Some("tool_reference") => {
                        let name = named("tool_name").or(named("name"));
                        let name = name.filter(|name| !name.is_empty());
                        references
                            .extend(name.map(|n| json!({"type": "tool_reference", "name": n})));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    let text = texts.join("\n");
    out.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    if !images.is_empty() {
        out.push(json!({"role": "user", "content": images}));
    }
    if !references.is_empty() {
        out.push(json!({"role": "tool", "tool_call_id": id, "content": references}));
    }
}

/// Returns an Anthropic image as a content part of a chat message; any source other than a URL is
/// treated as base64.
fn image_content_part(source: &Map<String, Value>) -> Value {
    let text = |key: &str, default: &str| {
        let given = source.get(key).and_then(Value::as_str);
        given.unwrap_or(default).to_owned()
    };
    let url = if text("type", "") == "url" {
        text("url", "")
    } else {
        let (kind, data) = (text("media_type", "image/jpeg"), text("data", ""));
        format!("data:{kind};base64,{data}")
    };
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn insert_tools(
    body: &mut Map<String, Value>,
    tools: Option<&[AnthropicTool]>,
    choice: Option<&AnthropicToolChoice>,
) {
    let Some(tools) = tools.filter(|tools| !tools.is_empty()) else {
        return;
    };
    let converted: Vec<Value> = tools.iter().map(chat_tool_json).collect();
    body.insert("tools".into(), converted.into());
    let word = match choice {
        Some(choice) => {
            let parallel = !choice.disable_parallel_tool_use.unwrap_or(false);
            body.insert("parallel_tool_calls".into(), parallel.into());
            match choice.kind.as_str() {
                "any" => "required".into(),
                "tool" => json!({"type": "function", "function": {"name": choice.name}}),
                other => other.into(),
            }
        }
        None => "auto".into(),
    };
    body.insert("tool_choice".into(), word);
}

fn chat_tool_json(tool: &AnthropicTool) -> Value {
    let mut function = json!({
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
    });
    if let Some(strict) = tool.strict {
        function["strict"] = strict.into();
    }
    json!({"type": "function", "function": function})
}
