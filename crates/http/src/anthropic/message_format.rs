//! Parts of an Anthropic message that vLLM and llm-d-inference-sim render differently.
//!
//! Sources: vLLM `entrypoints/anthropic/serving.py`; llm-d-inference-sim
//! `pkg/llm-d-inference-sim/messages.go`, `pkg/communication/response_builder.go`.

use crate::dialect::ResponseFieldSet;
use crate::json;
use crate::openai::response_settings::{NullMemberHandling, ResponseSettings, TokenCounts};
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_service::ReplyChoice;
use vllm_sim_service::generate::{OutputEndReason, StopReason};

pub(super) struct AnthropicStopReasonInputs<'c> {
    pub(super) choice: &'c ReplyChoice,
    pub(super) end: SequenceEndReason,
    pub(super) called: bool,
}

/// Selects whether the usage of an Anthropic message reports cached tokens separately from the
/// input tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CachedTokenReporting {
    Shown,
    LeftOut,
}

impl CachedTokenReporting {
    pub(super) fn from_response_settings(shape: &ResponseSettings) -> Self {
        if shape.prompt_details { Self::Shown } else { Self::LeftOut }
    }
}

/// Returns the text of the `ping` event. It follows the start of a stream's first content block, but
/// precedes that start if the block is a tool call.
pub(super) fn ping_event(fields: ResponseFieldSet) -> &'static str {
    match fields {
        ResponseFieldSet::Full => "",
        ResponseFieldSet::Short => "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    }
}

/// Appends the members `"stop_reason":…,"stop_sequence":…` of an Anthropic message.
pub(super) fn write_stop_members(
    out: &mut String,
    fields: ResponseFieldSet,
    message: &AnthropicStopReasonInputs<'_>,
    nulls: NullMemberHandling,
) {
    if fields == ResponseFieldSet::Short {
        return write_llmd_stop_members(out, message);
    }
    let nulls = nulls == NullMemberHandling::Shown;
    let finish = &message.choice.script.finish;
    let (reason, sequence) = match (message.end, finish.reason, &finish.stop) {
        (SequenceEndReason::Finished, OutputEndReason::Length, _) => (Some("max_tokens"), None),
        (SequenceEndReason::Finished, OutputEndReason::Stop, _) if message.called => {
            (Some("tool_use"), None)
        }
        (SequenceEndReason::Finished, OutputEndReason::Stop, Some(StopReason::Text(text))) => {
            (Some("stop_sequence"), Some(text.as_str()))
        }
        (SequenceEndReason::Finished, OutputEndReason::Stop, _) => (Some("end_turn"), None),
        _ => (None, None),
    };
    let before = out.len();
    if nulls || reason.is_some() {
        json::write_member(out, "\"stop_reason\":", reason);
    }
    if nulls || sequence.is_some() {
        if out.len() > before {
            out.push(',');
        }
        json::write_member(out, "\"stop_sequence\":", sequence);
    }
}

/// Appends the usage object of an Anthropic message; vLLM's `input_tokens` excludes cached tokens if
/// they are reported separately.
pub(super) fn write_usage(
    out: &mut String,
    fields: ResponseFieldSet,
    counts: TokenCounts,
    cache: CachedTokenReporting,
) {
    if fields == ResponseFieldSet::Short {
        return write_llmd_usage(out, counts);
    }
    let details = cache == CachedTokenReporting::Shown;
    let cached = if details { counts.cached + counts.created } else { 0 };
    json::write_member(out, "{\"input_tokens\":", counts.prompt_tokens.saturating_sub(cached));
    json::write_member(out, ",\"output_tokens\":", counts.completion);
    if details {
        json::write_member(out, ",\"cache_creation_input_tokens\":", counts.created);
        json::write_member(out, ",\"cache_read_input_tokens\":", counts.cached);
    }
    out.push('}');
}

/// Appends the members `"stop_reason":…,"stop_sequence":null` of an Anthropic message, as
/// llm-d-inference-sim does.
fn write_llmd_stop_members(out: &mut String, message: &AnthropicStopReasonInputs<'_>) {
    let reason = match (message.end, message.choice.script.finish.reason) {
        (SequenceEndReason::Threshold, _)
        | (SequenceEndReason::Finished, OutputEndReason::Length) => "max_tokens",
        _ if message.called => "tool_use",
        _ => "end_turn",
    };
    json::write_member(out, "\"stop_reason\":", reason);
    out.push_str(",\"stop_sequence\":null");
}

/// Appends the usage object of an Anthropic message as llm-d-inference-sim does: the whole prompt
/// as input, and zero cached tokens.
fn write_llmd_usage(out: &mut String, counts: TokenCounts) {
    json::write_member(out, "{\"input_tokens\":", counts.prompt_tokens);
    out.push_str(
        ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":",
    );
    json::write_json_int(out, counts.completion);
    out.push('}');
}

/// Appends the usage object at the end of a stream of Anthropic message events.
pub(super) fn write_last_usage(
    out: &mut String,
    fields: ResponseFieldSet,
    counts: TokenCounts,
    cache: CachedTokenReporting,
) {
    match fields {
        ResponseFieldSet::Full => write_usage(out, fields, counts, cache),
        ResponseFieldSet::Short => {
            json::write_member(out, "{\"output_tokens\":", counts.completion);
            out.push('}');
        }
    }
}
