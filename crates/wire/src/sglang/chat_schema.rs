//! Schemas of messages, tools and formats of SGLang's chat requests.
//!
//! Their names are pydantic's, because errors show them.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py`.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::schema::Schema::{self, After, Any, Bool, Dict, List, Literal, Named, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, Model, STR, ValidatorError, float_between_schema,
    optional_field as opt, plain_model, required_field as req,
};

const TEXT_PART: Schema = plain_model!(
    "ChatCompletionMessageContentTextPart",
    req("type", Literal(&["text"])),
    req("text", STR)
);

const THINKING_PART: Schema = plain_model!(
    "function-after[validate_payload(), ChatCompletionMessageContentThinkingPart]",
    req("type", Literal(&["thinking", "reasoning"])),
    opt("thinking", Nullable(&STR)),
    opt("text", Nullable(&STR))
);

const IMAGE_PART: Schema = plain_model!(
    "ChatCompletionMessageContentImagePart",
    req("type", Literal(&["image_url"])),
    req(
        "image_url",
        plain_model!("ChatCompletionMessageContentImageURL", req("url", STR), opt("detail", Any)),
    )
);

const VIDEO_PART: Schema = plain_model!(
    "ChatCompletionMessageContentVideoPart",
    req("type", Literal(&["video_url"])),
    req("video_url", plain_model!("ChatCompletionMessageContentVideoURL", req("url", STR)))
);

const AUDIO_PART: Schema = Named(
    "function-after[_to_audio_url_part(), union[ChatCompletionMessageContentAudioURLPart,\
     ChatCompletionMessageContentAudioInlinePart]]",
    &Union(&[
        plain_model!(
            "ChatCompletionMessageContentAudioURLPart",
            req("type", Literal(&["audio_url"])),
            req("audio_url", plain_model!("ChatCompletionMessageContentAudioURL", req("url", STR)))
        ),
        plain_model!(
            "ChatCompletionMessageContentAudioInlinePart",
            req("type", Literal(&["input_audio"])),
            req(
                "input_audio",
                plain_model!(
                    "ChatCompletionMessageContentInputAudio",
                    req("data", STR),
                    req("format", Literal(&["wav", "mp3"]))
                ),
            )
        ),
    ]),
);

const TOOL_REFERENCE: Schema = plain_model!(
    "ChatCompletionMessageContentToolReferenceBlock",
    req("type", Literal(&["tool_reference"])),
    req("name", STR)
);

const CONTENT: Schema = Union(&[
    STR,
    List(
        &Union(&[TEXT_PART, THINKING_PART, IMAGE_PART, VIDEO_PART, AUDIO_PART, TOOL_REFERENCE]),
        ANY_LENGTH,
    ),
]);

const TOOL_CALL: Schema = plain_model!(
    "ToolCall",
    opt("id", Nullable(&STR)),
    opt("index", Nullable(&INT)),
    opt("type", Literal(&["function"])),
    req(
        "function",
        plain_model!(
            "FunctionResponse",
            opt("name", Nullable(&STR)),
            opt("arguments", Nullable(&Union(&[STR, Dict(&STR, &Any)])))
        ),
    )
);

const GENERIC_ROLES: [&str; 7] =
    ["system", "assistant", "tool", "function", "developer", "latest_reminder", "root"];

/// Converts the role of a message to lower case, as SGLang's `_normalize_role` does; rejects
/// unknown roles.
fn check_role(role: &Value) -> Result<Option<Value>, ValidatorError> {
    let text = match role.as_str().map(str::to_lowercase) {
        Some(role) if GENERIC_ROLES.contains(&role.as_str()) => return Ok(Some(role.into())),
        Some(_) => {
            let roles: Vec<String> = GENERIC_ROLES.iter().map(|role| format!("'{role}'")).collect();
            format!("'role' must be one of {} (case-insensitive).", roles.join(", "))
        }
        None => "'role' must be a string".to_owned(),
    };
    Err(ValidatorError::ValueError(text))
}

const GENERIC_MESSAGE: Schema = plain_model!(
    "function-after[validate_thinking_parts_role(), ChatCompletionMessageGenericParam]",
    req("role", After(check_role, &Any)),
    opt("content", Nullable(&CONTENT)),
    opt("tool_call_id", Nullable(&STR)),
    opt("name", Nullable(&STR)),
    opt("reasoning_content", Nullable(&STR)),
    opt("tool_calls", Nullable(&List(&TOOL_CALL, ANY_LENGTH)))
);

const USER_MESSAGE: Schema = plain_model!(
    "function-after[validate_thinking_parts_role(), ChatCompletionMessageUserParam]",
    req("role", Literal(&["user"])),
    req("content", CONTENT)
);

/// Schema of the messages of a chat request.
pub(super) const MESSAGES_SCHEMA: Schema =
    List(&Union(&[GENERIC_MESSAGE, USER_MESSAGE]), ANY_LENGTH);

/// Name of the member that SGLang adds to functions during validation, and that its error messages
/// therefore show.
pub(super) const FUNCTION_KEY_ORDER_MEMBER: &str = "key_order";

/// Adds the names of a function's members as `key_order`, as SGLang's `Function._capture_key_order`
/// does.
fn capture_key_order(function: &mut Cow<'_, Map<String, Value>>) -> Result<(), ValidatorError> {
    let names = function.keys().cloned().collect::<Vec<_>>();
    function.to_mut().insert(FUNCTION_KEY_ORDER_MEMBER.to_owned(), names.into());
    Ok(())
}

const FUNCTION: Schema = Schema::Model(
    const {
        &Model {
            before: &[capture_key_order],
            ..Model::plain(
                "Function",
                const {
                    &[
                        opt("description", Nullable(&STR)),
                        req("name", STR),
                        opt("parameters", Any),
                        opt("strict", Nullable(&Bool)),
                    ]
                },
            )
        }
    },
);

/// Schema of a list of tools.
pub(super) const TOOL_LIST_SCHEMA: Schema =
    List(&plain_model!("Tool", opt("type", STR), req("function", FUNCTION)), ANY_LENGTH);

/// Schema of the tools of a chat request.
pub(super) const TOOLS_SCHEMA: Schema = Nullable(&TOOL_LIST_SCHEMA);

/// Schema of the rule for tool calls of a chat request.
pub(super) const TOOL_CHOICE_SCHEMA: Schema = Nullable(&Union(&[
    plain_model!(
        "ToolChoice",
        req("function", plain_model!("ToolChoiceFuncName", opt("name", Nullable(&STR)))),
        opt("type", Literal(&["function"]))
    ),
    Literal(&["auto", "required", "none"]),
]));

/// Schema of the effort of the reasoning: a name or a number.
pub(super) const REASONING_EFFORT_SCHEMA: Schema = Nullable(&Union(&[
    Literal(&["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]),
    float_between_schema(0.0, 0.99),
]));

/// Schema of the required format of an output.
pub(super) const RESPONSE_FORMAT_SCHEMA: Schema = Nullable(&Union(&[
    plain_model!(
        "ResponseFormat",
        req("type", Literal(&["text", "json_object", "json_schema"])),
        opt(
            "json_schema",
            Nullable(&plain_model!(
                "JsonSchemaResponseFormat",
                req("name", STR),
                opt("description", Nullable(&STR)),
                opt("schema", Nullable(&Dict(&STR, &Any))),
                opt("strict", Nullable(&Bool))
            )),
        )
    ),
    plain_model!(
        "LegacyStructuralTagResponseFormat",
        req("type", Literal(&["structural_tag"])),
        req("structures", List(&Dict(&STR, &Any), ANY_LENGTH)),
        req("triggers", List(&STR, ANY_LENGTH))
    ),
    plain_model!("StructuralTag", opt("type", Literal(&["structural_tag"])), req("format", Any)),
]));

/// Schema of stop strings: a union of a list and a string, in that order.
pub(super) const STOP_STRINGS_SCHEMA: Schema = Nullable(&Union(&[List(&STR, ANY_LENGTH), STR]));

/// Schema of values added to the logits of tokens.
pub(super) const LOGIT_BIAS_SCHEMA: Schema = Nullable(&Dict(&STR, &FLOAT));
