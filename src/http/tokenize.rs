//! `POST /tokenize`, `POST /detokenize`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use serde_json::Value;

use super::app::App;
use super::openai::prepare;
use super::{body, error, json};
use crate::tokenizer::ChatInput;
use crate::wire::fault::Fault;

/// Text or a conversation to token ids.
pub(super) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let answer = async {
        let value = body::json(&app, &parts.headers, body).await?;
        encode(&app, &value).await
    };
    answer
        .await
        .unwrap_or_else(|fault: Fault| error::response(&fault))
}

/// Token ids to text.
pub(super) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let answer = async {
        let value = body::json(&app, &parts.headers, body).await?;
        prepare::target(&app, value.get("model").and_then(Value::as_str))?;
        let ids: Vec<u32> = value
            .get("tokens")
            .and_then(Value::as_array)
            .map(|ids| {
                ids.iter()
                    .map(|id| id.as_u64().map_or(u32::MAX, |id| id as u32))
                    .collect()
            })
            .unwrap_or_default();
        let mut out = String::from("{\"prompt\":");
        json::string(
            &mut out,
            &app.service.generator.tokenizer().decode(&ids, false),
        );
        out.push('}');
        Ok(error::json(StatusCode::OK, out))
    };
    answer
        .await
        .unwrap_or_else(|fault: Fault| error::response(&fault))
}

async fn encode(app: &Arc<App>, value: &Value) -> Result<Response<Body>, Fault> {
    prepare::target(app, value.get("model").and_then(Value::as_str))?;
    let tokenizer = app.service.generator.tokenizer().clone();
    let flag = |key: &str, default| value.get(key).and_then(Value::as_bool).unwrap_or(default);
    let strings = flag("return_token_strs", false);
    let tokens = if let Some(prompt) = value.get("prompt").and_then(Value::as_str) {
        let (text, special) = (prompt.to_owned(), flag("add_special_tokens", true));
        let tokenizer = tokenizer.clone();
        prepare::off_thread(prompt.len(), move || tokenizer.encode(&text, special)).await
    } else {
        let messages = value
            .get("messages")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let text = tokenizer.render_chat(&ChatInput {
            messages: &messages,
            tools: value
                .get("tools")
                .and_then(Value::as_array)
                .map(Vec::as_slice),
            documents: None,
            add_generation_prompt: flag("add_generation_prompt", true),
            continue_final_message: flag("continue_final_message", false),
            chat_template: value.get("chat_template").and_then(Value::as_str),
            kwargs: value.get("chat_template_kwargs").and_then(Value::as_object),
            content_format: None,
        });
        let text = text.map_err(prepare::template_fault)?;
        tokenizer.encode(&text, flag("add_special_tokens", false))
    };
    let mut out = String::from("{\"count\":");
    json::int(&mut out, tokens.len());
    out.push_str(",\"max_model_len\":");
    json::int(&mut out, app.config.model.max_model_len);
    out.push_str(",\"tokens\":");
    json::ints(&mut out, tokens.iter().copied());
    out.push_str(",\"token_strs\":");
    if strings {
        out.push('[');
        for (index, id) in tokens.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            json::string(&mut out, &tokenizer.piece(*id).unwrap_or_default());
        }
        out.push(']');
    } else {
        out.push_str("null");
    }
    out.push('}');
    Ok(error::json(StatusCode::OK, out))
}
