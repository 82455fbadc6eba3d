//! The derender routes: from a reply in tokens to one in OpenAI's shape.
//!
//! Source: vLLM `entrypoints/scale_out/derender/`.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::ok;
use crate::http::app::{App, unix_now};
use crate::http::body::Posted;
use crate::http::error::Answer;
use crate::http::openai::prepare;
use crate::wire::fault::Fault;
use crate::wire::vllm::control::{DerenderChatRequest, DerenderCompletionRequest};

/// `POST /v1/chat/completions/derender`.
pub(in crate::http) async fn chat(
    State(app): State<Arc<App>>,
    Posted { value, .. }: Posted,
) -> Answer {
    let asked = DerenderChatRequest::parse(&value)?;
    let reply = &asked.generate_response;
    let model = model(&app, asked.model.as_deref(), reply)?;
    let prompt = asked
        .prompt_tokens
        .map(|n| n.max(0) as u64)
        .or(asked.prompt_token_ids.as_ref().map(|ids| ids.len() as u64));
    let choices: Vec<Value> = choices(reply)
        .enumerate()
        .map(|(index, choice)| {
            let (text, _) = text(&app, choice);
            let (reasoning, content) = parted(&app, text);
            json!({
                "index": choice.get("index").cloned().unwrap_or_else(|| index.into()),
                "message": {
                    "role": app.config.model.response_role,
                    "content": content,
                    "refusal": null,
                    "annotations": null,
                    "audio": null,
                    "function_call": null,
                    "reasoning": reasoning,
                },
                "logprobs": null,
                "finish_reason": choice.get("finish_reason").cloned()
                    .unwrap_or_else(|| "stop".into()),
                "stop_reason": choice.get("stop_reason"),
                "token_ids": null,
                "routed_experts": null,
                "weight_versions": choice.get("weight_versions"),
            })
        })
        .collect();
    Ok(ok(&json!({
        "id": reply.get("request_id"),
        "object": "chat.completion",
        "created": created(reply),
        "model": model,
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": usage(reply, prompt),
        "prompt_logprobs": reply.get("prompt_logprobs"),
        "prompt_token_ids": null,
        "prompt_text": null,
        "kv_transfer_params": reply.get("kv_transfer_params"),
        "ec_transfer_params": reply.get("ec_transfer_params"),
        "metrics": null,
    })))
}

/// `POST /v1/completions/derender`.
pub(in crate::http) async fn completions(
    State(app): State<Arc<App>>,
    Posted { value, .. }: Posted,
) -> Answer {
    let asked = DerenderCompletionRequest::parse(&value)?;
    let Some(first) = asked.generate_responses.first() else {
        return Err(Fault::bad_request("generate_responses must not be empty."));
    };
    let model = model(&app, asked.model.as_deref(), first)?;
    let mut shown = Vec::new();
    let (mut prompt, mut completion) = (0, 0);
    for (at, reply) in asked.generate_responses.iter().enumerate() {
        let told = asked.prompt_tokens.as_ref().and_then(|p| p.get(at));
        let counts = usage(reply, told.map(|n| (*n).max(0) as u64));
        prompt += counts["prompt_tokens"].as_u64().unwrap_or(0);
        completion += counts["completion_tokens"].as_u64().unwrap_or(0);
        for choice in choices(reply) {
            shown.push(json!({
                "index": shown.len(),
                "text": text(&app, choice).0,
                "logprobs": null,
                "finish_reason": choice.get("finish_reason").cloned()
                    .unwrap_or_else(|| "stop".into()),
                "stop_reason": choice.get("stop_reason"),
                "token_ids": null,
                "prompt_logprobs": reply.get("prompt_logprobs"),
                "prompt_token_ids": null,
                "routed_experts": null,
                "weight_versions": choice.get("weight_versions"),
            }));
        }
    }
    Ok(ok(&json!({
        "id": first.get("request_id"),
        "object": "text_completion",
        "created": created(first),
        "model": model,
        "choices": shown,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": counted(prompt, completion),
        "kv_transfer_params": first.get("kv_transfer_params"),
        "ec_transfer_params": first.get("ec_transfer_params"),
        "metrics": null,
    })))
}

fn model(app: &App, asked: Option<&str>, reply: &Value) -> Result<String, Fault> {
    let named = asked.or_else(|| reply.get("model")?.as_str());
    let target = prepare::target(app, named)?;
    Ok(app.service.models.shown(&target).to_string())
}

fn created(reply: &Value) -> Value {
    let created = reply.get("created").filter(|c| c.is_u64());
    created
        .cloned()
        .unwrap_or_else(|| (unix_now() as u64).into())
}

fn choices(reply: &Value) -> impl Iterator<Item = &Value> {
    reply
        .get("choices")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// The text of a choice, and how many tokens it has.
fn text(app: &App, choice: &Value) -> (String, u64) {
    let ids: Vec<u32> = choice
        .get("token_ids")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|id| {
            id.as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .unwrap_or(u32::MAX)
        })
        .collect();
    let given = choice.get("text").and_then(Value::as_str);
    let text = match given {
        Some(text) => text.to_owned(),
        None => app.service.generator.tokenizer().decode(&ids, true),
    };
    (text, ids.len() as u64)
}

/// Reasoning and answer, when a reasoning parser is set.
fn parted(app: &App, text: String) -> (Option<String>, Option<String>) {
    if app.config.api.reasoning_parser.is_none() {
        return (None, Some(text));
    }
    match text.split_once("</think>") {
        Some((reasoning, content)) => (
            Some(reasoning.trim_start_matches("<think>").to_owned()),
            Some(content.to_owned()).filter(|content| !content.is_empty()),
        ),
        None => (Some(text), None),
    }
}

/// The reply's own usage, else what can be counted.
fn usage(reply: &Value, prompt: Option<u64>) -> Value {
    if let Some(usage) = reply.get("usage").filter(|usage| usage.is_object()) {
        return usage.clone();
    }
    let tokens = |choice: &Value| {
        choice
            .get("token_ids")
            .and_then(Value::as_array)
            .map_or(0, |ids| ids.len() as u64)
    };
    let ids = reply.get("prompt_token_ids").and_then(Value::as_array);
    let prompt = prompt.or(ids.map(|ids| ids.len() as u64)).unwrap_or(0);
    counted(prompt, choices(reply).map(tokens).sum())
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
