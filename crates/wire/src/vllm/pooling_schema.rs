//! Python classes against which vLLM validates pooling requests.
//!
//! A pooling request may have one of several forms (a text, a conversation, several conversations).
//! vLLM has a class for each and tries all of them.
//!
//! Source: `vllm/entrypoints/pooling/{base,embed,pooling,classify,scoring}/protocol.py`.

use std::borrow::Cow;

use serde_json::Value;

use crate::fault::Fault;
use crate::openai::completion::TokenIds;
use crate::openai::message::Message;
use crate::openai::message_schema::{SCORE_INPUT, SCORE_INPUTS};
use crate::openai::shared::{CACHE_SALT, SIDE};
use crate::openai::validators::{self, Body, ValidatorResult, truthy};
use crate::schema::{
    ANY_LENGTH, BeforeValidator, ClassKind, Field, INT, INT64, Length, Model, RequestField, STR,
    Schema, ValidatorError, int_from, optional, required,
};

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

fn at_least_one(list: &Value) -> Result<Option<Value>, ValidatorError> {
    if list.as_array().is_some_and(Vec::is_empty) {
        return Err(ValidatorError::TooShort);
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

/// Request fields for the encoding of returned vectors.
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

/// Request fields for the chat template.
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

/// First fields of every pooling request class, in order of declaration.
const NAMES: [Field; 3] = [
    optional("model", NULLABLE_STR),
    optional("user", NULLABLE_STR),
    optional("truncate_prompt_tokens", Schema::Nullable(&int_from(-1))),
];

/// Last fields of every pooling request class, in order of declaration.
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

/// Concatenates groups of request fields; `N` must be their total number.
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

pub(super) static EMBEDDING: &[Schema] = &[
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

pub(super) static POOLING: &[Schema] = &[
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

pub(super) static CLASSIFY: &[Schema] = &[
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

/// First fields of the score and rerank request classes.
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

/// Pairs of request fields that name the two sides (queries and documents) of a score request.
pub(super) const SIDES: [(&str, &str); 4] = [
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

pub(super) static SCORE: &[Schema] = &[
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

pub(super) static RERANK: Model = form(
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

/// Mirrors vLLM's `ChatRequestMixin.check_generation_prompt`.
fn generation_prompt(body: &mut Cow<'_, Body>) -> ValidatorResult {
    if truthy(body, "continue_final_message") && truthy(body, "add_generation_prompt") {
        return Err(Fault::bad_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        )
        .into());
    }
    Ok(())
}

/// Mirrors vLLM's `_is_chat_messages`.
fn is_messages(value: &Value) -> bool {
    let message = |item: &Value| item.get("role").is_some_and(Value::is_string);
    value
        .as_array()
        .is_some_and(|items| !items.is_empty() && items.iter().all(message))
}

fn adopt(body: &mut Cow<'_, Body>, fits: fn(&Value) -> bool) {
    if body.contains_key("messages") {
        return;
    }
    if let Some(input) = body.get("input").filter(|input| fits(input)).cloned() {
        body.to_mut().insert("messages".to_owned(), input);
    }
}

/// Mirrors vLLM's `EmbeddingChatInputRequest.normalize_input_messages`.
fn input_is_messages(body: &mut Cow<'_, Body>) -> ValidatorResult {
    adopt(body, is_messages);
    Ok(())
}

/// Mirrors vLLM's `EmbeddingBatchChatInputRequest.normalize_input_messages`.
fn input_is_conversations(body: &mut Cow<'_, Body>) -> ValidatorResult {
    adopt(body, |value| {
        value
            .as_array()
            .is_some_and(|items| !items.is_empty() && items.iter().all(is_messages))
    });
    Ok(())
}
