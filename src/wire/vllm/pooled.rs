//! Requests of the pooling routes.
//!
//! Source: `vllm/entrypoints/pooling/**/protocol.py`.

use serde_json::{Map, Value};

use crate::wire::check;
use crate::wire::fault::Fault;
use crate::wire::openai::completion::Prompts;
use crate::wire::openai::shared::{SIDE, TRUNCATE};
use crate::wire::schema::{ANY_LENGTH, STR, Schema, wire_model};

/// A text, or an object with content parts.
const ITEM: Schema = Schema::Union(&[STR, Schema::Dict(&STR, &Schema::Any)]);
/// One item or several.
const ITEMS: Schema = Schema::Union(&[
    STR,
    Schema::Dict(&STR, &Schema::Any),
    Schema::List(&ITEM, ANY_LENGTH),
]);

wire_model! {
    /// `POST /v1/embeddings`, `/pooling` and `/classify`, with the input as text or tokens.
    pub struct PoolingRequest: Wrapped "EmbeddingCompletionRequest" {
        /// Served name.
        model: Option<String> = None,
        /// What is turned into vectors.
        input: Prompts,
        /// Of the end user; ignored.
        user: Option<String> = None,
        /// Length of a vector.
        dimensions: Option<i128> = None,
        /// `float`, `base64`, `bytes` or `bytes_only`.
        encoding_format: String [Schema::Literal(&["float", "base64", "bytes", "bytes_only"])]
            = "float".to_owned(),
        /// Number form of the vectors.
        embed_dtype: String [Schema::Literal(&[
            "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2",
        ])] = "float32".to_owned(),
        /// Byte order of the vectors.
        endianness: String [Schema::Literal(&["native", "big", "little"])] = "native".to_owned(),
        /// Which pooling is wanted (`/pooling`).
        task: Option<String> = None,
        /// Whether vectors are normalised, or scores squashed.
        use_activation: Option<bool> = None,
        /// Whether the tokenizer adds special tokens.
        add_special_tokens: bool = true,
        /// Tokens to keep; -1 for all that fit.
        truncate_prompt_tokens: Option<i64> [TRUNCATE] = None,
        /// Which end is cut: `left` or `right`.
        truncation_side: Option<String> [SIDE] = None,
        /// Lower goes first.
        priority: i64 = 0,
        /// Id in the answer.
        request_id: Option<String> [STR] = None,
    }
}

wire_model! {
    /// `POST /rerank`.
    pub struct RerankRequest: Wrapped "RerankRequest" {
        /// Served name.
        model: Option<String> = None,
        /// What is looked for.
        query: Value [ITEM],
        /// Where it is looked for.
        documents: Value [ITEMS],
        /// Most results; 0 for all.
        top_n: i128 = 0,
        /// Id in the answer.
        request_id: Option<String> [STR] = None,
    }
}

wire_model! {
    /// `POST /score`: one of four pairs of names for the two sides.
    pub struct ScoreRequest: Wrapped "ScoreTextRequest" before [sides] {
        /// Served name.
        model: Option<String> = None,
        /// One side.
        text_1: Value [ITEMS],
        /// The other.
        text_2: Value [ITEMS],
        /// Id in the answer.
        request_id: Option<String> [STR] = None,
    }
}

wire_model! {
    /// `POST /v2/embed`: Cohere's embeddings.
    pub struct CohereRequest: Wrapped "CohereEmbedRequest" {
        /// Served name.
        model: Option<String> = None,
        /// Texts.
        texts: Option<Vec<String>> = None,
        /// Pictures.
        images: Option<Vec<String>> = None,
        /// Mixed content.
        inputs: Option<Vec<Map<String, Value>>> = None,
        /// What the vectors are for; ignored.
        input_type: Option<String> = None,
        /// `float`, `base64`, `int8`, `uint8`, `binary`, `ubinary`.
        embedding_types: Option<Vec<String>> = None,
        /// Length of a vector.
        output_dimension: Option<i128> = None,
    }
}

/// Upstream's union of request classes, told apart by the names that are there.
fn sides(body: &mut Map<String, Value>) -> Result<(), crate::wire::schema::Refusal> {
    for (one, two) in [
        ("queries", "documents"),
        ("queries", "items"),
        ("data_1", "data_2"),
    ] {
        if body.contains_key(one) && body.contains_key(two) {
            let (one, two) = (body.remove(one), body.remove(two));
            body.insert("text_1".to_owned(), one.unwrap_or_default());
            body.insert("text_2".to_owned(), two.unwrap_or_default());
            break;
        }
    }
    Ok(())
}

macro_rules! parse {
    ($($name:ident),*) => {$(
        impl $name {
            /// Reads a body.
            ///
            /// # Errors
            /// vLLM's 400 for a body it does not take.
            pub fn parse(value: &Value) -> Result<Self, Fault> {
                check::body(value)
            }
        }
    )*};
}

parse!(PoolingRequest, RerankRequest, ScoreRequest, CohereRequest);
