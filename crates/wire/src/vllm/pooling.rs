//! Requests of the embedding, pooling, classification, score and rerank routes.
//!
//! [`PoolingRequest`] holds the fields of all these requests.
//!
//! Source: `vllm/entrypoints/pooling/{base,embed,pooling,classify,scoring}/protocol.py`.

use serde_json::{Map, Value};

use super::pooling_schema::{
    BATCH_CHAT_SCHEMA_INDEX, CLASSIFY_REQUEST_SCHEMA, EMBEDDING_REQUEST_SCHEMA,
    POOLING_REQUEST_SCHEMA, QUERY_AND_DOCUMENT_FIELD_NAMES, RERANK_REQUEST_SCHEMA,
    SCORE_REQUEST_SCHEMA,
};
use crate::body;
use crate::fault::Fault;
use crate::limits::ServerLimits;
use crate::long_ids;
use crate::long_texts::{self, ConcatenatedTexts};
use crate::openai::completion::{CompletionPrompt, CompletionPrompts};
use crate::openai::request_message::RequestMessage;
use crate::schema::{RequestField, Schema};

/// Input of an embedding, pooling, classification, score or rerank request.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolingInput {
    /// Prompts, as texts or token ids.
    Prompts(CompletionPrompts),
    /// A long list of texts, stored as one string.
    ConcatenatedTexts(ConcatenatedTexts),
    /// One conversation, to be rendered by the chat template.
    Chat(Vec<RequestMessage>),
    /// Several conversations, each rendered by the chat template.
    Chats(Vec<Vec<RequestMessage>>),
    /// Data for an IO processor plugin.
    Data(Value),
    /// Queries and documents to compare, as sent.
    Pair(Value, Value),
}

/// A request of any embedding, pooling, classification, score or rerank route.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingRequest {
    /// Texts, token ids or conversations to pool.
    pub input: PoolingInput,
    /// Name of the served model or LoRA adapter; null or empty selects the base model.
    pub model: Option<String>,
    /// Pooling task of a `/pooling` request, such as `embed` or `classify`.
    pub task: Option<String>,
    /// Encoding of returned vectors: `float`, `base64`, `bytes` or `bytes_only`.
    pub encoding_format: String,
    /// Number format of base64 or binary vectors, such as `float16`.
    pub embed_dtype: String,
    /// Byte order of base64 or binary vectors: `native`, `big` or `little`.
    pub endianness: String,
    /// Number of dimensions of returned vectors; only for Matryoshka models.
    pub dimensions: Option<i128>,
    /// Whether to apply the model's activation function to the output.
    pub use_activation: Option<bool>,
    /// Whether the tokenizer adds special tokens to the prompt; `None` uses the route's default.
    pub add_special_tokens: Option<bool>,
    /// Number of prompt tokens to keep when truncating; -1 for all that fit the context.
    pub truncate_prompt_tokens: Option<i128>,
    /// Side of the prompt to truncate: `left` or `right`.
    pub truncation_side: Option<String>,
    /// Padding of the prompt: `max_length` or `do_not_pad`.
    pub padding: Option<String>,
    /// Id of the request, returned in the response; generated when absent.
    pub request_id: Option<String>,
    /// Scheduling priority of the request; lower values are scheduled first.
    pub priority: i64,
    /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
    /// blocks.
    pub cache_salt: Option<String>,
    /// Jinja chat template that replaces the model's own.
    pub chat_template: Option<String>,
    /// Extra arguments passed to the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Number of arguments for the processor of multimodal models.
    pub mm_processor_kwargs: usize,
    /// Number of arguments for reading images, audio and video.
    pub media_io_kwargs: usize,
    /// Number of documents that a rerank request returns; 0 for all.
    pub top_n: usize,
    /// Maximum number of tokens of a query to score; 0 for no limit.
    pub max_tokens_per_query: i128,
    /// Maximum number of tokens of a document to score; 0 for no limit.
    pub max_tokens_per_doc: i128,
}

/// Rejects the pooling parameters that vLLM has removed.
///
/// Source: vLLM's `reject_removed_pooling_parameters`.
fn reject_removed_parameters(body: &Value) -> Result<(), Fault> {
    let Value::Object(body) = body else {
        return Ok(());
    };
    if body.contains_key("normalize") {
        return Err(Fault::bad_parameter(
            "Parameter `normalize` was removed; use `use_activation` instead.",
            "normalize",
        ));
    }
    match body.get("task").and_then(Value::as_str).and_then(removed_task_message) {
        Some(text) => Err(Fault::bad_parameter(text, "task")),
        None => Ok(()),
    }
}

/// Returns the message about a pooling task that vLLM has removed.
///
/// Source: vLLM's `_REMOVED_POOLING_TASK_MESSAGES`.
fn removed_task_message(task: &str) -> Option<&'static str> {
    match task {
        "score" => Some("`score` task was removed; use `classify` instead."),
        "encode" => {
            Some("`encode` task was removed; use `token_embed` or `token_classify` instead.")
        }
        _ => None,
    }
}

impl PoolingRequest {
    /// Parses the body of `POST /v1/embeddings`.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_embedding_request(value: &Value) -> Result<Self, Fault> {
        reject_removed_parameters(value)?;
        // The route has one task, and ignores the field.
        Ok(Self { task: None, ..Self::parse_forms(EMBEDDING_REQUEST_SCHEMA, value)? })
    }

    /// Parses a body of `POST /v1/embeddings` with one long list of token ids or texts.
    ///
    /// The request body is returned too, as JSON without the list. `None` means that
    /// [`Self::parse_embedding_request`] must read the body.
    pub fn parse_long_embedding_and_body(body_json: &[u8]) -> Option<(Self, Value)> {
        let ids =
            |ids| PoolingInput::Prompts(CompletionPrompts(vec![CompletionPrompt::Tokens(ids)]));
        let (value, input) = long_ids::extract_long_token_ids(body_json, "input")
            .map(|(value, list)| (value, ids(list)))
            .or_else(|| {
                let (value, texts) = long_texts::extract_long_texts(body_json, "input")?;
                Some((value, PoolingInput::ConcatenatedTexts(texts)))
            })?;
        let request = Self::parse_embedding_request(&value).ok()?;
        Some((Self { input, ..request }, value))
    }

    /// Parses the embedding request that vLLM makes of a Cohere request, with `input` or with
    /// several conversations in `messages`.
    ///
    /// # Errors
    /// A 400 with the text of the pydantic `ValidationError`.
    pub fn parse_converted_cohere_request(value: &Value) -> Result<Self, Fault> {
        let form = if value.get("input").is_some() { 0 } else { BATCH_CHAT_SCHEMA_INDEX };
        body::validate_json_value(&EMBEDDING_REQUEST_SCHEMA[form], value)?;
        Self::parse_forms(EMBEDDING_REQUEST_SCHEMA, value)
    }

    /// Parses the body of `POST /pooling`.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_pooling_request(value: &Value) -> Result<Self, Fault> {
        reject_removed_parameters(value)?;
        Self::parse_forms(POOLING_REQUEST_SCHEMA, value)
    }

    /// Parses the body of `POST /classify`.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_classify_request(value: &Value) -> Result<Self, Fault> {
        reject_removed_parameters(value)?;
        Self::parse_forms(CLASSIFY_REQUEST_SCHEMA, value)
    }

    /// Parses the body of `POST /score`.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_score_request(value: &Value) -> Result<Self, Fault> {
        let checked = body::validate_body(&Schema::Union(SCORE_REQUEST_SCHEMA), value)?;
        let form = body::best_union_branch(SCORE_REQUEST_SCHEMA, value).map_or(0, |(form, _)| form);
        let (one, two) = QUERY_AND_DOCUMENT_FIELD_NAMES[form];
        Ok(Self::read(
            &checked,
            PoolingInput::Pair(member_or_null(&checked, one), member_or_null(&checked, two)),
        ))
    }

    /// Parses the body of `POST /rerank`.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_rerank_request(value: &Value) -> Result<Self, Fault> {
        let checked = body::validate_body(&RERANK_REQUEST_SCHEMA, value)?;
        let pair = PoolingInput::Pair(
            member_or_null(&checked, "query"),
            member_or_null(&checked, "documents"),
        );
        Ok(Self::read(&checked, pair))
    }

    /// Rejects arguments for the multimodal processor and media decoding if clients are untrusted.
    ///
    /// # Errors
    /// A 400 that names the request field.
    pub fn check_mm_kwargs(&self, limits: &ServerLimits) -> Result<(), Fault> {
        limits.reject_untrusted_mm_kwargs(self.mm_processor_kwargs, self.media_io_kwargs)
    }

    fn parse_forms(forms: &'static [Schema], value: &Value) -> Result<Self, Fault> {
        let checked = body::validate_body(&Schema::Union(forms), value)?;
        let prompts =
            || checked.get("input").and_then(CompletionPrompts::read).map(PoolingInput::Prompts);
        let either = |key: &str| {
            let value = checked.get(key)?;
            Vec::read(value)
                .map(PoolingInput::Chats)
                .or_else(|| Vec::read(value).map(PoolingInput::Chat))
        };
        let chat = || {
            let value = checked.get("messages").or_else(|| checked.get("input"))?;
            match value.as_array()?.first() {
                Some(Value::Array(_)) => either("messages").or_else(|| either("input")),
                _ => Vec::read(value).map(PoolingInput::Chat),
            }
        };
        let input = match body::best_union_branch(forms, value) {
            Some((0, _)) => prompts(),
            _ => chat(),
        };
        let input = input.unwrap_or_else(|| PoolingInput::Data(member_or_null(&checked, "data")));
        Ok(Self::read(&checked, input))
    }

    fn read(body: &Value, input: PoolingInput) -> Self {
        Self {
            input,
            model: take_member(body, "model"),
            task: take_member(body, "task"),
            encoding_format: take_member(body, "encoding_format")
                .unwrap_or_else(|| "float".to_owned()),
            embed_dtype: take_member(body, "embed_dtype").unwrap_or_else(|| "float32".to_owned()),
            endianness: take_member(body, "endianness").unwrap_or_else(|| "native".to_owned()),
            dimensions: take_member(body, "dimensions"),
            use_activation: take_member(body, "use_activation"),
            add_special_tokens: take_member(body, "add_special_tokens"),
            truncate_prompt_tokens: take_member(body, "truncate_prompt_tokens"),
            truncation_side: take_member(body, "truncation_side"),
            padding: take_member(body, "padding"),
            request_id: take_member(body, "request_id"),
            priority: take_member(body, "priority").unwrap_or(0),
            cache_salt: take_member(body, "cache_salt"),
            chat_template: take_member(body, "chat_template"),
            chat_template_kwargs: take_member(body, "chat_template_kwargs"),
            mm_processor_kwargs: member_len(body, "mm_processor_kwargs"),
            media_io_kwargs: member_len(body, "media_io_kwargs"),
            max_tokens_per_query: take_member(body, "max_tokens_per_query").unwrap_or(0),
            max_tokens_per_doc: take_member(body, "max_tokens_per_doc").unwrap_or(0),
            top_n: take_member::<u64>(body, "top_n")
                .map_or(0, |top| usize::try_from(top).unwrap_or(usize::MAX)),
        }
    }
}

/// Returns a checked member of the request body; `None` if it is absent or null.
fn take_member<T: RequestField>(body: &Value, key: &str) -> Option<T> {
    body.get(key).and_then(T::read)
}

/// Returns the number of members of an object in the request body; 0 if it is absent.
fn member_len(body: &Value, key: &str) -> usize {
    body.get(key).and_then(Value::as_object).map_or(0, Map::len)
}

fn member_or_null(body: &Value, key: &str) -> Value {
    body.get(key).cloned().unwrap_or(Value::Null)
}
