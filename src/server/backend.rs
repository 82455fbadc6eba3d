//! Engines, their observers (metrics, KV events, traces) and the request service over them, which
//! all APIs share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engines;
use super::error::StartError;
use super::observers::EngineObservers;
use super::scenario::FaultCounter;
use super::setup;
use super::shared_assets::SharedAssets;
use vllm_sim_config::{Compat, Config};
use vllm_sim_engine::Command;
use vllm_sim_engine::driver::{LiveEngine, LiveRanks, Observer};
#[cfg(feature = "zmq")]
use vllm_sim_observe::kv_transfer::ReadListener;
use vllm_sim_observe::metrics::Metrics;
use vllm_sim_service::generate::Generator;
use vllm_sim_service::prompt::MediaCache;
use vllm_sim_service::{LoadMode, Models, Service, Settings};

/// Running engines, their observers and the request service over them.
pub(super) struct Backend {
    pub(super) metrics: Arc<Metrics>,
    pub(super) live: Vec<LiveEngine>,
    pub(super) service: Arc<Service>,
    pub(super) observers: EngineObservers,
    #[cfg(feature = "zmq")]
    _listeners: Vec<ReadListener>,
}

/// Values from which a backend is created, in addition to its configuration.
pub(super) struct BackendParts {
    pub(super) texts: SharedAssets,
    pub(super) paths: Vec<String>,
    /// Start of the engines' clock.
    pub(super) started: Instant,
    pub(super) port: u16,
    /// The token ids that end reasoning, for clients that parse token ids.
    pub(super) reasoning_end: Option<Vec<u32>>,
    /// Group of data-parallel ranks for running every step together; `started` is the start of its
    /// clock.
    pub(super) ranks: Option<LiveRanks>,
    /// Additional observer of the events of the first engine.
    pub(super) observer: Option<Box<dyn Observer>>,
}

impl Backend {
    /// Starts the engines of `config`, their observers and the request service.
    ///
    /// # Errors
    /// [`StartError`] if an engine cannot be built or an observer cannot be opened.
    pub(super) fn start(config: &Config, parts: BackendParts) -> Result<Self, StartError> {
        let metrics = Metrics::new(setup::metrics(config, parts.paths));
        let seed = config.content.seed.unwrap_or_else(clock_seed);
        tracing::debug!(seed, "seed");
        let observers = EngineObservers::open(config, &metrics)?;
        let clock = (parts.started, parts.port);
        let ranks = match parts.ranks {
            Some(ranks) => Some(ranks),
            None => engines::in_step(config, config.engine.parallel.local_ranks.1, clock.0)?,
        };
        let live = engines::start(config, seed, clock, &observers, (parts.observer, ranks))?;
        let mut generator = generator(config, parts.texts, seed);
        if let Some(ids) = parts.reasoning_end {
            generator = generator.with_reasoning_end(ids);
        }
        let mut service = service(config, generator, live.clone(), seed);
        let engine = metrics.engine(0);
        let count = move |items, hits| engine.on_mm_cache(items, hits);
        service.media_cache = MediaCache::new(config.content.media_cache_bytes, count);
        let service = Arc::new(service);
        #[cfg(feature = "zmq")]
        let listeners = super::prefill::listen(config, &service);
        let counter = FaultCounter(metrics.clone());
        service.faults.report_to(Arc::new(counter));
        Ok(Self {
            metrics,
            live,
            service,
            observers,
            #[cfg(feature = "zmq")]
            _listeners: listeners,
        })
    }

    /// Waits up to `patience` for running requests to end, then cancels them.
    pub(super) async fn drain(&self, patience: Duration) {
        let drained = async {
            while self.service.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(patience, drained).await.is_err() {
            self.service.command(&Command::CancelAll);
        }
    }

    /// Stops the engines and flushes their metrics, KV events and traces.
    pub(super) async fn close(self) {
        for live in &self.live {
            live.stop();
        }
        self.observers.close().await;
    }
}

fn service(config: &Config, generator: Generator, live: Vec<LiveEngine>, seed: u64) -> Service {
    let models = Models::new(
        &config.model.served_names,
        config.api.skip_model_name_validation,
    )
    .with_resolver_folder(config.lora.resolver_folder.clone());
    for module in &config.lora.modules {
        let base = module.base_model_name.clone();
        if let Err(error) = models.load(&module.name, &module.path, base, LoadMode::New) {
            tracing::warn!(%error, "adapter not loaded");
        }
    }
    let settings = Settings {
        max_model_len: config.model.max_model_len,
        seed,
        // llm-d advances its random stream, so the same prompt gets another reply next time.
        repeatable: config.content.seed_given && config.model.compat != Compat::Llmd,
        admission: config.engine.queue.admission,
        tools: config.content.tools.clone(),
        hashes: setup::hashes(config),
        traced: config.server.otlp.traces_endpoint.is_some(),
        tracks_kv_blocks: config.metrics.kv_cache,
        role: config.engine.role,
        ngram: setup::ngram(config),
        load_failure_policy: setup::load_failure_policy(config),
        prompts: setup::prompts(config),
    };
    Service::new(models, generator, live, settings)
}

fn generator(config: &Config, texts: SharedAssets, seed: u64) -> Generator {
    let generator = Generator::new(config.content.mode, seed, texts.tokenizer)
        .with_whole_echo(!config.content.echo_cut)
        .with_mute(config.model.tokenizer.skip_init);
    match texts.recordings {
        Some(recordings) => generator.with_recordings(recordings),
        None => generator,
    }
}

#[expect(clippy::disallowed_methods, reason = "no seed was set")]
fn clock_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
