//! The classes that a Responses request is checked against.
//!
//! The input is a union of every kind of item the API knows, twice: as clients send them and as
//! earlier answers contained them. An item that is none of them is answered with the errors of
//! all, so all of them are here.
//!
//! Source: `ResponsesRequest` of `vllm/entrypoints/openai/responses/protocol.py` and the classes
//! of the openai SDK, release 3.52, that it names.

mod approvals;
mod containers;
mod executions;
mod messages;
mod offered;
mod outputs;
mod programs;
mod results;
mod searches;
mod settings;

use approvals::*;
use containers::*;
use executions::*;
use messages::*;
use offered::*;
use outputs::*;
use programs::*;
use results::*;
use searches::*;
use settings::*;

use crate::schema::Schema::{self, Any, Before, Dict, List, Literal, Model, Nullable, Union};
use crate::schema::{ANY_LENGTH, STR};

/// One item of the input.
pub(super) const ITEM: Schema = Union(&[
    Model(&EASY_INPUT_MESSAGE_PARAM),
    Model(&MESSAGE),
    Model(&RESPONSE_OUTPUT_MESSAGE_PARAM),
    Model(&RESPONSE_FILE_SEARCH_TOOL_CALL_PARAM),
    Model(&RESPONSE_COMPUTER_TOOL_CALL_PARAM),
    Model(&COMPUTER_CALL_OUTPUT),
    Model(&RESPONSE_FUNCTION_WEB_SEARCH_PARAM),
    Model(&RESPONSE_FUNCTION_TOOL_CALL_PARAM),
    Model(&FUNCTION_CALL_OUTPUT),
    Model(&TOOL_SEARCH_CALL),
    Model(&RESPONSE_TOOL_SEARCH_OUTPUT_ITEM_PARAM_PARAM),
    Model(&ADDITIONAL_TOOLS),
    Model(&RESPONSE_CONFIGURATION_UPDATE_ITEM_PARAM_PARAM),
    Model(&RESPONSE_REASONING_ITEM_PARAM),
    Model(&RESPONSE_COMPACTION_ITEM_PARAM_PARAM),
    Model(&IMAGE_GENERATION_CALL),
    Model(&RESPONSE_CODE_INTERPRETER_TOOL_CALL_PARAM),
    Model(&LOCAL_SHELL_CALL),
    Model(&LOCAL_SHELL_CALL_OUTPUT),
    Model(&SHELL_CALL),
    Model(&SHELL_CALL_OUTPUT),
    Model(&APPLY_PATCH_CALL),
    Model(&APPLY_PATCH_CALL_OUTPUT),
    Model(&MCP_LIST_TOOLS),
    Model(&MCP_APPROVAL_REQUEST),
    Model(&MCP_APPROVAL_RESPONSE),
    Model(&MCP_CALL),
    Model(&RESPONSE_CUSTOM_TOOL_CALL_OUTPUT_PARAM),
    Model(&RESPONSE_CUSTOM_TOOL_CALL_PARAM),
    Model(&COMPACTION_TRIGGER),
    Model(&ITEM_REFERENCE),
    Model(&PROGRAM),
    Model(&PROGRAM_OUTPUT),
    Union(&[
        Model(&RESPONSE_OUTPUT_MESSAGE),
        Model(&RESPONSE_FILE_SEARCH_TOOL_CALL),
        Model(&RESPONSE_FUNCTION_TOOL_CALL),
        Model(&RESPONSE_FUNCTION_TOOL_CALL_OUTPUT_ITEM),
        Model(&RESPONSE_FUNCTION_WEB_SEARCH),
        Model(&RESPONSE_COMPUTER_TOOL_CALL),
        Model(&RESPONSE_COMPUTER_TOOL_CALL_OUTPUT_ITEM),
        Model(&RESPONSE_REASONING_ITEM),
        Model(&PROGRAM_2),
        Model(&PROGRAM_OUTPUT_2),
        Model(&RESPONSE_TOOL_SEARCH_CALL),
        Model(&RESPONSE_TOOL_SEARCH_OUTPUT_ITEM),
        Model(&ADDITIONAL_TOOLS_2),
        Model(&RESPONSE_COMPACTION_ITEM),
        Model(&IMAGE_GENERATION_CALL_2),
        Model(&RESPONSE_CODE_INTERPRETER_TOOL_CALL),
        Model(&LOCAL_SHELL_CALL_2),
        Model(&LOCAL_SHELL_CALL_OUTPUT_2),
        Model(&RESPONSE_FUNCTION_SHELL_TOOL_CALL),
        Model(&RESPONSE_FUNCTION_SHELL_TOOL_CALL_OUTPUT),
        Model(&RESPONSE_APPLY_PATCH_TOOL_CALL),
        Model(&RESPONSE_APPLY_PATCH_TOOL_CALL_OUTPUT),
        Model(&MCP_CALL_2),
        Model(&MCP_LIST_TOOLS_2),
        Model(&MCP_APPROVAL_REQUEST_2),
        Model(&MCP_APPROVAL_RESPONSE_2),
        Model(&RESPONSE_CUSTOM_TOOL_CALL),
        Model(&RESPONSE_CUSTOM_TOOL_CALL_OUTPUT_ITEM),
    ]),
]);

/// A text, or items.
pub(super) const INPUT: Schema = Union(&[
    STR,
    List(&Before(super::responses::image_detail, &ITEM), ANY_LENGTH),
]);

/// Tools of every kind.
pub(super) const TOOLS: Schema = List(
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
);

/// How tools are chosen.
pub(super) const TOOL_CHOICE: Schema = Union(&[
    Literal(&["none", "auto", "required"]),
    Model(&TOOL_CHOICE_ALLOWED),
    Model(&TOOL_CHOICE_TYPES),
    Model(&TOOL_CHOICE_FUNCTION),
    Model(&TOOL_CHOICE_MCP),
    Model(&TOOL_CHOICE_CUSTOM),
    Model(&TOOL_CHOICE_SPECIFIC_PROGRAMMATIC_TOOL_CALLING_PARAM),
    Model(&TOOL_CHOICE_APPLY_PATCH),
    Model(&TOOL_CHOICE_SHELL),
]);

/// A stored prompt.
pub(super) const PROMPT: Schema = Nullable(&Model(&RESPONSE_PROMPT));

/// How to reason.
pub(super) const REASONING: Schema = Nullable(&Model(&REASONING_2));

/// The form of the text.
pub(super) const TEXT: Schema = Nullable(&Model(&RESPONSE_TEXT_CONFIG));

/// Messages of earlier turns.
pub(super) const PREVIOUS_INPUT_MESSAGES: Schema = Nullable(&List(
    &Union(&[Model(&MESSAGE_2), Dict(&Any, &Any)]),
    ANY_LENGTH,
));

/// The reasoning of an earlier answer.
pub(super) const REASONING_ITEM: Schema = Model(&RESPONSE_REASONING_ITEM);

/// A message of an earlier answer.
pub(super) const OUTPUT_MESSAGE: Schema = Model(&RESPONSE_OUTPUT_MESSAGE);
