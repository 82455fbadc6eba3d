//! Patches, MCP and programs.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{Any, Bool, Dict, Iterable, List, Literal, Model, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, Model as Class, STR, optional as opt, required as req,
};

pub(super) static APPLY_PATCH_CALL: Class = Class::typed_dict(
    "ApplyPatchCall",
    &[
        req("call_id", STR),
        req(
            "operation",
            Union(&[
                Model(&APPLY_PATCH_CALL_OPERATION_CREATE_FILE),
                Model(&APPLY_PATCH_CALL_OPERATION_DELETE_FILE),
                Model(&APPLY_PATCH_CALL_OPERATION_UPDATE_FILE),
            ]),
        ),
        req("status", Literal(&["in_progress", "completed"])),
        req("type", Literal(&["apply_patch_call"])),
        opt("id", Nullable(&STR)),
        opt(
            "caller",
            Nullable(&Union(&[
                Model(&APPLY_PATCH_CALL_CALLER_DIRECT),
                Model(&APPLY_PATCH_CALL_CALLER_PROGRAM),
            ])),
        ),
    ],
);

pub(super) static APPLY_PATCH_CALL_OUTPUT_CALLER_DIRECT: Class = Class::typed_dict(
    "ApplyPatchCallOutputCallerDirect",
    &[req("type", Literal(&["direct"]))],
);

pub(super) static APPLY_PATCH_CALL_OUTPUT_CALLER_PROGRAM: Class = Class::typed_dict(
    "ApplyPatchCallOutputCallerProgram",
    &[req("caller_id", STR), req("type", Literal(&["program"]))],
);

pub(super) static APPLY_PATCH_CALL_OUTPUT: Class = Class::typed_dict(
    "ApplyPatchCallOutput",
    &[
        req("call_id", STR),
        req("status", Literal(&["completed", "failed"])),
        req("type", Literal(&["apply_patch_call_output"])),
        opt("id", Nullable(&STR)),
        opt(
            "caller",
            Nullable(&Union(&[
                Model(&APPLY_PATCH_CALL_OUTPUT_CALLER_DIRECT),
                Model(&APPLY_PATCH_CALL_OUTPUT_CALLER_PROGRAM),
            ])),
        ),
        opt("output", Nullable(&STR)),
    ],
);

pub(super) static MCP_LIST_TOOLS_TOOL: Class = Class::typed_dict(
    "McpListToolsTool",
    &[
        req("input_schema", Any),
        req("name", STR),
        opt("annotations", Nullable(&Any)),
        opt("description", Nullable(&STR)),
    ],
);

pub(super) static MCP_LIST_TOOLS: Class = Class::typed_dict(
    "McpListTools",
    &[
        req("id", STR),
        req("server_label", STR),
        req("tools", Iterable(&Model(&MCP_LIST_TOOLS_TOOL))),
        req("type", Literal(&["mcp_list_tools"])),
        opt("error", Nullable(&STR)),
    ],
);

pub(super) static MCP_APPROVAL_REQUEST: Class = Class::typed_dict(
    "McpApprovalRequest",
    &[
        req("id", STR),
        req("arguments", STR),
        req("name", STR),
        req("server_label", STR),
        req("type", Literal(&["mcp_approval_request"])),
    ],
);

pub(super) static MCP_APPROVAL_RESPONSE: Class = Class::typed_dict(
    "McpApprovalResponse",
    &[
        req("approval_request_id", STR),
        req("approve", Bool),
        req("type", Literal(&["mcp_approval_response"])),
        opt("id", Nullable(&STR)),
        opt("reason", Nullable(&STR)),
    ],
);

pub(super) static MCP_PROTOCOL_ERROR: Class = Class::typed_dict(
    "McpProtocolError",
    &[
        req("code", INT),
        req("message", STR),
        req("type", Literal(&["mcp_protocol_error"])),
    ],
);

pub(super) static MCP_TOOL_EXECUTION_ERROR: Class = Class::typed_dict(
    "McpToolExecutionError",
    &[
        req("content", Any),
        req("type", Literal(&["mcp_tool_execution_error"])),
    ],
);

pub(super) static HTTP_ERROR: Class = Class::typed_dict(
    "HTTPError",
    &[
        req("code", INT),
        req("message", STR),
        req("type", Literal(&["http_error"])),
    ],
);

pub(super) static MCP_CALL: Class = Class::typed_dict(
    "McpCall",
    &[
        req("id", STR),
        req("arguments", STR),
        req("name", STR),
        req("server_label", STR),
        req("type", Literal(&["mcp_call"])),
        opt("approval_request_id", Nullable(&STR)),
        opt(
            "error",
            Nullable(&Union(&[
                Model(&MCP_PROTOCOL_ERROR),
                Model(&MCP_TOOL_EXECUTION_ERROR),
                Model(&HTTP_ERROR),
            ])),
        ),
        opt("output", Nullable(&STR)),
        opt(
            "status",
            Literal(&[
                "in_progress",
                "completed",
                "incomplete",
                "calling",
                "failed",
            ]),
        ),
    ],
);

pub(super) static RESPONSE_CUSTOM_TOOL_CALL_OUTPUT_PARAM: Class = Class::typed_dict(
    "ResponseCustomToolCallOutputParam",
    &[
        req("call_id", STR),
        req(
            "output",
            Union(&[
                STR,
                Iterable(&Union(&[
                    Model(&RESPONSE_INPUT_TEXT_PARAM),
                    Model(&RESPONSE_INPUT_IMAGE_PARAM),
                    Model(&RESPONSE_INPUT_FILE_PARAM),
                ])),
            ]),
        ),
        req("type", Literal(&["custom_tool_call_output"])),
        opt("id", STR),
        opt(
            "caller",
            Nullable(&Union(&[Model(&CALLER_DIRECT), Model(&CALLER_PROGRAM)])),
        ),
    ],
);

pub(super) static RESPONSE_CUSTOM_TOOL_CALL_PARAM: Class = Class::typed_dict(
    "ResponseCustomToolCallParam",
    &[
        opt("async", Bool),
        req("call_id", STR),
        req("input", STR),
        req("name", STR),
        req("type", Literal(&["custom_tool_call"])),
        opt("id", STR),
        opt(
            "caller",
            Nullable(&Union(&[Model(&CALLER_DIRECT), Model(&CALLER_PROGRAM)])),
        ),
        opt("namespace", STR),
    ],
);

pub(super) static COMPACTION_TRIGGER: Class = Class::typed_dict(
    "CompactionTrigger",
    &[
        req("type", Literal(&["compaction_trigger"])),
        opt("id", Nullable(&STR)),
    ],
);

pub(super) static ITEM_REFERENCE: Class = Class::typed_dict(
    "ItemReference",
    &[
        req("id", STR),
        opt("type", Nullable(&Literal(&["item_reference"]))),
    ],
);

pub(super) static PROGRAM: Class = Class::typed_dict(
    "Program",
    &[
        req("id", STR),
        req("call_id", STR),
        req("code", STR),
        req("fingerprint", STR),
        req("type", Literal(&["program"])),
    ],
);

pub(super) static PROGRAM_OUTPUT: Class = Class::typed_dict(
    "ProgramOutput",
    &[
        req("id", STR),
        req("call_id", STR),
        req("result", STR),
        req("status", Literal(&["completed", "incomplete"])),
        req("type", Literal(&["program_output"])),
    ],
);

pub(super) static ANNOTATION_FILE_CITATION_2: Class = Class::plain(
    "AnnotationFileCitation",
    &[
        req("file_id", STR),
        req("filename", STR),
        req("index", INT),
        req("type", Literal(&["file_citation"])),
    ],
);

pub(super) static ANNOTATION_URL_CITATION_2: Class = Class::plain(
    "AnnotationURLCitation",
    &[
        req("end_index", INT),
        req("start_index", INT),
        req("title", STR),
        req("type", Literal(&["url_citation"])),
        req("url", STR),
    ],
);

pub(super) static ANNOTATION_CONTAINER_FILE_CITATION_2: Class = Class::plain(
    "AnnotationContainerFileCitation",
    &[
        req("container_id", STR),
        req("end_index", INT),
        req("file_id", STR),
        req("filename", STR),
        req("start_index", INT),
        req("type", Literal(&["container_file_citation"])),
    ],
);

pub(super) static ANNOTATION_FILE_PATH_2: Class = Class::plain(
    "AnnotationFilePath",
    &[
        req("file_id", STR),
        req("index", INT),
        req("type", Literal(&["file_path"])),
    ],
);

pub(super) static LOGPROB_TOP_LOGPROB_2: Class = Class::plain(
    "LogprobTopLogprob",
    &[
        req("token", STR),
        req("bytes", List(&INT, ANY_LENGTH)),
        req("logprob", FLOAT),
    ],
);

pub(super) static LOGPROB_2: Class = Class::plain(
    "Logprob",
    &[
        req("token", STR),
        req("bytes", List(&INT, ANY_LENGTH)),
        req("logprob", FLOAT),
        req(
            "top_logprobs",
            List(&Model(&LOGPROB_TOP_LOGPROB_2), ANY_LENGTH),
        ),
    ],
);

pub(super) static RESPONSE_OUTPUT_TEXT: Class = Class::plain(
    "ResponseOutputText",
    &[
        req(
            "annotations",
            List(
                &Union(&[
                    Model(&ANNOTATION_FILE_CITATION_2),
                    Model(&ANNOTATION_URL_CITATION_2),
                    Model(&ANNOTATION_CONTAINER_FILE_CITATION_2),
                    Model(&ANNOTATION_FILE_PATH_2),
                ]),
                ANY_LENGTH,
            ),
        ),
        req("text", STR),
        req("type", Literal(&["output_text"])),
        opt("logprobs", Nullable(&List(&Model(&LOGPROB_2), ANY_LENGTH))),
    ],
);

pub(super) static RESPONSE_OUTPUT_REFUSAL: Class = Class::plain(
    "ResponseOutputRefusal",
    &[req("refusal", STR), req("type", Literal(&["refusal"]))],
);

pub(super) static RESPONSE_OUTPUT_MESSAGE: Class = Class::plain(
    "ResponseOutputMessage",
    &[
        req("id", STR),
        req(
            "content",
            List(
                &Union(&[
                    Model(&RESPONSE_OUTPUT_TEXT),
                    Model(&RESPONSE_OUTPUT_REFUSAL),
                ]),
                ANY_LENGTH,
            ),
        ),
        req("role", Literal(&["assistant"])),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["message"])),
        opt("phase", Nullable(&Literal(&["commentary", "final_answer"]))),
    ],
);

pub(super) static RESULT_2: Class = Class::plain(
    "Result",
    &[
        opt(
            "attributes",
            Nullable(&Dict(&STR, &Union(&[STR, FLOAT, Bool]))),
        ),
        opt("file_id", Nullable(&STR)),
        opt("filename", Nullable(&STR)),
        opt("score", Nullable(&FLOAT)),
        opt("text", Nullable(&STR)),
    ],
);

pub(super) static RESPONSE_FILE_SEARCH_TOOL_CALL: Class = Class::plain(
    "ResponseFileSearchToolCall",
    &[
        req("id", STR),
        req("queries", List(&STR, ANY_LENGTH)),
        req(
            "status",
            Literal(&[
                "in_progress",
                "searching",
                "completed",
                "incomplete",
                "failed",
            ]),
        ),
        req("type", Literal(&["file_search_call"])),
        opt("results", Nullable(&List(&Model(&RESULT_2), ANY_LENGTH))),
    ],
);

pub(super) static CALLER_DIRECT_2: Class =
    Class::plain("CallerDirect", &[req("type", Literal(&["direct"]))]);

pub(super) static CALLER_PROGRAM_2: Class = Class::plain(
    "CallerProgram",
    &[req("caller_id", STR), req("type", Literal(&["program"]))],
);

pub(super) static RESPONSE_FUNCTION_TOOL_CALL: Class = Class::plain(
    "ResponseFunctionToolCall",
    &[
        req("arguments", STR),
        req("call_id", STR),
        req("name", STR),
        req("type", Literal(&["function_call"])),
        opt("id", Nullable(&STR)),
        opt("async", Nullable(&Bool)),
        opt(
            "caller",
            Nullable(&Nullable(&Union(&[
                Model(&CALLER_DIRECT_2),
                Model(&CALLER_PROGRAM_2),
            ]))),
        ),
        opt("namespace", Nullable(&STR)),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static PROMPT_CACHE_BREAKPOINT_2: Class = Class::plain(
    "PromptCacheBreakpoint",
    &[
        req("mode", Literal(&["explicit"])),
        opt("ttl", Nullable(&Literal(&["30m", "12h"]))),
    ],
);

pub(super) static RESPONSE_INPUT_TEXT: Class = Class::plain(
    "ResponseInputText",
    &[
        req("text", STR),
        req("type", Literal(&["input_text"])),
        opt(
            "prompt_cache_breakpoint",
            Nullable(&Model(&PROMPT_CACHE_BREAKPOINT_2)),
        ),
    ],
);

pub(super) static RESPONSE_INPUT_IMAGE: Class = Class::plain(
    "ResponseInputImage",
    &[
        req("detail", Literal(&["low", "high", "auto", "original"])),
        req("type", Literal(&["input_image"])),
        opt("file_id", Nullable(&STR)),
        opt("image_url", Nullable(&STR)),
        opt(
            "prompt_cache_breakpoint",
            Nullable(&Model(&PROMPT_CACHE_BREAKPOINT_2)),
        ),
    ],
);
