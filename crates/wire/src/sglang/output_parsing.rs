//! Requests of `POST /separate_reasoning` and `POST /parse_function_call`.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`.

use serde_json::Value;

use super::chat_schema;
use super::server_control::msgspec_structs;
use crate::schema::wire_model;

msgspec_structs! {
    SeparateReasoningRequest: "SeparateReasoningReqInput",
    ParseCallsRequest: "ParseFunctionCallReq",
}

wire_model! {
    /// A request to separate the reasoning of a text from the rest.
    pub struct SeparateReasoningRequest: TypedDict "function-after[build_struct(), SeparateReasoningReqInput]" {
        /// The text to split into reasoning and content.
        text: String,
        /// Name of the reasoning parser.
        reasoning_parser: String,
        /// Whether the response also has the parts of the text as lists.
        return_blocks: bool = false,
    }
}

wire_model! {
    /// A request to find the tool calls in a text.
    pub struct ParseCallsRequest: TypedDict "function-after[build_struct(), ParseFunctionCallReq]" {
        /// The text in which to find tool calls.
        text: String,
        /// The tools that a call may name.
        tools: Vec<Value> [chat_schema::TOOL_LIST_SCHEMA] = Vec::new(),
        /// Name of the tool-call parser.
        tool_call_parser: Option<String> = None,
    }
}
