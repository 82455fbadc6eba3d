//! Request of `POST /v1/chat/completions` of an SGLang server.
//!
//! Messages and tools are read as vLLM reads them; this type has the other members.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py`, `ChatCompletionRequest`;
//! `serving_chat.py`.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use vllm_sim_python::{self as python, PythonValue, orjson_loads};

use super::chat_schema;
use super::completion::DEFAULT_MODEL_NAME;
use super::generate::{
    BOOTSTRAP_PORTS_SCHEMA, HIDDEN_STATES_DISABLED_MESSAGE, HIDDEN_STATES_SCHEMA,
    NULLABLE_STRINGS_SCHEMA,
};
use super::sampling::native_sampling_params;
use crate::ServerLimits;
use crate::bounds::RequestBounds;
use crate::fault::{ErrorType, Fault};
use crate::openai::chat::ChatRequest;
use crate::openai::shared_request_fields::StreamOptions;
use crate::schema::{Schema, ValidatorError, wire_model};

/// Form of the tool calls in a reply: members of the response, or text if the server has no tool
/// parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallRendering {
    /// A tool parser turns the tool calls into members of the response.
    Parsed,
    /// The tool calls are text of the reply, because no tool parser runs.
    Text,
}

wire_model! {
    /// A chat request. Absent fields have SGLang's defaults; unknown ones are ignored.
    pub struct SglangChatRequest: Plain "ChatCompletionRequest"
        before [set_tool_choice, set_json_schema]
    {
        /// Messages of the conversation, oldest first.
        messages: Vec<Value> [chat_schema::MESSAGES_SCHEMA],
        /// Name of the model, which responses repeat; `model:adapter` selects an adapter.
        model: String = DEFAULT_MODEL_NAME.to_owned(),
        /// Frequency penalty.
        frequency_penalty: f64 = 0.0,
        /// Values added to the logits of token ids.
        logit_bias: Option<Map<String, Value>> [chat_schema::LOGIT_BIAS_SCHEMA] = None,
        /// Whether to return log probabilities of the output tokens.
        logprobs: bool = false,
        /// Number of most likely tokens to list with log probabilities at each output position.
        top_logprobs: Option<i64> = None,
        /// Maximum number of tokens to generate; former name of `max_completion_tokens`.
        max_tokens: Option<i64> = None,
        /// Maximum number of tokens to generate.
        max_completion_tokens: Option<i64> = None,
        /// Number of outputs (choices) per prompt.
        n: i64 = 1,
        /// Presence penalty.
        presence_penalty: f64 = 0.0,
        /// Required format of the model's reply: text, JSON or a structural tag.
        response_format: Option<Map<String, Value>> [chat_schema::RESPONSE_FORMAT_SCHEMA] = None,
        /// Seed of the sampler.
        seed: Option<i64> = None,
        /// Stop strings: the output ends before the first of them.
        stop: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Whether to stream server-sent events instead of one body.
        stream: bool = false,
        /// Options for token usage in a streamed response.
        stream_options: Option<StreamOptions> = None,
        /// Sampling temperature.
        temperature: Option<f64> = None,
        /// Nucleus sampling threshold.
        top_p: Option<f64> = None,
        /// Id of the end user; has no effect here.
        user: Option<String> = None,
        /// The functions (tools) that the model may call.
        tools: Option<Vec<Value>> [chat_schema::TOOLS_SCHEMA] = None,
        /// Rule for tool calls: whether the model calls tools, and which.
        tool_choice: Option<Value> [chat_schema::TOOL_CHOICE_SCHEMA] = None,
        /// Whether a reply may contain several tool calls.
        parallel_tool_calls: bool = true,
        /// Request for hidden states, which the server rejects.
        return_hidden_states: Option<Value> [HIDDEN_STATES_SCHEMA] = None,
        /// Whether choices contain the token ids of the prompt.
        return_prompt_token_ids: bool = false,
        /// Whether choices contain the token ids of prompt and output.
        return_token_ids: bool = false,
        /// Whether choices contain the `meta_info` of the native route.
        return_meta_info: bool = false,
        /// Effort of the model's reasoning: a name or a number.
        reasoning_effort: Option<Value> [chat_schema::REASONING_EFFORT_SCHEMA] = None,
        /// Number of most likely tokens to sample from.
        top_k: Option<i64> = None,
        /// Minimum probability of a sampled token relative to the most likely one.
        min_p: Option<f64> = None,
        /// Minimum number of output tokens.
        min_tokens: i64 = 0,
        /// Regular expression for the output, which must match it.
        regex: Option<String> = None,
        /// Context-free grammar of the output, in EBNF.
        ebnf: Option<String> = None,
        /// Repetition penalty.
        repetition_penalty: Option<f64> = None,
        /// Stop token ids: the output ends at the first of them.
        stop_token_ids: Option<Vec<i64>> = None,
        /// The regular expressions that end the output.
        stop_regex: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Whether the output keeps the stop string that ended it.
        no_stop_trim: bool = false,
        /// Whether generation continues past the end-of-sequence token.
        ignore_eos: bool = false,
        /// Whether the model continues the last message instead of starting a new one.
        continue_final_message: bool = false,
        /// Whether to omit special tokens from the text.
        skip_special_tokens: bool = true,
        /// Name of the LoRA adapter that handles the request.
        lora_path: Option<Value> [NULLABLE_STRINGS_SCHEMA] = None,
        /// Whether reasoning is returned apart from the content.
        separate_reasoning: bool = true,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
        /// Host of the bootstrap server of the prefill server.
        bootstrap_host: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Port of the bootstrap server of the prefill server.
        bootstrap_port: Option<Value> [Schema::Nullable(&BOOTSTRAP_PORTS_SCHEMA)] = None,
        /// Number of the request, which identifies it on both servers of a prefill/decode pair.
        bootstrap_room: Option<Value> [Schema::Nullable(&BOOTSTRAP_PORTS_SCHEMA)] = None,
        /// The data-parallel rank of the prefill server that computes the prompt.
        disagg_prefill_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request.
        routed_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request; former name of `routed_dp_rank`.
        data_parallel_rank: Option<i64> = None,
        /// Id of the request.
        rid: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Salt of the prefix cache; only requests with equal salts share cached prefixes.
        cache_salt: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Scheduling priority of the request.
        priority: Option<i64> = None,
    }
}

/// Mirrors SGLang's `set_tool_choice_default`: a missing `tool_choice` becomes `auto`, or `none`
/// without tools.
fn set_tool_choice(body: &mut Cow<'_, Map<String, Value>>) -> Result<(), ValidatorError> {
    let is_absent = |name: &str| body.get(name).is_none_or(Value::is_null);
    if is_absent("tool_choice") {
        let choice = if is_absent("tools") { "none" } else { "auto" };
        body.to_mut().insert("tool_choice".to_owned(), choice.into());
    }
    Ok(())
}

/// Mirrors SGLang's `set_json_schema`: moves `schema` of a response format to its member
/// `json_schema`.
fn set_json_schema(body: &mut Cow<'_, Map<String, Value>>) -> Result<(), ValidatorError> {
    let format = match body.get("response_format") {
        Some(Value::Object(format)) => format,
        Some(other) if PythonValue::from_json_value(other).is_truthy() => {
            return Err(ValidatorError::Fault(super::unhandled_exception_fault()));
        }
        _ => return Ok(()),
    };
    let is_filled = |value: &Value| value.as_object().is_some_and(|map| !map.is_empty());
    let schema = format.get("schema").filter(|schema| is_filled(schema));
    let is_set = format.get("json_schema").is_some_and(is_filled);
    let is_of_schema = format.get("type").and_then(Value::as_str) == Some("json_schema");
    let Some(schema) = schema.filter(|_| is_of_schema && !is_set) else {
        return Ok(());
    };
    let name = schema.get("title").cloned().unwrap_or_else(|| "Schema".into());
    let mut format = format.clone();
    format.insert("json_schema".to_owned(), json!({"name": name, "schema": schema}));
    format.remove("schema");
    body.to_mut().insert("response_format".to_owned(), format.into());
    Ok(())
}

/// The reasoning effort that SGLang accepts and vLLM does not.
const FURTHER_EFFORT: &str = "ultra";

impl SglangChatRequest {
    /// Runs the checks of a chat request that SGLang makes after schema validation;
    /// `context_length` is the value of the command-line flag.
    ///
    /// # Errors
    /// A 400 in SGLang's words.
    pub fn validate_chat_request(
        &self,
        limits: &ServerLimits,
        context_length: Option<u32>,
    ) -> Result<(), Fault> {
        let fail = |text: String| Err(Fault::bad_request(text));
        if self.messages.is_empty() {
            return fail("Messages cannot be empty.".to_owned());
        }
        let kwargs = self.chat_template_kwargs.as_ref();
        if kwargs.is_some_and(|map| map.contains_key("chat_template"))
            && !limits.trust_request_chat_template
        {
            return fail(
                "Request-supplied chat_template is not allowed. Start the server with \
                 --trust-request-chat-template to permit it."
                    .to_owned(),
            );
        }
        self.validate_tool_choice()?;
        self.validate_tools()?;
        let limit = self.output_token_limit().unwrap_or(0);
        if let Some(context_length) = context_length.filter(|most| limit > i64::from(*most)) {
            return fail(format!(
                "max_completion_tokens is too large: {limit}.This model supports at most \
                 {context_length} completion tokens."
            ));
        }
        if !matches!(&self.return_hidden_states, None | Some(Value::Null | Value::Bool(false))) {
            return fail(HIDDEN_STATES_DISABLED_MESSAGE.to_owned());
        }
        if let Err(missing) = response_format_constraint(self.response_format.as_ref()) {
            return Err(Fault { error_type: ErrorType::BadRequest, ..missing });
        }
        self.validate_stream()
    }

    /// Checks `tool_choice` against the tools of the request, as SGLang's `_validate_request` does.
    fn validate_tool_choice(&self) -> Result<(), Fault> {
        let tools = self.tools.as_deref().unwrap_or_default();
        let text = match &self.tool_choice {
            Some(Value::String(choice)) if choice == "required" && tools.is_empty() => {
                "Tools cannot be empty if tool choice is set to required.".to_owned()
            }
            Some(Value::Object(_)) if tools.is_empty() => {
                "Tools cannot be empty if tool choice is set to a specific tool.".to_owned()
            }
            Some(choice @ Value::Object(_)) => {
                let name = choice.pointer("/function/name").and_then(Value::as_str);
                let name_of = |tool: &Value| {
                    tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned)
                };
                if tools.iter().any(|tool| name_of(tool).as_deref() == name) {
                    return Ok(());
                }
                format!("Tool '{}' not found in tools list.", name.unwrap_or("None"))
            }
            _ => return Ok(()),
        };
        Err(Fault::bad_request(text))
    }

    /// Checks the type of the parameters of each tool, as SGLang does; the error has only the first
    /// line of SGLang's text.
    fn validate_tools(&self) -> Result<(), Fault> {
        for (at, tool) in self.tools.iter().flatten().enumerate() {
            let parameters = tool.pointer("/function/parameters").unwrap_or(&Value::Null);
            if !matches!(parameters, Value::Null | Value::Bool(_) | Value::Object(_)) {
                let shown = python::python_repr(parameters);
                return Err(Fault::bad_request(format!(
                    "Tool {at} function has invalid 'parameters' schema: {shown} is not of type \
                     'object', 'boolean'"
                )));
            }
            if let Some(unknown) = unknown_schema_type(parameters) {
                let shown = python::python_repr(unknown);
                return Err(Fault::bad_request(format!(
                    "Tool {at} function has invalid 'parameters' schema: {shown} is not valid \
                     under any of the given schemas"
                )));
            }
        }
        Ok(())
    }

    /// Rejects request members that SGLang does not support for streams.
    fn validate_stream(&self) -> Result<(), Fault> {
        if !self.stream {
            return Ok(());
        }
        let text = if self.return_prompt_token_ids {
            "return_prompt_token_ids is not supported with streaming. Please set stream=false when \
             using return_prompt_token_ids=true."
        } else if self.return_token_ids {
            "return_token_ids is not supported with streaming on /v1/chat/completions. Please set \
             stream=false when using return_token_ids=true."
        } else if self.return_meta_info {
            "return_meta_info is not supported with streaming. Please set stream=false when using \
             return_meta_info=true."
        } else {
            return Ok(());
        };
        Err(Fault::new(400, ErrorType::BadRequestName, text))
    }

    /// Returns the maximum number of output tokens; a `max_completion_tokens` of zero is treated as
    /// absent.
    pub fn output_token_limit(&self) -> Option<i64> {
        self.max_completion_tokens.filter(|limit| *limit != 0).or(self.max_tokens)
    }

    /// Returns the id of the request.
    ///
    /// # Errors
    /// SGLang's 500 for a list of ids, which only requests with several outputs may have.
    pub fn single_request_id(&self) -> Result<Option<&Value>, Fault> {
        match &self.rid {
            Some(Value::Array(_)) if self.n == 1 => Err(unhashable_rid_fault()),
            rid => Ok(rid.as_ref()),
        }
    }

    /// Returns the type of the first image, video or audio part in the messages.
    pub fn first_media_part_type(&self) -> Option<&str> {
        let parts = self.messages.iter().filter_map(|message| message.get("content")?.as_array());
        let types = parts.flatten().filter_map(|part| part.get("type")?.as_str());
        let mut media =
            types.filter(|kind| matches!(*kind, "image_url" | "video_url" | "audio_url"));
        media.next()
    }

    /// Returns the messages for the chat template: null content becomes a text, and a last
    /// assistant message becomes a user message unless the model continues it.
    ///
    /// Source: SGLang 0.5.23 `serving_chat.py`, `_handle_last_assistant_message`.
    fn template_messages(&self) -> Vec<Value> {
        let mut messages: Vec<Value> =
            self.messages.iter().cloned().map(lowercase_role).map(with_content).collect();
        if !self.continue_final_message
            && let Some(last) = messages.last_mut().filter(|last| is_continuable(last))
        {
            *last = json!({"role": "user", "content": last["content"].take()});
        }
        messages
    }

    /// Checks that the arguments of earlier tool calls are JSON objects.
    ///
    /// Source: SGLang 0.5.23 `serving_chat.py`, `parse_tool_call_arguments`.
    fn check_call_arguments(&self) -> Result<(), Fault> {
        let is_of_model = |message: &&Value| {
            message["role"].as_str().is_some_and(|role| role.eq_ignore_ascii_case("assistant"))
        };
        let calls = self.messages.iter().filter(is_of_model);
        let calls = calls.filter_map(|message| message.get("tool_calls")?.as_array()).flatten();
        let arguments = calls.filter_map(|call| call.pointer("/function/arguments")?.as_str());
        for text in arguments.filter(|text| !text.is_empty()) {
            let reason = match orjson_loads(text.as_bytes()) {
                Ok(Value::Object(_)) => continue,
                Ok(_) => "a JSON object",
                Err(_) => "valid JSON",
            };
            return Err(Fault::new(
                400,
                ErrorType::BadRequestName,
                format!("Assistant tool call function.arguments must be {reason}."),
            ));
        }
        Ok(())
    }

    /// Reads the messages and tools of the chat request.
    ///
    /// # Errors
    /// A 400 for a message or tool that does not match the schema.
    pub fn read_conversation(
        &self,
        calls: ToolCallRendering,
        bounds: &RequestBounds,
    ) -> Result<ChatRequest, Fault> {
        self.check_call_arguments()?;
        let messages = self.template_messages();
        let continues = self.continue_final_message && messages.last().is_some_and(is_continuable);
        let mut body = json!({
            "messages": messages,
            "continue_final_message": continues,
            "add_generation_prompt": !continues,
            "parallel_tool_calls": self.parallel_tool_calls,
        });
        if let Some(kwargs) = &self.chat_template_kwargs {
            body["chat_template_kwargs"] = kwargs.clone().into();
        }
        match self.reasoning_effort.as_ref().and_then(Value::as_str) {
            Some(FURTHER_EFFORT) => body["reasoning_effort"] = "max".into(),
            Some(effort) => body["reasoning_effort"] = effort.into(),
            None => {}
        }
        let is_none = self.tool_choice.as_ref().and_then(Value::as_str) == Some("none");
        if let Some(tools) = self.tools.as_ref().filter(|tools| !tools.is_empty() && !is_none) {
            body["tools"] = tools.iter().map(plain_tool).collect();
            // Without a parser the text of the reply contains no calls.
            body["tool_choice"] = match &self.tool_choice {
                _ if calls == ToolCallRendering::Text => "none".into(),
                None | Some(Value::Null) => "auto".into(),
                Some(choice) => choice.clone(),
            };
        }
        ChatRequest::parse_chat_request(&body, bounds)
    }

    /// Returns the JSON Schema of a reply text with the tool calls that the request forces.
    ///
    /// Source: SGLang 0.5.23 `function_call/utils.py`, `get_json_schema_constraint`.
    fn forced_calls_schema(&self) -> Option<Value> {
        let tools = self.tools.as_deref().unwrap_or_default();
        let schema = |tool: &Value| {
            let function = tool.get("function")?;
            let empty = || json!({"type": "object", "properties": {}});
            let parameters = function.get("parameters").filter(|schema| !schema.is_null());
            Some(json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": [function.get("name")?]},
                    "parameters": parameters.cloned().unwrap_or_else(empty),
                },
                "required": ["name", "parameters"],
            }))
        };
        let items = match self.tool_choice.as_ref()? {
            Value::String(choice) if choice == "required" => {
                json!({"anyOf": tools.iter().filter_map(schema).collect::<Vec<_>>()})
            }
            choice => {
                let name = choice.pointer("/function/name")?;
                schema(tools.iter().find(|tool| tool.pointer("/function/name") == Some(name))?)?
            }
        };
        let mut schema = json!({"type": "array", "minItems": 1, "items": items});
        if !self.parallel_tool_calls {
            schema["maxItems"] = 1.into();
        }
        Some(schema)
    }

    /// Returns the sampling parameters of the chat request as `/generate` takes them. Without a
    /// tool parser, forced tool calls are a text that follows a JSON Schema.
    ///
    /// # Errors
    /// A 400 for a response format without schema.
    pub fn sampling_params(&self, calls: ToolCallRendering) -> Result<Value, Fault> {
        let mut params = native_sampling_params!(self, self.output_token_limit(), Value::Null);
        if let Some((name, constraint)) = response_format_constraint(self.response_format.as_ref())?
        {
            params[name] = constraint.into();
        }
        let forced = self.forced_calls_schema().filter(|_| calls == ToolCallRendering::Text);
        if let Some(schema) = forced {
            params["json_schema"] = schema.to_string().into();
        }
        Ok(params)
    }
}

/// Returns the error for a list of request ids (`rid`) in a request with only one output.
pub(super) fn unhashable_rid_fault() -> Fault {
    let text = "Internal server error: unhashable type: 'list'";
    Fault::new(500, ErrorType::InternalServer, text)
}

/// Returns whether the model may continue a message: an assistant message with a text.
fn is_continuable(message: &Value) -> bool {
    message["role"] == "assistant" && message["content"].is_string()
}

/// Returns a tool as chat templates expect it: with `type`, and without the member `key_order` that
/// validation added.
fn plain_tool(tool: &Value) -> Value {
    let mut tool = tool.clone();
    tool["type"] = "function".into();
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        function.shift_remove(chat_schema::FUNCTION_KEY_ORDER_MEMBER);
    }
    tool
}

/// Sets the content of a message without content to an empty text.
fn with_content(mut message: Value) -> Value {
    if message.get("content").is_none_or(Value::is_null) {
        message["content"] = "".into();
    }
    message
}

/// Writes the role of a message in lower case, as SGLang does.
fn lowercase_role(mut message: Value) -> Value {
    if let Some(Value::String(role)) = message.get_mut("role") {
        *role = role.to_lowercase();
    }
    message
}

/// Returns name and value of the sampling parameter for a response format; `None` for plain text.
pub(super) fn response_format_constraint(
    format: Option<&Map<String, Value>>,
) -> Result<Option<(&'static str, String)>, Fault> {
    let Some(format) = format else {
        return Ok(None);
    };
    match format.get("type").and_then(Value::as_str) {
        Some("json_schema") => {
            let nested = format.get("json_schema").and_then(|of| of.get("schema"));
            match nested.or(format.get("schema")).filter(|schema| !schema.is_null()) {
                Some(schema) => Ok(Some(("json_schema", schema.to_string()))),
                None => Err(Fault::new(
                    400,
                    ErrorType::BadRequestName,
                    "schema_ is required for json_schema response format request.",
                )),
            }
        }
        Some("json_object") => Ok(Some(("json_schema", "{\"type\": \"object\"}".to_owned()))),
        Some("structural_tag") => {
            Ok(Some(("structural_tag", Value::Object(format.clone()).to_string())))
        }
        _ => Ok(None),
    }
}

/// Returns the first value of `type` in a JSON Schema that is not a type of JSON Schema.
fn unknown_schema_type(schema: &Value) -> Option<&Value> {
    const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
    let given = schema.get("type").filter(|kind| match kind {
        Value::String(kind) => !TYPES.contains(&kind.as_str()),
        Value::Array(_) => false,
        _ => true,
    });
    let properties = schema.get("properties").and_then(Value::as_object);
    let parts = properties.into_iter().flat_map(Map::values).chain(schema.get("items"));
    given.or_else(|| parts.filter(|part| part.is_object()).find_map(unknown_schema_type))
}
