use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use vllm_sim_config::{Config, LogFormat, LogLevel};

pub(super) fn start_server_log(config: &Config) {
    let log = &config.server.log;
    let level = match log.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let builder = log_subscriber(&format!("warn,vllm_sim={level}"));
    // The module path helps at debug level only.
    let builder = builder.with_target(matches!(log.level, LogLevel::Debug | LogLevel::Trace));
    // A second start in one process (tests) keeps the first log.
    let _ = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

pub(super) fn start_default_log() {
    let _ = log_subscriber("warn,vllm_sim=info").with_target(false).try_init();
}

/// Returns whether the log is coloured: standard error is a terminal and `NO_COLOR` is unset
/// (<https://no-color.org>).
fn log_uses_colours() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !plain
}

/// Builds a tracing subscriber that writes the log lines passing `filter` to standard error.
fn log_subscriber(
    filter: &str,
) -> SubscriberBuilder<DefaultFields, Format, EnvFilter, fn() -> std::io::Stderr> {
    // A line that cannot be written (a full disk, a closed pipe) is dropped. Reporting that on the
    // same standard error would panic in the code that logs.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr as fn() -> std::io::Stderr)
        .with_ansi(log_uses_colours())
        .log_internal_errors(false)
        .with_env_filter(EnvFilter::new(filter))
}
