//! Messages, file search and the actions of a computer.
//!
//! Source: `openai/types/responses/*.py` of the openai SDK, release 3.52.

use crate::schema::Schema::{
    Bool, Dict, Iterable, List, Literal, Model, Nullable, Sequence, Union,
};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, Model as Class, STR, optional as opt, required as req,
};

pub(super) static PROMPT_CACHE_BREAKPOINT: Class = Class::typed_dict(
    "PromptCacheBreakpoint",
    &[
        req("mode", Literal(&["explicit"])),
        opt("ttl", Literal(&["30m", "12h"])),
    ],
);

pub(super) static RESPONSE_INPUT_TEXT_PARAM: Class = Class::typed_dict(
    "ResponseInputTextParam",
    &[
        req("text", STR),
        req("type", Literal(&["input_text"])),
        opt("prompt_cache_breakpoint", Model(&PROMPT_CACHE_BREAKPOINT)),
    ],
);

pub(super) static RESPONSE_INPUT_IMAGE_PARAM: Class = Class::typed_dict(
    "ResponseInputImageParam",
    &[
        req("detail", Literal(&["low", "high", "auto", "original"])),
        req("type", Literal(&["input_image"])),
        opt("file_id", Nullable(&STR)),
        opt("image_url", Nullable(&STR)),
        opt("prompt_cache_breakpoint", Model(&PROMPT_CACHE_BREAKPOINT)),
    ],
);

pub(super) static RESPONSE_INPUT_FILE_PARAM: Class = Class::typed_dict(
    "ResponseInputFileParam",
    &[
        req("type", Literal(&["input_file"])),
        opt("detail", Literal(&["auto", "low", "high"])),
        opt("file_data", STR),
        opt("file_id", Nullable(&STR)),
        opt("file_url", STR),
        opt("filename", STR),
        opt("prompt_cache_breakpoint", Model(&PROMPT_CACHE_BREAKPOINT)),
    ],
);

pub(super) static EASY_INPUT_MESSAGE_PARAM: Class = Class::typed_dict(
    "EasyInputMessageParam",
    &[
        req(
            "content",
            Union(&[
                STR,
                List(
                    &Union(&[
                        Model(&RESPONSE_INPUT_TEXT_PARAM),
                        Model(&RESPONSE_INPUT_IMAGE_PARAM),
                        Model(&RESPONSE_INPUT_FILE_PARAM),
                    ]),
                    ANY_LENGTH,
                ),
            ]),
        ),
        req(
            "role",
            Literal(&["user", "assistant", "system", "developer"]),
        ),
        opt("phase", Nullable(&Literal(&["commentary", "final_answer"]))),
        opt("type", Literal(&["message"])),
    ],
);

pub(super) static MESSAGE: Class = Class::typed_dict(
    "Message",
    &[
        req(
            "content",
            List(
                &Union(&[
                    Model(&RESPONSE_INPUT_TEXT_PARAM),
                    Model(&RESPONSE_INPUT_IMAGE_PARAM),
                    Model(&RESPONSE_INPUT_FILE_PARAM),
                ]),
                ANY_LENGTH,
            ),
        ),
        req("role", Literal(&["user", "system", "developer"])),
        opt(
            "status",
            Literal(&["in_progress", "completed", "incomplete"]),
        ),
        opt("type", Literal(&["message"])),
    ],
);

pub(super) static ANNOTATION_FILE_CITATION: Class = Class::typed_dict(
    "AnnotationFileCitation",
    &[
        req("file_id", STR),
        req("filename", STR),
        req("index", INT),
        req("type", Literal(&["file_citation"])),
    ],
);

pub(super) static ANNOTATION_URL_CITATION: Class = Class::typed_dict(
    "AnnotationURLCitation",
    &[
        req("end_index", INT),
        req("start_index", INT),
        req("title", STR),
        req("type", Literal(&["url_citation"])),
        req("url", STR),
    ],
);

pub(super) static ANNOTATION_CONTAINER_FILE_CITATION: Class = Class::typed_dict(
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

pub(super) static ANNOTATION_FILE_PATH: Class = Class::typed_dict(
    "AnnotationFilePath",
    &[
        req("file_id", STR),
        req("index", INT),
        req("type", Literal(&["file_path"])),
    ],
);

pub(super) static LOGPROB_TOP_LOGPROB: Class = Class::typed_dict(
    "LogprobTopLogprob",
    &[
        req("token", STR),
        req("bytes", Iterable(&INT)),
        req("logprob", FLOAT),
    ],
);

pub(super) static LOGPROB: Class = Class::typed_dict(
    "Logprob",
    &[
        req("token", STR),
        req("bytes", Iterable(&INT)),
        req("logprob", FLOAT),
        req("top_logprobs", Iterable(&Model(&LOGPROB_TOP_LOGPROB))),
    ],
);

pub(super) static RESPONSE_OUTPUT_TEXT_PARAM: Class = Class::typed_dict(
    "ResponseOutputTextParam",
    &[
        req(
            "annotations",
            Iterable(&Union(&[
                Model(&ANNOTATION_FILE_CITATION),
                Model(&ANNOTATION_URL_CITATION),
                Model(&ANNOTATION_CONTAINER_FILE_CITATION),
                Model(&ANNOTATION_FILE_PATH),
            ])),
        ),
        req("text", STR),
        req("type", Literal(&["output_text"])),
        opt("logprobs", Iterable(&Model(&LOGPROB))),
    ],
);

pub(super) static RESPONSE_OUTPUT_REFUSAL_PARAM: Class = Class::typed_dict(
    "ResponseOutputRefusalParam",
    &[req("refusal", STR), req("type", Literal(&["refusal"]))],
);

pub(super) static RESPONSE_OUTPUT_MESSAGE_PARAM: Class = Class::typed_dict(
    "ResponseOutputMessageParam",
    &[
        req("id", STR),
        req(
            "content",
            Iterable(&Union(&[
                Model(&RESPONSE_OUTPUT_TEXT_PARAM),
                Model(&RESPONSE_OUTPUT_REFUSAL_PARAM),
            ])),
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

pub(super) static RESULT: Class = Class::typed_dict(
    "Result",
    &[
        opt(
            "attributes",
            Nullable(&Dict(&STR, &Union(&[STR, FLOAT, Bool]))),
        ),
        opt("file_id", STR),
        opt("filename", STR),
        opt("score", FLOAT),
        opt("text", STR),
    ],
);

pub(super) static RESPONSE_FILE_SEARCH_TOOL_CALL_PARAM: Class = Class::typed_dict(
    "ResponseFileSearchToolCallParam",
    &[
        req("id", STR),
        req("queries", Sequence(&STR)),
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
        opt("results", Nullable(&Iterable(&Model(&RESULT)))),
    ],
);

pub(super) static PENDING_SAFETY_CHECK: Class = Class::typed_dict(
    "PendingSafetyCheck",
    &[
        req("id", STR),
        opt("code", Nullable(&STR)),
        opt("message", Nullable(&STR)),
    ],
);

pub(super) static ACTION_CLICK: Class = Class::typed_dict(
    "ActionClick",
    &[
        req(
            "button",
            Literal(&["left", "right", "wheel", "back", "forward"]),
        ),
        req("type", Literal(&["click"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static ACTION_DOUBLE_CLICK: Class = Class::typed_dict(
    "ActionDoubleClick",
    &[
        req("keys", Nullable(&Sequence(&STR))),
        req("type", Literal(&["double_click"])),
        req("x", INT),
        req("y", INT),
    ],
);

pub(super) static ACTION_DRAG_PATH: Class =
    Class::typed_dict("ActionDragPath", &[req("x", INT), req("y", INT)]);

pub(super) static ACTION_DRAG: Class = Class::typed_dict(
    "ActionDrag",
    &[
        req("path", Iterable(&Model(&ACTION_DRAG_PATH))),
        req("type", Literal(&["drag"])),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static ACTION_KEYPRESS: Class = Class::typed_dict(
    "ActionKeypress",
    &[
        req("keys", Sequence(&STR)),
        req("type", Literal(&["keypress"])),
    ],
);

pub(super) static ACTION_MOVE: Class = Class::typed_dict(
    "ActionMove",
    &[
        req("type", Literal(&["move"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static ACTION_SCREENSHOT: Class =
    Class::typed_dict("ActionScreenshot", &[req("type", Literal(&["screenshot"]))]);

pub(super) static ACTION_SCROLL: Class = Class::typed_dict(
    "ActionScroll",
    &[
        req("scroll_x", INT),
        req("scroll_y", INT),
        req("type", Literal(&["scroll"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static ACTION_TYPE: Class = Class::typed_dict(
    "ActionType",
    &[req("text", STR), req("type", Literal(&["type"]))],
);

pub(super) static ACTION_WAIT: Class =
    Class::typed_dict("ActionWait", &[req("type", Literal(&["wait"]))]);

pub(super) static CLICK: Class = Class::typed_dict(
    "Click",
    &[
        req(
            "button",
            Literal(&["left", "right", "wheel", "back", "forward"]),
        ),
        req("type", Literal(&["click"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static DOUBLE_CLICK: Class = Class::typed_dict(
    "DoubleClick",
    &[
        req("keys", Nullable(&Sequence(&STR))),
        req("type", Literal(&["double_click"])),
        req("x", INT),
        req("y", INT),
    ],
);

pub(super) static DRAG_PATH: Class = Class::typed_dict("DragPath", &[req("x", INT), req("y", INT)]);

pub(super) static DRAG: Class = Class::typed_dict(
    "Drag",
    &[
        req("path", Iterable(&Model(&DRAG_PATH))),
        req("type", Literal(&["drag"])),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static KEYPRESS: Class = Class::typed_dict(
    "Keypress",
    &[
        req("keys", Sequence(&STR)),
        req("type", Literal(&["keypress"])),
    ],
);

pub(super) static MOVE: Class = Class::typed_dict(
    "Move",
    &[
        req("type", Literal(&["move"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static SCREENSHOT: Class =
    Class::typed_dict("Screenshot", &[req("type", Literal(&["screenshot"]))]);

pub(super) static SCROLL: Class = Class::typed_dict(
    "Scroll",
    &[
        req("scroll_x", INT),
        req("scroll_y", INT),
        req("type", Literal(&["scroll"])),
        req("x", INT),
        req("y", INT),
        opt("keys", Nullable(&Sequence(&STR))),
    ],
);

pub(super) static TYPE: Class =
    Class::typed_dict("Type", &[req("text", STR), req("type", Literal(&["type"]))]);

pub(super) static WAIT: Class = Class::typed_dict("Wait", &[req("type", Literal(&["wait"]))]);
