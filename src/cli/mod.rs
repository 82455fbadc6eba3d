//! From arguments to an exit code. Only this module prints.

mod calibrate;
mod log;
mod shell;
mod signals;
mod tool;

use std::process::ExitCode;

use crate::server::{Fleet, StartError};
use crate::tools::usage::UsageError;
use log::start_log;
use signals::Signals;
use vllm_sim_config::{Command, ConfigError, Loaded};

/// Wrong arguments or configuration.
const BAD_CONFIG: u8 = 2;
/// Anything else that failed.
const FAILED: u8 = 1;

/// Runs the program named by `args[0]` with the arguments behind it.
pub fn run(args: &[String], env: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    match vllm_sim_config::load(args, env) {
        Ok(Command::Serve(loaded)) => serve(*loaded),
        Ok(Command::Config(loaded)) => print(&loaded.to_yaml()),
        Ok(Command::Version(text) | Command::Help(text)) => print(&text),
        Ok(Command::Tool { name, args }) => match tool::run(name, &args, env) {
            Ok(text) => print(&text),
            Err(error) => complain(&format!("{error:#}"), exit_code(&error)),
        },
        Err(error) => complain(&error, BAD_CONFIG),
    }
}

/// Whether the command line is to blame.
fn exit_code(error: &anyhow::Error) -> u8 {
    let usage = error.downcast_ref::<UsageError>().is_some()
        || error.downcast_ref::<ConfigError>().is_some()
        || error.downcast_ref::<StartError>().is_some_and(is_config);
    if usage { BAD_CONFIG } else { FAILED }
}

/// Whether the configuration is to blame for a failed start.
fn is_config(error: &StartError) -> bool {
    matches!(
        error,
        StartError::Config(_)
            | StartError::Engine(_)
            | StartError::DoesNotFit(_)
            | StartError::MissingFeature { .. }
            | StartError::Scenario { .. }
            | StartError::Spans(..)
    )
}

fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout().lock(), "{}", text.trim_end()) {
        Ok(()) => ExitCode::SUCCESS,
        // Who reads it (`| head`) has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

fn complain(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    use std::io::Write;
    // A failed start has no log yet. The exit code says it even where nobody reads.
    let _ = writeln!(std::io::stderr().lock(), "error: {error}");
    ExitCode::from(code)
}

fn serve(loaded: Loaded) -> ExitCode {
    start_log(&loaded.config);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    // Not `Debug` of it, which shows keys.
    let shown = serde_json::Value::Object(loaded.to_json());
    tracing::info!(configuration = %shown, "starting");
    if !loaded.ignored.is_empty() {
        tracing::info!(
            flags = loaded.ignored.join(" "),
            "accepted, without effect here"
        );
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error, FAILED),
    };
    let code = runtime.block_on(until_signalled(loaded));
    // What still blocks (a long prompt being encoded) is not waited for.
    runtime.shutdown_background();
    code
}

async fn until_signalled(loaded: Loaded) -> ExitCode {
    let name = loaded
        .config
        .model
        .served_names
        .first()
        .cloned()
        .unwrap_or_default();
    let mut signals = Signals::new();
    if loaded.config.server.headless || loaded.config.engine.parallel.api_servers == 0 {
        // Its engines would take requests from a head node, which has its own here.
        let engines = loaded.config.engine.parallel.local_ranks.1;
        tracing::info!("Launching {engines} data parallel engine(s) in headless mode");
        signals.next().await;
        return ExitCode::SUCCESS;
    }
    let started = tokio::select! {
        started = Fleet::start(loaded) => started,
        () = signals.next() => return ExitCode::SUCCESS,
    };
    let fleet = match started {
        Ok(fleet) => fleet,
        Err(error) => {
            let code = if is_config(&error) {
                BAD_CONFIG
            } else {
                FAILED
            };
            return complain(&error, code);
        }
    };
    let servers = fleet.servers().len();
    match fleet.address() {
        Some(address) => tracing::info!(%address, servers, model = name, "listening"),
        None => tracing::info!(servers, model = name, "listening on the Unix socket"),
    }
    signals.next().await;
    tracing::info!("shutting down; a second signal ends at once");
    tokio::select! {
        () = fleet.shutdown() => ExitCode::SUCCESS,
        () = signals.next() => ExitCode::from(FAILED),
    }
}
