use std::path::PathBuf;
use std::time::Duration;

use super::choices::{LogFormat, LogLevel};
use super::error::{ConfigError, bail, invalid};
use super::flags::{faults, server};
use super::preview::{checks_engine_progress_for_readiness, read_previewed_pull_requests};
use super::values::FlagValues;
use vllm_sim_observe::otel::OtlpProtocol;

/// Settings of sockets, TLS, routes and logs.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpServerConfig {
    /// IP address or host name to listen on; `None`: all interfaces.
    pub host: Option<String>,
    /// TCP port of the first data-parallel rank (default 8000); 0: any free port.
    pub port: u16,
    /// File with the URLs of the servers, present while the server listens.
    pub ready_file: Option<PathBuf>,
    /// Whether the server stops when standard input is closed.
    pub exit_on_stdin_eof: bool,
    /// Path of the Unix socket to listen on instead of host and port.
    pub uds: Option<PathBuf>,
    /// Additional path prefix of all routes: empty, or `/x` without a trailing slash.
    pub root_path: String,
    /// API keys: accepted bearer tokens; empty: no authentication.
    pub api_keys: Vec<String>,
    /// Bearer token of `/admin` and `/fake_metrics`; `None`: the API keys guard
    /// them, if there are any.
    pub admin_key: Option<String>,
    /// Host names under which browsers may use the admin routes, in addition to local ones.
    pub allowed_hosts: Vec<String>,
    /// Rules of cross-origin requests (CORS).
    pub cors: CorsConfig,
    /// Settings of TLS on the server's port; `None`: plain text.
    pub tls: Option<TlsConfig>,
    /// Maximum size of a request body, in bytes (default 4 MiB; 64 MiB with `serve`).
    pub max_body_bytes: usize,
    /// Timeouts of start, shutdown and idle connections.
    pub timeouts: HttpServerTimeouts,
    /// Whether every response has the header `x-request-id`.
    pub request_id_headers: bool,
    /// Name, namespace and IP of the Kubernetes pod, from the environment.
    pub pod: KubernetesPodIdentity,
    /// Limits of the request history.
    pub history: RequestHistoryLimits,
    /// Settings of optional routes.
    pub routes: OptionalRouteSwitches,
    /// Settings of the dashboard.
    pub dashboard: DashboardConfig,
    /// Settings of logs.
    pub log: LogConfig,
    /// Interval of keep-alive comments in an idle SSE stream; `None`: no comments.
    pub sse_keep_alive_interval: Option<Duration>,
    /// TCP port for gRPC; `None`: gRPC shares the HTTP port.
    pub grpc_port: Option<u16>,
    /// Settings of OpenTelemetry trace export.
    pub otlp: OtlpConfig,
    /// Whether the engines run without an HTTP server (`--headless`).
    pub headless: bool,
}

/// Timeouts of start, shutdown and idle connections.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpServerTimeouts {
    /// Time for requests in flight to finish after SIGTERM. Default: 30 s; with `serve`, 0, which
    /// aborts the requests.
    pub shutdown: Duration,
    /// Time after server start during which `/health/ready` returns 503 (default 0).
    pub startup: Duration,
    /// Idle time until a connection is closed (default 5 s).
    pub keep_alive: Duration,
    /// Maximum durations without engine output, after which `/health/ready` returns 503; `None`:
    /// the route does not check the output.
    pub ready_check: Option<ReadinessCheckTimeouts>,
}

/// Maximum durations without output, after which an engine with requests is not ready (`--preview
/// readiness`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadinessCheckTimeouts {
    /// Maximum time from the first request of an idle engine to the engine's first output (default
    /// 60 s).
    pub first_output: Duration,
    /// Maximum time since the last output of an engine with requests (default 60 s).
    pub next_output: Duration,
}

/// Limits of the request history.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestHistoryLimits {
    /// Number of recent requests that the request history keeps.
    pub requests: usize,
    /// Whether the request history keeps the bodies of requests.
    pub bodies: bool,
}

/// Settings of optional routes.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionalRouteSwitches {
    /// Whether the route `/load` counts requests in flight.
    pub load_tracking: bool,
    /// Whether the routes of `VLLM_SERVER_DEV_MODE=1` exist.
    pub dev_mode: bool,
    /// Whether the route `/sleep` has an effect; with llm-d's command line, the route also needs
    /// `dev_mode`.
    pub enable_sleep_mode: bool,
    /// Whether the routes `/docs`, `/redoc` and `/openapi.json` are disabled.
    pub disable_fastapi_docs: bool,
}

/// Settings of the dashboard.
#[derive(Debug, Clone, PartialEq)]
pub struct DashboardConfig {
    /// Whether the dashboard may change server settings.
    pub control: bool,
    /// URLs of other servers shown on the dashboard, without trailing slash.
    pub peers: Vec<String>,
}

/// Settings of OpenTelemetry trace export.
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpConfig {
    /// URL of the OpenTelemetry collector; `None`: no export.
    pub traces_endpoint: Option<String>,
    /// Protocol of the OpenTelemetry collector: gRPC or HTTP.
    pub traces_protocol: OtlpProtocol,
}

/// Rules of cross-origin requests (CORS), as in Starlette's middleware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsConfig {
    /// Origins of allowed cross-origin requests; empty: none, `*`: all.
    pub origins: Vec<String>,
    /// HTTP methods of allowed cross-origin requests (default `*`).
    pub methods: Vec<String>,
    /// Request headers of allowed cross-origin requests (default `*`).
    pub headers: Vec<String>,
    /// Whether CORS allows requests with credentials.
    pub credentials: bool,
}

/// Settings of TLS on the server's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Source of the server's TLS certificate: PEM files or self-signed.
    pub certificate: TlsCertificateSource,
    /// PEM file of certificate authorities for client certificates.
    pub ca_certs: Option<PathBuf>,
    /// Policy for client certificates.
    pub client_certs: ClientCertificatePolicy,
    /// Whether the server reloads changed certificate files.
    pub refresh: bool,
}

/// Source of the server's TLS certificate: PEM files or self-signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsCertificateSource {
    /// The server's certificate is read from PEM files.
    Files {
        /// PEM file with the server's certificate chain.
        cert: PathBuf,
        /// PEM file with the private key of the server's certificate.
        key: PathBuf,
    },
    /// The server's certificate is self-signed and generated at start.
    SelfSigned,
}

/// Policy for client certificates, Python's `ssl.CERT_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificatePolicy {
    /// No client certificate is requested (0).
    #[default]
    None,
    /// A client certificate is checked if the client presents one (1).
    Optional,
    /// A client certificate is required (2).
    Required,
}

/// Name, namespace and IP of the Kubernetes pod, from the environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KubernetesPodIdentity {
    /// Pod name, `POD_NAME`; enables the response header `x-inference-pod`.
    pub name: Option<String>,
    /// Pod namespace, `POD_NAMESPACE`; enables the response header `x-inference-namespace`.
    pub namespace: Option<String>,
    /// Pod IP address, `POD_IP`; part of llm-d's KV event topic.
    pub ip: Option<String>,
}

/// Settings of logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Minimum level of logged events.
    pub level: LogLevel,
    /// Format of log lines: text or JSON.
    pub format: LogFormat,
    /// Whether request and response bodies are logged.
    pub http: bool,
    /// Whether one line per request is logged.
    pub access: bool,
    /// Request paths without a line in the access log.
    pub access_excluded: Vec<String>,
    /// Whether the parameters of each request are logged.
    pub requests: bool,
    /// Whether the generated output of each request is logged.
    pub outputs: bool,
    /// Maximum length of a logged prompt or output, in characters; `None`: unlimited.
    pub max_len: Option<usize>,
}

impl HttpServerConfig {
    pub(super) fn from_flag_values(v: &FlagValues) -> Result<Self, ConfigError> {
        let body_mb = v.get(&server::MAX_REQUEST_BODY_SIZE_MB)?;
        let silence = v.get(&server::SSE_KEEP_ALIVE_INTERVAL)?;
        v.get(&server::GRPC)?;
        Ok(Self {
            host: v.get(&server::HOST)?,
            port: v.get(&server::PORT)?,
            ready_file: v.get(&server::READY_FILE)?,
            exit_on_stdin_eof: v.get(&server::EXIT_ON_STDIN_EOF)?,
            uds: v.get(&server::UDS)?,
            root_path: root_path(v.get_text(&server::ROOT_PATH).unwrap_or_default()),
            api_keys: v.get(&server::API_KEY)?,
            admin_key: v.get(&faults::ADMIN_API_KEY)?,
            allowed_hosts: v.get(&server::ALLOWED_HOSTS)?,
            cors: CorsConfig {
                origins: v.get(&server::ALLOWED_ORIGINS)?,
                methods: v.get(&server::ALLOWED_METHODS)?,
                headers: v.get(&server::ALLOWED_HEADERS)?,
                credentials: v.get(&server::ALLOW_CREDENTIALS)?,
            },
            tls: read_tls(v)?,
            max_body_bytes: body_mb << 20,
            timeouts: HttpServerTimeouts {
                shutdown: v.get(&server::SHUTDOWN_TIMEOUT)?,
                startup: read_startup_duration(v)?,
                keep_alive: v.get(&server::KEEP_ALIVE_TIMEOUT)?,
                ready_check: read_ready_check(v)?,
            },
            request_id_headers: v.get(&server::ENABLE_REQUEST_ID_HEADERS)?,
            pod: KubernetesPodIdentity {
                name: v.get(&server::POD_NAME)?,
                namespace: v.get(&server::POD_NAMESPACE)?,
                ip: v.get(&server::POD_IP)?,
            },
            history: RequestHistoryLimits {
                requests: v.get(&faults::REQUEST_HISTORY)?,
                bodies: v.get(&faults::REQUEST_HISTORY_BODIES)?,
            },
            routes: OptionalRouteSwitches {
                load_tracking: v.get(&server::ENABLE_SERVER_LOAD_TRACKING)?,
                dev_mode: v.get(&server::DEV_MODE)?,
                enable_sleep_mode: v.get(&server::ENABLE_SLEEP_MODE)?,
                disable_fastapi_docs: v.get(&server::DISABLE_FASTAPI_DOCS)?,
            },
            dashboard: DashboardConfig {
                control: v.get(&server::DASHBOARD_CONTROL)?,
                peers: dashboard_peers(v)?,
            },
            log: read_log_config(v)?,
            sse_keep_alive_interval: (!silence.is_zero()).then_some(silence),
            grpc_port: v.get(&server::GRPC_PORT)?,
            otlp: OtlpConfig {
                traces_endpoint: v.get(&server::OTLP_TRACES_ENDPOINT)?,
                traces_protocol: v.get_choice(&server::OTLP_TRACES_PROTOCOL)?.unwrap_or_default(),
            },
            headless: v.get(&server::HEADLESS)?,
        })
    }
}

const MAX_PEERS: usize = 64;

fn dashboard_peers(v: &FlagValues) -> Result<Vec<String>, ConfigError> {
    let urls = v.read_comma_separated_list(&server::DASHBOARD_PEERS)?;
    if urls.len() > MAX_PEERS {
        let given = urls.len();
        let text =
            format!("dashboard-peers names {given} servers, at most {MAX_PEERS} are allowed");
        return Err(ConfigError::Invalid(text));
    }
    let url = |url: &String| {
        let host = ["http://", "https://"].iter().find_map(|s| url.strip_prefix(s));
        let host = host.filter(|host| !host.starts_with('/') && !host.is_empty());
        match host.filter(|host| !host.contains(['?', '#', '@'])) {
            Some(_) => Ok(url.trim_end_matches('/').to_owned()),
            None => Err(invalid!(
                "dashboard-peers: {url:?} must be a URL such as http://10.0.0.2:8000, without a user, \
                 query or fragment"
            )),
        }
    };
    urls.iter().map(url).collect()
}

fn root_path(typed: &str) -> String {
    match typed.trim_matches('/') {
        "" => String::new(),
        path => format!("/{path}"),
    }
}

fn read_ready_check(v: &FlagValues) -> Result<Option<ReadinessCheckTimeouts>, ConfigError> {
    let timeouts = ReadinessCheckTimeouts {
        first_output: v.get(&server::READY_CHECK_IDLE_TIMEOUT)?,
        next_output: v.get(&server::READY_CHECK_PROGRESS_TIMEOUT)?,
    };
    Ok(checks_engine_progress_for_readiness(&read_previewed_pull_requests(v)?).then_some(timeouts))
}

fn read_startup_duration(v: &FlagValues) -> Result<Duration, ConfigError> {
    let (ours, dynamos) = (v.get(&server::STARTUP_DURATION)?, &server::STARTUP_TIME);
    let seconds = v.get(dynamos)?;
    Ok(if v.is_flag_set(dynamos) { seconds } else { ours })
}

fn read_tls(v: &FlagValues) -> Result<Option<TlsConfig>, ConfigError> {
    let self_signed = v.get(&server::SELF_SIGNED_CERTS)?;
    let certificate = match (v.get(&server::SSL_CERTFILE)?, v.get(&server::SSL_KEYFILE)?) {
        (Some(_), Some(_)) if self_signed => {
            bail!("cannot use both self-signed-certs and explicit ssl-certfile/ssl-keyfile");
        }
        (Some(cert), Some(key)) => Some(TlsCertificateSource::Files { cert, key }),
        (None, None) if self_signed => Some(TlsCertificateSource::SelfSigned),
        (None, None) => None,
        _ => {
            bail!("both ssl-certfile and ssl-keyfile must be provided together");
        }
    };
    let client_certs = match v.get(&server::SSL_CERT_REQS)? {
        0 => ClientCertificatePolicy::None,
        1 => ClientCertificatePolicy::Optional,
        _ => ClientCertificatePolicy::Required,
    };
    let ca_certs = v.get(&server::SSL_CA_CERTS)?;
    if ca_certs.as_ref().is_some_and(|file| !file.is_file()) {
        return Err(v.unsupported_value_error("no such file", &server::SSL_CA_CERTS));
    }
    let refresh = v.get(&server::ENABLE_SSL_REFRESH)?;
    if client_certs != ClientCertificatePolicy::None && ca_certs.is_none() && certificate.is_some()
    {
        bail!(
            "ssl-cert-reqs requests client certificates, so ssl-ca-certs must name their \
             authorities"
        );
    }
    Ok(certificate.map(|certificate| TlsConfig { certificate, ca_certs, client_certs, refresh }))
}

fn read_log_config(v: &FlagValues) -> Result<LogConfig, ConfigError> {
    Ok(LogConfig {
        level: log_level(v)?,
        format: v.get_choice(&server::LOG_FORMAT)?.unwrap_or_default(),
        http: v.get(&server::LOG_HTTP)?,
        access: !v.get(&server::DISABLE_UVICORN_ACCESS_LOG)?
            && !matches!(
                v.get_choice(&server::UVICORN_LOG_LEVEL)?,
                Some(LogLevel::Error | LogLevel::Warn)
            ),
        access_excluded: v.read_comma_separated_list(&server::DISABLE_ACCESS_LOG_FOR_ENDPOINTS)?,
        requests: v.get(&server::ENABLE_LOG_REQUESTS)?,
        outputs: v.get(&server::ENABLE_LOG_OUTPUTS)?,
        max_len: v.get(&server::MAX_LOG_LEN)?,
    })
}

/// Returns the log level set by the first of `--log-level`, klog's `-v` and `--uvicorn-log-level`
/// that is given.
///
/// **Source:** llm-d-inference-sim `pkg/common/logging`: WARN 1, INFO 2, DEBUG 4, TRACE 5.
fn log_level(v: &FlagValues) -> Result<LogLevel, ConfigError> {
    let ours = v.get_choice(&server::LOG_LEVEL)?;
    let klogs = v.get(&server::VERBOSITY)?.map(|verbosity| match verbosity {
        ..=1 => LogLevel::Warn,
        2..=3 => LogLevel::Info,
        4 => LogLevel::Debug,
        _ => LogLevel::Trace,
    });
    let uvicorns = v.get_choice(&server::UVICORN_LOG_LEVEL)?;
    Ok(ours.or(klogs).or(uvicorns).unwrap_or_default())
}
