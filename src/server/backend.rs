//! Engines, their observers (metrics, KV events, traces) and the request service over them, which
//! all APIs share.

#[cfg(feature = "zmq")]
mod sglang_pair;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::engines;
use super::error::StartError;
use super::observers::ServerObservers;
use super::prefill;
use super::scenario::FaultMetricsObserver;
use super::setup;
use super::shared_assets::SharedServerAssets;
use vllm_sim_config::{Config, MetricsCompat};
use vllm_sim_engine::EngineCommand;
use vllm_sim_engine::driver::{EngineObserver, LiveEngine, LiveRankGroup};
use vllm_sim_http::sglang::disaggregation::PrefillOrDecodeServer;
use vllm_sim_http::{App, AppConstructorArgs};
#[cfg(feature = "zmq")]
use vllm_sim_observe::kv_transfer::ZmqMessageListener;
use vllm_sim_observe::metrics::Metrics;
use vllm_sim_service::generate::ReplyGenerator;
use vllm_sim_service::prompt::MediaCache;
use vllm_sim_service::{InferenceService, LoraAdapterLoadMode, ServedModels, ServiceSettings};

#[cfg(feature = "zmq")]
use sglang_pair::SglangPairServer;

/// Running engines, their observers and the request service over them.
pub(super) struct EngineBackend {
    pub(super) metrics: Arc<Metrics>,
    pub(super) live: Vec<LiveEngine>,
    pub(super) service: Arc<InferenceService>,
    pub(super) observers: ServerObservers,
    #[cfg(feature = "zmq")]
    _listeners: Vec<ZmqMessageListener>,
    /// Sockets of a prefill/decode pair of SGLang servers.
    #[cfg(feature = "zmq")]
    pair: Option<SglangPairServer>,
    /// Prefill or decode part of this server in an SGLang pair; `None` outside a pair.
    pub(super) disaggregation: Option<Arc<PrefillOrDecodeServer>>,
    /// Engine ids of the local data-parallel ranks for answers to handshakes, once the ids are
    /// known.
    engine_ids: Arc<OnceLock<Vec<String>>>,
}

/// Values to create an [`EngineBackend`] from, in addition to the server's configuration.
pub(super) struct EngineBackendInputs {
    pub(super) texts: SharedServerAssets,
    pub(super) paths: Vec<String>,
    /// Start time of the clock that all engines share.
    pub(super) started: Instant,
    pub(super) port: u16,
    /// The token ids that end the reasoning of a reply, for clients that parse token ids.
    pub(super) reasoning_end: Option<Vec<u32>>,
    /// Whether replies may contain reasoning.
    pub(super) has_reasoning: bool,
    /// Group of data-parallel ranks that run every step together, with a clock that starts at
    /// `started`.
    pub(super) ranks: Option<LiveRankGroup>,
    /// Additional observer of the events of the first engine.
    pub(super) observer: Option<Box<dyn EngineObserver>>,
}

impl EngineBackend {
    /// Starts the engines of `config`, their observers and the request service.
    ///
    /// # Errors
    /// [`StartError`] if an engine cannot be built or an observer cannot be opened.
    pub(super) fn start(config: &Config, inputs: EngineBackendInputs) -> Result<Self, StartError> {
        let metrics = Metrics::new(setup::metrics_settings(config, inputs.paths));
        let seed = config.content.seed.unwrap_or_else(seed_from_clock);
        tracing::debug!(seed, "seed");
        let observers = ServerObservers::open_server_observers(config, &metrics)?;
        let clock = (inputs.started, inputs.port);
        let ranks = match inputs.ranks {
            Some(ranks) => Some(ranks),
            None => {
                engines::lockstep_rank_group(config, config.engine.parallel.local_ranks.1, clock.0)?
            }
        };
        let live = engines::start_engine_of_each_rank(
            config,
            seed,
            clock,
            &observers,
            (inputs.observer, ranks),
        )?;
        if let Some(own) = metrics.imitated() {
            let pages = live.iter().map(|engine| engine.stats().total_blocks);
            pages.enumerate().for_each(|(rank, pages)| own.set_kv_cache_pages(rank, pages));
        }
        let mut generator = build_generator(config, inputs.texts, seed);
        if inputs.has_reasoning {
            generator = generator.with_reasoning_in_replies();
        }
        if let Some(ids) = inputs.reasoning_end {
            generator = generator.with_reasoning_end_ids(ids);
        }
        let mut service = build_service(config, generator, live.clone(), seed);
        let engine = metrics.engine_metrics(0);
        let count = move |items, hits| engine.on_mm_cache_lookup(items, hits);
        service.media_cache = MediaCache::new(config.content.media_cache_bytes, count);
        #[cfg(feature = "zmq")]
        {
            service.handshake = prefill::start_prefill_handshakes(config)?;
        }
        let service = Arc::new(service);
        let engine_ids = Arc::default();
        #[cfg(feature = "zmq")]
        let listeners = prefill::start_block_read_listeners(config, &service, &engine_ids);
        #[cfg(feature = "zmq")]
        let pair = SglangPairServer::start_sockets(config, &service)?;
        let counter = FaultMetricsObserver(metrics.clone());
        service.faults.set_fault_observer(Arc::new(counter));
        Ok(Self {
            metrics,
            live,
            service,
            observers,
            engine_ids,
            #[cfg(feature = "zmq")]
            _listeners: listeners,
            #[cfg(feature = "zmq")]
            disaggregation: pair.as_ref().map(|pair| pair.disaggregation.clone()),
            #[cfg(not(feature = "zmq"))]
            disaggregation: None,
            #[cfg(feature = "zmq")]
            pair,
        })
    }

    /// Creates the state of the HTTP handlers. From then on, handshakes of decode servers are
    /// answered with the engine ids of this server.
    pub(super) fn create_app_state(&self, config: &Config, parts: AppConstructorArgs) -> Arc<App> {
        let app = Arc::new(App::new(parts));
        let (first, count) = config.engine.parallel.local_ranks;
        let ids = (first..first + count).map(|rank| app.kv_engine_id(rank)).collect();
        // The ids of a server never change.
        let _ = self.engine_ids.set(ids);
        app
    }

    /// Starts the bootstrap servers of a prefill server: those of Mooncake and of SGLang.
    ///
    /// # Errors
    /// [`StartError::Listen`] if a port is in use.
    pub(super) async fn start_bootstrap_servers(
        &self,
        config: &Config,
        app: &Arc<App>,
    ) -> Result<JoinSet<()>, StartError> {
        let mut servers = JoinSet::new();
        if let Some(server) = prefill::start_mooncake_bootstrap_server(config, app).await? {
            servers.spawn(server);
        }
        #[cfg(feature = "zmq")]
        if let Some(pair) = &self.pair
            && let Some(server) = pair.start_bootstrap_server(config, app).await?
        {
            servers.spawn(server);
        }
        Ok(servers)
    }

    /// Waits up to `timeout` for running requests to end, then cancels them.
    pub(super) async fn drain_running_requests(&self, timeout: Duration) {
        let drained = async {
            while self.service.in_flight_sequences() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(timeout, drained).await.is_err() {
            self.service.command_all_engines(&EngineCommand::CancelAll);
        }
    }

    /// Stops the engines and flushes their metrics, KV events and traces.
    pub(super) async fn stop_engines_and_flush(self) {
        for live in &self.live {
            live.stop_engine();
        }
        self.observers.close_all_observers().await;
    }
}

fn build_service(
    config: &Config,
    generator: ReplyGenerator,
    live: Vec<LiveEngine>,
    seed: u64,
) -> InferenceService {
    let models =
        ServedModels::new(&config.model.served_names, config.api.skip_model_name_validation)
            .with_lora_resolver_folder(config.lora.resolver_folder.clone());
    for module in &config.lora.modules {
        let base = module.base_model_name.clone();
        if let Err(error) =
            models.load_lora_adapter(&module.name, &module.path, base, LoraAdapterLoadMode::New)
        {
            tracing::warn!(%error, "adapter not loaded");
        }
    }
    let settings = ServiceSettings {
        max_model_len: config.model.max_model_len,
        seed,
        // llm-d advances its random stream, so the same prompt gets another reply next time.
        repeatable: config.content.seed_given && config.model.compat != MetricsCompat::Llmd,
        admission: config.engine.queue.admission,
        tools: config.content.tools.clone(),
        hashes: setup::block_hash_config(config),
        traced: config.server.otlp.traces_endpoint.is_some(),
        tracks_kv_blocks: config.metrics.kv_cache,
        role: config.engine.role,
        ngram: setup::ngram_speculation_settings(config),
        load_failure_policy: setup::kv_load_failure_policy(config),
        prompts: setup::prompt_settings(config),
    };
    InferenceService::new(models, generator, live, settings)
}

fn build_generator(config: &Config, texts: SharedServerAssets, seed: u64) -> ReplyGenerator {
    let generator = ReplyGenerator::new(config.content.mode, seed, texts.tokenizer)
        .with_unlimited_echo(!config.content.echo_cut)
        .with_empty_token_texts(config.model.tokenizer.skip_init);
    match texts.recordings {
        Some(recordings) => generator.with_recordings(recordings),
        None => generator,
    }
}

#[expect(clippy::disallowed_methods, reason = "no seed was set")]
fn seed_from_clock() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
