//! Metrics of the API server: tool-call parser, sleep mode and weight updates.

use std::sync::Arc;

use super::buckets::OPERATION;
use super::cell::{Counter, CreatedAt, Gauge, Histogram};
use super::families as f;
use super::number::push_float;
use super::page::{
    ApiServers, FamilyDesc, FamilyGroup, Labels, LiveFamily, PageBuilder, Series, header,
    histogram_lines, write_histogram,
};
use super::settings::Clock;

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

/// Invocations of the tool-call parser: 2 modes × 2 outcomes × 3 APIs, all exposed from the start.
pub(super) struct ToolParserMetrics([Arc<Counter>; 12]);

impl ToolParserMetrics {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Arc::default()))
    }

    pub(super) fn register(&self, page: &mut PageBuilder, model_name: &str) {
        let modes = ["streaming", "non_streaming"];
        let outcomes = ["tool_call", "no_tool_call"];
        let requests = ["chat_completions", "responses", "other"];
        let series = self.0.iter().enumerate().map(|(i, cell)| {
            let labels = Labels::new([
                ("model_name", model_name),
                ("mode", modes[i / 6]),
                ("outcome", outcomes[i / 3 % 2]),
                ("request_type", requests[i % 3]),
            ]);
            Series::new(labels, cell)
        });
        page.counter(f::TOOL_PARSER, series.collect());
    }

    pub(super) fn add(&self, mode: ToolMode, outcome: ToolOutcome, request: ToolRequest, n: u32) {
        let i = mode as usize * 6 + outcome as usize * 3 + request as usize;
        self.0[i].add(u64::from(n));
    }
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

const SLEEP: [&str; 3] = ["sleep", "release_kv_cache_memory", "wake"];
const WEIGHTS: [&str; 6] = ["init", "shutdown", "start", "start_draft", "update", "finish"];

pub(super) struct OperationFamily {
    duration: FamilyDesc,
    in_flight: FamilyDesc,
    each: Vec<OperationCells>,
    api_servers: ApiServers,
}

struct OperationCells {
    labels: String,
    created: CreatedAt,
    duration: Histogram,
    lines: Vec<String>,
    in_flight: Gauge,
}

impl OperationFamily {
    fn new(
        duration: FamilyDesc,
        in_flight: FamilyDesc,
        names: &[&str],
        page: &PageBuilder,
    ) -> Self {
        let api_servers = page.api_servers();
        let each = names.iter().map(|name| {
            let labels = Labels::new([("operation", *name)]);
            OperationCells {
                lines: histogram_lines(duration.name, &labels, (OPERATION, false), api_servers),
                labels: labels.render(),
                created: CreatedAt::default(),
                duration: Histogram::new(OPERATION),
                in_flight: Gauge::default(),
            }
        });
        Self { duration, in_flight, each: each.collect(), api_servers }
    }

    /// Returns the operations requested so far with the Unix times of their first requests, in that
    /// order.
    fn shown(&self) -> Vec<(f64, &OperationCells)> {
        let mut shown: Vec<_> =
            self.each.iter().filter_map(|op| Some((op.created.at()?, op))).collect();
        shown.sort_by(|a, b| a.0.total_cmp(&b.0));
        shown
    }

    fn write_durations(&self, out: &mut String) {
        let shown = self.shown();
        if shown.is_empty() {
            return;
        }
        let FamilyDesc { name, help } = self.duration;
        out.push_str(&header(name, help, "histogram"));
        for (_, op) in &shown {
            write_histogram(out, &op.duration, &op.lines, self.api_servers);
        }
        if self.api_servers == ApiServers::One {
            let name = format!("{name}_created");
            out.push_str(&header(&name, help, "gauge"));
            for (at, op) in &shown {
                push_sample(out, &name, &op.labels, *at);
            }
        }
    }

    fn write_in_flight(&self, out: &mut String) {
        let shown = self.shown();
        if shown.is_empty() {
            return;
        }
        let FamilyDesc { name, help } = self.in_flight;
        out.push_str(&header(name, help, "gauge"));
        for (_, op) in &shown {
            push_sample(out, name, &op.labels, op.in_flight.get());
        }
    }
}

fn push_sample(out: &mut String, name: &str, labels: &str, value: f64) {
    out.push_str(name);
    out.push_str(labels);
    out.push(' ');
    push_float(out, value);
    out.push('\n');
}

struct DurationFamily(Arc<OperationFamily>);
impl LiveFamily for DurationFamily {
    fn restart(&self, _: f64) {
        for op in &self.0.each {
            op.created.hide();
            op.duration.replace(&[]);
        }
    }

    fn write(&self, out: &mut String, _: f64) {
        self.0.write_durations(out);
    }
}

struct InFlightFamily(Arc<OperationFamily>);
impl LiveFamily for InFlightFamily {
    fn write(&self, out: &mut String, _: f64) {
        self.0.write_in_flight(out);
    }
}

pub(super) struct OperationMetrics {
    sleep: Arc<OperationFamily>,
    weights: Arc<OperationFamily>,
    clock: Clock,
}

impl OperationMetrics {
    pub(super) fn new(page: &PageBuilder, clock: Clock) -> Self {
        let sleep = OperationFamily::new(f::SLEEP_DURATION, f::SLEEP_IN_FLIGHT, &SLEEP, page);
        let weights =
            OperationFamily::new(f::WEIGHTS_DURATION, f::WEIGHTS_IN_FLIGHT, &WEIGHTS, page);
        Self { sleep: Arc::new(sleep), weights: Arc::new(weights), clock }
    }

    pub(super) fn register(&self, page: &mut PageBuilder) {
        for ops in [&self.sleep, &self.weights] {
            page.live(FamilyGroup::Histogram, Arc::new(DurationFamily(ops.clone())));
            page.live(FamilyGroup::SummedGauge, Arc::new(InFlightFamily(ops.clone())));
        }
    }

    fn one(&self, op: Operation) -> &OperationCells {
        let i = op as usize;
        match i.checked_sub(SLEEP.len()) {
            None => &self.sleep.each[i],
            Some(i) => &self.weights.each[i],
        }
    }

    pub(super) fn started(&self, op: Operation) {
        let one = self.one(op);
        one.created.show((self.clock)());
        one.in_flight.add(1.0);
    }

    pub(super) fn ended(&self, op: Operation, seconds: f64) {
        let one = self.one(op);
        one.in_flight.add(-1.0);
        one.duration.observe(seconds);
    }
}
