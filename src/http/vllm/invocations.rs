//! `POST /invocations`: SageMaker's one route for all tasks.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;

use super::{answered, raw_json};
use crate::http::app::App;
use crate::http::body;
use crate::http::openai::{chat, completion};
use crate::wire::openai::chat::ChatRequest;

/// A body that a chat takes is one, every other body is a completion.
pub(in crate::http) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    answered(async {
        let bytes = body::read(&app, body).await?;
        let value = raw_json(&bytes, "JSON decode error: {}")?;
        if ChatRequest::parse(&value).is_ok() {
            chat::answer(&app, &parts.headers, &value).await
        } else {
            completion::answer(&app, &parts.headers, &value).await
        }
    })
    .await
}
