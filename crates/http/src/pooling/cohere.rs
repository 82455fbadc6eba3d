//! `POST /v2/embed`: embeddings in Cohere's shape.

use std::sync::Arc;

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{enter, id, model, vector};
use crate::app::App;
use crate::body::Posted;
use crate::error::Answer;
use crate::vllm::ok;
use vllm_sim_config::CliMode;
use vllm_sim_wire::cohere::{EmbedInput, EmbedRequest};

/// Vectors of texts or of mixed content.
pub(crate) async fn create(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    let request = EmbedRequest::parse(&value)?;
    model(&app, request.model.as_deref())?;
    // Exactly one of the three is there.
    let mixed = || request.inputs.iter().flatten().map(text_of).collect();
    let given = request.texts.clone().or_else(|| request.images.clone());
    let texts: Vec<String> = given.unwrap_or_else(mixed);
    let _guard = enter(&app, texts.len())?;
    let length = vector::dimensions(&app, request.output_dimension)?;
    let hashed = app.config.model.cli_mode == CliMode::Vllm;
    let tokenizer = app.service.generator.tokenizer();
    let inputs: Vec<Vec<u32>> = texts.iter().map(|t| tokenizer.encode(t, true)).collect();
    let vectors: Vec<Vec<f32>> = inputs
        .iter()
        .map(|tokens| match hashed {
            true => vector::hashed(tokens, length, true),
            false => vector::embed(tokens, length),
        })
        .collect();
    let float = vec!["float".to_owned()];
    let mut embeddings = Map::new();
    for kind in request.embedding_types.as_ref().unwrap_or(&float) {
        let shown: Vec<Value> = vectors.iter().map(|v| encoded(kind, v)).collect();
        embeddings.insert(kind.clone(), shown.into());
    }
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    let shown = request.texts.as_ref();
    Ok(ok(&json!({
        "id": id("embd-", &head.headers, None),
        "embeddings": embeddings,
        "texts": shown,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {
                "input_tokens": tokens,
                "image_tokens": 0,
            },
        },
        "response_type": "embeddings_by_type",
    })))
}

/// The texts among an input's parts.
fn text_of(input: &EmbedInput) -> String {
    let texts = input.content.iter().filter_map(|part| part.text.as_deref());
    texts.collect::<Vec<_>>().join("\n")
}

/// A vector in one of the forms that the schema allows.
fn encoded(kind: &str, vector: &[f32]) -> Value {
    let bits = |sign: u8| {
        vector
            .chunks(8)
            .map(|chunk| {
                let byte = chunk
                    .iter()
                    .enumerate()
                    .fold(0u8, |byte, (at, x)| byte | (u8::from(*x > 0.0) << (7 - at)));
                i64::from(byte) - i64::from(sign)
            })
            .collect::<Vec<_>>()
    };
    match kind {
        "base64" => STANDARD.encode(vector::bytes(vector, false)).into(),
        "binary" => bits(128).into(),
        "ubinary" => bits(0).into(),
        _ => vector.iter().map(|x| f64::from(*x)).collect(),
    }
}
