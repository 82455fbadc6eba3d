//! Middleware that sees a request before it is handled and its response afterwards, without waiting.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service};

/// A service for all routes, with any middleware around it.
pub(super) type MiddlewareStack = BoxCloneSyncService<Request, Response, Infallible>;

/// The change that a middleware makes to the response to one request; `None` for no change.
pub(super) type ResponseHook = Option<Box<dyn FnOnce(Response) -> Response + Send>>;

/// A middleware of all routes, which never waits.
pub(super) trait Middleware: Send + Sync {
    /// Receives a request before the inner services do.
    ///
    /// # Errors
    /// The response to a request that the inner services do not see.
    #[expect(clippy::result_large_err, reason = "it is rare, and moved once in either form")]
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response>;
}

/// Puts middleware around a service; the first of the list is the outermost.
pub(super) fn add_middleware<S>(list: Vec<Box<dyn Middleware>>, inner: S) -> MiddlewareStack
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let list: Arc<[Box<dyn Middleware>]> = list.into();
    BoxCloneSyncService::new(from_fn_with_state(list, run_middleware).layer(inner))
}

async fn run_middleware(
    State(list): State<Arc<[Box<dyn Middleware>]>>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut hooks = Vec::with_capacity(list.len());
    for middleware in &*list {
        match middleware.on_request(&mut request) {
            Ok(hook) => hooks.extend(hook),
            Err(response) => return run_hooks(hooks, response),
        }
    }
    run_hooks(hooks, next.run(request).await)
}

fn run_hooks(
    hooks: Vec<Box<dyn FnOnce(Response) -> Response + Send>>,
    response: Response,
) -> Response {
    hooks.into_iter().rev().fold(response, |response, hook| hook(response))
}
