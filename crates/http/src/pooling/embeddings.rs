//! `POST /v1/embeddings` and `POST /pooling`: vectors of texts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::binary::EmbeddingBinaryFormat;
use super::tokenize::{POOLING_INPUT_FIELDS, check_pooling_request};
use super::{
    NO_IO_PLUGIN_MESSAGE, count_in_flight, count_inputs, list_head_json, list_tail_json,
    pooling_request_id, rows, tokenize_inputs, usage_json, vector,
};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::dialect::ApiEndpoint;
use crate::error::HandlerResult;
use crate::json;
use vllm_sim_config::ModelTask;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::pooling::{
    class_probabilities, llmd_embedding, shared_token_embedding, unit_embedding,
};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::pooling::PoolingRequest;

/// Id prefix, JSON names and number format in the responses of one route: `/v1/embeddings` or
/// `/pooling`.
#[derive(Clone, Copy)]
struct PoolingRoute {
    prefix: &'static str,
    object: &'static str,
    key: &'static str,
    write: fn(&mut String, &[f32]),
}

const EMBEDDINGS_ROUTE: PoolingRoute = PoolingRoute {
    prefix: "embd-",
    object: "embedding",
    key: "embedding",
    // vLLM 0.33 passes a numpy array to its JSON writer here, and lists elsewhere.
    write: vector::write_vector_as_numpy_floats,
};
const POOLING_ROUTE: PoolingRoute = PoolingRoute {
    prefix: "pooling-",
    object: "pooling",
    key: "data",
    write: vector::write_vector_as_python_floats,
};

pub(crate) async fn create_embeddings(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let text = received.raw_body_for_schema_check(&app);
    if let Some((request, value)) = text.and_then(PoolingRequest::parse_long_embedding_and_body) {
        // Frees the body, which takes about as much memory as the parsed request.
        received.bytes = Bytes::new();
        return answer_pooling(&app, &received, &value, request, EMBEDDINGS_ROUTE).await;
    }
    let dialect = app.dialect;
    let value = dialect
        .schema_body(ApiEndpoint::Embeddings, Cow::Owned(received.parse_dialect_json(&app)?))?;
    let request = PoolingRequest::parse_embedding_request(&value)
        .map_err(|fault| dialect.unreadable_body_fault(fault))?;
    answer_pooling(&app, &received, &value, request, EMBEDDINGS_ROUTE).await
}

pub(crate) async fn create_pooling(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let dialect = app.dialect;
    let request = PoolingRequest::parse_pooling_request(&value)
        .map_err(|fault| dialect.unreadable_body_fault(fault))?;
    if request.dimensions.is_some() {
        let text = "dimensions is currently not supported";
        return Err(Fault::bad_parameter(text, "dimensions"));
    }
    answer_pooling(&app, &received, &value, request, POOLING_ROUTE).await
}

async fn answer_pooling(
    app: &Arc<App>,
    received: &RawRequest,
    value: &Value,
    request: PoolingRequest,
    route: PoolingRoute,
) -> Result<Response<Body>, Fault> {
    let guard = app.count_request_in_load();
    let classes = wants_class_scores(app, &request)?;
    let model = check_pooling_request(app, received, &request, POOLING_INPUT_FIELDS)?;
    let _guard = count_in_flight(app, count_inputs(&request))?;
    let inputs = tokenize_inputs(app, &request, value).await?;
    let length = if classes {
        app.settings.pooling.num_labels.max(1) as usize
    } else {
        vector::vector_dimensions(app, request.dimensions)?
    };
    rows::check_response_float_count(inputs.len(), length)?;
    let hashed = app.settings.pooling.embeds_words && !classes;
    let unit = request.use_activation != Some(false);
    let embed = move |tokens: &[u32]| match (classes, hashed) {
        (true, _) => class_probabilities(tokens, length as u32),
        (false, true) if unit => unit_embedding(tokens, length),
        (false, true) => shared_token_embedding(tokens, length),
        (false, false) => llmd_embedding(tokens, length),
    };
    let read = inputs.tokens.len();
    let id = pooling_request_id(route.prefix, &received.headers, request.request_id.as_deref());
    let format = EmbeddingBinaryFormat::new(&request.embed_dtype, &request.endianness);
    drop(guard);
    if request.encoding_format.starts_with("bytes") {
        let meta = json!({"id": id, "created": unix_now_secs() as u64, "model": &*model});
        let vectors = inputs.iter().map(embed);
        return Ok(raw_bytes_response(&request, vectors, format, meta, usage_json(read)));
    }
    let base64 = request.encoding_format == "base64";
    let count = inputs.len();
    let row = move |out: &mut String, index: usize| {
        let vector = embed(&inputs[index]);
        let comma = if index > 0 { "," } else { "" };
        let (object, key) = (route.object, route.key);
        let _ = write!(out, "{comma}{{\"index\":{index},\"object\":\"{object}\",\"{key}\":");
        if base64 {
            json::write_json_string(out, &STANDARD.encode(format.encode_vector(&vector)));
        } else {
            (route.write)(out, &vector);
        }
        out.push('}');
    };
    let head = list_head_json(&id, &model);
    Ok(rows::stream_json_rows(head, count, row, list_tail_json(read)))
}

/// Returns whether `/pooling` returns class scores instead of vectors; rejects a task that the
/// server does not run.
fn wants_class_scores(app: &App, request: &PoolingRequest) -> Result<bool, Fault> {
    let task = app.settings.pooling.task;
    let own = matches!(task, ModelTask::Classify | ModelTask::Score | ModelTask::Reward);
    let Some(requested) = request.task.as_deref() else {
        return Ok(own);
    };
    let classes = matches!(requested, "classify" | "token_classify");
    let supported = match (task, own) {
        (ModelTask::All, _) => return Ok(classes),
        (_, true) => ["classify", "token_classify"],
        (_, false) => ["embed", "token_embed"],
    };
    if requested == supported[0] {
        return Ok(classes);
    }
    let message = if requested == "plugin" {
        NO_IO_PLUGIN_MESSAGE.to_owned()
    } else if requested == supported[1] {
        format!("Try switching the model's pooling_task via --pooler-config.task {requested}.")
    } else {
        let [first, second] = supported;
        format!("Unsupported task: '{requested}' Supported tasks: ['{first}', '{second}']")
    };
    Err(Fault::bad_parameter(message, "task"))
}

/// Returns a response with embedding vectors as raw bytes; the format `bytes` adds a `metadata`
/// header.
fn raw_bytes_response(
    request: &PoolingRequest,
    vectors: impl Iterator<Item = Vec<f32>>,
    format: EmbeddingBinaryFormat,
    mut meta: Value,
    usage: Value,
) -> Response<Body> {
    let mut out = Vec::new();
    let mut data = Vec::new();
    for (index, vector) in vectors.enumerate() {
        let start = out.len();
        out.extend(format.encode_vector(&vector));
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
