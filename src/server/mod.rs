//! Builds, runs and stops servers from a [`Config`].

mod accept;
mod aux_server;
mod backend;
mod engines;
mod error;
mod features;
mod fleet;
mod headless;
mod http_settings;
mod observers;
mod peers;
mod prefill;
mod replies;
mod reset;
mod rules;
mod scenario;
mod setup;
mod shared_assets;
mod socket;
mod startup_log;
mod stats_log;
mod supervisor;
mod timing;
mod uvicorn;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::tls::Acceptor;
use vllm_sim_config::{Compat, Config, Loaded};
use vllm_sim_engine::driver::LiveRanks;
use vllm_sim_engine::latency::RooflineSetup;
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_engine::sched::vllm::VllmConfig;
use vllm_sim_http::{AdminState, App, AppParts, HttpService};
use vllm_sim_service::Service;

use backend::{Backend, BackendParts};
use shared_assets::SharedAssets;
use socket::{ServerSocket, ServerSockets};

pub use error::StartError;
#[cfg(not(feature = "sqlite"))]
pub(crate) use error::without;
pub use fleet::Fleet;
pub use headless::Headless;
pub use timing::{Sampling, read_coefficients};

/// Returns the configuration of the batching engine, and the deployment that its roofline latency
/// model describes.
///
/// # Errors
/// [`StartError`] for an unknown model or GPU.
pub fn modelled(config: &Config) -> Result<(VllmConfig, Option<RooflineSetup>), StartError> {
    engines::modelled(config, config.content.seed.unwrap_or(0))
}

/// Returns the sampling of requests that set no sampling parameters.
pub fn sampling(config: &Config) -> Sampling {
    timing::sampling(config)
}

/// Returns the specification of the engine of one data-parallel rank.
///
/// # Errors
/// [`StartError`] if a model, GPU or file cannot be used.
pub fn engine_spec(config: &Config) -> Result<EngineSpec, StartError> {
    engines::spec(config, config.content.seed.unwrap_or(0))
}

/// A running server: engines, request service and HTTP and gRPC APIs.
pub struct Server {
    /// Address of the server's HTTP socket; `None` for a Unix socket.
    pub address: Option<SocketAddr>,
    /// Address of the separate gRPC port; `None` if gRPC uses the main address.
    pub grpc_address: Option<SocketAddr>,
    app: Arc<App>,
    config: Arc<Config>,
    backend: Backend,
    accepting: JoinSet<()>,
    shutdown_timeout: Duration,
    socket: Option<PathBuf>,
}

impl Server {
    pub(super) fn service(&self) -> &Service {
        &self.backend.service
    }

    /// Starts a server that accepts requests when this function returns.
    ///
    /// # Errors
    /// [`StartError`]; everything that was started is stopped.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        features::check(&config)?;
        let texts = SharedAssets::open(&config).await?;
        Self::begin(config, None, (Arc::default(), None), texts).await
    }

    /// Starts a server whose settings can be changed at run time.
    ///
    /// # Errors
    /// Same errors as [`Self::start`].
    pub async fn start_loaded(loaded: Loaded) -> Result<Self, StartError> {
        features::check(&loaded.config)?;
        let texts = SharedAssets::open(&loaded.config).await?;
        let config = loaded.config.clone();
        let scenario = scenario::read(&config)?;
        let server = Self::begin(config, Some(loaded), (Arc::default(), None), texts).await?;
        match scenario::start(server.app().admin_state(), server.config(), scenario) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.shutdown().await;
                Err(error)
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the server's clock starts here")]
    async fn begin(
        config: Config,
        loaded: Option<Loaded>,
        (admin_state, ranks): (Arc<AdminState>, Option<LiveRanks>),
        texts: SharedAssets,
    ) -> Result<Self, StartError> {
        let started = ranks.as_ref().map_or_else(Instant::now, LiveRanks::epoch);
        let config = Arc::new(config);
        let tls = config.server.tls.as_ref();
        let acceptor = tls.map(|tls| Acceptor::new(tls, certificate_names(&config)));
        let acceptor = acceptor.transpose()?;
        let replies = replies::read(&config)?;
        let peers = peers::configured(&config)?;
        let sockets = ServerSockets::bind(&config).await?;
        let address = sockets.http.address();
        let grpc_address = sockets.grpc.as_ref().and_then(ServerSocket::address);
        let port = address.map_or(config.server.port, |a| a.port());
        let (index, routes) = vllm_sim_http::routes(&config);
        let parts = BackendParts {
            reasoning_end: None,
            texts,
            paths: index.paths(),
            started,
            port,
            observer: None,
            ranks,
        };
        let backend = Backend::start(&config, parts)?;
        let service = backend.service.clone();
        replies::install(&config, &service, replies)?;
        startup_log::engines(&config);
        let logged = stats_log::engines(&config, &backend.metrics, &backend.live);
        let parts = AppParts {
            settings: http_settings::of(&config),
            rules: rules::http(&config, &service),
            service: service.clone(),
            metrics: backend.metrics.clone(),
            routes: index,
            port,
            started,
            admin_state,
            event_loss: backend.observers.event_loss.clone(),
            peers,
        };
        let app = Arc::new(App::new(parts));
        let registry = prefill::registry(&config, &app).await?;
        match loaded {
            Some(loaded) => app.join_admin_state(loaded),
            None => app.service().faults.begin(setup::tuned(&config)),
        }
        let mut accepting = JoinSet::new();
        if let Some(registry) = registry {
            accepting.spawn(registry);
        }
        if let Some((engines, every)) = logged {
            accepting.spawn(stats_log::run(engines, every));
        }
        #[cfg(feature = "grpc")]
        let grpc = Some(vllm_sim_grpc::router(vllm_sim_grpc::GrpcState {
            settings: Arc::new(setup::grpc(&config, &service)),
            service,
            started,
        }));
        #[cfg(not(feature = "grpc"))]
        let grpc = None;
        let layers = setup::layer_settings(&config, port);
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
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Logs vLLM's lines about a server that accepts requests.
    fn log_serving(&self) {
        startup_log::serving(&self.config, self.address);
    }

    /// Returns the server's configuration.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Stops the server.
    ///
    /// `/health` returns 503 and no new requests are accepted. Running requests may end within the
    /// shutdown timeout and are then aborted. Connections close after their current response; with
    /// llm-d they stay open until the end.
    pub async fn shutdown(mut self) {
        self.app.stop();
        let availability = self.app.availability();
        if self.config.model.compat != Compat::Llmd {
            availability.send_modify(|availability| availability.leaving = true);
        }
        self.backend.drain(self.shutdown_timeout).await;
        availability.send_modify(|availability| availability.stopping = true);
        let ended = async {
            availability.closed().await;
        };
        // Idle or stalled connections are closed.
        let _ = tokio::time::timeout(Duration::from_millis(500), ended).await;
        self.accepting.shutdown().await;
        self.backend.close().await;
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn spawn_accepting(
    accepting: &mut JoinSet<()>,
    sockets: ServerSockets,
    config: &Config,
    app: &App,
    http: &Arc<HttpService>,
    acceptor: Option<Acceptor>,
) {
    let stopping = app.availability().subscribe();
    let server = &config.server;
    if let (Some(acceptor), Some(tls)) = (&acceptor, &server.tls) {
        accepting.spawn(acceptor.clone().watch(tls.clone()));
    }
    for socket in sockets.all() {
        let (http, acceptor) = (http.clone(), acceptor.clone());
        let stopping = stopping.clone();
        accepting.spawn(accept::run(
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
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let pod = &config.server.pod;
    let given = [
        config.server.host.clone(),
        pod.ip.clone(),
        pod.name.clone(),
        hostname,
    ];
    for name in given.into_iter().flatten() {
        let name = name.trim().to_owned();
        if !name.is_empty() && name != "0.0.0.0" && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
