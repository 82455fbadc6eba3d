//! Flags of sockets, TLS, logs and metrics.

use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{LogFormat, LogLevel};
use crate::flag::{Flag, Scope};
use crate::group::FlagGroup::{Logging, Metrics, Server, Tls};
use crate::read::JsonMap;
use vllm_sim_observe::otel::OtlpProtocol;

flags! {
    HOST: Option<String> = Flag::new("host", Server, "Address to listen on [all interfaces].");
    PORT: u16 = Flag::new("port", Server, "Port of the first rank; 0: any free one, which the log and --ready-file name.")
        .or("8000").range(0, 65_535, "invalid port: 0 to 65535 are allowed");
    READY_FILE: Option<PathBuf> = Flag::new("ready-file", Server, "A file that is written once the server listens, with the URL of each server, and removed when it ends.");
    EXIT_ON_STDIN_EOF: bool = Flag::new("exit-on-stdin-eof", Server, "End when standard input is closed, so that no server outlives the program that started it.")
        .or("false");
    UDS: Option<PathBuf> = Flag::new("uds", Server, "Listen on this Unix socket instead of host and port.");
    ROOT_PATH: Option<String> = Flag::new("root-path", Server, "Prefix under which every route exists too.");
    API_KEY: Vec<String> = Flag::new("api-key", Server, "Bearer keys; without any, nobody is asked for one.")
        .env(&["VLLM_API_KEY"]).secret();
    ALLOWED_ORIGINS: Vec<String> = Flag::new("allowed-origins", Server, "CORS: allowed origins, as a JSON array.")
        .or("[]");
    ALLOWED_HOSTS: Vec<String> = Flag::new("allowed-hosts", Server, "Host names under which browsers may use the operator's routes, as a JSON array. Addresses, localhost, names without a dot, --host and --pod-name always may.")
        .or("[]");
    ALLOWED_METHODS: Vec<String> = Flag::new("allowed-methods", Server, "CORS: allowed methods, as a JSON array.")
        .or("[\"*\"]");
    ALLOWED_HEADERS: Vec<String> = Flag::new("allowed-headers", Server, "CORS: allowed request headers, as a JSON array.")
        .or("[\"*\"]");
    ALLOW_CREDENTIALS: bool = Flag::new("allow-credentials", Server, "CORS: allow credentials.")
        .or("false");
    MAX_REQUEST_BODY_SIZE_MB: usize = Flag::new("max-request-body-size-mb", Server, "Largest request body, 1 to 512 MiB; a larger one gets 413.")
        .by_mode("4", "64")
        .range(1, 512, "max-request-body-size-mb must be between 1 MB and 512 MB");
    SHUTDOWN_TIMEOUT: Duration = Flag::new("shutdown-timeout", Server, "How long requests in flight may go on after SIGTERM; 0: none are waited for.")
        .by_mode("30", "0").seconds().refusal("shutdown timeout cannot be negative");
    STARTUP_DURATION: Duration = Flag::new("startup-duration", Server, "How long /health/ready says 503 after start.")
        .or("0").refusal("startup duration cannot be negative");
    STARTUP_TIME: Duration = Flag::new("startup-time", Server, "The same, a bare number being seconds (Dynamo's spelling).")
        .hide().seconds().refusal("startup duration cannot be negative");
    KEEP_ALIVE_TIMEOUT: Duration = Flag::new("keep-alive-timeout", Server, "When an idle connection is closed.")
        .or("5").env(&["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]).seconds()
        .refusal("keep-alive timeout cannot be negative");
    SSE_KEEP_ALIVE_INTERVAL: Duration = Flag::new("sse-keep-alive-interval", Server, "How often a silent stream gets a comment; 0: never.")
        .or("0").seconds()
        .refusal("sse-keep-alive-interval must be a non-negative number of seconds");
    ENABLE_REQUEST_ID_HEADERS: bool = Flag::new("enable-request-id-headers", Server, "Every response carries x-request-id.")
        .or("false");
    ENABLE_SERVER_LOAD_TRACKING: bool = Flag::new("enable-server-load-tracking", Server, "/load counts requests in flight.")
        .or("false");
    DEV_MODE: bool = Flag::new("dev-mode", Server, "Routes of vLLM's development mode: sleep, reset, pause, server_info, ….")
        .or("false").env(&["VLLM_SERVER_DEV_MODE"]);
    ENABLE_SLEEP_MODE: bool = Flag::new("enable-sleep-mode", Server, "/sleep acts.").or("false");
    DISABLE_FASTAPI_DOCS: bool = Flag::new("disable-fastapi-docs", Server, "No /docs, /redoc and /openapi.json.")
        .or("false");
    DASHBOARD_CONTROL: bool = Flag::new("dashboard-control", Server, "The page /dashboard may change delays and failures, and /admin/config is served.")
        .or("false");
    DASHBOARD_PEERS: Vec<String> = Flag::new("dashboard-peers", Server, "URLs of other vllm-sim servers, separated by commas, that /dashboard shows beside this one.");
    POD_NAME: Option<String> = Flag::new("pod-name", Server, "Value of the response header x-inference-pod, and x-inference-port is added.")
        .env(&["POD_NAME"]);
    POD_NAMESPACE: Option<String> = Flag::new("pod-namespace", Server, "Value of the response header x-inference-namespace.")
        .env(&["POD_NAMESPACE"]);
    POD_IP: Option<String> = Flag::new("pod-ip", Server, "This pod's address, in llm-d's event topic.")
        .env(&["POD_IP"]);
    GRPC: bool = Flag::new("grpc", Server, "Serve gRPC. It is always served, beside HTTP.")
        .or("true").hide();
    GRPC_PORT: Option<u16> = Flag::new("grpc-port", Server, "A port for gRPC alone [the HTTP port serves both].")
        .range(1, 65_535, "invalid grpc-port: 1 to 65535 are allowed");
    HEADLESS: bool = Flag::new("headless", Server, "Engines without an HTTP server: they join an API server of vLLM.").or("false");
    OTLP_TRACES_ENDPOINT: Option<String> = Flag::new("otlp-traces-endpoint", Server, "Where OpenTelemetry spans go: a collector's address, such as http://localhost:4317.");
    OTLP_TRACES_PROTOCOL: OtlpProtocol = Flag::choice("otlp-traces-protocol", Server, words![("grpc", OtlpProtocol::Grpc), ("http/protobuf", OtlpProtocol::HttpProtobuf)], "How they get there; with http/protobuf the address is a URL with its path.")
        .or("grpc").env(&["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]);
    SSL_CERTFILE: Option<PathBuf> = Flag::new("ssl-certfile", Tls, "Certificate chain, PEM; together with --ssl-keyfile.");
    SSL_KEYFILE: Option<PathBuf> = Flag::new("ssl-keyfile", Tls, "Private key, PEM; together with --ssl-certfile.");
    SELF_SIGNED_CERTS: bool = Flag::new("self-signed-certs", Tls, "Make a certificate at start.")
        .or("false");
    SSL_CA_CERTS: Option<PathBuf> = Flag::new("ssl-ca-certs", Tls, "Authorities that client certificates are checked against.");
    SSL_CERT_REQS: u8 = Flag::new("ssl-cert-reqs", Tls, "Client certificates: 0 not asked for, 1 checked when shown, 2 required.")
        .or("0").range(0, 2, "ssl-cert-reqs must be 0 (none), 1 (optional) or 2 (required)");
    ENABLE_SSL_REFRESH: bool = Flag::new("enable-ssl-refresh", Tls, "Pick up changed certificate files while running.")
        .by_mode("true", "false");
    LOG_LEVEL: LogLevel = Flag::choice("log-level", Logging, words![("error", LogLevel::Error), ("warn", LogLevel::Warn), ("info", LogLevel::Info), ("debug", LogLevel::Debug), ("trace", LogLevel::Trace), ("warning", LogLevel::Warn), ("critical", LogLevel::Error)], "Least important level that is shown [info].")
        .env(&["VLLM_LOGGING_LEVEL"]);
    LOG_FORMAT: LogFormat = Flag::choice("log-format", Logging, words![("text", LogFormat::Text), ("json", LogFormat::Json)], "Lines for people, or one JSON object each.")
        .or("text");
    LOG_HTTP: bool = Flag::new("log-http", Logging, "Log request and response bodies.").or("false");
    VERBOSITY: Option<i64> = Flag::new("v", Logging, "llm-d's verbosity: 0 and 1 warnings, 2 and 3 info, 4 debug, 5 and more trace.")
        .short(&["v"]).hide();
    UVICORN_LOG_LEVEL: LogLevel = Flag::choice("uvicorn-log-level", Logging, words![("critical", LogLevel::Error), ("error", LogLevel::Error), ("warning", LogLevel::Warn), ("info", LogLevel::Info), ("debug", LogLevel::Debug), ("trace", LogLevel::Trace)], "vLLM's spelling of --log-level.")
        .hide();
    DISABLE_UVICORN_ACCESS_LOG: bool = Flag::new("disable-uvicorn-access-log", Logging, "No line per request.")
        .by_mode("true", "false");
    DISABLE_ACCESS_LOG_FOR_ENDPOINTS: Vec<String> = Flag::new("disable-access-log-for-endpoints", Logging, "Paths without a line per request, separated by commas.");
    ENABLE_LOG_REQUESTS: bool = Flag::new("enable-log-requests", Logging, "Log the parameters of each request.")
        .or("false");
    ENABLE_LOG_OUTPUTS: bool = Flag::new("enable-log-outputs", Logging, "Log replies too.")
        .or("false");
    MAX_LOG_LEN: Option<usize> = Flag::new("max-log-len", Logging, "Longest piece of a prompt that is logged [all of it].")
        .range(0, i64::MAX, "max-log-len cannot be negative");
    LEGACY_METRICS: bool = Flag::new("legacy-metrics", Metrics, "Also expose the metric names of older vLLM releases and of llm-d-inference-sim.")
        .by_mode("true", "false");
    DISABLE_LOG_STATS: bool = Flag::new("disable-log-stats", Metrics, "No series of engines, and no line about them in the log.")
        .or("false");
    LOG_STATS_INTERVAL: Duration = Flag::new("log-stats-interval", Metrics, "How often `serve` logs a line about each engine; 0: never.")
        .or("10s").env(&["VLLM_LOG_STATS_INTERVAL"]).seconds()
        .refusal("log-stats-interval cannot be negative");
    KV_CACHE_METRICS: bool = Flag::new("kv-cache-metrics", Metrics, "Residency histograms of sampled blocks.")
        .or("false");
    KV_CACHE_METRICS_SAMPLE: f64 = Flag::new("kv-cache-metrics-sample", Metrics, "Share of blocks that those sample.")
        .or("0.01")
        .within(f64::MIN_POSITIVE, 1.0, "kv-cache-metrics-sample must be more than 0 and at most 1");
    ENABLE_MFU_METRICS: bool = Flag::new("enable-mfu-metrics", Metrics, "Counters of estimated FLOPs and bytes.")
        .or("false");
    FAKE_METRICS: Option<JsonMap> = Flag::new("fake-metrics", Metrics, "Metrics to show instead of real ones.")
        .live(Scope::Server);
    FAKE_METRICS_REFRESH_INTERVAL: Option<Duration> = Flag::new("fake-metrics-refresh-interval", Metrics, "How often functions in them are evaluated.")
        .or("100ms");
}
