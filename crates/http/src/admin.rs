//! `/admin/config`, `/admin/scenario` and `/fake_metrics`: changes by an operator at run time.
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/admin.go`; ranks, scenarios and the key are
//! ours.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde_json::{Map, Value, json};

use super::admin_state::{AdminError, DataParallelRankSelector, PhaseOverriddenFlags};
use super::annotations::SettingValueVisibility;
use super::app::App;
use super::bearer::has_valid_bearer_token;
use super::dialect::OperatorRouteStyle;
use super::{body, query};
use crate::error::{self, HandlerResult, ok_json_response};
use vllm_sim_service::scenario::FaultScenario;
use vllm_sim_wire::fault::{ErrorType, Fault};

/// The state of a server, for a request with the key of `--admin-api-key`.
pub(super) struct AdminAccess(pub(super) Arc<App>);

impl FromRequestParts<Arc<App>> for AdminAccess {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Fault> {
        check_admin_key(app, &parts.headers)?;
        Ok(Self(app.clone()))
    }
}

/// Handles `GET /admin/config`: returns all flags with secrets masked; `changed=true` limits them
/// to flags changed since the start.
pub(super) async fn get_admin_config(AdminAccess(app): AdminAccess, uri: Uri) -> HandlerResult {
    let rank = parse_rank_query(&uri)?;
    match query::query_values(&uri, "changed").last().map(String::as_str) {
        None | Some("false") => {}
        Some("true") => {
            let changed = app.admin_state.settings_changed_since_start(&app.controls, rank);
            return Ok(ok_json_response(&Value::Object(mask_secret_flags(
                changed.map_err(admin_fault)?,
            ))));
        }
        Some(text) => {
            let words = format!("'changed' must be true or false, not {text:?}");
            return Err(Fault::bad_request(words));
        }
    }
    let shown = app.admin_state.effective_settings(&app.controls, rank).map_err(admin_fault)?;
    Ok(ok_json_response(&Value::Object(add_pod_names(&app, shown))))
}

/// Handles `POST /admin/config`: applies an update of settings to all data-parallel ranks, or
/// nothing on an error.
///
/// The response has all flags, as llm-d's. Before them it has the changed ones with both values,
/// and those that the current phase of the fault scenario overrides.
pub(super) async fn update_config(
    AdminAccess(app): AdminAccess,
    request: Request,
) -> HandlerResult {
    let rank = parse_rank_query(request.uri())?;
    let bytes = body::read_body(&app, request.into_body()).await?;
    let update: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| {
        Fault::bad_request(format!("failed to read and parse the configuration, {error}"))
    })?;
    let settings = || {
        mask_secret_flags(
            app.admin_state.settings_without_scenario(&app.controls, rank).unwrap_or_default(),
        )
    };
    let before = settings();
    let shown =
        app.admin_state.update_settings(&app.controls, rank, &update).map_err(admin_fault)?;
    let after = settings();
    let mut shown = add_pod_names(&app, shown);
    let mut warnings = app.admin_state.ineffective_field_warnings(&update);
    let mut changed = differences(&before, &after);
    let mut overridden = Map::new();
    if let Some(PhaseOverriddenFlags { scenario, phase, flags }) =
        app.admin_state.flags_overridden_by_phase(&update)
    {
        for flag in flags {
            changed.shift_remove(flag);
            let values = json!({"from": before.get(flag), "to": after.get(flag),
                "in_effect": shown.get(flag), "scenario": scenario, "phase": phase});
            overridden.insert(flag.to_owned(), values);
            warnings.push(format!(
                "--{flag}: no effect because phase '{phase}' of scenario '{scenario}' sets it"
            ));
        }
    }
    if app.dialect.properties().operator_route_style != OperatorRouteStyle::Lenient {
        if !overridden.is_empty() {
            shown.shift_insert(0, "overridden".to_owned(), Value::Object(overridden));
        }
        shown.shift_insert(0, "changed".to_owned(), Value::Object(changed));
    }
    let mut answer = ok_json_response(&Value::Object(shown));
    for text in warnings {
        tracing::warn!("/admin/config: {text}");
        if let Ok(value) = HeaderValue::try_from(format!("199 vllm-sim {text:?}")) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(answer)
}

/// Handles `POST /fake_metrics`: sets the fake values in the body, and keeps the fake values of all
/// other metrics.
pub(super) async fn set_fake_metrics(
    AdminAccess(app): AdminAccess,
    request: Request,
) -> HandlerResult {
    let failed = |text: String| {
        let text = format!("Failed to update fake metrics: {text}");
        Fault::new(500, ErrorType::InternalServer, text)
    };
    let bytes = body::read_body(&app, request.into_body()).await?;
    let update: Value =
        serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
    // Changes the configuration, so that `/admin/config` reports the values too.
    let whole = Map::from_iter([("fake-metrics".to_owned(), update)]);
    app.admin_state
        .update_settings(&app.controls, DataParallelRankSelector::All, &whole)
        .map_err(|error| failed(error.to_string()))?;
    Ok(error::empty_response(StatusCode::NO_CONTENT))
}

/// Handles `GET /admin/scenario`: returns the fault scenario and its current phase.
pub(super) async fn get_fault_scenario(AdminAccess(app): AdminAccess) -> HandlerResult {
    Ok(ok_json_response(&app.admin_state.scenario_status_json()))
}

/// Handles `POST /admin/scenario`: starts a fault scenario (YAML or JSON) from its first phase.
///
/// `?replica=N` selects the part of replica N of a fleet.
pub(super) async fn run_fault_scenario(
    AdminAccess(app): AdminAccess,
    request: Request,
) -> HandlerResult {
    let number = query::query_values(request.uri(), "replica").pop();
    let number = number.map(|number| {
        let parsed = number.parse::<u32>();
        parsed.map_err(|_| {
            Fault::bad_request(format!(
                "'replica' must be a whole number of at least 0, not {number:?}"
            ))
        })
    });
    let number = number.transpose()?;
    let bytes: Bytes = body::read_body(&app, request.into_body()).await?;
    let text =
        std::str::from_utf8(&bytes).map_err(|_| Fault::bad_request("the scenario is not UTF-8"))?;
    let scenario =
        FaultScenario::from_yaml(text).map_err(|error| Fault::bad_request(error.to_string()))?;
    app.admin_state.run_fault_scenario(scenario, number).map_err(admin_fault)?;
    Ok(ok_json_response(&app.admin_state.scenario_status_json()))
}

/// Handles `DELETE /admin/scenario`: ends the fault scenario and restores the settings from before
/// the scenario.
pub(super) async fn end_fault_scenario(AdminAccess(app): AdminAccess) -> HandlerResult {
    Ok(ok_json_response(&json!({"ended": app.admin_state.end_fault_scenario()})))
}

/// Checks that a request has the key of `--admin-api-key`, or of `--api-key` if only that is set.
pub(super) fn check_admin_key(app: &App, headers: &HeaderMap) -> Result<(), Fault> {
    let server = &app.settings.server;
    let (keys, flag) = match &server.admin_key {
        Some(key) => (std::slice::from_ref(key), "--admin-api-key"),
        None => (&server.api_keys[..], "--api-key"),
    };
    if keys.is_empty() || has_valid_bearer_token(headers, keys) {
        return Ok(());
    }
    let text = format!("this route needs the bearer key of {flag}");
    Err(Fault::new(401, ErrorType::Authentication, text))
}

/// Returns whether a client has the key of `/admin/config`, so that it may see the settings'
/// values.
pub(super) fn setting_value_visibility(app: &App, headers: &HeaderMap) -> SettingValueVisibility {
    match check_admin_key(app, headers) {
        Ok(()) => SettingValueVisibility::Shown,
        Err(_) => SettingValueVisibility::Hidden,
    }
}

/// Parses the data-parallel rank in the query `?rank=N`; without it, all ranks are selected.
fn parse_rank_query(uri: &Uri) -> Result<DataParallelRankSelector, Fault> {
    match query::query_values(uri, "rank").last() {
        None => Ok(DataParallelRankSelector::All),
        Some(text) => text.parse().map(DataParallelRankSelector::One).map_err(|_| {
            Fault::bad_request(format!("'rank' must be a whole number of at least 0, not {text:?}"))
        }),
    }
}

fn admin_fault(error: AdminError) -> Fault {
    let text = error.to_string();
    match error {
        // The server was started without its flags.
        AdminError::Fixed => Fault::new(501, ErrorType::NotImplemented, text),
        AdminError::Rank { .. } => Fault::new(404, ErrorType::NotFound, text),
        AdminError::Shared { .. } | AdminError::Config(_) | AdminError::Scenario(_) => {
            Fault::bad_request(text)
        }
    }
}

/// Returns the flags for `GET /admin/config`, with secrets masked; for llm-d, also the model's name
/// and the pod's name and address.
fn add_pod_names(app: &App, flags: Map<String, Value>) -> Map<String, Value> {
    let mut flags = mask_secret_flags(flags);
    if app.dialect.properties().operator_route_style == OperatorRouteStyle::Lenient {
        let pod = &app.settings.server.pod;
        let text = |text: &Option<String>| json!(text.as_deref().unwrap_or_default());
        flags.insert(
            "DisplayModelName".to_owned(),
            json!(&**app.service.models.displayed_model_name()),
        );
        flags.insert("IP".to_owned(), text(&pod.ip));
        flags.insert("PodName".to_owned(), text(&pod.name));
        flags.insert("PodNameSpace".to_owned(), text(&pod.namespace));
        flags.insert("VllmDevMode".to_owned(), json!(app.settings.server.routes.dev_mode));
    }
    flags
}

/// Returns the flags whose values differ between two configurations, with both values.
fn differences(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let added = after.keys().filter(|flag| !before.contains_key(*flag));
    let flags = before.keys().chain(added).filter(|flag| before.get(*flag) != after.get(*flag));
    let pairs = flags.map(|flag| {
        let values = json!({"from": before.get(flag), "to": after.get(flag)});
        (flag.clone(), values)
    });
    pairs.collect()
}

fn mask_secret_flags(mut flags: Map<String, Value>) -> Map<String, Value> {
    for key in ["api-key", "admin-api-key", "hf-token"] {
        if let Some(value) = flags.get_mut(key).filter(|v| !v.is_null() && **v != json!("")) {
            *value = "***".into();
        }
    }
    flags
}
