//! Observers of the engines: metrics, KV events and OpenTelemetry spans.

use std::sync::Arc;
use std::time::Instant;

use super::error::StartError;
#[cfg(feature = "zmq")]
use super::error::engine_start_error;
use super::{setup, timing};
use vllm_sim_config::Config;
use vllm_sim_engine::driver::EngineObserver;
use vllm_sim_observe::kv_events::KvEventLossSwitch;
use vllm_sim_observe::metrics::{KvBlockLifetimeObserver, Metrics, MfuObserver};
#[cfg(feature = "otel")]
use vllm_sim_observe::otel::TraceExporter;
#[cfg(feature = "zmq")]
use vllm_sim_observe::{
    kv_events::{
        KvEventBatching, KvEventObserver, KvEventPublisher, KvEventPublisherConfig,
        TopicTemplateFields, kv_event_endpoint_of_rank,
    },
    kv_transfer::KvBlockReadNotifier,
};

pub(super) struct ServerObservers {
    metrics: Arc<Metrics>,
    /// Switch to make the engines drop their KV events.
    pub(super) event_loss: KvEventLossSwitch,
    #[cfg(feature = "zmq")]
    notifier: Option<KvBlockReadNotifier>,
    #[cfg(feature = "otel")]
    spans: Option<TraceExporter>,
}

impl ServerObservers {
    /// Opens the configured observers of the engines: metrics, KV events and spans.
    ///
    /// # Errors
    /// [`StartError`] if the trace endpoint is invalid or a thread cannot be started.
    #[cfg_attr(
        not(any(feature = "otel", feature = "zmq")),
        expect(unused_variables, clippy::unnecessary_wraps, reason = "metrics alone need nothing")
    )]
    pub(super) fn open_server_observers(
        config: &Config,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        #[cfg(feature = "otel")]
        let spans = match &config.server.otlp.traces_endpoint {
            Some(endpoint) => Some(
                TraceExporter::open(endpoint, config.server.otlp.traces_protocol)
                    .map_err(|error| StartError::Spans(endpoint.clone(), error.to_string()))?,
            ),
            None => None,
        };
        #[cfg(feature = "zmq")]
        let loads = config.kv_transfer.as_ref().is_some_and(|transfer| transfer.consumer)
            || config.disaggregation.is_some();
        #[cfg(feature = "zmq")]
        let notifier = match loads {
            true => Some(KvBlockReadNotifier::start_notifier_thread().map_err(StartError::Thread)?),
            false => None,
        };
        Ok(Self {
            metrics: metrics.clone(),
            event_loss: KvEventLossSwitch::default(),
            #[cfg(feature = "zmq")]
            notifier,
            #[cfg(feature = "otel")]
            spans,
        })
    }

    /// Returns the observers of the engine of data-parallel rank `rank`, which is engine number
    /// `index` of this process.
    ///
    /// `epoch` is the start of the engine's clock and `port` the port of its server.
    ///
    /// # Errors
    /// [`StartError`] if a KV event socket cannot be opened.
    #[cfg_attr(
        not(all(feature = "otel", feature = "zmq")),
        expect(unused_variables, reason = "events need rank and port, spans the epoch")
    )]
    pub(super) fn event_observers_of_engine(
        &self,
        config: &Config,
        (index, rank): (usize, u32),
        epoch: Instant,
        port: u16,
    ) -> Result<Vec<Box<dyn EngineObserver>>, StartError> {
        let features = setup::engine_features(config);
        let series = self.metrics.engine_metrics(index);
        let mut observers = self.metrics.observers(index, features);
        if config.metrics.kv_cache {
            let share = config.metrics.kv_cache_sample;
            observers.push(Box::new(KvBlockLifetimeObserver::new(series.clone(), share)));
        }
        if let Some(model) = timing::mfu_metrics_work_model(config) {
            observers.push(Box::new(MfuObserver::new(series, model, features)));
        }
        #[cfg(feature = "zmq")]
        if config.kv_events.enabled && config.engine.has_prefix_cache() {
            let publisher = start_kv_event_publisher(config, (rank, port), &self.event_loss)?;
            observers.push(Box::new(KvEventObserver::new(publisher, features.steps)));
        }
        #[cfg(feature = "zmq")]
        if let Some(notifier) = &self.notifier {
            observers.push(Box::new(notifier.clone()));
        }
        #[cfg(feature = "otel")]
        if let Some(spans) = &self.spans {
            let started = vllm_sim_engine::driver::unix_secs_at(epoch);
            observers.push(Box::new(spans.create_engine_span_observer(started)));
        }
        Ok(observers)
    }

    /// Sends queued OpenTelemetry spans and closes the exporter; must be called after the engines
    /// have stopped.
    #[cfg_attr(
        not(feature = "otel"),
        expect(clippy::unused_async, reason = "spans are what is queued")
    )]
    pub(super) async fn close_all_observers(self) {
        #[cfg(feature = "otel")]
        if let Some(spans) = self.spans {
            let _ = tokio::task::spawn_blocking(move || spans.flush_and_close()).await;
        }
    }
}

#[cfg(feature = "zmq")]
fn start_kv_event_publisher(
    config: &Config,
    (rank, port): (u32, u16),
    loss: &KvEventLossSwitch,
) -> Result<KvEventPublisher, StartError> {
    let events = &config.kv_events;
    let is_llmd = events.encoding.format.is_llmd_format();
    let topic = TopicTemplateFields {
        pod_ip: config.server.pod.ip.clone().unwrap_or_else(|| "localhost".to_owned()),
        host: config.server.pod.name.clone().unwrap_or_else(|| "localhost".to_owned()),
        port,
        model: config.model.name.clone(),
        rank,
    };
    let replay = events.replay_endpoint.as_deref();
    KvEventPublisher::start(KvEventPublisherConfig {
        endpoint: kv_event_endpoint_of_rank(&events.endpoint, rank).map_err(engine_start_error)?,
        replay_endpoint: replay
            .map(|at| kv_event_endpoint_of_rank(at, rank))
            .transpose()
            .map_err(engine_start_error)?,
        buffer_steps: events.buffer_steps,
        hwm: i32::try_from(events.hwm).unwrap_or(i32::MAX),
        max_queue_size: events.max_queue_size,
        topic: topic.render_topic(&events.topic).map_err(engine_start_error)?,
        // llm-d's router requests replays from 0 on and treats a first batch with another number as
        // a loss.
        first_sequence: u64::from(is_llmd && replay.is_none()),
        rank,
        encoding: events.encoding,
        loss: loss.clone(),
        batching: match is_llmd {
            false => KvEventBatching::PerCall,
            true => KvEventBatching::Sized {
                events: events.batch_size,
                every: std::time::Duration::from_secs(1),
            },
        },
    })
    .map_err(engine_start_error)
}
