//! Routes of SGLang that embed, classify, score and rank texts.
//!
//! Source: SGLang 0.5.23 `openai/serving_embedding.py`, `serving_classify.py`, `serving_score.py`,
//! `serving_rerank.py`; `managers/tokenizer_manager.py` (`_validate_for_matryoshka_dim`),
//! `managers/tokenizer_manager_score_mixin.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::errors::SglangResult;
use super::pooling_inputs::{PoolingInputs, read_pooling_inputs};
use super::request::new_request_id;
use super::usage::prompt_only_usage_json;
use super::{endpoint, errors};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::ok_json_response;
use crate::json;
use crate::pooling::binary::EmbeddingBinaryFormat;
use crate::pooling::classify::class_label;
use crate::pooling::{rows, vector};
use vllm_sim_config::ModelTask;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::pooling::{class_probabilities, unit_embedding};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::pooling::{
    EncodeRequest, SglangClassifyRequest, SglangEmbeddingRequest, SglangRerankRequest,
    check_pooling_input,
};

/// Error message for a request for vectors to a model that generates text.
const NOT_AN_EMBEDDING_MODEL: &str = "This model does not appear to be an embedding model by default. Please add `--is-embedding` \
     when launching the server or try another model.";

/// Returns whether the served model generates text, rather than embedding vectors or classes.
pub(super) fn has_generation_model(app: &App) -> bool {
    matches!(app.settings.pooling.task, ModelTask::Generate | ModelTask::All)
}

/// Handles `POST /v1/embeddings`: returns an embedding vector per input.
pub(super) async fn create_embeddings(
    app: Arc<App>,
    request: SglangEmbeddingRequest,
) -> SglangResult {
    request.validate_embedding_request()?;
    let inputs = read_pooling_inputs(&app, &request.input).await?;
    let length = vector_length(&app, request.dimensions)?;
    rows::check_response_float_count(inputs.lists.len(), length)?;
    let tokens = inputs.input_token_count();
    let (count, is_base64) = (inputs.lists.len(), request.encoding_format == "base64");
    let computes = Vectors::new(&app, length);
    let row = move |out: &mut String, index: usize| {
        let vector = computes.vector(&inputs.lists[index]);
        out.push_str(if index > 0 { ",{\"embedding\":" } else { "{\"embedding\":" });
        match is_base64 {
            true => {
                let bytes = EmbeddingBinaryFormat::FLOAT32.encode_vector(&vector);
                json::write_json_string(out, &STANDARD.encode(bytes));
            }
            false => vector::write_vector_as_python_floats(out, &vector),
        }
        out.push_str(&format!(",\"index\":{index},\"object\":\"embedding\"}}"));
    };
    let model = Value::from(&*app.settings.model.name);
    let usage = prompt_only_usage_json(tokens);
    let tail = format!("],\"model\":{model},\"object\":\"list\",\"usage\":{usage}}}");
    Ok(rows::stream_json_rows("{\"data\":[".to_owned(), count, row, tail))
}

/// Handles `POST /encode`: returns SGLang's native vector results.
pub(super) async fn encode_inputs(State(app): AppState, received: RawRequest) -> Response<Body> {
    native(encoded(&app, &received, &endpoint::ENCODE).await)
}

/// Handles `POST /classify` like `POST /encode`, as SGLang does.
pub(super) async fn classify_inputs(State(app): AppState, received: RawRequest) -> Response<Body> {
    native(encoded(&app, &received, &endpoint::CLASSIFY).await)
}

fn native(answer: Result<Response<Body>, Fault>) -> Response<Body> {
    answer.unwrap_or_else(|fault| errors::native_route_error_response(&fault))
}

async fn encoded(
    app: &Arc<App>,
    received: &RawRequest,
    at: &vllm_sim_wire::fastapi::RouteFunction,
) -> Result<Response<Body>, Fault> {
    let request: EncodeRequest = endpoint::read_request(app, received, at)?;
    let media = [
        ("image_data", &request.image_data),
        ("video_data", &request.video_data),
        ("audio_data", &request.audio_data),
    ];
    let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
    if let Some((name, _)) = media.into_iter().find(|(_, value)| given(value)) {
        return Err(Fault::bad_request(format!("{name} is not simulated")));
    }
    let input = [&request.text, &request.input_ids].into_iter().find(|value| given(value));
    let input = input.and_then(Option::as_ref).ok_or_else(|| {
        Fault::bad_request(
            "At least one of text, input_ids, image, video, or audio should be provided",
        )
    })?;
    let inputs = read_pooling_inputs(app, input).await?;
    let length = vector_length(app, request.dimensions)?;
    rows::check_response_float_count(inputs.lists.len(), length)?;
    let ids = request_ids(request.rid.as_ref(), &inputs);
    let computes = Vectors::new(app, length);
    let version = app.weight_version.load_full();
    let (count, is_single) = (inputs.lists.len(), inputs.is_single);
    let row = move |out: &mut String, index: usize| {
        let tokens = &inputs.lists[index];
        out.push_str(if index > 0 { ",{\"embedding\":" } else { "{\"embedding\":" });
        vector::write_vector_as_python_floats(out, &computes.vector(tokens));
        let meta = pooled_meta(&ids[index], tokens.len(), &version);
        out.push_str(&format!(",\"meta_info\":{meta}}}"));
    };
    let (head, tail) = if is_single { ("", "") } else { ("[", "]") };
    Ok(rows::stream_json_rows(head.to_owned(), count, row, tail.to_owned()))
}

/// Returns one request id per input of a pooling request: ids from the request's `rid`, or new
/// ones.
fn request_ids(rid: Option<&Value>, inputs: &PoolingInputs) -> Vec<Arc<str>> {
    let ids = (0..inputs.lists.len()).map(|index| match rid {
        Some(Value::String(rid)) if inputs.is_single => rid.as_str().into(),
        Some(Value::String(rid)) => format!("{rid}_{index}").into(),
        Some(Value::Array(rids)) => {
            rids.get(index).and_then(Value::as_str).map_or_else(new_request_id, Into::into)
        }
        _ => new_request_id(),
    });
    ids.collect()
}

/// Returns the `meta_info` of a vector or class result, which has no generated text.
fn pooled_meta(id: &str, tokens: usize, version: &str) -> Value {
    json!({
        "id": id,
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": tokens,
        "weight_version": version,
        "num_retractions": 0,
        "e2e_latency": 0.0,
        "response_sent_to_client_ts": unix_now_secs(),
    })
}

/// Handles `POST /v1/classify`: returns the class probabilities of each input.
pub(super) async fn create_classification(
    app: Arc<App>,
    request: SglangClassifyRequest,
) -> SglangResult {
    check_pooling_input(&request.input)?;
    let inputs = read_pooling_inputs(&app, &request.input).await?;
    check_embedding_model(&app)?;
    let count = app.settings.pooling.num_labels.max(1);
    rows::check_response_float_count(inputs.lists.len(), count as usize)?;
    let data = inputs.lists.iter().enumerate().map(|(index, tokens)| {
        let probs = class_probabilities(tokens, count);
        let best = (0..probs.len()).max_by(|a, b| probs[*a].total_cmp(&probs[*b]));
        json!({
            "index": index,
            "label": class_label(&app, best.unwrap_or(0)),
            "probs": probs,
            "num_classes": count,
        })
    });
    let data: Vec<Value> = data.collect();
    Ok(ok_json_response(&json!({
        "id": format!("classify-{}", new_request_id()),
        "object": "list",
        "created": unix_now_secs() as u64,
        "model": **app.service.models.displayed_model_name(),
        "data": data,
        "usage": prompt_only_usage_json(inputs.input_token_count()),
    })))
}

/// Handles `POST /v1/rerank`: scores documents against a query.
pub(super) async fn rerank(app: Arc<App>, request: SglangRerankRequest) -> SglangResult {
    request.validate_rerank_request()?;
    let query = content_text(&request.query);
    let texts: Vec<String> = request.documents.iter().map(content_text).collect();
    let queries = read_pooling_inputs(&app, &query.into()).await?;
    let documents = read_pooling_inputs(&app, &json!(texts)).await?;
    check_embedding_model(&app)?;
    let version = app.weight_version.load_full();
    let query = queries.lists.first().map_or(&[][..], Vec::as_slice);
    let mut results = Vec::with_capacity(texts.len());
    for (index, tokens) in documents.lists.iter().enumerate() {
        let pair = query.len().saturating_add(tokens.len());
        app.rules.dialect.check_encoded_length(&app.rules.limits, pair)?;
        let score = vector::relevance_score(query, tokens);
        let mut result = json!({"score": score});
        if request.return_documents {
            result["document"] = texts[index].as_str().into();
        }
        result["index"] = index.into();
        result["meta_info"] = pooled_meta(&new_request_id(), pair, &version);
        results.push((score, result));
    }
    results.sort_by(|one, two| two.0.total_cmp(&one.0));
    let most = request.top_n.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let results: Vec<Value> = results.into_iter().take(most).map(|(_, result)| result).collect();
    Ok(ok_json_response(&Value::from(results)))
}

/// Returns the text of a rerank query or document, which is a string or a list of content parts.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        parts => {
            let parts = parts.as_array().into_iter().flatten();
            let texts = parts.filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join(" ")
        }
    }
}

/// Checks that the served model computes embedding vectors or classes.
pub(super) fn check_embedding_model(app: &App) -> Result<(), Fault> {
    match has_generation_model(app) {
        true => Err(Fault::bad_request(NOT_AN_EMBEDDING_MODEL)),
        false => Ok(()),
    }
}

/// Returns the length of the result vectors: the requested length if the model can shorten vectors,
/// else the model's own.
fn vector_length(app: &App, requested: Option<i64>) -> Result<usize, Fault> {
    check_embedding_model(app)?;
    if classifies(app) {
        return Ok(app.settings.pooling.num_labels.max(1) as usize);
    }
    let own = vector::vector_dimensions(app, None)?;
    let Some(requested) = requested else {
        return Ok(own);
    };
    let config = app.settings.model.hf_config.as_deref();
    let of_config = |key: &str| config.and_then(|config| config.get(key));
    let lengths = of_config("matryoshka_dimensions").and_then(Value::as_array);
    let shortens = of_config("is_matryoshka").and_then(Value::as_bool) == Some(true);
    let name = &app.settings.model.name;
    let fail = |text: String| Err(Fault::bad_request(text));
    if !shortens && lengths.is_none() {
        return fail(format!(
            "Model '{name}' does not support matryoshka representation, changing output \
             dimensions will lead to poor results."
        ));
    }
    let length = usize::try_from(requested).unwrap_or(0);
    if length < 1 {
        return fail("Requested dimensions must be greater than 0".to_owned());
    }
    if let Some(lengths) = lengths.filter(|lengths| !lengths.is_empty())
        && !lengths.iter().any(|known| known.as_i64() == Some(requested))
    {
        let lengths = vllm_sim_python::python_repr(&Value::from(lengths.clone()));
        return fail(format!(
            "Model '{name}' only supports {lengths} matryoshka dimensions, using other output \
             dimensions will lead to poor results."
        ));
    }
    if length > own {
        return fail(format!(
            "Provided dimensions are greater than max embedding dimension: {own}"
        ));
    }
    Ok(length)
}

fn classifies(app: &App) -> bool {
    use ModelTask::{Classify, Reward, Score};
    matches!(app.settings.pooling.task, Classify | Score | Reward)
}

/// Computes a result vector per input: an embedding, or the class probabilities of a classifier.
#[derive(Clone, Copy)]
struct Vectors {
    length: usize,
    classifies: bool,
}

impl Vectors {
    fn new(app: &App, length: usize) -> Self {
        Self { length, classifies: classifies(app) }
    }

    fn vector(self, tokens: &[u32]) -> Vec<f32> {
        match self.classifies {
            true => class_probabilities(tokens, self.length as u32),
            false => unit_embedding(tokens, self.length),
        }
    }
}
