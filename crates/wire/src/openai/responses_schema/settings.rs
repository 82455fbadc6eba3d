//! Tool choice, reasoning, text format and earlier input.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{Any, Bool, Dict, Enum, List, Literal, Model, Nullable, Union};
use crate::schema::{ANY_LENGTH, Model as Class, STR, optional as opt, required as req};

pub(super) static TOOL_CHOICE_ALLOWED: Class = Class::plain(
    "ToolChoiceAllowed",
    &[
        req("mode", Literal(&["auto", "required"])),
        req("tools", List(&Dict(&STR, &Any), ANY_LENGTH)),
        req("type", Literal(&["allowed_tools"])),
    ],
);

pub(super) static TOOL_CHOICE_TYPES: Class = Class::plain(
    "ToolChoiceTypes",
    &[req(
        "type",
        Literal(&[
            "file_search",
            "web_search_preview",
            "computer",
            "computer_use_preview",
            "computer_use",
            "web_search_preview_2025_03_11",
            "image_generation",
            "code_interpreter",
        ]),
    )],
);

pub(super) static TOOL_CHOICE_FUNCTION: Class = Class::plain(
    "ToolChoiceFunction",
    &[req("name", STR), req("type", Literal(&["function"]))],
);

pub(super) static TOOL_CHOICE_MCP: Class = Class::plain(
    "ToolChoiceMcp",
    &[
        req("server_label", STR),
        req("type", Literal(&["mcp"])),
        opt("name", Nullable(&STR)),
    ],
);

pub(super) static TOOL_CHOICE_CUSTOM: Class = Class::plain(
    "ToolChoiceCustom",
    &[req("name", STR), req("type", Literal(&["custom"]))],
);

pub(super) static TOOL_CHOICE_SPECIFIC_PROGRAMMATIC_TOOL_CALLING_PARAM: Class = Class::plain(
    "ToolChoiceSpecificProgrammaticToolCallingParam",
    &[req("type", Literal(&["programmatic_tool_calling"]))],
);

pub(super) static TOOL_CHOICE_APPLY_PATCH: Class = Class::plain(
    "ToolChoiceApplyPatch",
    &[req("type", Literal(&["apply_patch"]))],
);

pub(super) static TOOL_CHOICE_SHELL: Class =
    Class::plain("ToolChoiceShell", &[req("type", Literal(&["shell"]))]);

pub(super) static RESPONSE_PROMPT: Class = Class::plain(
    "ResponsePrompt",
    &[
        req("id", STR),
        opt(
            "variables",
            Nullable(&Dict(
                &STR,
                &Union(&[
                    STR,
                    Model(&RESPONSE_INPUT_TEXT),
                    Model(&RESPONSE_INPUT_IMAGE),
                    Model(&RESPONSE_INPUT_FILE),
                ]),
            )),
        ),
        opt("version", Nullable(&STR)),
    ],
);

pub(super) static REASONING_2: Class = Class::plain(
    "Reasoning",
    &[
        opt(
            "context",
            Nullable(&Literal(&["auto", "current_turn", "all_turns"])),
        ),
        opt(
            "effort",
            Nullable(&Literal(&[
                "none", "minimal", "low", "medium", "high", "xhigh", "max",
            ])),
        ),
        opt(
            "generate_summary",
            Nullable(&Literal(&["auto", "concise", "detailed"])),
        ),
        opt(
            "mode",
            Nullable(&Union(&[STR, Literal(&["standard", "pro"])])),
        ),
        opt(
            "summary",
            Nullable(&Literal(&["auto", "concise", "detailed"])),
        ),
    ],
);

pub(super) static RESPONSE_FORMAT_TEXT_2: Class =
    Class::plain("ResponseFormatText", &[req("type", Literal(&["text"]))]);

pub(super) static RESPONSE_FORMAT_TEXT_JSON_SCHEMA_CONFIG: Class = Class::plain(
    "ResponseFormatTextJSONSchemaConfig",
    &[
        req("name", STR),
        req("schema", Dict(&STR, &Any)),
        req("type", Literal(&["json_schema"])),
        opt("description", Nullable(&STR)),
        opt("strict", Nullable(&Bool)),
    ],
);

pub(super) static RESPONSE_FORMAT_JSON_OBJECT: Class = Class::plain(
    "ResponseFormatJSONObject",
    &[req("type", Literal(&["json_object"]))],
);

pub(super) static RESPONSE_TEXT_CONFIG: Class = Class::plain(
    "ResponseTextConfig",
    &[
        opt(
            "format",
            Nullable(&Union(&[
                Model(&RESPONSE_FORMAT_TEXT_2),
                Model(&RESPONSE_FORMAT_TEXT_JSON_SCHEMA_CONFIG),
                Model(&RESPONSE_FORMAT_JSON_OBJECT),
            ])),
        ),
        opt("verbosity", Nullable(&Literal(&["low", "medium", "high"]))),
    ],
);

pub(super) static AUTHOR: Class = Class::plain(
    "Author",
    &[
        req(
            "role",
            Enum(&["user", "assistant", "system", "developer", "tool"]),
        ),
        opt("name", Nullable(&STR)),
    ],
);

pub(super) static CONTENT_3: Class = Class::plain("Content", &[]);

pub(super) static MESSAGE_2: Class = Class::plain(
    "Message",
    &[
        req("author", Model(&AUTHOR)),
        opt("content", List(&Model(&CONTENT_3), ANY_LENGTH)),
        opt("channel", Nullable(&STR)),
        opt("recipient", Nullable(&STR)),
        opt("content_type", Nullable(&STR)),
    ],
);
