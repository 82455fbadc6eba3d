//! FastAPI's documentation routes: the OpenAPI schema and two HTML pages.
//!
//! The schema is that of the imitated release with all features, without the paths that this
//! configuration lacks, plus the routes that vLLM does not have and error responses that FastAPI does not derive.

use std::collections::BTreeSet;
use std::io::Read;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::own_routes;
use crate::app::{App, AppState};
use crate::error;
use crate::html_page::html_page_response;
use vllm_sim_wire::VllmVersion;

/// OpenAPI document of the newest vLLM release as FastAPI writes it, gzipped; `lab/upstream`
/// generates the file.
const OPENAPI_GZ: &[u8] = include_bytes!("openapi.json.gz");

/// JSON merge patches by vLLM release, gzipped; each converts the OpenAPI document of the next
/// newer release to that of its release.
const OLDER_OPENAPI_GZ: &[u8] = include_bytes!("openapi_older.json.gz");

pub(crate) async fn get_openapi(State(app): AppState) -> Response<Body> {
    // Cached: the schema does not change while the server runs.
    let text = app.openapi.get_or_init(|| openapi_json(&app).into());
    error::json_response(StatusCode::OK, text.to_string())
}

fn openapi_json(app: &App) -> String {
    let mut schema = openapi_document(app.settings.model.vllm_version);
    let root = &app.settings.server.root_path;
    if !root.is_empty() {
        schema["servers"] = json!([{"url": root}]);
    }
    if let Some(paths) = schema.get_mut("paths").and_then(Value::as_object_mut) {
        paths.retain(|path, _| app.routes.serves_path(path));
        own_routes::add_simulator_routes(paths, &app.routes);
        for (path, operations) in paths.iter_mut() {
            let operations = operations.as_object_mut().into_iter().flatten();
            operations.for_each(|(_, operation)| add_error_responses(path, operation));
        }
    }
    schema["components"]["schemas"]["RoutingError"] = json!({
        "title": "RoutingError",
        "type": "object",
        "properties": {"detail": {"type": "string"}},
        "required": ["detail"],
    });
    let mut used = BTreeSet::new();
    let mut open = Vec::new();
    collect_schema_references(&schema["paths"], &mut open);
    let all = schema["components"]["schemas"].take();
    while let Some(name) = open.pop() {
        if used.insert(name.clone()) {
            collect_schema_references(&all[&name], &mut open);
        }
    }
    let kept: Map<String, Value> = match all {
        Value::Object(all) => all.into_iter().filter(|(n, _)| used.contains(n)).collect(),
        _ => Map::new(),
    };
    schema["components"]["schemas"] = kept.into();
    schema.to_string()
}

/// Returns the API paths of the newest vLLM release that an older release does not have.
pub(crate) fn paths_newer_than(version: VllmVersion) -> BTreeSet<String> {
    let paths = |version| -> BTreeSet<String> {
        match openapi_document(version)["paths"].take() {
            Value::Object(paths) => paths.into_iter().map(|(path, _)| path).collect(),
            _ => BTreeSet::new(),
        }
    };
    &paths(VllmVersion::default()) - &paths(version)
}

/// Returns vLLM's OpenAPI document with the routes of all features.
fn openapi_document(version: VllmVersion) -> Value {
    let mut document = unpack_json(OPENAPI_GZ);
    let patches = unpack_json(OLDER_OPENAPI_GZ);
    for older in VllmVersion::ALL.into_iter().rev().skip(1).take_while(|one| *one >= version) {
        merge_patch(&mut document, &patches[older.as_str()]);
    }
    document
}

/// Returns the JSON in an embedded gzip file of OpenAPI documents.
fn unpack_json(packed: &[u8]) -> Value {
    let mut text = String::new();
    let _ = flate2::read::GzDecoder::new(packed).read_to_string(&mut text);
    serde_json::from_str(&text).unwrap_or_default()
}

/// Applies a JSON merge patch.
///
/// **Source:** RFC 7386.
fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in members {
        match (target.as_object_mut(), value) {
            (Some(object), Value::Null) => drop(object.shift_remove(name)),
            _ => merge_patch(&mut target[name], value),
        }
    }
}

/// Routes whose successful response is empty or plain text.
const ROUTES_WITHOUT_JSON: [&str; 7] = [
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/inference/v1/abort_requests",
    "/start_profile",
    "/stop_profile",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
];

/// Adds to an operation of the OpenAPI schema the error responses that FastAPI does not derive:
/// errors for unreadable bodies, and errors from outside the handler.
fn add_error_responses(path: &str, operation: &mut Value) {
    let reads = operation.get("requestBody").is_some() || operation.get("parameters").is_some();
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    if ROUTES_WITHOUT_JSON.contains(&path)
        && let Some(success) = responses.get_mut("200").and_then(Value::as_object_mut)
    {
        success.remove("content");
    }
    let refusal = json!({"anyOf": [
        {"$ref": "#/components/schemas/ErrorResponse"},
        {"$ref": "#/components/schemas/RoutingError"},
    ]});
    let known = responses.get("400").cloned();
    let own = known.and_then(|r| r.pointer("/content/application~1json/schema").cloned());
    let bad = match own {
        Some(own) => json!({"anyOf": [own, refusal["anyOf"][0], refusal["anyOf"][1]]}),
        None => refusal.clone(),
    };
    let described = |text: &str, schema: Value| json!({"description": text, "content": {"application/json": {"schema": schema}}});
    if reads {
        responses.insert("400".to_owned(), described("Bad Request", bad));
    }
    if !responses.contains_key("default") {
        let schema = json!({"anyOf": [
            refusal["anyOf"][0],
            refusal["anyOf"][1],
            {"$ref": "#/components/schemas/AnthropicErrorResponse"},
            {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]},
        ]});
        responses.insert("default".to_owned(), described("Refused", schema));
    }
}

/// Collects the names of the OpenAPI schemas to which a value refers.
fn collect_schema_references(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = value
                    .as_str()
                    .filter(|_| key == "$ref")
                    .and_then(|r| r.strip_prefix("#/components/schemas/"));
                match name {
                    Some(name) => out.push(name.to_owned()),
                    None => collect_schema_references(value, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_schema_references(item, out)),
        _ => {}
    }
}

/// Handles `GET /docs` and `GET /redoc`: returns a page that lists the routes and loads nothing
/// from other hosts.
pub(crate) async fn get_api_docs_page(State(app): AppState) -> Response<Body> {
    html_page_response(PAGE.replace("{root}", &app.settings.server.root_path))
}

/// Handles `GET /docs/oauth2-redirect`, the login redirect of the documentation page; FastAPI
/// always serves it.
pub(crate) async fn oauth2_redirect_page() -> Response<Body> {
    html_page_response(OAUTH2_HTML)
}

const OAUTH2_HTML: &str = "<!doctype html>\n<html lang=\"en-US\">\n<head>\n    <title>Swagger UI: OAuth2 Redirect</title>\n</head>\n<body>\n<script>window.close();</script>\n</body>\n</html>\n";

/// Page of the API's routes. FastAPI's pages load their scripts from other hosts; this one works
/// offline.
const PAGE: &str = include_str!("docs.html");
