//! Containers, skills, shells and images as tools.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{
    Any, Bool, Dict, Iterable, List, Literal, Model, Nullable, Sequence, Union,
};
use crate::schema::{ANY_LENGTH, INT, Model as Class, STR, optional as opt, required as req};

pub(super) static CONTAINER_NETWORK_POLICY_ALLOWLIST_PARAM: Class = Class::typed_dict(
    "ContainerNetworkPolicyAllowlistParam",
    &[
        req("allowed_domains", Sequence(&STR)),
        req("type", Literal(&["allowlist"])),
        opt(
            "domain_secrets",
            Iterable(&Model(&CONTAINER_NETWORK_POLICY_DOMAIN_SECRET_PARAM)),
        ),
    ],
);

pub(super) static TOOL_CODE_INTERPRETER_CONTAINER_CODE_INTERPRETER_TOOL_AUTO: Class =
    Class::typed_dict(
        "ToolCodeInterpreterContainerCodeInterpreterToolAuto",
        &[
            req("type", Literal(&["auto"])),
            opt("file_ids", Sequence(&STR)),
            opt(
                "memory_limit",
                Nullable(&Literal(&["1g", "4g", "16g", "64g"])),
            ),
            opt(
                "network_policy",
                Union(&[
                    Model(&CONTAINER_NETWORK_POLICY_DISABLED_PARAM),
                    Model(&CONTAINER_NETWORK_POLICY_ALLOWLIST_PARAM),
                ]),
            ),
        ],
    );

pub(super) static TOOL_CODE_INTERPRETER: Class = Class::typed_dict(
    "ToolCodeInterpreter",
    &[
        req(
            "container",
            Union(&[
                STR,
                Model(&TOOL_CODE_INTERPRETER_CONTAINER_CODE_INTERPRETER_TOOL_AUTO),
            ]),
        ),
        req("type", Literal(&["code_interpreter"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
    ],
);

pub(super) static TOOL_PROGRAMMATIC_TOOL_CALLING: Class = Class::typed_dict(
    "ToolProgrammaticToolCalling",
    &[req("type", Literal(&["programmatic_tool_calling"]))],
);

pub(super) static TOOL_IMAGE_GENERATION_INPUT_IMAGE_MASK: Class = Class::typed_dict(
    "ToolImageGenerationInputImageMask",
    &[opt("file_id", STR), opt("image_url", STR)],
);

pub(super) static TOOL_IMAGE_GENERATION_SVG_REASONING: Class = Class::typed_dict(
    "ToolImageGenerationSvgReasoning",
    &[opt(
        "effort",
        Literal(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
    )],
);

pub(super) static TOOL_IMAGE_GENERATION_SVG: Class = Class::typed_dict(
    "ToolImageGenerationSvg",
    &[
        opt("model", STR),
        opt(
            "reasoning",
            Nullable(&Model(&TOOL_IMAGE_GENERATION_SVG_REASONING)),
        ),
    ],
);

pub(super) static TOOL_IMAGE_GENERATION: Class = Class::typed_dict(
    "ToolImageGeneration",
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
            Model(&TOOL_IMAGE_GENERATION_INPUT_IMAGE_MASK),
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
        opt("svg", Model(&TOOL_IMAGE_GENERATION_SVG)),
    ],
);

pub(super) static TOOL_LOCAL_SHELL: Class =
    Class::typed_dict("ToolLocalShell", &[req("type", Literal(&["local_shell"]))]);

pub(super) static SKILL_REFERENCE_PARAM: Class = Class::typed_dict(
    "SkillReferenceParam",
    &[
        req("skill_id", STR),
        req("type", Literal(&["skill_reference"])),
        opt("version", STR),
    ],
);

pub(super) static INLINE_SKILL_SOURCE_PARAM: Class = Class::typed_dict(
    "InlineSkillSourceParam",
    &[
        req("data", STR),
        req("media_type", Literal(&["application/zip"])),
        req("type", Literal(&["base64"])),
    ],
);

pub(super) static INLINE_SKILL_PARAM: Class = Class::typed_dict(
    "InlineSkillParam",
    &[
        req("description", STR),
        req("name", STR),
        req("source", Model(&INLINE_SKILL_SOURCE_PARAM)),
        req("type", Literal(&["inline"])),
    ],
);

pub(super) static CONTAINER_AUTO_PARAM: Class = Class::typed_dict(
    "ContainerAutoParam",
    &[
        req("type", Literal(&["container_auto"])),
        opt("file_ids", Sequence(&STR)),
        opt(
            "memory_limit",
            Nullable(&Literal(&["1g", "4g", "16g", "64g"])),
        ),
        opt(
            "network_policy",
            Union(&[
                Model(&CONTAINER_NETWORK_POLICY_DISABLED_PARAM),
                Model(&CONTAINER_NETWORK_POLICY_ALLOWLIST_PARAM),
            ]),
        ),
        opt(
            "skills",
            Iterable(&Union(&[
                Model(&SKILL_REFERENCE_PARAM),
                Model(&INLINE_SKILL_PARAM),
            ])),
        ),
    ],
);

pub(super) static LOCAL_SKILL_PARAM: Class = Class::typed_dict(
    "LocalSkillParam",
    &[req("description", STR), req("name", STR), req("path", STR)],
);

pub(super) static LOCAL_ENVIRONMENT_PARAM: Class = Class::typed_dict(
    "LocalEnvironmentParam",
    &[
        req("type", Literal(&["local"])),
        opt("skills", Iterable(&Model(&LOCAL_SKILL_PARAM))),
    ],
);

pub(super) static CONTAINER_REFERENCE_PARAM: Class = Class::typed_dict(
    "ContainerReferenceParam",
    &[
        req("container_id", STR),
        req("type", Literal(&["container_reference"])),
    ],
);

pub(super) static FUNCTION_SHELL_TOOL_PARAM: Class = Class::typed_dict(
    "FunctionShellToolParam",
    &[
        req("type", Literal(&["shell"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt(
            "environment",
            Nullable(&Union(&[
                Model(&CONTAINER_AUTO_PARAM),
                Model(&LOCAL_ENVIRONMENT_PARAM),
                Model(&CONTAINER_REFERENCE_PARAM),
            ])),
        ),
    ],
);

pub(super) static TEXT: Class = Class::typed_dict("Text", &[req("type", Literal(&["text"]))]);

pub(super) static GRAMMAR: Class = Class::typed_dict(
    "Grammar",
    &[
        req("definition", STR),
        req("syntax", Literal(&["lark", "regex"])),
        req("type", Literal(&["grammar"])),
    ],
);

pub(super) static CUSTOM_TOOL_PARAM: Class = Class::typed_dict(
    "CustomToolParam",
    &[
        opt("async", Bool),
        req("name", STR),
        req("type", Literal(&["custom"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt("defer_loading", Bool),
        opt("description", STR),
        opt("format", Union(&[Model(&TEXT), Model(&GRAMMAR)])),
    ],
);

pub(super) static TOOL_FUNCTION: Class = Class::typed_dict(
    "ToolFunction",
    &[
        opt("async", Bool),
        req("name", STR),
        req("type", Literal(&["function"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
        opt("defer_loading", Bool),
        opt("description", Nullable(&STR)),
        opt("output_schema", Nullable(&Dict(&STR, &Any))),
        opt("parameters", Nullable(&Any)),
        opt("strict", Nullable(&Bool)),
    ],
);

pub(super) static TOOL_SEARCH_OUTPUT_NAMESPACE_TOOL_PARAM: Class = Class::typed_dict(
    "ToolSearchOutputNamespaceToolParam",
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

pub(super) static TOOL_SEARCH_TOOL_PARAM: Class = Class::typed_dict(
    "ToolSearchToolParam",
    &[
        req("type", Literal(&["tool_search"])),
        opt("description", Nullable(&STR)),
        opt("execution", Literal(&["server", "client"])),
        opt("parameters", Nullable(&Any)),
    ],
);

pub(super) static USER_LOCATION_2: Class = Class::typed_dict(
    "UserLocation",
    &[
        req("type", Literal(&["approximate"])),
        opt("city", Nullable(&STR)),
        opt("country", Nullable(&STR)),
        opt("region", Nullable(&STR)),
        opt("timezone", Nullable(&STR)),
    ],
);

pub(super) static WEB_SEARCH_PREVIEW_TOOL_PARAM: Class = Class::typed_dict(
    "WebSearchPreviewToolParam",
    &[
        req(
            "type",
            Literal(&["web_search_preview", "web_search_preview_2025_03_11"]),
        ),
        opt(
            "search_content_types",
            List(&Literal(&["text", "image"]), ANY_LENGTH),
        ),
        opt("search_context_size", Literal(&["low", "medium", "high"])),
        opt("user_location", Nullable(&Model(&USER_LOCATION_2))),
    ],
);

pub(super) static APPLY_PATCH_TOOL_PARAM: Class = Class::typed_dict(
    "ApplyPatchToolParam",
    &[
        req("type", Literal(&["apply_patch"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
    ],
);

pub(super) static RESPONSE_TOOL_SEARCH_OUTPUT_ITEM_PARAM_PARAM: Class = Class::typed_dict(
    "ResponseToolSearchOutputItemParamParam",
    &[
        req(
            "tools",
            Iterable(&Union(&[
                Model(&FUNCTION_TOOL_PARAM),
                Model(&FILE_SEARCH_TOOL_PARAM),
                Model(&COMPUTER_TOOL_PARAM),
                Model(&COMPUTER_USE_PREVIEW_TOOL_PARAM),
                Model(&WEB_SEARCH_TOOL_PARAM),
                Model(&TOOL_MCP),
                Model(&TOOL_CODE_INTERPRETER),
                Model(&TOOL_PROGRAMMATIC_TOOL_CALLING),
                Model(&TOOL_IMAGE_GENERATION),
                Model(&TOOL_LOCAL_SHELL),
                Model(&FUNCTION_SHELL_TOOL_PARAM),
                Model(&CUSTOM_TOOL_PARAM),
                Model(&TOOL_SEARCH_OUTPUT_NAMESPACE_TOOL_PARAM),
                Model(&TOOL_SEARCH_TOOL_PARAM),
                Model(&WEB_SEARCH_PREVIEW_TOOL_PARAM),
                Model(&APPLY_PATCH_TOOL_PARAM),
            ])),
        ),
        req("type", Literal(&["tool_search_output"])),
        opt("id", Nullable(&STR)),
        opt("call_id", Nullable(&STR)),
        opt("execution", Literal(&["server", "client"])),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static MCP_ALLOWED_TOOLS_MCP_TOOL_FILTER: Class = Class::typed_dict(
    "McpAllowedToolsMcpToolFilter",
    &[opt("read_only", Bool), opt("tool_names", Sequence(&STR))],
);

pub(super) static MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_ALWAYS: Class = Class::typed_dict(
    "McpRequireApprovalMcpToolApprovalFilterAlways",
    &[opt("read_only", Bool), opt("tool_names", Sequence(&STR))],
);

pub(super) static MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_NEVER: Class = Class::typed_dict(
    "McpRequireApprovalMcpToolApprovalFilterNever",
    &[opt("read_only", Bool), opt("tool_names", Sequence(&STR))],
);

pub(super) static MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER: Class = Class::typed_dict(
    "McpRequireApprovalMcpToolApprovalFilter",
    &[
        opt(
            "always",
            Model(&MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_ALWAYS),
        ),
        opt(
            "never",
            Model(&MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER_NEVER),
        ),
    ],
);

pub(super) static MCP: Class = Class::typed_dict(
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
                Sequence(&STR),
                Model(&MCP_ALLOWED_TOOLS_MCP_TOOL_FILTER),
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
                Model(&MCP_REQUIRE_APPROVAL_MCP_TOOL_APPROVAL_FILTER),
                Literal(&["always", "never"]),
            ])),
        ),
        opt("server_description", STR),
        opt("server_url", STR),
        opt("tunnel_id", STR),
    ],
);

pub(super) static CODE_INTERPRETER_CONTAINER_CODE_INTERPRETER_TOOL_AUTO: Class = Class::typed_dict(
    "CodeInterpreterContainerCodeInterpreterToolAuto",
    &[
        req("type", Literal(&["auto"])),
        opt("file_ids", Sequence(&STR)),
        opt(
            "memory_limit",
            Nullable(&Literal(&["1g", "4g", "16g", "64g"])),
        ),
        opt(
            "network_policy",
            Union(&[
                Model(&CONTAINER_NETWORK_POLICY_DISABLED_PARAM),
                Model(&CONTAINER_NETWORK_POLICY_ALLOWLIST_PARAM),
            ]),
        ),
    ],
);

pub(super) static CODE_INTERPRETER: Class = Class::typed_dict(
    "CodeInterpreter",
    &[
        req(
            "container",
            Union(&[
                STR,
                Model(&CODE_INTERPRETER_CONTAINER_CODE_INTERPRETER_TOOL_AUTO),
            ]),
        ),
        req("type", Literal(&["code_interpreter"])),
        opt(
            "allowed_callers",
            Nullable(&List(&Literal(&["direct", "programmatic"]), ANY_LENGTH)),
        ),
    ],
);

pub(super) static PROGRAMMATIC_TOOL_CALLING: Class = Class::typed_dict(
    "ProgrammaticToolCalling",
    &[req("type", Literal(&["programmatic_tool_calling"]))],
);

pub(super) static IMAGE_GENERATION_INPUT_IMAGE_MASK: Class = Class::typed_dict(
    "ImageGenerationInputImageMask",
    &[opt("file_id", STR), opt("image_url", STR)],
);

pub(super) static IMAGE_GENERATION_SVG_REASONING: Class = Class::typed_dict(
    "ImageGenerationSvgReasoning",
    &[opt(
        "effort",
        Literal(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
    )],
);

pub(super) static IMAGE_GENERATION_SVG: Class = Class::typed_dict(
    "ImageGenerationSvg",
    &[
        opt("model", STR),
        opt(
            "reasoning",
            Nullable(&Model(&IMAGE_GENERATION_SVG_REASONING)),
        ),
    ],
);
