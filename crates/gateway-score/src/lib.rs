#![doc = include_str!("../README.md")]
//!
//! Implements `vllm-sim gateway score`: compares a gateway's routing with the best possible one.

mod evidence;
mod fault_schedule;
mod fleet;
mod gateway_run;
mod measure;
mod offline;
mod page;
mod pod;
mod report;
mod require;
mod scenario;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{CommandFactory, Parser};

use fault_schedule::{FAULT_PROBLEM_PREFIX, ScheduledPodFault};
use fleet::GatewayBackends;
use gateway_run::GatewayRun;
use offline::{OfflineRouterSimulation, RouterCandidate};
use report::ScoreReport;
use require::parse_score_requirement;
use scenario::PodFleetScenario;
use vllm_sim_command_line::metric_requirement::MetricRequirement;
use vllm_sim_command_line::{
    MissedMetricRequirementsError, UsageError, format_command_line, output_files,
    parse_positive_seconds, refuse,
};
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_http_client::CertificateVerification;
use vllm_sim_replay::ArrivalPacing;
use vllm_sim_replay::online::{self, OnlineReplayOptions, RequestHeaderNames, TargetServer};
use vllm_sim_replay_cli::{
    DeploymentFactory, EngineDeployment, GenerationApiName, ServeFlagSplitter, WorkloadArgs,
    online_options_of_workload, open_workload, parse_args_and_serve_flags, simulated_time_limit,
};
use workload::LoadedWorkload;

pub use fleet::{StartPodsFuture, StopPodsFuture};

/// Type of a function that starts servers with the given flags of `serve`, and returns an error for
/// unknown flags.
pub type PodFactory<'a> = &'a dyn Fn(&[String]) -> Result<StartPodsFuture>;

/// Run a workload through a gateway with vllm-sim pods, simulate it behind ideal and known routers,
/// and score the gateway against the best of them.
///
/// Takes the workload flags of `vllm-sim replay`, and those flags of `vllm-sim serve` that describe
/// one engine: each pod must be started with the same. Without a workload: 100 sessions of 3 turns,
/// 10 sessions a second in bursts, in 12 groups that share 60 % of their first prompt.
#[derive(Debug, Parser)]
#[command(
    name = "vllm-sim gateway score",
    after_help = HELP_EXAMPLES,
    no_binary_name = true,
    args_override_self = true
)]
struct GatewayScoreArgs {
    /// URL of the gateway.
    #[arg(long, value_name = "URL", help_heading = "Gateway")]
    target: String,
    /// URLs of the pods behind the gateway, for direct access.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        conflicts_with = "replicas",
        help_heading = "Gateway"
    )]
    fleet: Vec<String>,
    /// Start this number of pods on 127.0.0.1, with ports from --base-port.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Gateway")]
    replicas: Option<u16>,
    /// Port of the first pod of --replicas.
    #[arg(long, default_value_t = 8001, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Gateway")]
    base_port: u16,
    /// Maximum time until the gateway finds its pods, in seconds.
    #[arg(long, default_value_t = 60.0, help_heading = "Gateway")]
    wait: f64,
    /// Names of the response headers that identify the pod, by the value in the pod's own responses
    /// or by its address.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "x-inference-pod,x-inference-port",
        help_heading = "Gateway"
    )]
    pod_header: Vec<String>,
    /// Request header with the session id; empty to send none.
    #[arg(long, value_name = "NAME", default_value = "x-session-id", help_heading = "Gateway")]
    session_header: String,
    /// Endpoint for the requests; `completions` sends token ids, which some gateways do not accept.
    #[arg(long, value_enum, default_value = "completions", help_heading = "Gateway")]
    target_api: GenerationApiName,
    /// Model name in requests; the default is the first model that a pod lists.
    #[arg(long, help_heading = "Gateway")]
    target_model: Option<String>,
    /// API key for the gateway, sent as a bearer token.
    #[arg(long, help_heading = "Gateway")]
    target_api_key: Option<String>,
    /// API key for the pods, which require it for /admin/requests.
    #[arg(long, value_name = "KEY", help_heading = "Gateway")]
    admin_api_key: Option<String>,
    /// Accept any certificate of an https gateway.
    #[arg(long, help_heading = "Gateway")]
    target_insecure: bool,
    /// Timeout of one request, in seconds.
    #[arg(long, default_value_t = 600.0, help_heading = "Gateway")]
    target_timeout: f64,
    /// Make a pod fail while the workload runs: POD=TROUBLE@FROM..TO with the pod's number from 0;
    /// fail (503 to every request), down (503 to /health too), sleep or slow; and times in seconds.
    /// Without times: the whole run.
    #[arg(long, value_name = "TROUBLE", help_heading = "Workload")]
    disturb: Vec<String>,
    /// Run this scenario on the pods while the workload runs; each pod is the replica of its number
    /// in --fleet.
    #[arg(long, value_name = "FILE", conflicts_with = "disturb", help_heading = "Workload")]
    fleet_scenario: Option<PathBuf>,
    /// Requirement NAME>=NUMBER, also with <=, > and <. Measures are compared as a fraction of the
    /// ideal, `misroutes` and `retries` as counts. A missed requirement gives exit code 1.
    #[arg(long, value_name = "BOUND", help_heading = "Report")]
    require: Vec<String>,
    /// Write the report as JSON to this file; `-` writes it to standard output, instead of the
    /// table.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    json: Option<String>,
    /// Write an HTML page with charts.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    html: Option<PathBuf>,
    #[command(flatten)]
    workload: WorkloadArgs,
}

/// Returns the clap command of `gateway`.
pub fn gateway_clap_command() -> clap::Command {
    clap::Command::new("gateway")
        .about("Score a gateway's routing against an ideal router")
        .disable_help_subcommand(true)
        .subcommand(GatewayScoreArgs::command().name("score"))
}

/// Runs `vllm-sim gateway score …` and returns the text to print.
///
/// # Errors
/// Returns a message for the user, or [`MissedMetricRequirementsError`] if a requirement is missed.
pub fn run_gateway_command(
    args: &[String],
    sort: ServeFlagSplitter<'_>,
    deploy: DeploymentFactory<'_>,
    serve: PodFactory<'_>,
) -> Result<String> {
    match args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("score", rest)) => score_gateway(rest, sort, deploy, serve),
        Some(("-h" | "--help", _)) => {
            Ok(gateway_clap_command().bin_name("vllm-sim gateway").render_help().to_string())
        }
        Some((word, _)) => refuse!("gateway {word}: unknown command; use `vllm-sim gateway score`"),
        None => refuse!("gateway needs a command: `vllm-sim gateway score`"),
    }
}

fn score_gateway(
    args: &[String],
    sort: ServeFlagSplitter<'_>,
    deploy: DeploymentFactory<'_>,
    serve: PodFactory<'_>,
) -> Result<String> {
    let typed = format_command_line("gateway score", args);
    let (mut args, flags) = match parse_args_and_serve_flags::<GatewayScoreArgs>(args, sort)? {
        Ok(parsed) => parsed,
        Err(help) => return Ok(help),
    };
    workload::set_default_workload(&mut args.workload);
    let requirements = args.require.iter().map(|text| parse_score_requirement(text));
    let requirements: Vec<MetricRequirement> = requirements.collect::<Result<_>>()?;
    let disturb =
        args.disturb.iter().map(|text| ScheduledPodFault::parse_scheduled_pod_fault(text));
    let disturb: Vec<ScheduledPodFault> = disturb.collect::<Result<_>>()?;
    let scenario = args.fleet_scenario.as_deref().map(PodFleetScenario::read_scenario_file);
    let scenario = scenario.transpose()?;
    if args.fleet.is_empty() && args.replicas.is_none() {
        refuse!("no pods: give --fleet URL,… or --replicas N");
    }
    let deployment = deploy(&flags)?;
    let (mut source, pace) = open_workload(&args.workload, deployment.engine.block_size())?;
    let workload =
        LoadedWorkload::read_all_sessions(source.as_mut(), simulated_time_limit(&args.workload)?)?;
    let identity = request_identity(&args)?;
    let plan = LiveRunPlan {
        deployment: &deployment,
        workload: &workload,
        pace,
        identity: &identity,
        disturb: &disturb,
        scenario: scenario.as_ref(),
    };
    let (live, policies) = run_live_workload(&args, &plan, serve)?;
    let lost = live.notes.iter().filter(|note| note.starts_with(FAULT_PROBLEM_PREFIX));
    let lost: Vec<String> = lost.cloned().collect();
    let report = ScoreReport::new(live, policies, &workload, requirements, typed);
    let printed = write_score_report(&report, &args)?;
    if lost.is_empty() {
        return Ok(printed);
    }
    // A fault that was to be tested was not injected.
    let missed = lost.join("; ");
    Err(MissedMetricRequirementsError { printed, missed }.into())
}

struct LiveRunResult {
    play: GatewayRun,
    routing: fleet::GatewayRoutingObservations,
    /// URL and state (such as `ready`) of each pod.
    pods: Vec<(String, &'static str)>,
    /// Name of the simulated routing policy with the best score, and the live run without the
    /// gateway in which its placements were used.
    ideal: Option<(&'static str, GatewayRun)>,
    /// Whether pods had faults during the run.
    is_disturbed: bool,
    notes: Vec<String>,
}

struct LiveRunPlan<'a> {
    deployment: &'a EngineDeployment,
    workload: &'a LoadedWorkload,
    pace: ArrivalPacing,
    identity: &'a RequestHeaderNames,
    disturb: &'a [ScheduledPodFault],
    scenario: Option<&'a PodFleetScenario>,
}

fn run_live_workload(
    args: &GatewayScoreArgs,
    plan: &LiveRunPlan<'_>,
    serve: PodFactory<'_>,
) -> Result<(LiveRunResult, Vec<RouterCandidate>)> {
    let (deployment, workload, identity) = (plan.deployment, plan.workload, plan.identity);
    let wait = parse_positive_seconds("--wait", args.wait)?;
    let mut options = online_options(args, plan)?;
    let gateway = parse_target("--target", &args.target, &options)?;
    let to_pods = OnlineReplayOptions { api_key: args.admin_api_key.clone(), ..options.clone() };
    let (urls, own) = match args.replicas {
        Some(replicas) => start_own_pods(args, deployment, workload, replicas, serve)?,
        None => (args.fleet.clone(), None),
    };
    let pods = urls.into_iter();
    let pods = pods.map(|url| Ok((parse_target("--fleet", &url, &to_pods)?, url)));
    let backends =
        GatewayBackends::open_gateway_backends(pods.collect::<Result<_>>()?, own, identity)?;
    if args.replicas.is_some() {
        let urls: Vec<&str> = backends.pods.iter().map(|pod| pod.url.as_str()).collect();
        tracing::info!("the pods listen: {}", urls.join(", "));
    }
    backends.wait_for_gateway(&gateway, wait)?;
    // Some gateways do not forward /tokenize or the model list.
    let pod = backends.ready_pods().next();
    options.tokenizer = pod.map(|pod| pod.url.clone());
    options.model = options.model.or_else(|| pod?.model.clone());
    let mut notes = describe_engine_differences(&backends, &deployment.engine);
    let mut play = GatewayRun::empty_gateway_run(backends.ready_pod_count() as usize);
    let (sent, trouble, outages) =
        backends.run_with_pod_faults((plan.disturb, plan.scenario), || {
            let source = &mut workload.as_workload_source();
            Ok(online::replay_over_http(source, &options, &mut play, &mut |_| {})?)
        })?;
    notes.extend(trouble);
    if sent.latest > Duration::from_millis(250) {
        let late = sent.latest.as_millis();
        notes.push(format!("requests were sent up to {late} ms late: the sender was busy"));
    }
    let routing = backends.trace_requests_to_pods(&mut play, identity, &outages);
    let offline_setup = OfflineRouterSimulation {
        workload,
        engine: &deployment.engine,
        pods: backends.ready_pod_count(),
        scaling: fault_schedule::worker_counts_without_faulty_pods(
            plan.disturb,
            backends.ready_pod_count(),
        ),
        pace: plan.pace,
        limit: simulated_time_limit(&args.workload)?,
        seed: deployment.seed,
    };
    let policies = offline_setup.simulate_all_routers()?;
    let ideal = match run_ideal_placement(&backends, plan, &options, &policies)? {
        Ok(ideal) => Some(ideal),
        Err(why) => {
            notes.push(format!("times of the ideal router are simulated: {why}"));
            None
        }
    };
    let pods = backends.pods.iter();
    let pods = pods.map(|pod| (pod.url.clone(), pod.state.pod_state_name())).collect();
    backends.shut_down_pods();
    let live = LiveRunResult {
        play,
        routing,
        pods,
        ideal,
        is_disturbed: !plan.disturb.is_empty() || plan.scenario.is_some(),
        notes,
    };
    Ok((live, policies))
}

/// Sends requests directly to the pods, as the simulated routing policy with the best score placed
/// them.
///
/// Measures real servers and this sender without a gateway. The inner `Err` is the reason why such
/// a run would be no comparison.
fn run_ideal_placement(
    backends: &GatewayBackends,
    plan: &LiveRunPlan<'_>,
    options: &OnlineReplayOptions,
    policies: &[RouterCandidate],
) -> Result<Result<(&'static str, GatewayRun), &'static str>> {
    if !plan.disturb.is_empty() || plan.scenario.is_some() {
        return Ok(Err("pods were disturbed"));
    }
    let best = offline::best_router(policies);
    let placement = best.and_then(|best| best.pod_of_each_turn(plan.workload));
    let (Some(best), Some(placement)) = (best, placement) else {
        return Ok(Err("no policy placed all requests"));
    };
    if !backends.reset_prefix_caches() {
        return Ok(Err("the cache of a pod cannot be reset (--dev-mode)"));
    }
    let options = OnlineReplayOptions {
        targets: backends.ready_pods().map(|pod| pod.url.clone()).collect(),
        identity: Some(RequestHeaderNames {
            run: format!("{}-ideal", plan.identity.run),
            ..plan.identity.clone()
        }),
        placement: Some(std::sync::Arc::new(placement.clone())),
        ..options.clone()
    };
    let mut play = GatewayRun::empty_gateway_run(backends.ready_pod_count() as usize);
    let source = &mut plan.workload.as_workload_source();
    online::replay_over_http(source, &options, &mut play, &mut |_| {})?;
    for turn in &mut play.turns {
        let place = placement.get(turn.session as usize);
        let place = place.and_then(|turns| turns.get(turn.turn as usize));
        turn.pod = place.map(|pod| *pod as usize);
    }
    Ok(Ok((best.name, play)))
}

fn online_options(args: &GatewayScoreArgs, plan: &LiveRunPlan<'_>) -> Result<OnlineReplayOptions> {
    let sending = (args.target_api, args.target_timeout);
    Ok(OnlineReplayOptions {
        targets: vec![args.target.clone()],
        model: args.target_model.clone(),
        api_key: args.target_api_key.clone(),
        trust: match args.target_insecure {
            true => CertificateVerification::Disabled,
            false => CertificateVerification::PublicAuthorities,
        },
        identity: Some(plan.identity.clone()),
        ..online_options_of_workload(&args.workload, plan.pace, sending)?
    })
}

fn parse_target(flag: &str, url: &str, options: &OnlineReplayOptions) -> Result<TargetServer> {
    let parsed = TargetServer::parse_server_url(flag, url, options);
    parsed.map_err(|error| UsageError(error.to_string()).into())
}

/// Returns the URLs of the pods to start, and the future that starts them.
fn start_own_pods(
    args: &GatewayScoreArgs,
    deployment: &EngineDeployment,
    workload: &LoadedWorkload,
    replicas: u16,
    serve: PodFactory<'_>,
) -> Result<(Vec<String>, Option<StartPodsFuture>)> {
    let first = args.base_port;
    let Some(end) = first.checked_add(replicas) else {
        refuse!("--base-port {first} leaves no room for {replicas} pods");
    };
    let mut flags = deployment.flags.clone();
    flags.extend([
        "--host=127.0.0.1".to_owned(),
        format!("--port={first}"),
        format!("--replicas={replicas}"),
        // A gateway may try each request several times.
        format!("--request-history={}", (workload.workload_request_count() * 4).min(1_000_000)),
        "--pod-name=gateway-score".to_owned(),
        "--enable-prompt-tokens-details".to_owned(),
        "--dev-mode".to_owned(),
    ]);
    let adapters = &args.workload.adapters.lora;
    if !adapters.is_empty() {
        flags.extend(["--enable-lora", "--lora-modules"].map(str::to_owned));
        flags.extend(adapters.iter().map(|name| format!("{name}={name}")));
    }
    let urls = (first..end).map(|port| format!("http://127.0.0.1:{port}"));
    Ok((urls.collect(), Some(serve(&flags)?)))
}

fn request_identity(args: &GatewayScoreArgs) -> Result<RequestHeaderNames> {
    let names = args.pod_header.iter().chain([&args.session_header]);
    for name in names.filter(|name| !name.is_empty()) {
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            refuse!("{name:?} cannot be the name of a header");
        }
    }
    Ok(RequestHeaderNames {
        run: format!("score-{:08x}", run_number()),
        session_header: Some(args.session_header.clone()).filter(|name| !name.is_empty()),
        pod_headers: args.pod_header.clone(),
    })
}

/// Returns a number that distinguishes this run's request ids in the histories of pods.
#[expect(
    clippy::disallowed_methods,
    reason = "no result depends on it, and two runs need different numbers"
)]
fn run_number() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos() as u64;
    (vllm_sim_random::mix_u64_pair(nanos, std::process::id().into()) >> 32) as u32
}

/// Describes the differences between the live pods and the simulated engine, one note each.
fn describe_engine_differences(backends: &GatewayBackends, engine: &SchedulerSpec) -> Vec<String> {
    let mut notes = Vec::new();
    for pod in &backends.pods {
        let url = &pod.url;
        if pod.state != pod::GatewayPodState::Ready {
            notes.push(format!(
                "{url} is {}: the ideal router does not use it",
                pod.state.pod_state_name()
            ));
            continue;
        }
        if !pod.is_cold {
            notes.push(format!(
                "{url} has prompts of earlier requests in its cache: restart it, or start it with \
                 --dev-mode, which enables POST /reset_prefix_cache"
            ));
        }
        let SchedulerSpec::Vllm(config) = engine else {
            continue;
        };
        let planned = (config.block_size, config.num_gpu_blocks);
        // vLLM also counts its null block.
        let differs =
            |(size, blocks): (u32, u32)| size != planned.0 || blocks.abs_diff(planned.1) > 1;
        if let Some((size, blocks)) = pod.cache.filter(|cache| differs(*cache)) {
            notes.push(format!(
                "{url} has {blocks} blocks of {size} tokens, but these flags give {} of {}: use \
                 the flags of the pods",
                planned.1, planned.0
            ));
        }
    }
    notes
}

fn write_score_report(report: &ScoreReport, args: &GatewayScoreArgs) -> Result<String> {
    let mut printed = report.render_score_table();
    if let Some(file) = &args.html {
        output_files::write_atomically(file, page::render_score_page(report))?;
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report.score_report_json())?;
        match file.as_str() {
            "-" => printed = text,
            file => output_files::write_atomically(file.as_ref(), text + "\n")?,
        }
    }
    match report.describe_missed_score_requirements() {
        Some(missed) => Err(MissedMetricRequirementsError { printed, missed }.into()),
        None => Ok(printed),
    }
}

/// Example commands below the help text of `vllm-sim gateway score`.
const HELP_EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim gateway score --target http://localhost:8080 --replicas 3\n\
\x20 vllm-sim gateway score --target http://localhost:8080 --replicas 3 --disturb 0=down@5..20";
