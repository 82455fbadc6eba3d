use super::{
    Flag,
    Group::{Logging, Metrics, Server, Tls},
    Kind::{Choice, Duration, Float, Int, Json, List, Path, Seconds, Switch, Text},
};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "host",
        Server,
        Text,
        "Address to listen on [all interfaces].",
    ),
    Flag::new(
        "port",
        Server,
        Int,
        "Port of the first rank. Behind `serve` 0 means any free one.",
    )
    .or("8000"),
    Flag::new(
        "uds",
        Server,
        Path,
        "Listen on this Unix socket instead of host and port.",
    ),
    Flag::new(
        "root-path",
        Server,
        Text,
        "Prefix under which every route exists too.",
    ),
    Flag::new(
        "api-key",
        Server,
        List,
        "Bearer keys; without any, nobody is asked for one.",
    )
    .env(&["VLLM_API_KEY"])
    .secret(),
    Flag::new(
        "allowed-origins",
        Server,
        List,
        "CORS: allowed origins, as a JSON array.",
    )
    .or("[]"),
    Flag::new(
        "allowed-methods",
        Server,
        List,
        "CORS: allowed methods, as a JSON array.",
    )
    .or("[\"*\"]"),
    Flag::new(
        "allowed-headers",
        Server,
        List,
        "CORS: allowed request headers, as a JSON array.",
    )
    .or("[\"*\"]"),
    Flag::new(
        "allow-credentials",
        Server,
        Switch,
        "CORS: allow credentials.",
    )
    .or("false"),
    Flag::new(
        "max-request-body-size-mb",
        Server,
        Int,
        "Largest request body, 1 to 512 MiB; a larger one gets 413.",
    )
    .doors("4", "64"),
    Flag::new(
        "shutdown-timeout",
        Server,
        Seconds,
        "How long requests in flight may go on after SIGTERM; 0: none are waited for.",
    )
    .doors("30", "0"),
    Flag::new(
        "startup-duration",
        Server,
        Duration,
        "How long /health/ready says 503 after start.",
    )
    .or("0"),
    Flag::new(
        "startup-time",
        Server,
        Seconds,
        "The same, a bare number being seconds (Dynamo's spelling).",
    )
    .hide(),
    Flag::new(
        "keep-alive-timeout",
        Server,
        Seconds,
        "When an idle connection is closed.",
    )
    .or("5")
    .env(&["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]),
    Flag::new(
        "sse-keep-alive-interval",
        Server,
        Seconds,
        "How often a silent stream gets a comment; 0: never.",
    )
    .or("0"),
    Flag::new(
        "enable-request-id-headers",
        Server,
        Switch,
        "Every response carries x-request-id.",
    )
    .or("false"),
    Flag::new(
        "enable-server-load-tracking",
        Server,
        Switch,
        "/load counts requests in flight.",
    )
    .or("false"),
    Flag::new(
        "dev-mode",
        Server,
        Switch,
        "Routes of vLLM's development mode: sleep, reset, pause, server_info, ….",
    )
    .or("false")
    .env(&["VLLM_SERVER_DEV_MODE"]),
    Flag::new("enable-sleep-mode", Server, Switch, "/sleep acts.").or("false"),
    Flag::new(
        "disable-fastapi-docs",
        Server,
        Switch,
        "No /docs, /redoc and /openapi.json.",
    )
    .or("false"),
    Flag::new(
        "dashboard-control",
        Server,
        Switch,
        "The page /dashboard may change delays and failures, and /admin/config is served.",
    )
    .or("false"),
    Flag::new(
        "pod-name",
        Server,
        Text,
        "Value of the response header x-inference-pod, and x-inference-port is added.",
    )
    .env(&["POD_NAME"]),
    Flag::new(
        "pod-namespace",
        Server,
        Text,
        "Value of the response header x-inference-namespace.",
    )
    .env(&["POD_NAMESPACE"]),
    Flag::new(
        "pod-ip",
        Server,
        Text,
        "This pod's address, in llm-d's event topic.",
    )
    .env(&["POD_IP"]),
    Flag::new(
        "grpc",
        Server,
        Switch,
        "Serve gRPC. It is always served, beside HTTP.",
    )
    .or("true")
    .hide(),
    Flag::new(
        "grpc-port",
        Server,
        Int,
        "A port for gRPC alone [the HTTP port serves both].",
    ),
    Flag::new(
        "headless",
        Server,
        Switch,
        "Engines without an HTTP server.",
    )
    .or("false"),
    Flag::new(
        "otlp-traces-endpoint",
        Server,
        Text,
        "Where OpenTelemetry spans go: a collector's address, such as http://localhost:4317.",
    ),
    Flag::new(
        "otlp-traces-protocol",
        Server,
        Choice(&["grpc", "http/protobuf"]),
        "How they get there; with http/protobuf the address is a URL with its path.",
    )
    .or("grpc")
    .env(&["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]),
    Flag::new(
        "ssl-certfile",
        Tls,
        Path,
        "Certificate chain, PEM; together with --ssl-keyfile.",
    ),
    Flag::new(
        "ssl-keyfile",
        Tls,
        Path,
        "Private key, PEM; together with --ssl-certfile.",
    ),
    Flag::new(
        "self-signed-certs",
        Tls,
        Switch,
        "Make a certificate at start.",
    )
    .or("false"),
    Flag::new(
        "ssl-ca-certs",
        Tls,
        Path,
        "Authorities that client certificates are checked against.",
    ),
    Flag::new(
        "ssl-cert-reqs",
        Tls,
        Int,
        "Client certificates: 0 not asked for, 1 checked when shown, 2 required.",
    )
    .or("0"),
    Flag::new(
        "enable-ssl-refresh",
        Tls,
        Switch,
        "Pick up changed certificate files while running.",
    )
    .doors("true", "false"),
    Flag::new(
        "log-level",
        Logging,
        Choice(&[
            "error", "warn", "info", "debug", "trace", "warning", "critical",
        ]),
        "Least important level that is shown [info].",
    )
    .env(&["VLLM_LOGGING_LEVEL"]),
    Flag::new(
        "log-format",
        Logging,
        Choice(&["text", "json"]),
        "Lines for people, or one JSON object each.",
    )
    .or("text"),
    Flag::new(
        "log-http",
        Logging,
        Switch,
        "Log request and response bodies.",
    )
    .or("false"),
    Flag::new(
        "v",
        Logging,
        Int,
        "llm-d's verbosity: 0 and 1 warnings, 2 and 3 info, 4 debug, 5 and more trace.",
    )
    .short(&["v"])
    .hide(),
    Flag::new(
        "uvicorn-log-level",
        Logging,
        Choice(&["critical", "error", "warning", "info", "debug", "trace"]),
        "vLLM's spelling of --log-level.",
    )
    .hide(),
    Flag::new(
        "disable-uvicorn-access-log",
        Logging,
        Switch,
        "No line per request.",
    )
    .doors("true", "false"),
    Flag::new(
        "disable-access-log-for-endpoints",
        Logging,
        List,
        "Paths without a line per request, separated by commas.",
    ),
    Flag::new(
        "enable-log-requests",
        Logging,
        Switch,
        "Log the parameters of each request.",
    )
    .or("false"),
    Flag::new("enable-log-outputs", Logging, Switch, "Log replies too.").or("false"),
    Flag::new(
        "max-log-len",
        Logging,
        Int,
        "Longest piece of a prompt that is logged [all of it].",
    ),
    Flag::new(
        "legacy-metrics",
        Metrics,
        Switch,
        "Also expose the metric names of older vLLM releases and of llm-d-inference-sim.",
    )
    .doors("true", "false"),
    Flag::new(
        "disable-log-stats",
        Metrics,
        Switch,
        "No series of engines, and no line about them in the log.",
    )
    .or("false"),
    Flag::new(
        "log-stats-interval",
        Metrics,
        Seconds,
        "How often `serve` logs a line about each engine; 0: never.",
    )
    .or("10s")
    .env(&["VLLM_LOG_STATS_INTERVAL"]),
    Flag::new(
        "kv-cache-metrics",
        Metrics,
        Switch,
        "Residency histograms of sampled blocks.",
    )
    .or("false"),
    Flag::new(
        "kv-cache-metrics-sample",
        Metrics,
        Float,
        "Share of blocks that those sample.",
    )
    .or("0.01"),
    Flag::new(
        "enable-mfu-metrics",
        Metrics,
        Switch,
        "Counters of estimated FLOPs and bytes.",
    )
    .or("false"),
    Flag::new(
        "fake-metrics",
        Metrics,
        Json,
        "Metrics to show instead of real ones.",
    )
    .tunable(),
    Flag::new(
        "fake-metrics-refresh-interval",
        Metrics,
        Duration,
        "How often functions in them are evaluated.",
    )
    .or("100ms"),
];
