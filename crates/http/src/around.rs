//! Middleware that sees a request before it is handled and its response afterwards.
//!
//! axum's `from_fn` boxes the future of every middleware. These two functions do not wait, so they
//! need no box.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::extract::Request;
use axum::response::Response;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

/// Middleware that changes a request before it is handled, and its response afterwards.
pub(super) trait Middleware: Clone {
    /// The data of a request that [`Middleware::on_response`] needs for its response.
    type RequestData;

    /// Receives a request before the inner services do.
    ///
    /// # Errors
    /// The response to a request that the inner services do not see.
    #[expect(clippy::result_large_err, reason = "it is rare, and moved once in either form")]
    fn on_request(&self, request: &mut Request) -> Result<Self::RequestData, Response>;

    /// Changes the response of the inner services.
    fn on_response(&self, kept: Self::RequestData, response: Response) -> Response;
}

/// Makes a tower layer of a middleware that implements [`Middleware`].
#[derive(Clone)]
pub(super) struct MiddlewareLayer<A>(pub A);

impl<A: Middleware, S> Layer<S> for MiddlewareLayer<A> {
    type Service = MiddlewareService<A, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let around = self.0.clone();
        MiddlewareService { around, inner }
    }
}

/// A tower service with a middleware that implements [`Middleware`] around it.
#[derive(Clone)]
pub(super) struct MiddlewareService<A, S> {
    around: A,
    inner: S,
}

impl<A: Middleware, S> Service<Request> for MiddlewareService<A, S>
where
    S: Service<Request, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = MiddlewareFuture<A, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        match self.around.on_request(&mut request) {
            Ok(kept) => MiddlewareFuture::Handled {
                kept: Some((self.around.clone(), kept)),
                response: self.inner.call(request),
            },
            Err(response) => MiddlewareFuture::Refused { response: Some(response) },
        }
    }
}

pin_project! {
    /// Resolves to the response of a [`MiddlewareService`].
    #[project = Projected]
    pub(super) enum MiddlewareFuture<A: Middleware, F> {
        Refused { response: Option<Response> },
        Handled { kept: Option<(A, A::RequestData)>, #[pin] response: F },
    }
}

impl<A: Middleware, F, E> Future for MiddlewareFuture<A, F>
where
    F: Future<Output = Result<Response, E>>,
{
    type Output = Result<Response, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const POLLED_AFTER_END: &str = "a future is not polled after its end";
        Poll::Ready(match self.project() {
            Projected::Refused { response } => Ok(response.take().expect(POLLED_AFTER_END)),
            Projected::Handled { kept, response } => {
                let response = ready!(response.poll(cx));
                let (around, kept) = kept.take().expect(POLLED_AFTER_END);
                response.map(|response| around.on_response(kept, response))
            }
        })
    }
}
