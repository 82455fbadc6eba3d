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
    // A line that cannot be written (a full disk, a reader that is gone) is lost: to complain of it
    // on the same standard error would panic in whoever wrote the line, such as a request.
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_env_filter(tracing_subscriber::EnvFilter::new(format!(
            "warn,vllm_sim={level}"
        )));
    // A second start in one process (tests) keeps the first log.
    let _ = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

/// The log of a command that has no flags for it.
pub(super) fn start_plain_log() {
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_env_filter(tracing_subscriber::EnvFilter::new("warn,vllm_sim=info"))
        .try_init();
}
