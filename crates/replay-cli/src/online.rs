use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use vllm_sim_http_client::CertificateVerification;
use vllm_sim_replay::ArrivalPacing;
use vllm_sim_replay::online::{self, GenerationApi, OnlineReplayOptions};
use vllm_sim_replay::report::{ReplayReport, ReplayRunTotals};

use super::options::{GenerationApiName, OnlineArgs, ReportArgs, WorkloadArgs};
use super::sink::create_report_sink;
use super::workload;
use vllm_sim_command_line::parse_positive_seconds;

/// Sends a workload to real servers and returns the report and the duration of the replay.
pub(super) fn run_online_replay(
    online: &OnlineArgs,
    asked: &WorkloadArgs,
    report: &ReportArgs,
) -> Result<ReplayReport> {
    // Shared prefixes of synthetic prompts consist of blocks of vLLM's default size.
    let (mut source, pace) = workload::open_workload(asked, 16)?;
    let options = OnlineReplayOptions {
        targets: online.target.clone(),
        model: online.target_model.clone(),
        api_key: online.target_api_key.clone(),
        trust: match (&online.target_ca, online.target_insecure) {
            (Some(path), _) => CertificateVerification::Authorities(path.clone()),
            (None, true) => CertificateVerification::Disabled,
            (None, false) => CertificateVerification::PublicAuthorities,
        },
        max_in_flight: online.target_max_in_flight,
        ..online_options_of_workload(asked, pace, (online.target_api, online.target_timeout))?
    };
    let keep_request_records = report.html.is_some() || report.report_json.is_some();
    let mut sink = create_report_sink(report, keep_request_records, None)?;
    let bar = request_progress_bar(source.facts().max_requests);
    let sent = online::replay_over_http(source.as_mut(), &options, &mut sink, &mut |done| {
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let facts = ReplayRunTotals {
        requests: sent.requests,
        prefill_worker_seconds: 0.0,
        decode_worker_seconds: None,
        workers: online.target.len() as u32,
        gpus: (0, 1),
        prefill_tokens: None,
    };
    let mut finished = sink.finish_report(&facts)?;
    let held_up = serde_json::json!(sent.held_up);
    finished.summary.insert("sessions_held_up".to_owned(), held_up);
    workload::add_unused_trace_parts(&mut finished, source.as_ref());
    Ok(finished)
}

/// Returns the options with which a workload is sent to servers by the API and with the timeout, in
/// seconds, of `--target-api` and `--target-timeout`. All other options have their defaults.
///
/// # Errors
/// Returns a usage error for an invalid duration.
pub fn online_options_of_workload(
    args: &WorkloadArgs,
    pace: ArrivalPacing,
    (api, timeout): (GenerationApiName, f64),
) -> Result<OnlineReplayOptions> {
    let limit = workload::simulated_time_limit(args)?;
    Ok(OnlineReplayOptions {
        api: match api {
            GenerationApiName::Completions => GenerationApi::Completions,
            GenerationApiName::Chat => GenerationApi::Chat,
        },
        concurrency: pace.concurrency_limit().map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        speedup: pace.speedup,
        timeout: parse_positive_seconds("--target-timeout", timeout)?,
        limit: limit.map(|limit| Duration::from_nanos(limit.as_nanos())),
        seed: args.workload_seed,
        ..OnlineReplayOptions::default()
    })
}

fn request_progress_bar(requests: Option<u64>) -> ProgressBar {
    let bar = match requests {
        Some(n) => ProgressBar::new(n),
        None => ProgressBar::no_length(),
    };
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} requests {elapsed}");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
