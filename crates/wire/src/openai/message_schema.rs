//! The union of Python classes against which vLLM validates a chat message.
//!
//! Source: `vllm/renderers/chat_utils/types.py` (`ChatCompletionMessageParam`), the `*Param`
//! classes of the openai SDK, `openai_harmony.Message`.

use crate::schema::Schema::{
    self, Any, Bool, Dict, Enum, Iterable, List, Literal, Nullable, Union,
};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, STR, optional_field as opt, plain_model, required_field as req,
    typed_dict,
};

/// Schema of a chat message, vLLM's `ChatCompletionMessageParam`.
pub(super) static MESSAGE_SCHEMAS: &[Schema] = &[
    typed_dict!(
        "ChatCompletionDeveloperMessageParam",
        req("content", Union(TEXT_OR_PARTS)),
        req("role", Literal(&["developer"])),
        opt("name", STR)
    ),
    typed_dict!(
        "ChatCompletionSystemMessageParam",
        req("content", Union(TEXT_OR_PARTS)),
        req("role", Literal(&["system"])),
        opt("name", STR)
    ),
    typed_dict!(
        "ChatCompletionUserMessageParam",
        req("content", Union(TEXT_OR_PARTS)),
        req("role", Literal(&["user"])),
        opt("name", STR)
    ),
    ASSISTANT,
    typed_dict!(
        "ChatCompletionToolMessageParam",
        req("content", Union(TEXT_OR_PARTS)),
        req("role", Literal(&["tool"])),
        req("tool_call_id", STR)
    ),
    typed_dict!(
        "ChatCompletionFunctionMessageParam",
        req("content", Nullable(&STR)),
        req("name", STR),
        req("role", Literal(&["function"]))
    ),
    CUSTOM,
    HARMONY_MESSAGE,
];

/// Index of the class of assistant messages in [`MESSAGE_SCHEMAS`].
pub(super) const ASSISTANT_BRANCH_INDEX: usize = 3;

/// Returns the schema of the content parts for the message class with index `branch` in
/// [`MESSAGE_SCHEMAS`]; `None` if the parts are already checked.
pub(super) fn unchecked_part_schema(branch: usize) -> Option<&'static Schema> {
    static TEXT: Schema = TEXT_PART;
    static USER: Schema = Union(USER_PART_SCHEMAS);
    static ASSISTANT: Schema = Union(ASSISTANT_PART_SCHEMAS);
    match branch {
        0 | 1 | 4 => Some(&TEXT),
        2 => Some(&USER),
        ASSISTANT_BRANCH_INDEX => Some(&ASSISTANT),
        _ => None,
    }
}

/// Schema of message content, `str | Iterable[…]`; parts are checked when the template reads them.
const TEXT_OR_PARTS: &[Schema] = &[STR, Iterable(&Any)];

const ASSISTANT: Schema = typed_dict!(
    "ChatCompletionAssistantMessageParam",
    req("role", Literal(&["assistant"])),
    opt("audio", Nullable(&typed_dict!("Audio", req("id", STR)))),
    opt("content", Nullable(&Union(TEXT_OR_PARTS))),
    opt(
        "function_call",
        Nullable(&typed_dict!("FunctionCall", req("arguments", STR), req("name", STR))),
    ),
    opt("name", STR),
    opt("refusal", Nullable(&STR)),
    opt("tool_calls", Iterable(&Union(TOOL_CALL_SCHEMAS)))
);

const CUSTOM: Schema = typed_dict!(
    "CustomChatCompletionMessageParam",
    req("role", STR),
    opt("content", Union(&[STR, List(&Union(CONTENT_PART_SCHEMAS), ANY_LENGTH)])),
    opt("name", STR),
    opt("tool_call_id", Nullable(&STR)),
    opt("tool_calls", Nullable(&List(&FUNCTION_CALL, ANY_LENGTH))),
    opt("reasoning", Nullable(&Union(&[STR, PROMPT_EMBEDS_PART]))),
    opt("tools", Nullable(&List(&FUNCTION_TOOL, ANY_LENGTH))),
    opt("task", Nullable(&STR))
);

const FUNCTION_CALL: Schema = typed_dict!(
    "ChatCompletionMessageFunctionToolCallParam",
    req("id", STR),
    req("function", typed_dict!("Function", req("arguments", STR), req("name", STR))),
    req("type", Literal(&["function"]))
);

/// Schemas of a tool call, `ChatCompletionMessageToolCallUnionParam`.
pub(super) const TOOL_CALL_SCHEMAS: &[Schema] = &[
    FUNCTION_CALL,
    typed_dict!(
        "ChatCompletionMessageCustomToolCallParam",
        req("id", STR),
        req("custom", typed_dict!("Custom", req("input", STR), req("name", STR))),
        req("type", Literal(&["custom"]))
    ),
];

/// Schema of a tool call: [`TOOL_CALL_SCHEMAS`] as one union.
pub(super) static TOOL_CALL_SCHEMA: Schema = Union(TOOL_CALL_SCHEMAS);

const FUNCTION_TOOL: Schema = typed_dict!(
    "ChatCompletionFunctionToolParam",
    req(
        "function",
        typed_dict!(
            "FunctionDefinition",
            req("name", STR),
            opt("description", STR),
            opt("parameters", Dict(&STR, &Any)),
            opt("strict", Nullable(&Bool))
        ),
    ),
    req("type", Literal(&["function"]))
);

const CACHE_BREAKPOINT: Schema = typed_dict!(
    "PromptCacheBreakpoint",
    req("mode", Literal(&["explicit"])),
    opt("ttl", Literal(&["30m", "12h"]))
);

const TEXT_PART: Schema = typed_dict!(
    "ChatCompletionContentPartTextParam",
    req("text", STR),
    req("type", Literal(&["text"])),
    opt("prompt_cache_breakpoint", CACHE_BREAKPOINT)
);

const NULLABLE_STR: Schema = Nullable(&STR);

/// Schema of embeddings in a content part, `str | dict[str, str | list[int | float]] | None`.
const EMBEDS_SCHEMA: Schema =
    Nullable(&Union(&[STR, Dict(&STR, &Union(&[STR, List(&Union(&[INT, FLOAT]), ANY_LENGTH)]))]));

const IMAGE_PART: Schema = typed_dict!(
    "ChatCompletionContentPartImageParam",
    req(
        "image_url",
        typed_dict!(
            "ImageURL",
            req("url", STR),
            opt("detail", Literal(&["auto", "low", "high", "original"]))
        ),
    ),
    req("type", Literal(&["image_url"])),
    opt("prompt_cache_breakpoint", CACHE_BREAKPOINT)
);

const INPUT_AUDIO_PART: Schema = typed_dict!(
    "ChatCompletionContentPartInputAudioParam",
    req(
        "input_audio",
        typed_dict!("InputAudio", req("data", STR), req("format", Literal(&["wav", "mp3"]))),
    ),
    req("type", Literal(&["input_audio"])),
    opt("prompt_cache_breakpoint", CACHE_BREAKPOINT)
);

const FILE_PART: Schema = typed_dict!(
    "File",
    req(
        "file",
        typed_dict!("FileFile", opt("file_data", STR), opt("file_id", STR), opt("filename", STR)),
    ),
    req("type", Literal(&["file"])),
    opt("prompt_cache_breakpoint", CACHE_BREAKPOINT)
);

const REFUSAL_PART: Schema = typed_dict!(
    "ChatCompletionContentPartRefusalParam",
    req("refusal", STR),
    req("type", Literal(&["refusal"]))
);

const PROMPT_EMBEDS_PART: Schema = typed_dict!(
    "ChatCompletionContentPartPromptEmbedsParam",
    req("data", STR),
    req("type", Literal(&["prompt_embeds"]))
);

const AUDIO_URL_PART: Schema = typed_dict!(
    "ChatCompletionContentPartAudioParam",
    req("audio_url", typed_dict!("AudioURL", req("url", STR))),
    req("type", Literal(&["audio_url"]))
);

const VIDEO_URL_PART: Schema = typed_dict!(
    "ChatCompletionContentPartVideoParam",
    req("video_url", typed_dict!("VideoURL", req("url", STR))),
    req("type", Literal(&["video_url"]))
);

/// Returns the schema of a content part whose URL is checked again when it is read.
pub(super) fn url_content_part_schema(kind: &str) -> Option<&'static Schema> {
    match kind {
        "image_url" => Some(&IMAGE_PART),
        "audio_url" => Some(&AUDIO_URL_PART),
        "video_url" => Some(&VIDEO_URL_PART),
        _ => None,
    }
}

const IMAGE_EMBEDS_PART: Schema = typed_dict!(
    "ChatCompletionContentPartImageEmbedsParam",
    opt("image_embeds", EMBEDS_SCHEMA),
    req("type", Literal(&["image_embeds"])),
    opt("uuid", NULLABLE_STR)
);

/// Schema of multimodal score input, `ScoreMultiModalParam`.
const SCORE_PARTS: Schema = typed_dict!(
    "ScoreMultiModalParam",
    req(
        "content",
        List(&Union(&[IMAGE_PART, IMAGE_EMBEDS_PART, TEXT_PART, VIDEO_URL_PART]), ANY_LENGTH),
    )
);

/// Schema of one input of a score request (a query or document).
pub(crate) static SCORE_INPUT_SCHEMA: &[Schema] = &[STR, SCORE_PARTS];

/// Schema of one or many inputs of a score request (queries or documents).
pub(crate) static SCORE_INPUTS_SCHEMA: &[Schema] =
    &[STR, SCORE_PARTS, List(&Union(SCORE_INPUT_SCHEMA), ANY_LENGTH)];

/// Schema of the content parts of a user message.
static USER_PART_SCHEMAS: &[Schema] = &[TEXT_PART, IMAGE_PART, INPUT_AUDIO_PART, FILE_PART];

/// Schema of the content parts of an assistant message.
static ASSISTANT_PART_SCHEMAS: &[Schema] = &[TEXT_PART, REFUSAL_PART];

/// Schema of a content part, `ChatCompletionContentPartParam`.
const CONTENT_PART_SCHEMAS: &[Schema] = &[
    TEXT_PART,
    IMAGE_PART,
    INPUT_AUDIO_PART,
    FILE_PART,
    AUDIO_URL_PART,
    VIDEO_URL_PART,
    REFUSAL_PART,
    typed_dict!(
        "CustomChatCompletionContentPILImageParam",
        opt("image_pil", Nullable(&PIL_IMAGE)),
        opt("uuid", NULLABLE_STR)
    ),
    typed_dict!(
        "CustomChatCompletionContentSimpleImageParam",
        opt("image_url", NULLABLE_STR),
        opt("uuid", NULLABLE_STR)
    ),
    IMAGE_EMBEDS_PART,
    typed_dict!(
        "ChatCompletionContentPartAudioEmbedsParam",
        opt("audio_embeds", EMBEDS_SCHEMA),
        req("type", Literal(&["audio_embeds"])),
        opt("uuid", NULLABLE_STR)
    ),
    typed_dict!(
        "ChatCompletionContentPartVideoEmbedsParam",
        opt("video_embeds", EMBEDS_SCHEMA),
        req("type", Literal(&["video_embeds"])),
        opt("uuid", NULLABLE_STR)
    ),
    PROMPT_EMBEDS_PART,
    typed_dict!("CustomChatCompletionContentSimpleAudioParam", opt("audio_url", NULLABLE_STR)),
    typed_dict!(
        "CustomChatCompletionContentSimpleVideoParam",
        opt("video_url", NULLABLE_STR),
        opt("uuid", NULLABLE_STR)
    ),
    typed_dict!(
        "CustomChatCompletionContentToolReferenceParam",
        opt("name", STR),
        opt("type", Literal(&["tool_reference"]))
    ),
    STR,
    typed_dict!(
        "CustomThinkCompletionContentParam",
        req("thinking", STR),
        opt("closed", Bool),
        req("type", Literal(&["thinking"]))
    ),
];

/// Schema of a content part with a PIL image, which no JSON value matches.
const PIL_IMAGE: Schema = plain_model!("PILImage", req("image_pil", Enum(&[])));

/// Schema of a chat message of the class `openai_harmony.Message`.
const HARMONY_MESSAGE: Schema = plain_model!(
    "Message",
    req(
        "author",
        plain_model!(
            "Author",
            req("role", Enum(&["user", "assistant", "system", "developer", "tool"])),
            opt("name", NULLABLE_STR)
        ),
    ),
    opt("content", List(&plain_model!("Content"), ANY_LENGTH)),
    opt("channel", NULLABLE_STR),
    opt("recipient", NULLABLE_STR),
    opt("content_type", NULLABLE_STR)
);
