//! The derender routes: from a reply in tokens to one in OpenAI's shape, whole or chunk by chunk.
//!
//! Nothing is kept between chunks: the client carries the state.
//! Source: vLLM 0.33 `entrypoints/scale_out/derender/serving.py`, `renderers/online_derenderer.py`.

mod asked;
mod bounds;
mod decode;
mod logprobs;
mod parse;
mod stream;

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::ok;
use crate::app::{App, unix_now};
use crate::body::Posted;
use crate::error::Answer;
use crate::openai::prepare;
use asked::Asked;
use decode::{Piece, whole};
use parse::{Said, Syntax};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::derender::{
    DerenderChatRequest, DerenderCompletionRequest, DerenderStreamRequest,
};

/// `POST /v1/chat/completions/derender`.
pub(crate) async fn chat(State(app): State<Arc<App>>, Posted { value, .. }: Posted) -> Answer {
    if value["stream"] == true {
        let request = DerenderStreamRequest::parse(&value)?;
        return stream::chat(&app, &request);
    }
    let request = DerenderChatRequest::parse(&value)?;
    let reply = &request.generate_response;
    let model = model(&app, request.model.as_deref(), reply)?;
    bounds::replies(&app, std::slice::from_ref(reply))?;
    let prompt = request.prompt_token_ids.as_deref();
    bounds::prompt(&app, prompt)?;
    let asked = Asked::of(request.chat_request.as_ref());
    let syntax = Syntax::of(&app, &asked);
    if syntax.is_some() && request.chat_request.is_none() {
        return Err(Fault::bad_request(parse::NEEDS_REQUEST));
    }
    let seed = decode::seed(prompt, reply);
    let ids = prepare::call_ids();
    let mut choices = Vec::new();
    for (at, choice) in list(reply, "choices").enumerate() {
        let piece = Piece::of(choice);
        if piece.ids.is_empty() {
            return Err(Fault::bad_request(format!(
                "choice {} has empty or null token_ids",
                piece.index(at)
            )));
        }
        let skip = syntax.is_none() && asked.skip_special;
        let (text, stop_reason) = whole(&app, &piece, &asked, &seed, skip);
        let said = match &syntax {
            Some(syntax) => syntax.read(&text, true),
            None => Said::plain(text),
        };
        let finish = finish(&piece, &said, true);
        let logprobs = (!asked.hides(syntax.is_some()))
            .then(|| logprobs::chat(&app, &piece, &asked, &[]))
            .flatten();
        choices.push(json!({
            "index": piece.index(at),
            "message": message(&app, &asked, said, at, &ids),
            "logprobs": logprobs,
            "finish_reason": finish,
            "stop_reason": stop_reason,
            "token_ids": asked.ids(&piece, syntax.is_some()),
            "routed_experts": null,
            "weight_versions": choice.get("weight_versions"),
        }));
    }
    let told = request.prompt_tokens.map(|n| n.max(0) as u64);
    Ok(ok(&json!({
        "id": reply.get("request_id"),
        "object": "chat.completion",
        "created": unix_now() as u64,
        "model": model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": counted(told.unwrap_or(0), tokens(reply)),
        "prompt_logprobs": reply.get("prompt_logprobs"),
        "prompt_token_ids": reply.get("prompt_token_ids").filter(|_| asked.return_token_ids),
        "prompt_text": null,
        "kv_transfer_params": reply.get("kv_transfer_params"),
        "ec_transfer_params": reply.get("ec_transfer_params"),
        "metrics": reply.get("metrics"),
    })))
}

/// `POST /v1/completions/derender`.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Posted { value, .. }: Posted,
) -> Answer {
    if value["stream"] == true {
        let request = DerenderStreamRequest::parse(&value)?;
        return stream::completion(&app, &request);
    }
    let request = DerenderCompletionRequest::parse(&value)?;
    let replies = &request.generate_responses;
    let Some(first) = replies.first() else {
        return Err(Fault::bad_request("generate_responses must not be empty"));
    };
    let model = model(&app, request.model.as_deref(), first)?;
    bounds::replies(&app, replies)?;
    let asked = Asked::of(request.completion_request.as_ref());
    let seeds = request.prompt_token_ids.as_deref().unwrap_or_default();
    let mut choices = Vec::new();
    let (mut prompt, mut completion) = (0, 0);
    for (at, reply) in replies.iter().enumerate() {
        let told = request.prompt_tokens.as_ref().and_then(|p| p.get(at));
        prompt += told.map_or(0, |n| (*n).max(0) as u64);
        completion += tokens(reply);
        let given = seeds.get(at).and_then(Option::as_deref);
        bounds::prompt(&app, given)?;
        let seed = decode::seed(given, reply);
        for (place, choice) in list(reply, "choices").enumerate() {
            let piece = Piece::of(choice);
            if piece.ids.is_empty() {
                return Err(Fault::bad_request(format!(
                    "choice {} in response {} has empty or null token_ids",
                    piece.index(place),
                    reply["request_id"].as_str().unwrap_or_default()
                )));
            }
            let (text, stop_reason) = whole(&app, &piece, &asked, &seed, asked.skip_special);
            let (logprobs, _) = logprobs::completion(&app, &piece, &asked, &[], 0);
            let shown = reply.get("prompt_token_ids");
            choices.push(json!({
                "index": choices.len(),
                "text": text,
                "logprobs": logprobs,
                "finish_reason": piece.finish(),
                "stop_reason": stop_reason,
                "token_ids": asked.ids(&piece, false),
                "prompt_logprobs": reply.get("prompt_logprobs"),
                "prompt_token_ids": shown.filter(|_| asked.return_token_ids),
                "routed_experts": null,
                "weight_versions": choice.get("weight_versions"),
            }));
        }
    }
    // What differs from prompt to prompt has no place in one answer.
    let alike = |key: &str| {
        let value = first.get(key);
        value.filter(|_| replies.iter().all(|reply| reply.get(key) == value))
    };
    Ok(ok(&json!({
        "id": first.get("request_id"),
        "object": "text_completion",
        "created": unix_now() as u64,
        "model": model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": counted(prompt, completion),
        "kv_transfer_params": alike("kv_transfer_params"),
        "ec_transfer_params": alike("ec_transfer_params"),
        "metrics": first.get("metrics").filter(|_| replies.len() == 1),
    })))
}

/// The assistant's message.
fn message(
    app: &App,
    asked: &Asked,
    said: Said,
    choice: usize,
    ids: &Arc<dyn Fn(usize, usize) -> String + Send + Sync>,
) -> Value {
    let mut message = json!({
        "role": app.config.model.response_role,
        "content": said.content,
        "refusal": null,
        "annotations": null,
        "audio": null,
        "function_call": null,
    });
    if !said.calls.is_empty() {
        let calls = said.calls.iter().enumerate();
        message["tool_calls"] = calls
            .map(|(call, (name, arguments))| {
                json!({
                    "id": ids(choice, call),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })
            })
            .collect();
    }
    message["reasoning"] = said
        .reasoning
        .filter(|_| asked.include_reasoning)
        .map_or(Value::Null, Value::String);
    message
}

/// How a choice ended, in chat's words; a whole one has ended somehow.
fn finish(piece: &Piece<'_>, said: &Said, whole: bool) -> Option<String> {
    let told = piece.finish().or(whole.then_some("stop"))?;
    let called = !said.calls.is_empty() && told == "stop";
    Some(if called { "tool_calls" } else { told }.to_owned())
}

fn model(app: &App, asked: Option<&str>, reply: &Value) -> Result<String, Fault> {
    let named = asked.or_else(|| reply.get("model")?.as_str());
    let target = prepare::target(app, named)?;
    Ok(match asked.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => app.service.models.shown(&target).to_string(),
    })
}

fn list<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// Output tokens of a reply.
fn tokens(reply: &Value) -> u64 {
    let each = list(reply, "choices").map(|choice| list(choice, "token_ids").count() as u64);
    each.sum()
}

fn counted(prompt: u64, completion: u64) -> Value {
    json!({
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": null,
        "completion_tokens_details": null,
    })
}
