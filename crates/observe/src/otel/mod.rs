//! Spans of requests, sent to an OpenTelemetry collector.
//!
//! Names: vLLM 0.33 `vllm/tracing/utils.py` and `v1/engine/output_processor.py`: one span
//! `llm_request` of kind SERVER per sequence, a child of the request's `traceparent`, from its
//! arrival to its end. The queue behind the exporter is bounded; what finds no place is dropped, so
//! that a slow collector delays nobody. All but the names of the settings needs the feature `otel`.

#[cfg(feature = "otel")]
mod export;
mod protocol;
#[cfg(feature = "otel")]
mod spans;

#[cfg(feature = "otel")]
pub use export::OtlpError;
pub use protocol::OtlpProtocol;
#[cfg(feature = "otel")]
pub use spans::{SpanObserver, Spans};
