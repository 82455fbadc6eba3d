//! Reads request bodies, limited in size and time, with vLLM's errors for invalid JSON.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use serde_json::Value;

use super::App;
use super::request_head::RequestHead;
use super::{bounded_body, error};
use vllm_sim_service::RequestContext;
use vllm_sim_wire::body::estimated_memory;
use vllm_sim_wire::fault::Fault;

/// Reads a request body up to the server's size limit.
///
/// # Errors
/// 413 above the limit; 408 below the minimum rate; 400 if the client disconnects.
pub(super) async fn read_body(app: &App, body: Body) -> Result<Bytes, Fault> {
    bounded_body::read_limited_body(body, app.settings.server.max_body_bytes).await
}

/// Headers and complete body of a request, for routes that parse the body themselves.
pub(super) struct RawRequest {
    pub(super) head: RequestHead,
    pub(super) bytes: Bytes,
}

impl RawRequest {
    pub(super) fn media_type(&self) -> Option<&str> {
        let named = self.head.headers.get(header::CONTENT_TYPE)?;
        named.to_str().ok()
    }

    /// Parses the request body as JSON, as FastAPI does.
    ///
    /// # Errors
    /// vLLM's 400 for another media type, invalid JSON or an empty body.
    pub(super) fn parse_fastapi_json(&self) -> Result<Value, Fault> {
        vllm_sim_wire::body::read_json_body(self.media_type(), &self.bytes)
    }

    /// Parses the request body as JSON by the rules of the imitated server, vLLM or
    /// llm-d-inference-sim.
    ///
    /// # Errors
    /// The errors of [`Self::parse_fastapi_json`], converted to that API.
    pub(super) fn parse_dialect_json(&self, app: &App) -> Result<Value, Fault> {
        let media_type = app.dialect.media_type(self.media_type());
        vllm_sim_wire::body::read_json_body(media_type, &self.bytes)
            .map_err(|fault| app.dialect.unreadable_body_fault(fault))
    }

    /// Returns the raw request body if nothing reads it before the JSON schema.
    ///
    /// Returns `None` if the imitated server checks the body before the schema, or rejects its
    /// media type.
    pub(super) fn schema_only_body(&self, app: &App) -> Option<&[u8]> {
        let schema_first = app.dialect.checks_schema_first();
        self.body_if_json(app).filter(|_| schema_first)
    }

    /// Returns the raw request body unless its media type is rejected.
    pub(super) fn body_if_json(&self, app: &App) -> Option<&[u8]> {
        let media_type = app.dialect.media_type(self.media_type());
        let taken = vllm_sim_wire::body::check_media_type(media_type).is_ok();
        taken.then_some(&self.bytes)
    }
}

impl FromRequest<Arc<App>> for RawRequest {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let (mut parts, body) = request.into_parts();
        let context: RequestContext = parts.extensions.remove().unwrap_or_default();
        let bytes = read_body(app, body).await?;
        let memory = app.service.message_memory().reserve(estimated_memory(&bytes));
        let memory = memory.map_err(|full| error::serve_error_fault(&full.into()))?;
        Ok(Self {
            head: RequestHead {
                faults: context.faults,
                usage: context.usage,
                _memory: memory,
                ..RequestHead::new(parts.headers)
            },
            bytes,
        })
    }
}

/// Headers of a request and its body as JSON ([`RawRequest::parse_fastapi_json`]).
pub(super) struct JsonRequest {
    pub(super) head: RequestHead,
    pub(super) value: Value,
}

impl FromRequest<Arc<App>> for JsonRequest {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let received = RawRequest::from_request(request, app).await?;
        Ok(Self { value: received.parse_dialect_json(app)?, head: received.head })
    }
}
