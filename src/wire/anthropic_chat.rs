//! A Messages request as the chat request that answers it.
//!
//! Source: `vllm/entrypoints/anthropic/serving.py`, `to_chat_completion_request`.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::anthropic::{
    Content, ContentBlock, CountTokensRequest, Message, MessagesRequest, OutputConfig, Thinking,
    Tool, ToolChoice,
};
use super::fault::Fault;
use super::openai::chat::ChatRequest;
use super::openai::shared::{self, FunctionDefinition, JsonSchema, ResponseFormat, StreamOptions};
use super::python;

/// Line that Claude Code puts into its system prompt, different in every request.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// What a deployment decides about the conversion.
#[derive(Debug, Clone, Copy)]
pub struct Conversion<'a> {
    /// Whether system messages further down go into the first, because the template insists on
    /// that order.
    pub merge_inline_system: bool,
    /// The reasoning effort that thinking `disabled` stands for: `none`, where the template
    /// knows it.
    pub disabled_effort: &'a str,
}

impl Default for Conversion<'_> {
    fn default() -> Self {
        Self {
            merge_inline_system: false,
            disabled_effort: "none",
        }
    }
}

/// The members both kinds of request share.
struct Common<'r> {
    messages: &'r [Message],
    system: Option<&'r Content>,
    output_config: Option<&'r OutputConfig>,
    thinking: Option<Thinking>,
    tool_choice: Option<&'r ToolChoice>,
    tools: Option<&'r [Tool]>,
}

impl MessagesRequest {
    /// The chat request that answers this one.
    ///
    /// # Errors
    /// 400 for what chat does not take, and for tool changes that name no tool.
    pub fn to_chat(&self, conversion: Conversion<'_>) -> Result<ChatRequest, Fault> {
        let common = Common {
            messages: &self.messages,
            system: self.system.as_ref(),
            output_config: self.output_config.as_ref(),
            thinking: self.thinking,
            tool_choice: self.tool_choice.as_ref(),
            tools: self.tools.as_deref(),
        };
        let mut chat = ChatRequest::parse(&json!({
            "model": self.model,
            "messages": common.chat_messages(conversion),
            "cache_salt": self.cache_salt,
            "kv_transfer_params": self.kv_transfer_params,
            "ec_transfer_params": self.ec_transfer_params,
            "chat_template_kwargs": self.chat_template_kwargs,
        }))?;
        chat.max_tokens = Some(self.max_tokens);
        chat.max_completion_tokens = Some(self.max_tokens);
        chat.stop = self.stop_sequences.clone().map(shared::Stop);
        chat.temperature = self.temperature;
        chat.top_p = self.top_p;
        chat.top_k = self.top_k;
        chat.watermarking = self.watermarking;
        chat.vllm_xargs = self.vllm_xargs.clone();
        if self.stream == Some(true) {
            chat.stream = Some(true);
            chat.stream_options = Some(StreamOptions {
                include_usage: Some(true),
                continuous_usage_stats: Some(true),
            });
        }
        common.finish(&mut chat, conversion)?;
        Ok(chat)
    }
}

impl CountTokensRequest {
    /// The chat request whose prompt is counted.
    ///
    /// # Errors
    /// As [`MessagesRequest::to_chat`].
    pub fn to_chat(&self, conversion: Conversion<'_>) -> Result<ChatRequest, Fault> {
        let common = Common {
            messages: &self.messages,
            system: self.system.as_ref(),
            output_config: self.output_config.as_ref(),
            thinking: self.thinking,
            tool_choice: self.tool_choice.as_ref(),
            tools: self.tools.as_deref(),
        };
        let mut chat = ChatRequest::parse(&json!({
            "model": self.model,
            "messages": common.chat_messages(conversion),
            "chat_template_kwargs": self.chat_template_kwargs,
        }))?;
        common.finish(&mut chat, conversion)?;
        Ok(chat)
    }
}

impl Common<'_> {
    fn chat_messages(&self, conversion: Conversion<'_>) -> Vec<Value> {
        let mut out = Vec::new();
        let mut system = match self.system {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Blocks(blocks)) => texts(blocks),
        };
        let inline = self
            .messages
            .iter()
            .filter(|message| message.role == "system");
        if conversion.merge_inline_system {
            system.extend(inline.filter_map(|message| system_text(&message.content)));
        }
        if !system.is_empty() {
            out.push(json!({"role": "system", "content": system}));
        }
        for message in self.messages {
            if message.role == "system" {
                let text = system_text(&message.content).filter(|text| !text.is_empty());
                let text = text.filter(|_| !conversion.merge_inline_system);
                out.extend(text.map(|text| json!({"role": "system", "content": text})));
                continue;
            }
            match &message.content {
                Content::Text(text) => {
                    out.push(json!({"role": message.role, "content": text}));
                }
                Content::Blocks(blocks) => blocks_message(&message.role, blocks, &mut out),
            }
        }
        out
    }

    /// What upstream sets once the chat request is built, unchecked.
    fn finish(&self, chat: &mut ChatRequest, conversion: Conversion<'_>) -> Result<(), Fault> {
        if let Some(config) = self.output_config {
            if let Some(schema) = config
                .format
                .as_ref()
                .and_then(|format| format.schema.clone())
                && !schema.is_empty()
            {
                chat.response_format = Some(ResponseFormat::JsonSchema(JsonSchema {
                    name: "json_schema".to_owned(),
                    description: None,
                    schema: Some(schema),
                    strict: None,
                }));
            }
            chat.reasoning_effort.clone_from(&config.effort);
        }
        match self.thinking {
            Some(Thinking::Disabled) => {
                chat.reasoning_effort = Some(conversion.disabled_effort.to_owned());
            }
            Some(Thinking::Enabled(budget)) => chat.thinking_token_budget = Some(budget),
            Some(Thinking::Adaptive) | None => {}
        }
        chat.tool_choice = self.tool_choice.map(chat_choice);
        if let Some(choice) = self.tool_choice {
            chat.parallel_tool_calls = Some(choice.disable_parallel_tool_use != Some(true));
        }
        if let Some(tools) = self.effective_tools()? {
            chat.tools = Some(tools.into_iter().map(chat_tool).collect());
            chat.tool_choice.get_or_insert(shared::ToolChoice::Auto);
        }
        Ok(())
    }

    /// `_resolve_tools`: the tools after all additions and removals in the conversation.
    fn effective_tools(&self) -> Result<Option<Vec<Tool>>, Fault> {
        let changes: Vec<&ContentBlock> = self
            .messages
            .iter()
            .filter_map(|message| match &message.content {
                Content::Blocks(blocks) => Some(blocks),
                Content::Text(_) => None,
            })
            .flatten()
            .filter(|block| matches!(block.kind.as_str(), "tool_addition" | "tool_removal"))
            .collect();
        if changes.is_empty() {
            return Ok(self.tools.map(<[Tool]>::to_vec));
        }
        let mut tools: IndexMap<String, Tool> = self
            .tools
            .unwrap_or_default()
            .iter()
            .map(|tool| (tool.name.clone(), tool.clone()))
            .collect();
        let mut removed: Vec<String> = Vec::new();
        for block in changes {
            let addition = block.kind == "tool_addition";
            let Some(change) = &block.tool else { continue };
            let name = match change.get("definition").and_then(super::schema::Wire::read) {
                Some(definition) => {
                    let definition: Tool = definition;
                    let name = definition.name.clone();
                    tools.insert(name.clone(), definition);
                    name
                }
                None => {
                    let name = change
                        .get("name")
                        .and_then(Value::as_str)
                        .unwrap_or_default();
                    let Some(tool) = tools.get_mut(name) else {
                        return Err(Fault::bad_request(format!(
                            "{} references tool {}, which is not declared in tools",
                            block.kind,
                            python::repr_str(name)
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
        Ok(Some(
            tools
                .into_values()
                .filter(|tool| !removed.contains(&tool.name))
                .collect(),
        ))
    }
}

/// All text blocks, without those that start with the billing header.
fn texts(blocks: &[ContentBlock]) -> String {
    blocks
        .iter()
        .filter(|block| block.kind == "text")
        .filter_map(|block| block.text.as_deref())
        .filter(|text| !text.starts_with(BILLING_HEADER))
        .collect()
}

/// The text of a system message, `None` where nothing of it is left.
fn system_text(content: &Content) -> Option<String> {
    let text = match content {
        Content::Text(text) if text.starts_with(BILLING_HEADER) => String::new(),
        Content::Text(text) => text.clone(),
        Content::Blocks(blocks) => texts(blocks),
    };
    Some(text).filter(|text| !text.is_empty())
}

/// A user's or assistant's message of blocks; results of tools become messages of their own
/// before it.
fn blocks_message(role: &str, blocks: &[ContentBlock], out: &mut Vec<Value>) {
    let mut parts = Vec::new();
    let mut calls = Vec::new();
    let mut reasoning = String::new();
    let mut reasons = false;
    for block in blocks {
        match block.kind.as_str() {
            "text" => {
                let text = block.text.as_deref().filter(|text| !text.is_empty());
                parts.extend(text.map(|text| json!({"type": "text", "text": text})));
            }
            "image" => {
                let source = block.source.as_ref().filter(|source| !source.is_empty());
                parts.extend(source.map(image_part));
            }
            "thinking" => {
                if let Some(thinking) = &block.thinking {
                    reasons = true;
                    reasoning.push_str(thinking);
                }
            }
            "tool_use" => calls.push(call(block)),
            "tool_result" if role == "user" => tool_result(block, out),
            "tool_result" => {
                let content = block
                    .content
                    .as_ref()
                    .filter(|c| python::Py::of(c).truthy());
                let text = content.map(python::str).unwrap_or_default();
                parts.push(json!({"type": "text", "text": format!("Tool result: {text}")}));
            }
            _ => {}
        }
    }
    let mut message = Map::from_iter([("role".to_owned(), Value::from(role))]);
    if reasons {
        message.insert("reasoning".to_owned(), Value::from(reasoning));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    let content = match parts.as_mut_slice() {
        [] if role == "user" => return,
        [] => None,
        [Value::Object(only)] if only["type"] == "text" => Some(only["text"].take()),
        _ => Some(Value::Array(parts)),
    };
    message.extend(content.map(|content| ("content".to_owned(), content)));
    out.push(Value::Object(message));
}

fn call(block: &ContentBlock) -> Value {
    let arguments = Value::Object(block.input.clone().unwrap_or_default()).to_string();
    let id = block
        .id
        .as_deref()
        .filter(|id| !id.is_empty())
        .unwrap_or("call_0");
    let name = block.name.as_deref().unwrap_or_default();
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// `_convert_image_source_to_url`.
fn image_url(source: &Map<String, Value>) -> String {
    let text = |key: &str| source.get(key).and_then(Value::as_str);
    if text("type") == Some("url") {
        return text("url").unwrap_or_default().to_owned();
    }
    let media_type = text("media_type").unwrap_or("image/jpeg");
    format!(
        "data:{media_type};base64,{}",
        text("data").unwrap_or_default()
    )
}

fn image_part(source: &Map<String, Value>) -> Value {
    json!({"type": "image_url", "image_url": {"url": image_url(source)}})
}

/// `_convert_user_tool_result`.
fn tool_result(block: &ContentBlock, out: &mut Vec<Value>) {
    let id = block.tool_use_id.as_deref().unwrap_or_default();
    let mut text = Vec::new();
    let mut images = Vec::new();
    let mut references = Vec::new();
    match &block.content {
        Some(Value::String(only)) => text.push(only.as_str()),
        Some(Value::Array(items)) => {
            for item in items {
                let member = |key: &str| {
                    item.get(key)
                        .and_then(Value::as_str)
                        .filter(|text| !text.is_empty())
                };
                match item.get("type").and_then(Value::as_str) {
                    Some("text") => text.push(member("text").unwrap_or_default()),
                    Some("image") => {
                        let source = item.get("source").and_then(Value::as_object);
                        images.push(source.map_or_else(|| image_part(&Map::new()), image_part));
                    }
                    Some("tool_reference") => {
                        let name = member("tool_name").or_else(|| member("name"));
                        references.extend(
                            name.map(|name| json!({"type": "tool_reference", "name": name})),
                        );
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    out.push(json!({"role": "tool", "tool_call_id": id, "content": text.join("\n")}));
    if !images.is_empty() {
        out.push(json!({"role": "user", "content": images}));
    }
    if !references.is_empty() {
        out.push(json!({"role": "tool", "tool_call_id": id, "content": references}));
    }
}

fn chat_choice(choice: &ToolChoice) -> shared::ToolChoice {
    match choice.kind.as_str() {
        "auto" => shared::ToolChoice::Auto,
        "any" => shared::ToolChoice::Required,
        "tool" => shared::ToolChoice::Named(choice.name.clone().unwrap_or_default()),
        _ => shared::ToolChoice::None,
    }
}

fn chat_tool(tool: Tool) -> shared::Tool {
    shared::Tool {
        kind: "function".to_owned(),
        function: FunctionDefinition {
            name: tool.name,
            description: tool.description,
            parameters: Some(tool.input_schema),
            strict: tool.strict,
            defer_loading: tool.defer_loading,
        },
        defer_loading: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: Value) -> Result<Value, String> {
        let request = MessagesRequest::parse(&body).map_err(|fault| fault.message)?;
        let chat = request
            .to_chat(Conversion::default())
            .map_err(|fault| fault.message)?;
        let messages = chat
            .messages
            .iter()
            .map(|message| message.raw().clone())
            .collect();
        let tools = chat
            .offered_tools()
            .iter()
            .map(shared::Tool::dump)
            .collect();
        Ok(json!([Value::Array(messages), Value::Array(tools)]))
    }

    #[test]
    fn blocks_become_messages_calls_and_results() {
        let body = json!({
            "model": "m", "max_tokens": 5,
            "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"},
                       {"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t",
                     "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}]}],
            "tools": [{"name": "f", "input_schema": {}}],
        });
        assert_eq!(
            chat(body),
            Ok(json!([
                [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "reasoning": "hm", "tool_calls": [
                        {"id": "t", "type": "function",
                         "function": {"name": "f", "arguments": "{\"a\":1}"}}],
                     "content": "Looking."},
                    {"role": "tool", "tool_call_id": "t", "content": "1\n2"},
                ],
                [{"type": "function", "function": {
                    "name": "f", "description": null, "parameters": {"type": "object"}}}],
            ]))
        );
    }

    #[test]
    fn a_change_of_an_unknown_tool_is_refused() {
        let body = json!({
            "model": "m", "max_tokens": 5,
            "messages": [{"role": "system", "content": [
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "g"}}]}],
        });
        assert_eq!(
            chat(body),
            Err("tool_removal references tool 'g', which is not declared in tools".to_owned())
        );
    }
}
