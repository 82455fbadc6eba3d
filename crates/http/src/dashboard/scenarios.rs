//! `GET /dashboard/scenarios`: the ready scenarios of `manifests/scenarios`, with their phases.

use crate::error::ok_json_response;
use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use vllm_sim_service::scenario::{
    FaultScenario, ScenarioPhase, ScenarioPhaseAction, ScenarioPhaseLength,
};

macro_rules! ready_scenario {
    ($name:literal) => {
        include_str!(concat!("../../../../manifests/scenarios/", $name, ".yaml"))
    };
}

/// YAML texts of the ready-made fault scenarios.
const READY_SCENARIOS: [&str; 11] = [
    ready_scenario!("brownout"),
    ready_scenario!("cut-streams"),
    ready_scenario!("engine-hang"),
    ready_scenario!("error-burst"),
    ready_scenario!("flapping-health"),
    ready_scenario!("kv-event-gaps"),
    ready_scenario!("lora-churn"),
    ready_scenario!("overload"),
    ready_scenario!("prefiller-down"),
    ready_scenario!("rate-limit"),
    ready_scenario!("restart"),
];

/// Returns the ready-made fault scenarios, each with its text for `POST /admin/scenario`.
pub(crate) async fn list_built_in_scenarios() -> Response<Body> {
    let scenarios = READY_SCENARIOS.iter().filter_map(|text| {
        let scenario = FaultScenario::from_yaml(text).ok()?;
        let about = text.lines().map_while(|line| line.strip_prefix("# "));
        Some(json!({
            "name": scenario.name,
            "about": about.collect::<Vec<_>>().join(" "),
            "repeat": scenario.repeat,
            "phases": scenario.phases.iter().map(phase_json).collect::<Vec<_>>(),
            "text": text,
        }))
    });
    ok_json_response(&json!({"scenarios": scenarios.collect::<Vec<_>>()}))
}

/// Returns the JSON of a scenario phase, with the phase's length in `seconds` or in `requests`. A
/// phase without an end has neither.
fn phase_json(phase: &ScenarioPhase) -> Value {
    let (seconds, requests) = match phase.length {
        ScenarioPhaseLength::Time(time) => (Some(time.as_secs_f64()), None),
        ScenarioPhaseLength::Requests(count) => (None, Some(count)),
        ScenarioPhaseLength::Open => (None, None),
    };
    json!({
        "name": phase.name,
        "seconds": seconds,
        "requests": requests,
        "set": phase.set,
        "actions": phase.actions.iter().map(action_name).collect::<Vec<_>>(),
    })
}

fn action_name(action: &ScenarioPhaseAction) -> String {
    match action {
        ScenarioPhaseAction::ResetPrefixCache => "reset-prefix-cache".to_owned(),
        ScenarioPhaseAction::AbortRequests => "abort-requests".to_owned(),
        ScenarioPhaseAction::LoadLora { name, .. } => format!("load-lora {name}"),
        ScenarioPhaseAction::UnloadLora(name) => format!("unload-lora {name}"),
        ScenarioPhaseAction::Restart(time) => format!("restart {time:?}"),
    }
}
