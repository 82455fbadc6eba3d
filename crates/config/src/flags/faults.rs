use super::{
    Flag,
    Group::{Failures, Server},
    Kind::{Float, Int, List, Path, Text},
};

pub(super) const FLAGS: &[Flag] = &[
    Flag::new("failure-injection-rate", Failures, Int, "Percentage of requests that fail.").or("0").tunable(),
    Flag::new("failure-types", Failures, List, "Which failures [all]: rate_limit, invalid_api_key, context_length, server_error, invalid_request, model_not_found.").tunable(),
    Flag::new("stream-fault-rate", Failures, Float, "Percentage of replies that have one of --stream-faults.").or("0").tunable(),
    Flag::new("stream-faults", Failures, List, "What goes wrong with them, each as in the header X-Sim-Fault, such as cut_after=5 or 'stall=3:2s;missing_done' [cut_after=5].").tunable(),
    Flag::new("health-status", Failures, Int, "Status that /health, /health/ready, /ready and /ping answer.").or("200").tunable(),
    Flag::new("latency-factor", Failures, Float, "Everything takes so many times as long: delays and step times; below 1 it is faster.").or("1").tunable(),
    Flag::new("scenario", Failures, Path, "YAML file of failures and slow-downs over time: a drill."),
    Flag::new("admin-api-key", Server, Text, "Bearer key that /admin and /fake_metrics ask for. Behind `serve` they exist with it, or with --dev-mode.").secret(),
];
