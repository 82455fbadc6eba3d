//! The union of Python classes against which vLLM validates a chat message.
//!
//! Source: `vllm/renderers/chat_utils/types.py` (`ChatCompletionMessageParam`), the `*Param`
//! classes of the openai SDK, `openai_harmony.Message`.

use crate::schema::{ANY_LENGTH, FLOAT, INT, Model, STR, Schema, optional, required};

const fn literal_schema(choices: &'static [&'static str]) -> Schema {
    Schema::Literal(choices)
}

/// Schema of a chat message, vLLM's `ChatCompletionMessageParam`.
pub(super) static MESSAGE_SCHEMAS: &[Schema] = &[
    Schema::Model(&Model::typed_dict(
        "ChatCompletionDeveloperMessageParam",
        &[
            required("content", Schema::Union(TEXT_OR_PARTS)),
            required("role", literal_schema(&["developer"])),
            optional("name", STR),
        ],
    )),
    Schema::Model(&Model::typed_dict(
        "ChatCompletionSystemMessageParam",
        &[
            required("content", Schema::Union(TEXT_OR_PARTS)),
            required("role", literal_schema(&["system"])),
            optional("name", STR),
        ],
    )),
    Schema::Model(&Model::typed_dict(
        "ChatCompletionUserMessageParam",
        &[
            required("content", Schema::Union(TEXT_OR_PARTS)),
            required("role", literal_schema(&["user"])),
            optional("name", STR),
        ],
    )),
    Schema::Model(&ASSISTANT),
    Schema::Model(&Model::typed_dict(
        "ChatCompletionToolMessageParam",
        &[
            required("content", Schema::Union(TEXT_OR_PARTS)),
            required("role", literal_schema(&["tool"])),
            required("tool_call_id", STR),
        ],
    )),
    Schema::Model(&Model::typed_dict(
        "ChatCompletionFunctionMessageParam",
        &[
            required("content", Schema::Nullable(&STR)),
            required("name", STR),
            required("role", literal_schema(&["function"])),
        ],
    )),
    Schema::Model(&CUSTOM),
    Schema::Model(&HARMONY_MESSAGE),
];

/// Index of the class of assistant messages in [`MESSAGE_SCHEMAS`].
pub(super) const ASSISTANT_BRANCH: usize = 3;

/// Returns the schema of the content parts for this branch of [`MESSAGE_SCHEMAS`]; `None` if the parts are
/// already checked.
pub(super) fn lazy_part(branch: usize) -> Option<&'static Schema> {
    static TEXT: Schema = Schema::Model(&TEXT_PART);
    static USER: Schema = Schema::Union(USER_PART_SCHEMAS);
    static ASSISTANT: Schema = Schema::Union(ASSISTANT_PART_SCHEMAS);
    match branch {
        0 | 1 | 4 => Some(&TEXT),
        2 => Some(&USER),
        ASSISTANT_BRANCH => Some(&ASSISTANT),
        _ => None,
    }
}

/// Schema of message content, `str | Iterable[…]`; parts are checked when the template reads them.
static TEXT_OR_PARTS: &[Schema] = &[STR, Schema::Iterable(&Schema::Any)];

static ASSISTANT: Model = Model::typed_dict(
    "ChatCompletionAssistantMessageParam",
    &[
        required("role", literal_schema(&["assistant"])),
        optional(
            "audio",
            Schema::Nullable(&Schema::Model(&Model::typed_dict("Audio", &[required("id", STR)]))),
        ),
        optional("content", Schema::Nullable(&Schema::Union(TEXT_OR_PARTS))),
        optional(
            "function_call",
            Schema::Nullable(&Schema::Model(&Model::typed_dict(
                "FunctionCall",
                &[required("arguments", STR), required("name", STR)],
            ))),
        ),
        optional("name", STR),
        optional("refusal", Schema::Nullable(&STR)),
        optional("tool_calls", Schema::Iterable(&Schema::Union(TOOL_CALL_SCHEMAS))),
    ],
);

static CUSTOM: Model = Model::typed_dict(
    "CustomChatCompletionMessageParam",
    &[
        required("role", STR),
        optional(
            "content",
            Schema::Union(&[STR, Schema::List(&Schema::Union(CONTENT_PART_SCHEMAS), ANY_LENGTH)]),
        ),
        optional("name", STR),
        optional("tool_call_id", Schema::Nullable(&STR)),
        optional(
            "tool_calls",
            Schema::Nullable(&Schema::List(&Schema::Model(&FUNCTION_CALL), ANY_LENGTH)),
        ),
        optional(
            "reasoning",
            Schema::Nullable(&Schema::Union(&[STR, Schema::Model(&PROMPT_EMBEDS_PART)])),
        ),
        optional(
            "tools",
            Schema::Nullable(&Schema::List(&Schema::Model(&FUNCTION_TOOL), ANY_LENGTH)),
        ),
        optional("task", Schema::Nullable(&STR)),
    ],
);

static FUNCTION_CALL: Model = Model::typed_dict(
    "ChatCompletionMessageFunctionToolCallParam",
    &[
        required("id", STR),
        required(
            "function",
            Schema::Model(&Model::typed_dict(
                "Function",
                &[required("arguments", STR), required("name", STR)],
            )),
        ),
        required("type", literal_schema(&["function"])),
    ],
);

/// Schemas of a tool call, `ChatCompletionMessageToolCallUnionParam`.
pub(super) static TOOL_CALL_SCHEMAS: &[Schema] = &[
    Schema::Model(&FUNCTION_CALL),
    Schema::Model(&Model::typed_dict(
        "ChatCompletionMessageCustomToolCallParam",
        &[
            required("id", STR),
            required(
                "custom",
                Schema::Model(&Model::typed_dict(
                    "Custom",
                    &[required("input", STR), required("name", STR)],
                )),
            ),
            required("type", literal_schema(&["custom"])),
        ],
    )),
];

/// Schema of a tool call: [`TOOL_CALL_SCHEMAS`] as one union.
pub(super) static ANY_TOOL_CALL: Schema = Schema::Union(TOOL_CALL_SCHEMAS);

static FUNCTION_TOOL: Model = Model::typed_dict(
    "ChatCompletionFunctionToolParam",
    &[
        required(
            "function",
            Schema::Model(&Model::typed_dict(
                "FunctionDefinition",
                &[
                    required("name", STR),
                    optional("description", STR),
                    optional("parameters", Schema::Dict(&STR, &Schema::Any)),
                    optional("strict", Schema::Nullable(&Schema::Bool)),
                ],
            )),
        ),
        required("type", literal_schema(&["function"])),
    ],
);

const CACHE_BREAKPOINT: Schema = Schema::Model(&Model::typed_dict(
    "PromptCacheBreakpoint",
    &[
        required("mode", literal_schema(&["explicit"])),
        optional("ttl", literal_schema(&["30m", "12h"])),
    ],
));

static TEXT_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartTextParam",
    &[
        required("text", STR),
        required("type", literal_schema(&["text"])),
        optional("prompt_cache_breakpoint", CACHE_BREAKPOINT),
    ],
);

const NULLABLE_STR: Schema = Schema::Nullable(&STR);

/// Schema of embeddings in a content part, `str | dict[str, str | list[int | float]] | None`.
const EMBEDS_SCHEMA: Schema = Schema::Nullable(&Schema::Union(&[
    STR,
    Schema::Dict(
        &STR,
        &Schema::Union(&[STR, Schema::List(&Schema::Union(&[INT, FLOAT]), ANY_LENGTH)]),
    ),
]));

static IMAGE_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartImageParam",
    &[
        required(
            "image_url",
            Schema::Model(&Model::typed_dict(
                "ImageURL",
                &[
                    required("url", STR),
                    optional("detail", literal_schema(&["auto", "low", "high", "original"])),
                ],
            )),
        ),
        required("type", literal_schema(&["image_url"])),
        optional("prompt_cache_breakpoint", CACHE_BREAKPOINT),
    ],
);

static INPUT_AUDIO_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartInputAudioParam",
    &[
        required(
            "input_audio",
            Schema::Model(&Model::typed_dict(
                "InputAudio",
                &[required("data", STR), required("format", literal_schema(&["wav", "mp3"]))],
            )),
        ),
        required("type", literal_schema(&["input_audio"])),
        optional("prompt_cache_breakpoint", CACHE_BREAKPOINT),
    ],
);

static FILE_PART: Model = Model::typed_dict(
    "File",
    &[
        required(
            "file",
            Schema::Model(&Model::typed_dict(
                "FileFile",
                &[optional("file_data", STR), optional("file_id", STR), optional("filename", STR)],
            )),
        ),
        required("type", literal_schema(&["file"])),
        optional("prompt_cache_breakpoint", CACHE_BREAKPOINT),
    ],
);

static REFUSAL_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartRefusalParam",
    &[required("refusal", STR), required("type", literal_schema(&["refusal"]))],
);

static PROMPT_EMBEDS_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartPromptEmbedsParam",
    &[required("data", STR), required("type", literal_schema(&["prompt_embeds"]))],
);

static AUDIO_URL_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartAudioParam",
    &[
        required(
            "audio_url",
            Schema::Model(&Model::typed_dict("AudioURL", &[required("url", STR)])),
        ),
        required("type", literal_schema(&["audio_url"])),
    ],
);

static VIDEO_URL_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartVideoParam",
    &[
        required(
            "video_url",
            Schema::Model(&Model::typed_dict("VideoURL", &[required("url", STR)])),
        ),
        required("type", literal_schema(&["video_url"])),
    ],
);

/// Returns the schema of a content part whose URL is checked again when it is read.
pub(super) fn url_part_model(kind: &str) -> Option<&'static Model> {
    match kind {
        "image_url" => Some(&IMAGE_PART),
        "audio_url" => Some(&AUDIO_URL_PART),
        "video_url" => Some(&VIDEO_URL_PART),
        _ => None,
    }
}

static IMAGE_EMBEDS_PART: Model = Model::typed_dict(
    "ChatCompletionContentPartImageEmbedsParam",
    &[
        optional("image_embeds", EMBEDS_SCHEMA),
        required("type", literal_schema(&["image_embeds"])),
        optional("uuid", NULLABLE_STR),
    ],
);

/// Schema of multimodal score input, `ScoreMultiModalParam`.
static SCORE_PARTS: Model = Model::typed_dict(
    "ScoreMultiModalParam",
    &[required(
        "content",
        Schema::List(
            &Schema::Union(&[
                Schema::Model(&IMAGE_PART),
                Schema::Model(&IMAGE_EMBEDS_PART),
                Schema::Model(&TEXT_PART),
                Schema::Model(&VIDEO_URL_PART),
            ]),
            ANY_LENGTH,
        ),
    )],
);

/// Schema of one input of a score request (a query or document).
pub(crate) static SCORE_INPUT: &[Schema] = &[STR, Schema::Model(&SCORE_PARTS)];

/// Schema of one or many inputs of a score request (queries or documents).
pub(crate) static SCORE_INPUTS: &[Schema] =
    &[STR, Schema::Model(&SCORE_PARTS), Schema::List(&Schema::Union(SCORE_INPUT), ANY_LENGTH)];

/// Schema of the content parts of a user message.
static USER_PART_SCHEMAS: &[Schema] = &[
    Schema::Model(&TEXT_PART),
    Schema::Model(&IMAGE_PART),
    Schema::Model(&INPUT_AUDIO_PART),
    Schema::Model(&FILE_PART),
];

/// Schema of the content parts of an assistant message.
static ASSISTANT_PART_SCHEMAS: &[Schema] =
    &[Schema::Model(&TEXT_PART), Schema::Model(&REFUSAL_PART)];

/// Schema of a content part, `ChatCompletionContentPartParam`.
static CONTENT_PART_SCHEMAS: &[Schema] = &[
    Schema::Model(&TEXT_PART),
    Schema::Model(&IMAGE_PART),
    Schema::Model(&INPUT_AUDIO_PART),
    Schema::Model(&FILE_PART),
    Schema::Model(&AUDIO_URL_PART),
    Schema::Model(&VIDEO_URL_PART),
    Schema::Model(&REFUSAL_PART),
    Schema::Model(&Model::typed_dict(
        "CustomChatCompletionContentPILImageParam",
        &[
            optional("image_pil", Schema::Nullable(&Schema::Model(&PIL_IMAGE))),
            optional("uuid", NULLABLE_STR),
        ],
    )),
    Schema::Model(&Model::typed_dict(
        "CustomChatCompletionContentSimpleImageParam",
        &[optional("image_url", NULLABLE_STR), optional("uuid", NULLABLE_STR)],
    )),
    Schema::Model(&IMAGE_EMBEDS_PART),
    Schema::Model(&Model::typed_dict(
        "ChatCompletionContentPartAudioEmbedsParam",
        &[
            optional("audio_embeds", EMBEDS_SCHEMA),
            required("type", literal_schema(&["audio_embeds"])),
            optional("uuid", NULLABLE_STR),
        ],
    )),
    Schema::Model(&Model::typed_dict(
        "ChatCompletionContentPartVideoEmbedsParam",
        &[
            optional("video_embeds", EMBEDS_SCHEMA),
            required("type", literal_schema(&["video_embeds"])),
            optional("uuid", NULLABLE_STR),
        ],
    )),
    Schema::Model(&PROMPT_EMBEDS_PART),
    Schema::Model(&Model::typed_dict(
        "CustomChatCompletionContentSimpleAudioParam",
        &[optional("audio_url", NULLABLE_STR)],
    )),
    Schema::Model(&Model::typed_dict(
        "CustomChatCompletionContentSimpleVideoParam",
        &[optional("video_url", NULLABLE_STR), optional("uuid", NULLABLE_STR)],
    )),
    Schema::Model(&Model::typed_dict(
        "CustomChatCompletionContentToolReferenceParam",
        &[optional("name", STR), optional("type", literal_schema(&["tool_reference"]))],
    )),
    STR,
    Schema::Model(&Model::typed_dict(
        "CustomThinkCompletionContentParam",
        &[
            required("thinking", STR),
            optional("closed", Schema::Bool),
            required("type", literal_schema(&["thinking"])),
        ],
    )),
];

/// Schema of a content part with a PIL image, which no JSON value matches.
static PIL_IMAGE: Model = Model::plain("PILImage", &[required("image_pil", Schema::Enum(&[]))]);

/// Schema of a chat message of the class `openai_harmony.Message`.
static HARMONY_MESSAGE: Model = Model::plain(
    "Message",
    &[
        required(
            "author",
            Schema::Model(&Model::plain(
                "Author",
                &[
                    required(
                        "role",
                        Schema::Enum(&["user", "assistant", "system", "developer", "tool"]),
                    ),
                    optional("name", NULLABLE_STR),
                ],
            )),
        ),
        optional(
            "content",
            Schema::List(&Schema::Model(&Model::plain("Content", &[])), ANY_LENGTH),
        ),
        optional("channel", NULLABLE_STR),
        optional("recipient", NULLABLE_STR),
        optional("content_type", NULLABLE_STR),
    ],
);
