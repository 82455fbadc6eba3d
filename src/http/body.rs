//! Request bodies: bounded, JSON, in vLLM's words when they are not.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::App;
use crate::wire::fault::{Fault, Kind};

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
            Err(Fault::new(413, Kind::TooLarge, message))
        }
        Err(error) => Err(Fault::bad_request(format!(
            "cannot read the request body: {error}"
        ))),
    }
}

/// Reads a body as JSON, the way FastAPI does. What parses it without waiting in between checks it
/// against this server's bounds.
///
/// # Errors
/// vLLM's 400 for another media type, for what is not JSON and for an empty body.
pub(super) async fn json(app: &App, headers: &HeaderMap, body: Body) -> Result<Value, Fault> {
    let bytes = read(app, body).await?;
    crate::wire::bounds::enter(app.defaults.bounds);
    crate::wire::body::read(
        headers
            .get(header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok()),
        &bytes,
    )
}
