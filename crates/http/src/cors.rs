//! CORS, as Starlette's middleware implements it.
//!
//! `tower_http::cors` differs in visible bytes: it treats every `OPTIONS` request as a preflight
//! and never rejects one. It sends `*` to requests without an origin, and lowercase names in
//! `vary`.
//!
//! Source: Starlette 1.10 `middleware/cors.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use super::middleware::{Middleware, ResponseHook};
use vllm_sim_config::CorsConfig;

/// Methods that CORS allows if `*` is configured.
const ALL_METHODS: &str = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY";

/// Value of `Vary` in the response to a CORS preflight request.
const PREFLIGHT_VARY: &str = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network";

/// Answers CORS preflight requests and adds CORS headers to other responses.
pub(super) struct CorsRules(pub Arc<CorsConfig>);

impl Middleware for CorsRules {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        let origin = request.headers().get(header::ORIGIN).cloned();
        let cors = self.0.clone();
        let add_headers = move |mut response: Response| {
            add_cors_headers(&cors, origin.as_ref(), &mut response);
            response
        };
        match preflight_response(&self.0, request) {
            Some(response) => Err(add_headers(response)),
            None => Ok(Some(Box::new(add_headers))),
        }
    }
}

/// Returns the response to a CORS preflight request; `None` for other requests.
fn preflight_response(cors: &CorsConfig, request: &Request) -> Option<Response> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS {
        return None;
    }
    let origin = headers.get(header::ORIGIN)?;
    let method = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    let mut failed = Vec::new();
    if !allows_origin(&cors.origins, origin) {
        failed.push("origin");
    }
    let methods = if cors.methods.iter().any(|m| m == "*") {
        ALL_METHODS.to_owned()
    } else {
        cors.methods.join(", ")
    };
    let mut allowed = methods.split(", ");
    if !allowed.any(|m| m.as_bytes() == method.as_bytes()) {
        failed.push("method");
    }
    let text = match failed.as_slice() {
        [] => "OK".to_owned(),
        failed => format!("Disallowed CORS {}", failed.join(", ")),
    };
    let mut response = Response::new(Body::from(text));
    if !failed.is_empty() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    let out = response.headers_mut();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    out.insert(header::CONTENT_TYPE, plain);
    if let Ok(methods) = HeaderValue::from_str(&methods) {
        out.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    let ten_minutes = HeaderValue::from_static("600");
    out.insert(header::ACCESS_CONTROL_MAX_AGE, ten_minutes);
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    out.insert(header::VARY, HeaderValue::from_static(PREFLIGHT_VARY));
    Some(response)
}

/// Adds the CORS headers of a request that is no preflight to its response.
fn add_cors_headers(cors: &CorsConfig, origin: Option<&HeaderValue>, response: &mut Response) {
    let headers = response.headers_mut();
    if let Some(origin) = origin.filter(|origin| allows_origin(&cors.origins, origin)) {
        let any = cors.origins.iter().any(|o| o == "*") && !cors.credentials;
        let shown = if any { HeaderValue::from_static("*") } else { origin.clone() };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, shown);
        if cors.credentials {
            let yes = HeaderValue::from_static("true");
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
    }
    headers.entry(header::VARY).or_insert(HeaderValue::from_static("Origin"));
}

fn allows_origin(origins: &[String], origin: &HeaderValue) -> bool {
    origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
}
