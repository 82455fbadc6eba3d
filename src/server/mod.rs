//! Composition: from a [`Config`] to a running server, and its end.

mod drill;
mod engines;
mod fleet;
mod line;
mod prefill;
mod setup;
mod side;
mod stats_log;
mod supervisor;
mod texts;
mod timing;
mod uvicorn;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::tls::{Acceptor, TlsError};
use vllm_sim_config::{Config, ConfigError, Loaded};
use vllm_sim_dataset::DatasetError;
use vllm_sim_engine::Command;
use vllm_sim_engine::driver::LiveEngine;
use vllm_sim_engine::latency::Setup;
use vllm_sim_engine::sched::EngineSpec;
use vllm_sim_engine::sched::vllm::VllmConfig;
use vllm_sim_http::{AdminState, App, Availability, Edge, Parts};
use vllm_sim_observe::kv_transfer::Listener;
use vllm_sim_observe::metrics::Metrics;
use vllm_sim_observe::otel::Spans;
use vllm_sim_service::fault::ConnHandle;
use vllm_sim_service::generate::Generator;
use vllm_sim_service::{Models, Service, Settings};
use vllm_sim_tokenizer::TokenizerError;

use texts::Texts;
use uvicorn::Uvicorn;

use line::{Abrupt, Held};

pub use fleet::Fleet;

/// Pending connections that the kernel keeps.
const BACKLOG: u32 = 4096;

/// Calls that an HTTP/2 connection may have open.
const MAX_STREAMS: u32 = 16_384;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Address and port, or path.
        address: String,
        /// What the system says.
        why: io::Error,
    },
    /// TLS files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The dataset.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A setting that only start-up can check.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file of `--scenario`.
    #[error("{path}: {why}")]
    Scenario {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The engine cannot be built.
    #[error("engine: {0}")]
    Engine(String),
    /// What the metrics should show.
    #[error("metrics: {0}")]
    Metrics(String),
    /// Where spans go.
    #[error("otlp-traces-endpoint {0:?}: {1}")]
    Spans(String, String),
    /// A thread could not be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(io::Error),
}

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
    spans: Option<Spans>,
    accepting: JoinSet<()>,
    shutdown_timeout: Duration,
    socket: Option<PathBuf>,
    _listeners: Vec<Listener>,
}

impl Server {
    /// Starts everything that `config` asks for. Answers requests when it returns.
    ///
    /// # Errors
    /// [`StartError`], with nothing left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let texts = Texts::open(&config).await?;
        Self::begin(config, None, Arc::default(), texts).await
    }

    /// Starts what flags ask for; an operator may tune it later.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_loaded(loaded: Loaded) -> Result<Self, StartError> {
        let texts = Texts::open(&loaded.config).await?;
        let config = loaded.config.clone();
        let drill = drill::read(&config)?;
        let server = Self::begin(config, Some(loaded), Arc::default(), texts).await?;
        match drill::play(&server, drill) {
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
        let bound = Bound::new(&config).await?;
        let grpc_bound = match config.server.grpc_port {
            Some(port) => Some(Bound::tcp(&config, port).await?),
            None => None,
        };
        let port = bound.address().map_or(config.server.port, |a| a.port());
        let routes = vllm_sim_http::routes(&config);
        let metrics = Metrics::new(setup::metrics(&config, routes.paths()))
            .map_err(|error| StartError::Metrics(error.to_string()))?;
        let seed = config.content.seed.unwrap_or_else(clock_seed);
        tracing::info!(seed, "seed");
        let spans = match &config.server.otlp_traces_endpoint {
            Some(endpoint) => Some(
                Spans::open(endpoint, config.server.otlp_traces_protocol)
                    .map_err(|error| StartError::Spans(endpoint.clone(), error.to_string()))?,
            ),
            None => None,
        };
        let live = engines::start(&config, seed, started, &metrics, port, spans.as_ref())?;
        let service = Arc::new(service(&config, texts, seed, live.clone()));
        let listeners = prefill::listen(&config, &service);
        let watched = stats_log::watched(&config, &metrics, &live);
        let counted = drill::Counted(metrics.clone());
        service.faults.report_to(Arc::new(counted));
        let parts = Parts {
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
        if let Some((watched, every)) = watched {
            accepting.spawn(stats_log::run(watched, every));
        }
        let calls = vllm_sim_grpc::router(vllm_sim_grpc::Parts {
            config: config.clone(),
            service,
            started,
        });
        let edge = Edge::new(app.clone()).with_grpc(calls);
        let address = bound.address();
        let socket = config.server.uds.clone();
        let keep_alive = config.server.keep_alive;
        if let Some((acceptor, tls)) = &acceptor {
            accepting.spawn(acceptor.clone().watch(tls.clone()));
        }
        let acceptor = acceptor.map(|(acceptor, _)| acceptor);
        let grpc_address = grpc_bound.as_ref().and_then(Bound::address);
        if let Some(bound) = grpc_bound {
            let (acceptor, stopping) = (acceptor.clone(), stopping.clone());
            accepting.spawn(bound.accept(edge.clone(), acceptor, stopping, keep_alive));
        }
        accepting.spawn(bound.accept(edge, acceptor, stopping, keep_alive));
        let shutdown_timeout = config.server.shutdown_timeout;
        Ok(Self {
            address,
            grpc_address,
            app,
            live,
            spans,
            accepting,
            shutdown_timeout,
            socket,
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
        if let Some(spans) = self.spans {
            let _ = tokio::task::spawn_blocking(move || spans.close()).await;
        }
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
        repeatable: config.content.seed_given,
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

/// A socket that listens.
enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Bound {
    async fn new(config: &Config) -> Result<Self, StartError> {
        if let Some(path) = &config.server.uds {
            let listen = |why| StartError::Listen {
                address: path.display().to_string(),
                why,
            };
            // A socket left by an earlier run; anything else stays.
            if tokio::net::UnixStream::connect(path).await.is_err() {
                use std::os::unix::fs::FileTypeExt;
                let is_socket = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_socket());
                if is_socket {
                    let _ = std::fs::remove_file(path);
                }
            }
            return UnixListener::bind(path).map(Self::Unix).map_err(listen);
        }
        Self::tcp(config, config.server.port).await
    }

    async fn tcp(config: &Config, port: u16) -> Result<Self, StartError> {
        let host = config.server.host.as_deref().unwrap_or("0.0.0.0");
        let failed = |why| StartError::Listen {
            address: format!("{host}:{port}"),
            why,
        };
        let addresses = tokio::net::lookup_host((host, port))
            .await
            .map_err(failed)?;
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such host");
        for address in addresses {
            match listen(address) {
                Ok(listener) => return Ok(Self::Tcp(listener)),
                Err(error) => last = error,
            }
        }
        Err(StartError::Listen {
            address: format!("{host}:{port}"),
            why: last,
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    async fn accept(
        self,
        edge: Edge,
        acceptor: Option<Acceptor>,
        mut stopping: watch::Receiver<Availability>,
        keep_alive: Duration,
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = self.next() => accepted,
                changed = stopping.changed() => {
                    if changed.is_err() || stopping.borrow_and_update().stopping {
                        return;
                    }
                    continue;
                }
            };
            let connection = match accepted {
                Ok(connection) => connection,
                Err(error) => {
                    // Out of descriptors, most likely: let some close.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            if stopping.borrow().down {
                if let Connection::Tcp(stream) = connection {
                    stream.make_abrupt();
                }
                continue;
            }
            let (edge, stopping) = (edge.clone(), stopping.clone());
            let tls = acceptor.as_ref().map(Acceptor::current);
            tokio::spawn(async move {
                match (connection, tls) {
                    (Connection::Tcp(stream), None) => {
                        let Some(protocol) = detect(&stream, keep_alive).await else {
                            return;
                        };
                        serve(stream, protocol, edge, stopping, keep_alive).await;
                    }
                    (Connection::Tcp(stream), Some(tls)) => {
                        let Some(stream) = handshake(tls, stream, keep_alive).await else {
                            return;
                        };
                        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        let protocol = if h2 { Protocol::Http2 } else { Protocol::Http1 };
                        serve(*stream, protocol, edge, stopping, keep_alive).await;
                    }
                    (Connection::Unix(stream), _) => {
                        serve(stream, Protocol::Http1, edge, stopping, keep_alive).await;
                    }
                }
            });
        }
    }

    async fn next(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Connection::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Connection::Unix(listener.accept().await?.0)),
        }
    }
}

/// The TLS stream of a connection, unless the client fails or dawdles.
async fn handshake(
    tls: tokio_rustls::TlsAcceptor,
    stream: tokio::net::TcpStream,
    within: Duration,
) -> Option<Box<tokio_rustls::server::TlsStream<tokio::net::TcpStream>>> {
    match tokio::time::timeout(within * 2, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
    None
}

enum Connection {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Looks at the first bytes without taking them: HTTP/2 with prior knowledge starts `PRI `.
///
/// hyper-util's own detection reads them instead and gives them back one read later, which makes
/// hyper double its read buffer: 8 KiB for each connection.
async fn detect(stream: &tokio::net::TcpStream, within: Duration) -> Option<Protocol> {
    const PREFACE: &[u8] = b"PRI ";
    let look = async {
        let mut first = [0; PREFACE.len()];
        loop {
            let seen = stream.peek(&mut first).await.ok().filter(|n| *n > 0)?;
            if first[..seen] != PREFACE[..seen] {
                return Some(Protocol::Http1);
            }
            if seen == PREFACE.len() {
                return Some(Protocol::Http2);
            }
            // A part of the preface; the rest is on its way.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(within, look).await.ok().flatten()
}

/// Serves one connection until it closes or the server stops.
async fn serve<S>(
    stream: S,
    protocol: Protocol,
    edge: Edge,
    mut stopping: watch::Receiver<Availability>,
    keep_alive: Duration,
) where
    S: AsyncRead + AsyncWrite + Abrupt + Unpin + Send + 'static,
{
    let line = Arc::new(ConnHandle::default());
    let edge = edge.on_line(line.clone());
    let lives = stopping.borrow().lives;
    let stream = Held::new(stream, line.clone());
    let keys = edge.asks_for_keys();
    // Boxed: between requests a connection keeps a pointer instead of room for the largest handler.
    let service = service_fn(move |request| Box::pin(edge.clone().call(request)));
    macro_rules! run {
        ($connection:expr) => {{
            let mut connection = Box::pin($connection);
            loop {
                tokio::select! {
                    ended = connection.as_mut() => break ended,
                    () = line.broken() => return,
                    changed = stopping.changed() => {
                        let link = *stopping.borrow_and_update();
                        if changed.is_err() || link.stopping {
                            connection.as_mut().graceful_shutdown();
                            break connection.await;
                        }
                        if link.lives != lives {
                            line.reset();
                        }
                    }
                }
            }
        }};
    }
    let ended = match protocol {
        Protocol::Http1 => run!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(keep_alive)
                // Half the CPU per small chunk: one copy beats a vectored write.
                .writev(false)
                .serve_connection(TokioIo::new(Uvicorn::new(stream, keys)), service)
                .with_upgrades()
        ),
        Protocol::Http2 => run!(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                // A gRPC client puts all its calls on one connection.
                .max_concurrent_streams(MAX_STREAMS)
                .serve_connection(TokioIo::new(stream), service)
        ),
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended early");
    }
}
