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
pub(super) trait Around: Clone {
    /// The data of a request that [`Around::after`] needs for its response.
    type Kept;

    /// Sees a request before the inner services.
    ///
    /// # Errors
    /// The response to a request that the inner services do not see.
    #[expect(
        clippy::result_large_err,
        reason = "it is rare, and moved once in either form"
    )]
    fn before(&self, request: &mut Request) -> Result<Self::Kept, Response>;

    /// Changes the response of the inner services.
    fn after(&self, kept: Self::Kept, response: Response) -> Response;
}

/// Makes a tower layer of a middleware that implements [`Around`].
#[derive(Clone)]
pub(super) struct AroundLayer<A>(pub A);

impl<A: Around, S> Layer<S> for AroundLayer<A> {
    type Service = AroundService<A, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let around = self.0.clone();
        AroundService { around, inner }
    }
}

/// A tower service with a middleware that implements [`Around`] around it.
#[derive(Clone)]
pub(super) struct AroundService<A, S> {
    around: A,
    inner: S,
}

impl<A: Around, S> Service<Request> for AroundService<A, S>
where
    S: Service<Request, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = AroundFuture<A, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        match self.around.before(&mut request) {
            Ok(kept) => AroundFuture::Handled {
                kept: Some((self.around.clone(), kept)),
                response: self.inner.call(request),
            },
            Err(response) => AroundFuture::Refused {
                response: Some(response),
            },
        }
    }
}

pin_project! {
    /// Resolves to the response of an [`AroundService`].
    #[project = Projected]
    pub(super) enum AroundFuture<A: Around, F> {
        Refused { response: Option<Response> },
        Handled { kept: Option<(A, A::Kept)>, #[pin] response: F },
    }
}

impl<A: Around, F, E> Future for AroundFuture<A, F>
where
    F: Future<Output = Result<Response, E>>,
{
    type Output = Result<Response, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const ENDED: &str = "a future is not polled after its end";
        Poll::Ready(match self.project() {
            Projected::Refused { response } => Ok(response.take().expect(ENDED)),
            Projected::Handled { kept, response } => {
                let response = ready!(response.poll(cx));
                let (around, kept) = kept.take().expect(ENDED);
                response.map(|response| around.after(kept, response))
            }
        })
    }
}
