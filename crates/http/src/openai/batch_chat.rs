//! `POST /v1/chat/completions/batch`: several conversations with one choice each.
//!
//! Source: `vllm/entrypoints/openai/chat_completion/batch_serving.py`.

use axum::extract::State;
use serde_json::Value;

use super::chat;
use crate::app::AppState;
use crate::body::RawRequest;
use crate::error::HandlerResult;
use crate::generation::{self, GenerationRequestBody as _};
use crate::request_head::request_id;
use crate::transfer;
use vllm_sim_python::PythonValue;
use vllm_sim_wire::body::read_body_within_bounds;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::BatchChatRequest;
use vllm_sim_wire::openai::chat::ChatRequest;

/// Maximum number of conversations per batch request; each is one sequence.
const MAX_CONVERSATIONS: usize = 1024;

pub(crate) async fn create_batch_chat(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let (app, value) = (&app, received.parse_dialect_json(&app)?);
    let threshold = transfer::cache_hit_threshold(app, &received.headers, &value);
    let mut requests = split_conversations(value, &app.rules.defaults.bounds)?;
    let first = requests.first();
    let given = first.and_then(|request| request.request_id.as_deref());
    let id = request_id("chatcmpl-", &received.headers, given);
    let model = first.and_then(|request| request.model.as_deref());
    let lora = generation::resolve_model(app, &received, model, Ok(()))?;
    received.check_prompt_encodable(ChatRequest::TEXT_MEMBERS)?;
    let started =
        chat::start_chat_generation(app, &received, &mut requests, lora, id, threshold).await;
    let (mut view, reply) = started.map_err(|refused| refused.error)?;
    // vLLM reports only totals for a batch, and nothing of the prompts.
    view.prompt_ids = None;
    let shape = &mut view.view;
    (shape.prompt_details, shape.reasoning_details, shape.metrics) = (false, false, false);
    shape.drafts = None;
    let body = generation::render_finished_reply(reply, move |reply| {
        view.chat_completion_body_json(reply)
    })
    .await?;
    Ok(generation::json_response_with_load_header(app, &received.headers, body))
}

/// Maximum product of the number of conversations and the number of JSON values outside `messages`,
/// in a batch request.
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
    check_batch_size(&value)?;
    read_body_within_bounds::<BatchChatRequest>(&value, bounds)?;
    let Value::Object(mut body) = value else { return Ok(Vec::new()) };
    let messages = body.shift_remove("messages");
    // vLLM takes `stream` and answers with the last token alone.
    if body.get("stream").is_some_and(|stream| PythonValue::from_json_value(stream).is_truthy()) {
        let text = "Batch chat completions do not support streaming.";
        return Err(Fault::bad_parameter(text, "stream"));
    }
    BatchChatRequest::fill_conversation_body_defaults(&mut body);
    let parse = |messages: &Value| {
        let mut one = body.clone();
        one.insert("messages".to_owned(), messages.clone());
        ChatRequest::parse_chat_request(&Value::Object(one), bounds)
    };
    messages.iter().filter_map(Value::as_array).flatten().map(parse).collect()
}

fn check_batch_size(body: &Value) -> Result<(), Fault> {
    let Some(Value::Array(lists)) = body.get("messages") else { return Ok(()) };
    let count = lists.len();
    if count > MAX_CONVERSATIONS {
        let text = format!("at most {MAX_CONVERSATIONS} conversations are allowed, got {count}");
        return Err(Fault::bad_parameter(text, "messages"));
    }
    let others = body.as_object().into_iter().flatten().filter(|(key, _)| *key != "messages");
    let shared: usize = others.map(|(_, value)| count_json_values(value)).sum();
    if shared.saturating_mul(count) > MAX_SHARED_VALUES {
        return Err(Fault::bad_request(format!(
            "{shared} values for each of {count} conversations are too many; at most \
             {MAX_SHARED_VALUES} in total are allowed."
        )));
    }
    Ok(())
}
