//! Flags of sockets, TLS, logs and metrics.

use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{LogFormat, LogLevel};
use crate::flag::{Flag, RuntimeChangeScope};
use crate::group::FlagHelpGroup::{Logging, Metrics, Server, Tls};
use crate::read::JsonMap;
use vllm_sim_observe::otel::OtlpProtocol;

flags! {
    HOST: Option<String> = Flag::new("host", Server, "Address to listen on. Default: all interfaces.");
    PORT: u16 = Flag::new("port", Server, "TCP port of the first rank; 0: any free port, which the log and --ready-file report.")
        .with_default("8000").with_integer_bounds(0, 65_535, "invalid port: 0 to 65535 are allowed");
    READY_FILE: Option<PathBuf> = Flag::new("ready-file", Server, "File to write, with the URL of each server, when the server listens. It is removed when the server stops.");
    EXIT_ON_STDIN_EOF: bool = Flag::new("exit-on-stdin-eof", Server, "Stop the server when standard input is closed, so that it does not outlive the program that started it.")
        .with_default("false");
    UDS: Option<PathBuf> = Flag::new("uds", Server, "Unix socket to listen on instead of host and port.");
    ROOT_PATH: Option<String> = Flag::new("root-path", Server, "Additional path prefix under which every route is served.");
    API_KEY: Vec<String> = Flag::new("api-key", Server, "Bearer tokens that clients must send. Without this flag, no key is required.")
        .with_env_names(&["VLLM_API_KEY"]).with_secret_value();
    ALLOWED_ORIGINS: Vec<String> = Flag::new("allowed-origins", Server, "CORS: allowed origins, as a JSON array. Empty: no CORS headers.")
        .with_default("[]");
    ALLOWED_HOSTS: Vec<String> = Flag::new("allowed-hosts", Server, "Host names under which browsers may use admin routes, as a JSON array. Always allowed: IP addresses, localhost, names without a dot, --host, --pod-name.")
        .with_default("[]");
    ALLOWED_METHODS: Vec<String> = Flag::new("allowed-methods", Server, "CORS: allowed methods, as a JSON array.")
        .with_default("[\"*\"]");
    ALLOWED_HEADERS: Vec<String> = Flag::new("allowed-headers", Server, "CORS: allowed request headers, as a JSON array.")
        .with_default("[\"*\"]");
    ALLOW_CREDENTIALS: bool = Flag::new("allow-credentials", Server, "CORS: allow credentials.")
        .with_default("false");
    MAX_REQUEST_BODY_SIZE_MB: usize = Flag::new("max-request-body-size-mb", Server, "Maximum size of a request body, in MiB; a larger body gets HTTP 413.")
        .with_default_by_mode("4", "64")
        .with_integer_bounds(1, 512, "max-request-body-size-mb must be between 1 MB and 512 MB");
    SHUTDOWN_TIMEOUT: Duration = Flag::new("shutdown-timeout", Server, "Time for requests in flight to finish after SIGTERM; 0: abort them immediately.")
        .with_default_by_mode("30", "0").default_unit_seconds().with_bounds_error("shutdown timeout cannot be negative");
    STARTUP_DURATION: Duration = Flag::new("startup-duration", Server, "Time after the start during which /health/ready returns HTTP 503.")
        .with_default("0").with_bounds_error("startup duration cannot be negative");
    READY_CHECK_IDLE_TIMEOUT: Duration = Flag::new("ready-check-idle-timeout", Server, "With --preview readiness: time without a first output token after which /health/ready returns HTTP 503.")
        .with_default("60").with_env_names(&["VLLM_READY_CHECK_IDLE_TIMEOUT_S"]).default_unit_seconds().with_bounds_error("ready-check timeouts cannot be negative");
    READY_CHECK_PROGRESS_TIMEOUT: Duration = Flag::new("ready-check-progress-timeout", Server, "With --preview readiness: time without a further output token after which /health/ready returns HTTP 503.")
        .with_default("60").with_env_names(&["VLLM_READY_CHECK_PROGRESS_TIMEOUT_S"]).default_unit_seconds().with_bounds_error("ready-check timeouts cannot be negative");
    STARTUP_TIME: Duration = Flag::new("startup-time", Server, "Alias of --startup-duration with seconds as default unit, as in Dynamo.")
        .hidden_from_help().default_unit_seconds().with_bounds_error("startup duration cannot be negative");
    KEEP_ALIVE_TIMEOUT: Duration = Flag::new("keep-alive-timeout", Server, "Time after which an idle connection is closed.")
        .with_default("5").with_env_names(&["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]).default_unit_seconds()
        .with_bounds_error("keep-alive timeout cannot be negative");
    SSE_KEEP_ALIVE_INTERVAL: Duration = Flag::new("sse-keep-alive-interval", Server, "Interval of comments in an idle SSE stream; 0: no comments.")
        .with_default("0").default_unit_seconds()
        .with_bounds_error("sse-keep-alive-interval must be a non-negative number of seconds");
    ENABLE_REQUEST_ID_HEADERS: bool = Flag::new("enable-request-id-headers", Server, "Add the header x-request-id to every response.")
        .with_default("false");
    ENABLE_SERVER_LOAD_TRACKING: bool = Flag::new("enable-server-load-tracking", Server, "Count requests in flight at /load.")
        .with_default("false");
    DEV_MODE: bool = Flag::new("dev-mode", Server, "Enable the routes of vLLM's development mode: sleep, reset, pause, server_info and others.")
        .with_default("false").with_env_names(&["VLLM_SERVER_DEV_MODE"]);
    ENABLE_SLEEP_MODE: bool = Flag::new("enable-sleep-mode", Server, "Make POST /sleep and /wake_up change the engine state. `vllm-sim --model` also needs --dev-mode.").with_default("false");
    DISABLE_FASTAPI_DOCS: bool = Flag::new("disable-fastapi-docs", Server, "Disable /docs, /redoc and /openapi.json.")
        .with_default("false");
    DASHBOARD_CONTROL: bool = Flag::new("dashboard-control", Server, "Allow the page /dashboard to change delays and faults, and serve /admin/config.")
        .with_default("false");
    DASHBOARD_PEERS: Vec<String> = Flag::new("dashboard-peers", Server, "URLs of other vllm-sim servers to show on /dashboard, separated by commas; at most 64.");
    POD_NAME: Option<String> = Flag::new("pod-name", Server, "Value of the response header x-inference-pod; also adds the header x-inference-port.")
        .with_env_names(&["POD_NAME"]);
    POD_NAMESPACE: Option<String> = Flag::new("pod-namespace", Server, "Value of the response header x-inference-namespace.")
        .with_env_names(&["POD_NAMESPACE"]);
    POD_IP: Option<String> = Flag::new("pod-ip", Server, "IP address of this pod, used in llm-d's KV event topic.")
        .with_env_names(&["POD_IP"]);
    GRPC: bool = Flag::new("grpc", Server, "Serve gRPC. No effect: gRPC is always served, in addition to HTTP.")
        .with_default("true").hidden_from_help();
    GRPC_PORT: Option<u16> = Flag::new("grpc-port", Server, "Separate port for gRPC. Default: the HTTP port serves both.")
        .with_integer_bounds(1, 65_535, "invalid grpc-port: 1 to 65535 are allowed");
    HEADLESS: bool = Flag::new("headless", Server, "Run engines without an HTTP server; they join an API server of vLLM (--data-parallel-address).").with_default("false");
    OTLP_TRACES_ENDPOINT: Option<String> = Flag::new("otlp-traces-endpoint", Server, "Address of the OpenTelemetry collector for spans, such as http://localhost:4317. Default: no tracing.");
    OTLP_TRACES_PROTOCOL: OtlpProtocol = Flag::choice("otlp-traces-protocol", Server, words![("grpc", OtlpProtocol::Grpc), ("http/protobuf", OtlpProtocol::HttpProtobuf)], "Protocol of --otlp-traces-endpoint; with http/protobuf the endpoint is a URL with its path.")
        .with_default("grpc").with_env_names(&["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]);
    SSL_CERTFILE: Option<PathBuf> = Flag::new("ssl-certfile", Tls, "PEM file of the certificate chain; requires --ssl-keyfile.");
    SSL_KEYFILE: Option<PathBuf> = Flag::new("ssl-keyfile", Tls, "PEM file of the private key; requires --ssl-certfile.");
    SELF_SIGNED_CERTS: bool = Flag::new("self-signed-certs", Tls, "Generate a self-signed certificate at start and serve TLS.")
        .with_default("false");
    SSL_CA_CERTS: Option<PathBuf> = Flag::new("ssl-ca-certs", Tls, "PEM file of the certificate authorities for client certificates.");
    SSL_CERT_REQS: u8 = Flag::new("ssl-cert-reqs", Tls, "Client certificates: 0: not requested, 1: verified if presented, 2: required.")
        .with_default("0").with_integer_bounds(0, 2, "ssl-cert-reqs must be 0 (none), 1 (optional) or 2 (required)");
    ENABLE_SSL_REFRESH: bool = Flag::new("enable-ssl-refresh", Tls, "Reload changed certificate files without a restart.")
        .with_default_by_mode("true", "false");
    LOG_LEVEL: LogLevel = Flag::choice("log-level", Logging, words![("error", LogLevel::Error), ("warn", LogLevel::Warn), ("info", LogLevel::Info), ("debug", LogLevel::Debug), ("trace", LogLevel::Trace), ("warning", LogLevel::Warn), ("critical", LogLevel::Error)], "Minimum level of log lines to print. Default: info.")
        .with_env_names(&["VLLM_LOGGING_LEVEL"]);
    LOG_FORMAT: LogFormat = Flag::choice("log-format", Logging, words![("text", LogFormat::Text), ("json", LogFormat::Json)], "Format of log lines: text, or one JSON object per line.")
        .with_default("text");
    LOG_HTTP: bool = Flag::new("log-http", Logging, "Log request and response bodies.").with_default("false");
    VERBOSITY: Option<i64> = Flag::new("v", Logging, "Verbosity of llm-d's logger: 0 and 1: warnings, 2 and 3: info, 4: debug, 5 and more: trace.")
        .with_short_names(&["v"]).hidden_from_help();
    UVICORN_LOG_LEVEL: LogLevel = Flag::choice("uvicorn-log-level", Logging, words![("critical", LogLevel::Error), ("error", LogLevel::Error), ("warning", LogLevel::Warn), ("info", LogLevel::Info), ("debug", LogLevel::Debug), ("trace", LogLevel::Trace)], "Alias of --log-level, as in vLLM.")
        .hidden_from_help();
    DISABLE_UVICORN_ACCESS_LOG: bool = Flag::new("disable-uvicorn-access-log", Logging, "Do not log a line per HTTP request.")
        .with_default_by_mode("true", "false");
    DISABLE_ACCESS_LOG_FOR_ENDPOINTS: Vec<String> = Flag::new("disable-access-log-for-endpoints", Logging, "Paths whose requests are not logged, separated by commas.");
    ENABLE_LOG_REQUESTS: bool = Flag::new("enable-log-requests", Logging, "Log the parameters of each request.")
        .with_default("false");
    ENABLE_LOG_OUTPUTS: bool = Flag::new("enable-log-outputs", Logging, "Log generated replies.")
        .with_default("false");
    MAX_LOG_LEN: Option<usize> = Flag::new("max-log-len", Logging, "Maximum number of characters of a prompt or reply to log. Default: no limit.")
        .with_integer_bounds(0, i64::MAX, "max-log-len cannot be negative");
    LEGACY_METRICS: bool = Flag::new("legacy-metrics", Metrics, "Also expose the metric names of older vLLM releases and of llm-d-inference-sim.")
        .with_default_by_mode("true", "false");
    DISABLE_LOG_STATS: bool = Flag::new("disable-log-stats", Metrics, "Do not expose engine metrics, and do not log a line about each engine.")
        .with_default("false");
    LOG_STATS_INTERVAL: Duration = Flag::new("log-stats-interval", Metrics, "Interval at which `serve` logs a line about each engine; 0: never.")
        .with_default("10s").with_env_names(&["VLLM_LOG_STATS_INTERVAL"]).default_unit_seconds()
        .with_bounds_error("log-stats-interval cannot be negative");
    KV_CACHE_METRICS: bool = Flag::new("kv-cache-metrics", Metrics, "Expose histograms of the residency of sampled KV cache blocks.")
        .with_default("false");
    KV_CACHE_METRICS_SAMPLE: f64 = Flag::new("kv-cache-metrics-sample", Metrics, "Fraction of KV cache blocks to sample for --kv-cache-metrics.")
        .with_default("0.01")
        .with_float_bounds(f64::MIN_POSITIVE, 1.0, "kv-cache-metrics-sample must be more than 0 and at most 1");
    ENABLE_MFU_METRICS: bool = Flag::new("enable-mfu-metrics", Metrics, "Expose counters of estimated FLOPs and memory traffic, for model FLOPs utilization.")
        .with_default("false");
    FAKE_METRICS: Option<JsonMap> = Flag::new("fake-metrics", Metrics, "Metrics to expose instead of real ones, as a JSON object in llm-d's format.")
        .changeable_at_run_time(RuntimeChangeScope::Server);
    FAKE_METRICS_REFRESH_INTERVAL: Option<Duration> = Flag::new("fake-metrics-refresh-interval", Metrics, "Interval at which functions in --fake-metrics are evaluated.")
        .with_default("100ms");
}
