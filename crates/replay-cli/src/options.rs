use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Args, Parser, ValueEnum};

use crate::deploy::ServeFlagSplitter;
use vllm_sim_command_line::{UsageError, parse_tool_args, refuse};
use vllm_sim_replay::load::WorkloadFormat;
use vllm_sim_replay::report::LatencySlo;
use vllm_sim_replay::synth::{ArrivalRateCurve, TokenLengthDistribution};

/// Simulate a workload against workers behind a router, in virtual time, and report the latencies.
///
/// The flags of `vllm-sim serve` that describe one engine describe each worker (`--config`,
/// `--model`, `--gpu`, `--max-num-seqs`, …). Other flags of `serve` are rejected.
#[derive(Debug, Parser)]
#[command(
    name = "vllm-sim replay",
    after_help = HELP_EXAMPLES,
    no_binary_name = true,
    args_override_self = true
)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub pools: PoolArgs,
    #[command(flatten)]
    pub report: ReportArgs,
    #[command(flatten)]
    pub online: OnlineArgs,
    /// Simulate a recorded run of Dynamo's offline replay: a folder with args.json and its trace.
    #[arg(long, value_name = "DIR", conflicts_with_all = crate::conflicts::flags_of_simulated_runs())]
    pub dynamo_run: Option<PathBuf>,
    /// Simulate the deployment and traffic of a YAML file of AISimulate's `predict`; --report-json
    /// then has the form of its prediction.json.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "dynamo_run",
        conflicts_with_all = crate::conflicts::flags_of_simulated_runs()
    )]
    pub aisimulate: Option<PathBuf>,
    /// With --dynamo-run or --aisimulate: folder of NVIDIA's kernel tables, for timing models that
    /// need them [the tables in $VIRTUAL_ENV or $CONDA_PREFIX].
    #[arg(long, value_name = "DIR")]
    pub kernel_tables: Option<PathBuf>,
    /// Compare JSON reports with the first one; with --html also as a page. Join runs of one
    /// configuration with different seeds by commas: --compare a1.json,a2.json b1.json,b2.json.
    #[arg(
        long,
        num_args = 2..,
        value_name = "REPORT",
        conflicts_with_all = crate::conflicts::flags_of_simulated_runs(),
        conflicts_with_all = [
            "dynamo_run", "aisimulate", "replay_mode", "report_json", "per_request", "trace_out",
            "step_log", "require", "gpu_hour_price",
        ]
    )]
    pub compare: Option<Vec<String>>,
    /// Run in virtual time, or against the servers of --target [online with --target, else
    /// offline].
    #[arg(long, value_enum)]
    pub replay_mode: Option<ReplayMode>,
    /// Number of threads. Only an open loop of single-turn sessions behind a round-robin, random or
    /// session-hash router uses several; the results do not depend on it [all cores].
    #[arg(long)]
    pub threads: Option<usize>,
}

impl ReplayArgs {
    /// Returns the flag that names a run of another program, if any.
    pub(super) fn dynamo_or_aisimulate_flag(&self) -> Option<&'static str> {
        let dynamo = self.dynamo_run.is_some().then_some("--dynamo-run");
        dynamo.or(self.aisimulate.is_some().then_some("--aisimulate"))
    }
}

/// Clock of a replay, with Dynamo's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReplayMode {
    /// Replay in virtual time, with simulated workers.
    Offline,
    /// Replay in real time, against the servers of --target.
    Online,
}

/// Command-line flags for the workload.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Trace files; several are read as one.
    #[arg(value_name = "TRACE", conflicts_with = "SyntheticArgs")]
    pub files: Vec<PathBuf>,
    /// Synthetic workload as text: "20 req/s of 2k/300" has prompts of 2,000 tokens and outputs of
    /// 300. It lasts a minute (at least 300 requests) unless --request-count is given.
    #[arg(
        long,
        value_name = "WORDS",
        conflicts_with_all = [
            "files", "input_tokens", "output_tokens", "request_rate", "replay_concurrency"
        ]
    )]
    pub workload: Option<String>,
    /// Format of the trace files.
    #[arg(
        long,
        visible_alias = "trace-format",
        default_value = "auto",
        value_parser = FormatParser
    )]
    pub format: WorkloadFormat,
    /// Tokens per hash id of a trace.
    #[arg(long, default_value_t = 512)]
    pub trace_block_size: u32,
    /// Fraction of the first prompt that sessions of a group share, for traces with lengths only.
    #[arg(long, default_value_t = 0.0)]
    pub trace_shared_prefix_ratio: f64,
    /// Number of groups of sessions that share a prefix, for traces with lengths only.
    #[arg(long, default_value_t = 0)]
    pub trace_num_prefix_groups: u32,
    /// Flags for the requests of a synthetic workload.
    #[command(flatten)]
    pub synthetic: SyntheticArgs,
    /// Number of synthetic requests (sessions, if they have several turns), or maximum number of
    /// sessions of a trace.
    #[arg(long, visible_alias = "num-requests", alias = "num-prompts")]
    pub request_count: Option<u64>,
    /// Arrival rate, in requests per second.
    #[arg(long, value_name = "RPS")]
    pub request_rate: Option<f64>,
    /// Burstiness of the arrivals at --request-rate: 1 is Poisson, less makes clusters, more is
    /// even.
    #[arg(long)]
    pub burstiness: Option<f64>,
    /// Factor of the rate over time, linear between the points SECONDS=FACTOR,…: 0=0,60=1 is a
    /// ramp, and 60=1,60=5,70=5,70=1 a burst of ten seconds.
    #[arg(long, value_name = "CURVE", conflicts_with = "replay_concurrency")]
    pub rate_curve: Option<ArrivalRateCurve>,
    /// Constant gap between arrivals, in milliseconds; 0 sends all requests immediately.
    #[arg(long)]
    pub arrival_interval_ms: Option<f64>,
    /// Seed of the random arrival times.
    #[arg(long, default_value_t = 42)]
    pub arrival_seed: u64,
    /// Seed of the random lengths and pauses of a synthetic workload.
    #[arg(long, default_value_t = 42)]
    pub workload_seed: u64,
    /// Flags for assigning LoRA adapters to sessions.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Closed loop: number of requests (sessions) in flight; start times are ignored.
    #[arg(long, visible_alias = "concurrency", alias = "max-concurrency")]
    pub replay_concurrency: Option<usize>,
    /// Divide the start times and delays of an open loop by this factor.
    #[arg(long, default_value_t = 1.0)]
    pub arrival_speedup_ratio: f64,
    /// Stop at this virtual time, in seconds; requests in flight are reported as incomplete.
    #[arg(long)]
    pub max_sim_time_seconds: Option<f64>,
}

/// Flags for the requests of a synthetic workload; a trace has requests of its own.
#[derive(Debug, Clone, Args)]
pub struct SyntheticArgs {
    /// Length of a synthetic prompt in tokens, as a distribution.
    #[arg(
        long,
        alias = "random-input-len",
        alias = "input-len",
        help = "Tokens of a synthetic prompt: a number, uniform:LOW:HIGH, normal:MEAN:STD[:MIN:MAX], lognormal:MEAN:STD[:MIN:MAX], histogram:FILE"
    )]
    pub input_tokens: Option<TokenLengthDistribution>,
    /// Tokens of a synthetic output; takes the same distributions as --input-tokens. 128 by default.
    #[arg(long, alias = "random-output-len", alias = "output-len")]
    pub output_tokens: Option<TokenLengthDistribution>,
    /// Number of turns of a synthetic session; takes the same distributions as --input-tokens. 1 by default.
    #[arg(long)]
    pub turns_per_session: Option<TokenLengthDistribution>,
    /// Number of tokens that each further turn adds to the previous prompt and output. Without it,
    /// every turn has a separate prompt.
    #[arg(long)]
    pub turn_tokens: Option<TokenLengthDistribution>,
    /// Fraction of a synthetic prompt that all prompts of its prefix group share; 0 by default.
    #[arg(long)]
    pub shared_prefix_ratio: Option<f64>,
    /// Number of groups of synthetic prompts that share a prefix; 1 by default with --shared-prefix-ratio.
    #[arg(long)]
    pub num_prefix_groups: Option<u32>,
    /// Pause between the end of a turn and the next one, in milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub inter_turn_delay_ms: f64,
    /// Draw the pauses between turns from an exponential distribution.
    #[arg(long)]
    pub inter_turn_delay_varies: bool,
}

/// Flags for the LoRA adapters of sessions.
#[derive(Debug, Clone, Args)]
pub struct AdapterArgs {
    /// LoRA adapters to assign to sessions at random.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub lora: Vec<String>,
    /// Fraction of the sessions that use an adapter.
    #[arg(long, default_value_t = 1.0, requires = "lora")]
    pub lora_share: f64,
}

/// Parses the format of a trace, and lists the names for shell completion.
#[derive(Clone)]
struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = WorkloadFormat;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<WorkloadFormat, clap::Error> {
        let read = |text: &str| text.parse::<WorkloadFormat>();
        read.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = WorkloadFormat::NAMED_WORKLOAD_FORMATS.iter();
        Some(Box::new(names.map(|(name, _)| PossibleValue::new(*name))))
    }
}

/// Routing policy: the choice of a worker for each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum RouterName {
    /// Send requests to the workers in rotation.
    #[value(alias = "round-robin")]
    RoundRobin,
    /// Send each request to a random worker.
    Random,
    /// Choose the worker by a hash of the request's session.
    #[value(alias = "session-hash", alias = "session")]
    SessionHash,
    /// Choose the worker with the fewest requests.
    #[value(alias = "least-loaded")]
    LeastLoaded,
    /// Choose the less loaded of two random workers.
    #[value(alias = "power-of-two")]
    PowerOfTwo,
    /// Choose the worker with the lowest cost of prefill and decode blocks, as Dynamo does.
    #[value(alias = "kv-router", alias = "kv")]
    KvRouter,
    /// Choose the worker by the weighted scorers of llm-d.
    #[value(name = "llm-d", alias = "llmd", alias = "scorers")]
    LlmD,
}

/// Order of the requests in the router's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QueuePolicyName {
    /// Route queued requests first come, first served.
    Fcfs,
    /// Route queued requests last come, first served.
    Lcfs,
    /// Route the queued request with the weighted shortest prompt first.
    Wspt,
}

/// Flags for the workers and the router.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Workers and router")]
pub struct PoolArgs {
    /// Number of workers that do both prefill and decode.
    #[arg(
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65_536),
        conflicts_with_all = ["num_prefill_workers", "num_decode_workers"]
    )]
    pub num_workers: u32,
    /// Number of prefill workers; requires --num-decode-workers.
    #[arg(long, requires = "num_decode_workers", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub num_prefill_workers: Option<u32>,
    /// Number of decode workers; requires --num-prefill-workers.
    #[arg(long, requires = "num_prefill_workers", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub num_decode_workers: Option<u32>,
    /// YAML file of different workers: a list of `{count: 2, flags: {gpu: H100, …}}`. The flags are
    /// added to those of the command line.
    #[arg(long, value_name = "FILE", conflicts_with = "num_workers")]
    pub workers: Option<PathBuf>,
    /// Engine of all workers as arguments of Dynamo's mocker: JSON, or a file with it.
    #[arg(long, value_name = "JSON|FILE")]
    pub extra_engine_args: Option<String>,
    /// Engine of the prefill workers as arguments of Dynamo's mocker.
    #[arg(long, value_name = "JSON|FILE", requires = "num_prefill_workers")]
    pub prefill_engine_args: Option<String>,
    /// Engine of the decode workers as arguments of Dynamo's mocker.
    #[arg(long, value_name = "JSON|FILE", requires = "num_prefill_workers")]
    pub decode_engine_args: Option<String>,
    /// Flags of `serve` for the prefill or the decode workers, added to those of the command line, such as
    /// '{"prefill": {"tensor-parallel-size": 4}, "decode": {"tensor-parallel-size": 2}}'.
    #[arg(
        long,
        value_name = "JSON|FILE",
        requires = "num_prefill_workers",
        conflicts_with_all = ["prefill_engine_args", "decode_engine_args"]
    )]
    pub pool_flags: Option<String>,
    /// Routing policy: how a worker is chosen for each request.
    #[arg(long, visible_alias = "router-mode", value_enum, default_value = "round_robin")]
    pub router: RouterName,
    /// Settings of the router as JSON or a file with it: Dynamo's names for kv_router, weights of
    /// the scorers for llm-d.
    #[arg(long, visible_alias = "router-policy-config", value_name = "JSON|FILE")]
    pub router_config: Option<String>,
    /// kv_router: requests wait while every worker has more than this number of prefill steps to
    /// compute.
    #[arg(long)]
    pub router_queue_threshold: Option<f64>,
    /// kv_router: order in which requests leave the router's queue.
    #[arg(long, value_enum)]
    pub router_queue_policy: Option<QueuePolicyName>,
    /// kv_router: 0 selects the lowest cost; higher values sample the workers by their cost.
    #[arg(long)]
    pub router_temperature: Option<f64>,
    /// Delay of KV events on the way to the router, in milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub kv_event_lag_ms: f64,
    /// Startup time of a new worker, in seconds.
    #[arg(long, default_value_t = 0.0)]
    pub startup_time: f64,
    /// Apply --startup-time to the initial workers too.
    #[arg(long)]
    pub cold_start: bool,
    /// Number of workers over time: SECONDS=WORKERS,…
    #[arg(long, value_name = "PLAN")]
    pub scale: Option<String>,
    /// Maximum number of workers; enables the autoscaler.
    #[arg(long)]
    pub autoscale_max: Option<u32>,
    /// Minimum number of workers of the autoscaler.
    #[arg(long, default_value_t = 1, requires = "autoscale_max")]
    pub autoscale_min: u32,
    /// Algorithm of the autoscaler.
    #[arg(long, value_enum, default_value_t = AutoscalerName::Hpa, requires = "autoscale_max")]
    pub autoscale_policy: AutoscalerName,
    /// Target number of waiting sequences per worker, for the autoscaler.
    #[arg(long, requires = "autoscale_max")]
    pub autoscale_target_queue: Option<f64>,
    /// Target fraction of the KV cache in use, above 0 up to 1, for the autoscaler.
    #[arg(long, requires = "autoscale_max")]
    pub autoscale_target_kv_usage: Option<f64>,
    /// Interval, in seconds, at which the autoscaler reads its metrics.
    #[arg(long, default_value_t = 15.0, requires = "autoscale_max")]
    pub autoscale_interval: f64,
    /// Time after a change in which the autoscaler removes no worker, in seconds.
    #[arg(long, default_value_t = 300.0, requires = "autoscale_max")]
    pub autoscale_cool_down: f64,
    /// Worker failures: SECONDS=WORKERS,… These workers lose all their requests, and others start.
    #[arg(long, value_name = "PLAN")]
    pub lose_workers: Option<String>,
}

/// Algorithm of the autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AutoscalerName {
    /// Kubernetes' horizontal pod autoscaler with pod metrics.
    Hpa,
    /// The horizontal pod autoscaler with KEDA's external metrics.
    Keda,
    /// Saturation analyzer of llm-d's workload variant autoscaler.
    Wva,
}

/// Flags for the report.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Report")]
pub struct ReportArgs {
    /// Write the report as JSON to this file; `-` writes it to standard output, instead of the
    /// table.
    #[arg(long, value_name = "FILE")]
    pub report_json: Option<String>,
    /// Keep no records of single requests, so that memory does not grow with their number; `=false` keeps
    /// them beyond a million requests, too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub no_per_request: Option<bool>,
    /// Write one row per request to this .csv or .jsonl file.
    #[arg(long, value_name = "FILE")]
    pub per_request: Option<PathBuf>,
    /// Write a trace of steps, requests, preemptions and transfers that Perfetto and Chrome show.
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
    /// Write every step of the vLLM scheduler to this .jsonl file: its sequences, preemptions and KV
    /// events.
    #[arg(long, value_name = "FILE")]
    pub step_log: Option<PathBuf>,
    /// Write an HTML page with charts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Interval of worker samples for the HTML page, in virtual milliseconds.
    #[arg(long, default_value_t = 100.0)]
    pub sample_interval_ms: f64,
    /// Latency bound (SLO) on the time to the first token of a request, in milliseconds.
    #[arg(long, visible_alias = "sla-ttft-ms")]
    pub slo_ttft_ms: Option<f64>,
    /// Latency bound (SLO) on the mean gap between tokens of a request (its inter-token latency, or
    /// TPOT), in milliseconds.
    #[arg(long, visible_alias = "sla-itl-ms")]
    pub slo_itl_ms: Option<f64>,
    /// Latency bound (SLO) on the time to the last token of a request, in milliseconds.
    #[arg(long, visible_alias = "sla-e2e-ms")]
    pub slo_e2e_ms: Option<f64>,
    /// Requirement on a key of the report's summary: KEY>=NUMBER, also <=, > and <, such as
    /// p99_ttft_ms<=500; the exit code is 1 if the run misses it.
    #[arg(long, value_name = "BOUND")]
    pub require: Vec<String>,
    /// Price of a GPU hour, in any currency; the report then contains the cost.
    #[arg(long)]
    pub gpu_hour_price: Option<f64>,
}

/// HTTP endpoint of a real server to which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GenerationApiName {
    /// Send requests to `/v1/completions`, with prompts of token ids.
    Completions,
    /// Send requests to `/v1/chat/completions`, with prompts of text.
    Chat,
}

/// Flags for a replay against real servers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Real servers")]
pub(super) struct OnlineArgs {
    /// Send the workload over HTTP to these servers instead of simulated workers.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        conflicts_with_all = crate::conflicts::arg_ids::<PoolArgs>()
    )]
    pub target: Vec<String>,
    /// HTTP endpoint of the --target servers to which requests are sent.
    #[arg(long, value_enum, default_value = "completions")]
    pub target_api: GenerationApiName,
    /// Model name in requests; the default is the first model that the server lists.
    #[arg(long)]
    pub target_model: Option<String>,
    /// API key, sent as a bearer token.
    #[arg(long)]
    pub target_api_key: Option<String>,
    /// PEM file of the certificates that verify https targets [the public ones that browsers
    /// trust].
    #[arg(long, value_name = "FILE", conflicts_with = "target_insecure")]
    pub target_ca: Option<PathBuf>,
    /// Accept any certificate of an https target.
    #[arg(long, visible_alias = "insecure")]
    pub target_insecure: bool,
    /// Timeout of one request, in seconds.
    #[arg(long, default_value_t = 600.0)]
    pub target_timeout: f64,
    /// Maximum number of sessions in flight.
    #[arg(long, default_value_t = 4096)]
    pub target_max_in_flight: u32,
}

impl ReportArgs {
    /// Returns the flags of files that describe a single run, and whether each is given.
    pub fn single_run_file_flags(&self) -> [(&'static str, bool); 3] {
        [
            ("--per-request", self.per_request.is_some()),
            ("--trace-out", self.trace_out.is_some()),
            ("--step-log", self.step_log.is_some()),
        ]
    }

    /// Returns the latency bounds (SLO) that the `--slo-*` flags set.
    pub fn latency_slo(&self) -> Result<LatencySlo> {
        for (name, value) in [
            ("--slo-ttft-ms", self.slo_ttft_ms),
            ("--slo-itl-ms", self.slo_itl_ms),
            ("--slo-e2e-ms", self.slo_e2e_ms),
        ] {
            if value.is_some_and(|ms| !ms.is_finite() || ms <= 0.0) {
                let value = value.unwrap_or_default();
                refuse!("{name} is {value}, must be a number above 0");
            }
        }
        Ok(LatencySlo {
            ttft_ms: self.slo_ttft_ms,
            itl_ms: self.slo_itl_ms,
            e2e_ms: self.slo_e2e_ms,
        })
    }
}

/// Parses the arguments of a tool that takes flags of `vllm-sim serve` too, and returns them with
/// those flags. The inner `Err` is the help text that the arguments ask for.
///
/// # Errors
/// Returns a usage error for invalid arguments.
pub fn parse_args_and_serve_flags<T: Parser>(
    words: &[String],
    sort: ServeFlagSplitter<'_>,
) -> Result<Result<(T, Vec<String>), String>> {
    let (known, others) = split_known_args::<T>(words);
    // A help text does not depend on the other flags, even if they are invalid.
    let (flags, loose) = match known.iter().any(|word| word == "--help") {
        true => Default::default(),
        false => sort(&others)?,
    };
    Ok(parse_tool_args(&[known, loose].concat())?.map(|args| (args, flags)))
}

/// Separates the arguments that command `T` knows from all others, in their order, and returns
/// (known, others).
pub fn split_known_args<T: Parser>(words: &[String]) -> (Vec<String>, Vec<String>) {
    let command = T::command();
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let body = word.strip_prefix("--").filter(|body| !body.is_empty());
        let (name, joined) = match body.map(|body| body.split_once('=')) {
            Some(Some((name, value))) => (name.replace('_', "-"), Some(value)),
            Some(None) => (body.unwrap_or_default().replace('_', "-"), None),
            None => {
                match word.as_str() {
                    "-h" => ours.push("--help".to_owned()),
                    _ => others.push(word.clone()),
                }
                continue;
            }
        };
        let known = command.get_arguments().find(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name.as_str()) || aliases.contains(&name.as_str())
        });
        if name == "help" {
            ours.push("--help".to_owned());
            continue;
        }
        let Some(known) = known else {
            others.push(word.clone());
            continue;
        };
        ours.push(match joined {
            // Scripts may give a switch an explicit value.
            Some("false") if !known.get_action().takes_values() => continue,
            Some("true") if !known.get_action().takes_values() => format!("--{name}"),
            Some(value) => format!("--{name}={value}"),
            None => format!("--{name}"),
        });
        // A value of a flag that requires `=` is never the next word.
        let takes_next = known.get_action().takes_values() && !known.is_require_equals_set();
        let values = match takes_next && joined.is_none() {
            true => known.get_num_args().map_or(1, |n| n.min_values().max(1)),
            false => 0,
        };
        ours.extend(words.by_ref().take(values).cloned());
        let is_open = known.get_num_args().is_some_and(|n| n.max_values() == usize::MAX);
        while let Some(word) = words.next_if(|word| is_open && values > 0 && !word.starts_with('-'))
        {
            ours.push(word.clone());
        }
    }
    (ours, others)
}

/// Parses the value of a flag: JSON, or the name of a file with JSON or YAML.
pub(crate) fn read_json_or_file(flag: &str, text: &str) -> Result<serde_json::Value> {
    let trimmed = text.trim_start();
    if trimmed.starts_with(['{', '[']) {
        return serde_json::from_str(text)
            .map_err(|error| UsageError(format!("{flag}: not JSON: {error}")).into());
    }
    let file = std::fs::read_to_string(text).with_context(|| format!("{flag}: {text}"))?;
    match serde_json::from_str(&file) {
        Ok(value) => Ok(value),
        Err(_) => serde_saphyr::from_str(&file)
            .with_context(|| format!("{flag}: {text} is neither JSON nor YAML")),
    }
}

/// Example commands below the help text of `vllm-sim replay`.
const HELP_EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim replay trace.jsonl --model demo --num-workers 4 --html report.html\n\
\x20 vllm-sim replay --workload \"20 req/s of 2k/300\" --model meta-llama/Llama-3.1-8B-Instruct --gpu H100\n\
\x20 vllm-sim bench --target http://localhost:8000 --workload \"5 req/s of 200/50\"";
