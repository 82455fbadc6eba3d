//! Routes that vLLM does not have, for the OpenAPI document.

use serde_json::{Map, Value, json};

use crate::route_index::RouteIndex;

/// Tag of the routes that vLLM does not have.
const TAG: &str = "vllm-sim";

struct OwnRoute {
    path: &'static str,
    method: &'static str,
    summary: &'static str,
    /// Media type of the request body and an example; `None` without a body.
    body: Option<(&'static str, &'static str)>,
    /// Names and descriptions of optional query parameters.
    query: &'static [(&'static str, &'static str)],
}

/// Returns a route without a body and query parameters.
const fn plain(path: &'static str, method: &'static str, summary: &'static str) -> OwnRoute {
    OwnRoute { path, method, summary, body: None, query: &[] }
}

const RANK: (&str, &str) = ("rank", "Data-parallel rank; without it all ranks.");

const OWN: [OwnRoute; 24] = [
    plain("/health/ready", "get", "Report whether the server takes requests."),
    plain("/ready", "get", "Report whether the server takes requests."),
    plain("/dashboard", "get", "Show the dashboard, an HTML page."),
    plain("/dashboard/latencies", "get", "Return latencies for the dashboard."),
    plain("/dashboard/cache", "get", "Return KV blocks for the dashboard."),
    plain("/dashboard/drills", "get", "Return changes and scenario phases for the dashboard."),
    plain("/dashboard/history", "get", "Return the newest metrics for the dashboard."),
    plain("/dashboard/replicas", "get", "Return all replicas for the dashboard."),
    plain("/dashboard/requests", "get", "Return requests in flight for the dashboard."),
    plain("/dashboard/scenarios", "get", "Return the ready scenarios."),
    plain("/dashboard/summary", "get", "Return the state of this server for other replicas."),
    plain("/debug/kv_cache", "get", "Return the blocks of the KV cache."),
    plain("/query", "get", "Answer the bootstrap query of Mooncake's connector."),
    OwnRoute {
        query: &[("changed", "true: only what was changed since the start."), RANK],
        ..plain("/admin/config", "get", "Return all settings.")
    },
    OwnRoute {
        body: Some(("application/json", "{\"time-to-first-token\": \"200ms\"}")),
        query: &[RANK],
        ..plain("/admin/config", "post", "Change settings, all of the body or none.")
    },
    plain("/admin/scenario", "get", "Return the scenario and its current phase."),
    OwnRoute {
        body: Some((
            "application/yaml",
            "name: storm\nphases:\n- {name: slow, for: 30s, set: {latency-factor: 4}}\n",
        )),
        query: &[("replica", "Number of the replica whose part runs here.")],
        ..plain("/admin/scenario", "post", "Start a scenario.")
    },
    plain("/admin/scenario", "delete", "End the scenario."),
    plain("/admin/replies", "get", "Return the scripted replies, and how often each was used."),
    OwnRoute {
        body: Some(("application/yaml", "- when: {contains: weather}\n  say: It is warm.\n")),
        ..plain("/admin/replies", "post", "Replace the scripted replies.")
    },
    plain("/admin/replies", "delete", "Remove the scripted replies."),
    OwnRoute {
        query: &[
            ("path", "Only requests to this path."),
            ("model", "Only requests for this model."),
            ("status", "Only requests with this HTTP status."),
            ("key", "Only attempts with this key."),
            ("after", "Only requests after the one with this id."),
            ("limit", "Maximum number of requests, the newest ones."),
            ("wait", "Wait until so many requests have ended."),
            ("timeout", "Maximum time to wait, such as 5s."),
        ],
        ..plain("/admin/requests", "get", "Return the recorded requests (--request-history).")
    },
    plain("/admin/requests", "delete", "Clear the recorded requests."),
    OwnRoute {
        body: Some(("application/json", "{\"waiting-requests\": 3}")),
        ..plain("/fake_metrics", "post", "Replace values of /metrics.")
    },
];

/// Adds the served routes that vLLM does not have to the paths of an OpenAPI document.
pub(super) fn add(paths: &mut Map<String, Value>, routes: &RouteIndex) {
    for route in OWN.iter().filter(|route| routes.serves_path(route.path)) {
        let operations = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(operations) = operations.as_object_mut() {
            operations.entry(route.method).or_insert_with(|| operation(route));
        }
    }
}

fn operation(route: &OwnRoute) -> Value {
    let id = route.path.replace(['/', '-'], "_");
    let mut operation = json!({
        "tags": [TAG],
        "summary": route.summary,
        "operationId": format!("{}{id}", route.method),
        "responses": {"200": {"description": "Successful Response"}},
    });
    if !route.query.is_empty() {
        let parameters = route.query.iter().map(|(name, description)| {
            json!({
                "name": name,
                "in": "query",
                "required": false,
                "description": description,
                "schema": {"type": "string"},
            })
        });
        operation["parameters"] = parameters.collect();
    }
    if let Some((media, example)) = route.body {
        let (kind, example) = match serde_json::from_str::<Value>(example) {
            Ok(example) => ("object", example),
            Err(_) => ("string", example.into()),
        };
        let content = json!({"schema": {"type": kind}, "example": example});
        operation["requestBody"] = json!({"required": true, "content": {media: content}});
    }
    operation
}
