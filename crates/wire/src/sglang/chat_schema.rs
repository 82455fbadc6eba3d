//! Schemas of messages, tools and formats of SGLang's chat requests.
//!
//! Their names are pydantic's, because errors show them.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py`.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::schema::{
    ANY_LENGTH, FLOAT, INT, Model, STR, Schema, ValidatorError, float_between_schema,
    optional_field, required_field,
};

const TEXT_PART: Schema = Schema::Model(&Model::plain(
    "ChatCompletionMessageContentTextPart",
    &[required_field("type", Schema::Literal(&["text"])), required_field("text", STR)],
));

const THINKING_PART: Schema = Schema::Model(&Model::plain(
    "function-after[validate_payload(), ChatCompletionMessageContentThinkingPart]",
    &[
        required_field("type", Schema::Literal(&["thinking", "reasoning"])),
        optional_field("thinking", Schema::Nullable(&STR)),
        optional_field("text", Schema::Nullable(&STR)),
    ],
));

const IMAGE_PART: Schema = Schema::Model(&Model::plain(
    "ChatCompletionMessageContentImagePart",
    &[
        required_field("type", Schema::Literal(&["image_url"])),
        required_field(
            "image_url",
            Schema::Model(&Model::plain(
                "ChatCompletionMessageContentImageURL",
                &[required_field("url", STR), optional_field("detail", Schema::Any)],
            )),
        ),
    ],
));

const VIDEO_PART: Schema = Schema::Model(&Model::plain(
    "ChatCompletionMessageContentVideoPart",
    &[
        required_field("type", Schema::Literal(&["video_url"])),
        required_field(
            "video_url",
            Schema::Model(&Model::plain(
                "ChatCompletionMessageContentVideoURL",
                &[required_field("url", STR)],
            )),
        ),
    ],
));

const AUDIO_PART: Schema = Schema::Named(
    "function-after[_to_audio_url_part(), union[ChatCompletionMessageContentAudioURLPart,\
     ChatCompletionMessageContentAudioInlinePart]]",
    &Schema::Union(&[
        Schema::Model(&Model::plain(
            "ChatCompletionMessageContentAudioURLPart",
            &[
                required_field("type", Schema::Literal(&["audio_url"])),
                required_field(
                    "audio_url",
                    Schema::Model(&Model::plain(
                        "ChatCompletionMessageContentAudioURL",
                        &[required_field("url", STR)],
                    )),
                ),
            ],
        )),
        Schema::Model(&Model::plain(
            "ChatCompletionMessageContentAudioInlinePart",
            &[
                required_field("type", Schema::Literal(&["input_audio"])),
                required_field(
                    "input_audio",
                    Schema::Model(&Model::plain(
                        "ChatCompletionMessageContentInputAudio",
                        &[
                            required_field("data", STR),
                            required_field("format", Schema::Literal(&["wav", "mp3"])),
                        ],
                    )),
                ),
            ],
        )),
    ]),
);

const TOOL_REFERENCE: Schema = Schema::Model(&Model::plain(
    "ChatCompletionMessageContentToolReferenceBlock",
    &[required_field("type", Schema::Literal(&["tool_reference"])), required_field("name", STR)],
));

const CONTENT: Schema = Schema::Union(&[
    STR,
    Schema::List(
        &Schema::Union(&[
            TEXT_PART,
            THINKING_PART,
            IMAGE_PART,
            VIDEO_PART,
            AUDIO_PART,
            TOOL_REFERENCE,
        ]),
        ANY_LENGTH,
    ),
]);

const TOOL_CALL: Schema = Schema::Model(&Model::plain(
    "ToolCall",
    &[
        optional_field("id", Schema::Nullable(&STR)),
        optional_field("index", Schema::Nullable(&INT)),
        optional_field("type", Schema::Literal(&["function"])),
        required_field(
            "function",
            Schema::Model(&Model::plain(
                "FunctionResponse",
                &[
                    optional_field("name", Schema::Nullable(&STR)),
                    optional_field(
                        "arguments",
                        Schema::Nullable(&Schema::Union(&[STR, Schema::Dict(&STR, &Schema::Any)])),
                    ),
                ],
            )),
        ),
    ],
));

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

const GENERIC_MESSAGE: Schema = Schema::Model(&Model::plain(
    "function-after[validate_thinking_parts_role(), ChatCompletionMessageGenericParam]",
    &[
        required_field("role", Schema::After(check_role, &Schema::Any)),
        optional_field("content", Schema::Nullable(&CONTENT)),
        optional_field("tool_call_id", Schema::Nullable(&STR)),
        optional_field("name", Schema::Nullable(&STR)),
        optional_field("reasoning_content", Schema::Nullable(&STR)),
        optional_field("tool_calls", Schema::Nullable(&Schema::List(&TOOL_CALL, ANY_LENGTH))),
    ],
));

const USER_MESSAGE: Schema = Schema::Model(&Model::plain(
    "function-after[validate_thinking_parts_role(), ChatCompletionMessageUserParam]",
    &[required_field("role", Schema::Literal(&["user"])), required_field("content", CONTENT)],
));

/// Schema of the messages of a chat request.
pub(super) const MESSAGES_SCHEMA: Schema =
    Schema::List(&Schema::Union(&[GENERIC_MESSAGE, USER_MESSAGE]), ANY_LENGTH);

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

/// Schema of a list of tools.
pub(super) const TOOL_LIST_SCHEMA: Schema = Schema::List(
    &Schema::Model(&Model::plain(
        "Tool",
        &[
            optional_field("type", STR),
            required_field(
                "function",
                Schema::Model(&Model {
                    before: &[capture_key_order],
                    ..Model::plain(
                        "Function",
                        &[
                            optional_field("description", Schema::Nullable(&STR)),
                            required_field("name", STR),
                            optional_field("parameters", Schema::Any),
                            optional_field("strict", Schema::Nullable(&Schema::Bool)),
                        ],
                    )
                }),
            ),
        ],
    )),
    ANY_LENGTH,
);

/// Schema of the tools of a chat request.
pub(super) const TOOLS_SCHEMA: Schema = Schema::Nullable(&TOOL_LIST_SCHEMA);

/// Schema of the rule for tool calls of a chat request.
pub(super) const TOOL_CHOICE_SCHEMA: Schema = Schema::Nullable(&Schema::Union(&[
    Schema::Model(&Model::plain(
        "ToolChoice",
        &[
            required_field(
                "function",
                Schema::Model(&Model::plain(
                    "ToolChoiceFuncName",
                    &[optional_field("name", Schema::Nullable(&STR))],
                )),
            ),
            optional_field("type", Schema::Literal(&["function"])),
        ],
    )),
    Schema::Literal(&["auto", "required", "none"]),
]));

/// Schema of the effort of the reasoning: a name or a number.
pub(super) const REASONING_EFFORT_SCHEMA: Schema = Schema::Nullable(&Schema::Union(&[
    Schema::Literal(&["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]),
    float_between_schema(0.0, 0.99),
]));

/// Schema of the required format of an output.
pub(super) const RESPONSE_FORMAT_SCHEMA: Schema = Schema::Nullable(&Schema::Union(&[
    Schema::Model(&Model::plain(
        "ResponseFormat",
        &[
            required_field("type", Schema::Literal(&["text", "json_object", "json_schema"])),
            optional_field(
                "json_schema",
                Schema::Nullable(&Schema::Model(&Model::plain(
                    "JsonSchemaResponseFormat",
                    &[
                        required_field("name", STR),
                        optional_field("description", Schema::Nullable(&STR)),
                        optional_field(
                            "schema",
                            Schema::Nullable(&Schema::Dict(&STR, &Schema::Any)),
                        ),
                        optional_field("strict", Schema::Nullable(&Schema::Bool)),
                    ],
                ))),
            ),
        ],
    )),
    Schema::Model(&Model::plain(
        "LegacyStructuralTagResponseFormat",
        &[
            required_field("type", Schema::Literal(&["structural_tag"])),
            required_field(
                "structures",
                Schema::List(&Schema::Dict(&STR, &Schema::Any), ANY_LENGTH),
            ),
            required_field("triggers", Schema::List(&STR, ANY_LENGTH)),
        ],
    )),
    Schema::Model(&Model::plain(
        "StructuralTag",
        &[
            optional_field("type", Schema::Literal(&["structural_tag"])),
            required_field("format", Schema::Any),
        ],
    )),
]));

/// Schema of stop strings: a union of a list and a string, in that order.
pub(super) const STOP_STRINGS_SCHEMA: Schema =
    Schema::Nullable(&Schema::Union(&[Schema::List(&STR, ANY_LENGTH), STR]));

/// Schema of values added to the logits of tokens.
pub(super) const LOGIT_BIAS_SCHEMA: Schema = Schema::Nullable(&Schema::Dict(&STR, &FLOAT));
