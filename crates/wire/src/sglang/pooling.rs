//! Requests of SGLang's routes of embedding and scoring models.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py` (`EmbeddingRequest`,
//! `ClassifyRequest`, `ScoringRequest`, `V1RerankReqInput`), `srt/managers/io_struct.py`
//! (`EmbeddingReqInput`); checks of `serving_embedding.py`, `serving_classify.py`,
//! `serving_rerank.py`, `tokenizer_manager_score_mixin.py`.

use serde_json::Value;
use vllm_sim_python as python;

use super::completion::DEFAULT_MODEL_NAME;
use crate::fault::Fault;
use crate::sampling::STRING_OR_LIST_SCHEMA;
use crate::schema::Schema::{self, After, List, Literal, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, INT, NumberBounds, STR, ValidatorError, optional_field as opt, plain_model,
    required_field as req, wire_model,
};

const IDS: Schema = List(&INT, ANY_LENGTH);
const ID_LISTS: Schema = List(&IDS, ANY_LENGTH);
const TEXTS: Schema = List(&STR, ANY_LENGTH);

const MULTIMODAL_INPUT: Schema = plain_model!(
    "MultimodalEmbeddingInput",
    opt("text", Nullable(&STR)),
    opt("image", Nullable(&STR)),
    opt("video", Nullable(&STR))
);

wire_model! {
    /// A request of `POST /v1/embeddings`.
    pub struct SglangEmbeddingRequest: Plain "EmbeddingRequest" {
        /// Texts, token ids, or objects with a text and media.
        input: Value [Union(&[
            IDS,
            ID_LISTS,
            STR,
            TEXTS,
            List(&MULTIMODAL_INPUT, ANY_LENGTH),
        ])],
        /// Name of the model; `model:adapter` selects an adapter.
        model: String = DEFAULT_MODEL_NAME.to_owned(),
        /// Form of the returned embedding vectors: `float` or `base64`.
        encoding_format: String = "float".to_owned(),
        /// Number of components of an embedding vector.
        dimensions: Option<i64> = None,
        /// Id of the request.
        rid: Option<Value> [Nullable(&Union(&[TEXTS, STR]))] = None,
        /// Name of the LoRA adapter that handles the request.
        lora_path: Option<Value> = None,
    }
}

impl SglangEmbeddingRequest {
    /// Checks the input of an embedding request and the requested encoding of the vectors.
    ///
    /// # Errors
    /// A 400 in SGLang's words.
    pub fn validate_embedding_request(&self) -> Result<(), Fault> {
        if !matches!(self.encoding_format.as_str(), "float" | "base64") {
            return Err(Fault::bad_request(format!(
                "encoding_format must be either 'float' or 'base64', got {}",
                python::python_repr_of_str(&self.encoding_format)
            )));
        }
        check_pooling_input(&self.input)
    }
}

wire_model! {
    /// A request of `POST /v1/classify`.
    pub struct SglangClassifyRequest: Plain "ClassifyRequest" {
        /// Name of the model.
        model: String = DEFAULT_MODEL_NAME.to_owned(),
        /// Texts, or the token ids of one text.
        input: Value [Union(&[STR, TEXTS, IDS])],
        /// Id of the request.
        rid: Option<Value> [Nullable(&Union(&[TEXTS, STR]))] = None,
    }
}

/// Checks the input of an embedding or classification request, as SGLang's `_validate_request`
/// does.
///
/// # Errors
/// A 400 in SGLang's words.
pub fn check_pooling_input(input: &Value) -> Result<(), Fault> {
    let is_blank = |text: &str| text.chars().all(python::is_python_whitespace);
    let message = match input {
        Value::String(text) if text.is_empty() => "Input cannot be empty".to_owned(),
        Value::String(text) if is_blank(text) => {
            "Input cannot be empty or whitespace only".to_owned()
        }
        Value::Array(items) if items.is_empty() => "Input cannot be empty".to_owned(),
        Value::Array(items) => {
            let blank = items.iter().position(|item| item.as_str().is_some_and(is_blank));
            let negative = items.iter().position(|item| item.as_i64().is_some_and(|id| id < 0));
            match (blank, negative) {
                (Some(index), _) => {
                    format!("Input at index {index} cannot be empty or whitespace only")
                }
                (_, Some(index)) => format!("Token ID at index {index} must be non-negative"),
                _ => return Ok(()),
            }
        }
        _ => return Ok(()),
    };
    Err(Fault::bad_request(message))
}

wire_model! {
    /// A request of `POST /encode` and `POST /classify`.
    pub struct EncodeRequest: Dataclass "EmbeddingReqInput" {
        /// Ids of the requests; a string is the prefix of the ids of a batch.
        rid: Option<Value> [Nullable(&STRING_OR_LIST_SCHEMA)] = None,
        /// Texts to encode, or pairs of texts.
        text: Option<Value> [Nullable(&Union(&[
            List(&TEXTS, ANY_LENGTH),
            TEXTS,
            STR,
        ]))] = None,
        /// Token ids to encode, of one text or of several.
        input_ids: Option<Value> [Nullable(&Union(&[ID_LISTS, IDS]))] = None,
        /// Images to encode, which are not simulated.
        image_data: Option<Value> = None,
        /// Videos to encode, which are not simulated.
        video_data: Option<Value> = None,
        /// Audio clips to encode, which are not simulated.
        audio_data: Option<Value> = None,
        /// Number of components of an embedding vector.
        dimensions: Option<i64> = None,
        /// Name of the LoRA adapter that handles the request.
        lora_path: Option<Value> = None,
    }
}

wire_model! {
    /// A request of `POST /v1/score`.
    pub struct SglangScoreRequest: Plain "ScoringRequest" {
        /// Text before each scored item (the query), or its token ids.
        query: Option<Value> [Nullable(&Union(&[STR, IDS]))] = None,
        /// Texts to score, or their token ids.
        items: Option<Value> [Nullable(&Union(&[STR, TEXTS, ID_LISTS]))] = None,
        /// The token ids whose probabilities are the scores: one list for all items, or one for
        /// each item.
        label_token_ids: Option<Value> [Nullable(&Union(&[IDS, ID_LISTS]))] = None,
        /// Whether the scores of an item add up to one.
        apply_softmax: bool = false,
        /// Divisor of the log probabilities of label tokens (a softmax temperature).
        temperature: f64 [Schema::Float(NumberBounds { ge: None, le: None, gt: Some(0.0) })] = 1.0,
        /// Whether the response contains the log probabilities of the label tokens.
        return_token_logprobs: bool = false,
        /// Whether the prompt has the item before the query.
        item_first: bool = false,
        /// Whether the response contains hidden states, which are not simulated.
        return_pooled_hidden_states: bool = false,
        /// The token at which scores are read, which is not simulated.
        score_extraction_token: Option<String> = None,
        /// Name of the model, which the response repeats.
        model: String = DEFAULT_MODEL_NAME.to_owned(),
    }
}

const RERANK_TEXT_PART: Schema = plain_model!(
    "ChatCompletionMessageContentTextPart",
    req("type", Literal(&["text"])),
    req("text", STR)
);
const RERANK_CONTENT: Schema = Union(&[STR, List(&RERANK_TEXT_PART, ANY_LENGTH)]);

wire_model! {
    /// A request of `POST /v1/rerank`.
    pub struct SglangRerankRequest: Plain "V1RerankReqInput" {
        /// The query: a text, or a list of content parts.
        query: Value [RERANK_CONTENT],
        /// The documents to rank.
        documents: Vec<Value> [List(&RERANK_CONTENT, ANY_LENGTH)],
        /// Instruction for the model that ranks the documents.
        instruct: Option<String> = None,
        /// Maximum number of documents in the response.
        top_n: Option<i64> [Nullable(&After(check_top_n, &INT))] = None,
        /// Whether the response repeats the documents.
        return_documents: bool = true,
    }
}

/// Rejects a `top_n` below 1, as SGLang's `validate_top_n` does.
fn check_top_n(value: &Value) -> Result<Option<Value>, ValidatorError> {
    match value.as_i64() {
        Some(count) if count < 1 => Err(ValidatorError::ValueError(
            "Value error, parameter top_n should be larger than 0.".to_owned(),
        )),
        _ => Ok(None),
    }
}

impl SglangRerankRequest {
    /// Checks that query and documents are not empty.
    ///
    /// # Errors
    /// A 400 in SGLang's words.
    pub fn validate_rerank_request(&self) -> Result<(), Fault> {
        let is_blank = |text: &str| text.chars().all(python::is_python_whitespace);
        let is_empty = |value: &Value| match value {
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        let blank = |value: &Value| value.as_str().is_some_and(is_blank);
        let fail = |text: &str| Err(Fault::bad_request(text));
        if is_empty(&self.query) {
            return fail("Query cannot be empty");
        }
        if blank(&self.query) {
            return fail("Query cannot be empty or whitespace only");
        }
        if self.documents.is_empty() {
            return fail("Documents cannot be empty");
        }
        for document in &self.documents {
            if is_empty(document) {
                return fail("Each document must be a non-empty string");
            }
            if blank(document) {
                return fail("Each document cannot be empty or whitespace only");
            }
        }
        Ok(())
    }
}
