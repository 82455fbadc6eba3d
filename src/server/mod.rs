//! Composition: from a [`Config`] to a running server, and its end.

mod accept;
mod engines;
mod error;
mod features;
mod fleet;
mod observers;
mod prefill;
mod reset;
mod scenario;
mod setup;
mod side;
mod socket;
mod stats_log;
mod supervisor;
mod texts;
mod timing;
mod uvicorn;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::tls::Acceptor;
use vllm_sim_config::{Compat, Config, Loaded};
use vllm_sim_engine::Command;
use vllm_sim_engine::driver::LiveEngine;
use vllm_sim_engine::latency::Setup;
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_engine::sched::vllm::VllmConfig;
use vllm_sim_http::{AdminState, App, AppParts, HttpService};
#[cfg(feature = "zmq")]
use vllm_sim_observe::kv_transfer::ReadListener;
use vllm_sim_observe::metrics::Metrics;
use vllm_sim_service::generate::Generator;
use vllm_sim_service::{Models, Service, Settings};

use observers::EngineObservers;
use scenario::FaultCounter;
use socket::ServerSocket;
use texts::Texts;

pub use error::StartError;
#[cfg(not(all(feature = "download", feature = "sqlite")))]
pub(crate) use error::without;
pub use fleet::Fleet;

/// The batching engine that a configuration describes, and the deployment behind its roofline.
///
/// # Errors
/// [`StartError`] for a model or GPU that is not known.
pub fn modelled(config: &Config) -> Result<(VllmConfig, Option<Setup>), StartError> {
    engines::modelled(config, config.content.seed.unwrap_or(0))
}

/// The engine of one rank that a configuration describes.
///
/// # Errors
/// [`StartError`] for a model, GPU or file that cannot be used.
pub fn engine_spec(config: &Config) -> Result<EngineSpec, StartError> {
    engines::spec(config, config.content.seed.unwrap_or(0))
}

/// A running server.
pub struct Server {
    /// Where it listens; `None` on a Unix socket.
    pub address: Option<SocketAddr>,
    /// Where it listens for gRPC besides; `None`: the address above is the only one.
    pub grpc_address: Option<SocketAddr>,
    app: Arc<App>,
    live: Vec<LiveEngine>,
    observers: EngineObservers,
    accepting: JoinSet<()>,
    shutdown_timeout: Duration,
    socket: Option<PathBuf>,
    #[cfg(feature = "zmq")]
    _listeners: Vec<ReadListener>,
}

impl Server {
    /// Starts everything that `config` asks for. Answers requests when it returns.
    ///
    /// # Errors
    /// [`StartError`], with nothing left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        features::check(&config)?;
        let texts = Texts::open(&config).await?;
        Self::begin(config, None, Arc::default(), texts).await
    }

    /// Starts what flags ask for; an operator may tune it later.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_loaded(loaded: Loaded) -> Result<Self, StartError> {
        features::check(&loaded.config)?;
        let texts = Texts::open(&loaded.config).await?;
        let config = loaded.config.clone();
        let scenario = scenario::read(&config)?;
        let server = Self::begin(config, Some(loaded), Arc::default(), texts).await?;
        match scenario::start(&server, scenario) {
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
        admin_state: Arc<AdminState>,
        texts: Texts,
    ) -> Result<Self, StartError> {
        let started = Instant::now();
        let config = Arc::new(config);
        let acceptor = match &config.server.tls {
            Some(tls) => Some((Acceptor::new(tls, certificate_names(&config))?, tls.clone())),
            None => None,
        };
        let socket = ServerSocket::bind(&config).await?;
        let grpc_socket = match config.server.grpc_port {
            Some(port) => Some(ServerSocket::bind_tcp(&config, port).await?),
            None => None,
        };
        let port = socket.address().map_or(config.server.port, |a| a.port());
        let routes = vllm_sim_http::routes(&config);
        let metrics = Metrics::new(setup::metrics(&config, routes.paths()));
        let seed = config.content.seed.unwrap_or_else(clock_seed);
        tracing::info!(seed, "seed");
        let observers = EngineObservers::open(&config, &metrics)?;
        let live = engines::start(&config, seed, started, &observers, port)?;
        let service = Arc::new(service(&config, texts, seed, live.clone()));
        #[cfg(feature = "zmq")]
        let listeners = prefill::listen(&config, &service);
        let logged = stats_log::engines(&config, &metrics, &live);
        let counter = FaultCounter(metrics.clone());
        service.faults.report_to(Arc::new(counter));
        let parts = AppParts {
            config: config.clone(),
            service: service.clone(),
            metrics,
            routes,
            port,
            started,
            admin_state,
        };
        let app = Arc::new(App::new(parts));
        let registry = prefill::registry(&config, &app).await?;
        match loaded {
            Some(loaded) => app.join_admin_state(loaded),
            None => app.service().faults.set(setup::tuned(&config), false),
        }
        let stopping = app.availability().subscribe();
        let mut accepting = JoinSet::new();
        if let Some(registry) = registry {
            accepting.spawn(registry);
        }
        if let Some((engines, every)) = logged {
            accepting.spawn(stats_log::run(engines, every));
        }
        let http = HttpService::new(app.clone());
        #[cfg(feature = "grpc")]
        let http = http.with_grpc(vllm_sim_grpc::router(vllm_sim_grpc::Parts {
            config: config.clone(),
            service,
            started,
        }));
        let address = socket.address();
        let path = config.server.uds.clone();
        let keep_alive = config.server.keep_alive;
        if let Some((acceptor, tls)) = &acceptor {
            accepting.spawn(acceptor.clone().watch(tls.clone()));
        }
        let acceptor = acceptor.map(|(acceptor, _)| acceptor);
        let grpc_address = grpc_socket.as_ref().and_then(ServerSocket::address);
        if let Some(socket) = grpc_socket {
            let (http, acceptor) = (http.clone(), acceptor.clone());
            accepting.spawn(accept::run(
                socket,
                http,
                acceptor,
                stopping.clone(),
                keep_alive,
            ));
        }
        accepting.spawn(accept::run(socket, http, acceptor, stopping, keep_alive));
        let shutdown_timeout = config.server.shutdown_timeout;
        Ok(Self {
            address,
            grpc_address,
            app,
            live,
            observers,
            accepting,
            shutdown_timeout,
            socket: path,
            #[cfg(feature = "zmq")]
            _listeners: listeners,
        })
    }

    /// The state its handlers see.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Ends it: `/health` says 503, no new work, what runs may end within the shutdown timeout,
    /// then is cut.
    pub async fn shutdown(mut self) {
        self.app.stop();
        let service = self.app.service().clone();
        let drained = async {
            while service.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(self.shutdown_timeout, drained)
            .await
            .is_err()
        {
            for live in &self.live {
                live.command(Command::CancelAll);
            }
        }
        let availability = self.app.availability();
        availability.send_modify(|availability| availability.stopping = true);
        let ended = async {
            availability.closed().await;
        };
        // Connections that stay idle or stall are cut.
        let _ = tokio::time::timeout(Duration::from_millis(500), ended).await;
        self.accepting.shutdown().await;
        for live in &self.live {
            live.stop();
        }
        self.observers.close().await;
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn service(config: &Config, texts: Texts, seed: u64, live: Vec<LiveEngine>) -> Service {
    let models = Models::new(
        &config.model.served_names,
        config.api.skip_model_name_validation,
    );
    for module in &config.lora.modules {
        let base = module.base_model_name.clone();
        if let Err(error) = models.load(&module.name, &module.path, base, false) {
            tracing::warn!(%error, "adapter not loaded");
        }
    }
    let settings = Settings {
        max_model_len: config.model.max_model_len,
        seed,
        // llm-d draws on from its seed: the next answer to the same prompt is another one.
        repeatable: config.content.seed_given && config.model.compat != Compat::Llmd,
        admission: config.engine.admission,
        tools: config.content.tools.clone(),
        hashes: setup::hashes(config),
        traced: config.server.otlp_traces_endpoint.is_some(),
        followed: config.metrics.kv_cache,
        role: config.engine.role,
    };
    let mut generator = Generator::new(config.content.mode, seed, texts.tokenizer)
        .with_whole_echo(!config.content.echo_cut)
        .with_mute(config.model.tokenizer.skip_init);
    if let Some(recordings) = texts.recordings {
        generator = generator.with_recordings(recordings);
    }
    Service::new(models, generator, live, settings)
}

#[expect(clippy::disallowed_methods, reason = "nobody chose a seed")]
fn clock_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Names a self-signed certificate is good for.
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
