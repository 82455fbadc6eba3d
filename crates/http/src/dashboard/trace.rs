//! `GET /dashboard/trace`: the newest requests and steps as a trace for Perfetto and Chrome.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};

use crate::admin::AdminAccess;
use crate::error::{self, HandlerResult};
use vllm_sim_service::run_blocking;

/// Handles `GET /dashboard/trace`: returns the trace of recent requests as a file. Clients need the
/// same permission as for `/admin/config`, because the trace contains request ids.
pub(crate) async fn download_request_trace(AdminAccess(app): AdminAccess) -> HandlerResult {
    app.records.trace.start_or_extend_trace_recording(app.service.rank_engines());
    let reader = app.clone();
    let trace = run_blocking(async move { reader.records.trace.recorded_trace_json() }).await;
    let mut response = match trace {
        Ok(trace) => Response::new(Body::from(trace)),
        Err(_) => return Ok(error::empty_response(StatusCode::INTERNAL_SERVER_ERROR)),
    };
    for (name, value) in [
        (header::CONTENT_TYPE, "application/json"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"vllm-sim-trace.json\""),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}
