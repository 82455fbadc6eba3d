//! Request bodies: bounded, JSON, in vLLM's words when they are not.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::App;
use super::request_head::RequestHead;
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Reads a body up to the server's limit.
///
/// # Errors
/// 413 beyond the limit; 400 when the client breaks off.
pub(super) async fn read(app: &App, body: Body) -> Result<Bytes, Fault> {
    let limit = app.config.server.max_request_body_bytes;
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!(
                "request body is larger than {limit} bytes; raise --max-request-body-size-mb to allow it"
            );
            Err(Fault::new(413, ErrorType::TooLarge, message))
        }
        Err(error) => Err(Fault::bad_request(format!(
            "cannot read the request body: {error}"
        ))),
    }
}

/// A request's head and its whole body, for routes that read bodies in ways of their own.
pub(super) struct Received {
    pub(super) head: RequestHead,
    pub(super) bytes: Bytes,
}

impl Received {
    /// The media type that the client names.
    pub(super) fn media_type(&self) -> Option<&str> {
        let named = self.head.headers.get(header::CONTENT_TYPE)?;
        named.to_str().ok()
    }

    /// The body as JSON, the way FastAPI reads it.
    ///
    /// # Errors
    /// vLLM's 400 for another media type, for what is not JSON and for an empty body.
    pub(super) fn json(&self) -> Result<Value, Fault> {
        vllm_sim_wire::body::read(self.media_type(), &self.bytes)
    }
}

impl FromRequest<Arc<App>> for Received {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let (mut parts, body) = request.into_parts();
        Ok(Self {
            head: RequestHead {
                faults: parts.extensions.remove(),
                headers: parts.headers,
            },
            bytes: read(app, body).await?,
        })
    }
}

/// A request's head and its body as JSON ([`Received::json`]).
pub(super) struct Posted {
    pub(super) head: RequestHead,
    pub(super) value: Value,
}

impl FromRequest<Arc<App>> for Posted {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let received = Received::from_request(request, app).await?;
        Ok(Self {
            value: vllm_sim_wire::body::read(
                app.policy.media_type(received.media_type()),
                &received.bytes,
            )
            .map_err(|fault| app.policy.first_reader.unread(fault))?,
            head: received.head,
        })
    }
}
