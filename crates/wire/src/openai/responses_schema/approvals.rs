//! MCP tools and their approval; custom tools.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{Any, Bool, List, Literal, Model, Nullable, Union};
use crate::schema::{ANY_LENGTH, INT, Model as Class, STR, optional as opt, required as req};

pub(super) static HTTP_ERROR_2: Class = Class::plain(
    "HTTPError",
    &[
        req("code", INT),
        req("message", STR),
        req("type", Literal(&["http_error"])),
    ],
);

pub(super) static MCP_CALL_2: Class = Class::plain(
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
                Model(&MCP_PROTOCOL_ERROR_2),
                Model(&MCP_TOOL_EXECUTION_ERROR_2),
                Model(&HTTP_ERROR_2),
            ])),
        ),
        opt("output", Nullable(&STR)),
        opt(
            "status",
            Nullable(&Literal(&[
                "in_progress",
                "completed",
                "incomplete",
                "calling",
                "failed",
            ])),
        ),
    ],
);

pub(super) static MCP_LIST_TOOLS_TOOL_2: Class = Class::plain(
    "McpListToolsTool",
    &[
        req("input_schema", Any),
        req("name", STR),
        opt("annotations", Nullable(&Any)),
        opt("description", Nullable(&STR)),
    ],
);

pub(super) static MCP_LIST_TOOLS_2: Class = Class::plain(
    "McpListTools",
    &[
        req("id", STR),
        req("server_label", STR),
        req("tools", List(&Model(&MCP_LIST_TOOLS_TOOL_2), ANY_LENGTH)),
        req("type", Literal(&["mcp_list_tools"])),
        opt("error", Nullable(&STR)),
    ],
);

pub(super) static MCP_APPROVAL_REQUEST_2: Class = Class::plain(
    "McpApprovalRequest",
    &[
        req("id", STR),
        req("arguments", STR),
        req("name", STR),
        req("server_label", STR),
        req("type", Literal(&["mcp_approval_request"])),
    ],
);

pub(super) static MCP_APPROVAL_RESPONSE_2: Class = Class::plain(
    "McpApprovalResponse",
    &[
        req("id", STR),
        req("approval_request_id", STR),
        req("approve", Bool),
        req("type", Literal(&["mcp_approval_response"])),
        opt("reason", Nullable(&STR)),
    ],
);

pub(super) static RESPONSE_CUSTOM_TOOL_CALL: Class = Class::plain(
    "ResponseCustomToolCall",
    &[
        req("call_id", STR),
        req("input", STR),
        req("name", STR),
        req("type", Literal(&["custom_tool_call"])),
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
    ],
);

pub(super) static RESPONSE_CUSTOM_TOOL_CALL_OUTPUT_ITEM: Class = Class::plain(
    "ResponseCustomToolCallOutputItem",
    &[
        req("call_id", STR),
        req(
            "output",
            Union(&[
                STR,
                List(
                    &Union(&[
                        Model(&RESPONSE_INPUT_TEXT),
                        Model(&RESPONSE_INPUT_IMAGE),
                        Model(&RESPONSE_INPUT_FILE),
                    ]),
                    ANY_LENGTH,
                ),
            ]),
        ),
        req("type", Literal(&["custom_tool_call_output"])),
        req("id", STR),
        opt(
            "caller",
            Nullable(&Nullable(&Union(&[
                Model(&CALLER_DIRECT_2),
                Model(&CALLER_PROGRAM_2),
            ]))),
        ),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        opt("created_by", Nullable(&STR)),
    ],
);
