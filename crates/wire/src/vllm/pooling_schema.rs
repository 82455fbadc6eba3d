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
use crate::openai::shared_request_fields::{CACHE_SALT_SCHEMA, TRUNCATION_SIDE_SCHEMA};
use crate::openai::validators::{self, JsonBody, ValidatorResult};
use crate::schema::{
    ANY_LENGTH, BeforeValidator, ClassKind, Field, INT, INT64, LengthLimits, Model, RequestField,
    STR, Schema, ValidatorError, int_at_least_schema, optional_field, required_field,
};

const NULLABLE_BOOL: Schema = Schema::Nullable(&Schema::Bool);
const NULLABLE_STR: Schema = Schema::Nullable(&STR);
const NULLABLE_INT: Schema = Schema::Nullable(&INT);
const NULLABLE_OBJECT: Schema = Schema::Nullable(&Schema::Dict(&STR, &Schema::Any));
const CONVERSATION: Schema = Schema::List(&RequestMessage::SCHEMA, ANY_LENGTH);
const CONVERSATIONS: Schema = Schema::After(
    require_nonempty_list,
    &Schema::Sequence(&Schema::List(
        &RequestMessage::SCHEMA,
        LengthLimits { min: 1, max: usize::MAX },
    )),
);

fn require_nonempty_list(list: &Value) -> Result<Option<Value>, ValidatorError> {
    if list.as_array().is_some_and(Vec::is_empty) {
        return Err(ValidatorError::TooShort);
    }
    Ok(None)
}

const PADDING: Field =
    optional_field("padding", Schema::Nullable(&Schema::Literal(&["max_length", "do_not_pad"])));
const USE_ACTIVATION: Field = optional_field("use_activation", NULLABLE_BOOL);
const ADD_SPECIAL_TOKENS: Field = optional_field("add_special_tokens", Schema::Bool);
const DIMENSIONS: Field = optional_field("dimensions", NULLABLE_INT);
const INPUT: Field = required_field(
    "input",
    Schema::Union(&[
        PromptTokenIds::SCHEMA,
        Schema::List(&PromptTokenIds::SCHEMA, ANY_LENGTH),
        STR,
        Schema::List(&STR, ANY_LENGTH),
    ]),
);
const MESSAGES: Field = required_field("messages", CONVERSATION);

/// Request fields for the encoding of returned vectors.
const ENCODING_FIELDS: [Field; 3] = [
    optional_field("encoding_format", Schema::Literal(&["float", "base64", "bytes", "bytes_only"])),
    optional_field(
        "embed_dtype",
        Schema::Literal(&["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]),
    ),
    optional_field("endianness", Schema::Literal(&["native", "big", "little"])),
];

/// Request fields for the chat template.
const RENDERING_FIELDS: [Field; 5] = [
    optional_field("add_generation_prompt", Schema::Bool),
    optional_field("continue_final_message", Schema::Bool),
    optional_field("chat_template", NULLABLE_STR),
    optional_field("chat_template_kwargs", NULLABLE_OBJECT),
    optional_field(
        "media_io_kwargs",
        Schema::Nullable(&Schema::Dict(&STR, &Schema::Dict(&STR, &Schema::Any))),
    ),
];

/// First fields of every pooling request class, in order of declaration.
const FIRST_FIELDS: [Field; 3] = [
    optional_field("model", NULLABLE_STR),
    optional_field("user", NULLABLE_STR),
    optional_field("truncate_prompt_tokens", Schema::Nullable(&int_at_least_schema(-1))),
];

/// Last fields of every pooling request class, in order of declaration.
const LAST_FIELDS: [Field; 5] = [
    optional_field("truncation_side", TRUNCATION_SIDE_SCHEMA),
    optional_field("request_id", STR),
    optional_field("priority", INT64),
    optional_field("mm_processor_kwargs", NULLABLE_OBJECT),
    optional_field("cache_salt", CACHE_SALT_SCHEMA),
];

const TASK_SCHEMA: Schema = Schema::Literal(&[
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

const TEXT_CHECKS: &[BeforeValidator] = &[validators::check_cache_salt_support];
const CHAT_CHECKS: &[BeforeValidator] =
    &[validators::check_cache_salt_support, validators::check_generation_prompt];

const fn form(
    name: &'static str,
    fields: &'static [Field],
    before: &'static [BeforeValidator],
) -> Model {
    Model { name, kind: ClassKind::Wrapped, fields, before, after: None }
}

/// Index of `EmbeddingBatchChatRequest` among the classes of an embedding request
/// ([`EMBEDDING_REQUEST_SCHEMA`]).
pub(super) const BATCH_CHAT_SCHEMA_INDEX: usize = 2;

pub(super) static EMBEDDING_REQUEST_SCHEMA: &[Schema] = &[
    Schema::Model(&form(
        "EmbeddingCompletionRequest",
        &concat_fields::<16>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING_FIELDS,
            &[DIMENSIONS, USE_ACTIVATION, INPUT],
            &FIRST_FIELDS,
            &LAST_FIELDS,
        ]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "EmbeddingChatRequest",
        &concat_fields::<21>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING_FIELDS,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING_FIELDS,
            &[MESSAGES],
            &FIRST_FIELDS,
            &LAST_FIELDS,
        ]),
        CHAT_CHECKS,
    )),
    Schema::Model(&form(
        "EmbeddingBatchChatRequest",
        &concat_fields::<21>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING_FIELDS,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING_FIELDS,
            &FIRST_FIELDS,
            &LAST_FIELDS,
            &[required_field("messages", CONVERSATIONS)],
        ]),
        CHAT_CHECKS,
    )),
    Schema::Model(&form(
        "EmbeddingChatInputRequest",
        &concat_fields::<22>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING_FIELDS,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING_FIELDS,
            &[MESSAGES],
            &FIRST_FIELDS,
            &LAST_FIELDS,
            &[required_field("input", CONVERSATION)],
        ]),
        &[
            normalize_input_messages,
            validators::check_cache_salt_support,
            validators::check_generation_prompt,
        ],
    )),
    Schema::Model(&form(
        "EmbeddingBatchChatInputRequest",
        &concat_fields::<22>(&[
            &[ADD_SPECIAL_TOKENS, PADDING],
            &ENCODING_FIELDS,
            &[DIMENSIONS, USE_ACTIVATION],
            &RENDERING_FIELDS,
            &FIRST_FIELDS,
            &LAST_FIELDS,
            &[required_field("messages", CONVERSATIONS), required_field("input", CONVERSATIONS)],
        ]),
        &[
            normalize_input_conversations,
            validators::check_cache_salt_support,
            validators::check_generation_prompt,
        ],
    )),
];

pub(super) static POOLING_REQUEST_SCHEMA: &[Schema] = &[
    Schema::Model(&form(
        "PoolingCompletionRequest",
        &concat_fields::<17>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
            &ENCODING_FIELDS,
            &[DIMENSIONS, INPUT],
            &FIRST_FIELDS,
            &[PADDING],
            &LAST_FIELDS,
            &[optional_field("task", Schema::Nullable(&TASK_SCHEMA))],
        ]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "PoolingChatRequest",
        &concat_fields::<22>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
            &ENCODING_FIELDS,
            &[DIMENSIONS],
            &RENDERING_FIELDS,
            &[MESSAGES],
            &FIRST_FIELDS,
            &[PADDING],
            &LAST_FIELDS,
            &[optional_field("task", Schema::Nullable(&TASK_SCHEMA))],
        ]),
        CHAT_CHECKS,
    )),
    Schema::Model(&form(
        "IOProcessorRequest",
        &concat_fields::<14>(&[
            &ENCODING_FIELDS,
            &FIRST_FIELDS,
            &[PADDING],
            &LAST_FIELDS,
            &[required_field("data", Schema::Any), optional_field("task", TASK_SCHEMA)],
        ]),
        TEXT_CHECKS,
    )),
];

pub(super) static CLASSIFY_REQUEST_SCHEMA: &[Schema] = &[
    Schema::Model(&form(
        "ClassificationCompletionRequest",
        &concat_fields::<12>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION, INPUT],
            &FIRST_FIELDS,
            &[PADDING],
            &LAST_FIELDS,
        ]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "ClassificationChatRequest",
        &concat_fields::<17>(&[
            &[ADD_SPECIAL_TOKENS, USE_ACTIVATION],
            &RENDERING_FIELDS,
            &[MESSAGES],
            &FIRST_FIELDS,
            &[PADDING],
            &LAST_FIELDS,
        ]),
        CHAT_CHECKS,
    )),
];

const ONE_SCORE_INPUT: Schema = Schema::Union(SCORE_INPUT_SCHEMA);
const ONE_OR_MORE_SCORE_INPUTS: Schema = Schema::Union(SCORE_INPUTS_SCHEMA);

/// First fields of the score and rerank request classes.
const SCORING_FIELDS: [Field; 14] = concat_fields::<14>(&[
    &[USE_ACTIVATION],
    &FIRST_FIELDS,
    &[PADDING],
    &LAST_FIELDS,
    &[
        optional_field("max_tokens_per_query", INT),
        optional_field("max_tokens_per_doc", INT),
        optional_field("instruction", NULLABLE_STR),
        optional_field("chat_template_kwargs", NULLABLE_OBJECT),
    ],
]);

/// Pairs of request fields that name the two sides (queries and documents) of a score request.
pub(super) const QUERY_AND_DOCUMENT_FIELD_NAMES: [(&str, &str); 4] =
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")];

const fn score_side_fields(pair: (&'static str, &'static str)) -> [Field; 16] {
    concat_fields::<16>(&[
        &SCORING_FIELDS,
        &[
            required_field(pair.0, ONE_OR_MORE_SCORE_INPUTS),
            required_field(pair.1, ONE_OR_MORE_SCORE_INPUTS),
        ],
    ])
}

pub(super) static SCORE_REQUEST_SCHEMA: &[Schema] = &[
    Schema::Model(&form(
        "ScoreQueriesDocumentsRequest",
        &score_side_fields(QUERY_AND_DOCUMENT_FIELD_NAMES[0]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "ScoreQueriesItemsRequest",
        &score_side_fields(QUERY_AND_DOCUMENT_FIELD_NAMES[1]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "ScoreDataRequest",
        &score_side_fields(QUERY_AND_DOCUMENT_FIELD_NAMES[2]),
        TEXT_CHECKS,
    )),
    Schema::Model(&form(
        "ScoreTextRequest",
        &score_side_fields(QUERY_AND_DOCUMENT_FIELD_NAMES[3]),
        TEXT_CHECKS,
    )),
];

pub(super) static RERANK_REQUEST_SCHEMA: Model = form(
    "RerankRequest",
    &concat_fields::<17>(&[
        &SCORING_FIELDS,
        &[
            required_field("query", ONE_SCORE_INPUT),
            required_field("documents", ONE_OR_MORE_SCORE_INPUTS),
            optional_field("top_n", int_at_least_schema(0)),
        ],
    ]),
    TEXT_CHECKS,
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
