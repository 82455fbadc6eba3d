//! Faults on purpose at the HTTP edge: which ones a request gets, by header or by chance.
//!
//! The verdict on a request is reached before it is routed and travels with its task, so that
//! neither handlers nor renderers carry it along. Without a fault in force and without a header
//! there is no verdict, and none of this runs.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, header};

use super::app::App;
use super::{error, faulty_body};
use vllm_sim_service::fault::{ConnHandle, Failure, FaultSpec, StreamFault};
use vllm_sim_service::{FaultDecision, FaultInjector, LiveSettings};
use vllm_sim_wire::fault::{Fault, Kind};

/// The header that asks for faults.
const HEADER: &str = "x-sim-fault";

/// Routes whose requests may fail. Source: llm-d-inference-sim `failures.go`.
const GENERATING: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/chat/completions/batch",
    "/inference/v1/generate",
    "/invocations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
];

/// What befalls the request of this task.
struct RequestFaults {
    tuned: Arc<LiveSettings>,
    failure: Option<Failure>,
    hurt: Cell<Option<Box<FaultInjector>>>,
}

tokio::task_local! {
    static RULING: RequestFaults;
}

/// Whether a request needs a verdict.
pub(super) fn concerns(app: &App, request: &Request<Body>) -> bool {
    request.method() == Method::POST
        && (app.service.faults.is_armed() || request.headers().contains_key(HEADER))
        && GENERATING.contains(&request.uri().path())
}

/// Answers a request under its verdict.
pub(super) async fn answer<F>(
    app: &Arc<App>,
    line: Option<Arc<ConnHandle>>,
    request: Request<Body>,
    route: impl FnOnce(Request<Body>) -> F,
) -> Response<Body>
where
    F: Future<Output = Response<Body>>,
{
    let verdict = judge(app, request.headers());
    let asked = match asked(request.headers()) {
        Ok(asked) => asked,
        Err(fault) => return error::response(&fault),
    };
    // What the client asks for takes the place of what chance dealt.
    let (failure, stream_faults) = match asked {
        Some(order) => (order.failure, order.stream_faults),
        None => {
            let order = verdict.dealt.order.unwrap_or_default();
            (verdict.dealt.failure.or(order.failure), order.stream_faults)
        }
    };
    let tuned = verdict.tuned;
    let count =
        |stream_fault: &StreamFault| app.service.faults.count(stream_fault.name(), &tuned.origin);
    for stream_fault in &stream_faults {
        if let StreamFault::SlowFirstByte(time) = stream_fault {
            count(stream_fault);
            tokio::time::sleep(*time).await;
        }
    }
    let ruling = RequestFaults {
        failure,
        hurt: Cell::new(FaultInjector::new(
            &stream_faults,
            line,
            &app.service,
            &tuned,
        )),
        tuned: tuned.clone(),
    };
    let answered = async {
        let response = route(request).await;
        (response, hurt())
    };
    let (mut response, hurt) = RULING.scope(ruling, answered).await;
    if !response.status().is_success() {
        return response;
    }
    if !is_stream(&response)
        && let Some(hurt) = hurt
    {
        response = faulty_body::break_up(response, hurt).await;
    }
    for stream_fault in &stream_faults {
        if let StreamFault::WrongContentLength(bytes) = stream_fault {
            count(stream_fault);
            response = faulty_body::misstate(response, *bytes);
        }
    }
    response
}

fn judge(app: &App, headers: &HeaderMap) -> FaultDecision {
    let drill = &app.service.faults;
    if !drill.is_armed() {
        return FaultDecision {
            tuned: drill.tuned(),
            dealt: Default::default(),
        };
    }
    let id = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    drill.judge(app.service.settings().seed, app.service.now(), id)
}

/// What the header asks for.
fn asked(headers: &HeaderMap) -> Result<Option<FaultSpec>, Fault> {
    let Some(value) = headers.get(HEADER) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    let order: Result<FaultSpec, _> = text.parse();
    order
        .map(Some)
        .map_err(|error| Fault::bad_request(format!("Invalid X-Sim-Fault header: {error}")))
}

fn is_stream(response: &Response<Body>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The fault_plan of this task's reply, for the one who writes it.
pub(super) fn hurt() -> Option<Box<FaultInjector>> {
    RULING.try_with(|ruling| ruling.hurt.take()).ok().flatten()
}

/// The settings under which this task's request is answered, when they may differ from those of
/// the start.
pub(super) fn tuned() -> Option<Arc<LiveSettings>> {
    RULING.try_with(|ruling| ruling.tuned.clone()).ok()
}

/// Fails a request that is to fail.
///
/// # Errors
/// The failure of the header `X-Return-Error`, else that of the request's verdict.
pub(crate) fn inject(app: &App, headers: &HeaderMap, model: Option<&str>) -> Result<(), Fault> {
    let count = |kind| {
        let origin = tuned().map(|tuned| tuned.origin.clone());
        app.service.faults.count(kind, &origin.unwrap_or_default());
    };
    if let Some(asked) = headers.get("x-return-error") {
        let text = String::from_utf8_lossy(asked.as_bytes());
        let code: Option<u16> = text.trim().parse().ok().filter(|c| (100..1000).contains(c));
        return Err(match code {
            Some(code) => {
                count("return_error");
                Fault::new(
                    code,
                    kind(code),
                    format!("Simulated error triggered by X-Return-Error header (code {code})"),
                )
            }
            None => Fault::bad_request(format!(
                "Invalid X-Return-Error header value {text:?}: must be an integer"
            )),
        });
    }
    let failure = RULING.try_with(|ruling| ruling.failure).ok().flatten();
    let Some(failure) = failure else {
        return Ok(());
    };
    count(failure.name());
    let named = model.filter(|name| !name.is_empty());
    let model = named.unwrap_or(app.service.models.displayed());
    let status = failure.status();
    Err(Fault {
        param: failure.param().map(str::to_owned),
        ..Fault::new(status, kind(status), failure.message(model))
    })
}

/// llm-d's `type` of a status.
fn kind(status: u16) -> Kind {
    match status {
        400 => Kind::BadRequest,
        401 => Kind::Authentication,
        403 => Kind::PermissionDenied,
        404 => Kind::NotFound,
        422 => Kind::UnprocessableEntity,
        429 => Kind::RateLimit,
        500.. => Kind::InternalServer,
        _ => Kind::ApiConnection,
    }
}
