//! The render routes: return the engine's input (prompt tokens and sampling parameters) instead of
//! generating.
//!
//! Source: vLLM `entrypoints/scale_out/render/`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value, json};

use crate::anthropic::chat_conversion as convert_messages;
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::dialect::{ApiEndpoint, RenderRouteFormat};
use crate::error::{HandlerResult, ok_json_response};
use crate::generation::{self, GenerationRequestBody as _};
use crate::media;
use crate::openai::responses::chat_conversion as convert_responses;
use crate::openai::{chat, completion};
use crate::request_head::{new_random_hex_id, request_id};
use vllm_sim_service::generate::request::TokenizedPrompt;
use vllm_sim_service::prompt::{Conversation, PromptSource};
use vllm_sim_wire::VllmVersion;
use vllm_sim_wire::anthropic::MessagesRequest;
use vllm_sim_wire::body::read_body_within_bounds;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::{CompletionRequest, DEFAULT_MAX_TOKENS};
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::openai::shared_request_fields::{ChatTool, ChatToolChoice};
use vllm_sim_wire::sampling::{GREEDY_TEMPERATURE, SamplingParams, output_budget_tokens};

/// Default of `max_tokens`; rendered sampling parameters omit the member if it has this value.
const OMITTED_MAX_TOKENS: i128 = 16;

pub(crate) async fn render_chat(State(app): AppState, mut received: RawRequest) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let value = generation::convert_and_check_render_body(&app, ApiEndpoint::Chat, value)?;
    answer_rendered_chat(&app, &received, &value, ChatRequest::TEXT_MEMBERS).await
}

pub(crate) async fn render_messages(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = read_body_within_bounds::<MessagesRequest>(&value, &app.rules.defaults.bounds)?;
    let mut chat = convert_messages::to_chat_body(&app, &request)?;
    if let Some(members) = chat.as_object_mut() {
        // vLLM converts messages to a chat without a tool choice, not to one with `none`.
        members.entry("tool_choice").or_insert(Value::Null);
    }
    answer_rendered_chat(&app, &received, &chat, MessagesRequest::TEXT_MEMBERS).await
}

/// Handles `POST /v1/completions/render`: returns a list with one element per prompt.
pub(crate) async fn render_completions(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let value = generation::convert_and_check_render_body(&app, ApiEndpoint::Completions, value)?;
    let mut request =
        CompletionRequest::parse_completion_request(&value, &app.rules.defaults.bounds)
            .map_err(|fault| app.dialect.unreadable_body_fault(fault))?;
    check_renders_model(&app, request.model.as_deref())?;
    received.check_prompt_encodable(CompletionRequest::TEXT_MEMBERS)?;
    if request.use_beam_search {
        reject_beam_search(&app)?;
    }
    request.validate_without_tokenizer(&app.rules.limits)?;
    let asked = request.max_tokens.or(Some(DEFAULT_MAX_TOKENS));
    let inputs = PromptSource::Inputs(completion::take_prompt_inputs(&mut request));
    let prompts = app.service.create_prompts(&app.rules, inputs).await?;
    let id = request_id("cmpl-", &received.headers, request.request_id.as_deref());
    let mut out = Vec::with_capacity(prompts.len());
    for (index, prompt) in prompts.iter().enumerate() {
        out.push(render_result(&app, prompt, || {
            let budget = match request.only_echoes_prompt() {
                true => 1,
                false => rendered_output_budget(&app, asked, prompt),
            };
            let defaults = &app.rules.defaults;
            let params =
                request.sampling_params(defaults)?.with_output_budget(budget, &defaults.bounds)?;
            let id = if prompts.len() > 1 { format!("{id}-{index}") } else { id.to_string() };
            let sampling = sampling_params_json(&app, &params, extra_args(&params), &value);
            generate_request_json(&app, &value, id, &prompt.tokens, sampling)
        })?);
    }
    Ok(ok_json_response(&Value::Array(out)))
}

/// Renders the prompt of a chat request; `members` are the members of the client's body whose texts
/// the tokenizer reads.
async fn answer_rendered_chat(
    app: &Arc<App>,
    received: &RawRequest,
    value: &Value,
    members: &[&str],
) -> Result<Response<Body>, Fault> {
    let mut request = ChatRequest::parse_chat_request(value, &app.rules.defaults.bounds)
        .map_err(|fault| app.dialect.unreadable_body_fault(fault))?;
    check_renders_model(app, request.model.as_deref())?;
    received.check_prompt_encodable(members)?;
    if request.use_beam_search {
        reject_beam_search(app)?;
    }
    request.validate_without_prompt(&app.rules.limits)?;
    let conversation = chat::chat_conversation(app, &mut request);
    let prompt = tokenize_conversation(app, conversation).await?;
    let rendered = render_result(app, &prompt, || {
        let budget = rendered_output_budget(app, request.requested_output_limit().1, &prompt);
        let defaults = &app.rules.defaults;
        let params =
            request.sampling_params(defaults)?.with_output_budget(budget, &defaults.bounds)?;
        let id =
            request_id("chatcmpl-", &received.headers, request.request_id.as_deref()).to_string();
        let sampling = sampling_params_json(app, &params, extra_args(&params), value);
        let mut rendered = generate_request_json(app, value, id, &prompt.tokens, sampling)?;
        if app.rules.limits.version >= VllmVersion::V033 {
            rendered["parse_context"] = parse_context_json(&request, value);
        }
        add_reasoning_parser(app, &request, &mut rendered);
        rendered["features"] = media::media_features_json(&prompt.media);
        Ok(rendered)
    })?;
    Ok(ok_json_response(&rendered))
}

/// Renders the prompt of a Responses request; the id of the result ignores the request-id header.
pub(crate) async fn render_responses(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let (app, value) = (&app, &received.parse_dialect_json(&app)?);
    let request = read_body_within_bounds::<ResponsesRequest>(value, &app.rules.defaults.bounds)?;
    check_renders_model(app, request.model.as_deref())?;
    received.check_prompt_encodable(ResponsesRequest::TEXT_MEMBERS)?;
    request.validate_without_prompt(&app.rules.limits)?;
    let messages = convert_responses::responses_chat_messages(&request, None)?;
    let mut chat = convert_responses::to_chat_request(&request, &messages)?;
    let prompt = tokenize_conversation(app, chat::chat_conversation(app, &mut chat)).await?;
    app.rules.limits.check_responses_prompt_tokens(prompt.tokens.len())?;
    let rendered = render_result(app, &prompt, || {
        let budget = rendered_output_budget(app, request.max_output_tokens, &prompt);
        let defaults = &app.rules.defaults;
        let params =
            request.sampling_params(defaults)?.with_output_budget(budget, &defaults.bounds)?;
        let given = request.request_id.clone();
        let id = given.unwrap_or_else(|| format!("resp_{}", new_random_hex_id()));
        // vLLM keeps an empty `extra_args` of a Responses request.
        let extra = match params.extra_args {
            None => Some(Map::new()),
            Some(_) => extra_args(&params),
        };
        let sampling = sampling_params_json(app, &params, extra, value);
        let mut rendered = generate_request_json(app, value, id, &prompt.tokens, sampling)?;
        rendered["stream_options"] = Value::Null;
        add_reasoning_parser(app, &chat, &mut rendered);
        rendered["features"] = media::media_features_json(&prompt.media);
        Ok(rendered)
    })?;
    Ok(ok_json_response(&rendered))
}

fn rendered_output_budget(app: &App, asked: Option<i128>, prompt: &TokenizedPrompt) -> i128 {
    let rules = &app.rules;
    let length = prompt.tokens.len();
    output_budget_tokens(&rules.limits, asked, length, &rules.defaults)
}

async fn tokenize_conversation(
    app: &App,
    conversation: Conversation,
) -> Result<TokenizedPrompt, Fault> {
    let source = PromptSource::Conversations(vec![conversation]);
    let mut prompts = app.service.create_prompts(&app.rules, source).await?;
    Ok(prompts.pop().unwrap_or_default())
}

fn check_renders_model(app: &App, model: Option<&str>) -> Result<(), Fault> {
    let lora = generation::resolve_model_without_faults(app, model)?;
    app.dialect.properties().render_format.check_render_support(lora.as_deref())
}

fn render_result(
    app: &App,
    prompt: &TokenizedPrompt,
    request: impl FnOnce() -> Result<Value, Fault>,
) -> Result<Value, Fault> {
    let features = || (!prompt.media.is_empty()).then(|| media::media_features_json(&prompt.media));
    app.dialect.properties().render_format.render_route_response(&prompt.tokens, features, request)
}

/// Rejects beam search, which the render routes of vLLM do not support.
fn reject_beam_search(app: &App) -> Result<(), Fault> {
    match app.dialect.properties().render_format == RenderRouteFormat::Request {
        true => Err(Fault::bad_request("Beam search is not supported by the render endpoint")),
        false => Ok(()),
    }
}

/// Returns the body of a request to `/inference/v1/generate`, as the render routes return it.
///
/// # Errors
/// vLLM's 400 for an empty prompt.
fn generate_request_json(
    app: &App,
    body: &Value,
    id: String,
    tokens: &[u32],
    sampling: Value,
) -> Result<Value, Fault> {
    if tokens.is_empty() {
        return Err(Fault::bad_request("No token_ids rendered"));
    }
    let given = |key: &str| body.get(key).cloned().unwrap_or(Value::Null);
    let streams = body.get("stream").and_then(Value::as_bool).unwrap_or(false);
    let transfer = |key: &str| transfer_params(body, key).cloned().map_or(Value::Null, Value::from);
    let mut out = json!({
        "request_id": id,
        "token_ids": tokens,
        "token_offsets": null,
        "features": null,
        "content_parts": null,
        "sampling_params": sampling,
        "model": given("model"),
        "reasoning_ended": null,
        "reasoning_parser_kwargs": null,
        "return_token_ids": given("return_token_ids"),
        "output_mode": "tokens",
        "parse_context": null,
        "stream": streams,
        "stream_options": given("stream_options"),
        "cache_salt": given("cache_salt"),
        "priority": body.get("priority").and_then(Value::as_i64).unwrap_or(0),
        "kv_transfer_params": transfer("kv_transfer_params"),
        "ec_transfer_params": transfer("ec_transfer_params"),
    });
    if app.rules.limits.version < VllmVersion::V033
        && let Some(members) = out.as_object_mut()
    {
        members.shift_remove("parse_context");
    }
    if let Some(options) = out["stream_options"].as_object_mut() {
        for key in ["include_usage", "continuous_usage_stats"] {
            options.entry(key).or_insert(false.into());
        }
    }
    Ok(out)
}

/// Returns the parameters of a connector, such as `kv_transfer_params`, in a request body; `None`
/// if they are empty.
fn transfer_params<'b>(body: &'b Value, key: &str) -> Option<&'b Map<String, Value>> {
    body.get(key).and_then(Value::as_object).filter(|params| !params.is_empty())
}

/// Adds the members for reasoning to a rendered chat request, if the server has a reasoning parser.
fn add_reasoning_parser(app: &App, chat: &ChatRequest, rendered: &mut Value) {
    if app.settings.parsers.reasoning.is_some() {
        rendered["reasoning_ended"] = false.into();
        rendered["reasoning_parser_kwargs"] =
            json!({"chat_template_kwargs": template_kwargs(chat)});
    }
}

/// Returns all arguments of the chat template except messages and tools.
///
/// Source: vLLM's `ChatCompletionRequest.build_chat_params`; `cohere_format` is a default of its
/// server.
fn template_kwargs(chat: &ChatRequest) -> Map<String, Value> {
    let effort = chat.reasoning_effort.as_deref();
    let own = chat.chat_template_kwargs.iter().flatten();
    let mut kwargs = Map::from_iter([("cohere_format".to_owned(), Value::from("cmd4"))]);
    let thinking = || effort.map(|effort| Value::from(effort != "none"));
    let documents = chat.documents.as_ref().filter(|documents| !documents.is_empty());
    let more = [
        ("add_generation_prompt", Some(chat.add_generation_prompt.into())),
        ("continue_final_message", Some(chat.continue_final_message.into())),
        ("documents", documents.map(|documents| json!(documents))),
        ("reasoning_effort", effort.map(Value::from)),
        (
            "enable_thinking",
            thinking().filter(|_| !own.clone().any(|(k, _)| k == "enable_thinking")),
        ),
    ];
    let unset = |value: &Value| value.is_null() || value == "auto";
    kwargs.extend(own.filter(|(_, value)| !unset(value)).map(|(k, v)| (k.clone(), v.clone())));
    kwargs.extend(more.into_iter().filter_map(|(k, value)| Some((k.to_owned(), value?))));
    kwargs
}

/// Returns the JSON of those parts of a chat request that derendering its reply needs.
///
/// Source: vLLM's `ServingRender._build_parse_context`.
fn parse_context_json(chat: &ChatRequest, body: &Value) -> Value {
    let tools = chat.tools.as_ref().map(|tools| tools.iter().map(ChatTool::to_template_json));
    let choice = chat.tool_choice.as_ref().map(|choice| match choice {
        ChatToolChoice::None => "none".into(),
        ChatToolChoice::Auto => "auto".into(),
        ChatToolChoice::Required => "required".into(),
        ChatToolChoice::Named(name) => json!({"function": {"name": name}, "type": "function"}),
    });
    json!({
        "tools": tools.map(Vec::from_iter),
        "tool_choice": choice,
        "parallel_tool_calls": chat.parallel_tool_calls,
        "include_reasoning": chat.include_reasoning,
        "chat_template_kwargs": template_kwargs(chat),
        "history_tool_call_cnt": count_earlier_calls(body),
    })
}

/// Counts the tool calls in the assistant messages of a chat body.
fn count_earlier_calls(body: &Value) -> usize {
    let messages = body.get("messages").and_then(Value::as_array).into_iter().flatten();
    let calls = messages
        .filter(|message| message.get("role").is_some_and(|role| role == "assistant"))
        .filter_map(|message| message.get("tool_calls")?.as_array());
    calls.map(Vec::len).sum()
}

/// Returns the custom sampling arguments of a request, without the parameters of connectors, which
/// are separate members.
fn extra_args(params: &SamplingParams) -> Option<Map<String, Value>> {
    let mut args = params.extra_args.clone()?;
    args.retain(|key, _| !matches!(key.as_str(), "kv_transfer_params" | "ec_transfer_params"));
    Some(args).filter(|args| !args.is_empty())
}

/// Returns the sampling parameters of a rendered request, as msgspec encodes them.
///
/// Members with their default are omitted. Floats and lists are kept, because msgspec compares them
/// by identity. Floats that vLLM's own class fills in are omitted, such as the values that greedy
/// sampling resets.
///
/// Source: vLLM `sampling_params.py`, `from_optional` and `__post_init__`.
fn sampling_params_json(
    app: &App,
    params: &SamplingParams,
    extra: Option<Map<String, Value>>,
    body: &Value,
) -> Value {
    let mut out = Map::new();
    // Since 0.33, a penalty that is null is shown, too.
    let hides_null = app.rules.limits.version < VllmVersion::V033;
    put_distribution_params(&mut out, params, |key| {
        hides_null && body.get(key).is_some_and(Value::is_null)
    });
    put_stop_params(&mut out, params);
    put_output_params(&mut out, params, extra);
    Value::Object(out)
}

fn clamped_int_json(n: i128) -> Value {
    i64::try_from(n).unwrap_or(i64::MAX).into()
}

fn clamped_ints_json(ids: &[i128]) -> Value {
    ids.iter().map(|id| clamped_int_json(*id)).collect()
}

fn put_distribution_params(
    out: &mut Map<String, Value>,
    params: &SamplingParams,
    hidden: impl Fn(&str) -> bool,
) {
    let mut put = |key: &str, value: Value| drop(out.insert(key.into(), value));
    if params.n != 1 {
        put("n", clamped_int_json(params.n));
    }
    for (key, penalty) in [
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
    ] {
        if !hidden(key) {
            put(key, penalty.into());
        }
    }
    if let Some(watermarking) = params.watermarking {
        put("watermarking", watermarking.into());
    }
    let greedy = params.temperature < GREEDY_TEMPERATURE;
    put("repetition_penalty", params.repetition_penalty.into());
    put("temperature", params.temperature.into());
    if !greedy {
        put("top_p", params.top_p.into());
    }
    if params.top_k != 0 {
        put("top_k", clamped_int_json(params.top_k));
    }
    if !greedy {
        put("min_p", params.min_p.into());
    }
    if let Some(seed) = params.seed {
        put("seed", clamped_int_json(seed));
    }
}

fn put_stop_params(out: &mut Map<String, Value>, params: &SamplingParams) {
    let mut put = |key: &str, value: Value| drop(out.insert(key.into(), value));
    let stops = params.stop.as_ref().map_or(&[][..], |stop| &stop.0);
    put("stop", stops.to_vec().into());
    put("stop_token_ids", clamped_ints_json(params.stop_token_ids.as_deref().unwrap_or_default()));
    if params.ignore_eos {
        put("ignore_eos", true.into());
    }
    if params.max_tokens != Some(OMITTED_MAX_TOKENS) {
        put("max_tokens", params.max_tokens.map_or(Value::Null, clamped_int_json));
    }
    if params.min_tokens != 0 {
        put("min_tokens", clamped_int_json(params.min_tokens));
    }
}

fn put_output_params(
    out: &mut Map<String, Value>,
    params: &SamplingParams,
    extra: Option<Map<String, Value>>,
) {
    let mut put = |key: &str, value: Value| drop(out.insert(key.into(), value));
    for (key, count) in [("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)]
    {
        if let Some(count) = count {
            put(key, clamped_int_json(count));
        }
    }
    if let Some(ids) = &params.logprob_token_ids {
        put("logprob_token_ids", clamped_ints_json(ids));
    }
    for (key, flag, default) in [
        ("skip_special_tokens", params.skip_special_tokens, true),
        ("spaces_between_special_tokens", params.spaces_between_special_tokens, true),
        ("include_stop_str_in_output", params.include_stop_str_in_output, false),
    ] {
        if flag != default {
            put(key, flag.into());
        }
    }
    put("output_kind", clamped_int_json(params.output_kind));
    if let Some(interval) = params.stream_interval {
        put("stream_interval", clamped_int_json(interval));
    }
    put("skip_clone", true.into());
    if let Some(outputs) = &params.structured_outputs {
        put("structured_outputs", outputs.structured_outputs_params_json().into());
    }
    if let Some(bias) = &params.logit_bias {
        let pairs = bias.0.iter();
        let map: Map<_, _> = pairs.map(|(id, b)| (id.to_string(), (*b).into())).collect();
        put("logit_bias", map.into());
    }
    if let Some(ids) = &params.allowed_token_ids {
        put("allowed_token_ids", clamped_ints_json(ids));
    }
    if let Some(extra) = extra {
        put("extra_args", extra.into());
    }
    let bad_words = params.bad_words.as_deref().unwrap_or_default();
    put("bad_words", bad_words.to_vec().into());
    put("skip_reading_prefix_cache", params.prompt_logprobs.is_some().into());
    if let Some(budget) = params.thinking_token_budget {
        put("thinking_token_budget", clamped_int_json(budget));
    }
    if let Some(rule) = &params.repetition_detection {
        let sizes = [
            ("max_pattern_size", rule.max_pattern_size),
            ("min_pattern_size", rule.min_pattern_size),
            ("min_count", rule.min_count),
        ];
        let sizes = sizes.map(|(key, size)| (key.to_owned(), clamped_int_json(size)));
        put("repetition_detection", Map::from_iter(sizes).into());
    }
    if params.routed_experts_prompt_start != 0 {
        let start = clamped_int_json(params.routed_experts_prompt_start);
        put("routed_experts_prompt_start", start);
    }
}
