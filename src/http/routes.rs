//! Every route on one screen.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::{MethodRouter, any, get, post};

use super::app::App;
use super::openai::{batch, chat, completion, models, responses};
use super::{anthropic, error, invocations, ops, tokenize};

/// Path, methods (as `allow` names them), handler.
type Route = (&'static str, &'static str, MethodRouter<Arc<App>>);

const RESPONSE: &str = "/v1/responses/{response_id}";
const RESPONSE_CANCEL: &str = "/v1/responses/{response_id}/cancel";

/// Every route there is; the server's configuration leaves some out.
fn table() -> Vec<Route> {
    vec![
        ("/v1/chat/completions", "POST", post(chat::create)),
        ("/v1/completions", "POST", post(completion::create)),
        ("/v1/chat/completions/batch", "POST", post(batch::create)),
        ("/v1/messages", "POST", post(anthropic::create)),
        (
            "/v1/messages/count_tokens",
            "POST",
            post(anthropic::count_tokens),
        ),
        ("/v1/responses", "POST", post(responses::create)),
        (RESPONSE, "GET", get(responses::retrieve)),
        (RESPONSE_CANCEL, "POST", post(responses::cancel)),
        ("/invocations", "POST", post(invocations::invoke)),
        ("/v1/models", "GET", get(models::list)),
        ("/tokenize", "POST", post(tokenize::tokenize)),
        ("/detokenize", "POST", post(tokenize::detokenize)),
        ("/health", "GET", get(ops::health)),
        ("/health/ready", "GET", get(ops::ready)),
        ("/ready", "GET", get(ops::ready)),
        ("/ping", "GET, POST", get(ops::health).post(ops::health)),
        ("/version", "GET", get(ops::version)),
        ("/load", "GET", get(ops::load)),
        ("/metrics", "GET", get(ops::metrics)),
    ]
}

/// Paths of all routes, for the redirect of a trailing slash and for answers to HEAD.
fn methods(path: &str) -> Option<&'static str> {
    static METHODS: std::sync::LazyLock<std::collections::HashMap<&str, &str>> =
        std::sync::LazyLock::new(|| table().into_iter().map(|(p, m, _)| (p, m)).collect());
    METHODS.get(template(path)).copied()
}

/// The route a path belongs to, as `http_*` names it; the path itself when there is none.
pub(super) fn template(path: &str) -> &str {
    let Some(rest) = path.strip_prefix("/v1/responses/") else {
        return path;
    };
    match rest.split_once('/') {
        None if !rest.is_empty() => RESPONSE,
        Some((id, "cancel")) if !id.is_empty() => RESPONSE_CANCEL,
        _ => path,
    }
}

/// Paths of all routes, and of the redirects to them.
pub fn routes() -> Vec<String> {
    let paths = table().into_iter().map(|(path, ..)| path);
    paths
        .flat_map(|path| [path.to_owned(), format!("{path}/")])
        .collect()
}

/// The router of a server.
pub(super) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (path, allow, handler) in table() {
        router = router.route(
            path,
            handler.fallback(move || async move { wrong_method(allow) }),
        );
    }
    router.fallback(any(unknown)).with_state(app)
}

/// Whether HEAD is answered as GET is.
pub(super) fn answers_head(path: &str) -> bool {
    matches!(
        path,
        "/metrics" | "/openapi.json" | "/docs" | "/redoc" | "/docs/oauth2-redirect"
    )
}

/// The answer to a HEAD that is not: 405 on a route, 404 elsewhere.
pub(super) fn no_head(path: &str) -> Response<Body> {
    match methods(path) {
        Some(allow) => wrong_method(allow),
        None => not_found(),
    }
}

fn wrong_method(allow: &'static str) -> Response<Body> {
    let body = "{\"detail\":\"Method Not Allowed\"}".to_owned();
    let mut response = error::json(StatusCode::METHOD_NOT_ALLOWED, body);
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

fn not_found() -> Response<Body> {
    error::json(
        StatusCode::NOT_FOUND,
        "{\"detail\":\"Not Found\"}".to_owned(),
    )
}

/// No route: a trailing slash too many is a redirect, all else 404.
async fn unknown(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let path = request.uri().path();
    let Some(route) = path
        .strip_suffix('/')
        .filter(|path| methods(path).is_some())
    else {
        return not_found();
    };
    let scheme = if app.config.server.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|h| h.to_str().ok());
    let host = host
        .or(request.uri().authority().map(|a| a.as_str()))
        .unwrap_or("localhost");
    let query = request
        .uri()
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let root = &app.config.server.root_path;
    let location = format!("{scheme}://{host}{root}{route}{query}");
    let mut response = error::empty(StatusCode::TEMPORARY_REDIRECT);
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
