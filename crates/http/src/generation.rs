//! The HTTP end of the road that requests for generation take: what their heads say, and the words
//! of refusals.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName};
use serde_json::Value;

use crate::app::{App, LoadGuard};
use crate::policy::{Api, LateRefusals};
use crate::request_head::{RequestHead, names};
use crate::{error, fault};
use vllm_sim_service::generate::request::Target;
use vllm_sim_service::{
    self as service, EngineChecks, GenerationRequest, OutputRoom, Protocol, Refusal, Reply,
};
use vllm_sim_wire::fault::Fault;

/// A request that is being answered.
pub(crate) struct Started<V> {
    /// The shape of the answer.
    pub(crate) view: V,
    pub(crate) reply: Reply,
    /// Counts it in `/load`.
    pub(crate) guard: Option<LoadGuard>,
}

/// Why a request is not answered.
pub(crate) enum Refused<V> {
    /// Found before a stream's headers go out.
    Early(Fault),
    /// Found after: a stream has to say it in its body.
    Late {
        fault: Fault,
        view: V,
        guard: Option<LoadGuard>,
    },
}

impl<V> Refused<V> {
    /// As a stream tells it: where its headers wait for everything, all is found before them.
    pub(crate) fn reported(self, late: LateRefusals) -> Self {
        match late {
            LateRefusals::InStream => self,
            LateRefusals::AsStatus => Self::Early(self.into()),
        }
    }
}

impl<V> From<Refused<V>> for Fault {
    fn from(refused: Refused<V>) -> Self {
        match refused {
            Refused::Early(fault) | Refused::Late { fault, .. } => fault,
        }
    }
}

/// The road as far as it goes before a body is read by its schema; the body as that reads it.
///
/// # Errors
/// What is wrong with the body, its failure on purpose or its model, where that comes first.
pub(crate) fn arrive<'b>(
    app: &App,
    head: &RequestHead,
    api: Api,
    body: Cow<'b, Value>,
) -> Result<Cow<'b, Value>, Fault> {
    let body = app.policy.first_reader.read(api, body)?;
    check(app, head, api, &body)?;
    Ok(body)
}

/// As [`arrive`], for a body `text` of usual members that `read` reads straight; `None` leaves it to the
/// schema, and nothing is looked at.
///
/// # Errors
/// As [`arrive`].
pub(crate) fn arrive_straight<R>(
    app: &App,
    head: &RequestHead,
    api: Api,
    text: Option<&[u8]>,
    read: impl FnOnce(&[u8]) -> Option<R>,
) -> Result<Option<R>, Fault> {
    let Some((text, request)) = text.and_then(|text| Some((text, read(text)?))) else {
        return Ok(None);
    };
    let reader = app.policy.first_reader;
    if reader.asks_model_first(api) {
        let Some(body) = reader.read_around_prompt(api, text)? else {
            return Ok(None);
        };
        check(app, head, api, &body)?;
    }
    Ok(Some(request))
}

/// What is looked at before a body is read by its schema.
fn check(app: &App, head: &RequestHead, api: Api, body: &Value) -> Result<(), Fault> {
    let reader = app.policy.first_reader;
    if !reader.asks_model_first(api) {
        return Ok(());
    }
    let model = body.get("model").and_then(Value::as_str);
    fault::inject(app, head, model)?;
    target(app, model)?;
    reader.check_content(api, body)?;
    reader.check_numbers(api, body)?;
    let remote = body.get("kv_transfer_params").and_then(Value::as_object);
    let stream = body.get("stream").and_then(Value::as_bool);
    app.policy.prefill(remote, stream.unwrap_or(false))?;
    reader.check_end(api, body)
}

/// A body that nobody answers, as the schema is to read it.
///
/// # Errors
/// What is wrong with it whatever its model.
pub(crate) fn read(app: &App, api: Api, body: Value) -> Result<Value, Fault> {
    let reader = app.policy.first_reader;
    let body = reader.read(api, Cow::Owned(body))?;
    reader.check_content(api, &body)?;
    Ok(body.into_owned())
}

/// A request with what its head says of it, for the base model and one prompt.
pub(crate) fn request<'r>(app: &App, head: &RequestHead, id: Arc<str>) -> GenerationRequest<'r> {
    GenerationRequest {
        rank: app.policy.rank(rank(head.special_headers())),
        trace: trace(head.special_headers()),
        faults: head.faults.clone(),
        usage: head.usage.clone(),
        ..headless(app, id)
    }
}

/// A request that no head speaks of, for the base model and one prompt.
pub(crate) fn headless<'r>(app: &App, id: Arc<str>) -> GenerationRequest<'r> {
    GenerationRequest {
        id,
        arrived: app.service.now(),
        model: None,
        n: 1,
        prompts: 1,
        max_tokens: None,
        room: OutputRoom::Shared,
        checks: EngineChecks::All,
        constraint: None,
        tools: None,
        parses_calls: false,
        echo: false,
        reasoning: None,
        priority: 0,
        rank: None,
        cache_salt: None,
        hit_threshold: None,
        skip_cache_read: false,
        trace: None,
        faults: None,
        usage: None,
    }
}

/// Answers a request, or fails it on purpose.
pub(crate) async fn serve<P: Protocol>(
    app: &Arc<App>,
    head: &RequestHead,
    request: &mut GenerationRequest<'_>,
    protocol: &mut P,
) -> Result<Started<P::View>, Refused<P::View>> {
    fault::inject(app, head, request.model).map_err(Refused::Early)?;
    let guard = app.config.server.load_tracking.then(|| app.load_guard());
    let policy = &app.policy.generation;
    match app.service.serve(policy, request, protocol).await {
        Ok(served) => Ok(Started {
            view: served.view,
            reply: served.reply,
            guard,
        }),
        Err(service::Refused::Early(refusal)) => Err(Refused::Early(refusal_fault(app, refusal))),
        Err(service::Refused::Late(refusal, view)) => Err(Refused::Late {
            fault: refusal_fault(app, refusal),
            view,
            guard,
        }),
    }
}

/// What a refused request is told.
pub(crate) fn refusal_fault(app: &App, refusal: Refusal) -> Fault {
    match refusal {
        Refusal::UnknownModel(name) => {
            let served = app.service.models.served();
            app.policy.unknown_model(&name, served)
        }
        Refusal::Invalid(fault) => fault,
        Refusal::Serve(error) => error::fault(&error),
    }
}

/// Who answers to a name.
///
/// # Errors
/// vLLM's 404, or llm-d's.
pub(crate) fn target(app: &App, model: Option<&str>) -> Result<Target, Fault> {
    let target = app.service.target(&app.policy.generation, model);
    target.map_err(|refusal| refusal_fault(app, refusal))
}

/// The data-parallel rank a header asks for; not an integer: ignored.
fn rank(headers: &HeaderMap) -> Option<i64> {
    headers
        .get(&names::RANK)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// The priority: a header that is an integer wins over the body.
pub(crate) fn priority(headers: &HeaderMap, body: i64) -> i64 {
    let header = headers.get(&names::PRIORITY).and_then(|v| v.to_str().ok());
    header.and_then(|v| v.trim().parse().ok()).unwrap_or(body)
}

/// W3C trace context of a request.
fn trace(headers: &HeaderMap) -> Option<(Box<str>, Option<Box<str>>)> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(Into::into);
    Some((text(&names::TRACEPARENT)?, text(&names::TRACESTATE)))
}
