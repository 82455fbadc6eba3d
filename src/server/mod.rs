//! Builds, runs and stops servers from a [`Config`].

mod accept;
mod aux_server;
mod backend;
mod cache_config;
mod engines;
mod error;
mod features;
mod fleet;
mod headless;
mod http_settings;
#[cfg(feature = "zmq")]
mod mooncake;
mod observers;
mod peers;
mod prefill;
mod replies;
mod rules;
mod scenario;
mod setup;
mod shared_assets;
mod startup_log;
mod stats_log;
mod supervisor;
mod timing;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::tls::{ReloadingTlsAcceptor, ServerTlsError};
use vllm_sim_config::{Config, LoadedConfig, MetricsCompat};
use vllm_sim_engine::driver::LiveRankGroup;
use vllm_sim_engine::latency::RooflineModelSetup;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_http::{AdminState, App, AppConstructorArgs, HttpService};
use vllm_sim_service::InferenceService;

use accept::ListeningSockets;
use backend::{EngineBackend, EngineBackendInputs};
use shared_assets::SharedServerAssets;

pub use error::StartError;
#[cfg(not(feature = "sqlite"))]
pub(crate) use error::feature_not_built_message;
pub use fleet::ServerFleet;
pub use headless::HeadlessEngines;
pub use timing::{DefaultSamplingSummary, read_latency_coefficients};

/// Returns the configuration of the batching engine, and the deployment that its roofline latency
/// model describes.
///
/// # Errors
/// [`StartError`] for an unknown model or GPU.
pub fn batching_engine_config(
    config: &Config,
) -> Result<(VllmSchedulerConfig, Option<RooflineModelSetup>), StartError> {
    engines::batching_engine_config(config, config.content.seed.unwrap_or(0))
}

/// Returns the default sampling, for requests that set no sampling parameters.
pub fn default_sampling(config: &Config) -> DefaultSamplingSummary {
    timing::default_sampling(config)
}

/// Returns the specification of the engine of one data-parallel rank.
///
/// # Errors
/// [`StartError`] if a model, GPU or file cannot be used.
pub fn engine_spec(config: &Config) -> Result<SchedulerSpec, StartError> {
    engines::build_engine_spec(config, config.content.seed.unwrap_or(0))
}

/// Returns the time to fetch the KV cache of a prompt from another server: a fixed time, and a time
/// per token.
pub fn kv_fetch_times(config: &Config) -> (Duration, Duration) {
    engines::kv_fetch_times(config)
}

/// A running server: engines, request service and HTTP and gRPC APIs.
pub struct SimulatorServer {
    /// Address of the server's HTTP socket; `None` for a Unix socket.
    pub address: Option<SocketAddr>,
    /// Address of the separate gRPC port; `None` if gRPC uses the main address.
    pub grpc_address: Option<SocketAddr>,
    app: Arc<App>,
    config: Arc<Config>,
    backend: EngineBackend,
    accepting: JoinSet<()>,
    shutdown_timeout: Duration,
    socket: Option<PathBuf>,
}

impl SimulatorServer {
    /// Returns the service that generates the replies.
    pub(super) fn inference_service(&self) -> &InferenceService {
        &self.backend.service
    }

    /// Starts a server that accepts requests when this function returns.
    ///
    /// # Errors
    /// [`StartError`]; everything that was started is stopped.
    pub async fn start_server(loaded: LoadedConfig) -> Result<Self, StartError> {
        features::check_required_features(&loaded.config)?;
        let texts = SharedServerAssets::open_shared_assets(&loaded.config).await?;
        let scenario = scenario::read_fault_scenario(&loaded.config)?;
        let server = Self::start_with_assets(loaded, (Arc::default(), None), texts).await?;
        match scenario::start_fault_scenario(
            server.app_state().admin_state(),
            server.config(),
            scenario,
        ) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.shut_down_server().await;
                Err(error)
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the server's clock starts here")]
    async fn start_with_assets(
        loaded: LoadedConfig,
        (admin_state, ranks): (Arc<AdminState>, Option<LiveRankGroup>),
        texts: SharedServerAssets,
    ) -> Result<Self, StartError> {
        let started = ranks.as_ref().map_or_else(Instant::now, LiveRankGroup::clock_epoch);
        let config = Arc::new(loaded.config.clone());
        let acceptor = open_tls_acceptor(&config)?;
        let replies = replies::read_scripted_replies(&config)?;
        let peers = peers::dashboard_peers(&config)?;
        let sockets = ListeningSockets::bind_http_and_grpc(&config).await?;
        let (address, grpc_address) = sockets.http_and_grpc_tcp_addresses();
        let port = address.map_or(config.server.port, |a| a.port());
        let (index, routes) = vllm_sim_http::build_routes(&config);
        let inputs = EngineBackendInputs {
            reasoning_end: None,
            has_reasoning: config.api.replies_have_reasoning(),
            texts,
            paths: index.served_paths(),
            started,
            port,
            observer: None,
            ranks,
        };
        let backend = EngineBackend::start(&config, inputs)?;
        let service = backend.service.clone();
        replies::set_reply_rules_of_server(&config, &service, replies)?;
        startup_log::log_engine_start(&config);
        let logged = stats_log::engines_with_stats_log(&config, &backend.metrics, &backend.live);
        let parts = AppConstructorArgs {
            settings: http_settings::http_api_settings(&config),
            api: vllm_sim_http::api_rules(config.model.compat),
            rules: rules::http_request_rules(&config, &service),
            service: service.clone(),
            metrics: backend.metrics.clone(),
            routes: index,
            port,
            started,
            admin_state,
            event_loss: backend.observers.event_loss.clone(),
            peers,
            disaggregation: backend.disaggregation.clone(),
        };
        let app = backend.create_app_state(&config, parts);
        let mut accepting = backend.start_bootstrap_servers(&config, &app).await?;
        app.add_server_to_admin_state(loaded);
        accepting.spawn(vllm_sim_http::sample_metrics_periodically(Arc::downgrade(&app)));
        if let Some((engines, every)) = logged {
            accepting.spawn(stats_log::log_engine_stats_periodically(engines, every));
        }
        #[cfg(feature = "grpc")]
        let grpc = Some(vllm_sim_grpc::grpc_router(vllm_sim_grpc::GrpcState {
            settings: Arc::new(setup::grpc_settings(&config, &service)),
            service,
            started,
        }));
        #[cfg(not(feature = "grpc"))]
        let grpc = None;
        let layers = setup::http_middleware_settings(&config, port);
        let http = Arc::new(HttpService::new(&app, &layers, routes, grpc));
        spawn_accepting(&mut accepting, sockets, &config, &app, &http, acceptor);
        Ok(Self {
            address,
            grpc_address,
            app,
            backend,
            accepting,
            shutdown_timeout: config.server.timeouts.shutdown,
            socket: config.server.uds.clone(),
            config,
        })
    }

    /// Returns the state that the HTTP handlers of the server share.
    pub fn app_state(&self) -> &Arc<App> {
        &self.app
    }

    /// Logs the lines by which vLLM reports that a server accepts requests.
    fn log_accepting_requests(&self) {
        startup_log::log_server_ready(&self.config, self.address);
    }

    /// Returns the configuration of the running server.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Stops the server; running requests may end within the shutdown timeout.
    ///
    /// `/health` returns 503 and no new requests are accepted. Running requests may end within the
    /// shutdown timeout and are then aborted. Connections close after their current response; with
    /// llm-d they stay open until the end. SGLang's server also takes new requests until no request
    /// runs.
    ///
    /// **Source:** SGLang 0.5.23 `srt/managers/tokenizer_manager.py`, `sigterm_watchdog`.
    pub async fn shut_down_server(mut self) {
        let availability = self.app.availability_sender();
        match self.config.model.compat {
            MetricsCompat::Sglang => self.app.fail_health_checks(),
            MetricsCompat::Llmd => self.app.begin_shutdown(),
            MetricsCompat::Vllm => {
                self.app.begin_shutdown();
                availability.send_modify(|availability| availability.leaving = true);
            }
        }
        self.backend.drain_running_requests(self.shutdown_timeout).await;
        self.app.begin_shutdown();
        availability.send_modify(|availability| availability.stopping = true);
        let ended = async {
            availability.closed().await;
        };
        // Idle or stalled connections are closed.
        let _ = tokio::time::timeout(Duration::from_millis(500), ended).await;
        self.accepting.shutdown().await;
        self.backend.stop_engines_and_flush().await;
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Loads the server's certificates; `None` without TLS.
fn open_tls_acceptor(config: &Config) -> Result<Option<ReloadingTlsAcceptor>, ServerTlsError> {
    let tls = config.server.tls.as_ref();
    tls.map(|tls| ReloadingTlsAcceptor::new(tls, certificate_names(config))).transpose()
}

fn spawn_accepting(
    accepting: &mut JoinSet<()>,
    sockets: ListeningSockets,
    config: &Config,
    app: &App,
    http: &Arc<HttpService>,
    acceptor: Option<ReloadingTlsAcceptor>,
) {
    let stopping = app.availability_sender().subscribe();
    let server = &config.server;
    if let (Some(acceptor), Some(tls)) = (&acceptor, &server.tls)
        && tls.refresh
    {
        accepting.spawn(acceptor.clone().reload_on_certificate_change(tls.clone()));
    }
    for socket in sockets.into_sockets() {
        let (http, acceptor) = (http.clone(), acceptor.clone());
        let stopping = stopping.clone();
        accepting.spawn(accept::accept_connections(
            socket,
            http,
            acceptor,
            stopping,
            server.timeouts.keep_alive,
        ));
    }
}

/// Returns the host names and IP addresses of the self-signed certificate.
fn certificate_names(config: &Config) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let pod = &config.server.pod;
    let given = [config.server.host.clone(), pod.ip.clone(), pod.name.clone(), hostname];
    for name in given.into_iter().flatten() {
        let name = name.trim().to_owned();
        if !name.is_empty() && name != "0.0.0.0" && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
