//! `POST /v2/embed`: embeddings in Cohere's shape.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::score::text_of;
use super::{id, model, vector};
use crate::config::Door;
use crate::http::app::App;
use crate::http::body;
use crate::http::vllm::{answered, ok};
use crate::wire::fault::Fault;
use crate::wire::vllm::pooled::CohereRequest;

/// Vectors of texts or of mixed content.
pub(in crate::http) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    answered(async {
        let value = body::json(&app, &parts.headers, body).await?;
        let request = CohereRequest::parse(&value)?;
        model(&app, request.model.as_deref())?;
        let texts = match (&request.texts, &request.images, &request.inputs) {
            (Some(texts), None, None) => texts.clone(),
            (None, Some(images), None) => images.clone(),
            (None, None, Some(inputs)) => inputs
                .iter()
                .map(|input| text_of(&Value::Object(input.clone())))
                .collect(),
            _ => {
                return Err(Fault::bad_request(
                    "Exactly one of texts, images, or inputs must be provided",
                ));
            }
        };
        if texts.is_empty() {
            return Err(Fault::bad_request("You must pass at least one prompt"));
        }
        let length = vector::dimensions(&app, request.output_dimension)?;
        let unit = app.config.model.door == Door::Vllm;
        let tokenizer = app.service.generator.tokenizer();
        let inputs: Vec<Vec<u32>> = texts.iter().map(|t| tokenizer.encode(t, true)).collect();
        let vectors: Vec<Vec<f32>> = inputs
            .iter()
            .map(|tokens| vector::embed(tokens, length, unit))
            .collect();
        let float = vec!["float".to_owned()];
        let mut embeddings = Map::new();
        for kind in request.embedding_types.as_ref().unwrap_or(&float) {
            let shown: Result<Vec<Value>, Fault> =
                vectors.iter().map(|v| encoded(kind, v)).collect();
            embeddings.insert(kind.clone(), shown?.into());
        }
        let tokens: usize = inputs.iter().map(Vec::len).sum();
        let shown = request.texts.as_ref();
        Ok(ok(&json!({
            "id": id("embd-", &parts.headers, None),
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
    })
    .await
}

fn encoded(kind: &str, vector: &[f32]) -> Result<Value, Fault> {
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
    Ok(match kind {
        "float" => vector.iter().map(|x| f64::from(*x)).collect(),
        "base64" => STANDARD.encode(vector::bytes(vector, false)).into(),
        "int8" => vector.iter().map(|x| (x * 127.0).round() as i64).collect(),
        "uint8" => vector
            .iter()
            .map(|x| ((x + 1.0) * 127.5).round() as i64)
            .collect(),
        "binary" => bits(128).into(),
        "ubinary" => bits(0).into(),
        other => {
            return Err(Fault::parameter(
                format!(
                    "Unknown embedding type '{other}'; known are float, base64, int8, uint8, binary, ubinary"
                ),
                "embedding_types",
            ));
        }
    })
}
