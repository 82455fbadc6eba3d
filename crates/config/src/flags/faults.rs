//! Flags of injected faults and request history.

use std::path::PathBuf;

use crate::flag::{Flag, Scope};
use crate::group::FlagGroup::{Failures, Server};

flags! {
    FAILURE_INJECTION_RATE: u8 = Flag::new("failure-injection-rate", Failures, "Percentage of requests that fail.")
        .or("0").live(Scope::Server)
        .range(0, 100, "failure injection rate should be between 0 and 100");
    FAILURE_TYPES: Vec<String> = Flag::new("failure-types", Failures, "Which failures [all]: rate_limit, invalid_api_key, context_length, server_error, invalid_request, model_not_found.")
        .live(Scope::Server);
    STREAM_FAULT_RATE: f64 = Flag::new("stream-fault-rate", Failures, "Percentage of replies that have one of --stream-faults.")
        .or("0").live(Scope::Server)
        .within(0.0, 100.0, "stream fault rate should be between 0 and 100");
    STREAM_FAULTS: Vec<String> = Flag::new("stream-faults", Failures, "What goes wrong with them, each as in the header X-Sim-Fault, such as cut_after=5, kv_load_failure or 'stall=3:2s;missing_done' [cut_after=5].")
        .live(Scope::Server);
    HEALTH_STATUS: u16 = Flag::new("health-status", Failures, "Status that /health, /health/ready, /ready and /ping answer.")
        .or("200").live(Scope::Server)
        .range(200, 599, "health status should be between 200 and 599");
    LOSE_KV_EVENTS: bool = Flag::new("lose-kv-events", Failures, "KV events are lost on their way: subscribers see a gap in the numbers, a replay socket still has them.")
        .or("false").live(Scope::Server);
    STALE_METRICS: bool = Flag::new("stale-metrics", Failures, "/metrics stays as it is when this is set.")
        .or("false").live(Scope::Server);
    LATENCY_FACTOR: f64 = Flag::new("latency-factor", Failures, "Everything takes so many times as long: delays and step times; below 1 it is faster.")
        .or("1").live(Scope::Server)
        .within(1e-6, 1e6, "latency factor must be more than 0 and at most 1000000");
    SCENARIO: Option<PathBuf> = Flag::new("scenario", Failures, "YAML file of a scenario: failures and slow-downs over time.");
    REPLIES: Option<PathBuf> = Flag::new("replies", Failures, "YAML file of scripted replies: what is said, called or refused when a message matches.");
    RETRY_AFTER: Option<u32> = Flag::new("retry-after", Failures, "Header Retry-After of every answer with 429 or 503, in seconds [none].")
        .live(Scope::Server)
        .range(0, i64::MAX, "retry-after cannot be negative");
    REQUEST_HISTORY: usize = Flag::new("request-history", Server, "How many of the newest requests /admin/requests shows; 0: none.")
        .or("0").range(0, 1_000_000, "request-history must be between 0 and 1000000");
    REQUEST_HISTORY_BODIES: bool = Flag::new("request-history-bodies", Server, "It shows their bodies too, prompts among them.")
        .or("false");
    ADMIN_API_KEY: Option<String> = Flag::new("admin-api-key", Server, "Bearer key that /admin and /fake_metrics ask for. With `serve`, they exist with it, or with --dev-mode.")
        .secret();
}
