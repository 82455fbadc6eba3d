//! vLLM's own routes: LoRA adapters, development, control, and token-in/token-out.

pub(super) mod derender;
pub(super) mod docs;
pub(super) mod engine_control;
pub(super) mod fault_tolerance;
pub(super) mod generate;
mod generate_render;
pub(super) mod info;
pub(super) mod kv_cache;
pub(super) mod lora;
mod own_routes;
pub(super) mod profile;
pub(super) mod render;
pub(super) mod sagemaker;
pub(super) mod scoring;
pub(super) mod weights;

use axum::body::{Body, Bytes};
use axum::http::Response;
use serde_json::Value;

use super::error;
use vllm_sim_python::{self as python, JsonLoadsError};
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Returns a text response without a content type, as Starlette's bare `Response` does.
fn bare_text_response(text: String) -> Response<Body> {
    Response::new(Body::from(text))
}

/// Parses a request body as JSON regardless of its media type, as vLLM's handlers that read the
/// body themselves do.
///
/// # Errors
/// 400 with `message`, in which `{}` is replaced by Python's error.
fn parse_raw_json(bytes: &Bytes, message: &str) -> Result<Value, Fault> {
    vllm_sim_wire::body::check_json_value_count(bytes)?;
    python::loads(bytes).map_err(|error| {
        let python = match error {
            JsonLoadsError::Decode { .. } => error.error_message_with_position(bytes),
            JsonLoadsError::Unreadable => "the body is not JSON".to_owned(),
        };
        http_exception(message.replace("{}", &python))
    })
}

/// Returns an error for every render, derender and generate route of a server without
/// `--enable-scale-out`.
pub(crate) async fn scale_out_disabled_response() -> Response<Body> {
    error::fault_response(&Fault::scale_out_disabled_fault())
}

/// Returns the error of FastAPI's `HTTPException` with status 400.
fn http_exception(message: impl Into<String>) -> Fault {
    Fault::new(400, ErrorType::BadRequestPhrase, message)
}
