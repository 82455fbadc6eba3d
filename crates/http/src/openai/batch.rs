//! `POST /v1/chat/completions/batch`: several conversations with one choice each.
//!
//! Source: `vllm/entrypoints/openai/chat_completion/batch_serving.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value};

use super::chat;
use super::ids;
use crate::app::App;
use crate::body::JsonRequest;
use crate::error::HandlerResult;
use crate::generation;
use crate::request_head::RequestHead;
use crate::transfer;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;

/// Maximum number of conversations per batch request; each is one sequence.
const MAX_CONVERSATIONS: usize = 1024;

pub(crate) async fn create_batch_chat(
    State(app): State<Arc<App>>,
    JsonRequest { head, value }: JsonRequest,
) -> HandlerResult {
    answer_batch(&app, &head, value).await
}

async fn answer_batch(
    app: &Arc<App>,
    head: &RequestHead,
    value: Value,
) -> Result<Response<Body>, Fault> {
    let threshold = transfer::cache_hit_threshold(app, &head.headers, &value);
    let mut requests = split_conversations(value, &app.rules.defaults.bounds)?;
    let id = ids::request_id("chatcmpl-", &head.headers, requests[0].request_id.as_deref());
    let resolved = generation::resolve_model(app, head, requests[0].model.as_deref(), Ok(()))?;
    let started = chat::start_chats(app, head, &mut requests, resolved, id, threshold).await;
    let (mut view, reply) = started?;
    // vLLM reports only totals for a batch.
    let shape = &mut view.view;
    (shape.prompt_details, shape.reasoning_details, shape.metrics) = (false, false, false);
    shape.drafts = None;
    let body = generation::render_when_finished(reply, move |reply| view.body_json(reply)).await?;
    Ok(generation::json_response_with_load(app, &head.headers, body))
}

/// Maximum number of JSON values outside `messages`, multiplied by the number of conversations of a
/// batch request.
///
/// Each conversation gets a copy of them.
const MAX_SHARED_VALUES: usize = 1 << 20;

/// Counts the JSON values inside a value, including the value itself.
fn count_json_values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count_json_values).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count_json_values).sum::<usize>(),
        _ => 1,
    }
}

fn split_conversations(value: Value, bounds: &RequestBounds) -> Result<Vec<ChatRequest>, Fault> {
    let Value::Object(body) = value else {
        return ChatRequest::parse(&value, bounds).map(|one| vec![one]);
    };
    let refuse = |text: &str, parameter: &str| Err(Fault::bad_parameter(text, parameter));
    let truthy = |key: &str| {
        body.get(key).is_some_and(|v| vllm_sim_python::PythonValue::from_json_value(v).is_truthy())
    };
    if truthy("stream") {
        return refuse("Batch chat completions do not support streaming.", "stream");
    }
    if truthy("tools") {
        return refuse("Batch chat completions do not support tool use.", "tools");
    }
    if truthy("use_beam_search") {
        let text = "Batch chat completions do not support beam search.";
        return refuse(text, "use_beam_search");
    }
    if body.get("n").is_some_and(|n| !n.is_null() && *n != 1) {
        return refuse("Batch chat completions require n=1.", "n");
    }
    let lists = match body.get("messages") {
        Some(Value::Array(lists)) if !lists.is_empty() => lists.clone(),
        Some(Value::Array(_)) => {
            let text = "1 validation error:\n  {'type': 'too_short', 'loc': 'body.messages', 'msg': 'List should have at least 1 item after validation, not 0', 'input': '<list of 0 items>', 'ctx': {'field_type': 'List', 'min_length': 1, 'actual_length': 0}}";
            return Err(Fault {
                param: Some("body.messages".to_owned()),
                ..Fault::new(400, ErrorType::BadRequestPhrase, text)
            });
        }
        _ => return ChatRequest::parse(&Value::Object(body), bounds).map(|one| vec![one]),
    };
    if lists.len() > MAX_CONVERSATIONS {
        let text =
            format!("at most {MAX_CONVERSATIONS} conversations are allowed, got {}", lists.len());
        return Err(Fault::bad_parameter(text, "messages"));
    }
    let mut body = body;
    body.shift_remove("messages");
    let shared: usize = body.values().map(count_json_values).sum();
    if shared.saturating_mul(lists.len()) > MAX_SHARED_VALUES {
        let count = lists.len();
        return Err(Fault::bad_request(format!(
            "{shared} values for each of {count} conversations are too many; at most {MAX_SHARED_VALUES} \
             in total are allowed."
        )));
    }
    let parse = |messages: Value| {
        let mut one: Map<String, Value> = body.clone();
        one.shift_remove("stream");
        one.shift_remove("tool_choice");
        one.insert("messages".to_owned(), messages);
        ChatRequest::parse(&Value::Object(one), bounds)
    };
    lists.into_iter().map(parse).collect()
}
