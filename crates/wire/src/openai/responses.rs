//! Body of `POST /v1/responses`.
//!
//! Source: `vllm/entrypoints/openai/responses/protocol.py`, `ResponsesRequest`.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::PythonValue;

use super::responses_schema;
use super::sampling_fields::{
    CACHE_SALT_SCHEMA, ExtraSamplingArgs, LogitBias, MM_PAYLOAD_SCHEMA, StopStrings,
    TOP_LOGPROBS_SCHEMA,
};
use super::shared_request_fields::{
    self, JsonBody, StructuredOutputs, ValidatorResult, is_truthy_member, reject_parameter,
    reject_request,
};
use crate::body;
use crate::fault::Fault;
use crate::schema::{ANY_LENGTH, RequestField, STR, Schema, float_between_schema, wire_model};

/// Schema of the request field `stop`; an empty text means none.
const STOP: Schema = Schema::Before(
    |value| Ok((value == "").then(|| Value::Array(Vec::new()))),
    &StopStrings::SCHEMA,
);

/// Input of a request to `/v1/responses`.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponsesInput {
    /// Input as the text of one user message.
    Text(String),
    /// Input as a list of items (messages, calls, results), kept as sent.
    Items(Vec<Value>),
}

impl RequestField for ResponsesInput {
    const SCHEMA: Schema = Schema::Union(&[
        STR,
        Schema::List(
            &Schema::Before(default_input_image_details, &responses_schema::INPUT_ITEM),
            ANY_LENGTH,
        ),
    ]);

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Array(items) => Some(Self::Items(items.clone())),
            _ => None,
        }
    }
}

wire_model! {
    default
    /// Prompt-caching options, returned in the response, without effect.
    pub struct PromptCacheOptions: Wrapped "PromptCacheOptionsParam" {
        /// Mode of prompt caching: `implicit` or `explicit`.
        mode: String [Schema::Literal(&["implicit", "explicit"])] = "implicit".to_owned(),
        /// Lifetime of the cached prompt; only `30m` is allowed.
        ttl: String [Schema::Literal(&["30m"])] = "30m".to_owned(),
        /// Id of an earlier response with which prompt caching is compared.
        comparison_response_id: Option<String> = None,
        /// Whether to fill the prompt cache ahead of requests.
        prewarm: Option<bool> = None,
    }
}

const INCLUDE_SCHEMA: Schema = Schema::Nullable(&Schema::List(
    &Schema::Literal(&[
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
    ]),
    ANY_LENGTH,
));

const PENALTY_SCHEMA: Schema = Schema::Nullable(&float_between_schema(-2.0, 2.0));

const CACHE_RETENTION_SCHEMA: Schema = Schema::Before(
    |value| Ok((value == "in-memory").then(|| Value::from("in_memory"))),
    &Schema::Nullable(&Schema::Literal(&["in_memory", "24h"])),
);

wire_model! {
    /// A request to `/v1/responses`. Absent fields have vLLM's defaults; unknown ones are ignored.
    pub struct ResponsesRequest: Wrapped "ResponsesRequest" before [
        check_tool_usage,
        check_custom_tool_format,
        parse_input_items,
        validate_prompt,
        validate_background,
        shared_request_fields::check_cache_salt_support,
        shared_request_fields::apply_return_mm_kwargs_alias,
    ] {
        /// Whether the server responds immediately and generates in the background.
        background: Option<bool> = Some(false),
        /// Additional data to return, such as `message.output_text.logprobs`.
        include: Option<Vec<String>> [INCLUDE_SCHEMA] = None,
        /// Input for the model: a text or a list of items.
        input: ResponsesInput,
        /// The system prompt, before the input.
        instructions: Option<String> = None,
        /// Maximum number of tokens to generate.
        max_output_tokens: Option<i128> = None,
        /// Maximum number of built-in tool calls.
        max_tool_calls: Option<i128> = None,
        /// Metadata of the client, returned unchanged in the response.
        metadata: Option<IndexMap<String, String>> = None,
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Values added to the logits of token ids before sampling, -100 to 100.
        logit_bias: Option<LogitBias> = None,
        /// Whether a reply may contain several tool calls.
        parallel_tool_calls: Option<bool> = Some(true),
        /// Id of the previous response in the conversation.
        previous_response_id: Option<String> = None,
        /// Stored prompt template; vLLM rejects any value but null.
        prompt: Option<Value> [responses_schema::STORED_PROMPT] = None,
        /// Reasoning options of the request, as sent.
        reasoning: Option<Value> [responses_schema::REASONING_CONFIG] = None,
        /// Whether the response includes the model's reasoning.
        include_reasoning: bool = true,
        /// Service tier, returned unchanged in the response.
        service_tier: String [Schema::Literal(&[
            "auto", "default", "flex", "scale", "priority",
        ])] = "auto".to_owned(),
        /// Whether to store the response for later retrieval.
        store: Option<bool> = Some(true),
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: Option<f64> = None,
        /// Text format options of the reply, as sent.
        text: Option<Value> [responses_schema::TEXT_CONFIG] = None,
        /// Rule for tool calls, as sent; `none` without tools.
        tool_choice: Value [responses_schema::TOOL_CHOICE] = Value::from("auto"),
        /// The tools that the model may call, as sent.
        tools: Vec<Value> [responses_schema::TOOLS] = Vec::new(),
        /// Number of log probabilities per output token, if `include` requests them.
        top_logprobs: i128 [TOP_LOGPROBS_SCHEMA] = 0,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Minimum probability of a sampled token relative to the most likely one, 0 to 1.
        min_p: Option<f64> = None,
        /// Truncation of inputs beyond the context length: `auto` or `disabled`.
        truncation: Option<String> [Schema::Nullable(&Schema::Literal(&["auto", "disabled"]))] =
            Some("disabled".to_owned()),
        /// Id of the end user, returned unchanged in the response.
        user: Option<String> = None,
        /// Whether to omit special tokens from the output text; null uses the server's default.
        skip_special_tokens: Option<bool> = None,
        /// Whether the output text has spaces between special tokens.
        spaces_between_special_tokens: bool = true,
        /// Whether the output includes the stop string that ended it.
        include_stop_str_in_output: bool = false,
        /// Presence penalty, -2 to 2.
        presence_penalty: Option<f64> [PENALTY_SCHEMA] = None,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> [PENALTY_SCHEMA] = None,
        /// Key of the prompt cache, returned unchanged in the response.
        prompt_cache_key: Option<String> = None,
        /// Prompt-caching options, returned unchanged in the response.
        prompt_cache_options: Option<PromptCacheOptions> = None,
        /// Retention of the prompt cache, `in_memory` or `24h`; returned unchanged in the response.
        prompt_cache_retention: Option<String> [CACHE_RETENTION_SCHEMA] = None,
        /// Safety identifier of the end user, returned unchanged in the response.
        safety_identifier: Option<String> = None,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Id of the response; generated when absent.
        request_id: Option<String> [STR] = None,
        /// Id of the client's session.
        session_id: Option<String> = None,
        /// Arguments for decoding images, audio and video, by modality.
        media_io_kwargs: Option<IndexMap<String, Map<String, Value>>> = None,
        /// Arguments for the model's multimodal processor.
        mm_processor_kwargs: Option<Map<String, Value>> = None,
        /// Scheduling priority of the request; lower values are scheduled first.
        priority: i64 = 0,
        /// Form of images, audio and video in a render response: `tensors` or `none`.
        mm_payload: String [MM_PAYLOAD_SCHEMA] = "tensors".to_owned(),
        /// Deprecated form of `mm_payload`: false means `none`.
        return_mm_kwargs: Option<bool> = None,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> [CACHE_SALT_SCHEMA] = None,
        /// Whether the response includes the rendered input and output messages.
        enable_response_messages: bool = false,
        /// Messages of earlier turns of the conversation, as sent.
        previous_input_messages: Option<Vec<Value>> [responses_schema::PREVIOUS_INPUT_MESSAGES] =
            None,
        /// Structured-output constraint on the generated text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: Option<f64> = None,
        /// Seed of the sampler; -1 for none.
        seed: Option<i64> = None,
        /// Stop strings: the output ends before the first of them.
        stop: Option<StopStrings> [Schema::Nullable(&STOP)] = Some(StopStrings::default()),
        /// Stop token ids: the output ends at the first of them.
        stop_token_ids: Option<Vec<i128>> = Some(Vec::new()),
        /// Whether generation continues past the end-of-sequence token.
        ignore_eos: bool = false,
        /// Custom sampling arguments for vLLM extensions (`vllm_xargs`).
        vllm_xargs: Option<ExtraSamplingArgs> = None,
        /// Parameters for the KV connector, such as the blocks of a remote prefill server.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// Parameters for the encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
    }
}

/// Checks that a tool choice comes with tools, and that a named tool is one of them.
///
/// Source: vLLM's `check_tool_usage`.
fn check_tool_usage(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let missing = || {
        Fault::bad_parameter(
            "Tool choice 'function' not found in 'tools' parameter.",
            "tool_choice",
        )
    };
    let count = match body.get("tools").map(PythonValue::from_json_value) {
        None | Some(PythonValue::None) => 0,
        Some(PythonValue::List(tools)) => tools.len(),
        Some(PythonValue::Dict(tools)) => tools.len(),
        Some(PythonValue::Str(tools)) => tools.len(),
        Some(other) => {
            let name = other.python_type_name();
            return reject_request(format!("object of type '{name}' has no len()"));
        }
    };
    let choice = body.get("tool_choice");
    let named = choice.and_then(Value::as_object).filter(|choice| {
        matches!(choice.get("type").and_then(Value::as_str), Some("function" | "custom"))
    });
    if count == 0 {
        match choice.map(PythonValue::from_json_value) {
            None | Some(PythonValue::Str("auto" | "none")) => {
                body.to_mut().insert("tool_choice".to_owned(), Value::from("none"));
            }
            Some(PythonValue::Str("required")) => {
                return reject_parameter(
                    "Tool choice 'required' must be specified with 'tools' parameter.",
                    "tool_choice",
                );
            }
            _ if named.is_some() => return Err(missing().into()),
            _ => {}
        }
        return Ok(());
    }
    let Some(named) = named else { return Ok(()) };
    if !is_truthy_member(named, "name") {
        return Err(missing().into());
    }
    let tools = body.get("tools").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if let Some(name) = resolve_named_tool_choice(&named["name"], tools)?
        && let Some(Value::Object(choice)) = body.to_mut().get_mut("tool_choice")
    {
        choice.insert("name".to_owned(), Value::from(name));
    }
    Ok(())
}

/// Returns the flat `namespace__name` of a tool that the request names by its local name; `None`
/// leaves the name unchanged.
///
/// Source: vLLM's `_resolve_named_tool_choice`.
fn resolve_named_tool_choice(name: &Value, tools: &[Value]) -> Result<Option<String>, Fault> {
    let mut exact = Vec::new();
    let mut flat = Vec::new();
    let text = |tool: &Value, key: &str| Some(tool.get(key)?.as_str()?.to_owned());
    for tool in tools {
        if tool.get("type").is_none_or(|kind| kind != "namespace") {
            exact.extend(text(tool, "name"));
            continue;
        }
        let (Some(space), Some(Value::Array(inner))) = (text(tool, "name"), tool.get("tools"))
        else {
            return Ok(None);
        };
        for local in inner.iter().filter_map(|tool| text(tool, "name")) {
            let full = format!("{space}__{local}");
            exact.push(full.clone());
            flat.push((local, full));
        }
    }
    let wanted = match PythonValue::from_json_value(name) {
        PythonValue::Str(name) => name,
        PythonValue::List(_) => return Err(Fault::bad_request("unhashable type: 'list'")),
        PythonValue::Dict(_) => return Err(Fault::bad_request("unhashable type: 'dict'")),
        _ => "",
    };
    if exact.iter().any(|name| name == wanted) {
        return Ok(None);
    }
    let found: Vec<String> =
        flat.into_iter().filter(|(local, _)| local == wanted).map(|(_, full)| full).collect();
    match found.as_slice() {
        [] => Err(Fault::bad_parameter(
            "Tool choice 'function' not found in 'tools' parameter.",
            "tool_choice",
        )),
        [one] => Ok(Some(one.clone())),
        many => Err(Fault::bad_parameter(
            format_args!(
                "Tool choice '{wanted}' is ambiguous: it is defined in more than one namespace \
                 ({}). Select it by its full '<namespace>__<name>' name.",
                many.join(", ")
            ),
            "tool_choice",
        )),
    }
}

/// Rejects custom tools with a grammar format.
///
/// Source: vLLM's `check_custom_tool_format`.
fn check_custom_tool_format(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let is = |value: &Value, kind: &str| value.get("type").is_some_and(|text| text == kind);
    let tools = body.get("tools").and_then(Value::as_array);
    let grammar = tools.into_iter().flatten().any(|tool| {
        is(tool, "custom") && tool.get("format").is_some_and(|format| is(format, "grammar"))
    });
    if grammar {
        return reject_parameter(
            "Custom tools with a grammar format are not supported; only free-form text custom \
             tools are accepted.",
            "tools",
        );
    }
    Ok(())
}

/// Replaces an `input` that is an object by the list of its keys, as Python's iteration does. Adds
/// to items of earlier responses the members that clients may omit.
///
/// Source: vLLM's `input_item_parsing`.
fn parse_input_items(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if body.get("input").is_none_or(Value::is_string) {
        return Ok(());
    }
    let Some(input) = body.to_mut().get_mut("input") else {
        return Ok(());
    };
    if let PythonValue::Dict(map) = PythonValue::from_json_value(input) {
        *input = map.keys().map(|key| Value::from(key.as_str())).collect();
    }
    for item in input.as_array_mut().into_iter().flatten() {
        let Value::Object(map) = &*item else { continue };
        let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
        let completed = match kind {
            "reasoning" if !map.contains_key("id") => with_text_member(map, "id", "rs_"),
            "message" if map.get("role").is_some_and(|role| role == "assistant") => {
                match to_output_message(map) {
                    Some(message) => message,
                    None => continue,
                }
            }
            _ => continue,
        };
        let class = if kind == "reasoning" {
            &responses_schema::REASONING_ITEM
        } else {
            &responses_schema::OUTPUT_MESSAGE
        };
        let fits = body::matches_schema(class, &completed);
        // Upstream keeps the id that it assigned to invalid reasoning.
        if fits || kind == "reasoning" {
            *item = completed;
        }
    }
    Ok(())
}

fn with_text_member(map: &JsonBody, key: &str, value: &str) -> Value {
    let mut map = map.clone();
    map.insert(key.to_owned(), Value::from(value));
    Value::Object(map)
}

/// Returns an assistant message of the input with the members that it has in an earlier response;
/// `None` if the message's content is a plain text.
fn to_output_message(map: &JsonBody) -> Option<Value> {
    let content = map.get("content")?.as_array()?;
    let mut message = map.clone();
    for (key, value) in [("id", "msg_"), ("status", "completed")] {
        if !message.contains_key(key) {
            message.insert(key.to_owned(), Value::from(value));
        }
    }
    let parts = content.iter().map(|part| match part {
        Value::Object(part)
            if part.get("type").is_some_and(|kind| kind == "output_text")
                && !part.contains_key("annotations") =>
        {
            let mut part = part.clone();
            part.insert("annotations".to_owned(), Value::Array(Vec::new()));
            Value::Object(part)
        }
        part => part.clone(),
    });
    message.insert("content".to_owned(), parts.collect());
    Some(Value::Object(message))
}

/// Sets the `detail` of input images that have none to `auto`.
///
/// Source: vLLM's `_default_input_image_details`.
fn default_input_image_details(item: &Value) -> Result<Option<Value>, Fault> {
    let lacks = |part: &Value| {
        part.get("type").is_some_and(|kind| kind == "input_image") && part.get("detail").is_none()
    };
    let Some(Value::Array(content)) = item.get("content") else {
        return Ok(None);
    };
    if !content.iter().any(lacks) {
        return Ok(None);
    }
    let mut item = item.clone();
    if let Some(Value::Array(content)) = item.get_mut("content") {
        for part in content.iter_mut().filter(|part| lacks(part)) {
            part["detail"] = Value::from("auto");
        }
    }
    Ok(Some(item))
}

/// Rejects prompt templates, which vLLM does not support.
///
/// Source: vLLM's `validate_prompt`.
fn validate_prompt(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if shared_request_fields::non_null_member(body, "prompt").is_some() {
        return reject_parameter("prompt template is not supported", "prompt");
    }
    Ok(())
}

/// Checks that a background response is also stored.
///
/// Source: vLLM's `validate_background`.
fn validate_background(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let stored = !body.contains_key("store") || is_truthy_member(body, "store");
    if is_truthy_member(body, "background") && !stored {
        return reject_parameter("background can only be used when `store` is true", "background");
    }
    Ok(())
}
