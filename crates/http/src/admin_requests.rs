//! `/admin/requests`, `/admin/usage` and `/admin/replies`: recorded requests, their tokens, and
//! scripted replies, for clients' tests.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{StatusCode, Uri};
use serde_json::{Value, json};

use super::admin::AdminAccess;
use super::app::App;
use super::request_history::{RecordedRequestFilter, RequestHistory};
use super::{body, query};
use crate::error::{self, HandlerResult, ok_json_response};
use vllm_sim_engine::duration;
use vllm_sim_service::scripted::ReplyRules;
use vllm_sim_service::{InferenceService, run_blocking_if_large};
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Default maximum number of requests that `GET /admin/requests` lists.
const DEFAULT_LIST_LIMIT: usize = 1000;
/// Default value and maximum value of the query parameter `timeout` of `GET /admin/requests`.
const DEFAULT_AND_MAX_WAIT: (Duration, Duration) =
    (Duration::from_secs(5), Duration::from_secs(300));

/// Handles `GET /admin/requests`: lists recorded requests; `wait=N` waits until N have ended.
pub(super) async fn list_recorded_requests(
    AdminAccess(app): AdminAccess,
    uri: Uri,
) -> HandlerResult {
    let (history, query) = wait_for_listed_requests(&app, &uri).await?;
    let shown = history.recorded_requests_json(&query.filter, query.limit);
    Ok(error::json_response(StatusCode::OK, shown))
}

/// Handles `GET /admin/usage`: lists the token counts of recorded requests; takes the query
/// parameters of `GET /admin/requests`.
pub(super) async fn list_request_usage(AdminAccess(app): AdminAccess, uri: Uri) -> HandlerResult {
    let (history, query) = wait_for_listed_requests(&app, &uri).await?;
    Ok(ok_json_response(&history.request_usage_json(&query.filter, query.limit)))
}

/// Parses the query parameters for a list of recorded requests, and waits until `wait` requests
/// have ended.
async fn wait_for_listed_requests<'a>(
    app: &'a App,
    uri: &Uri,
) -> Result<(&'a RequestHistory, RequestListQuery), Fault> {
    let history = request_history(app)?;
    let query = RequestListQuery::read(uri)?;
    if let Some(wanted) = query.wait {
        let kept = app.settings.server.history.requests;
        if wanted > kept {
            return Err(Fault::bad_request(format!(
                "wait is {wanted}, but --request-history keeps {kept} requests"
            )));
        }
        let waited = history.wait_for_ended_requests(&query.filter, wanted, query.timeout).await;
        waited.map_err(|have| {
            let within = duration::format_go_duration(query.timeout);
            let words = format!("{have} of {wanted} requests have ended within {within}");
            Fault::new(408, ErrorType::RequestTimeoutPhrase, words)
        })?;
    }
    Ok((history, query))
}

/// Handles `DELETE /admin/requests`: clears the history of recorded requests.
pub(super) async fn clear_recorded_requests(AdminAccess(app): AdminAccess) -> HandlerResult {
    Ok(ok_json_response(&json!({"removed": request_history(&app)?.clear_recorded_requests()})))
}

/// Handles `GET /admin/replies`: returns the scripted replies and how often each was used.
pub(super) async fn get_scripted_replies(AdminAccess(app): AdminAccess) -> HandlerResult {
    Ok(ok_json_response(&scripted_replies_json(&app)))
}

/// Handles `POST /admin/replies`: replaces the scripted replies (YAML or JSON).
pub(super) async fn set_scripted_replies(
    AdminAccess(app): AdminAccess,
    request: Request,
) -> HandlerResult {
    let bytes = body::read_body(&app, request.into_body()).await?;
    let size = bytes.len();
    let service = app.service.clone();
    let read = move || read_scripted_replies(&service, &bytes);
    let rules = run_blocking_if_large(size, read).await?;
    app.service.replies.replace_rules(Some(Arc::new(rules)));
    Ok(ok_json_response(&scripted_replies_json(&app)))
}

/// Parses scripted replies, and checks that no reply has more tokens than the `completion_tokens`
/// in its `usage`.
fn read_scripted_replies(service: &InferenceService, bytes: &[u8]) -> Result<ReplyRules, Fault> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| Fault::bad_request("the replies are not UTF-8"))?;
    let rules = ReplyRules::from_yaml(text).map_err(|e| Fault::bad_request(e.to_string()))?;
    rules
        .check_completion_tokens(&|reply| service.generator.scripted_token_count(reply))
        .map_err(|error| Fault::bad_request(error.to_string()))?;
    Ok(rules)
}

/// Handles `DELETE /admin/replies`: removes all scripted replies.
pub(super) async fn remove_scripted_replies(AdminAccess(app): AdminAccess) -> HandlerResult {
    app.service.replies.replace_rules(None);
    Ok(ok_json_response(&scripted_replies_json(&app)))
}

fn scripted_replies_json(app: &App) -> Value {
    let rules = app.service.replies.current_reply_rules();
    json!({"replies": rules.map_or(json!([]), |rules| rules.reply_rules_with_usage_json())})
}

fn request_history(app: &App) -> Result<&RequestHistory, Fault> {
    app.history.as_deref().ok_or_else(|| {
        let words = "no requests are recorded: start the server with --request-history N";
        Fault::new(404, ErrorType::NotFound, words)
    })
}

struct RequestListQuery {
    filter: RecordedRequestFilter,
    limit: usize,
    wait: Option<usize>,
    timeout: Duration,
}

impl RequestListQuery {
    fn read(uri: &Uri) -> Result<Self, Fault> {
        let mut query = Self {
            filter: RecordedRequestFilter::default(),
            limit: DEFAULT_LIST_LIMIT,
            wait: None,
            timeout: DEFAULT_AND_MAX_WAIT.0,
        };
        let filter = &mut query.filter;
        for (name, value) in query::query_pairs(uri) {
            match name.as_str() {
                "path" => filter.path = Some(value),
                "model" => filter.model = Some(value),
                "key" => filter.key = Some(value),
                "status" => filter.status = Some(parse_query_number(&name, &value)?),
                "after" => filter.after = Some(parse_query_number(&name, &value)?),
                "limit" => query.limit = parse_query_number(&name, &value)?,
                "wait" => query.wait = Some(parse_query_number(&name, &value)?),
                "timeout" => {
                    let time = duration::parse_duration(&value)
                        .ok()
                        .filter(|time| *time <= DEFAULT_AND_MAX_WAIT.1);
                    query.timeout = time.ok_or_else(|| {
                        let most = duration::format_go_duration(DEFAULT_AND_MAX_WAIT.1);
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

fn parse_query_number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Fault> {
    let words = || {
        Fault::bad_request(format!(
            "'{name}' must be a whole number of at least 0, not \
         {value:?}"
        ))
    };
    value.parse().map_err(|_| words())
}
