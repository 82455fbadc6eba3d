//! Metrics of the API server: rejected requests, tool-call parser, sleep mode, weight updates and
//! WebSockets.

use std::sync::Arc;

use super::Metrics;
use super::families::Id;
use super::series::MetricSeries;

/// Queue limit exceeded by a rejected request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionReason {
    /// Limit on the number of queued requests, `--max-num-queued-reqs`.
    QueuedRequests,
    /// Limit on the number of queued prompt tokens, `--max-num-queued-tokens`.
    QueuedTokens,
}

/// Form of the reply that the tool-call parser parses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolParserMode {
    /// Streamed reply, one invocation of the tool-call parser per delta.
    Streaming,
    /// Complete reply, one invocation of the tool-call parser per choice.
    NonStreaming,
}

/// Result of the tool-call parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolParserOutcome {
    /// Outcome of a tool-call parse: the output contained a tool call, or a part of one.
    ToolCall,
    /// Outcome of a tool-call parse: the output contained only text, no calls.
    NoToolCall,
}

/// API of the request whose reply the tool-call parser parses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolParserApi {
    /// The parsed reply belongs to the chat completions API (`/v1/chat/completions`).
    ChatCompletions,
    /// The parsed reply belongs to the Responses API (`/v1/responses`).
    Responses,
}

/// Operation requested by an administrator. Its metric family appears with the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminOperation {
    /// Administrator's operation: sleep of the engines (`/sleep`).
    Sleep,
    /// Administrator's operation: release of the KV cache's memory.
    ReleaseKvCacheMemory,
    /// Administrator's operation: wake-up of the engines (`/wake_up`).
    Wake,
    /// Administrator's operation: initialization of a weight transfer.
    WeightsInit,
    /// Administrator's operation: shutdown of a weight transfer.
    WeightsShutdown,
    /// Administrator's operation: start of a weight update.
    WeightsStart,
    /// Administrator's operation: start of a weight update of the draft model.
    WeightsStartDraft,
    /// Administrator's operation: one part of a weight update.
    WeightsUpdate,
    /// Administrator's operation: end of a weight update.
    WeightsFinish,
}

/// Values of the label `operation`, indexed by [`AdminOperation`].
const OPERATIONS: [&str; 9] = [
    "sleep",
    "release_kv_cache_memory",
    "wake",
    "init",
    "shutdown",
    "start",
    "start_draft",
    "update",
    "finish",
];

impl Metrics {
    /// Counts a request that a queue limit rejected before an engine was chosen for it.
    pub fn on_request_rejected(&self, reason: RejectionReason) {
        self.server.series_cells(Id::Rejections)[reason as usize].add(1.0);
    }

    /// Counts `n` invocations of the tool-call parser.
    pub fn on_tool_parser_invocations(
        &self,
        mode: ToolParserMode,
        outcome: ToolParserOutcome,
        request: ToolParserApi,
        n: u32,
    ) {
        let index = mode as usize * 6 + outcome as usize * 3 + request as usize;
        self.server.series_cells(Id::ToolParser)[index].add(f64::from(n));
    }

    /// Records the start of an administrator's operation; [`Self::operation_ended`] must follow.
    pub fn operation_started(&self, operation: AdminOperation) {
        let [_, in_flight] = self.operation_series(operation, (self.settings.clock.0)());
        in_flight.add(1.0);
    }

    /// Records the end and duration of an administrator's operation, successful or not.
    pub fn operation_ended(&self, operation: AdminOperation, seconds: f64) {
        let [duration, in_flight] = self.operation_series(operation, 0.0);
        in_flight.add(-1.0);
        duration.observe(seconds);
    }

    /// Returns the series of an administrator's operation: durations, and operations in flight. A
    /// hidden series is shown, with `created` as its creation time.
    fn operation_series(&self, operation: AdminOperation, created: f64) -> [Arc<MetricSeries>; 2] {
        use AdminOperation::{ReleaseKvCacheMemory, Sleep, Wake};
        let families = match operation {
            Sleep | ReleaseKvCacheMemory | Wake => [Id::SleepDuration, Id::SleepInFlight],
            _ => [Id::WeightsDuration, Id::WeightsInFlight],
        };
        let name = OPERATIONS[operation as usize];
        families.map(|id| self.vecs[id as usize].with_label_values(&[name], created))
    }

    /// Records an opened WebSocket; [`Self::on_websocket_closed`] must follow.
    pub fn on_websocket_opened(&self) {
        self.server[Id::SocketsActive].add(1.0);
        self.server[Id::SocketsTotal].add(1.0);
    }

    /// Records a closed WebSocket and the duration of its connection, in seconds.
    pub fn on_websocket_closed(&self, seconds: f64) {
        self.server[Id::SocketsActive].add(-1.0);
        self.server[Id::SocketDuration].observe(seconds);
    }
}
