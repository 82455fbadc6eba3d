//! Tools as a request offers them.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use crate::schema::Schema::{Any, Bool, Dict, List, Literal, Model, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, Model as Class, STR, optional as opt, required as req,
};

pub(super) static RESPONSE_TOOL_SEARCH_CALL: Class = Class::plain(
    "ResponseToolSearchCall",
    &[
        req("id", STR),
        req("arguments", Any),
        opt("call_id", Nullable(&STR)),
        req("execution", Literal(&["server", "client"])),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["tool_search_call"])),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static FUNCTION_TOOL: Class = Class::plain(
    "FunctionTool",
    &[
        req("name", STR),
        opt("parameters", Nullable(&Dict(&STR, &Any))),
        opt("strict", Nullable(&Bool)),
        req("type", Literal(&["function"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt("async", Nullable(&Bool)),
        opt("defer_loading", Nullable(&Bool)),
        opt("description", Nullable(&STR)),
        opt("output_schema", Nullable(&Dict(&STR, &Any))),
    ],
);

pub(super) static COMPARISON_FILTER_2: Class = Class::plain(
    "ComparisonFilter",
    &[
        req("key", STR),
        req(
            "type",
            Literal(&["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]),
        ),
        req(
            "value",
            Union(&[STR, FLOAT, Bool, List(&Union(&[STR, FLOAT]), ANY_LENGTH)]),
        ),
    ],
);

pub(super) static COMPOUND_FILTER_2: Class = Class::plain(
    "CompoundFilter",
    &[
        req(
            "filters",
            List(&Union(&[Model(&COMPARISON_FILTER_2), Any]), ANY_LENGTH),
        ),
        req("type", Literal(&["and", "or"])),
    ],
);

pub(super) static RANKING_OPTIONS_HYBRID_SEARCH_2: Class = Class::plain(
    "RankingOptionsHybridSearch",
    &[req("embedding_weight", FLOAT), req("text_weight", FLOAT)],
);

pub(super) static RANKING_OPTIONS_2: Class = Class::plain(
    "RankingOptions",
    &[
        opt(
            "hybrid_search",
            Nullable(&Model(&RANKING_OPTIONS_HYBRID_SEARCH_2)),
        ),
        opt(
            "ranker",
            Nullable(&Literal(&["auto", "default-2024-11-15"])),
        ),
        opt("score_threshold", Nullable(&FLOAT)),
    ],
);

pub(super) static FILE_SEARCH_TOOL: Class = Class::plain(
    "FileSearchTool",
    &[
        req("type", Literal(&["file_search"])),
        req("vector_store_ids", List(&STR, ANY_LENGTH)),
        opt(
            "filters",
            Nullable(&Union(&[
                Model(&COMPARISON_FILTER_2),
                Model(&COMPOUND_FILTER_2),
            ])),
        ),
        opt("max_num_results", Nullable(&INT)),
        opt("ranking_options", Nullable(&Model(&RANKING_OPTIONS_2))),
    ],
);

pub(super) static COMPUTER_TOOL: Class =
    Class::plain("ComputerTool", &[req("type", Literal(&["computer"]))]);

pub(super) static COMPUTER_USE_PREVIEW_TOOL: Class = Class::plain(
    "ComputerUsePreviewTool",
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

pub(super) static FILTERS_2: Class = Class::plain(
    "Filters",
    &[opt("allowed_domains", Nullable(&List(&STR, ANY_LENGTH)))],
);

pub(super) static USER_LOCATION_3: Class = Class::plain(
    "UserLocation",
    &[
        opt("city", Nullable(&STR)),
        opt("country", Nullable(&STR)),
        opt("region", Nullable(&STR)),
        opt("timezone", Nullable(&STR)),
        opt("type", Nullable(&Literal(&["approximate"]))),
    ],
);

pub(super) static WEB_SEARCH_TOOL: Class = Class::plain(
    "WebSearchTool",
    &[
        req("type", Literal(&["web_search", "web_search_2025_08_26"])),
        opt("external_web_access", Nullable(&Bool)),
        opt("filters", Nullable(&Model(&FILTERS_2))),
        opt(
            "search_context_size",
            Nullable(&Literal(&["low", "medium", "high"])),
        ),
        opt("user_location", Nullable(&Model(&USER_LOCATION_3))),
    ],
);

pub(super) static MCP_ALLOWED_TOOLS_MCP_TOOL_FILTER_2: Class = Class::plain(
    "McpAllowedToolsMcpToolFilter",
    &[
        opt("read_only", Nullable(&Bool)),
        opt("tool_names", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_ALWAYS_2: Class = Class::plain(
    "McpRequireApprovalMcpToolApprovalFilterAlways",
    &[
        opt("read_only", Nullable(&Bool)),
        opt("tool_names", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_NEVER_2: Class = Class::plain(
    "McpRequireApprovalMcpToolApprovalFilterNever",
    &[
        opt("read_only", Nullable(&Bool)),
        opt("tool_names", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_2: Class = Class::plain(
    "McpRequireApprovalMcpToolApprovalFilter",
    &[
        opt(
            "always",
            Nullable(&Model(
                &MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_ALWAYS_2,
            )),
        ),
        opt(
            "never",
            Nullable(&Model(
                &MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_NEVER_2,
            )),
        ),
    ],
);

pub(super) static MCP_2: Class = Class::plain(
    "Mcp",
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
                List(&STR, ANY_LENGTH),
                Model(&MCP_ALLOWED_TOOLS_MCP_TOOL_FILTER_2),
            ])),
        ),
        opt("authorization", Nullable(&STR)),
        opt(
            "connector_id",
            Nullable(&Literal(&[
                "connector_dropbox",
                "connector_gmail",
                "connector_googlecalendar",
                "connector_googledrive",
                "connector_microsoftteams",
                "connector_outlookcalendar",
                "connector_outlookemail",
                "connector_sharepoint",
            ])),
        ),
        opt("defer_loading", Nullable(&Bool)),
        opt("headers", Nullable(&Dict(&STR, &STR))),
        opt(
            "require_approval",
            Nullable(&Union(&[
                Model(&MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_2),
                Literal(&["always", "never"]),
            ])),
        ),
        opt("server_description", Nullable(&STR)),
        opt("server_url", Nullable(&STR)),
        opt("tunnel_id", Nullable(&STR)),
    ],
);

pub(super) static CONTAINER_NETWORK_POLICY_DISABLED: Class = Class::plain(
    "ContainerNetworkPolicyDisabled",
    &[req("type", Literal(&["disabled"]))],
);

pub(super) static CONTAINER_NETWORK_POLICY_DOMAIN_SECRET: Class = Class::plain(
    "ContainerNetworkPolicyDomainSecret",
    &[req("domain", STR), req("name", STR), req("value", STR)],
);

pub(super) static CONTAINER_NETWORK_POLICY_ALLOWLIST: Class = Class::plain(
    "ContainerNetworkPolicyAllowlist",
    &[
        req("allowed_domains", List(&STR, ANY_LENGTH)),
        req("type", Literal(&["allowlist"])),
        opt(
            "domain_secrets",
            Nullable(&List(
                &Model(&CONTAINER_NETWORK_POLICY_DOMAIN_SECRET),
                ANY_LENGTH,
            )),
        ),
    ],
);

pub(super) static CODE_INTERPRETER_CONTAINER_CODE_INTERPRETER_TOOL_AUTO_2: Class = Class::plain(
    "CodeInterpreterContainerCodeInterpreterToolAuto",
    &[
        req("type", Literal(&["auto"])),
        opt("file_ids", Nullable(&List(&STR, ANY_LENGTH))),
        opt(
            "memory_limit",
            Nullable(&Literal(&["1g", "4g", "16g", "64g"])),
        ),
        opt(
            "network_policy",
            Nullable(&Union(&[
                Model(&CONTAINER_NETWORK_POLICY_DISABLED),
                Model(&CONTAINER_NETWORK_POLICY_ALLOWLIST),
            ])),
        ),
    ],
);

pub(super) static CODE_INTERPRETER_2: Class = Class::plain(
    "CodeInterpreter",
    &[
        req(
            "container",
            Union(&[
                STR,
                Model(&CODE_INTERPRETER_CONTAINER_CODE_INTERPRETER_TOOL_AUTO_2),
            ]),
        ),
        req("type", Literal(&["code_interpreter"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
    ],
);

pub(super) static PROGRAMMATIC_TOOL_CALLING_2: Class = Class::plain(
    "ProgrammaticToolCalling",
    &[req("type", Literal(&["programmatic_tool_calling"]))],
);

pub(super) static IMAGE_GENERATION_INPUT_IMAGE_MASK_2: Class = Class::plain(
    "ImageGenerationInputImageMask",
    &[
        opt("file_id", Nullable(&STR)),
        opt("image_url", Nullable(&STR)),
    ],
);

pub(super) static IMAGE_GENERATION_SVG_REASONING_2: Class = Class::plain(
    "ImageGenerationSvgReasoning",
    &[opt(
        "effort",
        Nullable(&Literal(&[
            "none", "minimal", "low", "medium", "high", "xhigh", "max",
        ])),
    )],
);

pub(super) static IMAGE_GENERATION_SVG_2: Class = Class::plain(
    "ImageGenerationSvg",
    &[
        opt("model", Nullable(&STR)),
        opt(
            "reasoning",
            Nullable(&Model(&IMAGE_GENERATION_SVG_REASONING_2)),
        ),
    ],
);

pub(super) static IMAGE_GENERATION_2: Class = Class::plain(
    "ImageGeneration",
    &[
        req("type", Literal(&["image_generation"])),
        opt("action", Nullable(&Literal(&["generate", "edit", "auto"]))),
        opt(
            "background",
            Nullable(&Literal(&["transparent", "opaque", "auto"])),
        ),
        opt("complexity", Nullable(&Literal(&["low", "medium", "high"]))),
        opt("frame_count", Nullable(&INT)),
        opt("frame_duration_ms", Nullable(&INT)),
        opt("input_fidelity", Nullable(&Literal(&["high", "low"]))),
        opt(
            "input_image_mask",
            Nullable(&Model(&IMAGE_GENERATION_INPUT_IMAGE_MASK_2)),
        ),
        opt(
            "model",
            Nullable(&Union(&[
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
            ])),
        ),
        opt("moderation", Nullable(&Literal(&["auto", "low"]))),
        opt("output_compression", Nullable(&INT)),
        opt(
            "output_format",
            Nullable(&Literal(&["png", "webp", "jpeg", "gif", "svg"])),
        ),
        opt("partial_images", Nullable(&INT)),
        opt(
            "quality",
            Nullable(&Literal(&["low", "medium", "high", "xhigh", "max", "auto"])),
        ),
        opt(
            "size",
            Nullable(&Union(&[
                STR,
                Literal(&["1024x1024", "1024x1536", "1536x1024", "auto"]),
            ])),
        ),
        opt("svg", Nullable(&Model(&IMAGE_GENERATION_SVG_2))),
    ],
);

pub(super) static LOCAL_SHELL_2: Class =
    Class::plain("LocalShell", &[req("type", Literal(&["local_shell"]))]);

pub(super) static SKILL_REFERENCE: Class = Class::plain(
    "SkillReference",
    &[
        req("skill_id", STR),
        req("type", Literal(&["skill_reference"])),
        opt("version", Nullable(&STR)),
    ],
);

pub(super) static INLINE_SKILL_SOURCE: Class = Class::plain(
    "InlineSkillSource",
    &[
        req("data", STR),
        req("media_type", Literal(&["application/zip"])),
        req("type", Literal(&["base64"])),
    ],
);

pub(super) static INLINE_SKILL: Class = Class::plain(
    "InlineSkill",
    &[
        req("description", STR),
        req("name", STR),
        req("source", Model(&INLINE_SKILL_SOURCE)),
        req("type", Literal(&["inline"])),
    ],
);

pub(super) static CONTAINER_AUTO: Class = Class::plain(
    "ContainerAuto",
    &[
        req("type", Literal(&["container_auto"])),
        opt("file_ids", Nullable(&List(&STR, ANY_LENGTH))),
        opt(
            "memory_limit",
            Nullable(&Literal(&["1g", "4g", "16g", "64g"])),
        ),
        opt(
            "network_policy",
            Nullable(&Union(&[
                Model(&CONTAINER_NETWORK_POLICY_DISABLED),
                Model(&CONTAINER_NETWORK_POLICY_ALLOWLIST),
            ])),
        ),
        opt(
            "skills",
            Nullable(&List(
                &Union(&[Model(&SKILL_REFERENCE), Model(&INLINE_SKILL)]),
                ANY_LENGTH,
            )),
        ),
    ],
);

pub(super) static LOCAL_SKILL: Class = Class::plain(
    "LocalSkill",
    &[req("description", STR), req("name", STR), req("path", STR)],
);

pub(super) static LOCAL_ENVIRONMENT: Class = Class::plain(
    "LocalEnvironment",
    &[
        req("type", Literal(&["local"])),
        opt("skills", Nullable(&List(&Model(&LOCAL_SKILL), ANY_LENGTH))),
    ],
);

pub(super) static CONTAINER_REFERENCE: Class = Class::plain(
    "ContainerReference",
    &[
        req("container_id", STR),
        req("type", Literal(&["container_reference"])),
    ],
);

pub(super) static FUNCTION_SHELL_TOOL: Class = Class::plain(
    "FunctionShellTool",
    &[
        req("type", Literal(&["shell"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt(
            "environment",
            Nullable(&Nullable(&Union(&[
                Model(&CONTAINER_AUTO),
                Model(&LOCAL_ENVIRONMENT),
                Model(&CONTAINER_REFERENCE),
            ]))),
        ),
    ],
);

pub(super) static TEXT_3: Class = Class::plain("Text", &[req("type", Literal(&["text"]))]);

pub(super) static GRAMMAR_2: Class = Class::plain(
    "Grammar",
    &[
        req("definition", STR),
        req("syntax", Literal(&["lark", "regex"])),
        req("type", Literal(&["grammar"])),
    ],
);
