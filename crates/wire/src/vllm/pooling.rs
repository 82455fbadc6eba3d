//! Embedding, pooling, classification, score and rerank requests.
//!
//! One body may have one of several forms (a text, a conversation, many of them …); upstream
//! has a class for each and tries them all. Here the classes are schemas, and what they have in
//! common is read into [`PoolingRequest`].
//!
//! Source: `vllm/entrypoints/pooling/{base,embed,pooling,classify,scoring}/protocol.py`.

use serde_json::{Map, Value};

use crate::check;
use crate::fault::Fault;
use crate::openai::completion::{Prompts, TokenIds};
use crate::openai::message::Message;
use crate::openai::message_schema::{SCORE_INPUT, SCORE_INPUTS};
use crate::openai::shared::{CACHE_SALT, SIDE};
use crate::openai::validators::{self, Body, ValidatorResult, truthy};
use crate::schema::{
    ANY_LENGTH, BeforeValidator, ClassKind, Field, INT, INT64, Length, Model, STR, Schema, Wire,
    int_from, optional, required,
};

/// What is to be pooled.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolingInput {
    /// Texts or token ids.
    Prompts(Prompts),
    /// One conversation.
    Chat(Vec<Message>),
    /// Several conversations.
    Chats(Vec<Vec<Message>>),
    /// Whatever a plugin understands.
    Data(Value),
    /// Two sides to compare: queries and documents, as sent.
    Pair(Value, Value),
}

/// A pooling request of any form.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingRequest {
    /// What is to be pooled.
    pub input: PoolingInput,
    /// Served name; null or empty for the base model.
    pub model: Option<String>,
    /// Which task, on `/pooling`.
    pub task: Option<String>,
    /// `float`, `base64`, `bytes` or `bytes_only`.
    pub encoding_format: String,
    /// Number format of encoded vectors.
    pub embed_dtype: String,
    /// Byte order of encoded vectors.
    pub endianness: String,
    /// Length of the vectors; only for Matryoshka models.
    pub dimensions: Option<i128>,
    /// Whether the model's activation is applied.
    pub use_activation: Option<bool>,
    /// Whether the tokenizer adds special tokens; the form's default when absent.
    pub add_special_tokens: Option<bool>,
    /// Tokens of the prompt to keep; -1 for all that fit.
    pub truncate_prompt_tokens: Option<i128>,
    /// Which end of the prompt is cut.
    pub truncation_side: Option<String>,
    /// `max_length` or `do_not_pad`.
    pub padding: Option<String>,
    /// Id in the answer; a fresh one when absent.
    pub request_id: Option<String>,
    /// Lower goes first.
    pub priority: i64,
    /// Keeps the prefix cache apart.
    pub cache_salt: Option<String>,
    /// A template instead of the model's.
    pub chat_template: Option<String>,
    /// Arguments for the template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Results to return of a rerank; 0 for all.
    pub top_n: usize,
}

const NULLABLE_BOOL: Schema = Schema::Nullable(&Schema::Bool);
const NULLABLE_STR: Schema = Schema::Nullable(&STR);
const NULLABLE_INT: Schema = Schema::Nullable(&INT);
const OBJECT: Schema = Schema::Nullable(&Schema::Dict(&STR, &Schema::Any));
const CONVERSATION: Schema = Schema::List(&Message::SCHEMA, ANY_LENGTH);
const CONVERSATIONS: Schema = Schema::After(
    at_least_one,
    &Schema::Sequence(&Schema::List(
        &Message::SCHEMA,
        Length {
            min: 1,
            max: usize::MAX,
        },
    )),
);

fn at_least_one(list: &Value) -> Result<Option<Value>, crate::schema::ValidatorError> {
    if list.as_array().is_some_and(Vec::is_empty) {
        return Err(crate::schema::ValidatorError::TooShort);
    }
    Ok(None)
}

const PADDING: Field = optional(
    "padding",
    Schema::Nullable(&Schema::Literal(&["max_length", "do_not_pad"])),
);
const USE_ACTIVATION: Field = optional("use_activation", NULLABLE_BOOL);
const ADD_SPECIAL_TOKENS: Field = optional("add_special_tokens", Schema::Bool);
const DIMENSIONS: Field = optional("dimensions", NULLABLE_INT);
const INPUT: Field = required(
    "input",
    Schema::Union(&[
        TokenIds::SCHEMA,
        Schema::List(&TokenIds::SCHEMA, ANY_LENGTH),
        STR,
        Schema::List(&STR, ANY_LENGTH),
    ]),
);
const MESSAGES: Field = required("messages", CONVERSATION);

/// How vectors are encoded.
const ENCODING: [Field; 3] = [
    optional(
        "encoding_format",
        Schema::Literal(&["float", "base64", "bytes", "bytes_only"]),
    ),
    optional(
        "embed_dtype",
        Schema::Literal(&["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]),
    ),
    optional("endianness", Schema::Literal(&["native", "big", "little"])),
];

/// How a conversation is rendered.
const RENDERING: [Field; 5] = [
    optional("add_generation_prompt", Schema::Bool),
    optional("continue_final_message", Schema::Bool),
    optional("chat_template", NULLABLE_STR),
    optional("chat_template_kwargs", OBJECT),
    optional(
        "media_io_kwargs",
        Schema::Nullable(&Schema::Dict(&STR, &Schema::Dict(&STR, &Schema::Any))),
    ),
];

/// The head of every form.
const NAMES: [Field; 3] = [
    optional("model", NULLABLE_STR),
    optional("user", NULLABLE_STR),
    optional("truncate_prompt_tokens", Schema::Nullable(&int_from(-1))),
];

/// The tail of every form.
const COMMON: [Field; 5] = [
    optional("truncation_side", SIDE),
    optional("request_id", STR),
    optional("priority", INT64),
    optional("mm_processor_kwargs", OBJECT),
    optional("cache_salt", CACHE_SALT),
];

const TASK: Schema = Schema::Literal(&[
    "embed",
    "classify",
    "token_embed",
    "token_classify",
    "plugin",
    "embed&token_classify",
]);

/// Joins groups of fields; `N` has to be their number.
const fn join<const N: usize>(groups: &[&[Field]]) -> [Field; N] {
    let mut fields = [PADDING; N];
    let mut at = 0;
    let mut group = 0;
    while group < groups.len() {
        let mut i = 0;
        while i < groups[group].len() {
            fields[at] = groups[group][i];
            at += 1;
            i += 1;
        }
        group += 1;
    }
    assert!(at == N, "the number of fields");
    fields
}

const TEXT_CHECKS: &[BeforeValidator] = &[validators::cache_salt];
const CHAT_CHECKS: &[BeforeValidator] = &[validators::cache_salt, generation_prompt];

const fn form(
    name: &'static str,
    fields: &'static [Field],
    before: &'static [BeforeValidator],
) -> Model {
    Model {
        name,
        kind: ClassKind::Wrapped,
        fields,
        before,
        after: None,
    }
}

static EMBEDDING: &[Schema] = &[
    Schema::Model(&form(
        "EmbeddingCompletionRequest",
        &join::<16>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING,
            &[DIMENSIONS, USE_ACTIVATION, INPUT],
            &NAMES,
            &COMMON,
        ]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "EmbeddingChatRequest",
        &join::<21>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING,
            &[MESSAGES],
            &NAMES,
            &COMMON,
        ]),
        CHAT_CHECKS,
    )),
    Schema::Model(&form(
        "EmbeddingBatchChatRequest",
        &join::<21>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING,
            &NAMES,
            &COMMON,
            &[required("messages", CONVERSATIONS)],
        ]),
        CHAT_CHECKS,
    )),
    Schema::Model(&form(
        "EmbeddingChatInputRequest",
        &join::<22>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING,
            &[MESSAGES],
            &NAMES,
            &COMMON,
            &[required("input", CONVERSATION)],
        ]),
        &[input_is_messages, validators::cache_salt, generation_prompt],
    )),
    Schema::Model(&form(
        "EmbeddingBatchChatInputRequest",
        &join::<22>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING,
            &NAMES,
            &COMMON,
            &[
                required("messages", CONVERSATIONS),
                required("input", CONVERSATIONS),
            ],
        ]),
        &[
            input_is_conversations,
            validators::cache_salt,
            generation_prompt,
        ],
    )),
];

static POOLING: &[Schema] = &[
    Schema::Model(&form(
        "PoolingCompletionRequest",
        &join::<17>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
            &ENCODING,
            &[DIMENSIONS, INPUT],
            &NAMES,
            &[PADDING],
            &COMMON,
            &[optional("task", Schema::Nullable(&TASK))],
        ]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "PoolingChatRequest",
        &join::<22>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
            &ENCODING,
            &[DIMENSIONS],
            &RENDERING,
            &[MESSAGES],
            &NAMES,
            &[PADDING],
            &COMMON,
            &[optional("task", Schema::Nullable(&TASK))],
        ]),
        CHAT_CHECKS,
    )),
    Schema::Model(&form(
        "IOProcessorRequest",
        &join::<14>(&[
            &ENCODING,
            &NAMES,
            &[PADDING],
            &COMMON,
            &[required("data", Schema::Any), optional("task", TASK)],
        ]),
        TEXT_CHECKS,
    )),
];

static CLASSIFY: &[Schema] = &[
    Schema::Model(&form(
        "ClassificationCompletionRequest",
        &join::<12>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION, INPUT],
            &NAMES,
            &[PADDING],
            &COMMON,
        ]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "ClassificationChatRequest",
        &join::<17>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
            &RENDERING,
            &[MESSAGES],
            &NAMES,
            &[PADDING],
            &COMMON,
        ]),
        CHAT_CHECKS,
    )),
];

const ONE_INPUT: Schema = Schema::Union(SCORE_INPUT);
const INPUTS: Schema = Schema::Union(SCORE_INPUTS);

/// The head of score and rerank requests.
const SCORING: [Field; 14] = join::<14>(&[
    &[USE_ACTIVATION],
    &NAMES,
    &[PADDING],
    &COMMON,
    &[
        optional("max_tokens_per_query", INT),
        optional("max_tokens_per_doc", INT),
        optional("instruction", NULLABLE_STR),
        optional("chat_template_kwargs", OBJECT),
    ],
]);

/// The two sides that a score request may name.
const SIDES: [(&str, &str); 4] = [
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
];

const fn sides(pair: (&'static str, &'static str)) -> [Field; 16] {
    join::<16>(&[
        &SCORING,
        &[required(pair.0, INPUTS), required(pair.1, INPUTS)],
    ])
}

static SCORE: &[Schema] = &[
    Schema::Model(&form(
        "ScoreQueriesDocumentsRequest",
        &sides(SIDES[0]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "ScoreQueriesItemsRequest",
        &sides(SIDES[1]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form("ScoreDataRequest", &sides(SIDES[2]), TEXT_CHECKS)),
    Schema::Model(&form("ScoreTextRequest", &sides(SIDES[3]), TEXT_CHECKS)),
];

static RERANK: Model = form(
    "RerankRequest",
    &join::<17>(&[
        &SCORING,
        &[
            required("query", ONE_INPUT),
            required("documents", INPUTS),
            optional("top_n", int_from(0)),
        ],
    ]),
    TEXT_CHECKS,
);

/// `ChatRequestMixin.check_generation_prompt`.
fn generation_prompt(body: &mut Body) -> ValidatorResult {
    if truthy(body, "continue_final_message") && truthy(body, "add_generation_prompt") {
        return Err(Fault::bad_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        )
        .into());
    }
    Ok(())
}

/// `_is_chat_messages`.
fn is_messages(value: &Value) -> bool {
    let message = |item: &Value| item.get("role").is_some_and(Value::is_string);
    value
        .as_array()
        .is_some_and(|items| !items.is_empty() && items.iter().all(message))
}

fn adopt(body: &mut Body, fits: fn(&Value) -> bool) {
    if body.contains_key("messages") {
        return;
    }
    if let Some(input) = body.get("input").filter(|input| fits(input)).cloned() {
        body.insert("messages".to_owned(), input);
    }
}

/// `EmbeddingChatInputRequest.normalize_input_messages`.
fn input_is_messages(body: &mut Body) -> ValidatorResult {
    adopt(body, is_messages);
    Ok(())
}

/// `EmbeddingBatchChatInputRequest.normalize_input_messages`.
fn input_is_conversations(body: &mut Body) -> ValidatorResult {
    adopt(body, |value| {
        value
            .as_array()
            .is_some_and(|items| !items.is_empty() && items.iter().all(is_messages))
    });
    Ok(())
}

/// `reject_removed_pooling_parameters`.
fn removed(body: &Value) -> Result<(), Fault> {
    let Value::Object(body) = body else {
        return Ok(());
    };
    if body.contains_key("normalize") {
        return Err(Fault::parameter(
            "Parameter `normalize` was removed; use `use_activation` instead.",
            "normalize",
        ));
    }
    match body
        .get("task")
        .and_then(Value::as_str)
        .and_then(removed_task)
    {
        Some(text) => Err(Fault::parameter(text, "task")),
        None => Ok(()),
    }
}

/// `_REMOVED_POOLING_TASK_MESSAGES`.
fn removed_task(task: &str) -> Option<&'static str> {
    match task {
        "score" => Some("`score` task was removed; use `classify` instead."),
        "encode" => {
            Some("`encode` task was removed; use `token_embed` or `token_classify` instead.")
        }
        _ => None,
    }
}

impl PoolingRequest {
    /// Reads the body of `POST /v1/embeddings`.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse_embedding(value: &Value) -> Result<Self, Fault> {
        removed(value)?;
        Self::of_forms(EMBEDDING, value)
    }

    /// Reads the body of `POST /pooling`.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse_pooling(value: &Value) -> Result<Self, Fault> {
        removed(value)?;
        Self::of_forms(POOLING, value)
    }

    /// Reads the body of `POST /classify`.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse_classify(value: &Value) -> Result<Self, Fault> {
        removed(value)?;
        Self::of_forms(CLASSIFY, value)
    }

    /// Reads the body of `POST /score`.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse_score(value: &Value) -> Result<Self, Fault> {
        let checked = check::checked(&Schema::Union(SCORE), value)?;
        let form = check::winner(SCORE, value).map_or(0, |(form, _)| form);
        let (one, two) = SIDES[form];
        Ok(Self::read(
            &checked,
            PoolingInput::Pair(member(&checked, one), member(&checked, two)),
        ))
    }

    /// Reads the body of `POST /rerank`.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse_rerank(value: &Value) -> Result<Self, Fault> {
        let checked = check::checked(&Schema::Model(&RERANK), value)?;
        let pair = PoolingInput::Pair(member(&checked, "query"), member(&checked, "documents"));
        Ok(Self::read(&checked, pair))
    }

    fn of_forms(forms: &'static [Schema], value: &Value) -> Result<Self, Fault> {
        let checked = check::checked(&Schema::Union(forms), value)?;
        let prompts = || {
            checked
                .get("input")
                .and_then(Prompts::read)
                .map(PoolingInput::Prompts)
        };
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
        let input = match check::winner(forms, value) {
            Some((0, _)) => prompts(),
            _ => chat(),
        };
        let input = input.unwrap_or_else(|| PoolingInput::Data(member(&checked, "data")));
        Ok(Self::read(&checked, input))
    }

    fn read(body: &Value, input: PoolingInput) -> Self {
        Self {
            input,
            model: take(body, "model"),
            task: take(body, "task"),
            encoding_format: take(body, "encoding_format").unwrap_or_else(|| "float".to_owned()),
            embed_dtype: take(body, "embed_dtype").unwrap_or_else(|| "float32".to_owned()),
            endianness: take(body, "endianness").unwrap_or_else(|| "native".to_owned()),
            dimensions: take(body, "dimensions"),
            use_activation: take(body, "use_activation"),
            add_special_tokens: take(body, "add_special_tokens"),
            truncate_prompt_tokens: take(body, "truncate_prompt_tokens"),
            truncation_side: take(body, "truncation_side"),
            padding: take(body, "padding"),
            request_id: take(body, "request_id"),
            priority: take(body, "priority").unwrap_or(0),
            cache_salt: take(body, "cache_salt"),
            chat_template: take(body, "chat_template"),
            chat_template_kwargs: take(body, "chat_template_kwargs"),
            top_n: take::<u64>(body, "top_n")
                .map_or(0, |top| usize::try_from(top).unwrap_or(usize::MAX)),
        }
    }
}

/// A checked member; `None` where it is absent or null.
fn take<T: Wire>(body: &Value, key: &str) -> Option<T> {
    body.get(key).and_then(T::read)
}

fn member(body: &Value, key: &str) -> Value {
    body.get(key).cloned().unwrap_or(Value::Null)
}

/// A model with one fixed vector length was asked for another.
pub fn no_matryoshka(model: &str, dimensions: i128) -> Fault {
    Fault::bad_request(format!(
        "Model '{model}' does not support Matryoshka embeddings; dimensions must be unset \
         (received dimensions={dimensions})."
    ))
}
