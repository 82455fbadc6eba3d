//! Tools as earlier answers report them.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{Any, Bool, Dict, List, Literal, Model, Nullable, Union};
use crate::schema::{ANY_LENGTH, INT, Model as Class, STR, optional as opt, required as req};

pub(super) static CUSTOM_TOOL: Class = Class::plain(
    "CustomTool",
    &[
        req("name", STR),
        req("type", Literal(&["custom"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt("async", Nullable(&Bool)),
        opt("defer_loading", Nullable(&Bool)),
        opt("description", Nullable(&STR)),
        opt(
            "format",
            Nullable(&Union(&[Model(&TEXT_3), Model(&GRAMMAR_2)])),
        ),
    ],
);

pub(super) static TOOL_FUNCTION_2: Class = Class::plain(
    "ToolFunction",
    &[
        req("name", STR),
        req("type", Literal(&["function"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt("async", Nullable(&Bool)),
        opt("defer_loading", Nullable(&Bool)),
        opt("description", Nullable(&STR)),
        opt("output_schema", Nullable(&Dict(&STR, &Any))),
        opt("parameters", Nullable(&Any)),
        opt("strict", Nullable(&Bool)),
    ],
);

pub(super) static NAMESPACE_TOOL: Class = Class::plain(
    "NamespaceTool",
    &[
        req("description", STR),
        req("name", STR),
        req(
            "tools",
            List(
                &Union(&[Model(&TOOL_FUNCTION_2), Model(&CUSTOM_TOOL)]),
                ANY_LENGTH,
            ),
        ),
        req("type", Literal(&["namespace"])),
    ],
);

pub(super) static TOOL_SEARCH_TOOL: Class = Class::plain(
    "ToolSearchTool",
    &[
        req("type", Literal(&["tool_search"])),
        opt("description", Nullable(&STR)),
        opt("execution", Nullable(&Literal(&["server", "client"]))),
        opt("parameters", Nullable(&Any)),
    ],
);

pub(super) static USER_LOCATION_4: Class = Class::plain(
    "UserLocation",
    &[
        req("type", Literal(&["approximate"])),
        opt("city", Nullable(&STR)),
        opt("country", Nullable(&STR)),
        opt("region", Nullable(&STR)),
        opt("timezone", Nullable(&STR)),
    ],
);

pub(super) static WEB_SEARCH_PREVIEW_TOOL: Class = Class::plain(
    "WebSearchPreviewTool",
    &[
        req(
            "type",
            Literal(&["web_search_preview", "web_search_preview_2025_03_11"]),
        ),
        opt(
            "search_content_types",
            Nullable(&List(&Literal(&["text", "image"]), ANY_LENGTH)),
        ),
        opt(
            "search_context_size",
            Nullable(&Literal(&["low", "medium", "high"])),
        ),
        opt("user_location", Nullable(&Model(&USER_LOCATION_4))),
    ],
);

pub(super) static APPLY_PATCH_TOOL: Class = Class::plain(
    "ApplyPatchTool",
    &[
        req("type", Literal(&["apply_patch"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
    ],
);

pub(super) static RESPONSE_TOOL_SEARCH_OUTPUT_ITEM: Class = Class::plain(
    "ResponseToolSearchOutputItem",
    &[
        req("id", STR),
        opt("call_id", Nullable(&STR)),
        req("execution", Literal(&["server", "client"])),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req(
            "tools",
            List(
                &Union(&[
                    Model(&FUNCTION_TOOL),
                    Model(&FILE_SEARCH_TOOL),
                    Model(&COMPUTER_TOOL),
                    Model(&COMPUTER_USE_PREVIEW_TOOL),
                    Model(&WEB_SEARCH_TOOL),
                    Model(&MCP_2),
                    Model(&CODE_INTERPRETER_2),
                    Model(&PROGRAMMATIC_TOOL_CALLING_2),
                    Model(&IMAGE_GENERATION_2),
                    Model(&LOCAL_SHELL_2),
                    Model(&FUNCTION_SHELL_TOOL),
                    Model(&CUSTOM_TOOL),
                    Model(&NAMESPACE_TOOL),
                    Model(&TOOL_SEARCH_TOOL),
                    Model(&WEB_SEARCH_PREVIEW_TOOL),
                    Model(&APPLY_PATCH_TOOL),
                ]),
                ANY_LENGTH,
            ),
        ),
        req("type", Literal(&["tool_search_output"])),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static ADDITIONAL_TOOLS_2: Class = Class::plain(
    "AdditionalTools",
    &[
        req("id", STR),
        req(
            "role",
            Literal(&[
                "unknown",
                "user",
                "assistant",
                "system",
                "critic",
                "discriminator",
                "developer",
                "tool",
            ]),
        ),
        req(
            "tools",
            List(
                &Union(&[
                    Model(&FUNCTION_TOOL),
                    Model(&FILE_SEARCH_TOOL),
                    Model(&COMPUTER_TOOL),
                    Model(&COMPUTER_USE_PREVIEW_TOOL),
                    Model(&WEB_SEARCH_TOOL),
                    Model(&MCP_2),
                    Model(&CODE_INTERPRETER_2),
                    Model(&PROGRAMMATIC_TOOL_CALLING_2),
                    Model(&IMAGE_GENERATION_2),
                    Model(&LOCAL_SHELL_2),
                    Model(&FUNCTION_SHELL_TOOL),
                    Model(&CUSTOM_TOOL),
                    Model(&NAMESPACE_TOOL),
                    Model(&TOOL_SEARCH_TOOL),
                    Model(&WEB_SEARCH_PREVIEW_TOOL),
                    Model(&APPLY_PATCH_TOOL),
                ]),
                ANY_LENGTH,
            ),
        ),
        req("type", Literal(&["additional_tools"])),
    ],
);

pub(super) static RESPONSE_COMPACTION_ITEM: Class = Class::plain(
    "ResponseCompactionItem",
    &[
        req("id", STR),
        req("encrypted_content", STR),
        req("type", Literal(&["compaction"])),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static IMAGE_GENERATION_CALL_ERROR_MODERATION_DETAILS_2: Class = Class::plain(
    "ImageGenerationCallErrorModerationDetails",
    &[
        req("categories", List(&STR, ANY_LENGTH)),
        req("moderation_stage", Literal(&["input", "output", "unknown"])),
    ],
);

pub(super) static IMAGE_GENERATION_CALL_ERROR_2: Class = Class::plain(
    "ImageGenerationCallError",
    &[
        opt("code", Nullable(&STR)),
        req("message", STR),
        opt("param", Nullable(&STR)),
        req("type", STR),
        opt(
            "moderation_details",
            Nullable(&Model(&IMAGE_GENERATION_CALL_ERROR_MODERATION_DETAILS_2)),
        ),
    ],
);

pub(super) static IMAGE_GENERATION_CALL_SVG_USAGE_2: Class = Class::plain(
    "ImageGenerationCallSvgUsage",
    &[
        req("input_tokens", INT),
        req("model", STR),
        req("output_tokens", INT),
        req("reasoning_tokens", INT),
        req("total_tokens", INT),
    ],
);

pub(super) static IMAGE_GENERATION_CALL_2: Class = Class::plain(
    "ImageGenerationCall",
    &[
        req("id", STR),
        opt("result", Nullable(&STR)),
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
        opt("error", Nullable(&Model(&IMAGE_GENERATION_CALL_ERROR_2))),
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
        opt(
            "svg_usage",
            Nullable(&Model(&IMAGE_GENERATION_CALL_SVG_USAGE_2)),
        ),
    ],
);

pub(super) static OUTPUT_LOGS_2: Class = Class::plain(
    "OutputLogs",
    &[req("logs", STR), req("type", Literal(&["logs"]))],
);

pub(super) static OUTPUT_IMAGE_2: Class = Class::plain(
    "OutputImage",
    &[req("type", Literal(&["image"])), req("url", STR)],
);

pub(super) static RESPONSE_CODE_INTERPRETER_TOOL_CALL: Class = Class::plain(
    "ResponseCodeInterpreterToolCall",
    &[
        req("id", STR),
        opt("code", Nullable(&STR)),
        req("container_id", STR),
        opt(
            "outputs",
            Nullable(&List(
                &Union(&[Model(&OUTPUT_LOGS_2), Model(&OUTPUT_IMAGE_2)]),
                ANY_LENGTH,
            )),
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

pub(super) static LOCAL_SHELL_CALL_ACTION_2: Class = Class::plain(
    "LocalShellCallAction",
    &[
        req("command", List(&STR, ANY_LENGTH)),
        req("env", Dict(&STR, &STR)),
        req("type", Literal(&["exec"])),
        opt("timeout_ms", Nullable(&INT)),
        opt("user", Nullable(&STR)),
        opt("working_directory", Nullable(&STR)),
    ],
);

pub(super) static LOCAL_SHELL_CALL_2: Class = Class::plain(
    "LocalShellCall",
    &[
        req("id", STR),
        req("action", Model(&LOCAL_SHELL_CALL_ACTION_2)),
        req("call_id", STR),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["local_shell_call"])),
    ],
);

pub(super) static LOCAL_SHELL_CALL_OUTPUT_2: Class = Class::plain(
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

pub(super) static ACTION: Class = Class::plain(
    "Action",
    &[
        req("commands", List(&STR, ANY_LENGTH)),
        opt("max_output_length", Nullable(&INT)),
        opt("timeout_ms", Nullable(&INT)),
    ],
);

pub(super) static RESPONSE_LOCAL_ENVIRONMENT: Class = Class::plain(
    "ResponseLocalEnvironment",
    &[req("type", Literal(&["local"]))],
);

pub(super) static RESPONSE_CONTAINER_REFERENCE: Class = Class::plain(
    "ResponseContainerReference",
    &[
        req("container_id", STR),
        req("type", Literal(&["container_reference"])),
    ],
);

pub(super) static RESPONSE_FUNCTION_SHELL_TOOL_CALL: Class = Class::plain(
    "ResponseFunctionShellToolCall",
    &[
        req("id", STR),
        req("action", Model(&ACTION)),
        req("call_id", STR),
        opt(
            "environment",
            Nullable(&Nullable(&Union(&[
                Model(&RESPONSE_LOCAL_ENVIRONMENT),
                Model(&RESPONSE_CONTAINER_REFERENCE),
            ]))),
        ),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["shell_call"])),
        opt(
            "caller",
            Nullable(&Nullable(&Union(&[
                Model(&CALLER_DIRECT_2),
                Model(&CALLER_PROGRAM_2),
            ]))),
        ),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static OUTPUT_OUTCOME_TIMEOUT: Class = Class::plain(
    "OutputOutcomeTimeout",
    &[req("type", Literal(&["timeout"]))],
);

pub(super) static OUTPUT_OUTCOME_EXIT: Class = Class::plain(
    "OutputOutcomeExit",
    &[req("exit_code", INT), req("type", Literal(&["exit"]))],
);

pub(super) static OUTPUT: Class = Class::plain(
    "Output",
    &[
        req(
            "outcome",
            Union(&[Model(&OUTPUT_OUTCOME_TIMEOUT), Model(&OUTPUT_OUTCOME_EXIT)]),
        ),
        req("stderr", STR),
        req("stdout", STR),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static RESPONSE_FUNCTION_SHELL_TOOL_CALL_OUTPUT: Class = Class::plain(
    "ResponseFunctionShellToolCallOutput",
    &[
        req("id", STR),
        req("call_id", STR),
        opt("max_output_length", Nullable(&INT)),
        req("output", List(&Model(&OUTPUT), ANY_LENGTH)),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["shell_call_output"])),
        opt(
            "caller",
            Nullable(&Nullable(&Union(&[
                Model(&CALLER_DIRECT_2),
                Model(&CALLER_PROGRAM_2),
            ]))),
        ),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static OPERATION_CREATE_FILE: Class = Class::plain(
    "OperationCreateFile",
    &[
        req("diff", STR),
        req("path", STR),
        req("type", Literal(&["create_file"])),
    ],
);

pub(super) static OPERATION_DELETE_FILE: Class = Class::plain(
    "OperationDeleteFile",
    &[req("path", STR), req("type", Literal(&["delete_file"]))],
);

pub(super) static OPERATION_UPDATE_FILE: Class = Class::plain(
    "OperationUpdateFile",
    &[
        req("diff", STR),
        req("path", STR),
        req("type", Literal(&["update_file"])),
    ],
);

pub(super) static RESPONSE_APPLY_PATCH_TOOL_CALL: Class = Class::plain(
    "ResponseApplyPatchToolCall",
    &[
        req("id", STR),
        req("call_id", STR),
        req(
            "operation",
            Union(&[
                Model(&OPERATION_CREATE_FILE),
                Model(&OPERATION_DELETE_FILE),
                Model(&OPERATION_UPDATE_FILE),
            ]),
        ),
        req("status", Literal(&["in_progress", "completed"])),
        req("type", Literal(&["apply_patch_call"])),
        opt(
            "caller",
            Nullable(&Nullable(&Union(&[
                Model(&CALLER_DIRECT_2),
                Model(&CALLER_PROGRAM_2),
            ]))),
        ),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static RESPONSE_APPLY_PATCH_TOOL_CALL_OUTPUT: Class = Class::plain(
    "ResponseApplyPatchToolCallOutput",
    &[
        req("id", STR),
        req("call_id", STR),
        req("status", Literal(&["completed", "failed"])),
        req("type", Literal(&["apply_patch_call_output"])),
        opt(
            "caller",
            Nullable(&Nullable(&Union(&[
                Model(&CALLER_DIRECT_2),
                Model(&CALLER_PROGRAM_2),
            ]))),
        ),
        opt("created_by", Nullable(&STR)),
        opt("output", Nullable(&STR)),
    ],
);

pub(super) static MCP_PROTOCOL_ERROR_2: Class = Class::plain(
    "McpProtocolError",
    &[
        req("code", INT),
        req("message", STR),
        req("type", Literal(&["mcp_protocol_error"])),
    ],
);

pub(super) static MCP_TOOL_EXECUTION_ERROR_2: Class = Class::plain(
    "McpToolExecutionError",
    &[
        req("content", Any),
        req("type", Literal(&["mcp_tool_execution_error"])),
    ],
);
