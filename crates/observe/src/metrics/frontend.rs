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

/// API of the request whose reply the tool-call parser parses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolParserApi {
    /// The parsed reply belongs to the chat completions API (`/v1/chat/completions`).
    ChatCompletions,
    /// The parsed reply belongs to the Responses API (`/v1/responses`).
    Responses,
}

/// Operation requested by an administrator, with its value of the label `operation`. Its metric families
/// appear with the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminOperation {
    /// Operation of the sleep mode: `sleep`, `wake` or `release_kv_cache_memory`.
    SleepMode(&'static str),
    /// Operation of a weight transfer, such as `init` or `start_draft`.
    WeightTransfer(&'static str),
}

impl Metrics {
    /// Counts a request that a queue limit rejected before an engine was chosen for it.
    pub fn on_request_rejected(&self, reason: RejectionReason) {
        self.server.series_cells(Id::Rejections)[reason as usize].add(1.0);
    }

    /// Counts an invocation of the tool-call parser, and whether the output contained a tool call or a
    /// part of one.
    pub fn on_tool_parser_invocation(
        &self,
        mode: ToolParserMode,
        found_tool_call: bool,
        request: ToolParserApi,
    ) {
        let index = mode as usize * 6 + usize::from(!found_tool_call) * 3 + request as usize;
        self.server.series_cells(Id::ToolParser)[index].add(1.0);
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
        let (families, name) = match operation {
            AdminOperation::SleepMode(name) => ([Id::SleepDuration, Id::SleepInFlight], name),
            AdminOperation::WeightTransfer(name) => {
                ([Id::WeightsDuration, Id::WeightsInFlight], name)
            }
        };
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
