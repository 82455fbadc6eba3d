//! Computer, web and tool searches, and the tools they name.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{
    Any, Bool, Dict, Iterable, List, Literal, Model, Nullable, Sequence, Union,
};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, Model as Class, STR, optional as opt, required as req,
};

pub(super) static RESPONSE_COMPUTER_TOOL_CALL_PARAM: Class = Class::typed_dict(
    "ResponseComputerToolCallParam",
    &[
        req("id", STR),
        req("call_id", STR),
        req(
            "pending_safety_checks",
            Iterable(&Model(&PENDING_SAFETY_CHECK)),
        ),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["computer_call"])),
        opt(
            "action",
            Union(&[
                Model(&ACTION_CLICK),
                Model(&ACTION_DOUBLE_CLICK),
                Model(&ACTION_DRAG),
                Model(&ACTION_KEYPRESS),
                Model(&ACTION_MOVE),
                Model(&ACTION_SCREENSHOT),
                Model(&ACTION_SCROLL),
                Model(&ACTION_TYPE),
                Model(&ACTION_WAIT),
            ]),
        ),
        opt(
            "actions",
            List(
                &Union(&[
                    Model(&CLICK),
                    Model(&DOUBLE_CLICK),
                    Model(&DRAG),
                    Model(&KEYPRESS),
                    Model(&MOVE),
                    Model(&SCREENSHOT),
                    Model(&SCROLL),
                    Model(&TYPE),
                    Model(&WAIT),
                ]),
                ANY_LENGTH,
            ),
        ),
    ],
);

pub(super) static RESPONSE_COMPUTER_TOOL_CALL_OUTPUT_SCREENSHOT_PARAM: Class = Class::typed_dict(
    "ResponseComputerToolCallOutputScreenshotParam",
    &[
        req("type", Literal(&["computer_screenshot"])),
        opt("file_id", STR),
        opt("image_url", STR),
    ],
);

pub(super) static COMPUTER_CALL_OUTPUT_ACKNOWLEDGED_SAFETY_CHECK: Class = Class::typed_dict(
    "ComputerCallOutputAcknowledgedSafetyCheck",
    &[
        req("id", STR),
        opt("code", Nullable(&STR)),
        opt("message", Nullable(&STR)),
    ],
);

pub(super) static COMPUTER_CALL_OUTPUT: Class = Class::typed_dict(
    "ComputerCallOutput",
    &[
        req("call_id", STR),
        req(
            "output",
            Model(&RESPONSE_COMPUTER_TOOL_CALL_OUTPUT_SCREENSHOT_PARAM),
        ),
        req("type", Literal(&["computer_call_output"])),
        opt("id", Nullable(&STR)),
        opt(
            "acknowledged_safety_checks",
            Nullable(&Iterable(&Model(
                &COMPUTER_CALL_OUTPUT_ACKNOWLEDGED_SAFETY_CHECK,
            ))),
        ),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static ACTION_SEARCH_SOURCE: Class = Class::typed_dict(
    "ActionSearchSource",
    &[req("type", Literal(&["url"])), req("url", STR)],
);

pub(super) static ACTION_SEARCH: Class = Class::typed_dict(
    "ActionSearch",
    &[
        req("type", Literal(&["search"])),
        opt("queries", Sequence(&STR)),
        opt("query", STR),
        opt("sources", Iterable(&Model(&ACTION_SEARCH_SOURCE))),
    ],
);

pub(super) static ACTION_OPEN_PAGE: Class = Class::typed_dict(
    "ActionOpenPage",
    &[
        req("type", Literal(&["open_page"])),
        opt("url", Nullable(&STR)),
    ],
);

pub(super) static ACTION_FIND: Class = Class::typed_dict(
    "ActionFind",
    &[
        req("pattern", STR),
        req("type", Literal(&["find_in_page"])),
        req("url", STR),
    ],
);

pub(super) static RESPONSE_FUNCTION_WEB_SEARCH_PARAM: Class = Class::typed_dict(
    "ResponseFunctionWebSearchParam",
    &[
        req("id", STR),
        req(
            "action",
            Union(&[
                Model(&ACTION_SEARCH),
                Model(&ACTION_OPEN_PAGE),
                Model(&ACTION_FIND),
            ]),
        ),
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
        req("type", Literal(&["web_search_call"])),
    ],
);

pub(super) static CALLER_DIRECT: Class =
    Class::typed_dict("CallerDirect", &[req("type", Literal(&["direct"]))]);

pub(super) static CALLER_PROGRAM: Class = Class::typed_dict(
    "CallerProgram",
    &[req("caller_id", STR), req("type", Literal(&["program"]))],
);

pub(super) static RESPONSE_FUNCTION_TOOL_CALL_PARAM: Class = Class::typed_dict(
    "ResponseFunctionToolCallParam",
    &[
        opt("async", Bool),
        req("arguments", STR),
        req("call_id", STR),
        req("name", STR),
        req("type", Literal(&["function_call"])),
        opt("id", STR),
        opt(
            "caller",
            Nullable(&Union(&[Model(&CALLER_DIRECT), Model(&CALLER_PROGRAM)])),
        ),
        opt("namespace", STR),
        opt(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
    ],
);

pub(super) static RESPONSE_INPUT_TEXT_CONTENT_PARAM: Class = Class::typed_dict(
    "ResponseInputTextContentParam",
    &[
        req("text", STR),
        req("type", Literal(&["input_text"])),
        opt(
            "prompt_cache_breakpoint",
            Nullable(&Model(&PROMPT_CACHE_BREAKPOINT)),
        ),
    ],
);

pub(super) static RESPONSE_INPUT_IMAGE_CONTENT_PARAM: Class = Class::typed_dict(
    "ResponseInputImageContentParam",
    &[
        req("type", Literal(&["input_image"])),
        opt(
            "detail",
            Nullable(&Literal(&["low", "high", "auto", "original"])),
        ),
        opt("file_id", Nullable(&STR)),
        opt("image_url", Nullable(&STR)),
        opt(
            "prompt_cache_breakpoint",
            Nullable(&Model(&PROMPT_CACHE_BREAKPOINT)),
        ),
    ],
);

pub(super) static RESPONSE_INPUT_FILE_CONTENT_PARAM: Class = Class::typed_dict(
    "ResponseInputFileContentParam",
    &[
        req("type", Literal(&["input_file"])),
        opt("detail", Literal(&["auto", "low", "high"])),
        opt("file_data", Nullable(&STR)),
        opt("file_id", Nullable(&STR)),
        opt("file_url", Nullable(&STR)),
        opt("filename", Nullable(&STR)),
        opt(
            "prompt_cache_breakpoint",
            Nullable(&Model(&PROMPT_CACHE_BREAKPOINT)),
        ),
    ],
);

pub(super) static FUNCTION_CALL_OUTPUT_CALLER_DIRECT: Class = Class::typed_dict(
    "FunctionCallOutputCallerDirect",
    &[req("type", Literal(&["direct"]))],
);

pub(super) static FUNCTION_CALL_OUTPUT_CALLER_PROGRAM: Class = Class::typed_dict(
    "FunctionCallOutputCallerProgram",
    &[req("caller_id", STR), req("type", Literal(&["program"]))],
);

pub(super) static FUNCTION_CALL_OUTPUT: Class = Class::typed_dict(
    "FunctionCallOutput",
    &[
        req(
            "output",
            Union(&[
                STR,
                List(
                    &Union(&[
                        Model(&RESPONSE_INPUT_TEXT_CONTENT_PARAM),
                        Model(&RESPONSE_INPUT_IMAGE_CONTENT_PARAM),
                        Model(&RESPONSE_INPUT_FILE_CONTENT_PARAM),
                    ]),
                    ANY_LENGTH,
                ),
            ]),
        ),
        req("type", Literal(&["function_call_output"])),
        opt("id", Nullable(&STR)),
        opt("call_id", Nullable(&STR)),
        opt(
            "caller",
            Nullable(&Union(&[
                Model(&FUNCTION_CALL_OUTPUT_CALLER_DIRECT),
                Model(&FUNCTION_CALL_OUTPUT_CALLER_PROGRAM),
            ])),
        ),
        opt("name", Nullable(&STR)),
        opt("namespace", Nullable(&STR)),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static TOOL_SEARCH_CALL: Class = Class::typed_dict(
    "ToolSearchCall",
    &[
        req("arguments", Any),
        req("type", Literal(&["tool_search_call"])),
        opt("id", Nullable(&STR)),
        opt("call_id", Nullable(&STR)),
        opt("execution", Literal(&["server", "client"])),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static FUNCTION_TOOL_PARAM: Class = Class::typed_dict(
    "FunctionToolParam",
    &[
        opt("async", Bool),
        req("name", STR),
        req("parameters", Nullable(&Dict(&STR, &Any))),
        req("strict", Nullable(&Bool)),
        req("type", Literal(&["function"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt("defer_loading", Bool),
        opt("description", Nullable(&STR)),
        opt("output_schema", Nullable(&Dict(&STR, &Any))),
    ],
);

pub(super) static COMPARISON_FILTER: Class = Class::typed_dict(
    "ComparisonFilter",
    &[
        req("key", STR),
        req(
            "type",
            Literal(&["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]),
        ),
        req(
            "value",
            Union(&[STR, FLOAT, Bool, Sequence(&Union(&[STR, FLOAT]))]),
        ),
    ],
);

pub(super) static COMPOUND_FILTER: Class = Class::typed_dict(
    "CompoundFilter",
    &[
        req(
            "filters",
            Iterable(&Union(&[Model(&COMPARISON_FILTER), Any])),
        ),
        req("type", Literal(&["and", "or"])),
    ],
);

pub(super) static RANKING_OPTIONS_HYBRID_SEARCH: Class = Class::typed_dict(
    "RankingOptionsHybridSearch",
    &[req("embedding_weight", FLOAT), req("text_weight", FLOAT)],
);

pub(super) static RANKING_OPTIONS: Class = Class::typed_dict(
    "RankingOptions",
    &[
        opt("hybrid_search", Model(&RANKING_OPTIONS_HYBRID_SEARCH)),
        opt("ranker", Literal(&["auto", "default-2024-11-15"])),
        opt("score_threshold", FLOAT),
    ],
);

pub(super) static FILE_SEARCH_TOOL_PARAM: Class = Class::typed_dict(
    "FileSearchToolParam",
    &[
        req("type", Literal(&["file_search"])),
        req("vector_store_ids", Sequence(&STR)),
        opt(
            "filters",
            Nullable(&Union(&[
                Model(&COMPARISON_FILTER),
                Model(&COMPOUND_FILTER),
            ])),
        ),
        opt("max_num_results", INT),
        opt("ranking_options", Model(&RANKING_OPTIONS)),
    ],
);

pub(super) static COMPUTER_TOOL_PARAM: Class =
    Class::typed_dict("ComputerToolParam", &[req("type", Literal(&["computer"]))]);

pub(super) static COMPUTER_USE_PREVIEW_TOOL_PARAM: Class = Class::typed_dict(
    "ComputerUsePreviewToolParam",
    &[
        req("display_height", INT),
        req("display_width", INT),
        req(
            "environment",
            Literal(&["windows", "mac", "linux", "ubuntu", "browser"]),
        ),
        req("type", Literal(&["computer_use_preview"])),
    ],
);

pub(super) static FILTERS: Class = Class::typed_dict(
    "Filters",
    &[opt("allowed_domains", Nullable(&Sequence(&STR)))],
);

pub(super) static USER_LOCATION: Class = Class::typed_dict(
    "UserLocation",
    &[
        opt("city", Nullable(&STR)),
        opt("country", Nullable(&STR)),
        opt("region", Nullable(&STR)),
        opt("timezone", Nullable(&STR)),
        opt("type", Literal(&["approximate"])),
    ],
);

pub(super) static WEB_SEARCH_TOOL_PARAM: Class = Class::typed_dict(
    "WebSearchToolParam",
    &[
        req("type", Literal(&["web_search", "web_search_2025_08_26"])),
        opt("external_web_access", Bool),
        opt("filters", Nullable(&Model(&FILTERS))),
        opt("search_context_size", Literal(&["low", "medium", "high"])),
        opt("user_location", Nullable(&Model(&USER_LOCATION))),
    ],
);

pub(super) static TOOL_MCP_ALLOWED_TOOLS_MCP_TOOL_FILTER: Class = Class::typed_dict(
    "ToolMcpAllowedToolsMcpToolFilter",
    &[opt("read_only", Bool), opt("tool_names", Sequence(&STR))],
);

pub(super) static TOOL_MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_ALWAYS: Class =
    Class::typed_dict(
        "ToolMcpRequireApprovalMcpToolApprovalFilterAlways",
        &[opt("read_only", Bool), opt("tool_names", Sequence(&STR))],
    );

pub(super) static TOOL_MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_NEVER: Class =
    Class::typed_dict(
        "ToolMcpRequireApprovalMcpToolApprovalFilterNever",
        &[opt("read_only", Bool), opt("tool_names", Sequence(&STR))],
    );

pub(super) static TOOL_MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER: Class = Class::typed_dict(
    "ToolMcpRequireApprovalMcpToolApprovalFilter",
    &[
        opt(
            "always",
            Model(&TOOL_MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_ALWAYS),
        ),
        opt(
            "never",
            Model(&TOOL_MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_NEVER),
        ),
    ],
);

pub(super) static TOOL_MCP: Class = Class::typed_dict(
    "ToolMcp",
    &[
        req("server_label", STR),
        req("type", Literal(&["mcp"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt(
            "allowed_tools",
            Nullable(&Union(&[
                Sequence(&STR),
                Model(&TOOL_MCP_ALLOWED_TOOLS_MCP_TOOL_FILTER),
            ])),
        ),
        opt("authorization", STR),
        opt(
            "connector_id",
            Literal(&[
                "connector_dropbox",
                "connector_gmail",
                "connector_googlecalendar",
                "connector_googledrive",
                "connector_microsoftteams",
                "connector_outlookcalendar",
                "connector_outlookemail",
                "connector_sharepoint",
            ]),
        ),
        opt("defer_loading", Bool),
        opt("headers", Nullable(&Dict(&STR, &STR))),
        opt(
            "require_approval",
            Nullable(&Union(&[
                Model(&TOOL_MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER),
                Literal(&["always", "never"]),
            ])),
        ),
        opt("server_description", STR),
        opt("server_url", STR),
        opt("tunnel_id", STR),
    ],
);

pub(super) static CONTAINER_NETWORK_POLICY_DISABLED_PARAM: Class = Class::typed_dict(
    "ContainerNetworkPolicyDisabledParam",
    &[req("type", Literal(&["disabled"]))],
);

pub(super) static CONTAINER_NETWORK_POLICY_DOMAIN_SECRET_PARAM: Class = Class::typed_dict(
    "ContainerNetworkPolicyDomainSecretParam",
    &[req("domain", STR), req("name", STR), req("value", STR)],
);
