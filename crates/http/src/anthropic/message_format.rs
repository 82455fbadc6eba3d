//! Parts of an Anthropic message that vLLM and llm-d-inference-sim render differently.
//!
//! Sources: vLLM `entrypoints/anthropic/serving.py`; llm-d-inference-sim
//! `pkg/llm-d-inference-sim/messages.go`, `pkg/communication/response_builder.go`.

use crate::dialect::ResponseDetail;
use crate::json::{self, Nulls};
use crate::openai::response_shape::{Counts, ResponseShape};
use vllm_sim_engine::End;
use vllm_sim_service::Choice;
use vllm_sim_service::generate::{Reason, StopReason};

pub(super) struct MessageEnd<'c> {
    pub(super) choice: &'c Choice,
    pub(super) end: End,
    pub(super) called: bool,
}

/// Selects whether the usage of a message reports cached tokens separately from the input tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheCounts {
    Shown,
    LeftOut,
}

impl CacheCounts {
    pub(super) fn of(view: &ResponseShape) -> Self {
        if view.prompt_details {
            Self::Shown
        } else {
            Self::LeftOut
        }
    }
}

/// Functions and texts by which vLLM or llm-d-inference-sim renders an Anthropic message.
pub(super) struct MessageFormat {
    pub(super) stop: fn(&mut String, MessageEnd<'_>, Nulls),
    pub(super) usage: fn(&mut String, Counts, CacheCounts),
    /// Appends the usage object at the end of a stream of Anthropic message events.
    pub(super) last_usage: fn(&mut String, Counts, CacheCounts),
    /// The text of the `ping` event, sent after the start of a stream's first content block, or
    /// before it for a tool call.
    pub(super) ping: &'static str,
}

const FULL: MessageFormat = MessageFormat {
    stop,
    usage,
    last_usage: usage,
    ping: "",
};
const SHORT: MessageFormat = MessageFormat {
    stop: llmd_stop,
    usage: llmd_usage,
    last_usage: llmd_last_usage,
    ping: "event: ping\ndata: {\"type\":\"ping\"}\n\n",
};

impl MessageFormat {
    pub(super) fn of(answers: ResponseDetail) -> &'static Self {
        match answers {
            ResponseDetail::Full => &FULL,
            ResponseDetail::Short => &SHORT,
        }
    }
}

/// Appends the members `"stop_reason":…,"stop_sequence":…` of a message, as vLLM does.
fn stop(out: &mut String, message: MessageEnd<'_>, nulls: Nulls) {
    let nulls = nulls == Nulls::Shown;
    let finish = &message.choice.script.finish;
    let (reason, sequence) = match (message.end, finish.reason, &finish.stop) {
        (End::Finished, Reason::Length, _) => (Some("max_tokens"), None),
        (End::Finished, Reason::Stop, _) if message.called => (Some("tool_use"), None),
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

/// Appends the usage object of a message, as vLLM does; `input_tokens` excludes cached tokens if
/// they are reported separately.
fn usage(out: &mut String, counts: Counts, cache: CacheCounts) {
    let details = cache == CacheCounts::Shown;
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

/// Appends the members `"stop_reason":…,"stop_sequence":null` of a message, as llm-d-inference-sim
/// does.
fn llmd_stop(out: &mut String, message: MessageEnd<'_>, _nulls: Nulls) {
    let reason = match (message.end, message.choice.script.finish.reason) {
        (End::Threshold, _) | (End::Finished, Reason::Length) => "max_tokens",
        _ if message.called => "tool_use",
        _ => "end_turn",
    };
    out.push_str("\"stop_reason\":");
    json::string(out, reason);
    out.push_str(",\"stop_sequence\":null");
}

/// Appends the usage object of a message as llm-d-inference-sim does: the whole prompt as input,
/// and zero cached tokens.
fn llmd_usage(out: &mut String, counts: Counts, _cache: CacheCounts) {
    out.push_str("{\"input_tokens\":");
    json::int(out, counts.prompt);
    out.push_str(
        ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":",
    );
    json::int(out, counts.completion);
    out.push('}');
}

fn llmd_last_usage(out: &mut String, counts: Counts, _cache: CacheCounts) {
    out.push_str("{\"output_tokens\":");
    json::int(out, counts.completion);
    out.push('}');
}
