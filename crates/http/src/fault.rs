//! Injected HTTP faults: selects the faults of a request, by header or at random, and damages
//! responses that are not streams.
//!
//! Faults are selected before routing and stored with the request's head. This code does not run
//! unless a fault is configured or the header is set.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::Sleep;
use tower::{Service, ServiceExt as _};

use super::app::App;
use super::body::RawRequest;
use super::error;
use super::request_head::names;
use vllm_sim_service::fault::{FaultScenarioAndPhase, FaultSpecError, StreamFault};
use vllm_sim_service::{
    CONNECTION_BREAK_FLUSH_DELAY, FaultInjector, FaultInjectorAction, RequestContext, RequestFaults,
};
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Paths of the routes on which requests can get injected faults.
///
/// Source: llm-d-inference-sim `failures.go`.
const FAULT_ROUTES: [&str; 10] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/chat/completions/batch",
    "/inference/v1/generate",
    "/generate",
    "/invocations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
];

/// Selects the injected faults of a request and applies them to its response.
pub(super) async fn inject_faults(
    app: Arc<App>,
    mut request: Request,
    inner: impl Service<Request, Response = Response, Error = Infallible>,
) -> Result<Response, Infallible> {
    if !may_get_fault(&app, &request) {
        return inner.oneshot(request).await;
    }
    let faults = match decide_request_faults(&app, &request) {
        Ok(faults) => Arc::new(faults),
        Err(error) => {
            let words = format!("Invalid X-Sim-Fault header: {error}");
            return Ok(error::fault_response(&Fault::bad_request(words)));
        }
    };
    faults.wait_first_byte_delay(&app.service).await;
    if let Some(context) = request.extensions_mut().get_mut::<RequestContext>() {
        context.faults = Some(faults.clone());
    }
    let mut response = inner.oneshot(request).await?;
    if !response.status().is_success() {
        return Ok(response);
    }
    // The writer of a stream injects its own faults.
    if !is_stream(&response)
        && let Some(injector) = faults.reply_fault_injector(&app.service)
    {
        response = inject_mid_body_fault(response, injector).await;
    }
    for stream_fault in &faults.stream_faults {
        if let StreamFault::WrongContentLength(bytes) = stream_fault {
            faults.report_fault(&app.service, stream_fault.stream_fault_name());
            response = set_wrong_content_length(response, *bytes);
        }
    }
    Ok(response)
}

fn may_get_fault(app: &App, request: &Request) -> bool {
    request.method() == Method::POST
        && (app.service.faults.needs_fault_draw()
            || request.headers().contains_key(&names::SIM_FAULT_HEADER))
        && FAULT_ROUTES.contains(&request.uri().path())
}

fn decide_request_faults(app: &App, request: &Request) -> Result<RequestFaults, FaultSpecError> {
    let headers = request.headers();
    let context = request.extensions().get::<RequestContext>();
    let connection = context.and_then(|context| context.connection.clone());
    let id = headers.get(&names::REQUEST_ID_HEADER).and_then(|id| id.to_str().ok());
    let asked = headers.get(&names::SIM_FAULT_HEADER);
    let asked = asked.map(|value| String::from_utf8_lossy(value.as_bytes()));
    RequestFaults::decide_request_faults(&app.service, id, asked.as_deref(), connection)
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Returns the injector of the request's stream faults; `None` if the request has no such faults.
pub(super) fn stream_fault_injector(
    app: &App,
    received: &RawRequest,
) -> Option<Box<FaultInjector>> {
    received.context.faults.as_ref()?.reply_fault_injector(&app.service)
}

/// Returns the injected error of a request as `Err`; `Ok` if no error was selected for it.
///
/// # Errors
/// The error of the header `X-Return-Error`, else the selected failure.
pub(crate) fn fail_if_error_injected(
    app: &App,
    received: &RawRequest,
    model: Option<&str>,
) -> Result<(), Fault> {
    let faults = received.context.faults.as_deref();
    let count = |kind| match faults {
        Some(faults) => faults.report_fault(&app.service, kind),
        None => app.service.faults.report_fault(kind, &FaultScenarioAndPhase::default()),
    };
    let asked = received.headers_unless_all_common().get(&names::RETURN_ERROR_HEADER);
    if let Some(asked) = asked.filter(|asked| !asked.is_empty()) {
        let text = String::from_utf8_lossy(asked.as_bytes());
        return Err(match text.trim().parse::<i128>() {
            Ok(code) if (200..1000).contains(&code) => {
                let code = code as u16;
                count("return_error");
                Fault::new(
                    code,
                    ErrorType::from_http_status(code),
                    format!("Simulated error triggered by X-Return-Error header (code {code})"),
                )
            }
            // A 1xx status is not a final response.
            Ok(_) => Fault::bad_request(format!(
                "Invalid X-Return-Error header value {text:?}: must be an integer from 200 to 999"
            )),
            Err(_) => Fault::bad_request(format!(
                "Invalid X-Return-Error header value {text:?}: must be an integer"
            )),
        });
    }
    let Some(failure) = faults.and_then(|faults| faults.failure) else {
        return Ok(());
    };
    count(failure.injected_failure_name());
    let named = model.filter(|name| !name.is_empty());
    let model = named.unwrap_or(app.service.models.displayed_model_name());
    Err(failure.to_fault(model))
}

/// The error that breaks off a response body, as an injected fault.
#[derive(Debug, thiserror::Error)]
#[error("the response was cut off by an injected fault")]
pub(super) struct InjectedBodyError;

/// Injects a fault in the middle of a response that is not a stream, where tokens cannot be
/// counted.
pub(super) async fn inject_mid_body_fault(
    response: Response,
    mut faults: Box<FaultInjector>,
) -> Response {
    let (mut parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await else {
        return Response::from_parts(parts, Body::empty());
    };
    let mut whole = whole.to_bytes();
    // Schedules all faults after the first half.
    faults.count_sent_tokens(u32::MAX);
    let garbled = faults.has_malformed_event();
    let rest = whole.split_off(whole.len() / 2);
    let rest = if garbled { Bytes::new() } else { rest };
    // Announces the length that a response without fault would have.
    let length = HeaderValue::from(whole.len() + rest.len());
    parts.headers.insert(header::CONTENT_LENGTH, length);
    let body = HalvedBody { first: Some(whole), rest: Some(rest), faults };
    Response::from_parts(parts, Body::new(body))
}

struct HalvedBody {
    first: Option<Bytes>,
    rest: Option<Bytes>,
    faults: Box<FaultInjector>,
}

impl http_body::Body for HalvedBody {
    type Data = Bytes;
    type Error = InjectedBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InjectedBodyError>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        loop {
            match this.faults.poll_action(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(FaultInjectorAction::Break) => {
                    return Poll::Ready(Some(Err(InjectedBodyError)));
                }
                // The garbled half was removed above.
                Poll::Ready(FaultInjectorAction::Garble) => {}
                Poll::Ready(FaultInjectorAction::Proceed) => {
                    let rest = this.rest.take().filter(|rest| !rest.is_empty());
                    return Poll::Ready(rest.map(|rest| Ok(Frame::data(rest))));
                }
            }
        }
    }
}

/// Makes the `Content-Length` of a response wrong by `by` bytes; a stream gets the absolute value
/// of `by` as its length.
pub(super) fn set_wrong_content_length(response: Response, by: i32) -> Response {
    let (mut parts, body) = response.into_parts();
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<i64>().ok());
    let known = http_body::Body::size_hint(&body).exact();
    let length = announced.or(known.and_then(|length| i64::try_from(length).ok()));
    let length = match length {
        Some(length) => (length + i64::from(by)).max(0),
        None => i64::from(by.unsigned_abs()),
    };
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Response::from_parts(parts, Body::new(UnsizedBody { body, end: None }))
}

/// A response body without a size hint, so that hyper keeps a wrong `Content-Length`.
///
/// It ends after a delay, so that its data reaches the client before the connection breaks.
struct UnsizedBody {
    body: Body,
    end: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for UnsizedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(end) = &mut self.end {
            return end.as_mut().poll(cx).map(|()| None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_some() {
            return Poll::Ready(frame);
        }
        let end = self.end.insert(Box::pin(tokio::time::sleep(CONNECTION_BREAK_FLUSH_DELAY)));
        end.as_mut().poll(cx).map(|()| None)
    }
}
