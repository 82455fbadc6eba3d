//! API keys: protected paths, and the check of a client's key.

use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;

use super::bearer::has_valid_bearer_token;
use super::dialect::ApiDialect;
use super::error;
use super::layers::MiddlewareSettings;
use super::middleware::{Middleware, ResponseHook};

/// Path prefix of the gRPC methods that need an API key; [`UNGUARDED_HEALTH_CHECK`] needs none,
/// like `/health`.
const GUARDED_GRPC_PREFIX: &str = "/vllm.grpc.engine.VllmEngine/";
const UNGUARDED_HEALTH_CHECK: &str = "/vllm.grpc.engine.VllmEngine/HealthCheck";

/// Middleware that rejects requests without an API key where one is required.
pub(super) struct ApiKeyCheck {
    keys: Vec<String>,
    is_guarded: Box<dyn Fn(&Request) -> bool + Send + Sync>,
    refusal: fn() -> Response,
}

impl ApiKeyCheck {
    /// Creates the middleware that checks API keys of HTTP requests; `None` without `--api-key`.
    pub(super) fn new_for_http(
        settings: &MiddlewareSettings,
        dialect: &'static dyn ApiDialect,
        admin_key: Option<&String>,
    ) -> Option<Self> {
        let has_admin_key = admin_key.is_some();
        let is_guarded = move |request: &Request| {
            let path = request.uri().path();
            let needs_admin_key = has_admin_key && dialect.needs_admin_key(path);
            request.method() != Method::OPTIONS && dialect.needs_api_key(path) && !needs_admin_key
        };
        Self::new(&settings.api_keys, is_guarded, unauthorized_response)
    }

    /// Creates the middleware that checks the key of `--admin-api-key` on the routes that change
    /// the imitated server; `None` without the flag.
    pub(super) fn new_for_admin_routes(
        admin_key: Option<&String>,
        dialect: &'static dyn ApiDialect,
    ) -> Option<Self> {
        let is_guarded = move |request: &Request| {
            request.method() != Method::OPTIONS && dialect.needs_admin_key(request.uri().path())
        };
        Self::new(admin_key.map_or(&[], std::slice::from_ref), is_guarded, unauthorized_response)
    }

    /// Creates the middleware that checks API keys of gRPC calls; `None` without `--api-key`.
    pub(super) fn new_for_grpc(settings: &MiddlewareSettings) -> Option<Self> {
        Self::new(&settings.api_keys, is_guarded_grpc_call, unauthenticated_grpc_response)
    }

    fn new(
        keys: &[String],
        is_guarded: impl Fn(&Request) -> bool + Send + Sync + 'static,
        refusal: fn() -> Response,
    ) -> Option<Self> {
        let is_guarded = Box::new(is_guarded);
        (!keys.is_empty()).then(|| Self { keys: keys.to_vec(), is_guarded, refusal })
    }
}

impl Middleware for ApiKeyCheck {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        match (self.is_guarded)(request) && !has_valid_bearer_token(request.headers(), &self.keys) {
            true => Err((self.refusal)()),
            false => Ok(None),
        }
    }
}

fn unauthorized_response() -> Response {
    let body = "{\"error\":\"Unauthorized\"}".to_owned();
    error::json_response(StatusCode::UNAUTHORIZED, body)
}

fn is_guarded_grpc_call(call: &Request) -> bool {
    let path = call.uri().path();
    path.starts_with(GUARDED_GRPC_PREFIX) && path != UNGUARDED_HEALTH_CHECK
}

fn unauthenticated_grpc_response() -> Response {
    let mut response = error::empty_response(StatusCode::OK);
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", "16"),
        ("grpc-message", "Unauthorized"),
    ] {
        let headers = response.headers_mut();
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
