//! What earlier answers consist of: messages, computers, reasoning.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use super::*;
use crate::schema::Schema::{List, Literal, Model, Nullable, Union};
use crate::schema::{ANY_LENGTH, INT, Model as Class, STR, optional as opt, required as req};

pub(super) static RESPONSE_INPUT_FILE: Class = Class::plain(
    "ResponseInputFile",
    &[
        req("type", Literal(&["input_file"])),
        opt("detail", Nullable(&Literal(&["auto", "low", "high"]))),
        opt("file_data", Nullable(&STR)),
        opt("file_id", Nullable(&STR)),
        opt("file_url", Nullable(&STR)),
        opt("filename", Nullable(&STR)),
        opt(
            "prompt_cache_breakpoint",
            Nullable(&Model(&PROMPT_CACHE_BREAKPOINT_2)),
        ),
    ],
);

pub(super) static RESPONSE_FUNCTION_TOOL_CALL_OUTPUT_ITEM: Class = Class::plain(
    "ResponseFunctionToolCallOutputItem",
    &[
        req("id", STR),
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
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["function_call_output"])),
        opt("call_id", Nullable(&STR)),
        opt(
            "caller",
            Nullable(&Nullable(&Union(&[
                Model(&CALLER_DIRECT_2),
                Model(&CALLER_PROGRAM_2),
            ]))),
        ),
        opt("created_by", Nullable(&STR)),
        opt("name", Nullable(&STR)),
        opt("namespace", Nullable(&STR)),
    ],
);

pub(super) static ACTION_SEARCH_SOURCE_2: Class = Class::plain(
    "ActionSearchSource",
    &[req("type", Literal(&["url"])), req("url", STR)],
);

pub(super) static ACTION_SEARCH_2: Class = Class::plain(
    "ActionSearch",
    &[
        req("type", Literal(&["search"])),
        opt("queries", Nullable(&List(&STR, ANY_LENGTH))),
        opt("query", Nullable(&STR)),
        opt(
            "sources",
            Nullable(&List(&Model(&ACTION_SEARCH_SOURCE_2), ANY_LENGTH)),
        ),
    ],
);

pub(super) static ACTION_OPEN_PAGE_2: Class = Class::plain(
    "ActionOpenPage",
    &[
        req("type", Literal(&["open_page"])),
        opt("url", Nullable(&STR)),
    ],
);

pub(super) static ACTION_FIND_2: Class = Class::plain(
    "ActionFind",
    &[
        req("pattern", STR),
        req("type", Literal(&["find_in_page"])),
        req("url", STR),
    ],
);

pub(super) static RESPONSE_FUNCTION_WEB_SEARCH: Class = Class::plain(
    "ResponseFunctionWebSearch",
    &[
        req("id", STR),
        req(
            "action",
            Union(&[
                Model(&ACTION_SEARCH_2),
                Model(&ACTION_OPEN_PAGE_2),
                Model(&ACTION_FIND_2),
            ]),
        ),
        req(
            "status",
            Literal(&[
                "in_progress",
                "searching",
                "completed",
                "failed",
                "incomplete",
            ]),
        ),
        req("type", Literal(&["web_search_call"])),
    ],
);

pub(super) static PENDING_SAFETY_CHECK_2: Class = Class::plain(
    "PendingSafetyCheck",
    &[
        req("id", STR),
        opt("code", Nullable(&STR)),
        opt("message", Nullable(&STR)),
    ],
);

pub(super) static ACTION_CLICK_2: Class = Class::plain(
    "ActionClick",
    &[
        req(
            "button",
            Literal(&["left", "right", "wheel", "back", "forward"]),
        ),
        req("type", Literal(&["click"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static ACTION_DOUBLE_CLICK_2: Class = Class::plain(
    "ActionDoubleClick",
    &[
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
        req("type", Literal(&["double_click"])),
        req("x", INT),
        req("y", INT),
    ],
);

pub(super) static ACTION_DRAG_PATH_2: Class =
    Class::plain("ActionDragPath", &[req("x", INT), req("y", INT)]);

pub(super) static ACTION_DRAG_2: Class = Class::plain(
    "ActionDrag",
    &[
        req("path", List(&Model(&ACTION_DRAG_PATH_2), ANY_LENGTH)),
        req("type", Literal(&["drag"])),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static ACTION_KEYPRESS_2: Class = Class::plain(
    "ActionKeypress",
    &[
        req("keys", List(&STR, ANY_LENGTH)),
        req("type", Literal(&["keypress"])),
    ],
);

pub(super) static ACTION_MOVE_2: Class = Class::plain(
    "ActionMove",
    &[
        req("type", Literal(&["move"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static ACTION_SCREENSHOT_2: Class =
    Class::plain("ActionScreenshot", &[req("type", Literal(&["screenshot"]))]);

pub(super) static ACTION_SCROLL_2: Class = Class::plain(
    "ActionScroll",
    &[
        req("scroll_x", INT),
        req("scroll_y", INT),
        req("type", Literal(&["scroll"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static ACTION_TYPE_2: Class = Class::plain(
    "ActionType",
    &[req("text", STR), req("type", Literal(&["type"]))],
);

pub(super) static ACTION_WAIT_2: Class =
    Class::plain("ActionWait", &[req("type", Literal(&["wait"]))]);

pub(super) static CLICK_2: Class = Class::plain(
    "Click",
    &[
        req(
            "button",
            Literal(&["left", "right", "wheel", "back", "forward"]),
        ),
        req("type", Literal(&["click"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static DOUBLE_CLICK_2: Class = Class::plain(
    "DoubleClick",
    &[
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
        req("type", Literal(&["double_click"])),
        req("x", INT),
        req("y", INT),
    ],
);

pub(super) static DRAG_PATH_2: Class = Class::plain("DragPath", &[req("x", INT), req("y", INT)]);

pub(super) static DRAG_2: Class = Class::plain(
    "Drag",
    &[
        req("path", List(&Model(&DRAG_PATH_2), ANY_LENGTH)),
        req("type", Literal(&["drag"])),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static KEYPRESS_2: Class = Class::plain(
    "Keypress",
    &[
        req("keys", List(&STR, ANY_LENGTH)),
        req("type", Literal(&["keypress"])),
    ],
);

pub(super) static MOVE_2: Class = Class::plain(
    "Move",
    &[
        req("type", Literal(&["move"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static SCREENSHOT_2: Class =
    Class::plain("Screenshot", &[req("type", Literal(&["screenshot"]))]);

pub(super) static SCROLL_2: Class = Class::plain(
    "Scroll",
    &[
        req("scroll_x", INT),
        req("scroll_y", INT),
        req("type", Literal(&["scroll"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&List(&STR, ANY_LENGTH))),
    ],
);

pub(super) static TYPE_2: Class =
    Class::plain("Type", &[req("text", STR), req("type", Literal(&["type"]))]);

pub(super) static WAIT_2: Class = Class::plain("Wait", &[req("type", Literal(&["wait"]))]);

pub(super) static RESPONSE_COMPUTER_TOOL_CALL: Class = Class::plain(
    "ResponseComputerToolCall",
    &[
        req("id", STR),
        req("call_id", STR),
        req(
            "pending_safety_checks",
            List(&Model(&PENDING_SAFETY_CHECK_2), ANY_LENGTH),
        ),
        req(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        req("type", Literal(&["computer_call"])),
        opt(
            "action",
            Nullable(&Union(&[
                Model(&ACTION_CLICK_2),
                Model(&ACTION_DOUBLE_CLICK_2),
                Model(&ACTION_DRAG_2),
                Model(&ACTION_KEYPRESS_2),
                Model(&ACTION_MOVE_2),
                Model(&ACTION_SCREENSHOT_2),
                Model(&ACTION_SCROLL_2),
                Model(&ACTION_TYPE_2),
                Model(&ACTION_WAIT_2),
            ])),
        ),
        opt(
            "actions",
            Nullable(&List(
                &Union(&[
                    Model(&CLICK_2),
                    Model(&DOUBLE_CLICK_2),
                    Model(&DRAG_2),
                    Model(&KEYPRESS_2),
                    Model(&MOVE_2),
                    Model(&SCREENSHOT_2),
                    Model(&SCROLL_2),
                    Model(&TYPE_2),
                    Model(&WAIT_2),
                ]),
                ANY_LENGTH,
            )),
        ),
    ],
);

pub(super) static RESPONSE_COMPUTER_TOOL_CALL_OUTPUT_SCREENSHOT: Class = Class::plain(
    "ResponseComputerToolCallOutputScreenshot",
    &[
        req("type", Literal(&["computer_screenshot"])),
        opt("file_id", Nullable(&STR)),
        opt("image_url", Nullable(&STR)),
    ],
);

pub(super) static ACKNOWLEDGED_SAFETY_CHECK: Class = Class::plain(
    "AcknowledgedSafetyCheck",
    &[
        req("id", STR),
        opt("code", Nullable(&STR)),
        opt("message", Nullable(&STR)),
    ],
);

pub(super) static RESPONSE_COMPUTER_TOOL_CALL_OUTPUT_ITEM: Class = Class::plain(
    "ResponseComputerToolCallOutputItem",
    &[
        req("id", STR),
        req("call_id", STR),
        req(
            "output",
            Model(&RESPONSE_COMPUTER_TOOL_CALL_OUTPUT_SCREENSHOT),
        ),
        req(
            "status",
            Literal(&["completed", "incomplete", "failed", "in_progress"]),
        ),
        req("type", Literal(&["computer_call_output"])),
        opt(
            "acknowledged_safety_checks",
            Nullable(&List(&Model(&ACKNOWLEDGED_SAFETY_CHECK), ANY_LENGTH)),
        ),
        opt("created_by", Nullable(&STR)),
    ],
);

pub(super) static SUMMARY_2: Class = Class::plain(
    "Summary",
    &[req("text", STR), req("type", Literal(&["summary_text"]))],
);

pub(super) static CONTENT_2: Class = Class::plain(
    "Content",
    &[req("text", STR), req("type", Literal(&["reasoning_text"]))],
);

pub(super) static RESPONSE_REASONING_ITEM: Class = Class::plain(
    "ResponseReasoningItem",
    &[
        req("id", STR),
        req("summary", List(&Model(&SUMMARY_2), ANY_LENGTH)),
        req("type", Literal(&["reasoning"])),
        opt("content", Nullable(&List(&Model(&CONTENT_2), ANY_LENGTH))),
        opt("encrypted_content", Nullable(&STR)),
        opt(
            "status",
            Nullable(&Literal(&["in_progress", "completed", "incomplete"])),
        ),
    ],
);

pub(super) static PROGRAM_2: Class = Class::plain(
    "Program",
    &[
        req("id", STR),
        req("call_id", STR),
        req("code", STR),
        req("fingerprint", STR),
        req("type", Literal(&["program"])),
    ],
);

pub(super) static PROGRAM_OUTPUT_2: Class = Class::plain(
    "ProgramOutput",
    &[
        req("id", STR),
        req("call_id", STR),
        req("result", STR),
        req("status", Literal(&["completed", "incomplete"])),
        req("type", Literal(&["program_output"])),
    ],
);
