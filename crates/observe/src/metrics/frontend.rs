//! Metrics of the API server: tool-call parser, sleep mode and weight updates.

use super::families::Id;

/// Form of the reply that the tool-call parser parses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolMode {
    /// Streamed reply, one invocation of the tool-call parser per delta.
    Streaming,
    /// Complete reply, one invocation of the tool-call parser per choice.
    NonStreaming,
}

/// Result of the tool-call parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolOutcome {
    /// The parser found a tool call, or a part of one.
    ToolCall,
    /// The parser found only text.
    NoToolCall,
}

/// API of the request whose reply the tool-call parser parses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolRequest {
    /// Chat completions API (`/v1/chat/completions`).
    ChatCompletions,
    /// Responses API (`/v1/responses`).
    Responses,
    /// Any other API.
    Other,
}

/// Operation requested by an administrator. Its metric family appears with the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Sleep of the engines (`/sleep`).
    Sleep,
    /// Release of the KV cache's memory.
    ReleaseKvCacheMemory,
    /// Wake-up of the engines (`/wake_up`).
    Wake,
    /// Initialization of a weight transfer.
    WeightsInit,
    /// Shutdown of a weight transfer.
    WeightsShutdown,
    /// Start of a weight update.
    WeightsStart,
    /// Start of a weight update of the draft model.
    WeightsStartDraft,
    /// One part of a weight update.
    WeightsUpdate,
    /// End of a weight update.
    WeightsFinish,
}

impl Operation {
    /// Returns the operation's families of durations and of operations in flight, and the index of
    /// its series.
    pub(super) fn families(self) -> (Id, Id, usize) {
        match (self as usize).checked_sub(Self::WeightsInit as usize) {
            None => (Id::SleepDuration, Id::SleepInFlight, self as usize),
            Some(index) => (Id::WeightsDuration, Id::WeightsInFlight, index),
        }
    }
}
