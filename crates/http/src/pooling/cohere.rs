//! `POST /v2/embed`: embeddings in Cohere's format.
//!
//! Source: vLLM 0.33 `entrypoints/pooling/embed/{io_processor,serving,protocol}.py`.

use std::fmt::Write as _;

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::binary::EmbeddingBinaryFormat;
use super::{
    TokenizedInputs, count_in_flight, count_inputs, pooling_model_name, pooling_request_id, rows,
    tokenize_inputs, vector,
};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::HandlerResult;
use crate::json;
use vllm_sim_service::pooling::{llmd_embedding, unit_embedding};
use vllm_sim_wire::body::validate_and_read_body;
use vllm_sim_wire::cohere::{CohereEmbedContent, CohereEmbedRequest};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::pooling::PoolingRequest;

pub(crate) async fn create_cohere_embeddings(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = validate_and_read_body::<CohereEmbedRequest>(&value)?;
    pooling_model_name(&app, request.model.as_deref())?;
    received.check_prompt_encodable(&["texts", "inputs"])?;
    let converted = pooling_body(&app, &request)?;
    let pooling = PoolingRequest::parse_converted_cohere_request(&converted)?;
    let _guard = count_in_flight(&app, count_inputs(&pooling))?;
    let inputs = tokenize_inputs(&app, &pooling, &converted).await?;
    let length = vector::vector_dimensions(&app, request.output_dimension)?;
    rows::check_response_float_count(inputs.len(), length)?;
    check_untruncated_lengths(&request, &inputs)?;
    let kinds = embedding_types(&request, length)?;
    let tokens = inputs.tokens.len();
    let images = if has_images(&request) { tokens } else { 0 };
    let texts = request.texts.map(|texts| ("texts", texts.into()));
    let meta = json!({
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": tokens - images, "image_tokens": images},
    });
    let members =
        texts.into_iter().chain([("meta", meta), ("response_type", "embeddings_by_type".into())]);
    let tail: Value = members.map(|(name, value)| (name.to_owned(), value)).collect();
    let mut head = String::from("{\"id\":");
    json::write_json_string(&mut head, &pooling_request_id("embd-", &received.headers, None));
    head.push_str(",\"embeddings\":{");
    // The tail continues the object that the head opens.
    let tail = tail.to_string().replacen('{', "},", 1);
    let rows = kinds.len() * inputs.len();
    let hashed = app.settings.pooling.embeds_words;
    let row = move |out: &mut String, at: usize| {
        let (kind, index) = (kinds[at / inputs.len()], at % inputs.len());
        if index == 0 {
            let comma = if at > 0 { "," } else { "" };
            let _ = write!(out, "{comma}\"{kind}\":[");
        } else {
            out.push(',');
        }
        let vector = match hashed {
            true => unit_embedding(&inputs[index], length),
            false => llmd_embedding(&inputs[index], length),
        };
        write_encoded_vector(out, kind, &vector);
        if index + 1 == inputs.len() {
            out.push(']');
        }
    };
    Ok(rows::stream_json_rows(head, rows, row, tail))
}

/// Converts a Cohere embed request to the body of a `/v1/embeddings` request: texts, or
/// conversations for images, mixed inputs and instructions.
///
/// # Errors
/// vLLM's 400 for an `input_type` that the model does not define.
fn pooling_body(app: &App, request: &CohereEmbedRequest) -> Result<Value, Fault> {
    let (keep, side) = match (request.truncate.as_str(), request.max_tokens) {
        ("NONE", _) => (None, None),
        ("START", most) => (Some(most.unwrap_or(-1)), Some("left")),
        (_, most) => (Some(most.unwrap_or(-1)), None),
    };
    let instruction = task_instruction(app, request.input_type.as_deref())?;
    let message = |role: &str, parts: Value| json!({"role": role, "content": parts});
    let conversation = |parts: Value| {
        let system = instruction.map(|text| message("system", json!([text_part(text)])));
        let messages = system.into_iter().chain([message("user", parts)]);
        messages.collect::<Value>()
    };
    let mut body = if let Some(images) = &request.images {
        let parts = images.iter().map(|url| json!([image_part(url)]));
        json!({"messages": parts.map(conversation).collect::<Value>()})
    } else if let Some(inputs) = &request.inputs {
        let parts = inputs.iter().map(|input| input.content.iter().map(content_part).collect());
        json!({"messages": parts.map(conversation).collect::<Value>()})
    } else {
        let texts = request.texts.as_deref().unwrap_or_default();
        match instruction {
            None => json!({"input": texts}),
            Some(_) if has_chat_template(app) => {
                let parts = texts.iter().map(|text| json!([text_part(text)]));
                json!({"messages": parts.map(conversation).collect::<Value>()})
            }
            Some(instruction) => {
                let texts = texts.iter().map(|text| format!("{instruction}{text}"));
                json!({"input": texts.collect::<Vec<_>>()})
            }
        }
    };
    body["truncate_prompt_tokens"] = keep.map(vllm_sim_python::json_of_python_int).into();
    body["truncation_side"] = side.into();
    Ok(body)
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image_part(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn content_part(part: &CohereEmbedContent) -> Value {
    let url = part.image_url.as_ref().and_then(|image| image.get("url"));
    match url.filter(|_| part.kind == "image_url") {
        Some(url) => image_part(url),
        None => text_part(part.text.as_deref().unwrap_or_default()),
    }
}

/// Returns the instruction of an `input_type`; `None` if the instruction is empty or the request
/// has no type.
fn task_instruction<'a>(app: &'a App, kind: Option<&str>) -> Result<Option<&'a str>, Fault> {
    let Some(kind) = kind.filter(|_| app.settings.pooling.embeds_like_model) else {
        return Ok(None);
    };
    let known = &app.settings.model.task_instructions;
    let shown = vllm_sim_python::python_repr(&kind.into());
    match known.get(kind) {
        Some(text) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        None if known.is_empty() => Err(Fault::bad_request(format!(
            "Unsupported input_type {shown}. This model does not define any input_type task \
             instructions."
        ))),
        None => {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let names = names.join(", ");
            let text = format!("Unsupported input_type {shown}. Supported values: {names}");
            Err(Fault::bad_request(text))
        }
    }
}

fn has_chat_template(app: &App) -> bool {
    app.service.settings().prompts.chat_template.is_some()
        || app.service.generator.tokenizer().chat_template().is_some()
}

/// Checks that no input of a Cohere embed request is longer than `max_tokens` if the request
/// forbids truncation.
fn check_untruncated_lengths(
    request: &CohereEmbedRequest,
    inputs: &TokenizedInputs,
) -> Result<(), Fault> {
    let Some(most) = request.max_tokens.filter(|_| request.truncate == "NONE") else {
        return Ok(());
    };
    match inputs.iter().map(<[u32]>::len).find(|length| *length as i128 > most) {
        Some(length) => Err(Fault::bad_request(format!(
            "Input of {length} tokens exceeds max_tokens={most} with truncate=NONE. Set truncate \
             to END or START to allow truncation."
        ))),
        None => Ok(()),
    }
}

fn has_images(request: &CohereEmbedRequest) -> bool {
    let mut parts = request.inputs.iter().flatten().flat_map(|input| &input.content);
    request.images.is_some() || parts.any(|part| part.kind == "image_url")
}

/// Returns the vector encodings (`embedding_types`) that a Cohere request asks for, each once, in
/// the order of the response.
fn embedding_types(
    request: &CohereEmbedRequest,
    length: usize,
) -> Result<Vec<&'static str>, Fault> {
    let asked = request.embedding_types.as_deref().unwrap_or_default();
    let known = ["float", "binary", "ubinary", "base64"].into_iter();
    let kinds: Vec<&str> = match asked.is_empty() {
        true => vec!["float"],
        false => known.filter(|kind| asked.iter().any(|name| name == kind)).collect(),
    };
    if !length.is_multiple_of(8) && kinds.iter().any(|kind| kind.ends_with("binary")) {
        return Err(Fault::bad_request(format!(
            "Embedding dimension must be a multiple of 8 for binary embedding types, but got \
             {length}."
        )));
    }
    Ok(kinds)
}

/// Appends an embedding vector in the requested encoding: `float`, `base64`, `binary` or `ubinary`.
fn write_encoded_vector(out: &mut String, kind: &str, vector: &[f32]) {
    let bits = |sign: u8| {
        let byte = |chunk: &[f32]| {
            let signs = chunk.iter().enumerate();
            signs.fold(0u8, |byte, (at, x)| byte | (u8::from(*x >= 0.0) << (7 - at)))
        };
        vector
            .chunks(8)
            .map(move |chunk| i64::from(byte(chunk)) - i64::from(sign))
            .collect::<Value>()
    };
    match kind {
        "base64" => json::write_json_string(
            out,
            &STANDARD.encode(EmbeddingBinaryFormat::FLOAT32.encode_vector(vector)),
        ),
        "binary" => json::write_json_value(out, &bits(128)),
        "ubinary" => json::write_json_value(out, &bits(0)),
        _ => vector::write_vector_as_python_floats(out, vector),
    }
}
