//! Request of `POST /v1/responses` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py`, `ResponsesRequest`, `ResponseTool`;
//! `serving_responses.py`.

use serde_json::{Map, Value, json};
use vllm_sim_python as python;

use crate::fault::{ErrorType, Fault};
use crate::sampling::STRING_OR_LIST_SCHEMA;
use crate::schema::Schema::{self, Any, Bool, Dict, List, Literal, Named, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, STR, ValidatorError, optional_field as opt, plain_model, required_field as req,
    wire_model,
};

const OBJECTS: Schema = List(&Dict(&STR, &Any), ANY_LENGTH);

/// Pydantic's name of the type `list` of OpenAI's input item classes, for error messages; the
/// items' members are not checked here.
const ITEMS: &str = "list[union[ResponseInputMessageParam,ResponseFunctionCallInputParam,\
     ResponseOutputMessage,EasyInputMessageParam,Message,ResponseOutputMessageParam,\
     ResponseFileSearchToolCallParam,ResponseComputerToolCallParam,ComputerCallOutput,\
     ResponseFunctionWebSearchParam,ResponseFunctionToolCallParam,FunctionCallOutput,\
     ResponseReasoningItemParam,ImageGenerationCall,ResponseCodeInterpreterToolCallParam,\
     LocalShellCall,LocalShellCallOutput,ShellCall,ShellCallOutput,ApplyPatchCall,\
     ApplyPatchCallOutput,McpListTools,McpApprovalRequest,McpApprovalResponse,McpCall,\
     ResponseCustomToolCallOutputParam,ResponseCustomToolCallParam,ItemReference,\
     ResponseReasoningItem,ResponseFunctionToolCall]]";

const TEXT_CONFIG: Schema = Nullable(&plain_model!(
    "ResponseTextConfig",
    opt(
        "format",
        Nullable(&Union(&[
            plain_model!("ResponseFormatText", req("type", Literal(&["text"]))),
            plain_model!(
                "ResponseFormatTextJSONSchemaConfig",
                req("name", STR),
                req("schema", Dict(&STR, &Any)),
                req("type", Literal(&["json_schema"])),
                opt("description", Nullable(&STR)),
                opt("strict", Nullable(&Bool))
            ),
            plain_model!("ResponseFormatJSONObject", req("type", Literal(&["json_object"]))),
        ])),
    ),
    opt("verbosity", Nullable(&Literal(&["low", "medium", "high"])))
));

const REASONING: Schema = Nullable(&plain_model!(
    "ResponseReasoningParam",
    opt(
        "effort",
        Nullable(&Literal(&["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max",])),
    )
));

/// Number of tokens by which SGLang reduces `max_output_tokens`.
const OUTPUT_HEADROOM: i64 = 2;

wire_model! {
    /// A request of `POST /v1/responses`. Unknown members are ignored.
    pub struct SglangResponsesRequest: Plain "ResponsesRequest" {
        /// Whether the response is generated in the background, after the HTTP response.
        background: Option<bool> = Some(false),
        /// Names of additional members to include in the response.
        include: Option<Vec<String>> [Nullable(&List(&Literal(&[
            "code_interpreter_call.outputs",
            "computer_call_output.output.image_url",
            "file_search_call.results",
            "message.input_image.image_url",
            "message.output_text.logprobs",
            "reasoning.encrypted_content",
        ]), ANY_LENGTH))] = None,
        /// Input of the model: a text, or items of a conversation.
        input: Value [Union(&[STR, OBJECTS, Named(ITEMS, &OBJECTS)])],
        /// System prompt, before the first message.
        instructions: Option<String> = None,
        /// Maximum number of output tokens.
        max_output_tokens: Option<i64> = None,
        /// Metadata of the client, returned unchanged.
        metadata: Option<Map<String, Value>> = None,
        /// Name of the model; `model:adapter` selects an adapter.
        model: Option<String> = None,
        /// Whether a reply may contain several tool calls.
        parallel_tool_calls: Option<bool> = Some(true),
        /// Id of a stored response that the request continues.
        previous_response_id: Option<String> = None,
        /// Reasoning options of the request.
        reasoning: Option<Map<String, Value>> [REASONING] = None,
        /// Class of service of OpenAI; has no effect here.
        service_tier: Option<String> [Nullable(&Literal(&[
            "auto", "default", "flex", "scale", "priority",
        ]))] = None,
        /// Whether the response is stored, for which SGLang needs a command-line flag.
        store: Option<bool> = Some(true),
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// Sampling temperature.
        temperature: Option<f64> = None,
        /// Required format of the output text.
        text: Option<Map<String, Value>> [TEXT_CONFIG] = None,
        /// Rule for tool calls: whether the model calls tools, and which.
        tool_choice: Value [Union(&[
            Literal(&["auto", "required", "none"]),
            Dict(&STR, &Any),
        ])] = Value::from("auto"),
        /// The tools that the model may call.
        tools: Vec<ResponseTool> = Vec::new(),
        /// Number of most likely tokens to list with log probabilities at each output position.
        top_logprobs: Option<i64> = Some(0),
        /// Nucleus sampling threshold.
        top_p: Option<f64> = None,
        /// Treatment of inputs that are too long: `auto` or `disabled`.
        truncation: Option<String> [Nullable(&Literal(&["auto", "disabled"]))] =
            Some("disabled".to_owned()),
        /// Id of the end user, which the response repeats.
        user: Option<String> = None,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
        /// Id of the response.
        request_id: Option<String> [STR] = None,
        /// Scheduling priority of the request.
        priority: i64 = 0,
        /// Salt of the prefix cache; only requests with equal salts share cached prefixes.
        cache_salt: Option<String> = None,
        /// Frequency penalty.
        frequency_penalty: f64 = 0.0,
        /// Presence penalty.
        presence_penalty: f64 = 0.0,
        /// Stop strings: the output ends before the first of them.
        stop: Option<Value> [Nullable(&STRING_OR_LIST_SCHEMA)] = None,
        /// Number of most likely tokens to sample from.
        top_k: Option<i64> = None,
        /// Minimum probability of a sampled token relative to the most likely one.
        min_p: Option<f64> = None,
        /// Repetition penalty.
        repetition_penalty: Option<f64> = None,
        /// The data-parallel rank that runs the request.
        routed_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request; former name of `routed_dp_rank`.
        data_parallel_rank: Option<i64> = None,
    }
}

wire_model! {
    /// A tool of a `/v1/responses` request, which the response repeats.
    pub struct ResponseTool: Plain "ResponseTool" after check_function_tool {
        /// Kind of the tool; only functions are simulated.
        kind: String as "type",
        /// Name of the function.
        name: Option<String> = None,
        /// Description of the function.
        description: Option<String> = None,
        /// JSON Schema of the function's arguments.
        parameters: Option<Map<String, Value>> = None,
        /// Whether the function's arguments must follow their JSON Schema.
        strict: bool = false,
    }
}

/// Rejects a function tool without a name, as SGLang's `validate_function_tool` does.
fn check_function_tool(tool: &Map<String, Value>) -> Result<(), ValidatorError> {
    let text = |name: &str| tool.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("type") == "function" && text("name").is_empty() {
        true => Err(ValidatorError::ValueError("Function tools must include a name.".to_owned())),
        false => Ok(()),
    }
}

impl ResponseTool {
    /// Returns the tool as JSON, with all members that a response repeats.
    pub fn to_tool_json(&self) -> Value {
        json!({
            "type": self.kind,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
            "tools": null,
            "defer_loading": null,
            "format": null,
        })
    }
}

/// Error message for a request that needs stored responses.
pub const STORE_DISABLED_MESSAGE: &str = "Response store is disabled. Stateful Responses require \
     --enable-response-store on a standalone server; response storage is unavailable in PD mode.";

/// Error message for a request without model: pydantic's text for the chat request that SGLang
/// builds.
const MODEL_IS_NONE: &str = "1 validation error for ChatCompletionRequest\nmodel\n  Input should be \
     a valid string [type=string_type, input_value=None, input_type=NoneType]\n    For further \
     information visit https://errors.pydantic.dev/2.14/v/string_type None";

fn refused(param: &str, message: impl Into<String>) -> Fault {
    Fault { param: Some(param.to_owned()), ..Fault::bad_request(message) }
}

impl SglangResponsesRequest {
    /// Runs the checks of a `/v1/responses` request that SGLang makes after schema validation.
    ///
    /// # Errors
    /// A 400 or 404 in SGLang's words; ours for what is not simulated.
    pub fn validate_responses_request(
        &self,
        knows_model: impl Fn(&str) -> bool,
    ) -> Result<(), Fault> {
        if self.previous_response_id.is_some() {
            return Err(refused("previous_response_id", STORE_DISABLED_MESSAGE));
        }
        if self.background == Some(true) {
            return Err(refused("background", STORE_DISABLED_MESSAGE));
        }
        if let Some(model) = self.model.as_deref().filter(|model| !knows_model(model)) {
            let message = format!("The model '{model}' does not exist");
            let unknown = Fault::new(404, ErrorType::NotFound, message);
            return Err(Fault { param: Some("model".to_owned()), ..unknown });
        }
        self.validate_tools()?;
        let wants_logprobs = self.includes_logprobs();
        if wants_logprobs && self.stream == Some(true) {
            return Err(refused("logprobs", "logprobs are not supported in streaming mode"));
        }
        match self.model {
            None => Err(Fault::bad_request(MODEL_IS_NONE)),
            Some(_) => Ok(()),
        }
    }

    fn validate_tools(&self) -> Result<(), Fault> {
        if let Some(tool) = self.tools.iter().find(|tool| tool.kind != "function") {
            let text = format!("tools: type {} is not simulated, only function", tool.kind);
            return Err(refused("tools", text));
        }
        if self.tool_choice == "required" && self.tools.is_empty() {
            return Err(Fault::bad_request(
                "tool_choice=\"required\" requires at least one tool with type=\"function\" or \
                 type=\"custom\"; other built-in tool types cannot be forced.",
            ));
        }
        match self.named_tool() {
            Some(name) if !self.tools.iter().any(|tool| tool.name.as_deref() == Some(name)) => {
                let shown = python::python_repr_of_str(name);
                Err(refused("tool_choice", format!("Tool {shown} is not declared in tools")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the name of the tool that `tool_choice` forces the model to call; `None` if it names
    /// none.
    fn named_tool(&self) -> Option<&str> {
        let choice = self.tool_choice.as_object()?;
        let kind = choice.get("type").and_then(Value::as_str)?;
        let name = choice.get("name").or(choice.get("function").and_then(|of| of.get("name")));
        name.and_then(Value::as_str).filter(|_| matches!(kind, "function" | "custom"))
    }

    /// Returns whether the request forces the model to call a tool.
    pub fn forces_tool_calls(&self) -> bool {
        self.tool_choice == "required" || self.named_tool().is_some()
    }

    /// Returns whether the request asks for log probabilities of the output.
    pub fn includes_logprobs(&self) -> bool {
        let include = self.include.iter().flatten();
        include.into_iter().any(|name| name == "message.output_text.logprobs")
    }

    /// Returns the rule for tool calls, `tool_choice`, as the response repeats it.
    pub fn effective_tool_choice(&self) -> Value {
        match (&self.tool_choice, self.named_tool()) {
            (Value::Object(choice), Some(name)) => {
                json!({"type": choice.get("type"), "name": name})
            }
            (Value::Object(_), None) => "auto".into(),
            (choice, _) => choice.clone(),
        }
    }

    /// Returns the body of the chat request with the prompt and sampling parameters of this
    /// `/v1/responses` request.
    ///
    /// # Errors
    /// A 400 that names an item of the input that is not simulated.
    pub fn to_chat_body(&self) -> Result<Value, Fault> {
        let limit = self.max_output_tokens.map(|most| most.saturating_sub(OUTPUT_HEADROOM));
        let mut body = json!({
            "model": self.model,
            "messages": self.messages()?,
            "max_completion_tokens": limit,
            "temperature": self.temperature.unwrap_or(0.7),
            "top_p": self.top_p.unwrap_or(1.0),
            "top_k": self.top_k,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "stop": self.stop,
            "stream": self.stream.unwrap_or(false),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "chat_template_kwargs": self.chat_template_kwargs,
            "priority": self.priority,
            "cache_salt": self.cache_salt,
            "routed_dp_rank": self.routed_dp_rank.or(self.data_parallel_rank),
            "logprobs": self.includes_logprobs(),
            "top_logprobs": self.top_logprobs,
        });
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.get("effort"));
        if let Some(effort) = effort.filter(|effort| effort.is_string()) {
            body["reasoning_effort"] = effort.clone();
        }
        if let Some(format) = self.response_format() {
            body["response_format"] = format;
        }
        if !self.tools.is_empty() {
            let tools = self.tools.iter().map(|tool| {
                let mut function =
                    json!({"name": tool.name, "parameters": tool.parameters, "strict": tool.strict});
                if let Some(text) = &tool.description {
                    function["description"] = text.as_str().into();
                }
                json!({"type": "function", "function": function})
            });
            body["tools"] = tools.collect();
            body["tool_choice"] = match self.named_tool() {
                Some(name) => json!({"type": "function", "function": {"name": name}}),
                None if self.tool_choice.is_object() => "auto".into(),
                None => self.tool_choice.clone(),
            };
        }
        Ok(body)
    }

    /// Returns the text format of the request, as the response repeats it: with members in the
    /// order of its Python class.
    pub fn text_format_json(&self) -> Value {
        let mut text = Value::from(self.text.clone().unwrap_or_default());
        if let Some(Value::Object(format)) = text.get_mut("format") {
            let names = ["name", "schema", "type"];
            let ordered: Map<String, Value> =
                names.iter().filter_map(|name| format.shift_remove_entry(*name)).collect();
            let rest = std::mem::replace(format, ordered);
            format.extend(rest);
        }
        text
    }

    /// Returns the `response_format` of the chat request that corresponds to the member `text` of a
    /// `/v1/responses` request.
    fn response_format(&self) -> Option<Value> {
        let format = self.text.as_ref()?.get("format")?;
        match format.get("type")?.as_str()? {
            "json_object" => Some(json!({"type": "json_object"})),
            "json_schema" => Some(json!({
                "type": "json_schema",
                "json_schema": {"name": format.get("name"), "schema": format.get("schema")},
            })),
            _ => None,
        }
    }

    /// Returns the messages of the chat request that corresponds to this `/v1/responses` request.
    fn messages(&self) -> Result<Vec<Value>, Fault> {
        let mut messages = Vec::new();
        if let Some(text) = &self.instructions {
            messages.push(json!({"role": "system", "content": text}));
        }
        match &self.input {
            Value::String(text) => messages.push(json!({"role": "user", "content": text})),
            items => {
                for (index, item) in items.as_array().into_iter().flatten().enumerate() {
                    messages.extend(chat_message(index, item)?);
                }
            }
        }
        Ok(messages)
    }
}

/// Converts an input item of a `/v1/responses` request to a chat message; `None` for reasoning,
/// which prompts omit.
fn chat_message(index: usize, item: &Value) -> Result<Option<Value>, Fault> {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    Ok(Some(match (text("type"), text("role")) {
        (None | Some("message"), role) => {
            let mut message = Map::new();
            message.extend(role.map(|role| ("role".to_owned(), role.into())));
            if let Some(content) = item.get("content").filter(|content| !content.is_null()) {
                message.insert("content".to_owned(), chat_content(index, content)?);
            }
            message.into()
        }
        (Some("function_call"), _) => {
            let function = json!({"name": text("name"), "arguments": text("arguments")});
            let id = text("call_id").or(text("id"));
            let call = json!({"id": id, "type": "function", "function": function});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        }
        (Some("function_call_output"), _) => {
            let id = text("call_id").unwrap_or_default();
            let output = item.get("output").unwrap_or(&Value::Null);
            let content = chat_content(index, output)?;
            json!({"role": "tool", "tool_call_id": id, "content": content})
        }
        (Some("reasoning"), _) => return Ok(None),
        (Some(kind), _) => {
            let shown = python::python_repr_of_str(kind);
            return Err(Fault::bad_request(format!(
                "Unsupported Responses API input item type: {shown} None"
            )));
        }
    }))
}

/// Converts the content of an input item of a `/v1/responses` request: texts are joined, images
/// stay parts.
fn chat_content(index: usize, content: &Value) -> Result<Value, Fault> {
    let Value::Array(parts) = content else {
        return Ok(content.clone());
    };
    let mut converted = Vec::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str);
        match (kind, part.get("text").and_then(Value::as_str), part.get("image_url")) {
            (_, Some(text), _) => converted.push(json!({"type": "text", "text": text})),
            (Some("input_image"), None, Some(url)) => {
                converted.push(json!({"type": "image_url", "image_url": {"url": url}}));
            }
            _ => {
                let kind = kind.unwrap_or("a part without text");
                let text = format!("input[{index}]: {kind} is not simulated");
                return Err(refused("input", text));
            }
        }
    }
    let texts = converted.iter().map(|part| part["text"].as_str());
    match texts.collect::<Option<Vec<_>>>() {
        Some(texts) => Ok(texts.concat().into()),
        None => Ok(converted.into()),
    }
}
