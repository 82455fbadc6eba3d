use std::path::PathBuf;
use std::time::Duration;

use super::CliMode;
use super::error::ConfigError;
use super::values::Values;
use vllm_sim_observe::otel::OtlpProtocol;

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
    /// The bearer key of `/admin` and `/fake_metrics`; `None`: no check.
    pub admin_key: Option<String>,
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
    /// Whether the dashboard may change settings.
    pub dashboard_control: bool,
    /// What is logged, and how.
    pub log: Log,
    /// How often a silent stream gets a comment; `None`: never.
    pub sse_keep_alive_interval: Option<Duration>,
    /// A port for gRPC alone; `None`: it shares the HTTP port.
    pub grpc_port: Option<u16>,
    /// Where spans go.
    pub otlp_traces_endpoint: Option<String>,
    /// How they get there.
    pub otlp_traces_protocol: OtlpProtocol,
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
    /// Whether the parameters of each request are logged.
    pub requests: bool,
    /// Whether replies are logged too.
    pub outputs: bool,
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

/// llm-d's bounds of a request body, in MiB.
const BODY_MB: std::ops::RangeInclusive<i64> = 1..=512;

impl Server {
    pub(super) fn from_values(v: &Values) -> Result<Self, ConfigError> {
        let least_port = match v.cli_mode {
            CliMode::Llmd => 1,
            CliMode::Vllm => 0,
        };
        let body_mb: usize = v.ranged(
            "max-request-body-size-mb",
            BODY_MB,
            "max-request-body-size-mb must be between 1 MB and 512 MB",
        )?;
        let silence = v.duration(
            "sse-keep-alive-interval",
            "sse-keep-alive-interval must be a non-negative number of seconds",
        )?;
        v.switch("grpc")?;
        Ok(Self {
            host: v.owned("host"),
            port: v.ranged(
                "port",
                least_port..=65535,
                "invalid port: 1 to 65535 are allowed",
            )?,
            uds: v.path("uds"),
            root_path: root_path(v.text("root-path").unwrap_or_default()),
            api_keys: v.list("api-key"),
            admin_key: v.owned("admin-api-key"),
            cors: Cors {
                origins: v.list("allowed-origins"),
                methods: v.list("allowed-methods"),
                headers: v.list("allowed-headers"),
                credentials: v.switch("allow-credentials")?,
            },
            tls: tls(v)?,
            max_request_body_bytes: body_mb << 20,
            shutdown_timeout: v
                .duration("shutdown-timeout", "shutdown timeout cannot be negative")?,
            startup_duration: startup(v)?,
            keep_alive: v.duration(
                "keep-alive-timeout",
                "keep-alive timeout cannot be negative",
            )?,
            request_id_headers: v.switch("enable-request-id-headers")?,
            pod: Pod {
                name: v.owned("pod-name"),
                namespace: v.owned("pod-namespace"),
                ip: v.owned("pod-ip"),
            },
            load_tracking: v.switch("enable-server-load-tracking")?,
            dev_mode: v.switch("dev-mode")?,
            enable_sleep_mode: v.switch("enable-sleep-mode")?,
            disable_fastapi_docs: v.switch("disable-fastapi-docs")?,
            dashboard_control: v.switch("dashboard-control")?,
            log: log(v)?,
            sse_keep_alive_interval: (!silence.is_zero()).then_some(silence),
            grpc_port: v.opt_ranged(
                "grpc-port",
                1..=65535,
                "invalid grpc-port: 1 to 65535 are allowed",
            )?,
            otlp_traces_endpoint: v.owned("otlp-traces-endpoint"),
            otlp_traces_protocol: match v.choice("otlp-traces-protocol")? {
                Some("http/protobuf") => OtlpProtocol::HttpProtobuf,
                _ => OtlpProtocol::Grpc,
            },
            headless: v.switch("headless")?,
        })
    }
}

fn root_path(typed: &str) -> String {
    match typed.trim_matches('/') {
        "" => String::new(),
        path => format!("/{path}"),
    }
}

fn startup(v: &Values) -> Result<Duration, ConfigError> {
    let words = "startup duration cannot be negative";
    let (ours, dynamos) = (v.duration("startup-duration", words)?, "startup-time");
    let seconds = v.duration(dynamos, words)?;
    Ok(if v.given(dynamos) { seconds } else { ours })
}

fn tls(v: &Values) -> Result<Option<Tls>, ConfigError> {
    let self_signed = v.switch("self-signed-certs")?;
    let certificate = match (v.path("ssl-certfile"), v.path("ssl-keyfile")) {
        (Some(_), Some(_)) if self_signed => {
            return Err(ConfigError::Invalid(
                "cannot use both self-signed-certs and explicit ssl-certfile/ssl-keyfile"
                    .to_owned(),
            ));
        }
        (Some(cert), Some(key)) => Some(Certificate::Files { cert, key }),
        (None, None) if self_signed => Some(Certificate::SelfSigned),
        (None, None) => None,
        _ => {
            return Err(ConfigError::Invalid(
                "both ssl-certfile and ssl-keyfile must be provided together".to_owned(),
            ));
        }
    };
    let client_certs = match v.ranged::<u8>(
        "ssl-cert-reqs",
        0..=2,
        "ssl-cert-reqs must be 0 (none), 1 (optional) or 2 (required)",
    )? {
        0 => ClientCerts::None,
        1 => ClientCerts::Optional,
        _ => ClientCerts::Required,
    };
    let ca_certs = v.path("ssl-ca-certs");
    let refresh = v.switch("enable-ssl-refresh")?;
    if client_certs != ClientCerts::None && ca_certs.is_none() && certificate.is_some() {
        return Err(ConfigError::Invalid(
            "ssl-cert-reqs asks for client certificates, so ssl-ca-certs must name their authorities"
                .to_owned(),
        ));
    }
    Ok(certificate.map(|certificate| Tls {
        certificate,
        ca_certs,
        client_certs,
        refresh,
    }))
}

fn log(v: &Values) -> Result<Log, ConfigError> {
    let format = match v.choice("log-format")? {
        Some("json") => LogFormat::Json,
        _ => LogFormat::Text,
    };
    Ok(Log {
        level: log_level(v)?,
        format,
        http: v.switch("log-http")?,
        access: !v.switch("disable-uvicorn-access-log")?,
        access_excluded: v.comma_list("disable-access-log-for-endpoints"),
        requests: v.switch("enable-log-requests")?,
        outputs: v.switch("enable-log-outputs")?,
        max_len: v.opt_ranged(
            "max-log-len",
            0..=i64::MAX,
            "max-log-len cannot be negative",
        )?,
    })
}

/// Our own flag wins over klog's verbosity, that over uvicorn's level.
///
/// **Source:** llm-d-inference-sim `pkg/common/logging`: WARN 1, INFO 2, DEBUG 4, TRACE 5.
fn log_level(v: &Values) -> Result<LogLevel, ConfigError> {
    let ours = v.choice("log-level")?.map(|level| match level {
        "error" | "critical" => LogLevel::Error,
        "warn" | "warning" => LogLevel::Warn,
        "debug" => LogLevel::Debug,
        "trace" => LogLevel::Trace,
        _ => LogLevel::Info,
    });
    let klogs = v.opt_int("v")?.map(|verbosity| match verbosity {
        ..=1 => LogLevel::Warn,
        2..=3 => LogLevel::Info,
        4 => LogLevel::Debug,
        _ => LogLevel::Trace,
    });
    let uvicorns = v.choice("uvicorn-log-level")?.map(|level| match level {
        "critical" | "error" => LogLevel::Error,
        "warning" => LogLevel::Warn,
        "debug" => LogLevel::Debug,
        "trace" => LogLevel::Trace,
        _ => LogLevel::Info,
    });
    Ok(ours.or(klogs).or(uvicorns).unwrap_or_default())
}
