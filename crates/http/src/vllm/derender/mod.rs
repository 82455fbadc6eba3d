//! The derender routes: convert token responses of `/inference/v1/generate` to OpenAI responses,
//! whole or chunk by chunk.
//!
//! The server keeps no state between chunks; the client sends the state back with each chunk.
//!
//! Source: vLLM 0.33 `entrypoints/scale_out/derender/serving.py`, `renderers/online_derenderer.py`.

mod bounds;
mod json_list;
mod logprobs;
mod options;
mod parsed_text;
mod reply;
mod stream;
mod token_choice;

use axum::extract::State;
use serde_json::{Value, json};

use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{HandlerResult, ok_json_response};
use crate::request_head::ToolCallIds;
use json_list::iter_array_field;
use options::DerenderOptions;
use parsed_text::{OutputParsers, ParsedReplyText, ReplyTextCompleteness};
use reply::{
    add_weight_versions, chat_finish_reason, clamped_token_count, count_output_tokens,
    response_model_name, usage_json,
};
use token_choice::{GenerateResponseChoice, choice_text_and_stop_reason};
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::body::validate_and_read_body;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::derender::{
    DerenderChatRequest, DerenderCompletionRequest, DerenderStreamRequest,
};

pub(crate) async fn derender_chat(State(app): AppState, mut received: RawRequest) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    if value["stream"] == true {
        let request = validate_and_read_body::<DerenderStreamRequest>(&value)?;
        return stream::derender_chat_chunk(&app, &request);
    }
    let request = validate_and_read_body::<DerenderChatRequest>(&value)?;
    let reply = &request.generate_response;
    let model = response_model_name(&app, request.model.as_deref(), reply)?;
    bounds::check_generate_responses(&app, std::slice::from_ref(reply))?;
    let prompt = request.prompt_token_ids.as_deref();
    bounds::check_prompt_length(&app, prompt)?;
    let options = DerenderOptions::read_derender_options(request.chat_request.as_ref());
    let parsers = OutputParsers::parsers_of_server(&app, &options);
    if parsers.is_some() && request.chat_request.is_none() {
        return Err(Fault::bad_request(parsed_text::CHAT_REQUEST_REQUIRED_MESSAGE));
    }
    let prompt_ids = token_choice::given_prompt_token_ids(prompt, reply)?;
    let ids = ToolCallIds::with_random_hex_ids();
    let mut choices = Vec::new();
    for (at, choice) in iter_array_field(reply, "choices").enumerate() {
        let choice = GenerateResponseChoice::parse_choice(choice)?;
        if choice.ids.is_empty() {
            return Err(Fault::bad_request(format!(
                "choice {} has empty or null token_ids",
                choice.choice_index(at)
            )));
        }
        let special = match &parsers {
            Some(_) => SpecialTokenHandling::With,
            None => options.special,
        };
        let (text, stop_reason) =
            choice_text_and_stop_reason(&app, &choice, &options, &prompt_ids, special);
        let parsed = match &parsers {
            Some(parsers) => parsers.parse_reply_text(&text, ReplyTextCompleteness::Whole),
            None => ParsedReplyText::from_plain_text(text),
        };
        let finish_reason = chat_finish_reason(choice.finish_reason().unwrap_or("stop"), &parsed);
        let logprobs = (!options.hides_output_tokens(parsers.as_ref()))
            .then(|| logprobs::derendered_chat_logprobs(&app, &choice, &options, &[]))
            .flatten();
        let mut shown = json!({
            "index": choice.choice_index(at),
            "message": chat_message_json(&app, &options, parsed, at, &ids),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "token_ids": choice.derendered_token_ids(&options, parsers.as_ref()),
            "routed_experts": null,
        });
        add_weight_versions(&app, &mut shown, choice.json.get("weight_versions"));
        choices.push(shown);
    }
    let prompt_tokens = clamped_token_count(request.prompt_tokens);
    Ok(ok_json_response(&json!({
        "id": reply.get("request_id"),
        "object": "chat.completion",
        "created": unix_now_secs() as u64,
        "model": model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": usage_json(prompt_tokens, count_output_tokens(reply)),
        "prompt_logprobs": reply.get("prompt_logprobs"),
        "prompt_token_ids": reply.get("prompt_token_ids").filter(|_| options.return_token_ids),
        "prompt_text": null,
        "kv_transfer_params": reply.get("kv_transfer_params"),
        "ec_transfer_params": reply.get("ec_transfer_params"),
        "metrics": reply.get("metrics"),
    })))
}

pub(crate) async fn derender_completion(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    if value["stream"] == true {
        let request = validate_and_read_body::<DerenderStreamRequest>(&value)?;
        return stream::derender_completion_chunk(&app, &request);
    }
    let request = validate_and_read_body::<DerenderCompletionRequest>(&value)?;
    let replies = &request.generate_responses;
    let Some(first) = replies.first() else {
        return Err(Fault::bad_request("generate_responses must not be empty"));
    };
    let model = response_model_name(&app, request.model.as_deref(), first)?;
    bounds::check_generate_responses(&app, replies)?;
    let options = DerenderOptions::read_derender_options(request.completion_request.as_ref());
    let seeds = request.prompt_token_ids.as_deref().unwrap_or_default();
    let mut choices = Vec::new();
    let (mut prompt, mut completion) = (0, 0);
    for (at, reply) in replies.iter().enumerate() {
        let prompt_tokens = request.prompt_tokens.as_ref().and_then(|p| p.get(at));
        prompt = clamped_token_count(prompt_tokens.copied()).saturating_add(prompt);
        completion += count_output_tokens(reply);
        let given = seeds.get(at).and_then(Option::as_deref);
        bounds::check_prompt_length(&app, given)?;
        let prompt_ids = token_choice::given_prompt_token_ids(given, reply)?;
        for (place, choice) in iter_array_field(reply, "choices").enumerate() {
            let choice = GenerateResponseChoice::parse_choice(choice)?;
            if choice.ids.is_empty() {
                return Err(Fault::bad_request(format!(
                    "choice {} in response {} has empty or null token_ids",
                    choice.choice_index(place),
                    reply["request_id"].as_str().unwrap_or_default()
                )));
            }
            let (text, stop_reason) =
                choice_text_and_stop_reason(&app, &choice, &options, &prompt_ids, options.special);
            let (logprobs, _) =
                logprobs::derendered_completion_logprobs(&app, &choice, &options, &[], 0);
            let shown = reply.get("prompt_token_ids");
            let mut whole = json!({
                "index": choices.len(),
                "text": text,
                "logprobs": logprobs,
                "finish_reason": choice.finish_reason(),
                "stop_reason": stop_reason,
                "token_ids": choice.derendered_token_ids(&options, None),
                "prompt_logprobs": reply.get("prompt_logprobs"),
                "prompt_token_ids": shown.filter(|_| options.return_token_ids),
                "routed_experts": null,
            });
            add_weight_versions(&app, &mut whole, choice.json.get("weight_versions"));
            choices.push(whole);
        }
    }
    // Members that differ between prompts are omitted from the single response.
    let alike = |key: &str| {
        let value = first.get(key);
        value.filter(|_| replies.iter().all(|reply| reply.get(key) == value))
    };
    Ok(ok_json_response(&json!({
        "id": first.get("request_id"),
        "object": "text_completion",
        "created": unix_now_secs() as u64,
        "model": model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": usage_json(prompt, completion),
        "kv_transfer_params": alike("kv_transfer_params"),
        "ec_transfer_params": alike("ec_transfer_params"),
        "metrics": first.get("metrics").filter(|_| replies.len() == 1),
    })))
}

fn chat_message_json(
    app: &App,
    options: &DerenderOptions,
    parsed: ParsedReplyText,
    choice: usize,
    ids: &ToolCallIds,
) -> Value {
    let mut message = json!({
        "role": app.settings.model.response_role,
        "content": parsed.content,
        "refusal": null,
        "annotations": null,
        "audio": null,
        "function_call": null,
    });
    if !parsed.calls.is_empty() {
        let calls = parsed.calls.iter().enumerate();
        message["tool_calls"] = calls
            .map(|(call, (name, arguments))| {
                json!({
                    "id": ids.tool_call_id(choice, call),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })
            })
            .collect();
    }
    message["reasoning"] =
        parsed.reasoning.filter(|_| options.include_reasoning).map_or(Value::Null, Value::String);
    message
}
