//! hyper 1.x on one thread: a body that yields one frame per token, or several at once.
use crate::wheel::now;
use crate::*;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full};
use hyper::{Request, Response, body::Incoming, header::CONTENT_TYPE};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

struct Tokens {
    next: u32,
    due: u64,
    base: Instant,
    base_ns: u64,
    sleep: Option<Pin<Box<Sleep>>>,
    armed: bool,
}

impl Tokens {
    fn new() -> Self {
        let now = now();
        Tokens {
            next: 0,
            due: now + options().ttft,
            base: Instant::now(),
            base_ns: now,
            sleep: None,
            armed: false,
        }
    }
}

impl Body for Tokens {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let options = options();
        if self.next == options.tokens {
            return Poll::Ready(None);
        }
        if self.due > self.base_ns {
            let at = self.base + Duration::from_nanos(self.due - self.base_ns);
            let this = &mut *self;
            let sleep = this
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
            if !this.armed {
                sleep.as_mut().reset(at);
                this.armed = true;
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.armed = false;
        }
        if options.batch > 1 && options.itl == 0 {
            let count = options.batch.min(options.tokens - self.next);
            let mut frame = Vec::with_capacity(count as usize * 256);
            for _ in 0..count {
                frame.extend_from_slice(&sse(self.next, self.next + 1 == options.tokens));
                self.next += 1;
            }
            return Poll::Ready(Some(Ok(Frame::data(frame.into()))));
        }
        let i = self.next;
        self.next += 1;
        self.due += options.itl;
        Poll::Ready(Some(Ok(Frame::data(sse(i, self.next == options.tokens)))))
    }
}

type Reply = Response<Either<Full<Bytes>, Tokens>>;

async fn handle(request: Request<Incoming>) -> Result<Reply, Infallible> {
    if request.uri().path() == "/health" {
        return Ok(Response::new(Either::Left(Full::default())));
    }
    let body = request.into_body().collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let (kind, body) = match wants_stream(&body) {
        true => (
            "text/event-stream; charset=utf-8",
            Either::Right(Tokens::new()),
        ),
        false => (
            "application/json",
            Either::Left(Full::new(Bytes::from_static(JSON.as_bytes()))),
        ),
    };
    let reply = Response::builder().header(CONTENT_TYPE, kind).body(body);
    Ok(reply.expect("a header that is right"))
}

pub async fn serve() {
    let listener = tokio::net::TcpListener::from_std(listen()).expect("a listener");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let mut http = hyper::server::conn::http1::Builder::new();
        http.keep_alive(true).writev(false);
        let io = hyper_util::rt::TokioIo::new(stream);
        let connection = http.serve_connection(io, hyper::service::service_fn(handle));
        tokio::spawn(async move {
            let _ = connection.await;
        });
    }
}
