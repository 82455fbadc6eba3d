//! Creates a trace span for each finished sequence.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use super::export::{OtlpError, create_span_exporter};
use super::protocol::OtlpProtocol;
use vllm_sim_engine::SchedulerEvent;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};

/// vLLM's name of the module that creates trace spans.
const VLLM_TRACER_NAME: &str = "vllm.llm_engine";

/// Connection to an OpenTelemetry collector; closing it sends queued spans.
#[derive(Debug, Clone)]
pub struct TraceExporter {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl TraceExporter {
    /// Opens an OTLP exporter to `endpoint`, in the form that [`OtlpProtocol`] describes.
    /// OpenTelemetry's environment variables apply. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`OtlpError`] if the endpoint is not a URL or the certificates cannot be read.
    pub fn open(endpoint: &str, protocol: OtlpProtocol) -> Result<Self, OtlpError> {
        let exporter = create_span_exporter(endpoint, protocol)?;
        let resource = Resource::builder()
            .with_attribute(KeyValue::new("vllm.instrumenting_module_name", VLLM_TRACER_NAME))
            .with_attribute(KeyValue::new("vllm.process_id", std::process::id().to_string()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer(VLLM_TRACER_NAME);
        Ok(Self { provider, tracer })
    }

    /// Creates an observer that exports the spans of one engine; `clock_start_unix` is the Unix time at the
    /// zero of the engine's clock, in seconds.
    pub fn create_engine_span_observer(&self, clock_start_unix: f64) -> RequestSpanObserver {
        let started = Duration::try_from_secs_f64(clock_start_unix).unwrap_or_default();
        RequestSpanObserver { tracer: self.tracer.clone(), started: UNIX_EPOCH + started }
    }

    /// Sends queued spans and closes the connection. Blocks up to the timeout of one export.
    pub fn flush_and_close(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "spans were lost");
        }
    }
}

/// Observer of one engine: creates a trace span for each finished sequence.
#[derive(Debug)]
pub struct RequestSpanObserver {
    tracer: SdkTracer,
    started: SystemTime,
}

impl RequestSpanObserver {
    fn to_wall_clock(&self, at: SimTime) -> SystemTime {
        self.started + Duration::from_nanos(at.as_nanos())
    }

    fn export_request_span(&self, at: SimTime, record: &SequenceRecord) {
        let Some(span) = &record.span else {
            return;
        };
        let seconds = |from: SimTime, to: SimTime| to.duration_since(from).as_secs_f64();
        let mut attributes = vec![
            KeyValue::new(
                "gen_ai.latency.time_to_first_token",
                seconds(record.arrived, record.first.max(record.arrived)),
            ),
            KeyValue::new("gen_ai.latency.e2e", seconds(record.arrived, at)),
            KeyValue::new(
                "gen_ai.latency.time_in_queue",
                seconds(record.queued, record.scheduled.max(record.queued)),
            ),
            KeyValue::new("gen_ai.usage.prompt_tokens", i64::from(record.prompt)),
            KeyValue::new("gen_ai.usage.completion_tokens", i64::from(record.output)),
            KeyValue::new(
                "gen_ai.latency.time_in_model_prefill",
                seconds(record.scheduled, record.first.max(record.scheduled)),
            ),
            KeyValue::new(
                "gen_ai.latency.time_in_model_decode",
                seconds(record.first, record.last.max(record.first)),
            ),
            KeyValue::new(
                "gen_ai.latency.time_in_model_inference",
                seconds(record.scheduled, record.last.max(record.scheduled)),
            ),
            KeyValue::new("gen_ai.request.id", record.request_id.to_string()),
        ];
        // vLLM omits attributes that are zero.
        let mut number = |name: &'static str, value: f64| {
            if value != 0.0 {
                attributes.push(KeyValue::new(name, value));
            }
        };
        number("gen_ai.request.top_p", span.top_p);
        number("gen_ai.request.temperature", span.temperature);
        attributes.push(KeyValue::new("gen_ai.request.max_tokens", i64::from(record.max_tokens)));
        attributes.push(KeyValue::new("gen_ai.request.n", i64::from(span.n)));
        let parent = span
            .headers
            .as_ref()
            .and_then(|(parent, state)| parse_parent_span(parent, state.as_deref()));
        let context = parent
            .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let mut span = self
            .tracer
            .span_builder("llm_request")
            .with_kind(SpanKind::Server)
            .with_start_time(self.to_wall_clock(record.arrived))
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &context);
        span.end_with_timestamp(self.to_wall_clock(at));
    }
}

impl EngineObserver for RequestSpanObserver {
    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _since: SimTime,
    ) {
        if matches!(event, SchedulerEvent::Ended { .. }) {
            self.export_request_span(at, record);
        }
    }
}

/// Parses the parent span of a W3C trace context; `None` if the context is malformed.
fn parse_parent_span(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.trim().split('-');
    let version = parts.next().filter(|v| v.len() == 2 && *v != "ff")?;
    let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
    let widths = [(trace, 32), (span, 16), (flags, 2), (version, 2)];
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let whole = |(text, width): &(&str, usize)| text.len() == *width && text.chars().all(hex);
    if !widths.iter().all(whole) || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let state = tracestate.and_then(|state| state.parse::<TraceState>().ok());
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        state.unwrap_or_default(),
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_context_is_parsed_as_in_w3c() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = parse_parent_span(good, Some("a=1,b=2")).expect("good");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled());
        assert_eq!(context.trace_state().get("b"), Some("2"));
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert_eq!(parse_parent_span(bad, None), None, "{bad}");
        }
    }
}
