//! Request of `POST /v1/chat/completions`.
//!
//! Source: `vllm/entrypoints/openai/chat_completion/protocol.py`, `ChatCompletionRequest`.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use super::message_schema;
use super::request_message::RequestMessage;
use super::sampling_fields::{
    CACHE_SALT_SCHEMA, ExtraSamplingArgs, LogitBias, MM_PAYLOAD_SCHEMA,
    NULLABLE_POSITIVE_INT_SCHEMA, RepetitionDetection, StopStrings, THINKING_TOKEN_BUDGET_SCHEMA,
    TOP_LOGPROBS_SCHEMA, TRUNCATE_PROMPT_TOKENS_SCHEMA, TRUNCATION_SIDE_SCHEMA,
};
use super::shared_request_fields::{
    self, ChatTool, ChatToolChoice, JsonBody, ResponseFormat, StreamOptions, StructuredOutputs,
    ValidatorResult, body_member, is_truthy_member, non_null_member, not_iterable_fault,
    reject_parameter, reject_request,
};
use crate::body;
use crate::bounds::RequestBounds;
use crate::fault::Fault;
use crate::schema::{Schema, ValidatorError, wire_model};

/// Schema of the request field `reasoning_effort`.
pub(crate) const REASONING_EFFORT_SCHEMA: Schema = Schema::Nullable(&Schema::Literal(&[
    "none", "minimal", "low", "medium", "high", "xhigh", "max",
]));

wire_model! {
    /// A chat completion request. Absent fields have vLLM's defaults; unknown ones are ignored.
    pub struct ChatRequest: Wrapped "ChatCompletionRequest" before [
        check_messages_iterable,
        drop_prompt_token_ids_with_media,
        shared_request_fields::check_generation_prompt,
        check_tool_usage,
        check_structured_outputs_count,
        check_logprobs,
        shared_request_fields::validate_stream_options,
        shared_request_fields::validate_response_format,
        normalize_messages,
        shared_request_fields::check_cache_salt_support,
        shared_request_fields::apply_return_mm_kwargs_alias,
    ] after check_tool_calls {
        /// Messages of the conversation, oldest first.
        messages: Vec<RequestMessage>,
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> = None,
        /// Values added to the logits of token ids before sampling, -100 to 100.
        logit_bias: Option<LogitBias> = None,
        /// Whether to return log probabilities of the output tokens.
        logprobs: Option<bool> = Some(false),
        /// Number of log probabilities to return per output token; -1 for the whole vocabulary.
        top_logprobs: i128 [TOP_LOGPROBS_SCHEMA] = 0,
        /// Maximum number of tokens to generate; deprecated name.
        max_tokens: Option<i128> = None,
        /// Maximum number of tokens to generate; overrides `max_tokens`.
        max_completion_tokens: Option<i128> = None,
        /// Number of outputs (choices) per prompt.
        n: Option<i128> = Some(1),
        /// Presence penalty, -2 to 2.
        presence_penalty: Option<f64> = None,
        /// Required format of the model's reply: text, JSON or a structural tag.
        response_format: Option<ResponseFormat> = None,
        /// Seed of the sampler; -1 for none.
        seed: Option<i64> = None,
        /// Stop strings: the output ends before the first of them.
        stop: Option<StopStrings> = Some(StopStrings::default()),
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// Options for token usage in a streamed response.
        stream_options: Option<StreamOptions> = None,
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: Option<f64> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// The functions (tools) that the model may call.
        tools: Option<Vec<ChatTool>> = None,
        /// Rule for tool calls; `auto` if there are tools and the key is absent.
        tool_choice: Option<ChatToolChoice> = Some(ChatToolChoice::None),
        /// Reasoning effort of the model, such as `low` or `high`.
        reasoning_effort: Option<String> [REASONING_EFFORT_SCHEMA] = None,
        /// Maximum number of reasoning tokens to generate.
        thinking_token_budget: Option<i128> [THINKING_TOKEN_BUDGET_SCHEMA] = None,
        /// Whether the response includes the model's reasoning.
        include_reasoning: bool = true,
        /// Whether a reply may contain several tool calls.
        parallel_tool_calls: Option<bool> = Some(true),
        /// Id of the end user; ignored.
        user: Option<String> = None,
        /// Whether to use beam search instead of sampling.
        use_beam_search: bool = false,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Minimum probability of a sampled token relative to the most likely one, 0 to 1.
        min_p: Option<f64> = None,
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: Option<f64> = None,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Length penalty of beam search.
        length_penalty: f64 = 1.0,
        /// Stop token ids: the output ends at the first of them.
        stop_token_ids: Option<Vec<i128>> = Some(Vec::new()),
        /// Whether the output includes the stop string that ended it.
        include_stop_str_in_output: bool = false,
        /// Whether generation continues past the end-of-sequence token.
        ignore_eos: bool = false,
        /// Minimum number of output tokens before a stop condition applies.
        min_tokens: i128 = 0,
        /// Whether to omit special tokens from the output text; null uses the server's default.
        skip_special_tokens: Option<bool> = None,
        /// Whether the output text has spaces between special tokens.
        spaces_between_special_tokens: bool = true,
        /// Number of prompt tokens to keep when truncating; -1 for all that fit the context.
        truncate_prompt_tokens: Option<i64> [TRUNCATE_PROMPT_TOKENS_SCHEMA] = None,
        /// Side of the prompt to truncate: `left` or `right`.
        truncation_side: Option<String> [TRUNCATION_SIDE_SCHEMA] = None,
        /// Number of log probabilities to return per prompt token; -1 for the whole vocabulary.
        prompt_logprobs: Option<i128> = None,
        /// The token ids whose log probabilities are returned at every output position.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Allowed token ids: sampling considers only these.
        allowed_token_ids: Option<Vec<i128>> = None,
        /// Forbidden words: the output contains none of these strings.
        bad_words: Vec<String> = Vec::new(),
        /// Whether the reply starts with a copy of the last message.
        echo: bool = false,
        /// Whether the chat template ends the prompt with the start of an assistant message.
        add_generation_prompt: bool = true,
        /// Whether the model continues the last message instead of starting a new one.
        continue_final_message: bool = false,
        /// Whether the tokenizer adds special tokens to the templated prompt.
        add_special_tokens: bool = false,
        /// Documents passed to the chat template, for retrieval-augmented generation.
        documents: Option<Vec<indexmap::IndexMap<String, String>>> = None,
        /// Jinja chat template that replaces the model's own.
        chat_template: Option<String> = None,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
        /// Arguments for decoding images, audio and video, by modality.
        media_io_kwargs: Option<indexmap::IndexMap<String, Map<String, Value>>> = None,
        /// Arguments for the model's multimodal processor.
        mm_processor_kwargs: Option<Map<String, Value>> = None,
        /// Structured-output constraint on the generated text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Scheduling priority of the request; lower values are scheduled first.
        priority: i64 = 0,
        /// Id of the request, returned in the response; generated when absent.
        request_id: Option<String> [crate::schema::STR] = None,
        /// Id of the client's session.
        session_id: Option<String> = None,
        /// Whether log probabilities name tokens as `token_id:N` instead of their text.
        return_tokens_as_token_ids: Option<bool> = None,
        /// Whether to return the output's token ids in addition to its text.
        return_token_ids: Option<bool> = None,
        /// Whether each choice reports the versions of the model weights that produced it.
        return_weight_versions: bool = false,
        /// Number of leading prompt tokens to omit from the returned expert-routing data.
        routed_experts_prompt_start: i128 [crate::schema::int_at_least_schema(0)] = 0,
        /// Whether a render response includes the text offset of each prompt token.
        return_token_offsets: Option<bool> = Some(false),
        /// Whether the response includes the prompt text rendered by the chat template.
        return_prompt_text: Option<bool> = None,
        /// Form of images, audio and video in a render response: `tensors` or `none`.
        mm_payload: String [MM_PAYLOAD_SCHEMA] = "tensors".to_owned(),
        /// Deprecated form of `mm_payload`: false means `none`.
        return_mm_kwargs: Option<bool> = None,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> [CACHE_SALT_SCHEMA] = None,
        /// Parameters for the KV connector, such as the blocks of a remote prefill server.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// Parameters for the encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
        /// Custom sampling arguments for vLLM extensions (`vllm_xargs`).
        vllm_xargs: Option<ExtraSamplingArgs> = None,
        /// Settings of the detection of repetitions, which ends an output that repeats itself.
        repetition_detection: Option<RepetitionDetection> = None,
        /// Number of output tokens per chunk of a streamed response.
        stream_interval: Option<i128> [NULLABLE_POSITIVE_INT_SCHEMA] = None,
    }
}

impl ChatRequest {
    /// Validates and reads the request body, within the configured limits.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_chat_request(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        body::read_body_within_bounds(value, bounds)
    }
}

/// Checks each tool call of assistant messages, as vLLM's `_materialize_tool_calls_after` does.
fn check_tool_calls(body: &JsonBody) -> ValidatorResult {
    let messages = body_member(body, "messages").and_then(Value::as_array);
    for message in messages.into_iter().flatten().filter_map(Value::as_object) {
        if body_member(message, "role").and_then(Value::as_str) != Some("assistant") {
            continue;
        }
        let calls = body_member(message, "tool_calls").and_then(Value::as_array);
        for (index, call) in calls.into_iter().flatten().enumerate() {
            if body::best_union_branch(message_schema::TOOL_CALL_SCHEMAS, call).is_none() {
                let schema = &message_schema::TOOL_CALL_SCHEMA;
                return Err(ValidatorError::Item { index, schema, value: call.clone() });
            }
        }
    }
    Ok(())
}

/// Rejects a `messages` value that Python cannot iterate over.
///
/// vLLM's `check_system_message_content_type` only warns about content, but it iterates.
fn check_messages_iterable(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    match body_member(body, "messages").map(PythonValue::from_json_value) {
        None | Some(PythonValue::List(_) | PythonValue::Str(_) | PythonValue::Dict(_)) => Ok(()),
        Some(_) => Err(not_iterable_fault(&body["messages"]).into()),
    }
}

/// Removes `prompt_token_ids` from `kv_transfer_params` if a message has media.
///
/// Source: vLLM's `drop_prompt_token_ids_with_media`.
fn drop_prompt_token_ids_with_media(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let has_params = body_member(body, "kv_transfer_params").is_some();
    if has_params
        && let Some(Value::Array(messages)) = body_member(body, "messages")
        && messages.iter().any(has_media)
        && let Some(Value::Object(params)) = body.to_mut().get_mut("kv_transfer_params")
    {
        params.shift_remove("prompt_token_ids");
    }
    Ok(())
}

/// Returns whether a chat message has an image, audio or video part.
fn has_media(message: &Value) -> bool {
    let Some(Value::Array(parts)) = message.get("content") else {
        return false;
    };
    parts.iter().any(|part| match part {
        Value::Object(map) => !matches!(
            map.get("type").and_then(Value::as_str),
            Some("text" | "input_text" | "output_text" | "refusal" | "thinking")
        ),
        _ => false,
    })
}

/// Checks `tools` and `tool_choice` against each other, and defaults the choice to `auto`.
///
/// Source: vLLM's `check_tool_usage`.
fn check_tool_usage(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if body_member(body, "tools").is_some_and(|tools| tools.as_array().is_some_and(Vec::is_empty)) {
        return reject_parameter(
            "`tools` must not be an empty array. Either provide at least one tool or omit the \
             field entirely.",
            "tools",
        );
    }
    if body_member(body, "tool_choice").is_none() && is_truthy_member(body, "tools") {
        body.to_mut().insert("tool_choice".to_owned(), Value::from("auto"));
    }
    let Some(choice) = non_null_member(body, "tool_choice") else {
        return Ok(());
    };
    if choice == "none" {
        return Ok(());
    }
    let Some(tools) = non_null_member(body, "tools") else {
        return reject_parameter("When using `tool_choice`, `tools` must be set.", "tool_choice");
    };
    match PythonValue::from_json_value(choice) {
        PythonValue::Str("auto" | "required") => Ok(()),
        PythonValue::Dict(choice) => check_named_tool(choice, tools),
        _ => reject_parameter(
            format_args!(
                "Invalid value for `tool_choice`: {}! Only named tools, \"none\", \"auto\" or \
                 \"required\" are supported.",
                python::python_str(choice)
            ),
            "tool_choice",
        ),
    }
}

/// Checks a tool choice that is an object, as vLLM's `check_tool_usage` does.
fn check_named_tool(choice: &JsonBody, tools: &Value) -> ValidatorResult {
    const USAGE: &str = "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \
                         \"my_function\"}}`";

    let function = choice.get("function").unwrap_or(&Value::Null);
    let PythonValue::Dict(members) = PythonValue::from_json_value(function) else {
        return reject_parameter(
            format_args!(
                "Invalid value for `function`: `{}` in `tool_choice`! {USAGE}",
                python::python_str(function)
            ),
            "tool_choice.function",
        );
    };
    let Some(name) = members.get("name") else {
        return reject_parameter(
            format_args!("Expected field `name` in `function` in `tool_choice`! {USAGE}"),
            "tool_choice.function.name",
        );
    };
    if name.as_str().is_none_or(str::is_empty) {
        return reject_parameter(
            format_args!(
                "Invalid `name` in `function`: `{}` in `tool_choice`! {USAGE}",
                python::python_str(name)
            ),
            "tool_choice.function.name",
        );
    }
    let found = match PythonValue::from_json_value(tools) {
        PythonValue::List(tools) => {
            let mut found = false;
            for tool in tools {
                if python_subscript(python_subscript(tool, "function")?, "name")? == name {
                    found = true;
                    break;
                }
            }
            found
        }
        PythonValue::Str("") => false,
        PythonValue::Dict(tools) if tools.is_empty() => false,
        PythonValue::Str(_) | PythonValue::Dict(_) => return Err(string_index_fault().into()),
        _ => return Err(not_iterable_fault(tools).into()),
    };
    if found {
        return Ok(());
    }
    reject_parameter(
        "The tool specified in `tool_choice` does not match any of the specified `tools`",
        "tool_choice",
    )
}

/// Returns `value[key]` as Python would; errors have Python's messages.
fn python_subscript<'v>(value: &'v Value, key: &str) -> Result<&'v Value, Fault> {
    match PythonValue::from_json_value(value) {
        PythonValue::Dict(map) => {
            map.get(key).ok_or_else(|| Fault::bad_request(python::python_repr_of_str(key)))
        }
        PythonValue::Str(_) => Err(string_index_fault()),
        PythonValue::List(_) => {
            Err(Fault::bad_request("list indices must be integers or slices, not str"))
        }
        other => Err(Fault::bad_request(format!(
            "'{}' object is not subscriptable",
            other.python_type_name()
        ))),
    }
}

fn string_index_fault() -> Fault {
    Fault::bad_request("string indices must be integers, not 'str'")
}

/// Checks that a chat request has at most one kind of structured-output constraint, and none with a
/// forced tool.
///
/// Source: vLLM's `check_structured_outputs_count`.
fn check_structured_outputs_count(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let constrained = shared_request_fields::has_single_constraint(body, || {
        Fault::bad_request(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or \
             'choice').",
        )
    })?;
    let usual = match body_member(body, "tool_choice") {
        None => true,
        Some(choice) => matches!(choice.as_str(), Some("none" | "auto" | "required")),
    };
    if constrained && !usual {
        return reject_request(
            "You can only either use constraints for structured outputs or tools, not both.",
        );
    }
    shared_request_fields::check_structural_tag(body)
}

/// Checks `logprob_token_ids`, `prompt_logprobs` and `top_logprobs` of a chat.
///
/// Source: vLLM's `check_logprobs`.
fn check_logprobs(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let ids = "logprob_token_ids";
    if is_truthy_member(body, ids) && is_truthy_member(body, "use_beam_search") {
        return reject_parameter("`logprob_token_ids` is not supported with beam search.", ids);
    }
    if is_truthy_member(body, ids) && !is_truthy_member(body, "logprobs") {
        return reject_parameter(
            "when using `logprob_token_ids`, `logprobs` must be set to true.",
            ids,
        );
    }
    shared_request_fields::check_number_or_absent(body, "prompt_logprobs")?;
    shared_request_fields::check_number_or_absent(body, "top_logprobs")?;
    shared_request_fields::check_prompt_logprobs(body)?;
    let Some(top) = non_null_member(body, "top_logprobs") else {
        return Ok(());
    };
    shared_request_fields::check_not_below_minus_one("top_logprobs", top)?;
    let wanted =
        PythonValue::from_json_value(top).as_number().is_some_and(|top| top == -1.0 || top > 0.0);
    if wanted && !is_truthy_member(body, "logprobs") {
        return reject_parameter(
            "when using `top_logprobs`, `logprobs` must be set to true.",
            "top_logprobs",
        );
    }
    Ok(())
}

/// Turns tool calls of messages into lists, and `reasoning_content` into `reasoning`.
///
/// Source: vLLM's `_normalize_messages_before`.
fn normalize_messages(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let as_it_is = |message: &Value| {
        !message.as_object().is_some_and(|message| {
            body_member(message, "tool_calls").is_some()
                || body_member(message, "reasoning_content").is_some()
        })
    };
    match body_member(body, "messages") {
        Some(Value::Array(messages)) if !messages.iter().all(as_it_is) => {}
        _ => return Ok(()),
    }
    let Some(Value::Array(messages)) = body.to_mut().get_mut("messages") else {
        return Ok(());
    };
    for message in messages {
        let Value::Object(message) = message else {
            continue;
        };
        let listed = match message.get("tool_calls").map(PythonValue::from_json_value) {
            None | Some(PythonValue::None | PythonValue::List(_)) => None,
            Some(PythonValue::Str(text)) => {
                Some(text.chars().map(|c| Value::from(String::from(c))).collect())
            }
            Some(PythonValue::Dict(map)) => {
                Some(map.keys().map(|key| Value::from(key.as_str())).collect())
            }
            Some(_) => return Err(not_iterable_fault(&message["tool_calls"]).into()),
        };
        if let Some(listed) = listed {
            message.insert("tool_calls".to_owned(), Value::Array(listed));
        }
        if let Some(content) = message.shift_remove("reasoning_content")
            && !content.is_null()
            && non_null_member(message, "reasoning").is_none()
        {
            message.insert("reasoning".to_owned(), content);
        }
    }
    Ok(())
}
