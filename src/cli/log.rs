use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use vllm_sim_config::{Config, LogFormat, LogLevel};

/// The log of a server.
pub(super) fn start_log(config: &Config) {
    let log = &config.server.log;
    let level = match log.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let builder = builder(&format!("warn,vllm_sim={level}"));
    // Which module said it is for who looks for a fault.
    let builder = builder.with_target(matches!(log.level, LogLevel::Debug | LogLevel::Trace));
    // A second start in one process (tests) keeps the first log.
    let _ = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

/// The log of a command that has no flags for it.
pub(super) fn start_plain_log() {
    let _ = builder("warn,vllm_sim=info").with_target(false).try_init();
}

/// Whether a person looks on, who has not asked for plain text (<https://no-color.org>).
fn colours() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !plain
}

/// Lines on standard error, of what `filter` lets through.
fn builder(
    filter: &str,
) -> SubscriberBuilder<DefaultFields, Format, EnvFilter, fn() -> std::io::Stderr> {
    // A line that cannot be written (a full disk, a reader that is gone) is lost: to complain of it
    // on the same standard error would panic in whoever wrote the line, such as a request.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr as fn() -> std::io::Stderr)
        .with_ansi(colours())
        .log_internal_errors(false)
        .with_env_filter(EnvFilter::new(filter))
}
