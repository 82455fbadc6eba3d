//! What vLLM and llm-d-inference-sim write differently in a message.
//!
//! Sources: vLLM `entrypoints/anthropic/serving.py`; llm-d-inference-sim
//! `pkg/llm-d-inference-sim/messages.go`, `pkg/communication/response_builder.go`.

use crate::dialect::AnswerForm;
use crate::json;
use crate::openai::response_shape::Counts;
use vllm_sim_engine::End;
use vllm_sim_service::Choice;
use vllm_sim_service::generate::{Reason, StopReason};

/// The parts of a message that differ.
pub(super) struct MessageForm {
    /// Appends why a message stopped; `bool`s: whether it called tools, whether what is null shows.
    pub(super) stop: fn(&mut String, &Choice, End, bool, bool),
    /// Appends a usage object; `bool`: whether the cache shows.
    pub(super) usage: fn(&mut String, Counts, bool),
    /// The same at the end of a stream.
    pub(super) last_usage: fn(&mut String, Counts, bool),
    /// The event after a stream's first block was opened, or before it when it is a call.
    pub(super) ping: &'static str,
}

const FULL: MessageForm = MessageForm {
    stop,
    usage,
    last_usage: usage,
    ping: "",
};
const SHORT: MessageForm = MessageForm {
    stop: llmd_stop,
    usage: llmd_usage,
    last_usage: llmd_last_usage,
    ping: "event: ping\ndata: {\"type\":\"ping\"}\n\n",
};

impl MessageForm {
    /// The form of a server's answers.
    pub(super) fn of(answers: AnswerForm) -> &'static Self {
        match answers {
            AnswerForm::Full => &FULL,
            AnswerForm::Short => &SHORT,
        }
    }
}

/// Appends `"stop_reason":…,"stop_sequence":…`; what is null shows only when `nulls`.
fn stop(out: &mut String, choice: &Choice, end: End, called: bool, nulls: bool) {
    let finish = &choice.script.finish;
    let (reason, sequence) = match (end, finish.reason, &finish.stop) {
        (End::Finished, Reason::Length, _) => (Some("max_tokens"), None),
        (End::Finished, Reason::Stop, _) if called => (Some("tool_use"), None),
        (End::Finished, Reason::Stop, Some(StopReason::Text(text))) => {
            (Some("stop_sequence"), Some(text.as_str()))
        }
        (End::Finished, Reason::Stop, _) => (Some("end_turn"), None),
        _ => (None, None),
    };
    let before = out.len();
    if nulls || reason.is_some() {
        out.push_str("\"stop_reason\":");
        json::optional(out, reason);
    }
    if nulls || sequence.is_some() {
        if out.len() > before {
            out.push(',');
        }
        out.push_str("\"stop_sequence\":");
        json::optional(out, sequence);
    }
}

/// Appends a usage object; the cache shows when `details`, and then input excludes it.
fn usage(out: &mut String, counts: Counts, details: bool) {
    let cached = if details {
        counts.cached + counts.created
    } else {
        0
    };
    out.push_str("{\"input_tokens\":");
    json::int(out, counts.prompt.saturating_sub(cached));
    out.push_str(",\"output_tokens\":");
    json::int(out, counts.completion);
    if details {
        out.push_str(",\"cache_creation_input_tokens\":");
        json::int(out, counts.created);
        out.push_str(",\"cache_read_input_tokens\":");
        json::int(out, counts.cached);
    }
    out.push('}');
}

/// Appends `"stop_reason":…,"stop_sequence":null`.
fn llmd_stop(out: &mut String, choice: &Choice, end: End, called: bool, _nulls: bool) {
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
fn llmd_usage(out: &mut String, counts: Counts, _details: bool) {
    out.push_str("{\"input_tokens\":");
    json::int(out, counts.prompt);
    out.push_str(
        ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":",
    );
    json::int(out, counts.completion);
    out.push('}');
}

/// Appends the usage at the end of a stream.
fn llmd_last_usage(out: &mut String, counts: Counts, _details: bool) {
    out.push_str("{\"output_tokens\":");
    json::int(out, counts.completion);
    out.push('}');
}
