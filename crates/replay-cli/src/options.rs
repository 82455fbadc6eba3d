use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Args, Parser, ValueEnum};

use vllm_sim_command_line::{UsageError, parse, refuse};
use vllm_sim_replay::load::Format;
use vllm_sim_replay::report::Slo;
use vllm_sim_replay::synth::{Lengths, RateCurve};

/// Play a workload in virtual time against workers behind a router, and report.
///
/// The flags of `vllm-sim serve` that describe one engine describe each worker (`--config`,
/// `--model`, `--gpu`, `--max-num-seqs`, …); others are refused.
#[derive(Debug, Parser)]
#[command(
    name = "vllm-sim replay",
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
    /// Play a recorded run of Dynamo's offline replay: a folder with args.json and its trace.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["PoolArgs", "WorkloadArgs", "AdapterArgs"])]
    pub dynamo_run: Option<PathBuf>,
    /// With --dynamo-run: folder of NVIDIA's kernel tables, for a timing model that asks for them
    /// [those in $VIRTUAL_ENV or $CONDA_PREFIX].
    #[arg(long, value_name = "DIR", requires = "dynamo_run")]
    pub kernel_tables: Option<PathBuf>,
    /// Compare JSON reports with the first one; with --html also as a page. Runs of one thing with
    /// several seeds are one word with commas: --compare a1.json,a2.json b1.json,b2.json.
    #[arg(
        long,
        num_args = 2..,
        value_name = "REPORT",
        conflicts_with_all = [
            "PoolArgs", "WorkloadArgs", "AdapterArgs", "OnlineArgs", "dynamo_run", "replay_mode",
            "report_json", "per_request", "slo_ttft_ms", "slo_itl_ms", "slo_e2e_ms",
            "gpu_hour_price",
        ]
    )]
    pub compare: Option<Vec<String>>,
    /// In virtual time, or against the servers of --target [by whether there is a --target].
    #[arg(long, value_enum)]
    pub replay_mode: Option<Mode>,
    /// Threads for workers behind a router that looks at none of them (round-robin, random,
    /// session-hash) and an open loop of sessions of one turn; the results are the same. Any other
    /// replay takes one [all cores].
    #[arg(long)]
    pub threads: Option<usize>,
}

/// Which clock a replay runs on (Dynamo's words).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// Virtual time.
    Offline,
    /// Real time.
    Online,
}

/// What is asked.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Trace files; several are read as one.
    #[arg(value_name = "TRACE")]
    pub files: Vec<PathBuf>,
    /// A synthetic workload in words: "20 req/s of 2k/300", prompts of 2,000 tokens and outputs of
    /// 300; a minute of it unless --request-count says how much.
    #[arg(
        long,
        value_name = "WORDS",
        conflicts_with_all = ["files", "input_tokens", "request_rate", "replay_concurrency"]
    )]
    pub workload: Option<String>,
    /// What the files hold.
    #[arg(
        long,
        visible_alias = "trace-format",
        default_value = "auto",
        value_parser = FormatParser,
        hide_possible_values = true
    )]
    pub format: Format,
    /// Tokens that a hash id of a trace stands for.
    #[arg(long, default_value_t = 512)]
    pub trace_block_size: u32,
    /// Share of the first prompt that sessions have in common, in traces of lengths.
    #[arg(long, default_value_t = 0.0)]
    pub trace_shared_prefix_ratio: f64,
    /// Groups of such sessions.
    #[arg(long, default_value_t = 0)]
    pub trace_num_prefix_groups: u32,
    /// Tokens of a synthetic prompt, as a distribution of lengths.
    #[arg(
        long,
        alias = "random-input-len",
        alias = "input-len",
        help = "Tokens of a synthetic prompt: a number, uniform:LOW:HIGH, normal:MEAN:STD[:MIN:MAX], lognormal:MEAN:STD[:MIN:MAX], histogram:FILE"
    )]
    pub input_tokens: Option<Lengths>,
    /// Tokens of a synthetic output, likewise.
    #[arg(
        long,
        alias = "random-output-len",
        alias = "output-len",
        default_value = "128"
    )]
    pub output_tokens: Lengths,
    /// Synthetic requests (sessions, with several turns); of a trace, the first so many sessions.
    #[arg(long, visible_alias = "num-requests", alias = "num-prompts")]
    pub request_count: Option<u64>,
    /// Arrivals a second.
    #[arg(long, value_name = "RPS")]
    pub request_rate: Option<f64>,
    /// Shape of the gaps at --request-rate: 1 Poisson, below 1 in clusters, above 1 even.
    #[arg(long)]
    pub burstiness: Option<f64>,
    /// The rate over time, in times of the given one: SECONDS=FACTOR,… with straight lines between,
    /// so 0=0,60=1 is a ramp and 60=1,60=5,70=5,70=1 a burst of ten seconds.
    #[arg(long, value_name = "CURVE", conflicts_with = "replay_concurrency")]
    pub rate_curve: Option<RateCurve>,
    /// Fixed gap between arrivals, milliseconds; 0: all at once.
    #[arg(long)]
    pub arrival_interval_ms: Option<f64>,
    /// Seed of arrivals.
    #[arg(long, default_value_t = 42)]
    pub arrival_seed: u64,
    /// Seed of lengths and pauses.
    #[arg(long, default_value_t = 42)]
    pub workload_seed: u64,
    /// Adapters.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Turns of a synthetic session.
    #[arg(long, default_value = "1")]
    pub turns_per_session: Lengths,
    /// Tokens that each further turn adds to what was said before; without it every turn has a
    /// prompt of its own.
    #[arg(long)]
    pub turn_tokens: Option<Lengths>,
    /// Share of a synthetic prompt that its group has in common.
    #[arg(long, default_value_t = 0.0)]
    pub shared_prefix_ratio: f64,
    /// Groups of synthetic prompts.
    #[arg(long, default_value_t = 0)]
    pub num_prefix_groups: u32,
    /// Pause between the end of a turn and the next, milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub inter_turn_delay_ms: f64,
    /// Draw those pauses from an exponential distribution.
    #[arg(long)]
    pub inter_turn_delay_varies: bool,
    /// Closed loop: so many requests (sessions) at a time, start times ignored.
    #[arg(long, visible_alias = "concurrency", alias = "max-concurrency")]
    pub replay_concurrency: Option<usize>,
    /// Divides the times of an open loop.
    #[arg(long, default_value_t = 1.0)]
    pub arrival_speedup_ratio: f64,
    /// Stop at this virtual time; what runs stays incomplete.
    #[arg(long)]
    pub max_sim_time_seconds: Option<f64>,
}

/// Which adapters are asked for.
#[derive(Debug, Clone, Args)]
pub struct AdapterArgs {
    /// Adapters that sessions use, by chance.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub lora: Vec<String>,
    /// Share of the sessions that use one.
    #[arg(long, default_value_t = 1.0)]
    pub lora_share: f64,
}

/// Reads the form of a trace, and tells completions its names.
#[derive(Clone)]
struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = Format;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Format, clap::Error> {
        let read = |text: &str| text.parse::<Format>();
        read.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = Format::NAMES.iter();
        Some(Box::new(names.map(|(name, _)| PossibleValue::new(*name))))
    }
}

/// How workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum RouterName {
    /// One after the other.
    #[value(alias = "round-robin")]
    RoundRobin,
    /// Any.
    Random,
    /// The one that the hash of the session names.
    #[value(alias = "session-hash", alias = "session")]
    SessionHash,
    /// The one with the fewest requests.
    #[value(alias = "least-loaded")]
    LeastLoaded,
    /// The less loaded of two drawn ones.
    #[value(alias = "power-of-two")]
    PowerOfTwo,
    /// Dynamo's cost of prefill and decode blocks.
    #[value(alias = "kv-router", alias = "kv")]
    KvRouter,
    /// llm-d's weighted scorers.
    #[value(name = "llm-d", alias = "llmd", alias = "scorers")]
    LlmD,
}

/// Order of the router's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// First come.
    Fcfs,
    /// Last come.
    Lcfs,
    /// Weighted shortest prompt.
    Wspt,
}

/// Who serves.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Workers and router")]
pub struct PoolArgs {
    /// Workers that do everything.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub num_workers: u32,
    /// Workers that compute prompts for others; with --num-decode-workers.
    #[arg(long, requires = "num_decode_workers", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub num_prefill_workers: Option<u32>,
    /// Workers that make output from prompts computed elsewhere.
    #[arg(long, requires = "num_prefill_workers", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub num_decode_workers: Option<u32>,
    /// Different workers: a YAML list of `{count: 2, flags: {gpu: H100, …}}`; flags are added to
    /// those of the command line.
    #[arg(long, value_name = "FILE", conflicts_with = "num_workers")]
    pub workers: Option<PathBuf>,
    /// Engine of the workers as Dynamo's mocker has it: JSON, or a file of it.
    #[arg(long, value_name = "JSON|FILE")]
    pub extra_engine_args: Option<String>,
    /// The same, of prefill workers.
    #[arg(long, value_name = "JSON|FILE", requires = "num_prefill_workers")]
    pub prefill_engine_args: Option<String>,
    /// The same, of decode workers.
    #[arg(long, value_name = "JSON|FILE", requires = "num_prefill_workers")]
    pub decode_engine_args: Option<String>,
    /// Flags of `serve` for one of two pools, added to those of the command line, such as
    /// '{"prefill": {"tensor-parallel-size": 4}, "decode": {"tensor-parallel-size": 2}}'.
    #[arg(
        long,
        value_name = "JSON|FILE",
        requires = "num_prefill_workers",
        conflicts_with_all = ["prefill_engine_args", "decode_engine_args"]
    )]
    pub pool_flags: Option<String>,
    /// How workers are chosen.
    #[arg(
        long,
        visible_alias = "router-mode",
        value_enum,
        default_value = "round_robin"
    )]
    pub router: RouterName,
    /// Settings of the router, JSON or a file of it: Dynamo's names for kv_router, scorers and
    /// their weights for llm-d.
    #[arg(long, visible_alias = "router-policy-config", value_name = "JSON|FILE")]
    pub router_config: Option<String>,
    /// kv_router: requests wait while every worker has more steps of prompts than this.
    #[arg(long)]
    pub router_queue_threshold: Option<f64>,
    /// kv_router: order of those that wait.
    #[arg(long, value_enum)]
    pub router_queue_policy: Option<PolicyName>,
    /// kv_router: 0 takes the least cost, more draws.
    #[arg(long)]
    pub router_temperature: Option<f64>,
    /// How late the router learns of cached blocks, milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub kv_event_lag_ms: f64,
    /// Seconds until a new worker serves.
    #[arg(long, default_value_t = 0.0)]
    pub startup_time: f64,
    /// Let the workers of the start take that long too.
    #[arg(long)]
    pub cold_start: bool,
    /// Numbers of workers over time: SECONDS=WORKERS,…
    #[arg(long, value_name = "PLAN")]
    pub scale: Option<String>,
    /// Most workers; switches the autoscaler on.
    #[arg(long)]
    pub autoscale_max: Option<u32>,
    /// Fewest workers.
    #[arg(long, default_value_t = 1)]
    pub autoscale_min: u32,
    /// Whose rule the autoscaler follows.
    #[arg(long, value_enum, default_value_t = AutoscalerName::Hpa)]
    pub autoscale_policy: AutoscalerName,
    /// Waiting sequences per worker that the autoscaler aims at.
    #[arg(long)]
    pub autoscale_target_queue: Option<f64>,
    /// Share of the cache in use that it aims at.
    #[arg(long)]
    pub autoscale_target_kv_usage: Option<f64>,
    /// Seconds between its looks.
    #[arg(long, default_value_t = 15.0)]
    pub autoscale_interval: f64,
    /// Seconds after a change in which no worker is taken away.
    #[arg(long, default_value_t = 300.0)]
    pub autoscale_cool_down: f64,
    /// Workers that are lost with all that they have, while others start: SECONDS=WORKERS,…
    #[arg(long, value_name = "PLAN")]
    pub lose_workers: Option<String>,
}

/// Whose rule of scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AutoscalerName {
    /// Kubernetes' autoscaler with metrics of the pods.
    Hpa,
    /// The same with KEDA's external metrics.
    Keda,
    /// llm-d's workload variant autoscaler, by saturation.
    Wva,
}

/// What is told.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Report")]
pub struct ReportArgs {
    /// Write the report as JSON; `-`: to standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    pub report_json: Option<String>,
    /// Keep no record of single requests, so that memory does not grow with their number; `=false`: keep
    /// them beyond a million requests, too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub no_per_request: Option<bool>,
    /// Write a row per request: .csv or .jsonl.
    #[arg(long, value_name = "FILE")]
    pub per_request: Option<PathBuf>,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Virtual milliseconds between looks at the workers, for the page.
    #[arg(long, default_value_t = 100.0)]
    pub sample_interval_ms: f64,
    /// Longest time to the first token of a good request.
    #[arg(long, visible_alias = "sla-ttft-ms")]
    pub slo_ttft_ms: Option<f64>,
    /// Longest mean gap between its tokens.
    #[arg(long, visible_alias = "sla-itl-ms")]
    pub slo_itl_ms: Option<f64>,
    /// Longest time to its last token.
    #[arg(long, visible_alias = "sla-e2e-ms")]
    pub slo_e2e_ms: Option<f64>,
    /// What must be reached: KEY>=NUMBER, also <=, > and <, of a key of the report's summary, such as
    /// p99_ttft_ms<=500; missed: exit code 1.
    #[arg(long, value_name = "BOUND")]
    pub require: Vec<String>,
    /// What a GPU costs for an hour, in any unit: the report then has the cost.
    #[arg(long)]
    pub gpu_hour_price: Option<f64>,
}

/// Which API of a real server is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ApiName {
    /// `/v1/completions`, prompts of token ids.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// Real servers instead of simulated workers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Real servers")]
pub(super) struct OnlineArgs {
    /// Send the workload over HTTP to these servers instead of simulated workers.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        conflicts_with_all = ["PoolArgs", "dynamo_run"]
    )]
    pub target: Vec<String>,
    /// Which API.
    #[arg(long, value_enum, default_value = "completions")]
    pub target_api: ApiName,
    /// Model to name; without it the first that the server lists.
    #[arg(long)]
    pub target_model: Option<String>,
    /// Sent as a bearer token.
    #[arg(long)]
    pub target_api_key: Option<String>,
    /// Certificates (PEM) to trust https targets by [those that browsers trust].
    #[arg(long, value_name = "FILE", conflicts_with = "target_insecure")]
    pub target_ca: Option<PathBuf>,
    /// Believe any certificate of an https target.
    #[arg(long, visible_alias = "insecure")]
    pub target_insecure: bool,
    /// Longest time of one request, seconds.
    #[arg(long, default_value_t = 600.0)]
    pub target_timeout: f64,
    /// Most sessions in flight at all.
    #[arg(long, default_value_t = 4096)]
    pub target_max_in_flight: u32,
}

impl ReportArgs {
    /// The bounds of a good request.
    pub fn slo(&self) -> Result<Slo> {
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
        Ok(Slo {
            ttft_ms: self.slo_ttft_ms,
            itl_ms: self.slo_itl_ms,
            e2e_ms: self.slo_e2e_ms,
        })
    }
}

/// Arguments of a command line: those that `T` knows, and all others in their order.
///
/// # Errors
/// What clap says of a value.
pub fn split<T: Parser>(words: &[String]) -> Result<Parsed<T>> {
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
            // A switch that is typed with a value, as scripts do.
            Some("false") if !known.get_action().takes_values() => continue,
            Some("true") if !known.get_action().takes_values() => format!("--{name}"),
            Some(value) => format!("--{name}={value}"),
            None => format!("--{name}"),
        });
        let values = match known.get_action().takes_values() && joined.is_none() {
            true => known.get_num_args().map_or(1, |n| n.min_values().max(1)),
            false => 0,
        };
        ours.extend(words.by_ref().take(values).cloned());
        let is_open = known
            .get_num_args()
            .is_some_and(|n| n.max_values() == usize::MAX);
        while let Some(word) = words.next_if(|word| is_open && values > 0 && !word.starts_with('-'))
        {
            ours.push(word.clone());
        }
    }
    Ok(Parsed {
        known: ours,
        others,
        of: std::marker::PhantomData,
    })
}

/// What [`split`] found.
#[derive(Debug)]
pub struct Parsed<T> {
    known: Vec<String>,
    /// Arguments for somebody else.
    pub others: Vec<String>,
    of: std::marker::PhantomData<T>,
}

impl<T: Parser> Parsed<T> {
    /// The known words, with `loose` ones behind them; `Err(Some)` is a help text.
    pub fn parse(&self, loose: &[String]) -> Result<Result<T, String>> {
        parse(&[&self.known[..], loose].concat())
    }

    /// Whether help is asked for.
    pub fn wants_help(&self) -> bool {
        self.known.iter().any(|word| word == "--help")
    }
}

/// JSON from the command line, or from the file that it names.
pub(crate) fn json_or_file(flag: &str, text: &str) -> Result<serde_json::Value> {
    let trimmed = text.trim_start();
    if trimmed.starts_with(['{', '[']) {
        return serde_json::from_str(text)
            .map_err(|error| UsageError(format!("{flag}: no JSON: {error}")).into());
    }
    let file = std::fs::read_to_string(text).with_context(|| format!("{flag}: {text}"))?;
    match serde_json::from_str(&file) {
        Ok(value) => Ok(value),
        Err(_) => serde_saphyr::from_str(&file)
            .with_context(|| format!("{flag}: {text} is neither JSON nor YAML")),
    }
}
