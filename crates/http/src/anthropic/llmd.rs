//! Messages as llm-d-inference-sim shows and checks them (`--compat llm-d`).
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/messages.go`, `pkg/api/response.go`,
//! `pkg/communication/response_builder.go`.

use serde_json::Value;

use crate::json;
use crate::openai::response_shape::Counts;
use vllm_sim_engine::End;
use vllm_sim_service::Choice;
use vllm_sim_service::generate::Reason;
use vllm_sim_wire::fault::Fault;

/// What llm-d finds in a body before anything else.
///
/// # Errors
/// Its 400.
pub(super) fn check(body: &Value) -> Result<(), Fault> {
    let messages = body.get("messages").and_then(Value::as_array);
    let blocks = messages.into_iter().flatten();
    let blocks = blocks.filter_map(|message| message.get("content")?.as_array());
    let lacks = |value: &Value, key: &str| value.get(key).is_none_or(Value::is_null);
    let picture = |block: &Value| block.get("type").is_some_and(|kind| kind == "image");
    if blocks
        .flatten()
        .any(|block| picture(block) && lacks(block, "source"))
    {
        let words = "image content block is missing required 'source' field";
        return Err(Fault::bad_request(words));
    }
    if let Some(choice) = body.get("tool_choice").filter(|c| c["type"] == "tool")
        && (lacks(choice, "name") || choice["name"] == "")
    {
        let words = "tool_choice of type 'tool' requires a non-empty 'name'";
        return Err(Fault::bad_request(words));
    }
    if messages.is_some_and(Vec::is_empty) || lacks(body, "messages") {
        return Err(Fault::bad_request("messages must not be empty"));
    }
    if lacks(body, "max_tokens") {
        return Err(Fault::bad_request("max_tokens is required"));
    }
    Ok(())
}

/// Appends `"stop_reason":…,"stop_sequence":null`.
pub(super) fn stop(out: &mut String, choice: &Choice, end: End, called: bool) {
    let reason = match (end, choice.script.finish.reason) {
        (End::Threshold, _) | (End::Finished, Reason::Length) => "max_tokens",
        _ if called => "tool_use",
        _ => "end_turn",
    };
    out.push_str("\"stop_reason\":");
    json::string(out, reason);
    out.push_str(",\"stop_sequence\":null");
}

/// Appends a usage object: the whole prompt, and a cache that is never mentioned.
pub(super) fn usage(out: &mut String, counts: Counts) {
    out.push_str("{\"input_tokens\":");
    json::int(out, counts.prompt);
    out.push_str(
        ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":",
    );
    json::int(out, counts.completion);
    out.push('}');
}

/// The event after a stream's first block was opened, or before it when it is a call.
pub(super) const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
