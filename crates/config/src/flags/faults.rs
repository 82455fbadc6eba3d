//! Flags of injected faults and request history.

use std::path::PathBuf;

use crate::flag::{Flag, RuntimeChangeScope};
use crate::group::FlagHelpGroup::{Failures, Server};

flags! {
    FAILURE_INJECTION_RATE: u8 = Flag::new("failure-injection-rate", Failures, "Share of requests that fail, in percent.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Server)
        .with_integer_bounds(0, 100, "failure injection rate should be between 0 and 100");
    FAILURE_TYPES: Vec<String> = Flag::new("failure-types", Failures, "Kinds of injected failures: rate_limit, invalid_api_key, context_length, server_error, invalid_request, model_not_found. Default: all.")
        .changeable_at_run_time(RuntimeChangeScope::Server);
    STREAM_FAULT_RATE: f64 = Flag::new("stream-fault-rate", Failures, "Share of replies that have one of --stream-faults, in percent.")
        .with_default("0").changeable_at_run_time(RuntimeChangeScope::Server)
        .with_float_bounds(0.0, 100.0, "stream fault rate should be between 0 and 100");
    STREAM_FAULTS: Vec<String> = Flag::new("stream-faults", Failures, "Faults of replies, in the syntax of the header X-Sim-Fault, such as cut_after=5, kv_load_failure or 'stall=3:2s;missing_done'. Default: cut_after=5.")
        .changeable_at_run_time(RuntimeChangeScope::Server);
    HEALTH_STATUS: u16 = Flag::new("health-status", Failures, "HTTP status of /health, /health/ready, /ready and /ping.")
        .with_default("200").changeable_at_run_time(RuntimeChangeScope::Server)
        .with_integer_bounds(200, 599, "health status should be between 200 and 599");
    LOSE_KV_EVENTS: bool = Flag::new("lose-kv-events", Failures, "Lose KV event messages: subscribers see a gap in sequence numbers; the replay endpoint still has the messages.")
        .with_default("false").changeable_at_run_time(RuntimeChangeScope::Server);
    KV_EVENT_GAPS: Option<String> = Flag::new("kv-event-gaps", Failures, "Lose KV event messages on a schedule: MESSAGES/INTERVAL such as 3/10s loses the first three messages of every ten seconds.")
        .changeable_at_run_time(RuntimeChangeScope::Server);
    HANG_ENGINE: bool = Flag::new("hang-engine", Failures, "Run no engine steps: requests wait, while /health returns 200.")
        .with_default("false").changeable_at_run_time(RuntimeChangeScope::Server);
    STALE_METRICS: bool = Flag::new("stale-metrics", Failures, "Freeze the /metrics page at its current values.")
        .with_default("false").changeable_at_run_time(RuntimeChangeScope::Server);
    LATENCY_FACTOR: f64 = Flag::new("latency-factor", Failures, "Multiplies all delays and step times; below 1 they are shorter.")
        .with_default("1").changeable_at_run_time(RuntimeChangeScope::Server)
        .with_float_bounds(1e-6, 1e6, "latency factor must be more than 0 and at most 1000000");
    SCENARIO: Option<PathBuf> = Flag::new("scenario", Failures, "YAML file of a scenario: faults and slow-downs over time.");
    REPLIES: Option<PathBuf> = Flag::new("replies", Failures, "YAML file of scripted replies: the text, tool call or error for messages that match.");
    STRICT_REPLIES: bool = Flag::new("strict-replies", Failures, "Refuse requests that no rule of --replies matches with HTTP 400, instead of a generated reply.")
        .with_default("false");
    RETRY_AFTER: Option<u32> = Flag::new("retry-after", Failures, "Value of the header Retry-After in responses with HTTP 429 or 503, in seconds. Default: no header.")
        .changeable_at_run_time(RuntimeChangeScope::Server)
        .with_integer_bounds(0, i64::MAX, "retry-after cannot be negative");
    REQUEST_HISTORY: usize = Flag::new("request-history", Server, "Number of recent requests that /admin/requests shows; 0: none.")
        .with_default("0").with_integer_bounds(0, 1_000_000, "request-history must be between 0 and 1000000");
    REQUEST_HISTORY_BODIES: bool = Flag::new("request-history-bodies", Server, "Show request bodies, including prompts, at /admin/requests.")
        .with_default("false");
    ADMIN_API_KEY: Option<String> = Flag::new("admin-api-key", Server, "Bearer token that /admin and /fake_metrics require; without it, a key of --api-key. With `serve`, these routes exist only with this flag or --dev-mode.")
        .with_secret_value();
}
