//! `POST /v1/embeddings`, `POST /pooling`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{count, enter, id, model, tokens, usage, vector};
use crate::app::{App, unix_now};
use crate::body::Posted;
use crate::error::Answer;
use crate::policy::Api;
use crate::vllm::ok;
use vllm_sim_config::{CliMode, Task};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::pooling::PoolingRequest;

/// Which of the two routes answers.
#[derive(Clone, Copy)]
struct Route {
    prefix: &'static str,
    object: &'static str,
    key: &'static str,
    parse: fn(&Value) -> Result<PoolingRequest, Fault>,
}

const EMBEDDING: Route = Route {
    prefix: "embd-",
    object: "embedding",
    key: "embedding",
    parse: PoolingRequest::parse_embedding,
};
const POOLING: Route = Route {
    prefix: "pooling-",
    object: "pooling",
    key: "data",
    parse: PoolingRequest::parse_pooling,
};

/// `POST /v1/embeddings`.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    Posted { head, value }: Posted,
) -> Answer {
    let reader = app.policy.first_reader;
    let value = reader.read(Api::Embeddings, Cow::Owned(value))?;
    answer(&app, &head.headers, &value, EMBEDDING).await
}

/// `POST /pooling`.
pub(crate) async fn pooling(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    answer(&app, &head.headers, &value, POOLING).await
}

async fn answer(
    app: &Arc<App>,
    headers: &HeaderMap,
    value: &Value,
    route: Route,
) -> Result<Response<Body>, Fault> {
    let guard = app.config.server.load_tracking.then(|| app.load_guard());
    let request = (route.parse)(value)?;
    let model = model(app, request.model.as_deref())?;
    let _guard = enter(app, count(&request))?;
    let inputs = tokens(app, &request, value).await?;
    let classes = wants_classes(app, &request)?;
    if request.embed_dtype != "float32" && request.encoding_format != "float" {
        return Err(Fault::parameter(
            format!(
                "embed_dtype {} is not simulated, only float32 is",
                request.embed_dtype
            ),
            "embed_dtype",
        ));
    }
    let length = if classes {
        app.config.api.num_labels.max(1) as usize
    } else {
        vector::dimensions(app, request.dimensions)?
    };
    let hashed = app.config.model.cli_mode == CliMode::Vllm && !classes;
    let unit = request.use_activation != Some(false);
    let vectors: Vec<Vec<f32>> = inputs
        .iter()
        .map(|tokens| match hashed {
            true => vector::hashed(tokens, length, unit),
            false => vector::embed(tokens, length),
        })
        .collect();
    let read = inputs.iter().map(Vec::len).sum();
    let id = id(route.prefix, headers, request.request_id.as_deref());
    let created = unix_now() as u64;
    let big = request.endianness == "big";
    drop(guard);
    if request.encoding_format.starts_with("bytes") {
        let meta = json!({"id": id, "created": created, "model": &*model});
        return Ok(octets(&request, &vectors, big, meta, usage(read)));
    }
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            let shown = if request.encoding_format == "base64" {
                STANDARD.encode(vector::bytes(vector, big)).into()
            } else {
                // 32-bit floats widened, as vLLM prints them.
                Value::from(vector.iter().map(|x| f64::from(*x)).collect::<Vec<_>>())
            };
            json!({"index": index, "object": route.object, route.key: shown})
        })
        .collect();
    Ok(ok(&json!({
        "id": id,
        "object": "list",
        "created": created,
        "model": &*model,
        "data": data,
        "usage": usage(read),
    })))
}

/// Whether `/pooling` gives class scores; a task that is not the server's is refused.
fn wants_classes(app: &App, request: &PoolingRequest) -> Result<bool, Fault> {
    let task = app.config.api.task;
    let own = matches!(task, Task::Classify | Task::Score | Task::Reward);
    let Some(requested) = request.task.as_deref() else {
        return Ok(own);
    };
    let classes = matches!(requested, "classify" | "token_classify");
    let vectors = matches!(requested, "embed" | "token_embed" | "plugin");
    if !(classes || vectors) || (task != Task::All && classes != own) {
        return Err(Fault::parameter(
            format!("Unsupported task: '{requested}' is not what this server pools for."),
            "task",
        ));
    }
    Ok(classes)
}

/// Vectors as raw bytes; `bytes` describes them in a header.
fn octets(
    request: &PoolingRequest,
    vectors: &[Vec<f32>],
    big: bool,
    mut meta: Value,
    usage: Value,
) -> Response<Body> {
    let mut out = Vec::new();
    let mut data = Vec::with_capacity(vectors.len());
    for (index, vector) in vectors.iter().enumerate() {
        let start = out.len();
        out.extend(vector::bytes(vector, big));
        data.push(json!({
            "index": index,
            "embed_dtype": request.embed_dtype,
            "endianness": request.endianness,
            "start": start,
            "end": out.len(),
            "shape": [vector.len()],
        }));
    }
    meta["data"] = data.into();
    meta["usage"] = usage;
    let mut response = Response::new(Body::from(out));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    if request.encoding_format == "bytes"
        && let Ok(meta) = HeaderValue::from_str(&meta.to_string())
    {
        headers.insert("metadata", meta);
    }
    response
}
