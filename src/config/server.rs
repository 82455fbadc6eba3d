use std::path::PathBuf;
use std::time::Duration;

/// Sockets, TLS, headers, logs.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Address to listen on; `None`: all interfaces.
    pub host: Option<String>,
    /// TCP port of the first rank [8000]; 0 (only behind `serve`): any free one.
    pub port: u16,
    /// Unix socket instead of host and port.
    pub uds: Option<PathBuf>,
    /// Prefix under which every route exists too: empty, or `/x` without a slash at the end.
    pub root_path: String,
    /// Accepted bearer keys; empty: no check.
    pub api_keys: Vec<String>,
    /// Cross-origin rules.
    pub cors: Cors,
    /// `None`: plain text.
    pub tls: Option<Tls>,
    /// Largest request body [64 MiB].
    pub max_request_body_bytes: usize,
    /// How long requests in flight may go on after a signal [30 s; behind `serve` 0: abort].
    pub shutdown_timeout: Duration,
    /// How long `/health/ready` says 503 after start [0].
    pub startup_duration: Duration,
    /// When an idle connection is closed [5 s].
    pub keep_alive: Duration,
    /// Whether every response carries `x-request-id`.
    pub request_id_headers: bool,
    /// Where the process runs, as Kubernetes tells it.
    pub pod: Pod,
    /// Whether `/load` counts.
    pub load_tracking: bool,
    /// Whether the routes of `VLLM_SERVER_DEV_MODE=1` exist.
    pub dev_mode: bool,
    /// Whether `/sleep` acts (llm-d also wants `dev_mode`; vLLM wants nothing else).
    pub enable_sleep_mode: bool,
    /// Whether `/docs`, `/redoc` and `/openapi.json` are off.
    pub disable_fastapi_docs: bool,
    /// What is logged, and how.
    pub log: Log,
    /// How often a silent stream gets a comment; `None`: never.
    pub sse_keep_alive_interval: Option<Duration>,
    /// A port for gRPC alone; `None`: it shares the HTTP port.
    pub grpc_port: Option<u16>,
    /// Where spans go.
    pub otlp_traces_endpoint: Option<String>,
    /// Engines without an HTTP server.
    pub headless: bool,
}

/// Cross-origin rules of the API, as Starlette's middleware takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// Allowed origins; empty: none, `*`: all.
    pub origins: Vec<String>,
    /// Allowed methods [`*`].
    pub methods: Vec<String>,
    /// Allowed request headers [`*`].
    pub headers: Vec<String>,
    /// Whether credentials are allowed.
    pub credentials: bool,
}

/// Transport encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Where the certificate comes from.
    pub certificate: Certificate,
    /// Authorities that client certificates are checked against.
    pub ca_certs: Option<PathBuf>,
    /// Whether clients must show a certificate.
    pub client_certs: ClientCerts,
    /// Whether changed files are picked up while running.
    pub refresh: bool,
}

/// Where the server's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// PEM files.
    Files {
        /// Certificate chain.
        cert: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// Made at start.
    SelfSigned,
}

/// Whether clients must show a certificate: Python's `ssl.CERT_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCerts {
    /// Not asked for (0).
    #[default]
    None,
    /// Checked when shown (1).
    Optional,
    /// Needed (2).
    Required,
}

/// Where the process runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// `POD_NAME`: turns the header `x-inference-pod` on.
    pub name: Option<String>,
    /// `POD_NAMESPACE`: turns the header `x-inference-namespace` on.
    pub namespace: Option<String>,
    /// `POD_IP`: part of llm-d's event topic.
    pub ip: Option<String>,
}

/// What is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Least important level that is shown.
    pub level: LogLevel,
    /// How a line looks.
    pub format: LogFormat,
    /// Whether request and response bodies are logged.
    pub http: bool,
    /// Whether one line per request is logged.
    pub access: bool,
    /// Paths that have no access line.
    pub access_excluded: Vec<String>,
    /// Longest piece of a prompt that is logged; `None`: all of it.
    pub max_len: Option<usize>,
}

/// Least important level that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// Also what looks wrong.
    Warn,
    /// Also what happens a few times per process.
    #[default]
    Info,
    /// Also once per request.
    Debug,
    /// Also per token and block.
    Trace,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
