//! Metrics of the API server: rejected requests, tool-call parser, sleep mode, weight updates and
//! WebSockets.

use super::Metrics;
use super::families::Id;

/// Queue limit exceeded by a rejected request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// Limit on the number of queued requests, `--max-num-queued-reqs`.
    QueuedRequests,
    /// Limit on the number of queued prompt tokens, `--max-num-queued-tokens`.
    QueuedTokens,
}

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

impl Metrics {
    /// Counts a request that a queue limit rejected before an engine was chosen for it.
    pub fn on_rejected(&self, reason: Rejection) {
        self.server.series_cells(Id::Rejections)[reason as usize].add(1.0);
    }

    /// Counts `n` invocations of the tool-call parser.
    pub fn on_tool_parser(
        &self,
        mode: ToolMode,
        outcome: ToolOutcome,
        request: ToolRequest,
        n: u32,
    ) {
        let index = mode as usize * 6 + outcome as usize * 3 + request as usize;
        self.server.series_cells(Id::ToolParser)[index].add(f64::from(n));
    }

    /// Records the start of an administrator's operation; [`Self::operation_ended`] must follow.
    pub fn operation_started(&self, operation: Operation) {
        let (duration, in_flight, index) = operation.families();
        let now = (self.clock)();
        for id in [duration, in_flight] {
            self.server.series_cells(id)[index].show(now);
        }
        self.server.series_cells(in_flight)[index].add(1.0);
    }

    /// Records the end and duration of an administrator's operation, successful or not.
    pub fn operation_ended(&self, operation: Operation, seconds: f64) {
        let (duration, in_flight, index) = operation.families();
        self.server.series_cells(in_flight)[index].add(-1.0);
        self.server.series_cells(duration)[index].observe(seconds);
    }

    /// Records an opened WebSocket; [`Self::socket_closed`] must follow.
    pub fn socket_opened(&self) {
        self.server[Id::SocketsActive].add(1.0);
        self.server[Id::SocketsTotal].add(1.0);
    }

    /// Records a closed WebSocket and the duration of its connection, in seconds.
    pub fn socket_closed(&self, seconds: f64) {
        self.server[Id::SocketsActive].add(-1.0);
        self.server[Id::SocketDuration].observe(seconds);
    }
}
