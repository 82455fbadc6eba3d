//! Request of `POST /v1/chat/completions`.
//!
//! Source: `vllm/entrypoints/openai/chat_completion/protocol.py`, `ChatCompletionRequest`.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vllm_sim_python::{self as python, Py};

use super::message::Message;
use super::message_schema;
use super::shared::{
    CACHE_SALT, ExtraArgs, LogitBias, MM_PAYLOAD, POSITIVE, RepetitionDetection, ResponseFormat,
    SIDE, Stop, StreamOptions, StructuredOutputs, THINKING_BUDGET, TOP_LOGPROBS, TRUNCATE, Tool,
    ToolChoice,
};
use super::validators::{self, Body, ValidatorResult, given, member, not_iterable, truthy};
use crate::bounds::RequestBounds;
use crate::check;
use crate::fault::Fault;
use crate::schema::{Schema, ValidatorError, wire_model};

/// Schema of the request field `reasoning_effort`.
pub(crate) const REASONING_EFFORT: Schema = Schema::Nullable(&Schema::Literal(&[
    "none", "minimal", "low", "medium", "high", "xhigh", "max",
]));

wire_model! {
    /// A chat completion request. Absent fields have vLLM's defaults; unknown ones are ignored.
    pub struct ChatRequest: Wrapped "ChatCompletionRequest" before [
        system_content,
        media_beside_token_ids,
        generation_prompt,
        tool_usage,
        structured_outputs,
        logprobs,
        validators::stream_options,
        validators::response_format,
        normalize_messages,
        validators::cache_salt,
        validators::mm_payload_alias,
    ] after tool_calls {
        /// Messages of the conversation, oldest first.
        messages: Vec<Message>,
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> = None,
        /// Values added to the logits of token ids before sampling, -100 to 100.
        logit_bias: Option<LogitBias> = None,
        /// Whether to return log probabilities of the output tokens.
        logprobs: Option<bool> = Some(false),
        /// Number of log probabilities to return per output token; -1 for the whole vocabulary.
        top_logprobs: i128 [TOP_LOGPROBS] = 0,
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
        stop: Option<Stop> = Some(Stop::default()),
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// Options for token usage in a streamed response.
        stream_options: Option<StreamOptions> = None,
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: Option<f64> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// The functions (tools) that the model may call.
        tools: Option<Vec<Tool>> = None,
        /// Rule for tool calls; `auto` if there are tools and the key is absent.
        tool_choice: Option<ToolChoice> = Some(ToolChoice::None),
        /// Reasoning effort of the model, such as `low` or `high`.
        reasoning_effort: Option<String> [REASONING_EFFORT] = None,
        /// Maximum number of reasoning tokens to generate.
        thinking_token_budget: Option<i128> [THINKING_BUDGET] = None,
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
        truncate_prompt_tokens: Option<i64> [TRUNCATE] = None,
        /// Side of the prompt to truncate: `left` or `right`.
        truncation_side: Option<String> [SIDE] = None,
        /// Number of log probabilities to return per prompt token; -1 for the whole vocabulary.
        prompt_logprobs: Option<i128> = None,
        /// Token ids with returned log probabilities at every output position.
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
        routed_experts_prompt_start: i128 [crate::schema::int_from(0)] = 0,
        /// Whether a render response includes the text offset of each prompt token.
        return_token_offsets: Option<bool> = Some(false),
        /// Whether the response includes the prompt text rendered by the chat template.
        return_prompt_text: Option<bool> = None,
        /// Form of images, audio and video in a render response: `tensors` or `none`.
        mm_payload: String [MM_PAYLOAD] = "tensors".to_owned(),
        /// Deprecated form of `mm_payload`: false means `none`.
        return_mm_kwargs: Option<bool> = None,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> [CACHE_SALT] = None,
        /// Parameters for the KV connector, such as the blocks of a remote prefill server.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// Parameters for the encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
        /// Custom sampling arguments for vLLM extensions (`vllm_xargs`).
        vllm_xargs: Option<ExtraArgs> = None,
        /// Settings of the detection of repetitions, which ends an output that repeats itself.
        repetition_detection: Option<RepetitionDetection> = None,
        /// Number of output tokens per chunk of a streamed response.
        stream_interval: Option<i128> [POSITIVE] = None,
    }
}

impl ChatRequest {
    /// Validates and reads the request body, within the configured limits.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        check::body_within(value, bounds)
    }
}

/// Checks each tool call of assistant messages, as vLLM's `_materialize_tool_calls_after` does.
fn tool_calls(body: &Body) -> ValidatorResult {
    let messages = member(body, "messages").and_then(Value::as_array);
    for message in messages.into_iter().flatten() {
        if message.get("role").and_then(Value::as_str) != Some("assistant") {
            continue;
        }
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for (index, call) in calls.into_iter().flatten().enumerate() {
            if check::best_branch_of(message_schema::TOOL_CALL, call).is_none() {
                let schema = &message_schema::ANY_TOOL_CALL;
                return Err(ValidatorError::Item {
                    index,
                    schema,
                    value: call.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Rejects a `messages` value that Python cannot iterate over.
///
/// vLLM's `check_system_message_content_type` only warns about content, but it iterates.
fn system_content(body: &mut Cow<'_, Body>) -> ValidatorResult {
    match member(body, "messages").map(Py::of) {
        None | Some(Py::List(_) | Py::Str(_) | Py::Dict(_)) => Ok(()),
        Some(_) => Err(not_iterable(&body["messages"]).into()),
    }
}

/// Mirrors vLLM's `drop_prompt_token_ids_with_media`.
fn media_beside_token_ids(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let with_media = match member(body, "messages") {
        Some(Value::Array(messages)) => messages.iter().any(has_media),
        _ => false,
    };
    if with_media
        && member(body, "kv_transfer_params").is_some()
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

/// Mirrors vLLM's `check_generation_prompt`.
fn generation_prompt(body: &mut Cow<'_, Body>) -> ValidatorResult {
    if truthy(body, "continue_final_message") && truthy(body, "add_generation_prompt") {
        return Err(Fault::bad_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        )
        .into());
    }
    Ok(())
}

/// Mirrors vLLM's `check_tool_usage`.
fn tool_usage(body: &mut Cow<'_, Body>) -> ValidatorResult {
    if member(body, "tools").is_some_and(|tools| tools.as_array().is_some_and(Vec::is_empty)) {
        return Err(Fault::parameter(
            "`tools` must not be an empty array. Either provide at least one tool or omit the \
             field entirely.",
            "tools",
        )
        .into());
    }
    if member(body, "tool_choice").is_none() && truthy(body, "tools") {
        body.to_mut()
            .insert("tool_choice".to_owned(), Value::from("auto"));
    }
    let Some(choice) = given(body, "tool_choice") else {
        return Ok(());
    };
    if choice == "none" {
        return Ok(());
    }
    let Some(tools) = given(body, "tools") else {
        return Err(Fault::parameter(
            "When using `tool_choice`, `tools` must be set.",
            "tool_choice",
        )
        .into());
    };
    match Py::of(choice) {
        Py::Str("auto" | "required") => Ok(()),
        Py::Dict(choice) => named_tool(choice, tools),
        _ => Err(Fault::parameter(
            format_args!(
                "Invalid value for `tool_choice`: {}! Only named tools, \"none\", \"auto\" or \
                 \"required\" are supported.",
                python::str(choice)
            ),
            "tool_choice",
        )
        .into()),
    }
}

/// Checks a tool choice that is an object, as vLLM's `check_tool_usage` does.
fn named_tool(choice: &Body, tools: &Value) -> ValidatorResult {
    const USAGE: &str = "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \
                         \"my_function\"}}`";

    let function = choice.get("function").unwrap_or(&Value::Null);
    let Py::Dict(members) = Py::of(function) else {
        return Err(Fault::parameter(
            format_args!(
                "Invalid value for `function`: `{}` in `tool_choice`! {USAGE}",
                python::str(function)
            ),
            "tool_choice.function",
        )
        .into());
    };
    let Some(name) = members.get("name") else {
        return Err(Fault::parameter(
            format_args!("Expected field `name` in `function` in `tool_choice`! {USAGE}"),
            "tool_choice.function.name",
        )
        .into());
    };
    if name.as_str().is_none_or(str::is_empty) {
        return Err(Fault::parameter(
            format_args!(
                "Invalid `name` in `function`: `{}` in `tool_choice`! {USAGE}",
                python::str(name)
            ),
            "tool_choice.function.name",
        )
        .into());
    }
    let found = match Py::of(tools) {
        Py::List(tools) => {
            let mut found = false;
            for tool in tools {
                if subscript(subscript(tool, "function")?, "name")? == name {
                    found = true;
                    break;
                }
            }
            found
        }
        Py::Str("") => false,
        Py::Dict(tools) if tools.is_empty() => false,
        Py::Str(_) | Py::Dict(_) => return Err(string_index().into()),
        _ => return Err(not_iterable(tools).into()),
    };
    if found {
        return Ok(());
    }
    Err(Fault::parameter(
        "The tool specified in `tool_choice` does not match any of the specified `tools`",
        "tool_choice",
    )
    .into())
}

/// Returns `value[key]` as Python would, with its error messages.
fn subscript<'v>(value: &'v Value, key: &str) -> Result<&'v Value, Fault> {
    match Py::of(value) {
        Py::Dict(map) => map
            .get(key)
            .ok_or_else(|| Fault::bad_request(python::repr_str(key))),
        Py::Str(_) => Err(string_index()),
        Py::List(_) => Err(Fault::bad_request(
            "list indices must be integers or slices, not str",
        )),
        other => Err(Fault::bad_request(format!(
            "'{}' object is not subscriptable",
            other.type_name()
        ))),
    }
}

fn string_index() -> Fault {
    Fault::bad_request("string indices must be integers, not 'str'")
}

/// Mirrors vLLM's `check_structured_outputs_count`.
fn structured_outputs(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let two = Fault::bad_request(
        "You can only use one kind of constraints for structured outputs ('json', 'regex' or \
         'choice').",
    );
    let constrained = validators::structured_outputs_count(body, two)?;
    let usual = match member(body, "tool_choice") {
        None => true,
        Some(choice) => matches!(choice.as_str(), Some("none" | "auto" | "required")),
    };
    if constrained && !usual {
        return Err(Fault::bad_request(
            "You can only either use constraints for structured outputs or tools, not both.",
        )
        .into());
    }
    validators::structural_tag(body)
}

/// Mirrors vLLM's `check_logprobs`.
fn logprobs(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let ids = "logprob_token_ids";
    if truthy(body, ids) && truthy(body, "use_beam_search") {
        return Err(Fault::parameter(
            "`logprob_token_ids` is not supported with beam search.",
            ids,
        )
        .into());
    }
    if truthy(body, ids) && !truthy(body, "logprobs") {
        return Err(Fault::parameter(
            "when using `logprob_token_ids`, `logprobs` must be set to true.",
            ids,
        )
        .into());
    }
    validators::number_or_absent(body, "prompt_logprobs")?;
    validators::number_or_absent(body, "top_logprobs")?;
    validators::prompt_logprobs(body)?;
    let Some(top) = given(body, "top_logprobs") else {
        return Ok(());
    };
    validators::positive_or_minus_one("top_logprobs", top)?;
    let wanted = Py::of(top)
        .number()
        .is_some_and(|top| top == -1.0 || top > 0.0);
    if wanted && !truthy(body, "logprobs") {
        return Err(Fault::parameter(
            "when using `top_logprobs`, `logprobs` must be set to true.",
            "top_logprobs",
        )
        .into());
    }
    Ok(())
}

/// Mirrors vLLM's `_normalize_messages_before`: tool calls of messages become lists,
/// `reasoning_content` becomes `reasoning`.
fn normalize_messages(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let as_it_is = |message: &Value| {
        !message.as_object().is_some_and(|message| {
            member(message, "tool_calls").is_some()
                || member(message, "reasoning_content").is_some()
        })
    };
    match member(body, "messages") {
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
        let listed = match message.get("tool_calls").map(Py::of) {
            None | Some(Py::None | Py::List(_)) => None,
            Some(Py::Str(text)) => {
                Some(text.chars().map(|c| Value::from(String::from(c))).collect())
            }
            Some(Py::Dict(map)) => Some(map.keys().map(|key| Value::from(key.as_str())).collect()),
            Some(_) => return Err(not_iterable(&message["tool_calls"]).into()),
        };
        if let Some(listed) = listed {
            message.insert("tool_calls".to_owned(), Value::Array(listed));
        }
        if let Some(content) = message.shift_remove("reasoning_content")
            && !content.is_null()
            && given(message, "reasoning").is_none()
        {
            message.insert("reasoning".to_owned(), content);
        }
    }
    Ok(())
}
