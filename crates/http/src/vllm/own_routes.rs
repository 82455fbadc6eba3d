//! Routes that vLLM does not have, for the OpenAPI document.

use serde_json::{Map, Value, json};

use crate::app::RouteIndex;

/// OpenAPI tag of the routes that vLLM does not have.
const TAG: &str = "vllm-sim";

struct OwnRoute {
    path: &'static str,
    method: &'static str,
    summary: &'static str,
    /// Media type and example of the route's request body; `None` if the route reads no body.
    body: Option<(&'static str, &'static str)>,
    /// Name and description of each optional query parameter of the route.
    query: &'static [(&'static str, &'static str)],
}

/// Returns the OpenAPI description of a route that has neither a body nor query parameters.
const fn simple_route(path: &'static str, method: &'static str, summary: &'static str) -> OwnRoute {
    OwnRoute { path, method, summary, body: None, query: &[] }
}

/// Query parameters of the lists of recorded requests.
const REQUEST_LIST_QUERY: &[(&str, &str)] = &[
    ("path", "Only requests to this path."),
    ("model", "Only requests for this model."),
    ("status", "Only requests with this HTTP status."),
    ("key", "Only attempts with this key."),
    ("after", "Only requests after the one with this id."),
    ("limit", "Maximum number of requests, the newest ones."),
    ("wait", "Wait until so many requests have ended."),
    ("timeout", "Maximum time to wait, such as 5s."),
];

const RANK: (&str, &str) = ("rank", "Data-parallel rank; without it all ranks.");

const OWN: [OwnRoute; 26] = [
    simple_route("/health/ready", "get", "Report whether the server takes requests."),
    simple_route("/ready", "get", "Report whether the server takes requests."),
    simple_route("/dashboard", "get", "Show the dashboard, an HTML page."),
    simple_route("/dashboard/latencies", "get", "Return latencies for the dashboard."),
    simple_route("/dashboard/cache", "get", "Return KV blocks for the dashboard."),
    simple_route(
        "/dashboard/drills",
        "get",
        "Return changes and scenario phases for the dashboard.",
    ),
    simple_route("/dashboard/history", "get", "Return the newest metrics for the dashboard."),
    simple_route("/dashboard/replicas", "get", "Return all replicas for the dashboard."),
    simple_route("/dashboard/requests", "get", "Return requests in flight for the dashboard."),
    simple_route("/dashboard/scenarios", "get", "Return the ready scenarios."),
    simple_route("/dashboard/trace", "get", "Return the newest requests and steps for Perfetto."),
    simple_route(
        "/dashboard/summary",
        "get",
        "Return the state of this server for other replicas.",
    ),
    simple_route("/debug/kv_cache", "get", "Return the blocks of the KV cache."),
    simple_route("/query", "get", "Answer the bootstrap query of Mooncake's connector."),
    OwnRoute {
        query: &[("changed", "true: only what was changed since the start."), RANK],
        ..simple_route("/admin/config", "get", "Return all settings.")
    },
    OwnRoute {
        body: Some(("application/json", "{\"time-to-first-token\": \"200ms\"}")),
        query: &[RANK],
        ..simple_route("/admin/config", "post", "Change settings, all of the body or none.")
    },
    simple_route("/admin/scenario", "get", "Return the scenario and its current phase."),
    OwnRoute {
        body: Some((
            "application/yaml",
            "name: storm\nphases:\n- {name: slow, for: 30s, set: {latency-factor: 4}}\n",
        )),
        query: &[("replica", "Number of the replica whose part runs here.")],
        ..simple_route("/admin/scenario", "post", "Start a scenario.")
    },
    simple_route("/admin/scenario", "delete", "End the scenario."),
    simple_route(
        "/admin/replies",
        "get",
        "Return the scripted replies, and how often each was used.",
    ),
    OwnRoute {
        body: Some(("application/yaml", "- when: {contains: weather}\n  say: It is warm.\n")),
        ..simple_route("/admin/replies", "post", "Replace the scripted replies.")
    },
    simple_route("/admin/replies", "delete", "Remove the scripted replies."),
    OwnRoute {
        query: REQUEST_LIST_QUERY,
        ..simple_route(
            "/admin/requests",
            "get",
            "Return the recorded requests (--request-history).",
        )
    },
    simple_route("/admin/requests", "delete", "Clear the recorded requests."),
    OwnRoute {
        query: REQUEST_LIST_QUERY,
        ..simple_route("/admin/usage", "get", "Return the tokens of the recorded requests.")
    },
    OwnRoute {
        body: Some(("application/json", "{\"waiting-requests\": 3}")),
        ..simple_route("/fake_metrics", "post", "Replace values of /metrics.")
    },
];

/// Adds to the paths of an OpenAPI document those served routes that vLLM lacks.
pub(super) fn add_simulator_routes(paths: &mut Map<String, Value>, routes: &RouteIndex) {
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
