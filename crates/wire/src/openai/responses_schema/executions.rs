//! Images, code, shells and patches that ran.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{Any, Bool, Dict, Iterable, Literal, Model, Nullable, Sequence, Union};
use crate::schema::{INT, Model as Class, STR, optional as opt, required as req};

pub(super) static IMAGE_GENERATION: Class = Class::typed_dict(
    "ImageGeneration",
    &[
        req("type", Literal(&["image_generation"])),
        opt("action", Literal(&["generate", "edit", "auto"])),
        opt("background", Literal(&["transparent", "opaque", "auto"])),
        opt("complexity", Literal(&["low", "medium", "high"])),
        opt("frame_count", INT),
        opt("frame_duration_ms", INT),
        opt("input_fidelity", Nullable(&Literal(&["high", "low"]))),
        opt(
            "input_image_mask",
            Model(&IMAGE_GENERATION_INPUT_IMAGE_MASK),
        ),
        opt(
            "model",
            Union(&[
                STR,
                Literal(&[
                    "gpt-image-1",
                    "gpt-image-1-mini",
                    "gpt-image-2",
                    "gpt-image-2-2026-04-21",
                    "gpt-image-2.5-sunburst",
                    "gpt-image-2.5-sunburst-2026-09-08",
                    "gpt-image-2.5-flare",
                    "gpt-image-2.5-flare-2026-09-08",
                    "gpt-image-2.6-sunburst",
                    "gpt-image-2.6-flare",
                    "gpt-image-1.5",
                    "chatgpt-image-latest",
                ]),
            ]),
        ),
        opt("moderation", Literal(&["auto", "low"])),
        opt("output_compression", INT),
        opt(
            "output_format",
            Literal(&["png", "webp", "jpeg", "gif", "svg"]),
        ),
        opt("partial_images", INT),
        opt(
            "quality",
            Literal(&["low", "medium", "high", "xhigh", "max", "auto"]),
        ),
        opt(
            "size",
            Union(&[
                STR,
                Literal(&["1024x1024", "1024x1536", "1536x1024", "auto"]),
            ]),
        ),
        opt("svg", Model(&IMAGE_GENERATION_SVG)),
    ],
);

pub(super) static LOCAL_SHELL: Class =
    Class::typed_dict("LocalShell", &[req("type", Literal(&["local_shell"]))]);

pub(super) static NAMESPACE_TOOL_PARAM: Class = Class::typed_dict(
    "NamespaceToolParam",
    &[
        req("description", STR),
        req("name", STR),
        req(
            "tools",
            Iterable(&Union(&[Model(&TOOL_FUNCTION), Model(&CUSTOM_TOOL_PARAM)])),
        ),
        req("type", Literal(&["namespace"])),
    ],
);

pub(super) static ADDITIONAL_TOOLS: Class = Class::typed_dict(
    "AdditionalTools",
    &[
        req("role", Literal(&["developer"])),
        req(
            "tools",
            Iterable(&Union(&[
                Model(&FUNCTION_TOOL_PARAM),
                Model(&FILE_SEARCH_TOOL_PARAM),
                Model(&COMPUTER_TOOL_PARAM),
                Model(&COMPUTER_USE_PREVIEW_TOOL_PARAM),
                Model(&WEB_SEARCH_TOOL_PARAM),
                Model(&MCP),
                Model(&CODE_INTERPRETER),
                Model(&PROGRAMMATIC_TOOL_CALLING),
                Model(&IMAGE_GENERATION),
                Model(&LOCAL_SHELL),
                Model(&FUNCTION_SHELL_TOOL_PARAM),
                Model(&CUSTOM_TOOL_PARAM),
                Model(&NAMESPACE_TOOL_PARAM),
                Model(&TOOL_SEARCH_TOOL_PARAM),
                Model(&WEB_SEARCH_PREVIEW_TOOL_PARAM),
                Model(&APPLY_PATCH_TOOL_PARAM),
            ])),
        ),
        req("type", Literal(&["additional_tools"])),
        opt("id", Nullable(&STR)),
    ],
);

pub(super) static REASONING: Class = Class::typed_dict(
    "Reasoning",
    &[opt(
        "effort",
        Nullable(&Literal(&[
            "none", "minimal", "low", "medium", "high", "xhigh", "max",
        ])),
    )],
);

pub(super) static RESPONSE_FORMAT_TEXT: Class =
    Class::typed_dict("ResponseFormatText", &[req("type", Literal(&["text"]))]);

pub(super) static RESPONSE_FORMAT_TEXT_JSON_SCHEMA_CONFIG_PARAM: Class = Class::typed_dict(
    "ResponseFormatTextJSONSchemaConfigParam",
    &[
        req("name", STR),
        req("schema", Dict(&STR, &Any)),
        req("type", Literal(&["json_schema"])),
        opt("description", STR),
        opt("strict", Nullable(&Bool)),
    ],
);

pub(super) static TEXT_2: Class = Class::typed_dict(
    "Text",
    &[req(
        "format",
        Union(&[
            Model(&RESPONSE_FORMAT_TEXT),
            Model(&RESPONSE_FORMAT_TEXT_JSON_SCHEMA_CONFIG_PARAM),
        ]),
    )],
);

pub(super) static RESPONSE_CONFIGURATION_UPDATE_ITEM_PARAM_PARAM: Class = Class::typed_dict(
    "ResponseConfigurationUpdateItemParamParam",
    &[
        req("type", Literal(&["configuration_update"])),
        opt("id", Nullable(&STR)),
        opt("reasoning", Model(&REASONING)),
        opt("text", Model(&TEXT_2)),
    ],
);

pub(super) static SUMMARY: Class = Class::typed_dict(
    "Summary",
    &[req("text", STR), req("type", Literal(&["summary_text"]))],
);

pub(super) static CONTENT: Class = Class::typed_dict(
    "Content",
    &[req("text", STR), req("type", Literal(&["reasoning_text"]))],
);

pub(super) static RESPONSE_REASONING_ITEM_PARAM: Class = Class::typed_dict(
    "ResponseReasoningItemParam",
    &[
        req("id", STR),
        req("summary", Iterable(&Model(&SUMMARY))),
        req("type", Literal(&["reasoning"])),
        opt("content", Iterable(&Model(&CONTENT))),
        opt("encrypted_content", Nullable(&STR)),
        opt(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
    ],
);

pub(super) static RESPONSE_COMPACTION_ITEM_PARAM_PARAM: Class = Class::typed_dict(
    "ResponseCompactionItemParamParam",
    &[
        req("encrypted_content", STR),
        req("type", Literal(&["compaction"])),
        opt("id", Nullable(&STR)),
    ],
);

pub(super) static IMAGE_GENERATION_CALL_ERROR_MODERATION_DETAILS: Class = Class::typed_dict(
    "ImageGenerationCallErrorModerationDetails",
    &[
        req("categories", Sequence(&STR)),
        req("moderation_stage", Literal(&["input", "output", "unknown"])),
    ],
);

pub(super) static IMAGE_GENERATION_CALL_ERROR: Class = Class::typed_dict(
    "ImageGenerationCallError",
    &[
        req("code", Nullable(&STR)),
        req("message", STR),
        req("param", Nullable(&STR)),
        req("type", STR),
        opt(
            "moderation_details",
            Model(&IMAGE_GENERATION_CALL_ERROR_MODERATION_DETAILS),
        ),
    ],
);

pub(super) static IMAGE_GENERATION_CALL_SVG_USAGE: Class = Class::typed_dict(
    "ImageGenerationCallSvgUsage",
    &[
        req("input_tokens", INT),
        req("model", STR),
        req("output_tokens", INT),
        req("reasoning_tokens", INT),
        req("total_tokens", INT),
    ],
);

pub(super) static IMAGE_GENERATION_CALL: Class = Class::typed_dict(
    "ImageGenerationCall",
    &[
        req("id", STR),
        req("result", Nullable(&STR)),
        req(
            "status",
            Literal(&["in_progress", "completed", "generating", "failed"]),
        ),
        req("type", Literal(&["image_generation_call"])),
        opt("action", Nullable(&Literal(&["generate", "edit", "auto"]))),
        opt(
            "background",
            Nullable(&Literal(&["transparent", "opaque", "auto"])),
        ),
        opt("error", Model(&IMAGE_GENERATION_CALL_ERROR)),
        opt(
            "output_format",
            Nullable(&Literal(&["png", "webp", "jpeg", "gif", "svg"])),
        ),
        opt(
            "quality",
            Nullable(&Literal(&["low", "medium", "high", "xhigh", "max", "auto"])),
        ),
        opt("revised_prompt", Nullable(&STR)),
        opt(
            "size",
            Nullable(&Union(&[
                STR,
                Literal(&["1024x1024", "1024x1536", "1536x1024"]),
            ])),
        ),
        opt("svg_usage", Model(&IMAGE_GENERATION_CALL_SVG_USAGE)),
    ],
);

pub(super) static OUTPUT_LOGS: Class = Class::typed_dict(
    "OutputLogs",
    &[req("logs", STR), req("type", Literal(&["logs"]))],
);

pub(super) static OUTPUT_IMAGE: Class = Class::typed_dict(
    "OutputImage",
    &[req("type", Literal(&["image"])), req("url", STR)],
);

pub(super) static RESPONSE_CODE_INTERPRETER_TOOL_CALL_PARAM: Class = Class::typed_dict(
    "ResponseCodeInterpreterToolCallParam",
    &[
        req("id", STR),
        req("code", Nullable(&STR)),
        req("container_id", STR),
        req(
            "outputs",
            Nullable(&Iterable(&Union(&[
                Model(&OUTPUT_LOGS),
                Model(&OUTPUT_IMAGE),
            ]))),
        ),
        req(
            "status",
            Literal(&[
                "in_progress",
                "completed",
                "incomplete",
                "interpreting",
                "failed",
            ]),
        ),
        req("type", Literal(&["code_interpreter_call"])),
    ],
);

pub(super) static LOCAL_SHELL_CALL_ACTION: Class = Class::typed_dict(
    "LocalShellCallAction",
    &[
        req("command", Sequence(&STR)),
        req("env", Dict(&STR, &STR)),
        req("type", Literal(&["exec"])),
        opt("timeout_ms", Nullable(&INT)),
        opt("user", Nullable(&STR)),
        opt("working_directory", Nullable(&STR)),
    ],
);

pub(super) static LOCAL_SHELL_CALL: Class = Class::typed_dict(
    "LocalShellCall",
    &[
        req("id", STR),
        req("action", Model(&LOCAL_SHELL_CALL_ACTION)),
        req("call_id", STR),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["local_shell_call"])),
    ],
);

pub(super) static LOCAL_SHELL_CALL_OUTPUT: Class = Class::typed_dict(
    "LocalShellCallOutput",
    &[
        req("id", STR),
        req("output", STR),
        req("type", Literal(&["local_shell_call_output"])),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static SHELL_CALL_ACTION: Class = Class::typed_dict(
    "ShellCallAction",
    &[
        req("commands", Sequence(&STR)),
        opt("max_output_length", Nullable(&INT)),
        opt("timeout_ms", Nullable(&INT)),
    ],
);

pub(super) static SHELL_CALL_CALLER_DIRECT: Class = Class::typed_dict(
    "ShellCallCallerDirect",
    &[req("type", Literal(&["direct"]))],
);

pub(super) static SHELL_CALL_CALLER_PROGRAM: Class = Class::typed_dict(
    "ShellCallCallerProgram",
    &[req("caller_id", STR), req("type", Literal(&["program"]))],
);

pub(super) static SHELL_CALL: Class = Class::typed_dict(
    "ShellCall",
    &[
        req("action", Model(&SHELL_CALL_ACTION)),
        req("call_id", STR),
        req("type", Literal(&["shell_call"])),
        opt("id", Nullable(&STR)),
        opt(
            "caller",
            Nullable(&Union(&[
                Model(&SHELL_CALL_CALLER_DIRECT),
                Model(&SHELL_CALL_CALLER_PROGRAM),
            ])),
        ),
        opt(
            "environment",
            Nullable(&Union(&[
                Model(&LOCAL_ENVIRONMENT_PARAM),
                Model(&CONTAINER_REFERENCE_PARAM),
            ])),
        ),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static OUTCOME_TIMEOUT: Class =
    Class::typed_dict("OutcomeTimeout", &[req("type", Literal(&["timeout"]))]);

pub(super) static OUTCOME_EXIT: Class = Class::typed_dict(
    "OutcomeExit",
    &[req("exit_code", INT), req("type", Literal(&["exit"]))],
);

pub(super) static RESPONSE_FUNCTION_SHELL_CALL_OUTPUT_CONTENT_PARAM: Class = Class::typed_dict(
    "ResponseFunctionShellCallOutputContentParam",
    &[
        req(
            "outcome",
            Union(&[Model(&OUTCOME_TIMEOUT), Model(&OUTCOME_EXIT)]),
        ),
        req("stderr", STR),
        req("stdout", STR),
    ],
);

pub(super) static SHELL_CALL_OUTPUT_CALLER_DIRECT: Class = Class::typed_dict(
    "ShellCallOutputCallerDirect",
    &[req("type", Literal(&["direct"]))],
);

pub(super) static SHELL_CALL_OUTPUT_CALLER_PROGRAM: Class = Class::typed_dict(
    "ShellCallOutputCallerProgram",
    &[req("caller_id", STR), req("type", Literal(&["program"]))],
);

pub(super) static SHELL_CALL_OUTPUT: Class = Class::typed_dict(
    "ShellCallOutput",
    &[
        req("call_id", STR),
        req(
            "output",
            Iterable(&Model(&RESPONSE_FUNCTION_SHELL_CALL_OUTPUT_CONTENT_PARAM)),
        ),
        req("type", Literal(&["shell_call_output"])),
        opt("id", Nullable(&STR)),
        opt(
            "caller",
            Nullable(&Union(&[
                Model(&SHELL_CALL_OUTPUT_CALLER_DIRECT),
                Model(&SHELL_CALL_OUTPUT_CALLER_PROGRAM),
            ])),
        ),
        opt("max_output_length", Nullable(&INT)),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static APPLY_PATCH_CALL_OPERATION_CREATE_FILE: Class = Class::typed_dict(
    "ApplyPatchCallOperationCreateFile",
    &[
        req("diff", STR),
        req("path", STR),
        req("type", Literal(&["create_file"])),
    ],
);

pub(super) static APPLY_PATCH_CALL_OPERATION_DELETE_FILE: Class = Class::typed_dict(
    "ApplyPatchCallOperationDeleteFile",
    &[req("path", STR), req("type", Literal(&["delete_file"]))],
);

pub(super) static APPLY_PATCH_CALL_OPERATION_UPDATE_FILE: Class = Class::typed_dict(
    "ApplyPatchCallOperationUpdateFile",
    &[
        req("diff", STR),
        req("path", STR),
        req("type", Literal(&["update_file"])),
    ],
);

pub(super) static APPLY_PATCH_CALL_CALLER_DIRECT: Class = Class::typed_dict(
    "ApplyPatchCallCallerDirect",
    &[req("type", Literal(&["direct"]))],
);

pub(super) static APPLY_PATCH_CALL_CALLER_PROGRAM: Class = Class::typed_dict(
    "ApplyPatchCallCallerProgram",
    &[req("caller_id", STR), req("type", Literal(&["program"]))],
);
