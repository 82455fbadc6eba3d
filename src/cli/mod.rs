//! Runs the command line of vllm-sim and returns an exit code. Only this module prints.

mod calibrate;
mod check;
mod healthcheck;
mod log;
mod shell;
mod signals;
mod start;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::server::{HeadlessEngines, ServerFleet, StartError};
use log::start_server_log;
use signals::TerminationSignals;
use start::{
    ReadyFile, describe_headless_engines, describe_servers, log_listen_addresses,
    log_start_of_server,
};
use vllm_sim_calibrate::CalibrateError;
use vllm_sim_calibrate::validate::RecordedRunValidationError;
use vllm_sim_command_line::progress;
use vllm_sim_command_line::{MissedMetricRequirementsError, UsageError};
use vllm_sim_config::{ConfigError, LoadedConfig, ParsedCommand};
use vllm_sim_replay::workload::WorkloadError;
use vllm_sim_tokenizer::TokenizerError;

/// Exit code of vllm-sim for wrong arguments or configuration.
const EXIT_USAGE_ERROR: u8 = 2;
/// Exit code of vllm-sim for any failure except wrong arguments or configuration.
const EXIT_FAILURE: u8 = 1;

/// Runs vllm-sim with the command line `args`, in which `args[0]` names the program.
pub fn run_cli(args: &[String], env: &dyn Fn(&str) -> Option<String>) -> ExitCode {
    match vllm_sim_config::load_config(args, env) {
        Ok(ParsedCommand::Serve(loaded)) => run_server_process(*loaded),
        Ok(ParsedCommand::Config(loaded)) => {
            log::start_default_log();
            for warning in &loaded.warnings {
                tracing::warn!("{warning}");
            }
            if let Some(warning) = loaded.hidden_secrets_warning() {
                tracing::warn!("{warning}");
                return print_to_stdout(&format!("# {warning}\n{}", loaded.to_config_yaml()));
            }
            print_to_stdout(&loaded.to_config_yaml())
        }
        Ok(ParsedCommand::Version(text) | ParsedCommand::Help(text)) => print_to_stdout(&text),
        Ok(ParsedCommand::Tool { name, args }) => match tool::run_tool_command(name, &args, env) {
            Ok(text) if progress::is_job_stop_requested() => {
                print_to_stdout(&text);
                print_error(
                    &"interrupted: the output is incomplete",
                    signals::INTERRUPTED_EXIT_CODE,
                )
            }
            Ok(text) => print_to_stdout(&text),
            Err(error) => {
                if let Some(unmet) = error.downcast_ref::<MissedMetricRequirementsError>() {
                    print_to_stdout(&unmet.printed);
                }
                print_error(&format!("{error:#}"), exit_code(&error))
            }
        },
        // A call without arguments prints the usage.
        Err(error) if args.len() <= 1 => print_usage_error(&error),
        Err(error) => print_error(&error, EXIT_USAGE_ERROR),
    }
}

/// Returns the exit code of a failed subcommand: 2 for an error in the command line, including a
/// missing file that it names.
fn exit_code(error: &anyhow::Error) -> u8 {
    let usage = error.downcast_ref::<UsageError>().is_some()
        || error.downcast_ref::<ConfigError>().is_some()
        || error.downcast_ref::<StartError>().is_some_and(is_config)
        || error.chain().any(is_missing_input_file);
    if usage { EXIT_USAGE_ERROR } else { EXIT_FAILURE }
}

fn is_missing_input_file(cause: &(dyn std::error::Error + 'static)) -> bool {
    let is_file = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    if let Some(CalibrateError::Workload(inner)) = cause.downcast_ref() {
        return is_missing_input_file(inner);
    }
    if let Some(CalibrateError::Run(inner)) = cause.downcast_ref() {
        return is_missing_input_file(inner);
    }
    match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(WorkloadError::Io { error, .. }), _) => is_file(error),
        (_, Some(RecordedRunValidationError::Io { error, .. })) => is_file(error),
        _ => cause.downcast_ref().is_some_and(is_file),
    }
}

/// Returns whether a server failed to start because of its configuration.
fn is_config(error: &StartError) -> bool {
    matches!(
        error,
        StartError::Config(_)
            | StartError::Engine(_)
            | StartError::Tokenizer(
                TokenizerError::Broken { .. }
                    | TokenizerError::BadName { .. }
                    | TokenizerError::NoFile { .. }
            )
            | StartError::MissingFeature { .. }
            | StartError::File { .. }
            | StartError::Spans(..)
    )
}

fn print_to_stdout(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout().lock(), "{}", text.trim_end()) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader such as `| head` closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format_args!("cannot write to standard output: {error}"), EXIT_FAILURE)
        }
    }
}

fn print_error(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    use std::io::Write;
    // A failed start has no log; the exit code reports the error even if standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "error: {error}");
    ExitCode::from(code)
}

/// Prints the usage of the command and the name of the missing argument.
fn print_usage_error(error: &ConfigError) -> ExitCode {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{}\n", vllm_sim_config::program_help());
    print_error(error, EXIT_USAGE_ERROR)
}

fn run_server_process(loaded: LoadedConfig) -> ExitCode {
    start_server_log(&loaded.config);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for unknown in vllm_sim_config::warnings_of_unknown_env_variables(names) {
        tracing::warn!("{unknown}");
    }
    log_start_of_server(&loaded);
    log_ignored(&loaded);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return print_error(&error, EXIT_FAILURE),
    };
    let code = runtime.block_on(serve_until_signalled(loaded));
    // Running blocking tasks, such as encoding a long prompt, are abandoned.
    runtime.shutdown_background();
    code
}

/// Logs every flag that has no effect; flags that matter to users of vLLM are logged as a warning.
fn log_ignored(loaded: &LoadedConfig) {
    let has_vllm_effect = |flag: &&String| loaded.ignored_with_effect.contains(flag);
    let (with_effect, rest): (Vec<&String>, Vec<&String>) =
        loaded.ignored.iter().partition(has_vllm_effect);
    let words = |flags: &[&String]| {
        let words: Vec<&str> = flags.iter().map(|flag| flag.as_str()).collect();
        words.join(" ")
    };
    if !with_effect.is_empty() {
        let flags = words(&with_effect);
        tracing::warn!(flags, "flags accepted without the effect that they have in vLLM");
    }
    if !rest.is_empty() {
        tracing::info!(flags = words(&rest), "flags accepted without effect");
    }
}

async fn serve_until_signalled(loaded: LoadedConfig) -> ExitCode {
    let ready_file = loaded.config.server.ready_file.clone();
    let cleared = ready_file.as_deref().map_or(Ok(()), ReadyFile::remove_stale_ready_file);
    if let Err(error) = cleared {
        return print_error(&error, EXIT_USAGE_ERROR);
    }
    let mut signals = TerminationSignals::listen_for_termination_signals();
    if loaded.config.server.exit_on_stdin_eof {
        signals = signals.with_end_of_stdin();
    }
    if loaded.config.server.headless || loaded.config.engine.parallel.api_servers == 0 {
        return run_headless_engines(loaded, signals, ready_file).await;
    }
    let started = tokio::select! {
        started = ServerFleet::start_all_servers(loaded) => started,
        () = signals.wait_for_next_signal() => return ExitCode::SUCCESS,
    };
    let fleet = match started {
        Ok(fleet) => fleet,
        Err(error) => {
            let code = if is_config(&error) { EXIT_USAGE_ERROR } else { EXIT_FAILURE };
            return print_error(&error, code);
        }
    };
    // The file exists until this function returns, and before the log reports the address.
    let ready_file =
        ready_file.map(|path| ReadyFile::write_ready_file(&path, &describe_servers(&fleet)));
    if let Some(Err(error)) = &ready_file {
        fleet.shut_down_all_servers().await;
        return print_error(error, EXIT_FAILURE);
    }
    log_listen_addresses(&fleet);
    signals.wait_for_next_signal().await;
    tracing::info!("shutting down; a second signal exits immediately");
    tokio::select! {
        () = fleet.shut_down_all_servers() => ExitCode::SUCCESS,
        () = signals.wait_for_next_signal() => ExitCode::from(EXIT_FAILURE),
    }
}

/// Runs engines without an HTTP server, for an API server of vLLM (`--headless`).
async fn run_headless_engines(
    loaded: LoadedConfig,
    mut signals: TerminationSignals,
    ready_file: Option<PathBuf>,
) -> ExitCode {
    let engines = loaded.config.engine.parallel.local_ranks.1;
    let description = describe_headless_engines(&loaded.config);
    tracing::info!("Launching {engines} data parallel engine(s) in headless mode");
    let started = tokio::select! {
        started = HeadlessEngines::start_headless_engines(loaded) => started,
        () = signals.wait_for_next_signal() => return ExitCode::SUCCESS,
    };
    let mut headless = match started {
        Ok(headless) => headless,
        Err(error) if is_config(&error) => return print_error(&error, EXIT_USAGE_ERROR),
        Err(error) => return print_error(&error, EXIT_FAILURE),
    };
    let (failure, written) =
        wait_for_engine_failure_or_signal(&mut headless, &mut signals, ready_file, &description)
            .await;
    let unwritten = written.as_ref().and_then(|written| written.as_ref().err());
    if failure.is_none() {
        tracing::info!("shutting down; a second signal exits immediately");
    }
    tokio::select! {
        () = headless.shut_down_headless_engines() => {}
        () = signals.wait_for_next_signal() => return ExitCode::from(EXIT_FAILURE),
    }
    match (failure, unwritten) {
        (Some(error), _) => print_error(&error, EXIT_FAILURE),
        (None, Some(error)) => print_error(error, EXIT_FAILURE),
        (None, None) => ExitCode::SUCCESS,
    }
}

/// Waits until a headless engine fails or a signal arrives.
///
/// Returns the failure, and the ready file, which is written once all engines have joined the API
/// server.
async fn wait_for_engine_failure_or_signal(
    headless: &mut HeadlessEngines,
    signals: &mut TerminationSignals,
    ready_file: Option<PathBuf>,
    description: &serde_json::Value,
) -> (Option<StartError>, Option<Result<ReadyFile, String>>) {
    let joined = headless.wait_until_all_engines_joined();
    let mut ended = std::pin::pin!(async {
        tokio::select! {
            error = headless.wait_for_engine_failure() => Some(error),
            () = signals.wait_for_next_signal() => None,
        }
    });
    tokio::select! {
        ended = &mut ended => return (ended, None),
        () = joined => {}
    }
    let written = ready_file.map(|path| ReadyFile::write_ready_file(&path, description));
    match written {
        Some(Err(_)) => (None, written),
        _ => (ended.await, written),
    }
}
