//! Python classes against which vLLM validates pooling requests.
//!
//! A pooling request may have one of several forms (a text, a conversation, several conversations).
//! vLLM has a class for each and tries all of them.
//!
//! Source: `vllm/entrypoints/pooling/{base,embed,pooling,classify,scoring}/protocol.py`.

use std::borrow::Cow;

use serde_json::Value;

use crate::openai::completion::PromptTokenIds;
use crate::openai::message_schema::{SCORE_INPUT_SCHEMA, SCORE_INPUTS_SCHEMA};
use crate::openai::request_message::RequestMessage;
use crate::openai::sampling_fields::{CACHE_SALT_SCHEMA, TRUNCATION_SIDE_SCHEMA};
use crate::openai::shared_request_fields::{self, JsonBody, ValidatorResult};
use crate::schema::Schema::{self, Any, Bool, Dict, List, Literal, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, BeforeValidator, Field, INT, INT64, LengthLimits, RequestField, STR,
    ValidatorError, int_at_least_schema, optional_field as opt, required_field as req,
};

const NULLABLE_BOOL: Schema = Nullable(&Bool);
const NULLABLE_STR: Schema = Nullable(&STR);
const NULLABLE_INT: Schema = Nullable(&INT);
const NULLABLE_OBJECT: Schema = Nullable(&Dict(&STR, &Any));
const CONVERSATION: Schema = List(&RequestMessage::SCHEMA, ANY_LENGTH);
const CONVERSATIONS: Schema = Schema::After(
    require_nonempty_list,
    &Schema::Sequence(&List(&RequestMessage::SCHEMA, LengthLimits { min: 1, max: usize::MAX })),
);

fn require_nonempty_list(list: &Value) -> Result<Option<Value>, ValidatorError> {
    if list.as_array().is_some_and(Vec::is_empty) {
        return Err(ValidatorError::TooShort);
    }
    Ok(None)
}

const PADDING: Field = opt("padding", Nullable(&Literal(&["max_length", "do_not_pad"])));
const USE_ACTIVATION: Field = opt("use_activation", NULLABLE_BOOL);
const ADD_SPECIAL_TOKENS: Field = opt("add_special_tokens", Bool);
const DIMENSIONS: Field = opt("dimensions", NULLABLE_INT);
const INPUT: Field = req(
    "input",
    Union(&[
        PromptTokenIds::SCHEMA,
        List(&PromptTokenIds::SCHEMA, ANY_LENGTH),
        STR,
        List(&STR, ANY_LENGTH),
    ]),
);
const MESSAGES: Field = req("messages", CONVERSATION);

/// Request fields for the encoding of returned vectors.
const ENCODING_FIELDS: [Field; 3] = [
    opt("encoding_format", Literal(&["float", "base64", "bytes", "bytes_only"])),
    opt("embed_dtype", Literal(&["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"])),
    opt("endianness", Literal(&["native", "big", "little"])),
];

/// Request fields for the chat template.
const RENDERING_FIELDS: [Field; 5] = [
    opt("add_generation_prompt", Bool),
    opt("continue_final_message", Bool),
    opt("chat_template", NULLABLE_STR),
    opt("chat_template_kwargs", NULLABLE_OBJECT),
    opt("media_io_kwargs", Nullable(&Dict(&STR, &Dict(&STR, &Any)))),
];

/// First fields of every pooling request class, in order of declaration.
const FIRST_FIELDS: [Field; 3] = [
    opt("model", NULLABLE_STR),
    opt("user", NULLABLE_STR),
    opt("truncate_prompt_tokens", Nullable(&int_at_least_schema(-1))),
];

/// Last fields of every pooling request class, in order of declaration.
const LAST_FIELDS: [Field; 5] = [
    opt("truncation_side", TRUNCATION_SIDE_SCHEMA),
    opt("request_id", STR),
    opt("priority", INT64),
    opt("mm_processor_kwargs", NULLABLE_OBJECT),
    opt("cache_salt", CACHE_SALT_SCHEMA),
];

const TASK_SCHEMA: Schema = Literal(&[
    "embed",
    "classify",
    "token_embed",
    "token_classify",
    "plugin",
    "embed&token_classify",
]);

/// Concatenates groups of request fields; `N` must be their total number.
const fn concat_fields<const N: usize>(groups: &[&[Field]]) -> [Field; N] {
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

const TEXT_CHECKS: &[BeforeValidator] = &[shared_request_fields::check_cache_salt_support];
const CHAT_CHECKS: &[BeforeValidator] = &[
    shared_request_fields::check_cache_salt_support,
    shared_request_fields::check_generation_prompt,
];

/// Creates the schema of a class from the number of its fields, its checks and groups of fields.
macro_rules! request_class {
    ($name:literal, $count:literal, $before:expr, $($group:expr),* $(,)?) => {
        Schema::Model(&crate::schema::Model {
            name: $name,
            kind: crate::schema::ClassKind::Wrapped,
            fields: &concat_fields::<$count>(&[$($group),*]),
            before: $before,
            after: None,
        })
    };
}

/// Index of `EmbeddingBatchChatRequest` among the classes of an embedding request
/// ([`EMBEDDING_REQUEST_SCHEMA`]).
pub(super) const BATCH_CHAT_SCHEMA_INDEX: usize = 2;

const EMBEDDING_FIELDS: [Field; 7] = concat_fields(&[
    &[ADD_SPECIAL_TOKENS, PADDING],
    &ENCODING_FIELDS,
    &[DIMENSIONS, USE_ACTIVATION],
]);

/// First and last fields, without the padding between them that other classes have.
const BASE_FIELDS: [Field; 8] = concat_fields(&[&FIRST_FIELDS, &LAST_FIELDS]);

const PADDED_FIELDS: [Field; 9] = concat_fields(&[&FIRST_FIELDS, &[PADDING], &LAST_FIELDS]);

pub(super) static EMBEDDING_REQUEST_SCHEMA: &[Schema] = &[
    request_class!(
        "EmbeddingCompletionRequest",
        16,
        TEXT_CHECKS,
        &EMBEDDING_FIELDS,
        &[INPUT],
        &BASE_FIELDS
    ),
    request_class!(
        "EmbeddingChatRequest",
        21,
        CHAT_CHECKS,
        &EMBEDDING_FIELDS,
        &RENDERING_FIELDS,
        &[MESSAGES],
        &BASE_FIELDS
    ),
    request_class!(
        "EmbeddingBatchChatRequest",
        21,
        CHAT_CHECKS,
        &EMBEDDING_FIELDS,
        &RENDERING_FIELDS,
        &BASE_FIELDS,
        &[req("messages", CONVERSATIONS)]
    ),
    request_class!(
        "EmbeddingChatInputRequest",
        22,
        &[
            normalize_input_messages,
            shared_request_fields::check_cache_salt_support,
            shared_request_fields::check_generation_prompt,
        ],
        &EMBEDDING_FIELDS,
        &RENDERING_FIELDS,
        &[MESSAGES],
        &BASE_FIELDS,
        &[req("input", CONVERSATION)]
    ),
    request_class!(
        "EmbeddingBatchChatInputRequest",
        22,
        &[
            normalize_input_conversations,
            shared_request_fields::check_cache_salt_support,
            shared_request_fields::check_generation_prompt,
        ],
        &EMBEDDING_FIELDS,
        &RENDERING_FIELDS,
        &BASE_FIELDS,
        &[req("messages", CONVERSATIONS), req("input", CONVERSATIONS)]
    ),
];

pub(super) static POOLING_REQUEST_SCHEMA: &[Schema] = &[
    request_class!(
        "PoolingCompletionRequest",
        17,
        TEXT_CHECKS,
        &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
        &ENCODING_FIELDS,
        &[DIMENSIONS, INPUT],
        &PADDED_FIELDS,
        &[opt("task", Nullable(&TASK_SCHEMA))]
    ),
    request_class!(
        "PoolingChatRequest",
        22,
        CHAT_CHECKS,
        &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
        &ENCODING_FIELDS,
        &[DIMENSIONS],
        &RENDERING_FIELDS,
        &[MESSAGES],
        &PADDED_FIELDS,
        &[opt("task", Nullable(&TASK_SCHEMA))]
    ),
    request_class!(
        "IOProcessorRequest",
        14,
        TEXT_CHECKS,
        &ENCODING_FIELDS,
        &PADDED_FIELDS,
        &[req("data", Any), opt("task", TASK_SCHEMA)]
    ),
];

pub(super) static CLASSIFY_REQUEST_SCHEMA: &[Schema] = &[
    request_class!(
        "ClassificationCompletionRequest",
        12,
        TEXT_CHECKS,
        &[ADD_SPECIAL_TOKENS, USE_ACTIVATION, INPUT],
        &PADDED_FIELDS
    ),
    request_class!(
        "ClassificationChatRequest",
        17,
        CHAT_CHECKS,
        &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
        &RENDERING_FIELDS,
        &[MESSAGES],
        &PADDED_FIELDS
    ),
];

const ONE_OR_MORE_SCORE_INPUTS: Schema = Union(SCORE_INPUTS_SCHEMA);

/// First fields of the score and rerank request classes.
const SCORING_FIELDS: [Field; 14] = concat_fields(&[
    &[USE_ACTIVATION],
    &PADDED_FIELDS,
    &[
        opt("max_tokens_per_query", INT),
        opt("max_tokens_per_doc", INT),
        opt("instruction", NULLABLE_STR),
        opt("chat_template_kwargs", NULLABLE_OBJECT),
    ],
]);

/// Pairs of request fields that name the two sides (queries and documents) of a score request.
pub(super) const QUERY_AND_DOCUMENT_FIELD_NAMES: [(&str, &str); 4] =
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")];

/// Creates the class of a score request whose two sides are named by `pair`.
macro_rules! score_class {
    ($name:literal, $pair:expr) => {
        request_class!(
            $name,
            16,
            TEXT_CHECKS,
            &SCORING_FIELDS,
            &[req($pair.0, ONE_OR_MORE_SCORE_INPUTS), req($pair.1, ONE_OR_MORE_SCORE_INPUTS)]
        )
    };
}

pub(super) static SCORE_REQUEST_SCHEMA: &[Schema] = &[
    score_class!("ScoreQueriesDocumentsRequest", QUERY_AND_DOCUMENT_FIELD_NAMES[0]),
    score_class!("ScoreQueriesItemsRequest", QUERY_AND_DOCUMENT_FIELD_NAMES[1]),
    score_class!("ScoreDataRequest", QUERY_AND_DOCUMENT_FIELD_NAMES[2]),
    score_class!("ScoreTextRequest", QUERY_AND_DOCUMENT_FIELD_NAMES[3]),
];

pub(super) static RERANK_REQUEST_SCHEMA: Schema = request_class!(
    "RerankRequest",
    17,
    TEXT_CHECKS,
    &SCORING_FIELDS,
    &[
        req("query", Union(SCORE_INPUT_SCHEMA)),
        req("documents", ONE_OR_MORE_SCORE_INPUTS),
        opt("top_n", int_at_least_schema(0)),
    ]
);

/// Returns whether a value is a list of messages, each with a role.
///
/// Source: vLLM's `_is_chat_messages`.
fn is_messages(value: &Value) -> bool {
    let message = |item: &Value| item.get("role").is_some_and(Value::is_string);
    value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(message))
}

fn adopt_input_as_messages(body: &mut Cow<'_, JsonBody>, fits: fn(&Value) -> bool) {
    if body.contains_key("messages") {
        return;
    }
    if let Some(input) = body.get("input").filter(|input| fits(input)).cloned() {
        body.to_mut().insert("messages".to_owned(), input);
    }
}

/// Moves a conversation given as `input` to `messages`.
///
/// Source: vLLM's `EmbeddingChatInputRequest.normalize_input_messages`.
fn normalize_input_messages(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    adopt_input_as_messages(body, is_messages);
    Ok(())
}

/// Moves conversations given as `input` to `messages`.
///
/// Source: vLLM's `EmbeddingBatchChatInputRequest.normalize_input_messages`.
fn normalize_input_conversations(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    adopt_input_as_messages(body, |value| {
        value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(is_messages))
    });
    Ok(())
}
