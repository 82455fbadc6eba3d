//! `/admin/requests` and `/admin/replies`: recorded requests and scripted replies, for clients'
//! tests.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use serde_json::{Value, json};

use super::admin::allowed;
use super::app::App;
use super::request_history::{RequestFilter, RequestHistory};
use super::vllm::ok;
use super::{body, query};
use crate::error::{self, HandlerResult};
use vllm_sim_engine::duration;
use vllm_sim_service::scripted::ReplyRules;
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Default maximum number of requests that `GET /admin/requests` lists.
const DEFAULT_LIMIT: usize = 1000;
/// Default and maximum of the query parameter `timeout` of `GET /admin/requests`.
const TIMEOUT_BOUNDS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Handles `GET /admin/requests`: lists recorded requests; `wait=N` waits until N have ended.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    uri: Uri,
) -> HandlerResult {
    allowed(&app, &headers)?;
    let history = history(&app)?;
    let query = RequestQuery::read(&uri)?;
    if let Some(wanted) = query.wait {
        let kept = app.settings.server.request_history;
        if wanted > kept {
            return Err(Fault::bad_request(format!(
                "wait is {wanted}, but --request-history keeps {kept} requests"
            )));
        }
        let waited = history.wait(&query.filter, wanted, query.timeout).await;
        waited.map_err(|have| {
            let within = duration::show(query.timeout);
            let words = format!("{have} of {wanted} requests have ended within {within}");
            Fault::new(408, ErrorType::RequestTimeoutPhrase, words)
        })?;
    }
    let shown = history.show(&query.filter, query.limit);
    Ok(error::json(StatusCode::OK, shown))
}

/// Handles `DELETE /admin/requests`: clears the history of recorded requests.
pub(super) async fn clear(State(app): State<Arc<App>>, headers: HeaderMap) -> HandlerResult {
    allowed(&app, &headers)?;
    Ok(ok(&json!({"removed": history(&app)?.clear()})))
}

/// Handles `GET /admin/replies`: returns the scripted replies and how often each was used.
pub(super) async fn replies(State(app): State<Arc<App>>, headers: HeaderMap) -> HandlerResult {
    allowed(&app, &headers)?;
    Ok(ok(&shown_replies(&app)))
}

/// Handles `POST /admin/replies`: replaces the scripted replies (YAML or JSON).
pub(super) async fn set_replies(State(app): State<Arc<App>>, request: Request) -> HandlerResult {
    allowed(&app, request.headers())?;
    let bytes = body::read(&app, request.into_body()).await?;
    let text =
        std::str::from_utf8(&bytes).map_err(|_| Fault::bad_request("the replies are not UTF-8"))?;
    let rules = ReplyRules::from_yaml(text).map_err(|e| Fault::bad_request(e.to_string()))?;
    let generator = &app.service.generator;
    rules
        .check_usage(&|reply| generator.scripted_tokens(reply))
        .map_err(|error| Fault::bad_request(error.to_string()))?;
    app.service.replies.set(Some(Arc::new(rules)));
    Ok(ok(&shown_replies(&app)))
}

/// Handles `DELETE /admin/replies`: removes all scripted replies.
pub(super) async fn end_replies(State(app): State<Arc<App>>, headers: HeaderMap) -> HandlerResult {
    allowed(&app, &headers)?;
    app.service.replies.set(None);
    Ok(ok(&shown_replies(&app)))
}

fn shown_replies(app: &App) -> Value {
    let rules = app.service.replies.rules();
    json!({"replies": rules.map_or(json!([]), |rules| rules.to_json())})
}

fn history(app: &App) -> Result<&RequestHistory, Fault> {
    app.history.as_deref().ok_or_else(|| {
        let words = "no requests are recorded: start the server with --request-history N";
        Fault::new(404, ErrorType::NotFound, words)
    })
}

struct RequestQuery {
    filter: RequestFilter,
    limit: usize,
    wait: Option<usize>,
    timeout: Duration,
}

impl RequestQuery {
    fn read(uri: &Uri) -> Result<Self, Fault> {
        let mut query = Self {
            filter: RequestFilter::default(),
            limit: DEFAULT_LIMIT,
            wait: None,
            timeout: TIMEOUT_BOUNDS.0,
        };
        let filter = &mut query.filter;
        for (name, value) in query::pairs(uri) {
            match name.as_str() {
                "path" => filter.path = Some(value),
                "model" => filter.model = Some(value),
                "key" => filter.key = Some(value),
                "status" => filter.status = Some(number(&name, &value)?),
                "after" => filter.after = Some(number(&name, &value)?),
                "limit" => query.limit = number(&name, &value)?,
                "wait" => query.wait = Some(number(&name, &value)?),
                "timeout" => {
                    let time = duration::read(&value)
                        .ok()
                        .filter(|time| *time <= TIMEOUT_BOUNDS.1);
                    query.timeout = time.ok_or_else(|| {
                        let most = duration::show(TIMEOUT_BOUNDS.1);
                        let words = format!(
                            "'timeout' must be a duration of at most {most}, not \
                             {value:?}"
                        );
                        Fault::bad_request(words)
                    })?;
                }
                _ => {
                    let words = format!(
                        "unknown parameter {name:?}; known are path, model, key, status, after, \
                         limit, wait, timeout"
                    );
                    return Err(Fault::bad_request(words));
                }
            }
        }
        Ok(query)
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Fault> {
    let words = || {
        Fault::bad_request(format!(
            "'{name}' must be a whole number of at least 0, not \
         {value:?}"
        ))
    };
    value.parse().map_err(|_| words())
}
