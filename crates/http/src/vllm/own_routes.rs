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

impl OwnRoute {
    const fn new(method: &'static str, path: &'static str, summary: &'static str) -> Self {
        Self { path, method, summary, body: None, query: &[] }
    }

    const fn with_body(self, media: &'static str, example: &'static str) -> Self {
        Self { body: Some((media, example)), ..self }
    }

    const fn with_query(self, query: &'static [(&'static str, &'static str)]) -> Self {
        Self { query, ..self }
    }
}

const fn get(path: &'static str, summary: &'static str) -> OwnRoute {
    OwnRoute::new("get", path, summary)
}

const fn post(path: &'static str, summary: &'static str) -> OwnRoute {
    OwnRoute::new("post", path, summary)
}

const fn delete(path: &'static str, summary: &'static str) -> OwnRoute {
    OwnRoute::new("delete", path, summary)
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
    get("/health/ready", "Report whether the server takes requests."),
    get("/ready", "Report whether the server takes requests."),
    get("/dashboard", "Show the dashboard, an HTML page."),
    get("/dashboard/latencies", "Return latencies for the dashboard."),
    get("/dashboard/cache", "Return KV blocks for the dashboard."),
    get("/dashboard/drills", "Return changes and scenario phases for the dashboard."),
    get("/dashboard/history", "Return the newest metrics for the dashboard."),
    get("/dashboard/replicas", "Return all replicas for the dashboard."),
    get("/dashboard/requests", "Return requests in flight for the dashboard."),
    get("/dashboard/scenarios", "Return the ready scenarios."),
    get("/dashboard/trace", "Return the newest requests and steps for Perfetto."),
    get("/dashboard/summary", "Return the state of this server for other replicas."),
    get("/debug/kv_cache", "Return the blocks of the KV cache."),
    get("/query", "Answer the bootstrap query of Mooncake's connector."),
    get("/admin/config", "Return all settings.")
        .with_query(&[("changed", "true: only what was changed since the start."), RANK]),
    post("/admin/config", "Change settings, all of the body or none.")
        .with_body("application/json", "{\"time-to-first-token\": \"200ms\"}")
        .with_query(&[RANK]),
    get("/admin/scenario", "Return the scenario and its current phase."),
    post("/admin/scenario", "Start a scenario.")
        .with_body(
            "application/yaml",
            "name: storm\nphases:\n- {name: slow, for: 30s, set: {latency-factor: 4}}\n",
        )
        .with_query(&[("replica", "Number of the replica whose part runs here.")]),
    delete("/admin/scenario", "End the scenario."),
    get("/admin/replies", "Return the scripted replies, and how often each was used."),
    post("/admin/replies", "Replace the scripted replies.")
        .with_body("application/yaml", "- when: {contains: weather}\n  say: It is warm.\n"),
    delete("/admin/replies", "Remove the scripted replies."),
    get("/admin/requests", "Return the recorded requests (--request-history).")
        .with_query(REQUEST_LIST_QUERY),
    delete("/admin/requests", "Clear the recorded requests."),
    get("/admin/usage", "Return the tokens of the recorded requests.")
        .with_query(REQUEST_LIST_QUERY),
    post("/fake_metrics", "Replace values of /metrics.")
        .with_body("application/json", "{\"waiting-requests\": 3}"),
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
