//! Sends request spans to an OpenTelemetry collector.
//!
//! As in vLLM, each sequence has one span `llm_request` of kind SERVER, from its arrival to its
//! end, as a child of the request's `traceparent`. The queue of the exporter is bounded and drops
//! spans when full, so that a slow collector delays no request. Everything except [`OtlpProtocol`]
//! needs the feature `otel`.
//!
//! **Source:** vLLM 0.33 `vllm/tracing/utils.py` and `v1/engine/output_processor.py`.

#[cfg(feature = "otel")]
mod export;
mod protocol;
#[cfg(feature = "otel")]
mod spans;

#[cfg(feature = "otel")]
pub use export::OtlpError;
pub use protocol::OtlpProtocol;
#[cfg(feature = "otel")]
pub use spans::{RequestSpanObserver, TraceExporter};
