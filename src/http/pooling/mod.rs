//! Pooling: vectors, classes and scores. They are functions of the tokens alone.

pub(super) mod classify;
pub(super) mod cohere;
pub(super) mod embeddings;
pub(super) mod score;
mod vector;

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::app::App;
use super::openai::{chat, prepare};
use crate::wire::fault::Fault;
use crate::wire::openai::chat::ChatRequest;
use crate::wire::openai::completion::{Prompt, Prompts};
use crate::wire::vllm::pooled::PoolingRequest;

/// The name that answers show; llm-d does not look at the one asked for.
fn model(app: &App, asked: Option<&str>) -> Result<Arc<str>, Fault> {
    match app.service.models.resolve(asked) {
        Some(target) => Ok(app.service.models.shown(&target)),
        None if app.is_llmd() => Ok(app.service.models.displayed().clone()),
        None => Err(Fault::unknown_pooling_model(asked.unwrap_or_default())),
    }
}

/// A request and the tokens of each of its inputs; a conversation is one input.
async fn read(
    app: &Arc<App>,
    value: &Value,
) -> Result<(PoolingRequest, Arc<str>, Vec<Vec<u32>>), Fault> {
    if value.get("normalize").is_some() {
        return Err(Fault::parameter(
            "`normalize` is not supported, use `use_activation` instead.",
            "normalize",
        ));
    }
    let Some(messages) = value
        .get("messages")
        .filter(|_| value.get("input").is_none())
    else {
        let request = PoolingRequest::parse(value)?;
        let model = model(app, request.model.as_deref())?;
        let inputs = tokens(app, &request).await?;
        return Ok((request, model, inputs));
    };
    let mut body = value.clone();
    body["input"] = "".into();
    let request = PoolingRequest::parse(&body)?;
    let model = model(app, request.model.as_deref())?;
    let mut chat = json!({"messages": messages});
    for key in [
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
    ] {
        if let Some(given) = value.get(key) {
            chat[key] = given.clone();
        }
    }
    let prompt = chat::prompt(app, &ChatRequest::parse(&chat)?).await?;
    prepare::fits(app, &prompt.tokens, true)?;
    Ok((request, model, vec![prompt.tokens]))
}

async fn tokens(app: &Arc<App>, request: &PoolingRequest) -> Result<Vec<Vec<u32>>, Fault> {
    let Prompts(prompts) = &request.input;
    if prompts.is_empty() {
        return Err(Fault::bad_request("You must pass at least one prompt"));
    }
    let mut inputs = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let (ids, text) = match prompt {
            Prompt::Text(text) => {
                let tokenizer = app.service.generator.tokenizer().clone();
                let (owned, special) = (text.clone(), request.add_special_tokens);
                let encode = move || tokenizer.encode(&owned, special);
                (prepare::off_thread(text.len(), encode).await, true)
            }
            Prompt::Tokens(ids) => {
                let small = |id: &i64| u32::try_from(*id).unwrap_or(u32::MAX);
                (ids.iter().map(small).collect(), false)
            }
        };
        let (keep, side) = (request.truncate_prompt_tokens, &request.truncation_side);
        let ids = prepare::truncate(app, ids, keep, side.as_deref());
        if ids.is_empty() {
            return Err(Fault::bad_request("The decoder prompt cannot be empty"));
        }
        prepare::fits(app, &ids, text)?;
        inputs.push(ids);
    }
    Ok(inputs)
}

/// Usage of a request that generates nothing.
fn usage(prompt_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": null,
        "completion_tokens_details": null,
    })
}

fn id(prefix: &str, headers: &HeaderMap, body: Option<&str>) -> String {
    prepare::request_id(prefix, headers, body).to_string()
}
