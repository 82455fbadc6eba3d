//! What chat and completions do alike before the engine gets to work.

use std::sync::Arc;

use axum::http::HeaderMap;

use crate::http::app::App;
use crate::wire::fault::Fault;

/// 16 lower-case hex digits: the low 64 bits of a random UUID.
pub(in crate::http) fn uid() -> String {
    let (_, low) = uuid::Uuid::new_v4().as_u64_pair();
    format!("{low:016x}")
}

/// The id of a request: `prefix` and the header's, the body's or a fresh one.
pub(in crate::http) fn request_id(prefix: &str, headers: &HeaderMap, body: Option<&str>) -> Arc<str> {
    let header = headers.get("x-request-id").and_then(|v| v.to_str().ok()).filter(|v| !v.is_empty());
    match header.or(body.filter(|v| !v.is_empty())) {
        Some(given) => format!("{prefix}{given}").into(),
        None => format!("{prefix}{}", uid()).into(),
    }
}

/// The data-parallel rank a header asks for; not an integer: ignored.
pub(in crate::http) fn rank(headers: &HeaderMap) -> Option<i64> {
    headers.get("x-data-parallel-rank")?.to_str().ok()?.trim().parse().ok()
}

/// The priority: a header that is an integer wins over the body.
pub(in crate::http) fn priority(headers: &HeaderMap, body: i64) -> i64 {
    let header = headers.get("x-vllm-priority").and_then(|v| v.to_str().ok());
    header.and_then(|v| v.trim().parse().ok()).unwrap_or(body)
}

/// Who answers to a name.
///
/// # Errors
/// vLLM's 404.
pub(in crate::http) fn target(app: &App, model: Option<&str>) -> Result<crate::job::Target, Fault> {
    app.service.models.resolve(model).ok_or_else(|| {
        let models = &app.service.models;
        let mut names: Vec<Arc<str>> = models.served().to_vec();
        names.extend(models.adapters().iter().map(|a| a.name.clone()));
        Fault::unknown_model(model.unwrap_or_default(), &names)
    })
}
