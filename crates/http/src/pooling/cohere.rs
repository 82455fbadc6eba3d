//! `POST /v2/embed`: embeddings in Cohere's format.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use indexmap::IndexSet;
use serde_json::{Value, json};

use super::vector::Endianness;
use super::{count_in_flight, pooling_model_name, pooling_request_id, rows, vector};
use crate::app::App;
use crate::body::JsonRequest;
use crate::error::HandlerResult;
use crate::json;
use vllm_sim_service::pooling::{llmd_embedding, unit_embedding};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::cohere::{CohereEmbedInput, CohereEmbedRequest};

pub(crate) async fn create_cohere_embeddings(
    State(app): State<Arc<App>>,
    JsonRequest { head: received, value }: JsonRequest,
) -> HandlerResult {
    let request = CohereEmbedRequest::parse(&value)?;
    pooling_model_name(&app, request.model.as_deref())?;
    // Exactly one of the three kinds of input is set.
    let mixed = || request.inputs.iter().flatten().map(input_text).collect();
    let given = request.texts.clone().or_else(|| request.images.clone());
    let texts: Vec<String> = given.unwrap_or_else(mixed);
    let _guard = count_in_flight(&app, texts.len())?;
    let length = vector::vector_dimensions(&app, request.output_dimension)?;
    rows::check_float_count(texts.len(), length)?;
    let hashed = app.settings.pooling.embeds_words;
    let tokenizer = app.service.generator.tokenizer();
    let inputs: Vec<Vec<u32>> =
        texts.iter().map(|t| tokenizer.encode(t, SpecialTokens::With)).collect();
    let float = vec!["float".to_owned()];
    let kinds: IndexSet<String> = request.embedding_types.unwrap_or(float).into_iter().collect();
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    let tail = json!({
        "texts": request.texts,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {
                "input_tokens": tokens,
                "image_tokens": 0,
            },
        },
        "response_type": "embeddings_by_type",
    });
    let mut head = String::from("{\"id\":");
    json::write_string(&mut head, &pooling_request_id("embd-", &received.headers, None));
    head.push_str(",\"embeddings\":{");
    // The tail continues the object that the head opens.
    let tail = tail.to_string().replacen('{', "},", 1);
    let rows = kinds.len() * inputs.len();
    let row = move |out: &mut String, at: usize| {
        let (kind, index) = (&kinds[at / inputs.len()], at % inputs.len());
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

/// Returns the text parts of an embedding input, joined by line feeds.
fn input_text(input: &CohereEmbedInput) -> String {
    let texts = input.content.iter().filter_map(|part| part.text.as_deref());
    texts.collect::<Vec<_>>().join("\n")
}

/// Appends an embedding vector in the requested encoding: `float`, `base64`, `binary` or `ubinary`.
fn write_encoded_vector(out: &mut String, kind: &str, vector: &[f32]) {
    let bits = |sign: u8| {
        let byte = |chunk: &[f32]| {
            let signs = chunk.iter().enumerate();
            signs.fold(0u8, |byte, (at, x)| byte | (u8::from(*x > 0.0) << (7 - at)))
        };
        vector
            .chunks(8)
            .map(move |chunk| i64::from(byte(chunk)) - i64::from(sign))
            .collect::<Value>()
    };
    match kind {
        "base64" => json::write_string(
            out,
            &STANDARD.encode(vector::vector_bytes(vector, Endianness::Little)),
        ),
        "binary" => json::write_value(out, &bits(128)),
        "ubinary" => json::write_value(out, &bits(0)),
        _ => vector::write_json_f64(out, vector),
    }
}
