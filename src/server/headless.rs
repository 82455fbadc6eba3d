//! Engines without an HTTP server, which join an API server of vLLM (`--headless`).

use std::time::Duration;
#[cfg(feature = "zmq")]
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use tokio::task::JoinSet;

use super::backend::EngineBackend;
#[cfg(feature = "zmq")]
use super::backend::EngineBackendInputs;
use super::error::StartError;
#[cfg(feature = "zmq")]
use super::{
    engines, features, http_settings, replies, rules, scenario, shared_assets::SharedServerAssets,
    stats_log,
};
use vllm_sim_config::LoadedConfig;
#[cfg(feature = "zmq")]
use {
    vllm_sim_config::{Config, DataParallelLoadBalancing, MetricsCompat},
    vllm_sim_engine::driver::LiveRankGroup,
    vllm_sim_engine::latency::ModelShape,
    vllm_sim_engine_core::{
        DataParallelWaves, EngineCore, EngineCoreDependencies, EngineCoreError, EngineEventChannel,
        ReasoningMarkers, create_output_observer,
    },
    vllm_sim_http::{AdminState, ServerControls},
    vllm_sim_service::ServerAvailability,
    vllm_sim_service::scripted::ReplyRules,
};

/// The headless engines of this process, one per data-parallel rank; each has its own request
/// service.
pub struct HeadlessEngines {
    ranks: Vec<HeadlessRank>,
    #[cfg(feature = "zmq")]
    admin_state: AdminState,
    logging: JoinSet<()>,
    shutdown_timeout: Duration,
}

struct HeadlessRank {
    backend: EngineBackend,
    /// Connection to vLLM's API server; set once all settings are applied.
    #[cfg(feature = "zmq")]
    core: Option<EngineCore>,
    #[cfg(feature = "zmq")]
    controls: Arc<ServerControls>,
}

#[cfg(feature = "zmq")]
impl HeadlessEngines {
    /// Starts the engines, which join vLLM's API server as soon as that server is up.
    ///
    /// # Errors
    /// [`StartError`]; everything that was started is stopped.
    #[expect(clippy::disallowed_methods, reason = "the engines' clock may start here")]
    pub async fn start_headless_engines(loaded: LoadedConfig) -> Result<Self, StartError> {
        let started = Instant::now();
        let config = loaded.config.clone();
        features::check_required_features(&config)?;
        let texts = SharedServerAssets::open_shared_assets(&config).await?;
        if texts.tokenizer.eos_token_id().is_none() {
            tracing::warn!(
                "this tokenizer has no end-of-sequence token: the front end may use another \
                 tokenizer, and its texts then differ from the intended ones"
            );
        }
        let flags = set_http_only_flags(&loaded);
        if !flags.is_empty() {
            let flags = flags.join(" ");
            tracing::warn!(flags, "flags without effect behind vLLM's API server");
        }
        warn_of_headless_settings(&config).await;
        let replies = replies::read_scripted_replies(&config)?;
        replies::check_api_server_reply_rules(&config, replies.as_deref())?;
        let thoughts = reasoning_markers(&config, &texts);
        if texts.finds_recorded_replies_by_text() {
            tracing::warn!(
                "this dataset finds replies by the texts of conversations, which vLLM's API \
                 server does not send: replies are found only for prompts of completions"
            );
        }
        let mut headless = Self {
            ranks: Vec::new(),
            admin_state: AdminState::default(),
            logging: JoinSet::new(),
            shutdown_timeout: config.server.timeouts.shutdown,
        };
        let shared = SharedByRanks {
            waves: data_parallel_waves(&config),
            thoughts,
            replies,
            ranks: engines::lockstep_rank_group(
                &config,
                config.engine.parallel.local_ranks.1,
                started,
            )?,
        };
        match headless.start_ranks(&loaded, &texts, &shared) {
            Ok(()) => Ok(headless),
            Err(error) => {
                if let Some(in_step) = shared.ranks {
                    in_step.stop_accepting_engines();
                }
                headless.shut_down_headless_engines().await;
                Err(error)
            }
        }
    }

    fn start_ranks(
        &mut self,
        loaded: &LoadedConfig,
        texts: &SharedServerAssets,
        shared: &SharedByRanks,
    ) -> Result<(), StartError> {
        let config = &loaded.config;
        let scenario = scenario::read_fault_scenario(config)?;
        let (first, count) = config.engine.parallel.local_ranks;
        let mut cores = Vec::new();
        for rank in first..first + count {
            let mut loaded = loaded.clone();
            loaded.config.engine.parallel.local_ranks = (rank, 1);
            cores.push(self.start_rank(loaded, texts.clone(), shared)?);
        }
        // Starts the scenario first, so that it covers the first request.
        scenario::start_fault_scenario(&self.admin_state, config, scenario)?;
        for (rank, (parts, steps)) in self.ranks.iter_mut().zip(cores) {
            rank.core = Some(EngineCore::start(parts, steps)?);
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "the engine's clock starts here")]
    fn start_rank(
        &mut self,
        loaded: LoadedConfig,
        texts: SharedServerAssets,
        shared: &SharedByRanks,
    ) -> Result<(EngineCoreDependencies, EngineEventChannel), StartError> {
        let config = loaded.config.clone();
        let (observer, steps) = create_output_observer(&config);
        let ranks = shared.ranks.clone();
        let parts = EngineBackendInputs {
            texts,
            paths: Vec::new(),
            started: ranks.as_ref().map_or_else(Instant::now, LiveRankGroup::clock_epoch),
            port: config.server.port,
            observer: Some(Box::new(observer)),
            ranks,
            has_reasoning: shared.thoughts.is_some(),
            reasoning_end: shared
                .thoughts
                .as_ref()
                .map(|thoughts| thoughts.reasoning_end_token_ids().to_vec()),
        };
        let backend = EngineBackend::start(&config, parts)?;
        replies::set_reply_rules_of_server(&config, &backend.service, shared.replies.clone())?;
        let (service, metrics) = (backend.service.clone(), backend.metrics.clone());
        let controls = Arc::new(ServerControls::new(
            &http_settings::initial_runtime_settings(&config),
            service,
            metrics,
            backend.observers.event_loss.clone(),
        ));
        self.admin_state.add_managed_server(&controls, loaded);
        let availability = controls.availability_receiver();
        if let Some((engines, every)) =
            stats_log::engines_with_stats_log(&config, &backend.metrics, &backend.live)
        {
            self.logging.spawn(stats_log::log_engine_stats_periodically(engines, every));
        }
        let parts = EngineCoreDependencies {
            rank: config.engine.parallel.local_ranks.0,
            rules: rules::engine_core_request_rules(&config, &backend.service),
            service: backend.service.clone(),
            config: Arc::new(config),
            is_gone: Arc::new(move || is_restart_simulated(&availability.borrow())),
            waves: shared.waves.clone(),
            thoughts: shared.thoughts.clone(),
            weight_version: Arc::new(Mutex::new("default".to_owned())),
        };
        self.ranks.push(HeadlessRank { backend, core: None, controls });
        Ok((parts, steps))
    }

    /// Waits until all engines have joined vLLM's API server; must be called only once.
    pub fn wait_until_all_engines_joined(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let cores = self.ranks.iter_mut().filter_map(|rank| rank.core.as_mut());
        let joined: Vec<_> = cores.map(EngineCore::wait_until_front_end_connected).collect();
        async move {
            for joined in joined {
                joined.await;
            }
        }
    }

    /// Waits until one of the engines fails, and returns the error.
    pub async fn wait_for_engine_failure(&mut self) -> StartError {
        use std::future::Future;
        use std::pin::pin;
        use std::task::Poll;

        let mut failures: Vec<_> =
            self.ranks.iter_mut().map(|rank| Box::pin(rank.wait_for_engine_failure())).collect();
        let mut first = pin!(std::future::poll_fn(move |cx| {
            let mut found = failures.iter_mut().map(|f| f.as_mut().poll(cx));
            found.find(Poll::is_ready).unwrap_or(Poll::Pending)
        }));
        first.as_mut().await.into()
    }
}

#[cfg(feature = "zmq")]
impl HeadlessRank {
    /// Waits until the engine fails, or a scenario simulates a restart of its process.
    async fn wait_for_engine_failure(&mut self) -> EngineCoreError {
        let mut availability = self.controls.availability_receiver();
        let Some(core) = &mut self.core else {
            return std::future::pending().await;
        };
        tokio::select! {
            error = core.wait_until_failed() => return error,
            Ok(_) = availability.wait_for(is_restart_simulated) => {}
        }
        core.kill();
        core.wait_until_failed().await
    }
}

/// Returns whether a restart of the engine's process was simulated, after which the engine cannot
/// join vLLM's API server again.
#[cfg(feature = "zmq")]
fn is_restart_simulated(availability: &ServerAvailability) -> bool {
    availability.lives > 0
}

/// Objects shared by all data-parallel ranks of the process.
#[cfg(feature = "zmq")]
struct SharedByRanks {
    waves: Option<Arc<DataParallelWaves>>,
    thoughts: Option<ReasoningMarkers>,
    /// Scripted replies of `--replies`; their use counts cover all data-parallel ranks.
    replies: Option<Arc<ReplyRules>>,
    /// Group of the data-parallel ranks that run every step together; `None` if they run
    /// independently.
    ranks: Option<LiveRankGroup>,
}

/// Returns the request waves that data-parallel ranks of a mixture-of-experts model share, as in
/// vLLM.
#[cfg(feature = "zmq")]
fn data_parallel_waves(config: &Config) -> Option<Arc<DataParallelWaves>> {
    let parallel = &config.engine.parallel;
    let model = config.model.hf_config.as_deref();
    let shape = model.and_then(|config| ModelShape::from_hf_config(config).ok());
    let experts = shape.is_some_and(|shape| shape.moe.is_some());
    (experts && parallel.data > 1)
        .then(|| Arc::new(DataParallelWaves::with_idle_ranks(parallel.local_ranks.0)))
}

#[cfg(not(feature = "zmq"))]
impl HeadlessEngines {
    /// Returns an error: this program was built without the Cargo feature `zmq`.
    ///
    /// # Errors
    /// [`StartError::MissingFeature`].
    #[expect(clippy::unused_async, reason = "as with the feature")]
    pub async fn start_headless_engines(_: LoadedConfig) -> Result<Self, StartError> {
        Err(StartError::MissingFeature { flags: "--headless", feature: "zmq" })
    }

    /// Future that never resolves, because without the Cargo feature `zmq` there are no engines to
    /// wait for.
    pub fn wait_until_all_engines_joined(&mut self) -> impl Future<Output = ()> + Send + use<> {
        std::future::pending()
    }

    /// Future that never resolves, because without the Cargo feature `zmq` there are no engines to
    /// wait for.
    pub async fn wait_for_engine_failure(&mut self) -> StartError {
        std::future::pending().await
    }
}

impl HeadlessEngines {
    /// Stops the headless engines.
    ///
    /// The engines take no new requests. Running requests may end within the shutdown timeout and
    /// are then aborted. The API servers are notified of every end.
    pub async fn shut_down_headless_engines(mut self) {
        self.logging.abort_all();
        let services = self.ranks.iter().map(|rank| &*rank.backend.service);
        super::replies::log_unused_scripted_replies(services);
        let mut ending = JoinSet::new();
        for rank in self.ranks {
            let patience = self.shutdown_timeout;
            ending.spawn(async move {
                rank.backend.service.start_draining();
                rank.backend.drain_running_requests(patience).await;
                #[cfg(feature = "zmq")]
                if let Some(core) = rank.core {
                    core.stop().await;
                }
                rank.backend.stop_engines_and_flush().await;
            });
        }
        ending.join_all().await;
    }
}

#[cfg(feature = "zmq")]
fn reasoning_markers(config: &Config, texts: &SharedServerAssets) -> Option<ReasoningMarkers> {
    let parser = config.api.reasoning_parser.as_ref()?;
    let thoughts = ReasoningMarkers::for_reasoning_parser(
        parser,
        config.api.reasoning_ratio,
        &texts.tokenizer,
    );
    if thoughts.is_none() {
        tracing::warn!(
            "--reasoning-parser {parser}: replies have no reasoning because its format is not \
             simulated behind vLLM's API server"
        );
    }
    thoughts
}

/// Flags without effect on headless engines, because they only affect HTTP.
#[cfg(feature = "zmq")]
const HTTP_ONLY_FLAGS: &[&str] = &[
    "admin-api-key",
    "allow-credentials",
    "allow-runtime-lora-updating",
    "allowed-headers",
    "allowed-hosts",
    "allowed-methods",
    "allowed-origins",
    "api-key",
    "dashboard-control",
    "dashboard-peers",
    "dev-mode",
    "disable-access-log-for-endpoints",
    "disable-fastapi-docs",
    "disable-uvicorn-access-log",
    "enable-log-outputs",
    "enable-log-requests",
    "enable-request-id-headers",
    "enable-server-load-tracking",
    "enable-ssl-refresh",
    "fake-metrics",
    "fake-metrics-refresh-interval",
    "grpc",
    "grpc-port",
    "health-status",
    "image-emission-rate",
    "keep-alive-timeout",
    "kv-transfer-config",
    "legacy-metrics",
    "log-http",
    "lora-modules",
    "lora-resolver-cache-dir",
    "max-request-body-size-mb",
    "max-tool-call-array-param-length",
    "min-tool-call-array-param-length",
    "object-tool-call-not-required-field-probability",
    "omni",
    "replicas",
    "request-history",
    "request-history-bodies",
    "responses-store",
    "retry-after",
    "root-path",
    "self-signed-certs",
    "sse-keep-alive-interval",
    "ssl-ca-certs",
    "ssl-cert-reqs",
    "ssl-certfile",
    "ssl-keyfile",
    "stale-metrics",
    "startup-duration",
    "startup-time",
    "stream-fault-rate",
    "stream-faults",
    "time-to-generate-image",
    "time-to-generate-image-std-dev",
    "tool-call-extra-call-probability",
    "tool-call-not-required-param-probability",
    "uds",
];

/// Returns the flags of [`HTTP_ONLY_FLAGS`] that were explicitly set, also those with secrets.
#[cfg(feature = "zmq")]
fn set_http_only_flags(loaded: &LoadedConfig) -> Vec<String> {
    let chosen = loaded.resolved_flags.iter().filter(|flag| flag.is_set_by_user());
    let given = chosen.filter(|flag| HTTP_ONLY_FLAGS.contains(&flag.name));
    given.map(|flag| format!("--{}", flag.name)).collect()
}

/// Warns of settings that vLLM's headless mode does not know, and of an API server's host without
/// address.
#[cfg(feature = "zmq")]
async fn warn_of_headless_settings(config: &Config) {
    let parallel = &config.engine.parallel;
    if config.model.compat == MetricsCompat::Sglang {
        tracing::warn!(
            "--headless: SGLang has no such mode; the engine joins an API server of vLLM"
        );
    }
    if parallel.balance == DataParallelLoadBalancing::Hybrid {
        tracing::warn!("data_parallel_hybrid_lb is not applicable in headless mode");
    }
    let address = (parallel.address.as_str(), parallel.rpc_port);
    if let Err(error) = tokio::net::lookup_host(address).await {
        tracing::warn!(%error, "--data-parallel-address {}: the name has no address", address.0);
    }
}
