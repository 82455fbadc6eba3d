//! `POST /v1/embeddings` and `POST /pooling`: vectors of texts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::vector::Endianness;
use super::{
    NO_PLUGIN, count, enter, id, list_head, list_tail, model, rows, tokens, usage, vector,
};
use crate::app::App;
use crate::body::{JsonRequest, RawRequest};
use crate::dialect::Endpoint;
use crate::error::HandlerResult;
use crate::json;
use vllm_sim_config::Task;
use vllm_sim_engine::driver::unix_now;
use vllm_sim_service::pooling::{
    class_probabilities, llmd_embedding, shared_token_embedding, unit_embedding,
};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::pooling::PoolingRequest;

/// Id prefix, JSON names and number format of `/v1/embeddings` or of `/pooling`.
#[derive(Clone, Copy)]
struct Route {
    prefix: &'static str,
    object: &'static str,
    key: &'static str,
    write: fn(&mut String, &[f32]),
}

const EMBEDDING: Route = Route {
    prefix: "embd-",
    object: "embedding",
    key: "embedding",
    // vLLM 0.33 passes a numpy array to its JSON writer here, and lists elsewhere.
    write: vector::write_short,
};
const POOLING: Route = Route {
    prefix: "pooling-",
    object: "pooling",
    key: "data",
    write: vector::write,
};

pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    mut received: RawRequest,
) -> HandlerResult {
    let text = received.schema_only_body(&app);
    if let Some((request, value)) = text.and_then(PoolingRequest::read_long_embedding) {
        // Frees the body, which takes about as much memory as the parsed request.
        received.bytes = Bytes::new();
        let headers = &received.head.headers;
        return answer(&app, headers, &value, request, EMBEDDING).await;
    }
    let dialect = app.dialect;
    let value = dialect.read(Endpoint::Embeddings, Cow::Owned(received.parse_json(&app)?))?;
    let request = PoolingRequest::parse_embedding(&value).map_err(|fault| dialect.unread(fault))?;
    answer(&app, &received.head.headers, &value, request, EMBEDDING).await
}

pub(crate) async fn pooling(
    State(app): State<Arc<App>>,
    JsonRequest { head, value }: JsonRequest,
) -> HandlerResult {
    let dialect = app.dialect;
    let request = PoolingRequest::parse_pooling(&value).map_err(|fault| dialect.unread(fault))?;
    answer(&app, &head.headers, &value, request, POOLING).await
}

async fn answer(
    app: &Arc<App>,
    headers: &HeaderMap,
    value: &Value,
    request: PoolingRequest,
    route: Route,
) -> Result<Response<Body>, Fault> {
    let guard = app.settings.server.load_tracking.then(|| app.load_guard());
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
        app.settings.pooling.num_labels.max(1) as usize
    } else {
        vector::dimensions(app, request.dimensions)?
    };
    rows::check(inputs.len(), length)?;
    let hashed = app.settings.pooling.embeds_words && !classes;
    let unit = request.use_activation != Some(false);
    let embed = move |tokens: &[u32]| match (classes, hashed) {
        (true, _) => class_probabilities(tokens, length as u32),
        (false, true) if unit => unit_embedding(tokens, length),
        (false, true) => shared_token_embedding(tokens, length),
        (false, false) => llmd_embedding(tokens, length),
    };
    let read = inputs.tokens.len();
    let id = id(route.prefix, headers, request.request_id.as_deref());
    let endianness = match request.endianness.as_str() {
        "big" => Endianness::Big,
        _ => Endianness::Little,
    };
    drop(guard);
    if request.encoding_format.starts_with("bytes") {
        let meta = json!({"id": id, "created": unix_now() as u64, "model": &*model});
        let vectors = inputs.iter().map(embed);
        return Ok(octets(&request, vectors, endianness, meta, usage(read)));
    }
    let base64 = request.encoding_format == "base64";
    let count = inputs.len();
    let row = move |out: &mut String, index: usize| {
        let vector = embed(&inputs[index]);
        let comma = if index > 0 { "," } else { "" };
        let (object, key) = (route.object, route.key);
        let _ = write!(
            out,
            "{comma}{{\"index\":{index},\"object\":\"{object}\",\"{key}\":"
        );
        if base64 {
            json::string(out, &STANDARD.encode(vector::bytes(&vector, endianness)));
        } else {
            (route.write)(out, &vector);
        }
        out.push('}');
    };
    let head = list_head(&id, &model);
    Ok(rows::json(head, count, row, list_tail(read)))
}

/// Returns whether `/pooling` returns class scores instead of vectors; rejects a task that the
/// server does not run.
fn wants_classes(app: &App, request: &PoolingRequest) -> Result<bool, Fault> {
    let task = app.settings.pooling.task;
    let own = matches!(task, Task::Classify | Task::Score | Task::Reward);
    let Some(requested) = request.task.as_deref() else {
        return Ok(own);
    };
    let classes = matches!(requested, "classify" | "token_classify");
    let supported = match (task, own) {
        (Task::All, _) => return Ok(classes),
        (_, true) => ["classify", "token_classify"],
        (_, false) => ["embed", "token_embed"],
    };
    if requested == supported[0] {
        return Ok(classes);
    }
    let message = if requested == "plugin" {
        NO_PLUGIN.to_owned()
    } else if requested == supported[1] {
        format!("Try switching the model's pooling_task via --pooler-config.task {requested}.")
    } else {
        let [first, second] = supported;
        format!("Unsupported task: '{requested}' Supported tasks: ['{first}', '{second}']")
    };
    Err(Fault::parameter(message, "task"))
}

/// Returns a response with embedding vectors as raw bytes; the format `bytes` adds a `metadata`
/// header.
fn octets(
    request: &PoolingRequest,
    vectors: impl Iterator<Item = Vec<f32>>,
    endianness: Endianness,
    mut meta: Value,
    usage: Value,
) -> Response<Body> {
    let mut out = Vec::new();
    let mut data = Vec::new();
    for (index, vector) in vectors.enumerate() {
        let start = out.len();
        out.extend(vector::bytes(&vector, endianness));
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
