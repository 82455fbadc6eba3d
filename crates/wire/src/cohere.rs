//! Request of `POST /v2/embed`, Cohere's embedding API.
//!
//! Source: `vllm/entrypoints/pooling/embed/protocol.py`, `CohereEmbedRequest`.

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::PythonValue;

use super::schema::{ANY_LENGTH, Schema, ValidatorError, wire_model};

wire_model! {
    /// One part of a mixed input to embed: text or image.
    pub struct CohereEmbedContent: Plain "CohereEmbedContent" after validate_content_payload {
        /// Type of the part: `text` or `image_url`.
        kind: String [Schema::Literal(&["text", "image_url"])] as "type",
        /// Text to embed of a `text` part.
        text: Option<String> = None,
        /// URL of the image in an `image_url` part, under the key `url`.
        image_url: Option<IndexMap<String, String>> = None,
    }
}

/// Checks that a content part has the text or the image that its type needs.
///
/// Source: vLLM's `CohereEmbedContent.validate_content_payload`.
fn validate_content_payload(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let text = map.get("type").is_some_and(|kind| kind == "text");
    let missing = if text {
        map.get("text").is_none_or(Value::is_null)
    } else {
        let url = map.get("image_url").and_then(|image| image.get("url"));
        url.and_then(Value::as_str).is_none_or(str::is_empty)
    };
    match (missing, text) {
        (false, _) => Ok(()),
        (true, true) => Err(ValidatorError::ValueError(
            "CohereEmbedContent with type='text' requires text".to_owned(),
        )),
        (true, false) => Err(ValidatorError::ValueError(
            "CohereEmbedContent with type='image_url' requires image_url.url".to_owned(),
        )),
    }
}

wire_model! {
    /// One input to embed with several parts.
    pub struct CohereEmbedInput: Plain "CohereEmbedInput" {
        /// Text and image parts of the input.
        content: Vec<CohereEmbedContent>,
    }
}

wire_model! {
    /// A Cohere request for embeddings of texts, images or mixed inputs; exactly one kind is given.
    pub struct CohereEmbedRequest: Plain "CohereEmbedRequest" after validate_input_fields {
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Purpose of the embeddings, such as `search_query`.
        input_type: Option<String> = None,
        /// Texts to embed.
        texts: Option<Vec<String>> = None,
        /// Images to embed, as data URLs.
        images: Option<Vec<String>> = None,
        /// Inputs to embed that mix texts and images.
        inputs: Option<Vec<CohereEmbedInput>> = None,
        /// Number of dimensions of the embeddings.
        output_dimension: Option<i128> = None,
        /// Encodings of the returned embeddings, such as `float` or `base64`.
        embedding_types: Option<Vec<String>> [Schema::Nullable(&Schema::List(
            &Schema::Literal(&["float", "binary", "ubinary", "base64"]),
            ANY_LENGTH,
        ))] = None,
        /// Truncation side of an input that is too long: `NONE`, `START` or `END`.
        truncate: String [Schema::Literal(&["NONE", "START", "END"])] = "END".to_owned(),
        /// Maximum number of tokens to keep of each input.
        max_tokens: Option<i128> = None,
        /// Scheduling priority of the request; lower values are scheduled first.
        priority: i64 = 0,
    }
}

/// Checks that exactly one of `texts`, `images` and `inputs` is given.
///
/// Source: vLLM's `CohereEmbedRequest.validate_input_fields`.
fn validate_input_fields(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let mut given = ["texts", "images", "inputs"]
        .iter()
        .filter_map(|key| map.get(*key))
        .filter(|value| !value.is_null());
    match (given.next(), given.next()) {
        (Some(only), None) if PythonValue::from_json_value(only).is_truthy() => Ok(()),
        _ => Err(ValidatorError::ValueError(
            "Exactly one of texts, images, or inputs must be provided, and it must be non-empty"
                .to_owned(),
        )),
    }
}
